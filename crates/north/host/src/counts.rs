//! Bytes that have gone through a TCP socket: the exact number of bytes that the program has read and written, from
//! the counters of the kernel.
//!
//! A connection whose descriptor the supervisor has, too, survives the program. The next incarnation knows the bytes
//! that the program had read and written, and continues the connection if the kernel's numbers agree.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::OnceLock,
};

use libc::{c_int, c_void, socklen_t};

/// The start of `struct tcp_info` (linux/tcp.h; Linux 4.1).
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

/// Bytes that have gone through an upstream connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Bytes that the program has read.
    pub read: u64,
    /// Bytes that the program has written.
    pub written: u64,
    /// The program has shut the connection down for writing.
    pub is_shut: bool,
}

impl Counts {
    /// The counts of this socket. `None`: no TCP connection, an ended connection, or counters that do not rest.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        const DIAG_ATTEMPTS_MAX: usize = 100;
        let mut protocol: c_int = 0;
        option(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut protocol)?;
        if protocol != libc::IPPROTO_TCP {
            return Ok(None);
        }
        // Bytes that arrive between the two questions would be counted in one answer only.
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
        // SYN and FIN take sequence numbers, too.
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

/// Options that the two ends of a connection have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Window scales: the peer's, and ours.
    pub(crate) scales: Option<(u8, u8)>,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
}

impl Shape {
    /// The options of a connection without data up to now. `None`: the socket is no such connection.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        /// Indices into `small`, and flags (`TCPI_OPT_…`).
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

/// Whether the socket is a connection on which neither end has sent data.
///
/// # Errors
/// The kernel does not answer.
pub fn is_unused(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let info = passing(socket)?;
    let unsent = queue(socket, libc::TIOCOUTQ)?;
    // The SYN takes a sequence number, too.
    Ok(info.state == state::ESTABLISHED
        && (info.bytes_received, unsent) == (0, 0)
        && info.bytes_acked <= 1)
}

/// The counters of the kernel, without fields that change by themselves.
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

/// Reads a socket option of plain numbers.
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

/// Bytes in a queue of the socket.
fn queue(socket: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: these requests fill in an `int`.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    u64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Whether this kernel counts as expected. Tried once, with a connection to this process.
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
    // The FIN of the peer shows that the peer's data has arrived, and the peer's read shows that our data has.
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
        // The connection may have ended by then.
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
        /// The counts are exact, with bytes under way and with either end closed first.
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
            // A connection that both ends have shut down may have ended.
            if let Some(counts) = Counts::of(socket.as_fd()).expect("counted") {
                let expected = Counts { read: read as u64, written: written as u64, is_shut };
                prop_assert_eq!(counts, expected);
            } else {
                prop_assert!(is_ended && is_shut);
            }
        }
    }
}
