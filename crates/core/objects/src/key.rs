//! The secret of a pool.

use core::fmt;
use core::hash::Hasher as _;
use core::net::IpAddr;

use blake2::Blake2sMac256;
use blake2::digest::Mac as _;
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
    Unprotected = 4,
    Stored = 5,
}

impl PoolKey {
    /// The two halves, as SipHash takes these.
    #[must_use]
    pub fn words(&self) -> [u64; 2] {
        let [low, high] = [&self.0[..8], &self.0[8..]];
        [low, high].map(|half| {
            half.iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        })
    }

    /// A key or a hash for the use that the label names: BLAKE2s with the secret as key (RFC 7693). No label is the
    /// beginning of another label.
    pub(crate) fn derive(&self, label: &[u8], context: &[u8]) -> [u8; 32] {
        // Keys of 32 bytes always fit.
        let mut key = [0; 32];
        key[..16].copy_from_slice(&self.0);
        let mac = Blake2sMac256::new(&key.into());
        mac.chain_update(label)
            .chain_update(context)
            .finalize()
            .into_bytes()
            .into()
    }

    /// Lower half of SipHash-2-4 of the connection, the use and more words: whole words of 64 bits, as the program in
    /// the kernel hashes.
    pub(crate) fn hash(&self, hash_use: Use, flow: &FlowKey, words: [u32; 4]) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        for end in [flow.client(), flow.server()] {
            hasher.write(&mapped(end.ip()));
        }
        for end in [flow.client(), flow.server()] {
            hasher.write(&end.port().to_be_bytes());
        }
        hasher.write(&(hash_use as u32).to_le_bytes());
        for word in words {
            hasher.write(&word.to_le_bytes());
        }
        let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// An IPv4 address is hashed as the IPv4-mapped IPv6 address: the program in the kernel has only that form.
fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The secret is left out.
impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey(..)")
    }
}
