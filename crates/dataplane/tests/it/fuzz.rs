//! Differential fuzzing: random but plausible lives of a few connections, through the kernel's
//! programs and the model; everything that can be seen of the two is compared after each step.
//!
//! A failure prints the seed and the shortest history found. Again, or more of it:
//! `OUTLIVE_FUZZ_SEED=… OUTLIVE_FUZZ_CASES=… cargo test -p dataplane --test it fuzz`.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use dataplane::SplicePoint;
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use ssw::{DEFAULT_FIELDS, Flow, Mode, Unprotected, expectations};
use wire::{Flags, FlowKey, SeqNumber};

use crate::harness::*;

/// Histories in CI, and steps of each.
const CASES: u32 = 120;
const STEPS: std::ops::Range<usize> = 20..80;

/// Counters that grow in any reasonable number of plausible histories.
const REACHED: [&str; 9] = [
    "mirrored",
    "heads",
    "gated_out",
    "gated_in",
    "self_acks",
    "translated_out",
    "translated_in",
    "untracked",
    "stripped",
];

/// Initial sequence numbers of a client, its server and that server's successors.
#[derive(Debug, Clone)]
struct Connection {
    c: u32,
    s: u32,
    later: u32,
    v6: bool,
}

/// A segment of an existing connection; numbers are relative to what its end would send.
#[derive(Debug, Clone)]
struct Sent {
    seq: i32,
    ack: i32,
    flags: Flags,
    window: u16,
    options: Vec<u8>,
    len: usize,
    /// A byte of the payload that is not what it should be.
    spoilt: Option<usize>,
    mark: u32,
    jumbo: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Syn(Vec<u8>, u16),
    SynAck(Vec<u8>, u16),
    Open,
    Client(Sent),
    Server(Sent),
    /// The server says the outstream from the beginning of its socket again, this piece of it.
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
    /// All connections are spliced to a new server.
    Crash {
        expect: bool,
    },
    Abandon,
    Unprotect,
    Barrier(u64),
    Sweep,
    Silence,
    Heartbeat,
}

fn near() -> impl Strategy<Value = i32> {
    prop_oneof![20 => Just(0), 4 => -80i32..80, 1 => -70_000i32..70_000, 1 => any::<i32>()]
}

fn any_options() -> impl Strategy<Value = Vec<u8>> {
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

fn syn_like() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (800u32..1000, 0u8..16).prop_map(|(tsval, scale)| syn_options(tsval, 0, scale)),
        1 => Just([&syn_options(810, 0, 3)[..], &[30, 4, 0, 0x81]].concat()),
        1 => any_options(),
    ]
}

fn sent() -> impl Strategy<Value = Sent> {
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
        any::<u16>(),
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

fn step() -> impl Strategy<Value = Step> {
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
        4 => any::<bool>().prop_map(|expect| Step::Crash { expect }),
        1 => Just(Step::Abandon),
        1 => Just(Step::Unprotect),
        1 => any::<u64>().prop_map(Step::Barrier),
        1 => Just(Step::Sweep),
        1 => Just(Step::Silence),
        3 => Just(Step::Heartbeat),
    ]
}

fn connection() -> impl Strategy<Value = Connection> {
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

fn outstream(from: SeqNumber, len: usize, spoilt: Option<usize>) -> Vec<u8> {
    let len = u32::try_from(len).unwrap();
    let mut bytes: Vec<u8> = (0..len).map(|i| said(from + i)).collect();
    if let Some(byte) = spoilt.and_then(|at| bytes.get_mut(at)) {
        *byte ^= 0x55;
    }
    bytes
}

struct World<'k> {
    both: &'k mut Both,
    connections: Vec<Connection>,
}

impl World<'_> {
    /// Make `which` the connection of the vocabulary.
    fn turn_to(&mut self, which: usize) {
        let connection = &self.connections[which];
        let number = u16::try_from(which).unwrap();
        self.both.key = other_key(connection.v6, number);
        (self.both.c, self.both.s) = (SeqNumber(connection.c), SeqNumber(connection.s));
    }

    fn known(&self) -> Option<Flow> {
        self.both.model.flow(&self.both.key).cloned()
    }

    fn later(&self, which: usize) -> SeqNumber {
        SeqNumber(self.connections[which].later)
    }

    fn take(&mut self, which: usize, step: &Step) {
        self.turn_to(which);
        let (c, s) = (self.both.c, self.both.s);
        match step {
            Step::Syn(options, window) => {
                let spec = self.both.syn().options(options).window(*window);
                self.client(&spec);
            }
            Step::SynAck(options, window) => self.syn_ack(which, options, *window),
            Step::Open => {
                self.client(&self.both.syn());
                self.server(&self.both.syn_ack());
                self.client(&segment(c + 1, s + 1).timestamps(901, 900));
            }
            Step::Client(sent) => {
                let flow = self.known().unwrap_or_default();
                let known = flow.server.answered;
                let (seq, ack) = if known {
                    (flow.client.nxt, flow.server.nxt)
                } else {
                    (c + 1, s + 1)
                };
                let spec = sent.spec(seq, ack, SeqNumber(0));
                self.client(&spec);
            }
            Step::Server(sent) => {
                let flow = self.known().unwrap_or_default();
                let (seq, delta) = match flow.mode {
                    Mode::Observed if flow.server.answered => (flow.server.nxt, 0),
                    Mode::Observed => (s + 1, 0),
                    _ => (flow.splice.nxt, flow.splice.delta_seq),
                };
                let ack = if flow.server.answered {
                    flow.client.nxt
                } else {
                    c + 1
                };
                let spec = sent.spec(seq, ack, SeqNumber(delta));
                self.server(&spec);
            }
            Step::Replay {
                from,
                len,
                spoilt,
                fin,
                jumbo,
            } => {
                let Some(flow) = self.known() else { return };
                let seq = flow.splice.outstream + *from;
                let spec = segment(seq - flow.splice.delta_seq, flow.client.nxt)
                    .flags(if *fin { FIN_ACK } else { ACK })
                    .timestamps(910, 901)
                    .payload(&outstream(seq, *len, *spoilt));
                self.server(&Spec {
                    jumbo: *jumbo,
                    ..spec
                });
            }
            Step::Splice {
                instream,
                outstream,
                expect,
            } => {
                self.splice(c + *instream, s + 1 + *outstream, *expect);
            }
            Step::Crash { expect } => {
                self.both.gate();
                self.both.new_incarnation();
                for which in 0..self.connections.len() {
                    self.turn_to(which);
                    self.splice(self.both.c, self.both.s + 1, *expect);
                    self.syn_ack(which, &syn_options(700, 901, LATER_SCALE), 60_000);
                }
            }
            _ => self.control(step),
        }
    }

    fn control(&mut self, step: &Step) {
        let key = self.both.key;
        match step {
            Step::Gate => self.both.gate(),
            Step::Incarnation => self.both.new_incarnation(),
            Step::Recovered => self.both.recovered(),
            Step::Silence => self.both.fall_silent(),
            Step::Heartbeat => self.both.heartbeat(),
            Step::Abandon => drop(self.both.abandon(key)),
            Step::Unprotect => drop(self.both.unprotect(key, Unprotected::TotalLimit)),
            Step::Barrier(token) => drop(self.both.barrier(*token)),
            Step::Sweep => drop(self.both.sweep()),
            _ => {}
        }
    }

    /// Of the first server for an embryo, of a later one for a flow.
    fn syn_ack(&mut self, which: usize, options: &[u8], window: u16) {
        let (seq, ack) = match self.known() {
            Some(flow) if flow.mode != Mode::Observed => {
                (self.later(which), flow.splice.instream + 1)
            }
            _ => (self.both.s, self.both.c + 1),
        };
        let spec = segment(seq, ack)
            .flags(SYN_ACK)
            .options(options)
            .window(window);
        self.server(&spec);
    }

    fn splice(&mut self, instream: SeqNumber, outstream_begins: SeqNumber, expect: bool) {
        let Some(flow) = self.known() else { return };
        if expect {
            let len = flow
                .server
                .nxt
                .distance_from(outstream_begins)
                .unwrap_or(0)
                .min(4000);
            let record = outstream(outstream_begins, usize::try_from(len).unwrap(), None);
            let chunks = expectations(&[(outstream_begins, record)], DEFAULT_FIELDS);
            self.both.expect(flow.id, chunks.into_iter().collect());
        }
        let point = SplicePoint {
            instream,
            outstream: outstream_begins,
            verify_end: flow.server.nxt,
        };
        self.both.splice_at(self.both.key, point);
    }

    fn client(&mut self, spec: &Spec) {
        let FlowKeyEnds { client, server } = ends(self.both.key);
        let out = self.both.ingress(spec.packet(client, server));
        self.both.notes();
        self.both.events();
        drop(out);
    }

    fn server(&mut self, spec: &Spec) {
        let FlowKeyEnds { client, server } = ends(self.both.key);
        let out = self.both.egress(spec.packet(server, client));
        if out.verdict == RedirectIngress {
            self.both.ingress(out.packet); // where it comes in next
        }
    }
}

struct FlowKeyEnds {
    client: std::net::SocketAddr,
    server: std::net::SocketAddr,
}

fn ends(key: FlowKey) -> FlowKeyEnds {
    FlowKeyEnds {
        client: key.client(),
        server: key.server(),
    }
}

impl Sent {
    /// `delta` takes the segment's own numbers to the client's.
    fn spec(&self, seq: SeqNumber, ack: SeqNumber, delta: SeqNumber) -> Spec {
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

fn number_from(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

#[test]
fn kernel_and_model_agree_on_any_history() {
    let fresh = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs())
    };
    let seed = number_from("OUTLIVE_FUZZ_SEED").unwrap_or_else(fresh);
    let cases = number_from("OUTLIVE_FUZZ_CASES").map_or(CASES, |n| u32::try_from(n).unwrap());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 600,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let taken = Cell::new(0usize);
    let reached = RefCell::new(BTreeMap::new());
    let histories = (vec(connection(), 4), vec((0usize..4, step()), STEPS));
    let result = runner.run(&histories, |(connections, steps)| {
        let mut both = Both::on(Leased::new(), &settings());
        let mut world = World {
            both: &mut both,
            connections,
        };
        for which in 0..3 {
            world.take(which, &Step::Open);
        }
        for (which, step) in &steps {
            world.take(*which, step);
        }
        taken.set(taken.get() + steps.len());
        for name in REACHED {
            *reached.borrow_mut().entry(name).or_insert(0) += both.counted(name);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("OUTLIVE_FUZZ_SEED={seed} OUTLIVE_FUZZ_CASES={cases}\n{error}");
    }
    println!("{} steps, seed {seed}: {:?}", taken.get(), reached.borrow());
    if cases >= CASES {
        let never: Vec<_> = reached
            .take()
            .into_iter()
            .filter(|(_, n)| *n == 0)
            .collect();
        assert!(
            never.is_empty(),
            "histories that reach too little: {never:?}, seed {seed}"
        );
    }
}
