//! The durable log under a logger that dies at any step, on a storage that keeps what it likes of
//! what was not made durable, or fails.

use std::{net::SocketAddr, time::Duration};

use logger::{
    Desk,
    durable::{Change, Job, Order, RETRY, SLOW, restore, write},
    link::{AckPolicy, Greeting, Outbox, Peer, Sessions},
};
use proptest::prelude::*;
use protocol::{
    control::{Attach, Replay, Request, Response},
    link::LinkKey,
    mirror::{CloseReason, FrameKind, MirrorFrame},
};
use rand::{Rng, seq::SliceRandom};
use segments::{Log, Storage, simulated::Simulated};
use wire::{ChecksumMode, FlowId, SeqNumber};

use crate::host::{Host, attach};

const INSTANCE: u64 = 5;
const KEEP: Duration = Duration::from_secs(600);
const PID: Desk = Desk::new(1);
/// So small that it is full often.
const SEGMENT: u64 = 3000;

fn peer() -> Peer {
    Peer {
        via: 0,
        local: [192, 0, 2, 9].into(),
        address: SocketAddr::from(([192, 0, 2, 1], 1000)),
    }
}

/// A logger with a log, and its serving host, which outlives it.
struct World {
    sessions: Sessions,
    out: Outbox,
    log: Log<Simulated>,
    /// What the writer is about.
    writing: Option<Job>,
    host: Host,
    /// Lives of the logger.
    lives: u64,
    now: Duration,
    /// What the logger told of its log.
    told: Vec<Change>,
    /// What was acknowledged is durable.
    durable: bool,
    next_flow: u64,
    attach: Attach,
}

impl World {
    fn new(seed: u64, replay: Replay) -> Self {
        let attach = Attach {
            replay,
            ..attach(INSTANCE, 1000)
        };
        let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
        let restored = restore(Simulated::default(), &mut sessions, SEGMENT);
        let restored = restored.expect("it is empty");
        let mut out = Outbox::with_log(restored.ledger);
        let (kept, keys) = sessions.attach(&attach, peer(), &greeting(1), &mut out);
        assert!(!kept);
        Self {
            sessions,
            out,
            log: restored.log,
            writing: None,
            host: Host::new(keys, seed),
            lives: 1,
            now: Duration::ZERO,
            told: Vec::new(),
            durable: true,
            next_flow: 1,
            attach,
        }
    }

    /// Datagrams arrive, and the batch is at its end.
    fn batch(&mut self, datagrams: &[Vec<u8>]) {
        for datagram in datagrams {
            self.sessions
                .take(peer(), datagram, self.now, &mut self.out);
        }
        self.sessions.settle(self.now, &mut self.out);
        self.order();
    }

    fn order(&mut self) {
        match self.out.next_order(&self.sessions, self.now) {
            Some(Order::Write(job)) => {
                assert!(self.writing.is_none(), "it has something to do");
                self.writing = Some(job);
            }
            Some(Order::Restart) => match self.begin_anew() {
                Ok(()) => {
                    self.out.restarted(self.log.current(), &self.sessions);
                    self.order();
                }
                Err(why) => self.told.extend(self.out.failed(why, self.now)),
            },
            None => {}
        }
        self.hear();
    }

    fn begin_anew(&mut self) -> Result<(), String> {
        let mut storage = self.log.storage().clone();
        storage.restart();
        remove_all(&mut storage);
        self.log = Log::open(storage, |_| ()).map_err(|(_, error)| error.to_string())?;
        Ok(())
    }

    /// The ACKs that were let go.
    fn hear(&mut self) {
        for datagram in self.out.datagrams() {
            self.host.hear(datagram.bytes());
        }
        self.out.clear();
    }

    /// The writer does what it was told, and may then have more to do.
    fn write(&mut self) {
        let Some(mut job) = self.writing.take() else {
            return;
        };
        let change = match write(&mut self.log, &mut job) {
            Ok(()) => self.out.written(job.batch),
            Err(failure) => {
                let mut storage = self.log.storage().clone();
                storage.restart();
                remove_all(&mut storage);
                self.durable = false;
                self.out.failed(failure.to_string(), self.now)
            }
        };
        self.durable |= change == Some(Change::Durable);
        self.told.extend(change);
        self.hear();
        self.order();
    }

    /// All that waits is written.
    fn write_all(&mut self) {
        while self.writing.is_some() {
            self.write();
        }
    }

    /// The logger dies, with its host or without, and comes back.
    fn die(&mut self, with_host: bool) {
        let mut storage = self.log.storage().clone();
        let random = &mut self.host.random;
        if with_host {
            storage.crash(|below| random.random_range(0..below.max(1)));
        } else {
            storage.restart();
        }
        self.lives += 1;
        self.sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
        let restored = restore(storage, &mut self.sessions, SEGMENT).expect("readable");
        assert_eq!(restored.damaged, 0);
        self.log = restored.log;
        self.out = Outbox::with_log(restored.ledger);
        self.writing = None;
        let greeting = greeting(self.lives);
        let (_, keys) = self
            .sessions
            .attach(&self.attach, peer(), &greeting, &mut self.out);
        self.host.use_keys(keys);
        self.check();
    }

    /// What was acknowledged is there, and what is there is what was sent.
    fn check(&mut self) {
        let session = self.sessions.get_mut(INSTANCE).expect("attached");
        for (flow, connection) in &self.host.connections {
            let Some(stable) = session.journal().stable_seq(*flow) else {
                assert!(
                    !connection.opened,
                    "flow {flow} was acknowledged and is unknown"
                );
                continue;
            };
            let told = connection.client_isn + 1 + u32::try_from(connection.stable).expect("short");
            assert!(stable.at_or_after(told), "flow {flow}: {stable} < {told}");
            let Some(logger_start) = start(session.journal(), *flow) else {
                continue;
            };
            let at = logger_start
                .distance_from(connection.client_isn + 1)
                .expect("after it");
            let at = usize::try_from(at).expect("short");
            let mut bytes = Vec::new();
            let read = session
                .journal()
                .read(*flow, logger_start, usize::MAX, &mut bytes);
            read.expect("it begins there");
            assert!(connection.data[at..].starts_with(&bytes), "flow {flow}");
            assert!(at + bytes.len() >= connection.stable.min(connection.data.len()));
        }
    }

    fn close(&mut self, flow: FlowId) {
        self.host.connections.remove(&flow);
        self.frame(flow, FrameKind::Closed(CloseReason::Finished), &[]);
    }

    /// The server answers each client, and they all hear it.
    fn answer(&mut self) {
        let mut said = Vec::new();
        for (flow, connection) in &mut self.host.connections {
            let (from, packet) = connection.answer(b"an answer");
            said.push((*flow, from, packet));
        }
        for (flow, from, packet) in said {
            self.frame(flow, FrameKind::Outstream { from }, &packet);
        }
    }

    fn frame(&mut self, flow: FlowId, kind: FrameKind, packet: &[u8]) {
        let mut bytes = Vec::new();
        MirrorFrame {
            kind,
            flow_id: flow,
            timestamp_ns: 0,
            server_nxt: SeqNumber(0),
            server_ack: SeqNumber(0),
            packet_len: u32::try_from(packet.len()).expect("short"),
            unfinished: false,
            packet,
        }
        .encode(&mut bytes)
        .expect("a frame");
        self.ask(&Request::Frames { bytes });
    }

    fn ask(&mut self, request: &Request) -> Vec<Response> {
        let session = self.sessions.get_mut(INSTANCE).expect("attached");
        let answers = session.answer(PID, request, &mut self.out);
        self.order();
        answers
    }

    fn connect(&mut self, len: usize) -> FlowId {
        let flow = self.next_flow;
        self.next_flow += 1;
        self.host.connect(flow, len);
        FlowId(flow)
    }

    /// What a serving host sends in a while, as it arrives.
    fn traffic(&mut self) {
        let mut datagrams = Vec::new();
        for _ in 0..3 {
            datagrams.extend(self.host.datagrams(700, 3000));
        }
        datagrams.shuffle(&mut self.host.random);
        self.batch(&datagrams);
    }
}

fn greeting(life: u64) -> Greeting {
    let number = u8::try_from(life % 100).expect("small");
    Greeting {
        up: LinkKey([number; 16]),
        down: LinkKey([number + 100; 16]),
        counter: life * 1_000_000,
    }
}

fn start(journal: &journal::Journal, flow: FlowId) -> Option<SeqNumber> {
    match journal.summary(flow)?.state {
        journal::State::Protected(record) => Some(record.start.instream),
        journal::State::Unprotected(_) => None,
    }
}

fn remove_all(storage: &mut Simulated) {
    for number in storage.list().expect("it can be told") {
        storage.remove(number).expect("removed");
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Connect(u16),
    Traffic,
    Write,
    /// The oldest connection ends.
    Close,
    Hold(bool),
    Answer,
    Die {
        with_host: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u16..5000).prop_map(Step::Connect),
        8 => Just(Step::Traffic),
        8 => Just(Step::Write),
        1 => Just(Step::Close),
        1 => any::<bool>().prop_map(Step::Hold),
        3 => Just(Step::Answer),
        1 => any::<bool>().prop_map(|with_host| Step::Die { with_host }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// The logger may die at any step: what was acknowledged is there afterwards.
    #[test]
    fn what_was_acknowledged_outlives_the_logger(
        seed: u64,
        turn: bool,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(seed, if turn { Replay::Turn } else { Replay::Connection });
        for step in steps.into_iter().chain([Step::Die { with_host: true }]) {
            match step {
                Step::Connect(len) => drop(world.connect(usize::from(len))),
                Step::Traffic => world.traffic(),
                Step::Write => world.write(),
                Step::Close => {
                    if let Some(flow) = world.host.connections.keys().next().copied() {
                        world.close(flow);
                    }
                }
                Step::Hold(hold) => drop(world.ask(&Request::HoldTurns { hold })),
                Step::Answer => world.answer(),
                Step::Die { with_host } => world.die(with_host),
            }
        }
        // And it goes on.
        for _ in 0..3000 {
            if world.host.is_recorded() {
                break;
            }
            world.traffic();
            world.write_all();
        }
        prop_assert!(world.host.is_recorded());
        world.die(true);
    }

    /// The storage fails at any step: nobody waits for it, and when it works again everything gets
    /// into a new log.
    #[test]
    fn a_storage_that_fails_holds_nothing_up(
        seed: u64,
        fails_after in 0u64..200,
        closes: bool,
    ) {
        let mut world = World::new(seed, Replay::Connection);
        world.log.storage().fail_after(Some(fails_after));
        for _ in 0..4 {
            world.connect(4000);
        }
        let mut rounds = 0;
        while !world.host.is_recorded() {
            rounds += 1;
            prop_assert!(rounds < 3000, "it is held up");
            world.traffic();
            world.write();
        }
        world.write_all();
        if closes {
            world.close(FlowId(1));
        }
        if !world.durable {
            prop_assert!(matches!(world.told[..], [Change::Volatile(_)]));
            world.now += RETRY;
            world.connect(3000);
            while !world.host.is_recorded() || !world.durable {
                world.traffic();
                world.write();
            }
            prop_assert_eq!(world.told.last(), Some(&Change::Durable));
        }
        world.write_all();
        world.die(true);
        prop_assert!(world.host.is_recorded());
    }
}

proptest! {
    /// Entries with right checksums that no program of ours has written, behind those of one: they
    /// are read without a panic, or taken for damage.
    #[test]
    fn any_entries_are_read(
        foreign in prop::collection::vec((0u8..40, 0u64..3, any::<Vec<u8>>()), 1..20),
    ) {
        let mut world = World::new(1, Replay::Turn);
        for _ in 0..2 {
            world.connect(2000);
        }
        for _ in 0..4 {
            world.traffic();
            world.write_all();
        }
        let mut batch = segments::Batch::default();
        for (kind, flow, bytes) in foreign {
            batch.add(|out| {
                out.push(kind);
                out.extend_from_slice(&INSTANCE.to_le_bytes());
                out.extend_from_slice(&flow.to_le_bytes());
                out.extend_from_slice(&bytes);
            });
        }
        world.log.append(&mut batch).expect("room");
        let mut storage = world.log.storage().clone();
        storage.restart();
        let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
        prop_assert!(restore(storage, &mut sessions, SEGMENT).is_ok());
    }
}

#[test]
fn an_acknowledgement_waits_until_it_is_durable() {
    let mut world = World::new(1, Replay::Connection);
    let flow = world.connect(1000);
    world.traffic();
    assert!(!world.host.connections[&flow].opened);
    world.write_all();
    assert!(world.host.connections[&flow].opened);
    // One commit for all that came while one was under way.
    let send = |world: &mut World, at| {
        let connection = &world.host.connections[&flow];
        let packet = connection.packet(at, 100, ChecksumMode::Full);
        let datagram = world.host.segment(connection, &packet, false);
        world.batch(&[datagram]);
    };
    for at in [0, 100, 200, 300] {
        send(&mut world, at);
    }
    let stable = |world: &World| world.host.connections[&flow].stable;
    assert_eq!(stable(&world), 0);
    world.write();
    assert_eq!(stable(&world), 100);
    world.write();
    assert_eq!(stable(&world), 400);
    assert!(world.writing.is_none());
    // What is durable already needs no commit.
    send(&mut world, 300);
    assert!(world.writing.is_none());
    assert!(world.out.datagrams().is_empty());
}

#[test]
fn a_log_does_not_grow_beyond_what_it_is_needed_for() {
    let mut world = World::new(1, Replay::Connection);
    let idle = world.connect(500);
    let mut most = 0;
    for _ in 0..100 {
        let busy = world.connect(3000);
        while !world.host.is_recorded() {
            world.traffic();
            world.write_all();
        }
        world.close(busy);
        world.write_all();
        most = most.max(world.log.storage().len());
    }
    let recorded = world.sessions.get(INSTANCE).expect("attached");
    let recorded = usize::try_from(recorded.journal().statistics().held).expect("small");
    let segment = usize::try_from(SEGMENT).expect("small");
    assert!(most < 2 * (recorded + 3000) + 8 * segment, "{most} bytes");
    world.die(true);
    assert!(world.host.connections[&idle].is_recorded());
}

#[test]
fn a_record_larger_than_a_segment_is_copied_while_it_grows() {
    let mut world = World::new(1, Replay::Connection);
    let large = world.connect(200_000);
    while world.host.connections[&large].stable < 60_000 {
        world.traffic();
        world.write_all();
    }
    for _ in 0..200 {
        let busy = world.connect(3000);
        while !world.host.connections[&busy].is_recorded() {
            world.traffic();
            world.write();
        }
        world.close(busy);
        if world.host.random.random_bool(0.3) {
            world.die(true);
        }
    }
    let oldest = world.log.storage().list().expect("listed")[0];
    assert!(oldest > 0, "its first segments are gone");
    world.die(true);
    while !world.host.is_recorded() {
        world.traffic();
        world.write_all();
    }
    world.die(true);
}

#[test]
fn a_commit_that_takes_too_long_is_not_waited_for() {
    let mut world = World::new(1, Replay::Connection);
    let flow = world.connect(1000);
    world.traffic();
    assert!(world.writing.is_some());
    assert_eq!(world.out.due_at(), Some(SLOW));
    assert_eq!(world.out.check_log(SLOW / 2), None);
    world.now = SLOW;
    let slow = world.out.check_log(SLOW);
    assert!(matches!(slow, Some(Change::Volatile(_))));
    world.hear();
    assert!(world.host.connections[&flow].opened);
    // The writer has not answered: it is not told anything else.
    world.now += 2 * RETRY;
    while !world.host.is_recorded() {
        world.traffic();
    }
    world.write();
    assert_eq!(world.told, [], "it was too late");
    world.write_all();
    world.traffic();
    world.write_all();
    assert_eq!(world.told, [Change::Durable]);
    world.die(true);
    assert!(world.host.is_recorded());
}

#[test]
fn damage_costs_the_connections_that_it_may_concern() {
    let mut world = World::new(1, Replay::Connection);
    let damaged = world.connect(5000);
    while !world.host.is_recorded() {
        world.traffic();
        world.write_all();
    }
    let first = world.log.storage().list().expect("listed")[0];
    assert!(world.log.current() > first + 1, "it is sealed");
    let later = world.connect(5000);
    while !world.host.is_recorded() {
        world.traffic();
        world.write_all();
    }
    let mut storage = world.log.storage().clone();
    storage.restart();
    storage.damage(first, 1000);
    let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
    let restored = restore(storage, &mut sessions, SEGMENT).expect("readable");
    assert_eq!(restored.damaged, 1);
    let journal = sessions.get(INSTANCE).expect("found").journal();
    assert_eq!(journal.stable_seq(damaged), None);
    let whole = &world.host.connections[&later];
    let end = whole.client_isn + 1 + u32::try_from(whole.whole()).expect("short");
    assert_eq!(journal.stable_seq(later), Some(end));
}

#[test]
fn a_service_that_is_forgotten_is_not_found_again() {
    let mut world = World::new(1, Replay::Connection);
    world.connect(100);
    while !world.host.is_recorded() {
        world.traffic();
        world.write_all();
    }
    world.sessions.detach(INSTANCE, world.now);
    world.now += KEEP;
    assert_eq!(world.sessions.tidy(world.now, &mut world.out).len(), 1);
    world.order();
    world.write_all();
    let mut storage = world.log.storage().clone();
    storage.restart();
    let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
    let restored = restore(storage, &mut sessions, SEGMENT).expect("readable");
    assert_eq!((restored.sessions, restored.connections), (0, 0));
}

/// A turn that begins while the record of the last one is being copied: the copy has to begin anew.
#[test]
fn turns_go_on_while_they_are_copied() {
    let mut world = World::new(1, Replay::Turn);
    let flows: Vec<FlowId> = (0..3).map(|_| world.connect(300_000)).collect();
    world.traffic();
    world.write_all();
    let mut starts = std::collections::BTreeSet::new();
    let mut round = 0;
    while !world.host.is_recorded() {
        round += 1;
        // In order: the next piece that is not recorded, of a connection after the other.
        let flow = flows[round % 3];
        let session = world.sessions.get(INSTANCE).expect("attached");
        let stable = session.journal().stable_seq(flow).expect("recorded");
        starts.extend(start(session.journal(), flow).map(|seq| seq.0));
        let connection = &world.host.connections[&flow];
        let at = stable.distance_from(connection.client_isn + 1);
        let at = usize::try_from(at.expect("after it")).expect("short");
        if at < connection.whole() {
            let packet = connection.packet(at, 700, ChecksumMode::Full);
            let datagram = world.host.segment(connection, &packet, false);
            world.batch(&[datagram]);
        }
        // An answer that was not written when the logger died is missing for good, and with it the
        // end of that turn: so mostly all is written before.
        match world.host.random.random_range(0..400) {
            0 => world.die(true),
            1..8 => {
                world.write_all();
                world.die(true);
            }
            8..80 => world.answer(),
            80..200 => world.write(),
            _ => {}
        }
    }
    assert!(starts.len() > 50, "{} turns", starts.len());
    world.write_all();
    world.die(true);
}
