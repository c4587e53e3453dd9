//! The hash of a connection, from which the owner follows.

use core::net::{IpAddr, SocketAddr};

use protocol::pool::PoolKey;
use siphasher::sip::SipHasher24;

/// Bytes that are hashed.
pub const FLOW_HASH_LEN: usize = 40;
/// The purpose of the hash: the same key has other purposes.
const PURPOSE: [u8; 4] = *b"ownr";

/// The hashed bytes: the client's address and the service's (IPv4 in the mapped form), both ports, all in network
/// order, and the purpose. `bpf/lib/flow_hash.h` has the same.
#[must_use]
pub fn flow_hash_input(client: SocketAddr, service: SocketAddr) -> [u8; FLOW_HASH_LEN] {
    let parts: [&[u8]; 5] = [
        &mapped(client.ip()),
        &mapped(service.ip()),
        &client.port().to_be_bytes(),
        &service.port().to_be_bytes(),
        &PURPOSE,
    ];
    let mut input = [0; FLOW_HASH_LEN];
    for (to, from) in input.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    input
}

/// The low half of SipHash-2-4: nobody without the key can choose connections that have the same owner.
#[must_use]
pub fn flow_hash(key: PoolKey, client: SocketAddr, service: SocketAddr) -> u32 {
    let hash = SipHasher24::new_with_key(&key.0).hash(&flow_hash_input(client, service));
    let [a, b, c, d, ..] = hash.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_of_this_version_stays_as_it_is() {
        let hash = |client: &str, service: &str| {
            let [client, service] = [client, service].map(|text| text.parse().unwrap());
            flow_hash(PoolKey([7; 16]), client, service)
        };
        let v4 = hash("192.0.2.1:40000", "10.0.0.10:80");
        let v6 = hash("[2001:db8::1]:40000", "[fd00::10]:80");
        assert_eq!(
            [v4, v6],
            [1_555_058_392, 1_893_735_836],
            "another hash is another version of the protocol"
        );
        assert_eq!(v4, hash("[::ffff:192.0.2.1]:40000", "10.0.0.10:80"));
        assert_ne!(v4, hash("192.0.2.1:40001", "10.0.0.10:80"));
    }
}
