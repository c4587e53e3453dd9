//! Names of connections: a number for our own messages, the 4-tuple for the wire.

use core::fmt;
use core::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// The number of a connection, unique in the record of the service. A later connection may use a 4-tuple again, but
/// not the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FlowId(
    /// The number.
    pub u64,
);

impl FlowId {
    /// The number of no connection: no service has as many. The logger reads copies of records under this number.
    pub const RESERVED: Self = Self(u64::MAX);
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The 4-tuple of a connection, in a canonical form: equal on the wire means equal here.
///
/// A dual-stack socket names an IPv4 peer `::ffff:a.b.c.d`, the packet has `a.b.c.d`, and so has the key. The flow
/// label and the scope of an IPv6 socket address are not on the wire as part of the 4-tuple and are cleared;
/// link-local connections on two interfaces with the same addresses and ports at both ends would share a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    client: SocketAddr,
    server: SocketAddr,
}

impl FlowKey {
    /// The key of the connection from `client` to `server`.
    #[must_use]
    pub const fn new(client: SocketAddr, server: SocketAddr) -> Self {
        Self {
            client: canonical(client),
            server: canonical(server),
        }
    }

    /// The client's address and port.
    #[must_use]
    pub const fn client(&self) -> SocketAddr {
        self.client
    }

    /// The server's address and port.
    #[must_use]
    pub const fn server(&self) -> SocketAddr {
        self.server
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.client, self.server)
    }
}

/// The address as packets carry it: IPv4-mapped IPv6 addresses become IPv4, the flow label and
/// the scope become 0.
pub(crate) const fn canonical(address: SocketAddr) -> SocketAddr {
    let SocketAddr::V6(v6) = address else {
        return address;
    };
    match v6.ip().to_ipv4_mapped() {
        Some(ip) => SocketAddr::V4(SocketAddrV4::new(ip, v6.port())),
        None => SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, 0)),
    }
}

#[cfg(test)]
mod tests;
