//! A UDP socket of one transfer, with segmentation offload.

use std::{
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use nix::{
    cmsg_space,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::sockopt,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{BulkError, SocketContext};

/// Buffers of a read: each takes a datagram, or datagrams that the kernel has joined.
pub(super) const READ_BATCH: usize = 16;
const BUFFER_BYTES: usize = 64 * 1024;
/// Longest UDP datagram (RFC 768), with a header of IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Limit of unread bytes in the kernel: a datagram beyond the limit is lost, and sent a second time.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A UDP socket.
#[derive(Debug)]
pub struct DataSocket {
    socket: UdpSocket,
    state: UdpSocketState,
}

/// Datagrams of one sender that the kernel has joined: all have the same length, the last may be shorter.
pub(crate) struct Joined<'a> {
    pub(crate) from: SocketAddr,
    /// With a mark of congestion (RFC 3168).
    pub(crate) is_marked: bool,
    pub(crate) bytes: &'a mut [u8],
    pub(crate) datagram_len: usize,
}

/// Datagrams that a read has put into a row of buffers, one behind the other.
pub(crate) struct Scattered {
    pub(crate) len: usize,
    /// As in [`Joined`].
    pub(crate) datagram_len: usize,
    pub(crate) is_marked: bool,
}

/// Space for received datagrams.
pub(crate) struct ReadBuffers {
    bytes: Vec<u8>,
    meta: [RecvMeta; READ_BATCH],
}

impl ReadBuffers {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; READ_BATCH * BUFFER_BYTES],
            meta: [RecvMeta::default(); READ_BATCH],
        }
    }
}

impl DataSocket {
    /// Binds a socket; port 0: a free port.
    ///
    /// # Errors
    /// The address is not of this host, or the port is taken.
    pub fn bind(address: SocketAddr) -> Result<Self, BulkError> {
        Self::open(address, false).doing("open a UDP socket")
    }

    /// Binds a socket to a port that the sockets of other transfers have, too. Each takes the datagrams of its peer:
    /// the caller connects the socket.
    ///
    /// # Errors
    /// The address is not of this host, or another program has the port.
    pub fn bind_shared(address: SocketAddr) -> Result<Self, BulkError> {
        Self::open(address, true).doing("open a UDP socket")
    }

    fn open(address: SocketAddr, is_shared: bool) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(is_shared)?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            // Without privileges: as much as the system allows.
            sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
        }
        socket.bind(&address.into())?;
        let socket = UdpSocket::from(socket);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self { socket, state })
    }

    /// The address of this end.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn local(&self) -> Result<SocketAddr, BulkError> {
        let local = self.socket.local_addr();
        local.doing("ask for the address of a UDP socket")
    }

    /// Takes datagrams of this peer only: the kernel sorts the datagrams of other senders out.
    ///
    /// # Errors
    /// There is no route to the peer.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), BulkError> {
        self.socket.connect(peer).doing("connect a UDP socket")
    }

    /// Most datagrams of `len` bytes in a call of [`Self::send`]: all together are a single datagram for the kernel.
    pub(crate) fn batch_max(&self, len: usize) -> usize {
        let whole = DATAGRAM_BYTES_MAX / len.max(1);
        self.state.max_gso_segments().min(whole).max(1)
    }

    /// Sends datagrams of `len` bytes each, the last may be shorter. False: the socket is full.
    pub(crate) fn send(&self, to: SocketAddr, datagrams: &[u8], len: usize) -> io::Result<bool> {
        let transmit = Transmit {
            destination: to,
            ecn: Some(EcnCodepoint::Ect0),
            contents: datagrams,
            segment_size: (datagrams.len() > len).then_some(len),
            src_ip: None,
        };
        let socket = UdpSockRef::from(&self.socket);
        match self.state.try_send(socket, &transmit) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // The answer to an earlier datagram (ICMP): the peer's socket is not there yet, or no longer.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
            // As if lost on the way, for this receiver alone: a firewall of this host, a route that is gone for a
            // moment, a datagram that is too long for the path, a device that refuses offload once. Silence decides.
            Err(error) if is_passing(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Reads datagrams, and hands the datagrams to `take` as the kernel has joined them. Returns whether more may be
    /// there.
    pub(crate) fn receive(
        &self,
        buffers: &mut ReadBuffers,
        mut take: impl FnMut(Joined<'_>),
    ) -> io::Result<bool> {
        let mut spaces = buffers.bytes.chunks_exact_mut(BUFFER_BYTES);
        let mut slices: [IoSliceMut<'_>; READ_BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(spaces.next().unwrap_or_default()));
        let socket = UdpSockRef::from(&self.socket);
        let count = match self.state.recv(socket, &mut slices, &mut buffers.meta) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(true),
            Err(error) => return Err(error),
        };
        for (bytes, meta) in slices.iter_mut().zip(&buffers.meta).take(count) {
            let len = meta.len.min(BUFFER_BYTES);
            take(Joined {
                from: meta.addr,
                is_marked: meta.ecn == Some(EcnCodepoint::Ce),
                bytes: &mut bytes[..len],
                datagram_len: meta.stride.max(1),
            });
        }
        Ok(count == READ_BATCH)
    }

    /// Reads a datagram, or datagrams that the kernel has joined, into the buffers of the row. `None`: no datagram is
    /// there.
    pub(crate) fn receive_row(
        &self,
        row: &mut [IoSliceMut<'_>],
        control: &mut [u8],
    ) -> io::Result<Option<Scattered>> {
        let descriptor = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = loop {
            match recvmsg::<()>(descriptor, row, Some(control), flags) {
                Ok(message) => break message,
                Err(nix::Error::EAGAIN) => return Ok(None),
                Err(nix::Error::EINTR | nix::Error::ECONNREFUSED) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let mut scattered = Scattered {
            len: message.bytes,
            datagram_len: message.bytes.max(1),
            is_marked: false,
        };
        for part in message.cmsgs()? {
            match part {
                ControlMessageOwned::UdpGroSegments(len) => {
                    scattered.datagram_len = usize::try_from(len).unwrap_or(0).max(1);
                }
                ControlMessageOwned::Ipv4Tos(tos) => scattered.is_marked = is_mark(tos),
                ControlMessageOwned::Ipv6TClass(class) => {
                    scattered.is_marked = u8::try_from(class).is_ok_and(is_mark);
                }
                _ => {}
            }
        }
        Ok(Some(scattered))
    }

    /// Waits for datagrams, for space if `wants_space`, or until the time has passed.
    pub(crate) fn wait(&self, wants_space: bool, longest: Duration) -> io::Result<()> {
        let mut flags = PollFlags::IN;
        if wants_space {
            flags |= PollFlags::OUT;
        }
        let mut all = [PollFd::from_borrowed_fd(self.socket.as_fd(), flags)];
        let longest = Timespec::try_from(longest).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        match poll(&mut all, Some(&longest)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Space for the kernel's notes about a read of [`DataSocket::receive_row`]: length of a datagram, traffic class, and
/// the address that the packets came to (`in6_pktinfo`), for which [`UdpSocketState`] asks.
pub(crate) fn control_space() -> Vec<u8> {
    cmsg_space!(i32, i32, [u32; 5])
}

/// Congestion experienced (RFC 3168, section 5).
const fn is_mark(traffic_class: u8) -> bool {
    traffic_class & 0b11 == 0b11
}

fn is_passing(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let passing = [
        Errno::PERM,
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::NETDOWN,
        Errno::MSGSIZE,
        Errno::NOBUFS,
        Errno::IO,
        Errno::INVAL,
    ];
    errno.is_some_and(|errno| passing.contains(&errno))
}
