//! The secret of a pool.

use core::fmt;
use core::hash::Hasher as _;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher24;
use wire::FlowKey;

/// Secret that all members of a pool share. With the key a party can forge echoed timestamps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PoolKey(
    /// 128 random bits.
    pub [u8; 16],
);

/// Use of a hash: hashes of different uses are independent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Use {
    Isn = 0,
    Agreed = 1,
    First = 2,
    Later = 3,
}

impl PoolKey {
    /// Lower half of SipHash-2-4 of the use, the connection and more words.
    pub(crate) fn hash(&self, hash_use: Use, flow: &FlowKey, words: &[u32]) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write_u8(hash_use as u8);
        for end in [flow.client(), flow.server()] {
            write_address(&mut hasher, end);
        }
        for word in words {
            hasher.write_u32(*word);
        }
        let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// An IPv4 address is hashed as the IPv4-mapped IPv6 address: the program in the kernel has only that form.
fn write_address(hasher: &mut SipHasher24, address: SocketAddr) {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    hasher.write(&octets);
    hasher.write_u16(address.port());
}

/// The secret is left out.
impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey(..)")
    }
}
