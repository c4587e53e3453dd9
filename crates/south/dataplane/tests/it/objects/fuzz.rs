//! Differential fuzzing: random but plausible histories of a few connections, through the programs and the model.
//!
//! A failure prints the seed and the shortest history found. To repeat, or to try more:
//! `OUTLIVE_FUZZ_SEED=… OUTLIVE_FUZZ_CASES=… cargo test -p dataplane --test it objects::fuzz`.

use std::{
    cell::RefCell,
    time::{SystemTime, UNIX_EPOCH},
};

use objects::{
    flow::{Flow, Mode, ResponseEnd},
    plane::{Counter, MARK_FROM_SERVER, MARK_QUEUED, StoreKind, Verdict},
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use wire::{Flags, SeqNumber};

use super::lab::*;
use crate::harness::*;

const CASE_COUNT: u32 = 100;
/// Rounds of [`CASE_COUNT`] histories, until each counter has grown.
const ROUND_COUNT_MAX: u32 = 10;
const ACTION_COUNT: std::ops::Range<usize> = 20..80;
const CONNECTION_COUNT: u16 = 3;
const FLOOD_COUNT: u32 = 60;

/// Numbers of both sides, at random or near the end of the sequence space.
#[derive(Debug, Clone)]
struct Ends {
    v6: bool,
    c: u32,
    s: u32,
}

#[derive(Debug, Clone)]
enum Action {
    Open,
    /// Of a client without timestamps.
    OpenBare,
    Syn {
        isn: u32,
        options: usize,
    },
    SynAck {
        isn: u32,
        options: usize,
    },
    Client(Sent),
    Server(Sent),
    /// A request, and the head of its response with so many bytes of body.
    Ask(u64),
    /// The rest of a response in one segment, and its acknowledgement.
    Finish,
    /// Segments of the server without an answer of the client.
    Burst,
    /// A segment of a connection that the member does not know.
    Stray(u32),
    /// Almost as many of these as the kernel gets in a round.
    Flood(u32),
    StrayRound,
    Splice {
        ahead: u32,
        delta: u32,
    },
    Mode(Mode),
    Close,
    /// A segment of a connection that another member serves.
    Forward,
    Gate,
    Incarnation(u32),
    Lease(bool),
    Quiescence(bool),
    Store(StoreKind),
    /// The store confirms the record of the turn under way, or of a turn before.
    Stored(u32),
    /// That turn gets no record.
    GiveUp(u32),
    /// So many bytes of the response have left.
    Sent(u64),
    Slot(u8),
}

/// A segment, relative to the numbers that the flow has.
#[derive(Debug, Clone)]
struct Sent {
    back: u32,
    ack_back: u32,
    flags: Flags,
    payload: Vec<u8>,
    ticks: u32,
    stamps: Stamps,
    blocks: bool,
    window: u16,
    /// From user space.
    is_own: bool,
}

#[derive(Debug, Clone, Copy)]
enum Stamps {
    /// With the newest value.
    Newest,
    /// With the value that was echoed before.
    Echoed,
    Random(u32),
    Missing,
}

fn payloads() -> BoxedStrategy<Vec<u8>> {
    let texts: [&[u8]; 25] = [
        b"",
        b"",
        REQUEST_BYTES,
        REQUEST_BYTES,
        b"GET / HTTP/1.1\r\nRange: bytes=5-\r\n\r\n",
        b"HEAD / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 8\r\n\r\nbody",
        b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET / HTT",
        b"\x16\x03\x01",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\nETag: \"a\"\r\n\r\nbody",
        b"HTTP/1.1 206 P\r\nContent-Length: 5\r\nContent-Range: bytes 5-9/10\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 304 N\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Trods: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-TRODS: 7\r\nContent-Length: 9\r\n\r\nbo",
        b"HTTP/1.1 404 N\r\nX-TRODS: 7\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nX-TRODS: 7\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"1a",
        b"1;a=b\r\nx\r\n1F\r\n",
        b"\r\n0\r\n\r\n",
        b"0\r\n\r\n",
    ];
    let texts = select(texts.to_vec()).prop_map(<[u8]>::to_vec);
    prop_oneof![4 => texts, 1 => (1_usize..1400).prop_map(|len| vec![b'x'; len])].boxed()
}

fn sent() -> impl Strategy<Value = Sent> {
    let flags = [
        ACK,
        ACK,
        ACK,
        ACK,
        ACK,
        FIN_ACK,
        RST,
        RST.union(ACK),
        SYN,
        SYN_ACK,
    ];
    let back = || prop_oneof![8 => Just(0_u32), 1 => 1_u32..40, 1 => any::<u32>()];
    let ack_back = || prop_oneof![8 => Just(0_u32), 2 => 1_u32..40, 1 => any::<u32>()];
    let stamps = prop_oneof![
        8 => Just(Stamps::Newest),
        3 => Just(Stamps::Echoed),
        1 => any::<u32>().prop_map(Stamps::Random),
        1 => Just(Stamps::Missing),
    ];
    let ticks = prop_oneof![4 => 0_u32..40, 1 => any::<u32>()];
    (
        (back(), ack_back(), select(flags.to_vec()), payloads()),
        (
            ticks,
            stamps,
            any::<bool>(),
            any::<u16>(),
            prop::bool::weighted(0.2),
        ),
    )
        .prop_map(
            |((back, ack_back, flags, payload), (ticks, stamps, blocks, window, is_own))| Sent {
                back,
                ack_back,
                flags,
                payload,
                ticks,
                stamps,
                blocks,
                window,
                is_own,
            },
        )
}

fn action() -> impl Strategy<Value = Action> {
    let isn = || prop_oneof![Just(0_u32), any::<u32>()];
    let modes = select(vec![Mode::Served, Mode::Reviving, Mode::Foreign]);
    prop_oneof![
        6 => Just(Action::Open),
        3 => Just(Action::OpenBare),
        1 => (isn(), 0_usize..4).prop_map(|(isn, options)| Action::Syn { isn, options }),
        1 => (isn(), 0_usize..4).prop_map(|(isn, options)| Action::SynAck { isn, options }),
        20 => sent().prop_map(Action::Client),
        20 => sent().prop_map(Action::Server),
        12 => (0_u64..3000).prop_map(Action::Ask),
        12 => Just(Action::Finish),
        2 => Just(Action::Burst),
        2 => (0_u32..4, 0_u32..9).prop_map(|(kind, bit)| Action::Stray(kind << 24 | bit)),
        1 => (0_u32..4).prop_map(|kind| Action::Flood(kind << 24 | 1)),
        1 => Just(Action::StrayRound),
        1 => (0_u32..3000, any::<u32>()).prop_map(|(ahead, delta)| Action::Splice { ahead, delta }),
        1 => modes.prop_map(Action::Mode),
        2 => Just(Action::Close),
        1 => Just(Action::Forward),
        1 => Just(Action::Gate),
        4 => prop_oneof![3 => Just(1), 1 => Just(2)].prop_map(Action::Incarnation),
        3 => prop_oneof![6 => Just(true), 1 => Just(false)].prop_map(Action::Lease),
        1 => any::<bool>().prop_map(Action::Quiescence),
        4 => select(vec![StoreKind::Indexed, StoreKind::Indexed, StoreKind::Unindexed, StoreKind::None])
            .prop_map(Action::Store),
        10 => prop_oneof![6 => Just(0), 1 => Just(1)].prop_map(Action::Stored),
        1 => prop_oneof![6 => Just(0), 1 => Just(1)].prop_map(Action::GiveUp),
        2 => (24_000_u64..25_000).prop_map(Action::Sent),
        1 => (0_u8..16).prop_map(Action::Slot),
    ]
}

fn ends() -> impl Strategy<Value = Ends> {
    let number = || prop_oneof![any::<u32>(), u32::MAX - 3000..u32::MAX];
    (any::<bool>(), number(), number()).prop_map(|(v6, c, s)| Ends { v6, c, s })
}

/// Options of a SYN: the usual ones, and ever fewer.
fn options_of_syn(which: usize, tsval: u32) -> Vec<u8> {
    let all = syn_options(tsval, 0, CLIENT_SCALE);
    match which {
        0 => all,
        1 => all[..16].to_vec(),
        2 => all[..4].to_vec(),
        _ => [&[30, 4, 0, 0][..], &all].concat(),
    }
}

struct History<'l> {
    lab: &'l mut Lab,
    ends: Vec<Ends>,
    tsval: u32,
}

impl History<'_> {
    fn take(&mut self, which: u16, action: &Action) {
        let ends = self.ends[usize::from(which)].clone();
        self.lab.connect(ends.v6, which, ends.c, ends.s);
        let known = self.lab.model.flow(&self.lab.key).cloned();
        match action {
            Action::Open => self.open(known.is_some()),
            Action::OpenBare if known.is_none() => self.lab.shake_hands_without_timestamps(),
            Action::OpenBare => {}
            Action::Syn { isn, options } => {
                let options = options_of_syn(*options, self.tsval);
                let syn = segment(self.lab.c + *isn, SeqNumber(0)).flags(SYN);
                self.lab.client(syn.options(&options));
            }
            Action::SynAck { isn, options } => {
                let options = options_of_syn(*options, self.tsval);
                let spec = segment(self.lab.s + *isn, self.lab.c + *isn + 1).flags(SYN_ACK);
                self.lab.server(spec.options(&options));
            }
            Action::Client(sent) => self.client(known.as_ref(), sent),
            Action::Server(sent) => self.server(known.as_ref(), sent),
            Action::Ask(body_len) => self.ask(*body_len),
            Action::Finish => self.finish(),
            Action::Burst => self.burst(),
            Action::Stray(flaw) => self.stray(*flaw),
            Action::Flood(flaw) => (0..FLOOD_COUNT).for_each(|_| self.stray(*flaw)),
            Action::StrayRound => self.lab.next_stray_round(),
            Action::Splice { ahead, delta } => self.splice(known, *ahead, *delta),
            Action::Mode(mode) => {
                if let Some(flow) = known {
                    self.lab.write_flow(
                        &Flow {
                            mode: *mode,
                            ..flow
                        },
                        true,
                    );
                }
            }
            Action::Close => self.lab.close(),
            Action::Forward => self.forward(),
            Action::Gate => self.lab.gate(),
            Action::Incarnation(number) => self.lab.new_incarnation(*number),
            Action::Lease(goes_on) => self.lab.lease(*goes_on),
            Action::Quiescence(goes_on) => self.lab.quiescence(*goes_on),
            Action::Store(kind) => self.lab.store(*kind),
            Action::Stored(before) => {
                let number = known.map_or(0, |flow| flow.turn.number);
                self.lab.stored(number.wrapping_sub(*before));
            }
            Action::GiveUp(before) => {
                let number = known.map_or(0, |flow| flow.turn.number);
                self.lab.given_up(number.wrapping_sub(*before));
            }
            Action::Sent(count) => {
                if let Some(mut flow) = known {
                    flow.turn.sent = *count;
                    flow.turn.end = ResponseEnd::After(*count + 3000);
                    self.lab.write_flow(&flow, true);
                }
            }
            Action::Slot(number) => self.lab.slot(*number),
        }
    }

    /// The handshake, if nothing stands in the way.
    fn open(&mut self, is_known: bool) {
        if is_known {
            return;
        }
        self.lab.client(self.lab.syn());
        let answer = self.lab.server(self.lab.syn_ack());
        let (ack, value) = {
            let answer = answer.segment();
            let value = answer.timestamps().map_or(0, |stamps| stamps.value);
            (answer.seq() + 1, value)
        };
        let third = segment(self.lab.c + 1, ack).timestamps(11, value);
        self.lab.client(third);
    }

    fn options(&mut self, known: Option<&Flow>, sent: &Sent, is_of_client: bool) -> Vec<u8> {
        self.tsval = self.tsval.wrapping_add(sent.ticks);
        let echo = match (sent.stamps, known) {
            (Stamps::Missing, _) => return Vec::new(),
            (Stamps::Random(echo), _) => echo,
            (_, None) => 0,
            (Stamps::Newest, Some(_)) if is_of_client => self.lab.value(),
            (_, Some(flow)) if is_of_client => {
                let echoed = flow.echoes.parts().echoed;
                objects::timestamp::Timestamp::value(echoed, flow.states.agreed)
            }
            (_, Some(flow)) => flow.client.tsval,
        };
        let stamps = timestamps(self.tsval, echo);
        if !sent.blocks {
            return stamps;
        }
        let blocks = [&[5, 18][..], &[7; 16]].concat();
        [blocks, stamps].concat()
    }

    fn client(&mut self, known: Option<&Flow>, sent: &Sent) {
        let (seq, ack) = known.map_or((self.lab.c + 1, self.lab.s + 1), |flow| {
            (flow.client.nxt, flow.server.nxt)
        });
        let spec = segment(seq - sent.back, ack - sent.ack_back)
            .flags(sent.flags)
            .window(sent.window)
            .payload(&sent.payload)
            .mark(if sent.is_own { MARK + MARK_QUEUED } else { 0 });
        let options = self.options(known, sent, true);
        self.lab.client(spec.options(&options));
    }

    fn server(&mut self, known: Option<&Flow>, sent: &Sent) {
        let (seq, ack) = known.map_or((self.lab.s + 1, self.lab.c + 1), |flow| {
            (flow.server.nxt - flow.server.delta, flow.client.nxt)
        });
        let spec = segment(seq - sent.back, ack - sent.ack_back)
            .flags(sent.flags)
            .window(sent.window)
            .payload(&sent.payload)
            .mark(if sent.is_own {
                MARK + MARK_FROM_SERVER
            } else {
                0
            });
        let options = self.options(known, sent, false);
        let out = self.lab.server(spec.options(&options));
        if out.verdict == Verdict::RedirectIngress {
            let packet = other_packet(self.lab, out.packet.bytes);
            let mark = out.packet.mark;
            self.lab.ingress(south_model::Packet { mark, ..packet });
        }
    }

    fn ask(&mut self, body_len: u64) {
        self.tsval = self.tsval.wrapping_add(1);
        for text in [REQUEST_BYTES.to_vec(), head(body_len)] {
            if self.lab.model.flow(&self.lab.key).is_none() {
                return;
            }
            if text == REQUEST_BYTES {
                self.lab
                    .client(self.lab.next_of_client(self.tsval).payload(&text));
            } else {
                self.lab
                    .server(self.lab.next_of_server(self.tsval).payload(&text));
            }
        }
    }

    fn burst(&mut self) {
        for _ in 0..35 {
            if self.lab.model.flow(&self.lab.key).is_none() {
                return;
            }
            self.tsval = self.tsval.wrapping_add(1 << 20);
            self.lab
                .server(self.lab.next_of_server(self.tsval).payload(b"x"));
        }
    }

    /// `flaw`: bits by which the echo differs from an echo of the pool.
    fn stray(&mut self, flaw: u32) {
        self.lab.connect(false, CONNECTION_COUNT, 0, 0);
        let echo = agreed_value(self.lab, POOL_KEY) ^ flaw;
        let spec = segment(self.lab.c, self.lab.s).timestamps(self.tsval, echo);
        self.lab.client(spec.payload(REQUEST_BYTES));
    }

    fn forward(&mut self) {
        self.lab.connect(false, CONNECTION_COUNT + 1, 0, 0);
        self.lab.forward();
        let spec = segment(self.lab.c, self.lab.s).timestamps(self.tsval, 0);
        self.lab.client(spec.payload(REQUEST_BYTES));
    }

    fn finish(&mut self) {
        let Some(flow) = self.lab.model.flow(&self.lab.key) else {
            return;
        };
        let left = flow
            .turn
            .response_len()
            .unwrap_or(0)
            .saturating_sub(flow.turn.sent);
        let left = usize::try_from(left.min(1400)).expect("small");
        self.tsval = self.tsval.wrapping_add(1);
        let spec = self
            .lab
            .next_of_server(self.tsval)
            .payload(&vec![b'x'; left]);
        self.lab.server(spec);
        if self.lab.model.flow(&self.lab.key).is_some() {
            self.lab.client(self.lab.next_of_client(self.tsval));
        }
    }

    /// The client has bytes that the server's socket is still to send.
    fn splice(&mut self, known: Option<Flow>, ahead: u32, delta: u32) {
        let Some(mut flow) = known else { return };
        flow.server.delta = delta;
        flow.server.nxt += ahead;
        flow.server.floor = flow.server.nxt;
        flow.client.ack = flow.server.nxt;
        self.lab.write_flow(&flow, true);
    }
}

fn number_from(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

fn agree_on_any_history(lab: Lab) {
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH);
    let fresh = || fresh().map_or(0, |time| time.as_secs());
    let seed = number_from("OUTLIVE_FUZZ_SEED").unwrap_or_else(fresh);
    let cases = number_from("OUTLIVE_FUZZ_CASES");
    let cases = cases.map_or(CASE_COUNT, |count| u32::try_from(count).expect("a number"));
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 600,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let actions = vec((0..CONNECTION_COUNT, action()), ACTION_COUNT);
    let histories = (vec(ends(), usize::from(CONNECTION_COUNT)), actions);
    let lab = RefCell::new(lab);
    let reached = RefCell::new(Counter::ALL.map(|_| 0_u64));
    for _ in 0..ROUND_COUNT_MAX {
        let mut runner = TestRunner::new_with_rng(config.clone(), rng);
        rng = runner.new_rng();
        let outcome = runner.run(&histories, |(ends, actions)| {
            let lab = &mut *lab.borrow_mut();
            lab.clear();
            let mut history = History {
                lab,
                ends,
                tsval: 1000,
            };
            for which in 0..CONNECTION_COUNT {
                history.take(which, &Action::Open);
            }
            for (which, action) in &actions {
                history.take(*which, action);
            }
            for (sum, (counter, _)) in reached.borrow_mut().iter_mut().zip(Counter::ALL) {
                *sum += history.lab.counted(counter);
            }
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("OUTLIVE_FUZZ_SEED={seed} OUTLIVE_FUZZ_CASES={cases}\n{error}");
        }
        let never = reached.borrow().contains(&0);
        if cases < CASE_COUNT || !never {
            println!("seed {seed}: {:?}", reached.borrow());
            return;
        }
    }
    panic!(
        "histories that reach too little: {:?}, seed {seed}",
        reached.borrow()
    );
}

#[test]
fn programs_and_model_agree_on_any_history() {
    alone(agree_on_any_history);
}

#[test]
fn programs_and_model_agree_on_any_history_of_lasting_objects() {
    let settings = dataplane::MemberSettings {
        is_immutable: true,
        version_check: http1::version::VersionCheck::Modified,
        takes_inputs: true,
        takes_chunks: true,
        ..member_settings()
    };
    alone_with(&settings, agree_on_any_history);
}

/// Clients' packets come in UDP, from the balancer's program; forwarded segments leave in UDP.
#[test]
fn programs_and_model_agree_on_any_history_in_udp() {
    let settings = dataplane::MemberSettings {
        encapsulated_at: Some([0xfd00, 0, 0, 1, 0, 0, 0, 0x11].into()),
        ..member_settings()
    };
    alone_with(&settings, agree_on_any_history);
}
