//! The keys of a link.
//!
//! A session has a key for each direction, and two slots of keys. The logger puts a new pair into
//! the unused slot, and the peer may begin to use the pair at any time. Both pairs are accepted
//! until the next change, so keys can be replaced while datagrams are under way.

use core::fmt;

use siphasher::sip::SipHasher24;

/// The key of one direction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LinkKey(
    /// The secret: 128 random bits.
    pub [u8; 16],
);

impl LinkKey {
    /// The tag of `bytes`: SipHash-2-4, 64 bits.
    #[must_use]
    pub fn tag(&self, bytes: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(bytes)
    }
}

/// Does not print the secret.
impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkKey(..)")
    }
}

/// Slot of a key; datagrams name the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeySlot {
    /// Slot 0, where the first keys of a session are.
    Zero,
    /// Slot 1.
    One,
}

impl KeySlot {
    /// 0 or 1.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
        }
    }

    /// The slot with this number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Zero),
            1 => Some(Self::One),
            _ => None,
        }
    }

    /// The other slot, for the next keys.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Zero => Self::One,
            Self::One => Self::Zero,
        }
    }
}

/// The keys of a slot, as the logger hands out the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkKeys {
    /// The version of the link that both ends have agreed on.
    pub version: u8,
    /// Slot of these keys.
    pub slot: KeySlot,
    /// From the serving host to the logger.
    pub up: LinkKey,
    /// From the logger to the serving host.
    pub down: LinkKey,
}

/// The keys of one direction, both slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeySet([Option<LinkKey>; 2]);

impl KeySet {
    /// No key: no datagram is accepted.
    pub const EMPTY: Self = Self([None; 2]);

    /// Puts a key into `slot`. The former key of that slot is not accepted any more.
    pub const fn put(&mut self, slot: KeySlot, key: LinkKey) {
        self.0[slot.number() as usize] = Some(key);
    }

    /// The key in a slot.
    #[must_use]
    pub const fn get(&self, slot: KeySlot) -> Option<&LinkKey> {
        self.0[slot.number() as usize].as_ref()
    }

    /// Whether `tag` is that of `bytes`, with the key in `slot`.
    #[must_use]
    pub fn verify(&self, slot: KeySlot, bytes: &[u8], tag: u64) -> bool {
        self.get(slot).is_some_and(|key| key.tag(bytes) == tag)
    }
}
