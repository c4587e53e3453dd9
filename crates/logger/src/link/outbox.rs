//! Datagrams that are to be sent.

use std::net::{IpAddr, SocketAddr};

use protocol::link::{ACK_LEN, PROBE_LEN};

/// Where a service's datagrams come from and ours go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer {
    /// Which of our sockets.
    pub via: usize,
    /// Our address that the serving host knows.
    pub local: IpAddr,
    /// The serving host's address and port.
    pub address: SocketAddr,
}

/// A datagram that is to be sent. None of ours is longer than an ACK.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing {
    /// Where to.
    pub to: Peer,
    len: usize,
    bytes: [u8; ACK_LEN],
}

impl Outgoing {
    /// What is to be sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Datagrams that are to be sent, in this order. It is emptied, and used again.
#[derive(Debug, Default)]
pub struct Outbox {
    datagrams: Vec<Outgoing>,
}

impl Outbox {
    pub(super) fn ack(&mut self, to: Peer, bytes: [u8; ACK_LEN]) {
        let len = ACK_LEN;
        self.datagrams.push(Outgoing { to, len, bytes });
    }

    pub(super) fn probed(&mut self, to: Peer, probed: &[u8; PROBE_LEN]) {
        let mut bytes = [0; ACK_LEN];
        bytes[..PROBE_LEN].copy_from_slice(probed);
        let len = PROBE_LEN;
        self.datagrams.push(Outgoing { to, len, bytes });
    }

    /// What is to be sent.
    #[must_use]
    pub fn datagrams(&self) -> &[Outgoing] {
        &self.datagrams
    }

    /// It has been sent.
    pub fn clear(&mut self) {
        self.datagrams.clear();
    }

    /// Moves everything to the end of `other`.
    pub fn append_to(&mut self, other: &mut Self) {
        other.datagrams.append(&mut self.datagrams);
    }
}
