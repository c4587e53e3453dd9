//! The 4-tuple in datagrams and messages, and in the programs in the kernel: both addresses with 16
//! bytes (IPv4 in the mapped form), both ports in network byte order.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use wire::FlowKey;

/// The length of a 4-tuple, in bytes.
pub(crate) const FLOW_KEY_LEN: usize = 36;

/// Writes `key`.
pub(crate) fn flow_key_into(key: &FlowKey, out: &mut [u8; FLOW_KEY_LEN]) {
    out[..16].copy_from_slice(&address(key.client().ip()));
    out[16..32].copy_from_slice(&address(key.server().ip()));
    out[32..34].copy_from_slice(&key.client().port().to_be_bytes());
    out[34..].copy_from_slice(&key.server().port().to_be_bytes());
}

/// Decodes the bytes of [`flow_key_into`]. Each value is the encoding of a key.
pub(crate) fn flow_key_from(bytes: &[u8; FLOW_KEY_LEN]) -> FlowKey {
    let ip = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    FlowKey::new(
        SocketAddr::new(ip(0), port(32)),
        SocketAddr::new(ip(16), port(34)),
    )
}

fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
