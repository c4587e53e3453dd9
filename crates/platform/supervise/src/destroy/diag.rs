//! A sock_diag netlink socket: dump and destroy.

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkPayload};
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags,
};
use netlink_packet_sock_diag::{AF_INET, AF_INET6, IPPROTO_TCP, SockDiagDestroy, SockDiagMessage};
use rustix::io::Errno;
use rustix::net::netlink;

use super::{DestroyError, canonical};
use crate::netlink::{Netlink, encode};
use crate::tcp_state::TcpState;

/// Requests sent before the acknowledgements are read. The acknowledgements wait in the receive buffer, with about a
/// kilobyte each, and the buffer must not overflow.
const MAX_BATCH_REQUESTS: usize = 64;

/// Matches any cookie (`INET_DIAG_NOCOOKIE`) in a search for a single socket; a list matches all cookies anyway.
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// A socket in the kernel's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Canonical local address.
    pub(crate) local: SocketAddr,
    /// Canonical remote address.
    pub(crate) remote: SocketAddr,
    pub(crate) state: TcpState,
    /// Bytes that the process has not read.
    pub(crate) unread: u32,
    /// `AF_INET` or `AF_INET6`; the latter also for IPv4-mapped addresses.
    family: u8,
    /// Key of the socket in the kernel.
    id: SocketId,
}

impl Entry {
    /// The cookie, which the kernel never uses for a second socket.
    pub(super) fn cookie(&self) -> [u8; 8] {
        self.id.cookie
    }

    /// `None` for states that are not TCP's.
    fn from_response(header: &InetResponseHeader) -> Option<Self> {
        let id = header.socket_id.clone();
        Some(Self {
            local: canonical(SocketAddr::new(id.source_address, id.source_port)),
            remote: canonical(SocketAddr::new(id.destination_address, id.destination_port)),
            state: TcpState::from_kernel(header.state)?,
            unread: header.recv_queue,
            family: header.family,
            id,
        })
    }
}

/// Outcome of a request to destroy a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The kernel has destroyed the socket.
    Destroyed,
    /// The socket was gone already.
    Gone,
    /// EOPNOTSUPP.
    Refused,
}

/// A netlink socket for sock_diag(7).
#[derive(Debug)]
pub(crate) struct DiagSocket {
    netlink: Netlink,
}

impl DiagSocket {
    /// Opens a socket in the network namespace of the calling thread.
    pub(crate) fn open() -> Result<Self, DestroyError> {
        match Netlink::open(Some(netlink::SOCK_DIAG)) {
            Ok(netlink) => Ok(Self { netlink }),
            Err(Errno::PROTONOSUPPORT) => Err(DestroyError::NoDiag),
            Err(e) => Err(io::Error::from(e).into()),
        }
    }

    /// Addresses of listening sockets with the local port `port`. The kernel looks at no other socket for this.
    pub(crate) fn listeners(&mut self, port: u16) -> Result<Vec<SocketAddr>, DestroyError> {
        let mut found = self.dump(AF_INET6, SocketId::new_v6(), port, StateFlags::LISTEN)?;
        found.extend(self.dump(AF_INET, SocketId::new_v4(), port, StateFlags::LISTEN)?);
        Ok(found.into_iter().map(|entry| entry.local).collect())
    }

    /// The IPv4 sockets with the local port `port`, except listening sockets.
    pub(super) fn dump_v4(&mut self, port: u16) -> Result<Vec<Entry>, DestroyError> {
        self.dump(AF_INET, SocketId::new_v4(), port, connections())
    }

    /// The IPv6 sockets with the local port `port`, except listening sockets, and including sockets with IPv4-mapped
    /// addresses.
    pub(super) fn dump_v6(&mut self, port: u16) -> Result<Vec<Entry>, DestroyError> {
        self.dump(AF_INET6, SocketId::new_v6(), port, connections())
    }

    /// The socket with these canonical ends, if the socket exists. (The kernel finds an IPv6 socket with IPv4-mapped
    /// addresses by the IPv4 addresses. Without a matching connection, the kernel returns a listener.)
    pub(super) fn find(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Option<Entry>, DestroyError> {
        let (family, any) = match local {
            SocketAddr::V4(_) => (AF_INET, SocketId::new_v4()),
            SocketAddr::V6(_) => (AF_INET6, SocketId::new_v6()),
        };
        let id = SocketId {
            source_address: local.ip(),
            source_port: local.port(),
            destination_address: remote.ip(),
            destination_port: remote.port(),
            cookie: ANY_COOKIE,
            ..any
        };
        let message = SockDiagMessage::InetRequest(request(family, id));
        let mut bytes = Vec::new();
        let sequence = self.netlink.next_sequence();
        encode(message, NLM_F_REQUEST, sequence, &mut bytes);
        self.netlink.send(&bytes)?;
        loop {
            for message in self.netlink.receive::<SockDiagMessage>()? {
                if message.header.sequence_number != sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                        let found = Entry::from_response(&response.header);
                        return Ok(found.filter(|it| it.local == local && it.remote == remote));
                    }
                    NetlinkPayload::Error(error) => {
                        return match outcome(error.raw_code())? {
                            Outcome::Refused => Err(DestroyError::NoDiag),
                            Outcome::Destroyed | Outcome::Gone => Ok(None),
                        };
                    }
                    _ => {}
                }
            }
        }
    }

    fn dump(
        &mut self,
        family: u8,
        any: SocketId,
        port: u16,
        states: StateFlags,
    ) -> Result<Vec<Entry>, DestroyError> {
        let socket_id = SocketId {
            source_port: port,
            ..any
        };
        let request = SockDiagMessage::InetRequest(InetRequest {
            states,
            ..request(family, socket_id)
        });
        let mut bytes = Vec::new();
        let sequence = self.netlink.next_sequence();
        encode(request, NLM_F_REQUEST | NLM_F_DUMP, sequence, &mut bytes);
        self.netlink.send(&bytes)?;
        let mut found = Vec::new();
        loop {
            for message in self.netlink.receive::<SockDiagMessage>()? {
                if message.header.sequence_number != sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                        found.extend(Entry::from_response(&response.header));
                    }
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(dump_error(done.code));
                    }
                    NetlinkPayload::Error(error) => return Err(dump_error(error.raw_code())),
                    NetlinkPayload::Done(_) => return Ok(found),
                    _ => {}
                }
            }
        }
    }

    /// Destroys `targets`; returns an outcome for each target, in the same order.
    pub(super) fn destroy(&mut self, targets: &[Entry]) -> Result<Vec<Outcome>, DestroyError> {
        let mut outcomes = Vec::with_capacity(targets.len());
        for batch in targets.chunks(MAX_BATCH_REQUESTS) {
            let mut bytes = Vec::new();
            let mut sequences = Vec::with_capacity(batch.len());
            for target in batch {
                let request = request(target.family, target.id.clone());
                let request = SockDiagDestroy::new(SockDiagMessage::InetRequest(request));
                let sequence = self.netlink.next_sequence();
                encode(request, NLM_F_REQUEST | NLM_F_ACK, sequence, &mut bytes);
                sequences.push(sequence);
            }
            self.netlink.send(&bytes)?;
            // The kernel handles and answers the batch in the order of the requests.
            for sequence in sequences {
                let code = self.acknowledgement(sequence)?;
                outcomes.push(outcome(code)?);
            }
        }
        Ok(outcomes)
    }

    /// Asks to destroy a socket that cannot exist: a kernel with the function does not find the socket.
    pub(super) fn check_destroy_supported(&mut self) -> Result<(), DestroyError> {
        let nobody = Entry {
            local: SocketAddr::from(([0, 0, 0, 0], 0)),
            remote: SocketAddr::from(([0, 0, 0, 0], 0)),
            state: TcpState::Established,
            unread: 0,
            family: AF_INET,
            id: SocketId::new_v4(),
        };
        // A successful list of TCP sockets shows that ENOENT refers to this socket.
        self.dump_v4(0)?;
        match self.destroy(&[nobody])?.first() {
            Some(Outcome::Refused) => Err(DestroyError::Unsupported),
            _ => Ok(()),
        }
    }

    /// The code (0, or minus an errno) of the answer to the request `sequence`.
    fn acknowledgement(&mut self, sequence: u32) -> Result<i32, DestroyError> {
        loop {
            // An acknowledgement is alone in a datagram.
            for message in self.netlink.receive::<SockDiagMessage>()? {
                if message.header.sequence_number == sequence
                    && let NetlinkPayload::Error(error) = message.payload
                {
                    return Ok(error.raw_code());
                }
            }
        }
    }
}

/// A request for the socket `id`, or for all sockets that match `id`.
fn request(family: u8, id: SocketId) -> InetRequest {
    InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: connections(),
        socket_id: id,
    }
}

fn connections() -> StateFlags {
    StateFlags::all() - StateFlags::LISTEN - StateFlags::CLOSE
}

fn outcome(code: i32) -> Result<Outcome, DestroyError> {
    if code == 0 {
        return Ok(Outcome::Destroyed);
    }
    let error = io::Error::from_raw_os_error(code.saturating_neg());
    match error.raw_os_error() {
        Some(libc::ENOENT) => Ok(Outcome::Gone),
        Some(libc::EOPNOTSUPP) => Ok(Outcome::Refused),
        Some(libc::EPERM | libc::EACCES) => Err(DestroyError::NotPermitted),
        _ => Err(error.into()),
    }
}

/// An error in the answer to a dump.
fn dump_error(code: i32) -> DestroyError {
    let error = io::Error::from_raw_os_error(code.saturating_neg());
    match error.raw_os_error() {
        // The module that knows TCP is missing.
        Some(libc::ENOENT) => DestroyError::NoDiag,
        _ => error.into(),
    }
}
