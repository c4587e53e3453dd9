//! Steps of the connections, of any connection at any time.

use proptest::{collection::vec, prelude::*, sample::select};
use wire::{Flags, SeqNumber};

use super::linked::{LinkStep, link_step};
use crate::harness::*;

/// Initial sequence numbers of a client, its server and that server's successors.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) c: u32,
    pub(super) s: u32,
    pub(super) later: u32,
    pub(super) v6: bool,
}

/// A segment of an existing connection; numbers are relative to the sender's next numbers.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) seq: i32,
    pub(super) ack: i32,
    pub(super) flags: Flags,
    pub(super) window: u16,
    pub(super) options: Vec<u8>,
    pub(super) len: usize,
    /// A byte of the payload that is wrong.
    pub(super) spoilt: Option<usize>,
    pub(super) mark: u32,
    pub(super) jumbo: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Syn(Vec<u8>, u16),
    SynAck(Vec<u8>, u16),
    Open,
    Client(Sent),
    Server(Sent),
    /// The server repeats this piece of the outstream, from the beginning of the new socket on.
    Replay {
        from: u32,
        len: usize,
        spoilt: Option<usize>,
        fin: bool,
        jumbo: bool,
    },
    Gate,
    Incarnation,
    Recovered,
    Splice {
        instream: u32,
        outstream: u32,
        expect: bool,
    },
    Graft {
        instream: u32,
        outstream: u32,
        window: u32,
    },
    /// All connections are spliced to a new server.
    Crash {
        expect: bool,
    },
    /// A request waits for the comparison with this digest.
    Want {
        of: usize,
        spoilt: bool,
    },
    Abandon,
    Unprotect,
    Barrier(u64),
    Sweep,
    Silence,
    Heartbeat,
    /// See [`Both::lease`].
    Lease(Option<bool>),
    /// A step of a log link.
    Link(LinkStep),
}

pub(super) fn near() -> impl Strategy<Value = i32> {
    prop_oneof![20 => Just(0), 4 => -80i32..80, 1 => -70_000i32..70_000, 1 => any::<i32>()]
}

pub(super) fn any_options() -> impl Strategy<Value = Vec<u8>> {
    let stamps = (800u32..1100, 0u32..1100).prop_map(|(value, echo)| timestamps(value, echo));
    let sack = (stamps.clone(), vec(any::<u32>(), 1..6)).prop_map(|(stamps, edges)| {
        let len = u8::try_from(2 + 8 * (edges.len() / 2)).unwrap();
        let edges = edges.iter().take(edges.len() / 2 * 2);
        let blocks: Vec<u8> = edges.flat_map(|edge| edge.to_be_bytes()).collect();
        [&stamps[..], &[1, 1, 5, len], &blocks].concat()
    });
    let pieces = vec(
        select(vec![
            vec![1u8],
            vec![0],
            vec![2, 4, 5, 0xb4],
            vec![4, 2],
            vec![3, 3, 7],
            vec![3, 3, 200],
            vec![3, 4, 1, 1],
            vec![8, 10, 0, 0, 3, 200, 0, 0, 0, 9],
            vec![8, 9, 0, 0, 0, 5, 0, 0, 0],
            vec![5, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            vec![5, 6, 0, 0, 0, 1],
            vec![19, 3, 1],
            vec![29, 4, 1, 2],
            vec![30, 6, 0, 1, 2, 3],
            vec![34, 2],
            vec![254, 4, 0xf9, 0x89],
            vec![77, 2],
            vec![77, 1],
            vec![77, 0],
            vec![77, 60],
        ]),
        0..8,
    );
    let pieces = pieces.prop_map(|pieces| pieces.concat());
    prop_oneof![6 => stamps, 2 => Just(Vec::new()), 2 => sack, 2 => pieces, 1 => vec(any::<u8>(), 0..40)]
        .prop_map(|mut options| {
            options.truncate(40);
            options.resize(options.len().next_multiple_of(4), 0);
            options
        })
}

pub(super) fn syn_like() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (800u32..1000, 0u8..16).prop_map(|(tsval, scale)| syn_options(tsval, 0, scale)),
        3 => Just([&syn_options(810, 0, 3)[..], &[30, 4, 0, 0x81]].concat()),
        1 => any_options(),
    ]
}

pub(super) fn sent() -> impl Strategy<Value = Sent> {
    let flags = prop_oneof![
        30 => Just(ACK),
        2 => Just(FIN_ACK),
        1 => Just(RST),
        1 => Just(RST.union(ACK)),
        1 => any::<u8>().prop_map(Flags::from_bits),
    ];
    let len =
        prop_oneof![3 => Just(0usize), 5 => 1usize..60, 2 => 60usize..1460, 1 => 1460usize..3000];
    let mark = prop_oneof![40 => Just(0), 1 => MARK..MARK + 6, 1 => any::<u32>()];
    let spoilt = proptest::option::weighted(0.1, 0usize..3000);
    (
        near(),
        near(),
        flags,
        prop_oneof![1 => Just(0), 3 => any::<u16>()],
        any_options(),
        len,
        spoilt,
        mark,
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(seq, ack, flags, window, options, len, spoilt, mark, jumbo)| Sent {
                seq,
                ack,
                flags,
                window,
                options,
                len,
                spoilt,
                mark,
                jumbo,
            },
        )
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let spoilt = || proptest::option::weighted(0.15, 0usize..1500);
    prop_oneof![
        5 => (syn_like(), any::<u16>()).prop_map(|(o, w)| Step::Syn(o, w)),
        3 => (syn_like(), any::<u16>()).prop_map(|(o, w)| Step::SynAck(o, w)),
        5 => Just(Step::Open),
        30 => sent().prop_map(Step::Client),
        30 => sent().prop_map(Step::Server),
        15 => (
            prop_oneof![Just(0u32), 0u32..200], 1usize..1500, spoilt(), prop::bool::weighted(0.1),
            prop::bool::weighted(0.2))
            .prop_map(|(from, len, spoilt, fin, jumbo)| Step::Replay { from, len, spoilt, fin, jumbo }),
        1 => Just(Step::Gate),
        1 => Just(Step::Incarnation),
        2 => Just(Step::Recovered),
        2 => (0u32..40, 0u32..40, any::<bool>())
            .prop_map(|(instream, outstream, expect)| Step::Splice { instream, outstream, expect }),
        2 => (0u32..40, 0u32..40, 0u32..100_000)
            .prop_map(|(instream, outstream, window)| Step::Graft { instream, outstream, window }),
        4 => any::<bool>().prop_map(|expect| Step::Crash { expect }),
        3 => (0..4usize, prop::bool::weighted(0.2)).prop_map(|(of, spoilt)| Step::Want { of, spoilt }),
        1 => Just(Step::Abandon),
        1 => Just(Step::Unprotect),
        1 => any::<u64>().prop_map(Step::Barrier),
        1 => Just(Step::Sweep),
        1 => Just(Step::Silence),
        3 => Just(Step::Heartbeat),
        1 => Just(Step::Lease(Some(false))),
        3 => select(vec![None, Some(true)]).prop_map(Step::Lease),
    ]
}

/// With a log link.
pub(super) fn linked_step() -> impl Strategy<Value = Step> {
    prop_oneof![2 => step(), 1 => link_step().prop_map(Step::Link)]
}

pub(super) fn connection() -> impl Strategy<Value = Connection> {
    let number = || prop_oneof![1 => u32::MAX - 3000..=u32::MAX, 1 => any::<u32>(), 1 => 0u32..3];
    (number(), number(), number(), any::<bool>()).prop_map(|(c, s, later, v6)| Connection {
        c,
        s,
        later,
        v6,
    })
}

/// The byte of the outstream at this client-space number.
fn said(seq: SeqNumber) -> u8 {
    u8::try_from(seq.0.wrapping_mul(2_654_435_761) >> 24).unwrap_or(0)
}

pub(super) fn outstream(from: SeqNumber, len: usize, spoilt: Option<usize>) -> Vec<u8> {
    let len = u32::try_from(len).unwrap();
    let mut bytes: Vec<u8> = (0..len).map(|i| said(from + i)).collect();
    if let Some(byte) = spoilt.and_then(|at| bytes.get_mut(at)) {
        *byte ^= 0x55;
    }
    bytes
}

impl Sent {
    /// `delta` takes the segment's own numbers to the client's.
    pub(super) fn spec(&self, seq: SeqNumber, ack: SeqNumber, delta: SeqNumber) -> Spec {
        let seq = seq + self.seq.cast_unsigned();
        let spec = segment(seq, ack + self.ack.cast_unsigned());
        Spec {
            jumbo: self.jumbo,
            ..spec
        }
        .flags(self.flags)
        .window(self.window)
        .options(&self.options)
        .payload(&outstream(seq + delta.0, self.len, self.spoilt))
        .mark(self.mark)
    }
}
