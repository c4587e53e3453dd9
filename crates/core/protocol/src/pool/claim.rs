//! Claims: a member that gets a segment of an unknown connection asks the other members before the revival of the
//! connection.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `OLPC` |
//! | 4 | version |
//! | 5 | kind |
//! | 6..8 | 0 |
//! | 8..16 | membership of the sender |
//! | 16..24 | number of the claim, from the question |
//! | 24..60 | 4-tuple |
//! | 60..64 | 0 |
//! | 64..72 | SipHash-2-4 of the bytes before, under a key from the pool's key |
//!
//! Numbers are little-endian.

use core::hash::Hasher as _;

use siphasher::sip::SipHasher24;
use wire::FlowKey;

use super::PoolKey;
use crate::link::{flow_key_from, flow_key_into};

const MAGIC_BYTES: [u8; 4] = *b"OLPC";
const CLAIM_VERSION: u8 = 1;
const TAGGED_LEN: usize = 64;
/// A key of its own: no other hash of the pool is a tag.
const KEY_LABEL: [u8; 16] = *b"outlive claims 1";

/// A datagram between members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Meaning.
    pub kind: ClaimKind,
    /// The sender's membership.
    pub membership: u64,
    /// Number of the claim: an answer has the number of its question.
    pub number: u64,
    /// The connection.
    pub key: FlowKey,
}

/// Meaning of a [`Claim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimKind {
    /// The sender would go on with the connection.
    Ask,
    /// The sender serves the connection, or goes on with it.
    Has,
    /// The sender does not know the connection.
    HasNot,
    /// The sender is new, and asks whether the receiver knows its membership. The connection has no meaning.
    Greet,
    /// The sender knows the membership of the receiver.
    Knows,
}

/// Why a datagram is no claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Another length or another beginning.
    #[error("no claim")]
    NotAClaim,
    /// A version that this program does not know.
    #[error("a claim of version {0}")]
    Version(u8),
    /// A kind that this program does not know.
    #[error("a claim of an unknown kind")]
    Kind,
    /// No member of this pool has written the datagram.
    #[error("a claim of a stranger")]
    Tag,
}

impl Claim {
    /// Length of a claim, bytes.
    pub const DATAGRAM_LEN: usize = TAGGED_LEN + 8;

    /// The datagram.
    #[must_use]
    pub fn encode(&self, key: &PoolKey) -> [u8; Self::DATAGRAM_LEN] {
        let mut bytes = [0; Self::DATAGRAM_LEN];
        bytes[..4].copy_from_slice(&MAGIC_BYTES);
        bytes[4] = CLAIM_VERSION;
        bytes[5] = match self.kind {
            ClaimKind::Ask => 1,
            ClaimKind::Has => 2,
            ClaimKind::HasNot => 3,
            ClaimKind::Greet => 4,
            ClaimKind::Knows => 5,
        };
        bytes[8..16].copy_from_slice(&self.membership.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        let mut tuple = [0; 36];
        flow_key_into(&self.key, &mut tuple);
        bytes[24..60].copy_from_slice(&tuple);
        let tag = tag(key, &bytes[..TAGGED_LEN]);
        bytes[TAGGED_LEN..].copy_from_slice(&tag.to_le_bytes());
        bytes
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn decode(bytes: &[u8], key: &PoolKey) -> Result<Self, ClaimError> {
        let Ok(bytes) = <&[u8; Self::DATAGRAM_LEN]>::try_from(bytes) else {
            return Err(ClaimError::NotAClaim);
        };
        if bytes[..4] != MAGIC_BYTES {
            return Err(ClaimError::NotAClaim);
        }
        if bytes[4] != CLAIM_VERSION {
            return Err(ClaimError::Version(bytes[4]));
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if tag(key, &bytes[..TAGGED_LEN]) != word(TAGGED_LEN) {
            return Err(ClaimError::Tag);
        }
        let mut tuple = [0; 36];
        tuple.copy_from_slice(&bytes[24..60]);
        Ok(Self {
            kind: match bytes[5] {
                1 => ClaimKind::Ask,
                2 => ClaimKind::Has,
                3 => ClaimKind::HasNot,
                4 => ClaimKind::Greet,
                5 => ClaimKind::Knows,
                _ => return Err(ClaimError::Kind),
            },
            membership: word(8),
            number: word(16),
            key: flow_key_from(&tuple),
        })
    }
}

fn tag(key: &PoolKey, bytes: &[u8]) -> u64 {
    let mut own = key.0;
    for (byte, label) in own.iter_mut().zip(KEY_LABEL) {
        *byte ^= label;
    }
    let mut hasher = SipHasher24::new_with_key(&own);
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(kind: ClaimKind, membership: u64, number: u64, port: u16) -> Claim {
        let key = FlowKey::new(([10, 0, 0, 1], port).into(), ([10, 0, 9, 9], 80).into());
        Claim {
            kind,
            membership,
            number,
            key,
        }
    }

    proptest! {
        #[test]
        fn written_claim_is_read_again(
            secret in any::<[u8; 16]>(), membership in any::<u64>(), number in any::<u64>(), port in any::<u16>(),
            kind in prop::sample::select(vec![ClaimKind::Ask, ClaimKind::HasNot, ClaimKind::Knows]),
        ) {
            let claim = claim(kind, membership, number, port);
            let bytes = claim.encode(&PoolKey(secret));
            prop_assert_eq!(Claim::decode(&bytes, &PoolKey(secret)), Ok(claim));
        }

        #[test]
        fn changed_claim_is_refused(at in 0..Claim::DATAGRAM_LEN, bit in 0..8_u32) {
            let key = PoolKey([3; 16]);
            let mut bytes = claim(ClaimKind::Ask, 1, 2, 3).encode(&key);
            bytes[at] ^= 1 << bit;
            prop_assert!(Claim::decode(&bytes, &key).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Claim::decode(&bytes, &PoolKey([0; 16]));
        }
    }

    #[test]
    fn claim_of_another_pool_is_refused() {
        let bytes = claim(ClaimKind::Has, 1, 2, 3).encode(&PoolKey([1; 16]));
        assert_eq!(
            Claim::decode(&bytes, &PoolKey([2; 16])),
            Err(ClaimError::Tag)
        );
    }
}
