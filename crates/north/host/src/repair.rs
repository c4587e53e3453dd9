//! A TCP socket that continues the connection of another socket.
//!
//! A privileged process may set the sequence numbers, options and queues of a socket (`TCP_REPAIR`; Linux 3.5, for
//! checkpoints). With the numbers that the client knows, the new server's socket needs no handshake and no
//! translation.

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

/// State of a socket to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blueprint {
    /// The server's address.
    pub local: SocketAddr,
    /// The client's address.
    pub peer: SocketAddr,
    /// The first number that the client has not acknowledged: the number of the next written byte.
    pub acknowledged: SeqNumber,
    /// The next number that the server expects from the client.
    pub expected: SeqNumber,
    /// Options of the client.
    pub options: Options,
    /// The TSval of the first segment, if timestamps were agreed.
    pub timestamp: Option<u32>,
    /// The client's receive window from `acknowledged` on, bytes.
    pub send_window: u32,
    /// The receive window from `expected` on that the client knows, bytes.
    pub receive_window: u32,
}

/// Options of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The client's MSS, bytes; `None`: the client sent no MSS.
    pub mss: Option<u16>,
    /// Window scales: the client's, and the server's.
    pub window_scales: Option<(u8, u8)>,
    /// SACK is agreed.
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
/// Leaves repair without a window probe: no segment goes to the client.
const REPAIR_OFF: c_int = -1;
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW: u32 = 3;
const OPTION_SACK: u32 = 4;
const OPTION_TIMESTAMP: u32 = 8;

/// Bounds of the kernel for a largest segment, bytes (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const LEAST_SEGMENT: c_int = 88;
const MOST_SEGMENT: c_int = 32767;

/// The next even TSval. An odd TSval would switch the socket to a clock of microseconds (Linux 6.7). Such a clock
/// wraps around in half an hour of silence, and then the client takes new segments for old segments (RFC 7323 5.5).
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
    /// Builds the connected socket. No segment goes to the client.
    ///
    /// # Errors
    /// The process lacks CAP_NET_ADMIN, the kernel lacks CONFIG_CHECKPOINT_RESTORE, or the connection already exists.
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
        // The listener has the port, too: repair allows both.
        bind(&socket, &self.local)?;
        self.connect(&socket)?;
        self.agree(&socket)?;
        if let Some(timestamp) = self.timestamp {
            set_tcp(&socket, libc::TCP_TIMESTAMP, in_milliseconds(timestamp))?;
        }
        self.open_windows(&socket)?;
        set_tcp(&socket, libc::TCP_REPAIR, REPAIR_OFF)?;
        // As after accept: after the server's death the socket may stay, because a client still lacks data. Such a
        // socket must not keep the next incarnation from the port.
        set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        Ok(TcpStream::from(socket))
    }

    /// The blueprint of a connection without data up to now. `None`: the socket is no such connection. The program
    /// must not use the socket meanwhile.
    ///
    /// # Errors
    /// The process lacks CAP_NET_ADMIN, or the kernel does not answer.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let Some(shape) = Shape::of(socket)? else {
            return Ok(None);
        };
        let (local, peer) = (getsockname(socket)?, getpeername(socket)?);
        let (Some(local), Some(peer)) = (internet(local), peer.and_then(internet)) else {
            return Ok(None);
        };
        // Repair changes this option, too.
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

    /// Sets the MSS before connect: the kernel computes the size of segments here, and again when the route changes.
    /// In repair the client's MSS is not known yet, and without this step segments would have 536 bytes.
    fn connect(&self, socket: &OwnedFd) -> io::Result<()> {
        if let Some(mss) = self.options.mss {
            let mss = c_int::from(mss).clamp(LEAST_SEGMENT, MOST_SEGMENT);
            set_tcp(socket, libc::TCP_MAXSEG, mss)?;
        }
        connect(socket, &self.peer)?;
        // Removes the program's limit again, as in an accepted socket.
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

/// An IP address with port; IPv4-mapped addresses become IPv4.
fn internet(address: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(address).ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Memory of the data in the socket as the kernel counts, bytes.
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

/// Writes the output that the client may lack, all at once: the program has written these bytes already, and does not
/// wait again.
///
/// # Errors
/// The process lacks CAP_NET_ADMIN, the kernel has no memory, or the client [is gone](is_gone).
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
    // Lets the kernel adapt the size again (Linux 5.14; an older kernel keeps the large buffer).
    let _ = set(socket, libc::SOL_SOCKET, SO_BUF_LOCK, 0);
    Ok(())
}

/// Writes until the socket is full. Returns the number of bytes. If the client resets the connection meanwhile, a
/// call may write a part, and the next call fails.
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

/// Whether the client has ended the connection.
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    let gone = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    gone.contains(&error.kind())
}

/// asm-generic/socket.h
const SO_BUF_LOCK: c_int = 72;
