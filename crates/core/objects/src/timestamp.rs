//! Timestamps that carry the state of a download (TRODS 4.2, with another layout).
//!
//! A value of the TSval field has three parts, the most significant first: an index of 6 bits, a kind of 2 bits, and
//! 24 bits of state. The client's TCP echoes the newest value in each segment, so each segment of the client says how
//! a member goes on with the response.
//!
//! [`index`] says when a segment gets a new index. [`State`] is the rest.

pub mod index;
mod options;

pub use options::ClientOptions;

use wire::{FlowKey, SeqNumber};

use crate::isn::Slot;
use crate::key::{PoolKey, Use};
use index::Index;

/// Bits below the index.
const INDEX_SHIFT: u32 = 26;
/// Bits below the kind.
const KIND_SHIFT: u32 = 24;
/// The header of a first response must be shorter to travel in a timestamp, bytes.
pub const MAX_HEADER: u16 = 1 << 11;
/// Turns of a connection that [`State::Stored`] tells apart.
pub const STORED_TURNS: u32 = 1 << 3;
/// Bytes from the ISN in which the beginning of a later body can be told, without a store.
pub const FAR_POSITIONS: u32 = 1 << 19;
/// The same while the record is on the way to a store.
pub const NEAR_POSITIONS: u32 = 1 << 15;

/// A timestamp as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp {
    /// Order of the values of a connection.
    pub index: Index,
    /// The state of the download.
    pub state: State,
}

/// The lower 26 bits of a timestamp: kind and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateBits(u32);

impl StateBits {
    /// The lower 26 bits of a value.
    #[must_use]
    pub const fn of_wire(value: u32) -> Self {
        Self(low(value, INDEX_SHIFT))
    }

    /// 26 bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Of a state of kind [`State::Agreed`] for a next request at `before`, the state for a next request at `after`.
    #[must_use]
    pub const fn moved(self, before: SeqNumber, after: SeqNumber) -> Self {
        Self(self.0 ^ number_bits(before) ^ number_bits(after))
    }
}

/// Where a download is, as far as the client holds that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No response is under way.
    Agreed {
        /// When the connection began.
        slot: Slot,
        /// Options of the handshake.
        options: ClientOptions,
        /// 17 bits, see [`State::agreed_tag`].
        tag: u32,
    },
    /// The first response of the connection; the request is not acknowledged.
    First {
        /// When the connection began.
        slot: Slot,
        /// Options of the handshake.
        options: ClientOptions,
        /// Length of the response header, bytes, below [`MAX_HEADER`].
        header_len: u16,
        /// 6 bits, see [`State::first_tag`].
        tag: u8,
    },
    /// A later response of the connection; the request is not acknowledged.
    Later {
        /// Options of the handshake.
        options: ClientOptions,
        /// The number of the turn is odd ([`crate::flow::Turn::number`]).
        is_odd: bool,
        /// Where the body began.
        position: LaterPosition,
    },
    /// The record of the response is in the store of the pool. The request may be acknowledged.
    Stored {
        /// When the connection began.
        slot: Slot,
        /// Options of the handshake.
        options: ClientOptions,
        /// Number of the turn ([`crate::flow::Turn::number`]) modulo [`STORED_TURNS`].
        turn: u8,
        /// 14 bits, see [`State::stored_tag`].
        tag: u16,
    },
}

/// Where the body of a later response began, as a distance from the hash of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaterPosition {
    /// Until the record is stored: the distance modulo [`NEAR_POSITIONS`], and a tag.
    Near {
        /// Distance, 15 bits.
        distance: u16,
        /// 4 bits, see [`State::later_tag`].
        tag: u8,
    },
    /// Without a store: the distance modulo [`FAR_POSITIONS`].
    Far {
        /// Distance, 19 bits.
        distance: u32,
    },
}

/// What the tags of a body are taken of: hash of the object's version, and the first byte of the object that the
/// response has. A server that ignores a range that another server knows has another first byte.
#[must_use]
pub const fn version_word(version: u32, first: u64) -> u32 {
    let [a, b, c, d, e, f, g, h] = first.to_le_bytes();
    let (low, high) = (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    );
    version
        .wrapping_add(low.wrapping_mul(0x9e37_79b1))
        .wrapping_add(high.wrapping_mul(0x85eb_ca77))
}

impl Timestamp {
    /// The value on the wire of an index and its lower bits.
    #[must_use]
    pub const fn value(index: Index, bits: StateBits) -> u32 {
        (index.number() as u32) << INDEX_SHIFT | bits.bits()
    }

    /// The value on the wire.
    #[must_use]
    pub fn to_wire(self) -> u32 {
        (u32::from(self.index.number()) << INDEX_SHIFT) | self.state.to_wire()
    }

    /// Reads a value. Every value has a meaning; only the tag tells whether a member of the pool wrote the value.
    #[must_use]
    pub fn from_wire(value: u32) -> Self {
        Self {
            index: Index::of_wire(value),
            state: State::from_wire(value),
        }
    }
}

impl State {
    /// The lower 26 bits.
    #[must_use]
    pub fn bits(self) -> StateBits {
        StateBits(self.to_wire())
    }

    /// The lower 26 bits: kind and state.
    fn to_wire(self) -> u32 {
        let (kind, bits) = match self {
            Self::Agreed { slot, options, tag } => (
                0,
                (slot_bits(slot) << 20) | (options.bits() << 17) | low(tag, 17),
            ),
            Self::First {
                slot,
                options,
                header_len,
                tag,
            } => {
                let header_len = low(header_len.into(), 11) << 6;
                let known = (slot_bits(slot) << 20) | (options.bits() << 17);
                (1, known | header_len | low(tag.into(), 6))
            }
            Self::Later {
                options,
                is_odd,
                position,
            } => {
                let position = match position {
                    LaterPosition::Near { distance, tag } => {
                        (1 << 20) | (low(distance.into(), 15) << 4) | low(tag.into(), 4)
                    }
                    LaterPosition::Far { distance } => low(distance, 19),
                };
                (
                    2,
                    (options.bits() << 21) | (u32::from(is_odd) << 19) | position,
                )
            }
            Self::Stored {
                slot,
                options,
                turn,
                tag,
            } => {
                let known = (slot_bits(slot) << 20) | (options.bits() << 17);
                (3, known | (low(turn.into(), 3) << 14) | low(tag.into(), 14))
            }
        };
        (kind << KIND_SHIFT) | bits
    }

    fn from_wire(value: u32) -> Self {
        let field = |shift: u32, bits: u32| low(value >> shift, bits);
        let slot = Slot::new(low_byte(value >> 20, 4));
        match field(KIND_SHIFT, 2) {
            0 => Self::Agreed {
                slot,
                options: ClientOptions::of_bits(field(17, 3)),
                tag: field(0, 17),
            },
            1 => Self::First {
                slot,
                options: ClientOptions::of_bits(field(17, 3)),
                header_len: low_half(value >> 6, 11),
                tag: low_byte(value, 6),
            },
            2 => Self::Later {
                options: ClientOptions::of_bits(field(21, 3)),
                is_odd: field(19, 1) == 1,
                position: if field(20, 1) == 1 {
                    LaterPosition::Near {
                        distance: low_half(value >> 4, 15),
                        tag: low_byte(value, 4),
                    }
                } else {
                    LaterPosition::Far {
                        distance: field(0, 19),
                    }
                },
            },
            _ => Self::Stored {
                slot,
                options: ClientOptions::of_bits(field(17, 3)),
                turn: low_byte(value >> 14, 3),
                tag: low_half(value, 14),
            },
        }
    }

    /// The tag of [`State::Agreed`]: 17 bits over the connection, the slot, the options, and `told`: the number of the
    /// first byte that the client was not told to have arrived, where the next request begins. A later request of the
    /// client has another number, and is not taken for the next.
    #[must_use]
    pub fn agreed_tag(
        key: &PoolKey,
        flow: &FlowKey,
        slot: Slot,
        options: ClientOptions,
        told: SeqNumber,
    ) -> u32 {
        let words = [slot_bits(slot), options.bits(), 0, 0];
        low(key.hash(Use::Agreed, flow, words), 17) ^ number_bits(told)
    }

    /// The tag of [`State::Agreed`] on a connection without protection. A member that sees the tag resets the
    /// connection: the client may have a part of a response, or may have sent a part of a request.
    #[must_use]
    pub fn unprotected_tag(
        key: &PoolKey,
        flow: &FlowKey,
        slot: Slot,
        options: ClientOptions,
    ) -> u32 {
        let words = [slot_bits(slot), options.bits(), 0, 0];
        low(key.hash(Use::Unprotected, flow, words), 17)
    }

    /// The tag of [`State::Stored`]: 14 bits over the connection, the slot, the options and the turn.
    #[must_use]
    pub fn stored_tag(
        key: &PoolKey,
        flow: &FlowKey,
        slot: Slot,
        options: ClientOptions,
        turn: u8,
    ) -> u16 {
        let words = [slot_bits(slot), options.bits(), turn.into(), 0];
        low_half(key.hash(Use::Stored, flow, words), 14)
    }

    /// The state of a connection whose turn of this number is in the store.
    #[must_use]
    pub fn stored(
        key: &PoolKey,
        flow: &FlowKey,
        slot: Slot,
        options: ClientOptions,
        number: u32,
    ) -> Self {
        let turn = low_byte(number, 3);
        let tag = Self::stored_tag(key, flow, slot, options, turn);
        Self::Stored {
            slot,
            options,
            turn,
            tag,
        }
    }

    /// The tag of [`State::First`]: 6 bits over the connection, the slot, the options, the length of the header, and
    /// the version of the object.
    #[must_use]
    pub fn first_tag(
        key: &PoolKey,
        flow: &FlowKey,
        slot: Slot,
        options: ClientOptions,
        header_len: u16,
        version: u32,
    ) -> u8 {
        let words = [slot_bits(slot), options.bits(), header_len.into(), version];
        low_byte(key.hash(Use::First, flow, words), 6)
    }

    /// The tag of [`LaterPosition::Near`]: 4 bits over the connection, the options, the distance, and the version of
    /// the object.
    #[must_use]
    pub fn later_tag(
        key: &PoolKey,
        flow: &FlowKey,
        options: ClientOptions,
        distance: u16,
        version: u32,
    ) -> u8 {
        let words = [options.bits(), distance.into(), version, 0];
        low_byte(key.hash(Use::Later, flow, words), 4)
    }
}

/// 17 bits of a number. Two numbers that are less than 50,549 apart have different bits (Knuth, The Art of Computer
/// Programming 3, 6.4: Fibonacci hashing).
const fn number_bits(told: SeqNumber) -> u32 {
    told.0.wrapping_mul(0x9e37_79b1) >> 15
}

fn slot_bits(slot: Slot) -> u32 {
    slot.number().into()
}

/// The lowest bits of a value.
const fn low(value: u32, bits: u32) -> u32 {
    value & ((1 << bits) - 1)
}

/// The lowest bits of a value, 16 at most.
const fn low_half(value: u32, bits: u32) -> u16 {
    let [first, second, ..] = low(value, bits).to_le_bytes();
    u16::from_le_bytes([first, second])
}

/// The lowest bits of a value, 8 at most.
const fn low_byte(value: u32, bits: u32) -> u8 {
    low(value, bits).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_is_read_as_written(value in any::<u32>()) {
            prop_assert_eq!(Timestamp::from_wire(value).to_wire(), value);
        }

        /// No bit of a field reaches into another field.
        #[test]
        fn fields_with_too_many_bits_stay_in_place(
            index in 0_u8..64, slot in 0_u8..16, header_len in any::<u16>(), tag in any::<u8>(),
        ) {
            let written = Timestamp {
                index: Index::new(index),
                state: State::First {
                    slot: Slot::new(slot),
                    options: ClientOptions::of_bits(5),
                    header_len,
                    tag,
                },
            };
            let State::First { slot: read_slot, options, header_len: read_len, tag: read_tag } =
                Timestamp::from_wire(written.to_wire()).state
            else {
                return Err(TestCaseError::fail("another kind"));
            };
            prop_assert_eq!(read_slot.number(), slot);
            prop_assert_eq!(options.bits(), 5);
            prop_assert_eq!(read_len, header_len % MAX_HEADER);
            prop_assert_eq!(read_tag, tag % 64);
        }
    }

    #[test]
    fn numbers_of_near_requests_have_different_bits() {
        for first in [0, 0x7fff_fff0, 0xffff_8000] {
            let first = SeqNumber(first);
            let bits = (1..50_549_u32).map(|distance| number_bits(first + distance));
            assert!({ bits }.all(|bits| bits != number_bits(first)));
        }
    }

    #[test]
    fn tag_of_other_connection_or_key_differs() {
        let flow = |port| FlowKey::new(([10, 0, 0, 1], port).into(), ([10, 0, 0, 10], 80).into());
        let tag = |secret, port| {
            let slot = Slot::new(3);
            State::agreed_tag(
                &PoolKey([secret; 16]),
                &flow(port),
                slot,
                ClientOptions::of_bits(1),
                SeqNumber(0),
            )
        };
        let equal = (0..1 << 17)
            .step_by(97)
            .filter(|n| tag(low_byte(*n % 251, 8), low_half(*n, 16)) == tag(252, 1));
        assert!(equal.count() <= 2, "of 1,352 guesses none or few are right");
        assert!(tag(7, 9) < 1 << 17);
    }
}
