//! A TCP socket that goes on where another one stood.
//!
//! The kernel lets a privileged process say what a socket's sequence numbers, options and queues are
//! (`TCP_REPAIR`; Linux 3.5, for checkpoints). So the new server's socket needs no handshake and no translation: its
//! numbers are those that the client knows.

use std::{
    io::{self, Write as _},
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd},
};

use libc::{c_int, c_void};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, connect, getpeername, getsockname,
    socket_with,
};
use wire::SeqNumber;

use crate::counts::{Shape, is_unused, option};

/// What a socket is to be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blueprint {
    /// The server's end.
    pub local: SocketAddr,
    /// The client's.
    pub peer: SocketAddr,
    /// The first number that the client has not acknowledged: the next byte that is written has it.
    pub acknowledged: SeqNumber,
    /// The next number that is expected from the client.
    pub expected: SeqNumber,
    /// What the client has agreed to.
    pub options: Options,
    /// The TSval of the first segment, if timestamps were agreed.
    pub timestamp: Option<u32>,
    /// What the client has room for from `acknowledged` on, bytes.
    pub send_window: u32,
    /// What the client was told that there is room for from `expected` on, bytes.
    pub receive_window: u32,
}

/// What was agreed in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The largest segment that the client takes, bytes; `None`: it has not said so.
    pub mss: Option<u16>,
    /// How far window fields are shifted: the client's, and the server's.
    pub window_scales: Option<(u8, u8)>,
    /// Selective acknowledgements.
    pub sack: bool,
}

/// `struct tcp_repair_opt`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RepairOption {
    code: u32,
    value: u32,
}

/// `struct tcp_repair_window`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RepairWindow {
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}

const QUEUE_RECEIVED: c_int = 1;
const QUEUE_SENT: c_int = 2;
const REPAIR_ON: c_int = 1;
/// Off, without a window probe: the client hears nothing of it.
const REPAIR_OFF: c_int = -1;
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW: u32 = 3;
const OPTION_SACK: u32 = 4;
const OPTION_TIMESTAMP: u32 = 8;

/// What the kernel lets a program say of the largest segment, bytes (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const LEAST_SEGMENT: c_int = 88;
const MOST_SEGMENT: c_int = 32767;

/// The same TSval, or the next one. An odd one would be the beginning of a clock of microseconds (Linux 6.7): that
/// comes round while a client rests for half an hour, which takes what comes then for something old (RFC 7323 5.5).
fn in_milliseconds(timestamp: u32) -> u32 {
    timestamp.wrapping_add(timestamp & 1)
}

fn set<T: Copy>(socket: &impl AsRawFd, level: c_int, name: c_int, value: T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let at: *const c_void = (&raw const value).cast();
    // SAFETY: a value of the option's type, and its size.
    let outcome = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at, length) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn set_tcp<T: Copy>(socket: &impl AsRawFd, name: c_int, value: T) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, name, value)
}

impl Blueprint {
    /// The socket, connected. The client hears nothing of it.
    ///
    /// # Errors
    /// We may not (CAP_NET_ADMIN), the kernel cannot (CONFIG_CHECKPOINT_RESTORE), or there is such a connection
    /// already.
    pub fn build(&self) -> io::Result<TcpStream> {
        let family = match self.local {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_tcp(&socket, libc::TCP_REPAIR, REPAIR_ON)?;
        set_tcp(&socket, libc::TCP_REPAIR_QUEUE, QUEUE_SENT)?;
        set_tcp(&socket, libc::TCP_QUEUE_SEQ, self.acknowledged.0)?;
        set_tcp(&socket, libc::TCP_REPAIR_QUEUE, QUEUE_RECEIVED)?;
        set_tcp(&socket, libc::TCP_QUEUE_SEQ, self.expected.0)?;
        // The listener has the port, too: in repair that is no obstacle.
        bind(&socket, &self.local)?;
        self.connect(&socket)?;
        self.agree(&socket)?;
        if let Some(timestamp) = self.timestamp {
            set_tcp(&socket, libc::TCP_TIMESTAMP, in_milliseconds(timestamp))?;
        }
        self.open_windows(&socket)?;
        set_tcp(&socket, libc::TCP_REPAIR, REPAIR_OFF)?;
        // As one that was accepted: what of it outlives the server, since a client still lacks something, is
        // not to keep the next life from the port.
        set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        Ok(TcpStream::from(socket))
    }

    /// That of a connection that is there, and in which nothing was said yet; `None`: it is none, or something was.
    /// Its program must not touch it meanwhile.
    ///
    /// # Errors
    /// We may not (CAP_NET_ADMIN), or the kernel does not say.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let Some(shape) = Shape::of(socket)? else {
            return Ok(None);
        };
        let (local, peer) = (getsockname(socket)?, getpeername(socket)?);
        let (Some(local), Some(peer)) = (internet(local), peer.and_then(internet)) else {
            return Ok(None);
        };
        // To be in repair sets this one, too.
        let mut reuse: c_int = 0;
        option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &mut reuse)?;
        set_tcp(&socket, libc::TCP_REPAIR, REPAIR_ON)?;
        let looked = Self::look(socket, local, peer, shape);
        set_tcp(&socket, libc::TCP_REPAIR, REPAIR_OFF)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse)?;
        let blueprint = looked?;
        Ok(is_unused(socket)?.then_some(blueprint))
    }

    fn look(
        socket: BorrowedFd<'_>,
        local: SocketAddr,
        peer: SocketAddr,
        shape: Shape,
    ) -> io::Result<Self> {
        let number = |queue| {
            let mut number = 0u32;
            set_tcp(&socket, libc::TCP_REPAIR_QUEUE, queue)?;
            option(socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &mut number)?;
            io::Result::Ok(SeqNumber(number))
        };
        let (acknowledged, expected) = (number(QUEUE_SENT)?, number(QUEUE_RECEIVED)?);
        let mut window = RepairWindow::default();
        option(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR_WINDOW,
            &mut window,
        )?;
        let (mut mss, mut timestamp) = (0u32, 0u32);
        option(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, &mut mss)?;
        option(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_TIMESTAMP,
            &mut timestamp,
        )?;
        Ok(Self {
            local,
            peer,
            acknowledged,
            expected,
            options: Options {
                mss: u16::try_from(mss).ok(),
                window_scales: shape.scales,
                sack: shape.sack,
            },
            timestamp: shape.timestamps.then_some(timestamp),
            send_window: window.snd_wnd,
            receive_window: window.rcv_wnd,
        })
    }

    /// The kernel decides here how large segments are, and looks at that again when the route is another one. In
    /// repair no client has said what it takes by then: it would be 536 bytes.
    fn connect(&self, socket: &OwnedFd) -> io::Result<()> {
        if let Some(mss) = self.options.mss {
            let mss = c_int::from(mss).clamp(LEAST_SEGMENT, MOST_SEGMENT);
            set_tcp(socket, libc::TCP_MAXSEG, mss)?;
        }
        connect(socket, &self.peer)?;
        // As in one that was accepted, the program has said nothing of it.
        set_tcp(socket, libc::TCP_MAXSEG, 0)
    }

    fn agree(&self, socket: &OwnedFd) -> io::Result<()> {
        let mut options = Vec::with_capacity(4);
        let mut put = |code, value| options.push(RepairOption { code, value });
        if let Some(mss) = self.options.mss {
            put(OPTION_MSS, mss.into());
        }
        if let Some((process_socket, ours)) = self.options.window_scales {
            put(
                OPTION_WINDOW,
                u32::from(process_socket) | u32::from(ours) << 16,
            );
        }
        if self.options.sack {
            put(OPTION_SACK, 0);
        }
        if self.timestamp.is_some() {
            put(OPTION_TIMESTAMP, 0);
        }
        for option in options {
            set_tcp(socket, libc::TCP_REPAIR_OPTIONS, option)?;
        }
        Ok(())
    }

    fn open_windows(&self, socket: &OwnedFd) -> io::Result<()> {
        set_tcp(
            socket,
            libc::TCP_REPAIR_WINDOW,
            RepairWindow {
                snd_wl1: self.expected.0,
                snd_wnd: self.send_window,
                max_window: self.send_window.max(1),
                rcv_wnd: self.receive_window,
                rcv_wup: self.expected.0,
            },
        )
    }
}

/// An address of a network, as it is written.
fn internet(address: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(address).ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// What the kernel counts for what is in the socket already, bytes.
fn queued(socket: &TcpStream) -> io::Result<usize> {
    /// `SK_MEMINFO_WMEM_QUEUED` of linux/sock_diag.h.
    const QUEUED: usize = 5;
    let mut numbers = [0u32; 9];
    option(
        socket.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_MEMINFO,
        &mut numbers,
    )?;
    Ok(numbers[QUEUED] as usize)
}

/// Write what the server had said, and its client may not have: all of it at once, since the program that is given the
/// socket has written it, and does not wait for it again.
///
/// # Errors
/// We may not (CAP_NET_ADMIN), the kernel has no room, or the client [is gone](is_gone).
pub fn say_again(socket: &TcpStream, said: &[u8]) -> io::Result<()> {
    /// The kernel counts more than the bytes.
    const OVERHEAD: usize = 2;
    if said.is_empty() {
        return Ok(());
    }
    let room = said.len().saturating_mul(OVERHEAD).saturating_add(64 << 10);
    let room = room.saturating_add(queued(socket)?);
    let room = c_int::try_from(room).unwrap_or(c_int::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, room)?;
    socket.set_nonblocking(true)?;
    let written = write_all_that_fits(socket, said)?;
    socket.set_nonblocking(false)?;
    if written != said.len() {
        return Err(io::Error::other(
            "the socket does not take what was said already",
        ));
    }
    // From here on the kernel may size it again (Linux 5.14; without, it stays that large).
    let _ = set(socket, libc::SOL_SOCKET, SO_BUF_LOCK, 0);
    Ok(())
}

/// How many bytes. A client that resets the connection meanwhile ends a call that has written some; the next call says
/// so.
fn write_all_that_fits(mut socket: &TcpStream, said: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < said.len() {
        match socket.write(&said[written..]) {
            Ok(0) => break,
            Ok(length) => written += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Is it the client that has ended the connection?
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    let gone = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    gone.contains(&error.kind())
}

/// asm-generic/socket.h
const SO_BUF_LOCK: c_int = 72;
