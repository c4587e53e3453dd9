//! Differential fuzzing: random but plausible histories of a few connections, through the kernel's
//! programs and the model; all visible state of both is compared after each step.
//!
//! A failure prints the seed and the shortest history found. To repeat, or to try more:
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
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use south_model::{DEFAULT_FIELDS, Flow, Mode, UnprotectedReason, expectations};
use wire::{FlowKey, SeqNumber};

use crate::harness::*;
use linked::Link;
use steps::{Connection, Step, connection, linked_step, outstream, step};

mod linked;
mod steps;

/// Histories in CI, and steps of each.
const CASES: u32 = 120;
/// Rounds of [`CASES`] histories, until each counter of interest has grown.
const MAX_ROUNDS: u32 = 10;
const STEPS: std::ops::Range<usize> = 20..80;

/// Counters that grow in any reasonable number of plausible histories.
const REACHED: [&str; 10] = [
    "mirrored",
    "heads",
    "gated_out",
    "gated_in",
    "self_acks",
    "translated_out",
    "translated_in",
    "untracked",
    "stripped",
    "fenced",
];

/// With digests.
const REACHED_DIGESTING: [&str; 1] = ["replay_held"];

/// With a log link, these too.
const REACHED_LINKED: [&str; 7] = [
    "link_acks",
    "link_forged",
    "link_heads",
    "link_opens",
    "acks_clamped",
    "acks_withheld",
    "acks_made",
];

struct World<'k> {
    both: &'k mut Both,
    connections: Vec<Connection>,
    link: Option<Link>,
    /// The connection of the vocabulary.
    which: usize,
    /// How often a client was heard of whose connection was restored, or needed to be no more.
    heard: u32,
    /// How many segments were not mirrored.
    left: u64,
}

impl World<'_> {
    /// Make `which` the connection of the vocabulary.
    fn turn_to(&mut self, which: usize) {
        self.which = which;
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
                if self.link.is_some() {
                    self.grant();
                }
                self.client(&segment(c + 1, s + 1).timestamps(901, 900));
            }
            Step::Client(sent) => {
                let flow = self.known().unwrap_or_default();
                let known = flow.server.synack_seen;
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
                    Mode::Observed if flow.server.synack_seen => (flow.server.nxt, 0),
                    Mode::Observed => (s + 1, 0),
                    _ => (flow.splice.nxt, flow.splice.delta_seq),
                };
                let ack = if flow.server.synack_seen {
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
            Step::Graft {
                instream,
                outstream,
                window,
            } => {
                let point = SplicePoint {
                    instream: c + *instream,
                    outstream: s + 1 + *outstream,
                    verify_end: s + 1 + *outstream,
                };
                self.both.graft_at(self.both.key, point, *window);
            }
            Step::Want { of, spoilt } => {
                let digest = self.known().unwrap_or_default().digest;
                let known = [digest.turn, digest.acked, digest.sent, digest.now];
                let mut digest = known[*of];
                digest.sum ^= u64::from(*spoilt);
                self.both.want(self.both.key, digest);
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
            Step::Link(step) => self.take_linked(step),
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
            Step::Lease(goes_on) => self.both.lease(*goes_on),
            Step::Abandon => drop(self.both.abandon(key)),
            Step::Unprotect => drop(self.both.unprotect(key, UnprotectedReason::TotalLimit)),
            Step::Barrier(token) => drop(self.both.barrier(*token)),
            Step::Sweep => drop(self.both.sweep()),
            _ => {}
        }
    }

    /// Of the first server for a half-open connection, of a later one for a flow.
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
            let chunks = expectations(&[(outstream_begins, record)], &[], DEFAULT_FIELDS);
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
        let spec = Spec {
            jumbo: spec.jumbo && self.link.is_none(), // the loader sees to it that there are none
            ..spec.clone()
        };
        let out = self.both.ingress(spec.packet(client, server));
        self.both.copies();
        self.both.frames();
        self.both.events();
        drop(out);
    }

    fn server(&mut self, spec: &Spec) {
        // A mirrored segment: only `Both::copies()` supplies the state besides the mark.
        if self.link.is_some() && spec.mark == MARK + SEGMENT {
            return;
        }
        let FlowKeyEnds { client, server } = ends(self.both.key);
        let out = self.both.egress(spec.packet(server, client));
        if out.verdict == Verdict::Redirect && out.packet.mark == MARK + TO_LOGGER {
            self.note_open(&out.packet);
        }
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

fn number_from(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

/// Lives of connections, in ring mode or with a log link over one of the IP versions.
fn agree_on_any_history(
    link: Option<bool>,
    digests: Option<u32>,
    steps: BoxedStrategy<Step>,
    wanted: &[&[&'static str]],
) {
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
        max_shrink_iters: number_from("OUTLIVE_FUZZ_SHRINK")
            .map_or(600, |n| u32::try_from(n).unwrap()),
        ..Config::default()
    };
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let taken = Cell::new(0usize);
    let reached = RefCell::new(BTreeMap::new());
    let histories = (vec(connection(), 4), vec((0usize..4, steps), STEPS));
    let live = |(connections, steps): (Vec<Connection>, Vec<(usize, Step)>)| {
        let mut both = if link.is_some() {
            Both::linked_and_digesting()
        } else if let Some(rate) = digests {
            Both::on(Leased::digesting(rate), &digesting_settings(rate))
        } else {
            Both::on(Leased::new(), &settings())
        };
        let mut world = World {
            both: &mut both,
            link: link.map(Link::new),
            connections,
            which: 0,
            heard: 0,
            left: 0,
        };
        if link.is_some() {
            world.begin_linked();
        }
        for which in 0..3 {
            world.take(which, &Step::Open);
        }
        for (which, step) in &steps {
            world.take(*which, step);
        }
        taken.set(taken.get() + steps.len());
        for name in wanted.iter().copied().flatten() {
            *reached.borrow_mut().entry(*name).or_insert(0) += world.both.counted(name);
        }
        if link.is_some() {
            *reached.borrow_mut().entry("restored").or_insert(0) += u64::from(world.heard);
            *reached.borrow_mut().entry("mirror skipped").or_insert(0) += world.left;
        }
        Ok(())
    };
    for _ in 0..MAX_ROUNDS {
        let mut runner = TestRunner::new_with_rng(config.clone(), rng);
        rng = runner.new_rng();
        if let Err(error) = runner.run(&histories, live) {
            panic!("OUTLIVE_FUZZ_SEED={seed} OUTLIVE_FUZZ_CASES={cases}\n{error}");
        }
        println!("{} steps, seed {seed}: {:?}", taken.get(), reached.borrow());
        if cases < CASES || reached.borrow().values().all(|n| *n > 0) {
            return;
        }
    }
    let mut never = reached.take();
    never.retain(|_, n| *n == 0);
    panic!("histories that reach too little: {never:?}, seed {seed}");
}

#[test]
fn kernel_and_model_agree_on_any_history() {
    agree_on_any_history(None, None, step().boxed(), &[&REACHED]);
}

#[test]
fn kernel_and_model_agree_on_any_history_that_is_digested() {
    let wanted = [&REACHED[..], &REACHED_DIGESTING];
    agree_on_any_history(None, Some(u32::MAX), step().boxed(), &wanted);
}

#[test]
fn kernel_and_model_agree_on_any_history_that_is_sampled() {
    let wanted = [&REACHED[..], &REACHED_DIGESTING, &["sampled"]];
    agree_on_any_history(None, Some(0), step().boxed(), &wanted);
}

#[test]
fn kernel_and_model_agree_on_any_history_of_a_log_link() {
    agree_on_any_history(
        Some(false),
        None,
        linked_step().boxed(),
        &[&REACHED, &REACHED_LINKED],
    );
}

#[test]
fn kernel_and_model_agree_on_any_history_of_a_log_link_over_ipv6() {
    agree_on_any_history(
        Some(true),
        None,
        linked_step().boxed(),
        &[&REACHED, &REACHED_LINKED],
    );
}
