//! Upstream connections that continue like clients' connections, also after the death of their host.
//!
//! The data plane must know such a connection before either side sends data: then the data plane records the
//! instream, and acknowledges only bytes that the logger has. The process therefore asks the supervisor as soon as
//! the program sees the connection established. The supervisor answers whether the socket's own address is the
//! service's, and whether the question came in time. Otherwise the connection remains an ordinary upstream connection
//! ([`super::connecting`]).

use libc::c_int;
use north_abi::{Call, Which, handover::Message};

use super::{
    accepting::{self, Arrived},
    connecting::number,
};
use crate::{
    descriptors::{Address, Kind},
    live::{self, Answer},
    sys::sys,
    wrap::Wrap,
};

/// TCP header with an IPv4 or IPv6 header, without options, bytes.
const TCP_IP_HEADER_BYTES: (u16, u16) = (20 + 20, 20 + 40);

impl Wrap {
    /// Prepares a connect. Returns whether the program has bound the socket: only then the connection may join. The
    /// segments must have space for the headers of the log link.
    pub(super) fn prepare_to_join(&self, fd: c_int) -> bool {
        let is_bound = has_port(&accepting::local(fd));
        if let Some((_, there)) = self.page.destination.get().filter(|_| is_bound) {
            limit_segments(fd, there.datagram);
        }
        is_bound
    }

    /// The program sees that the connect has succeeded or failed.
    pub(super) fn may_join(&mut self, fd: c_int) {
        if self.descriptors.get(fd).kind != Kind::Outgoing {
            return;
        }
        if self.is_replay {
            self.replay_join(fd);
        } else if let Some((joined, serial)) = self.joins(fd) {
            self.record_accept(Call::Joined, fd, 0, &joined);
            // Until then the supervisor has the socket: after a death before the record the next incarnation opens
            // another connection.
            let process = self.process;
            live::send(&Message::Closed { process, serial }, None, 0);
            self.joined(fd, &joined);
        }
    }

    /// The connection if the supervisor lets the connection join, and the serial number before.
    fn joins(&mut self, fd: c_int) -> Option<(Arrived, u64)> {
        // A process without clients keeps the freedoms of such a process.
        if self.is_off() || !self.has_clients() {
            return None;
        }
        let process = self.process;
        let connection = self.descriptors.connection(fd)?;
        // A connection that several processes have cannot join.
        let is_own = connection.is_last() && !connection.is_shared;
        if !connection.is_held || !connection.is_bound || connection.is_touched() || !is_own {
            return None;
        }
        let serial = connection.serial;
        let (peer, local) = (accepting::peer(fd), accepting::local(fd));
        if !has_port(&peer) || !has_port(&local) {
            return None;
        }
        match live::ask(&Message::Joins { process, serial }) {
            Answer::Joined(flow) => {
                let which = Which::Flow(flow);
                Some((Arrived { which, peer, local }, serial))
            }
            Answer::Stays => None,
            Answer::Lost => {
                disconnect(fd);
                None
            }
        }
    }

    fn replay_join(&mut self, fd: c_int) {
        let is_next = matches!(self.stream.peek(), Some(Ok((record, _)))
            if record.call == Call::Joined && record.fd == fd.cast_unsigned());
        if !is_next {
            return;
        }
        if let Some((_, joined)) = self.replayed(Call::Joined, fd, accepting::arrived) {
            let (peer, local) = (joined.peer.as_bytes(), joined.local.as_bytes());
            let received = self.positions.of(peer, local);
            self.joined(fd, &joined);
            if let Some(connection) = self.descriptors.connection(fd) {
                connection.received = received;
            }
            live::began(self, fd);
        }
    }

    /// The connection counts as a client's from here on.
    fn joined(&mut self, fd: c_int, joined: &Arrived) {
        if let Some(entry) = self.descriptors.entry(fd) {
            entry.kind = Kind::Connection;
        }
        if let Some(connection) = self.descriptors.connection(fd) {
            (connection.serial, connection.is_held) = (0, false);
            (connection.peer, connection.local) = (joined.peer, joined.local);
            (connection.which, connection.received) = (joined.which, 0);
        }
        self.serves(fd);
    }
}

/// Limits the size of packets of this socket, bytes.
fn limit_segments(fd: c_int, packet: u16) {
    let is_v4 = number(fd, libc::SO_DOMAIN) == libc::AF_INET;
    let headers = if is_v4 {
        TCP_IP_HEADER_BYTES.0
    } else {
        TCP_IP_HEADER_BYTES.1
    };
    let most = c_int::from(packet.saturating_sub(headers));
    // SAFETY: a number on our stack, and its size. A value that the kernel refuses is longer than the packets of all
    // devices.
    unsafe {
        sys!(
            SYS_setsockopt,
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            &raw const most,
            size_of::<c_int>()
        )
    };
}

/// Ends the connection for all holders, and for the peer.
#[cold]
pub(super) fn disconnect(fd: c_int) {
    let nowhere = libc::AF_UNSPEC as libc::sa_family_t;
    let address = libc::sockaddr {
        sa_family: nowhere,
        sa_data: [0; 14],
    };
    // SAFETY: a structure on our stack, and its size.
    unsafe {
        sys!(
            SYS_connect,
            fd,
            &raw const address,
            size_of::<libc::sockaddr>()
        )
    };
}

fn has_port(address: &Address) -> bool {
    address.port().is_some_and(|port| port != [0; 2])
}
