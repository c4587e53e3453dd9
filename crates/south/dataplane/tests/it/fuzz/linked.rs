//! Steps with a log link: a path, keys, a logger that comes and goes, and acknowledgements of the
//! logger, right or wrong.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, sample::select};
use protocol::link::{Ack, KeySet, KeySlot, LinkKey, LinkKeys, OPEN_LEN, Open, Probe, ProbeKind};
use south_model::{AckStrategy, LinkSettings, Mode, Packet, Restored, restored_flow};
use wire::{FlowId, FlowKey};

use super::{Step, World};
use crate::{harness::segment, link};

/// The kernel runs no program on less than an IP header.
const V6_HEADER: usize = 40;

/// Where the number of ranges stands, of which there are at most three.
const COUNT: usize = 7;

#[derive(Debug, Clone)]
pub(super) enum LinkStep {
    /// `serve` sends a probe.
    Probe,
    /// Whether there is a logger.
    Up(bool),
    /// New keys in this slot, which is used from now on.
    Keys(KeySlot, u8),
    Strategy(AckStrategy),
    Mtu(u16),
    Word(Word),
    /// Server and logger acknowledge input of a client.
    Upload {
        len: usize,
        server_first: bool,
        word: Word,
    },
    /// A client's request is mirrored, or skipped because of the server's read cursor, and
    /// answered.
    Request {
        len: usize,
        /// Distance of the read cursor from the end of the request, and the connection.
        cursor: Option<(u32, u32)>,
        answered: bool,
    },
    Reprotect,
    /// The host has died, and a new host knows the connection only from the record.
    Restore {
        timestamps: bool,
        scale: u8,
        stateful: bool,
        /// First segment of the client.
        told: Told,
    },
    /// A later segment of the client, or of an attacker who guesses.
    Told(Told),
}

/// Distance of the client's numbers from the record.
#[derive(Debug, Clone)]
pub(super) struct Told {
    back: u32,
    ahead: u32,
    /// Of TSval and TSecr.
    ages: Option<(u32, u32)>,
    window: u16,
    len: usize,
}

/// An ACK of the logger for a connection, or a forged ACK.
#[derive(Debug, Clone)]
pub(super) struct Word {
    /// Recorded input: all input of the client and `more` bytes, or `more` bytes than before.
    all: bool,
    more: i32,
    /// Ranges beyond.
    ranges: Vec<(i32, i32)>,
    /// Another ACK before in the same datagram: the additional recorded bytes of that ACK.
    after: Option<i32>,
    /// Distance of the counter from the newest counter so far.
    newer: i64,
    slot: KeySlot,
    signed: Signed,
    /// By how much the number of the connection is wrong.
    stranger: u64,
    /// A byte of the head, and the replacement, before the ACK is signed.
    odd: Option<(usize, u8)>,
    /// A bit of the packet that is turned over.
    spoilt: Option<(usize, u8)>,
    /// Number of missing bytes at the end.
    cut: usize,
}

/// With which key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signed {
    Down,
    /// That of the other direction.
    Up,
    OtherSlot,
    /// A key that anybody knows.
    Zero,
}

fn slot() -> impl Strategy<Value = KeySlot> {
    prop_oneof![3 => Just(KeySlot::One), 1 => Just(KeySlot::Zero)]
}

fn word() -> impl Strategy<Value = Word> {
    let near = || prop_oneof![3 => 0i32..200, 1 => -2000i32..4000, 1 => any::<i32>()];
    let signed = prop_oneof![
        40 => Just(Signed::Down),
        1 => Just(Signed::Up),
        1 => Just(Signed::OtherSlot),
        1 => Just(Signed::Zero),
    ];
    let what = (
        any::<bool>(),
        prop_oneof![4 => Just(0), 4 => 0i32..200, 1 => -200i32..0, 1 => any::<i32>()],
        vec((near(), near()), 0..4),
        proptest::option::weighted(0.2, prop_oneof![3 => 0i32..100, 1 => any::<i32>()]),
    );
    let who = (
        prop_oneof![20 => Just(1i64), 1 => 0i64..100, 1 => -5i64..1, 1 => any::<i64>()],
        prop_oneof![20 => Just(None), 1 => slot().prop_map(Some)],
        signed,
        prop_oneof![30 => Just(0u64), 1 => 1u64..3, 1 => any::<u64>()],
    );
    let damage = (
        proptest::option::weighted(0.05, (0usize..8, any::<u8>())),
        proptest::option::weighted(0.05, (0usize..156, 0u8..8)),
        prop_oneof![40 => Just(0usize), 1 => 1usize..110],
    );
    (what, who, damage).prop_map(
        |((all, more, ranges, after), (newer, slot, signed, stranger), (odd, spoilt, cut))| Word {
            all,
            more,
            ranges,
            after,
            newer,
            slot: slot.unwrap_or(KeySlot::One),
            signed,
            stranger,
            odd,
            spoilt,
            cut,
        },
    )
}

/// With bounds of credible numbers: of sequence numbers, at window scale 7; of acknowledgements, at
/// 3, with and without progress that a logger may not know; of timestamps.
fn told() -> impl Strategy<Value = Told> {
    let about = |at: u32| (0u32..3).prop_map(move |more| at - 1 + more);
    let back = prop_oneof![
        6 => Just(0u32),
        2 => 0u32..200,
        1 => about((65_535 << 7) + 1),
        1 => (1u32..300).prop_map(u32::wrapping_neg), // ahead of the record
        1 => about((65_535u32 << 7).wrapping_neg()),
        1 => any::<u32>(),
    ];
    let near = (65_535 << 3) + (65_535 << 2);
    let ahead = prop_oneof![
        6 => 0u32..300,
        1 => about(near),
        1 => about(near + (1 << 28)),
        1 => any::<u32>(),
    ];
    let age = || {
        prop_oneof![
            8 => 0u32..50,
            1 => about(1 << 28),
            1 => about(0u32.wrapping_sub(1 << 28)),
            1 => any::<u32>(),
        ]
    };
    (
        back,
        ahead,
        proptest::option::weighted(0.8, (age(), age())),
        prop_oneof![Just(0u16), 0u16..50, any::<u16>()],
        prop_oneof![Just(0usize), 1usize..300],
    )
        .prop_map(|(back, ahead, ages, window, len)| Told {
            back,
            ahead,
            ages,
            window,
            len,
        })
}

pub(super) fn link_step() -> impl Strategy<Value = LinkStep> {
    let strategies = vec![
        AckStrategy::Basic,
        AckStrategy::Lazy,
        AckStrategy::Eager,
        AckStrategy::Conditional,
    ];
    prop_oneof![
        1 => Just(LinkStep::Probe),
        1 => prop::bool::weighted(0.8).prop_map(LinkStep::Up),
        1 => (slot(), 1u8..4).prop_map(|(slot, byte)| LinkStep::Keys(slot, byte)),
        2 => select(strategies).prop_map(LinkStep::Strategy),
        1 => select(vec![0, 1, 40, 100, 576, 1280, 1400, 1500, 9000, u16::MAX])
            .prop_map(LinkStep::Mtu),
        25 => word().prop_map(LinkStep::Word),
        40 => (1usize..1400, any::<bool>(), word()).prop_map(|(len, server_first, word)| {
            LinkStep::Upload { len, server_first, word }
        }),
        40 => (
            prop_oneof![8 => 1usize..200, 1 => 1380usize..1420],
            proptest::option::weighted(0.8, (
                prop_oneof![8 => Just(0u32), 1 => 1u32..300, 1 => any::<u32>()],
                prop_oneof![20 => Just(0u32), 1 => 1u32..3],
            )),
            prop::bool::weighted(0.8),
        ).prop_map(|(len, cursor, answered)| LinkStep::Request { len, cursor, answered }),
        6 => Just(LinkStep::Reprotect),
        8 => (prop::bool::weighted(0.8), select(vec![0u8, 3, 14]), any::<bool>(), told())
            .prop_map(|(timestamps, scale, stateful, told)| {
                LinkStep::Restore { timestamps, scale, stateful, told }
            }),
        12 => told().prop_map(LinkStep::Told),
    ]
}

/// The link as user space knows the link.
#[derive(Debug)]
pub(super) struct Link {
    settings: LinkSettings,
    /// Keys of both slots, if ever used.
    keys: [Option<LinkKeys>; 2],
    counter: u64,
    /// The newest OPEN of each connection.
    opens: BTreeMap<FlowKey, Open>,
    /// How often something was restored.
    restored: u64,
}

impl Link {
    pub(super) fn new(v6: bool) -> Self {
        let settings = link::link(AckStrategy::Eager, v6);
        Self {
            settings,
            keys: [None, Some(settings.keys)],
            counter: 0,
            opens: BTreeMap::new(),
            restored: 0,
        }
    }

    fn key(&self, slot: KeySlot, signed: Signed) -> LinkKey {
        let slot = if signed == Signed::OtherSlot {
            slot.other()
        } else {
            slot
        };
        match (self.keys[usize::from(slot.number())], signed) {
            (None, _) | (_, Signed::Zero) => LinkKey([0; 16]),
            (Some(keys), Signed::Up) => keys.up,
            (Some(keys), _) => keys.down,
        }
    }

    /// The content of an OPEN that leaves.
    fn open(&self, packet: &Packet) -> Open {
        let headers = if self.settings.remote.is_ipv6() {
            48
        } else {
            28
        };
        let open = &packet.bytes[headers..][..OPEN_LEN];
        let mut up = KeySet::EMPTY;
        for keys in self.keys.iter().flatten() {
            up.put(keys.slot, keys.up);
        }
        Open::decode(open, &up).expect("the logger understands it")
    }
}

impl World<'_> {
    /// There is a logger with a known path.
    pub(super) fn begin_linked(&mut self) {
        self.set_link();
        self.both.link_up(true);
        self.probe();
    }

    fn link(&mut self) -> &mut Link {
        self.link.as_mut().expect("with a link only")
    }

    fn set_link(&mut self) {
        let settings = self.link().settings;
        self.both.set_link(settings);
    }

    fn probe(&mut self) {
        let probe = Probe {
            version: protocol::link::VERSION,
            kind: ProbeKind::Probe,
            slot: KeySlot::One,
            counter: 1,
        };
        let probe = probe.encode(&LinkKey([7; 16]));
        let packet = link::datagram(&self.link().settings, true, &probe);
        self.both.egress(packet);
    }

    pub(super) fn take_linked(&mut self, step: &LinkStep) {
        match step {
            LinkStep::Probe => self.probe(),
            LinkStep::Up(up) => self.both.link_up(*up),
            LinkStep::Keys(slot, byte) => {
                let keys = LinkKeys {
                    version: protocol::link::VERSION,
                    slot: *slot,
                    up: LinkKey([*byte; 16]),
                    down: LinkKey([0x80 | *byte; 16]),
                };
                let link = self.link();
                link.keys[usize::from(slot.number())] = Some(keys);
                link.settings.keys = keys;
                self.set_link();
            }
            LinkStep::Strategy(strategy) => {
                self.link().settings.strategy = *strategy;
                self.set_link();
            }
            LinkStep::Mtu(mtu) => {
                self.link().settings.mtu = *mtu;
                self.set_link();
            }
            LinkStep::Reprotect => {
                let key = self.both.key;
                self.both.reprotect(key);
            }
            LinkStep::Word(word) => self.hear(word),
            LinkStep::Upload {
                len,
                server_first,
                word,
            } => self.upload(*len, *server_first, word),
            LinkStep::Request {
                len,
                cursor,
                answered,
            } => (0..3).for_each(|_| self.request(*len, *cursor, *answered)),
            LinkStep::Restore {
                timestamps,
                scale,
                stateful,
                told,
            } => {
                self.restore(*timestamps, *scale, *stateful);
                self.told(told);
            }
            LinkStep::Told(told) => self.told(told),
        }
    }

    fn restore(&mut self, timestamps: bool, scale: u8, stateful: bool) {
        if self.known().is_some_and(|flow| flow.closed_ns == 0) {
            self.take(self.which, &Step::Abandon);
        }
        if self.known().is_some() {
            return;
        }
        let link = self.link();
        link.restored += 1;
        let id = FlowId(1000 * link.restored); // numbers are not used again
        let (key, c, s) = (self.both.key, self.both.c, self.both.s);
        let (recorded, summary) = link::restored::record(key, (c, s), id);
        let mut flow = restored_flow(&recorded, &summary, 4096);
        flow.server.timestamps = timestamps;
        flow.client.window_scale = scale;
        flow.log.stateful = stateful;
        self.both.restore(key, &flow);
    }

    fn told(&mut self, told: &Told) {
        let Some(flow) = self.known() else { return };
        let spec = segment(flow.log.stable - told.back, flow.client.ack + told.ahead)
            .window(told.window)
            .payload(&vec![b't'; told.len]);
        let spec = match told.ages {
            Some((tsval, tsecr)) => spec.timestamps(
                flow.client.tsval.wrapping_add(tsval),
                flow.server.tsval.wrapping_add(tsecr),
            ),
            None => spec.options(&[]),
        };
        self.client(&spec);
        let heard = flow.log.restored != Restored::Not
            && self
                .known()
                .is_some_and(|now| now.log.restored != flow.log.restored);
        self.heard += u32::from(heard);
    }

    fn upload(&mut self, len: usize, server_first: bool, word: &Word) {
        let Some(flow) = self.known() else { return };
        let (seq, ack) = (flow.client.nxt, flow.server.nxt);
        let spec = segment(seq, ack)
            .timestamps(flow.client.tsval, flow.server.tsval)
            .payload(&vec![b'u'; len]);
        self.client(&spec);
        if !server_first {
            self.hear(word);
        }
        let flow = self.known().unwrap_or(flow);
        let from = match flow.mode {
            Mode::Observed => flow.server.nxt,
            _ => flow.splice.nxt,
        };
        let spec = segment(from, flow.client.nxt)
            .timestamps(flow.server.tsval + 1, flow.client.tsval)
            .window(500);
        self.server(&spec);
        if server_first {
            self.hear(word);
        }
    }

    fn request(&mut self, len: usize, cursor: Option<(u32, u32)>, answered: bool) {
        let Some(flow) = self.known() else { return };
        let before = self.both.model.counters().mirror_skipped;
        let spec = segment(flow.client.nxt, flow.server.nxt)
            .timestamps(flow.client.tsval, flow.server.tsval)
            .payload(&vec![b'r'; len]);
        self.client(&spec);
        self.left += self.both.model.counters().mirror_skipped - before;
        let Some(flow) = self.known() else { return };
        if let Some((below, other)) = cursor {
            let isn = flow.client.isn + other;
            self.both
                .advance_cursor(self.both.key, isn, flow.client.nxt - below);
        }
        let from = match flow.mode {
            Mode::Observed => flow.server.nxt,
            _ => flow.splice.nxt,
        };
        let answer = segment(from, flow.client.nxt)
            .timestamps(flow.server.tsval + 1, flow.client.tsval)
            .window(500);
        let answer = match answered {
            true => answer.payload(b"answer"),
            false => answer,
        };
        self.server(&answer);
    }

    /// A SYN-ACK went to the logger.
    pub(super) fn note_open(&mut self, packet: &Packet) {
        let link = self.link();
        let open = link.open(packet);
        link.opens.insert(open.key, open);
    }

    /// The logger has recorded both initial sequence numbers.
    pub(super) fn grant(&mut self) {
        let slot = self.link().settings.keys.slot;
        self.hear(&Word {
            all: true,
            more: 0,
            ranges: Vec::new(),
            after: None,
            newer: 1,
            slot,
            signed: Signed::Down,
            stranger: 0,
            odd: None,
            spoilt: None,
            cut: 0,
        });
    }

    fn hear(&mut self, word: &Word) {
        let (key, flow) = (self.both.key, self.known());
        let (c, link) = (self.both.c, self.link());
        let number = flow.as_ref().map(|flow| flow.id);
        let number = number.or(link.opens.get(&key).map(|open| open.flow));
        let recorded = match &flow {
            Some(flow) if word.all => flow.client.nxt,
            Some(flow) => flow.log.stable,
            None => c + 1,
        };
        let stable = recorded + word.more.cast_unsigned();
        let counter = link.counter.wrapping_add_signed(word.newer);
        if word.newer.unsigned_abs() < 1000 {
            link.counter = counter.max(link.counter);
        }
        let mut ranges = [None; 3];
        for (place, (from, len)) in ranges.iter_mut().zip(&word.ranges) {
            let from = stable + from.cast_unsigned();
            *place = Some((from, from + len.cast_unsigned()));
        }
        let ack = Ack {
            version: protocol::link::VERSION,
            slot: word.slot,
            counter,
            flow: FlowId(number.map_or(1, |n| n.0).wrapping_add(word.stranger)),
            key,
            stable_seq: stable,
            ranges,
        };
        let secret = link.key(word.slot, word.signed);
        let mut bytes = ack.encode(&secret);
        if let Some((at, byte)) = word.odd {
            bytes[at] = if at == COUNT { byte | 4 } else { byte };
            let signed = bytes.len() - 8;
            let tag = secret.tag(&bytes[..signed]);
            bytes[signed..].copy_from_slice(&tag.to_le_bytes());
        }
        let before = word.after.map(|more| Ack {
            counter: ack.counter.wrapping_sub(1),
            stable_seq: recorded + more.cast_unsigned(),
            ranges: [None; 3],
            ..ack
        });
        let before = before.map(|before| before.encode(&secret));
        let bytes = [before.as_ref().map_or(&[][..], |before| before), &bytes].concat();
        let mut packet = link::datagram(&link.settings, false, &bytes);
        if let Some((at, bit)) = word.spoilt {
            let len = packet.bytes.len();
            packet.bytes[at % len] ^= 1 << bit;
        }
        let whole = packet.bytes.len();
        packet
            .bytes
            .truncate(whole.saturating_sub(word.cut).max(V6_HEADER));
        self.both.ingress(packet);
        self.both.events();
    }
}
