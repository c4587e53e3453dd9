//! How much has gone through a TCP socket, as its kernel has counted: what the program that had it has read, and what
//! it has written, to the byte.
//!
//! A connection whose descriptor somebody else has, too, does not end with the program. Its next life, which knows
//! what it had read and written, may go on with it if the kernel says the same.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::OnceLock,
};

use libc::{c_int, c_void, socklen_t};

/// The beginning of `struct tcp_info` (linux/tcp.h; Linux 4.1).
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct TcpInfo {
    state: u8,
    small: [u8; 7],
    numbers: [u32; 24],
    rates: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
}

/// The kernel's numbers of TCP states.
mod state {
    pub(super) const ESTABLISHED: u8 = 1;
    pub(super) const SYN_SENT: u8 = 2;
    pub(super) const FIN_WAIT1: u8 = 4;
    pub(super) const FIN_WAIT2: u8 = 5;
    pub(super) const CLOSE_WAIT: u8 = 8;
    pub(super) const LAST_ACK: u8 = 9;
    pub(super) const CLOSING: u8 = 11;
}

/// What has gone through a connection that was opened from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Bytes that the program has read.
    pub read: u64,
    /// Bytes that it has written.
    pub written: u64,
    /// It has said that it writes no more.
    pub is_shut: bool,
}

impl Counts {
    /// Of this socket; `None`: it is no TCP connection, it has ended, or it does not stand still.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        const DIAG_ATTEMPTS_MAX: usize = 100;
        let mut protocol: c_int = 0;
        option(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut protocol)?;
        if protocol != libc::IPPROTO_TCP {
            return Ok(None);
        }
        // What arrives between two questions would be counted once.
        for _ in 0..DIAG_ATTEMPTS_MAX {
            let before = passing(socket)?;
            let (unread, unsent) = (
                queue(socket, libc::FIONREAD)?,
                queue(socket, libc::TIOCOUTQ)?,
            );
            if passing(socket)? == before {
                return Ok(Self::from_kernel(&before, unread, unsent));
            }
        }
        Ok(None)
    }

    fn from_kernel(info: &TcpInfo, unread: u64, unsent: u64) -> Option<Self> {
        use state::{CLOSE_WAIT, CLOSING, ESTABLISHED, FIN_WAIT1, FIN_WAIT2, LAST_ACK, SYN_SENT};
        // The beginning and the end of a stream have numbers, too.
        let (syn, their_end, our_end) = match info.state {
            SYN_SENT => (0, 0, 0),
            ESTABLISHED => (1, 0, 0),
            CLOSE_WAIT => (1, 1, 0),
            FIN_WAIT1 | FIN_WAIT2 => (1, 0, 1),
            CLOSING | LAST_ACK => (1, 1, 1),
            _ => return None,
        };
        let read = info.bytes_received.checked_sub(unread + their_end)?;
        let written = (info.bytes_acked + unsent).checked_sub(syn + our_end)?;
        Some(Self {
            read,
            written,
            is_shut: our_end > 0,
        })
    }
}

/// What the two ends of a connection have agreed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// How far window fields are shifted: the other end's, and ours.
    pub(crate) scales: Option<(u8, u8)>,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
}

impl Shape {
    /// Of a connection in which nothing was said yet; `None`: it is none.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        /// Places among the small numbers, and flags (`TCPI_OPT_…`).
        const OPTIONS: usize = 4;
        const SCALES: usize = 5;
        const TIMESTAMPS: u8 = 1;
        const SACK: u8 = 2;
        const WINDOW_SCALE: u8 = 4;
        if !is_unused(socket)? {
            return Ok(None);
        }
        let mut info = TcpInfo::default();
        option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
        let (options, scales) = (info.small[OPTIONS], info.small[SCALES]);
        Ok(Some(Self {
            scales: (options & WINDOW_SCALE != 0).then_some((scales & 15, scales >> 4)),
            sack: options & SACK != 0,
            timestamps: options & TIMESTAMPS != 0,
        }))
    }
}

/// Is this a connection in which nothing was said yet, by either end?
///
/// # Errors
/// The kernel does not say.
pub fn is_unused(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let info = passing(socket)?;
    let unsent = queue(socket, libc::TIOCOUTQ)?;
    // The SYN has a number, too.
    Ok(info.state == state::ESTABLISHED
        && (info.bytes_received, unsent) == (0, 0)
        && info.bytes_acked <= 1)
}

/// What the kernel counts, without what goes on by itself.
fn passing(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut info = TcpInfo::default();
    option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    Ok(TcpInfo {
        state: info.state,
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        ..TcpInfo::default()
    })
}

/// An option of a socket that is so many plain numbers.
pub(crate) fn option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &mut T,
) -> io::Result<()> {
    let size = size_of::<T>();
    let mut length = socklen_t::try_from(size).unwrap_or(0);
    let at: *mut c_void = (&raw mut *value).cast();
    // SAFETY: plain numbers, of which any bytes are valid, and their size.
    let outcome = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, at, &raw mut length) };
    match outcome {
        0 if length as usize >= size => Ok(()),
        0 => Err(io::ErrorKind::Unsupported.into()), // an older kernel
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many bytes are in one of its queues.
fn queue(socket: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: these requests fill in an `int`.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    u64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Does this kernel count as we think that kernels do? Tried once, with a connection to ourselves.
#[must_use]
pub fn kernel_counts() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| try_kernel().unwrap_or(false))
}

fn try_kernel() -> io::Result<bool> {
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
        os::fd::AsFd as _,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    let begins = Counts::of(socket.as_fd())?;
    socket.write_all(b"seven..")?;
    other.write_all(b"eleven.....")?;
    other.shutdown(Shutdown::Write)?;
    socket.read_exact(&mut [0; 4])?;
    // By its end we know that it has arrived, and by what is read there that ours has.
    socket.peek(&mut [0; 11])?;
    other.read_exact(&mut [0; 7])?;
    let goes_on = Counts::of(socket.as_fd())?;
    socket.read_exact(&mut [0; 7])?;
    socket.read_exact(&mut [0; 1]).expect_err("its end");
    socket.shutdown(Shutdown::Write)?;
    let ends = Counts::of(socket.as_fd())?;
    let counts = |read, written, is_shut| {
        Some(Counts {
            read,
            written,
            is_shut,
        })
    };
    Ok(
        [begins, goes_on] == [counts(0, 0, false), counts(4, 7, false)]
        // It may be over by then.
        && (ends.is_none() || ends == counts(11, 7, true)),
    )
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{Shutdown, TcpListener, TcpStream},
        os::{fd::AsFd as _, unix::net::UnixStream},
    };

    use proptest::prelude::*;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let socket = TcpStream::connect(listener.local_addr().expect("an address"));
        let (other, _) = listener.accept().expect("accepted");
        (socket.expect("connected"), other)
    }

    #[track_caller]
    fn count(socket: &TcpStream) -> Counts {
        let counts = Counts::of(socket.as_fd()).expect("counted");
        counts.expect("a connection")
    }

    #[test]
    fn kernel_reports_counts() {
        assert!(kernel_counts());
    }

    #[test]
    fn foreign_socket_has_no_counts() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        assert_eq!(Counts::of(one.as_fd()).expect("asked"), None);
        let (socket, other) = pair();
        rustix::net::sockopt::set_socket_linger(&other, Some(std::time::Duration::ZERO))
            .expect("set");
        drop(other);
        (&socket).read_exact(&mut [0]).expect_err("reset");
        assert_eq!(Counts::of(socket.as_fd()).expect("asked"), None);
    }

    proptest! {
        /// Whatever is still under way, and whoever ends first.
        #[test]
        fn read_and_written_bytes_are_counted(
            steps in prop::collection::vec((0usize..3, 1usize..20_000), 1..30),
            is_shut: bool,
            is_ended: bool,
        ) {
            let (mut socket, mut other) = pair();
            let (mut written, mut read, mut sent) = (0usize, 0, 0);
            for (what, length) in steps {
                match what {
                    0 if written < 60_000 => {
                        socket.write_all(&vec![7; length]).expect("written");
                        written += length;
                    }
                    1 if sent < 60_000 => {
                        other.write_all(&vec![8; length]).expect("written");
                        sent += length;
                    }
                    _ => {
                        let part = length.min(sent - read);
                        socket.read_exact(&mut vec![0; part]).expect("read");
                        read += part;
                    }
                }
                let counts = count(&socket);
                prop_assert_eq!((counts.read, counts.written), (read as u64, written as u64));
                prop_assert!(!counts.is_shut);
            }
            if is_ended {
                other.shutdown(Shutdown::Write).expect("ended");
            }
            if is_shut {
                socket.shutdown(Shutdown::Write).expect("shut");
            }
            // Both ends known to both is no connection any more.
            if let Some(counts) = Counts::of(socket.as_fd()).expect("counted") {
                let expected = Counts { read: read as u64, written: written as u64, is_shut };
                prop_assert_eq!(counts, expected);
            } else {
                prop_assert!(is_ended && is_shut);
            }
        }
    }
}
