//! The sockets of an address: for control streams, and for the datagrams of the link.

use std::{
    io::{self, IoSliceMut},
    net::{SocketAddr, TcpListener, UdpSocket},
};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use super::no_checksum::without_checksums;
use crate::link::Peer;

/// Datagrams per read.
pub(super) const BATCH: usize = 32;
/// Space for a datagram: more than the longest.
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;
/// Limit of unread datagrams in the kernel, bytes. A datagram beyond the limit is lost, and the client's TCP takes
/// the loss for congestion.
const RECEIVE_BUFFER: usize = 32 << 20;
/// Limit of control streams that wait for accept.
const ACCEPT_BACKLOG: i32 = 128;

/// The two sockets of an address.
pub(super) struct Sockets {
    pub(super) listener: TcpListener,
    datagrams: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
}

impl Sockets {
    /// Binds both sockets to the same port; for port 0, to a free port.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = socket(address, Type::STREAM, Protocol::TCP)?;
        listener.set_reuse_address(true)?;
        listener.bind(&address.into())?;
        listener.listen(ACCEPT_BACKLOG)?;
        let listener = TcpListener::from(listener);
        let local = listener.local_addr()?;

        let datagrams = socket(address, Type::DGRAM, Protocol::UDP)?;
        if sockopt::set_socket_recv_buffer_size_force(&datagrams, RECEIVE_BUFFER).is_err() {
            // Without privileges: as much as the system allows.
            sockopt::set_socket_recv_buffer_size(&datagrams, RECEIVE_BUFFER)?;
        }
        datagrams.bind(&local.into())?;
        let datagrams = UdpSocket::from(datagrams);
        let state = UdpSocketState::new(UdpSockRef::from(&datagrams))?;
        without_checksums(&datagrams, local.is_ipv6())?;
        Ok(Self {
            listener,
            datagrams,
            state,
            local,
        })
    }

    pub(super) const fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) const fn datagrams(&self) -> &UdpSocket {
        &self.datagrams
    }

    /// Reads up to [`BATCH`] buffers, and hands each datagram to `take`. Returns the number of buffers.
    pub(super) fn receive(
        &self,
        via: usize,
        buffers: &mut Buffers,
        mut take: impl FnMut(Peer, &[u8]),
    ) -> io::Result<usize> {
        let mut rooms = buffers.bytes.chunks_exact_mut(DATAGRAM_BYTES_MAX);
        let mut slices: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(rooms.next().unwrap_or_default()));
        let socket = UdpSockRef::from(&self.datagrams);
        let count = match self.state.recv(socket, &mut slices, &mut buffers.meta) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        for (bytes, meta) in slices.iter().zip(&buffers.meta).take(count) {
            let peer = Peer {
                via,
                local: meta.dst_ip.unwrap_or(self.local.ip()),
                address: without_flow(meta.addr),
            };
            // A datagram of length 0 counts, too.
            for datagram in bytes[..meta.len.min(DATAGRAM_BYTES_MAX)].chunks(meta.stride.max(1)) {
                take(peer, datagram);
            }
        }
        Ok(count)
    }

    /// Sends a datagram. Without space in the socket the datagram counts as lost on the way.
    pub(super) fn send(&self, to: Peer, datagram: &[u8]) -> io::Result<()> {
        let transmit = Transmit {
            destination: to.address,
            ecn: None,
            contents: datagram,
            segment_size: None,
            src_ip: Some(to.local).filter(|_| self.local.ip().is_unspecified()),
        };
        match self
            .state
            .try_send(UdpSockRef::from(&self.datagrams), &transmit)
        {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }
}

/// Space for received datagrams, reused.
pub(super) struct Buffers {
    bytes: Vec<u8>,
    meta: [RecvMeta; BATCH],
}

impl Buffers {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; BATCH * DATAGRAM_BYTES_MAX],
            meta: [RecvMeta::default(); BATCH],
        }
    }
}

/// The peer of a control stream, whose datagrams will come from `port`.
pub(super) fn peer_of(via: usize, local: SocketAddr, remote: SocketAddr, port: u16) -> Peer {
    Peer {
        via,
        local: local.ip(),
        address: without_flow(SocketAddr::new(remote.ip(), port)).with_scope_of(remote),
    }
}

trait WithScope {
    fn with_scope_of(self, other: SocketAddr) -> Self;
}

impl WithScope for SocketAddr {
    /// A link-local address is valid only with the interface.
    fn with_scope_of(mut self, other: SocketAddr) -> Self {
        if let (Self::V6(this), Self::V6(other)) = (&mut self, other) {
            this.set_scope_id(other.scope_id());
        }
        self
    }
}

/// The flow label is not part of an address.
fn without_flow(mut address: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut address {
        v6.set_flowinfo(0);
    }
    address
}

fn socket(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}
