//! Random life of three connections.

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use wire::SeqNumber;

/// Positions of each stream.
pub(super) const MODEL_BYTES: usize = 150_000;

/// Where a segment of the client begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum Where {
    /// Where the record ends: in order.
    Next,
    /// So many bytes before or after the next position.
    Near(i32),
    /// At this position.
    At(usize),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Open(SeqNumber, SeqNumber),
    Arrive {
        at: Where,
        length: usize,
        /// 0: the right bytes; otherwise different bytes.
        salt: u8,
        fin: bool,
        /// Positions in the outstream.
        client_ack: usize,
        server_nxt: usize,
        server_behind: u32,
    },
    Sent {
        at: usize,
        length: usize,
        salt: u8,
    },
    Read(usize, usize),
    Release(Where),
    Close,
}

fn places() -> impl Strategy<Value = Where> {
    prop_oneof![
        4 => Just(Where::Next),
        4 => (-4000i32..12_000).prop_map(Where::Near),
        1 => (0usize..MODEL_BYTES - 80_000).prop_map(Where::At),
    ]
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0usize..3000,
        1 => 60_000usize..70_000,
        2 => 1usize..20,
    ]
}

fn isns() -> impl Strategy<Value = SeqNumber> {
    let near_the_wrap = u32::MAX - 100_000..=u32::MAX;
    prop_oneof![near_the_wrap, any::<u32>(), Just(0)].prop_map(SeqNumber)
}

fn salts() -> impl Strategy<Value = u8> {
    prop_oneof![9 => Just(0), 1 => 0u8..3]
}

pub(super) fn steps() -> impl Strategy<Value = Step> {
    let acks = prop_oneof![
        3 => (1usize..3000).prop_map(|nxt| (nxt, nxt)),
        1 => (1usize..3000, 1usize..3000),
    ];
    let behind = prop_oneof![3 => Just(0u32), 1 => 0u32..50];
    let arrive = (places(), lengths(), salts(), 0u8..60, acks, behind).prop_map(
        |(at, length, salt, fin, (client_ack, server_nxt), server_behind)| Step::Arrive {
            at,
            length,
            salt,
            fin: fin == 0,
            client_ack,
            server_nxt,
            server_behind,
        },
    );
    let sent = (0usize..4000, 0usize..300, salts()).prop_map(|(at, length, salt)| Step::Sent {
        at,
        length,
        salt,
    });
    prop_oneof![
        20 => arrive,
        8 => sent,
        6 => (0usize..MODEL_BYTES, 0usize..100_000).prop_map(|(from, max)| Step::Read(from, max)),
        1 => (isns(), isns()).prop_map(|(client, server)| Step::Open(client, server)),
        3 => places().prop_map(Step::Release),
        1 => Just(Step::Close),
    ]
}

/// The bytes of a stream from `at` on: no capital H among them, so that all of the stream is a response.
pub(super) fn bytes(at: usize, length: usize, salt: u8) -> Vec<u8> {
    let byte = |position: usize| {
        let [low, high, ..] = position.to_le_bytes();
        low.wrapping_mul(31).wrapping_add(high).wrapping_add(salt) | 0x80
    };
    (at..at + length).map(byte).collect()
}
