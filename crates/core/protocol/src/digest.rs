//! The digest of an outstream, as the programs in the kernel take it.

use core::fmt;

use serde::{Deserialize, Serialize};
use wire::SeqNumber;

use crate::link::LinkKey;

/// Digest of the outstream from `base` up to before `next`, client space. Two digests with the same ends are equal only
/// if the bytes are, as far as anybody can tell who does not know the key.
///
/// 24 bytes: `folded` and `sum`, `u64`; `base` and `next`, `u32`; all little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Digest {
    /// The polynomial of whole chunks.
    pub folded: u64,
    /// The sum of the chunk of `next`.
    pub sum: u64,
    /// The first byte.
    pub base: SeqNumber,
    /// The byte after the last.
    pub next: SeqNumber,
}

impl Digest {
    /// The length of the encoding, bytes.
    pub const LEN: usize = 24;

    /// Encodes the digest.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.folded.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sum.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.base.0.to_le_bytes());
        bytes[20..].copy_from_slice(&self.next.0.to_le_bytes());
        bytes
    }

    /// Decodes a digest.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, rest @ ..] = bytes;
        let [q, r, s, t, u, v, w, x] = rest;
        Self {
            folded: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            sum: u64::from_le_bytes([i, j, k, l, m, n, o, p]),
            base: SeqNumber(u32::from_le_bytes([q, r, s, t])),
            next: SeqNumber(u32::from_le_bytes([u, v, w, x])),
        }
    }
}

/// Seed of the key of a service's digests. The seed is a secret. All hosts that serve the
/// connections, one after another, share the seed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DigestSeed(
    /// 128 random bits.
    pub [u64; 2],
);

impl DigestSeed {
    /// As a key of SipHash.
    #[must_use]
    pub fn as_key(self) -> LinkKey {
        let [low, high] = self.0.map(u64::to_le_bytes);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&low);
        bytes[8..].copy_from_slice(&high);
        LinkKey(bytes)
    }
}

/// Does not print the secret.
impl fmt::Debug for DigestSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestSeed(..)")
    }
}
