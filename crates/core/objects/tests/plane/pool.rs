//! The members, the network, and user space of each member.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use http1::version::VersionCheck;
use objects::{
    PoolKey, call,
    deferred::DeferredResponses,
    flow::{Flow, Mode},
    judge::JudgeRules,
    plane::{
        CopyKind, Event, MARK_FROM_SERVER, MARK_QUEUED, MARK_SERVER_SPACE, Packet, Plane,
        SegmentCopy, Settings, StoreKind, Verdict,
    },
    queue::{self, RequestQueues, ServerTerms},
    record::Record,
    revive::{Action, PositionError, Reason, Revival, Rules, SETTLE_TIME, WITHHOLD_MAX},
    timestamp::{ClientOptions, State},
    turns::{Turns, Writer},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use wire::{ChecksumMode, FlowKey, IpPacket, Segment};

use crate::{client::Client, server::Server};

const POOL_KEY: PoolKey = PoolKey([7; 16]);
const MARK_BASE: u32 = 0x0f70_0000;
/// Longer than any download takes, with all its deaths.
const TICK_COUNT_MAX: u64 = 200_000;
/// Time from a death to the first packet at the next server. Longer than any way through the network: a segment that is
/// older than the client's newest timestamp, and arrives behind the 31 steps of a revival, would look newer (PAWS).
const RESTART_TICKS: u64 = 50;
/// In the year 2026: the objects are of no known age.
const UNIX_NOW: Duration = Duration::from_secs(1_790_000_000);
const LEASE_MAX: Duration = Duration::from_secs(1 << 30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    /// The host loses power; another member goes on.
    Host,
    /// The server crashes, and is started on the same host.
    Server,
}

/// When the client sends the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asking {
    /// The response is whole, and the request before is acknowledged.
    Acknowledged,
    /// The response is whole.
    AtOnce,
    /// All requests at the beginning, each in a segment, or joined in one.
    Pipelined { joined: bool },
}

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// Lengths of the objects that the client downloads, one after the other.
    pub(crate) lengths: Vec<usize>,
    pub(crate) deaths: Vec<(u64, Death)>,
    pub(crate) loss_percent: u32,
    /// Longest way of a packet through the network.
    pub(crate) delay_ticks: u64,
    pub(crate) v6: bool,
    pub(crate) asking: Asking,
    pub(crate) client_has_timestamps: bool,
    /// The longest delay of a store, if the pool has a store.
    pub(crate) store: Option<u64>,
    /// The store lists records: clients are called, and keep no request.
    pub(crate) has_index: bool,
    /// The server makes each response from another input.
    pub(crate) is_dynamic: bool,
}

impl Scenario {
    const fn store_kind(&self) -> StoreKind {
        match self.store {
            None => StoreKind::None,
            Some(_) if self.has_index => StoreKind::Indexed,
            Some(_) => StoreKind::Unindexed,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiver {
    Client,
    Pool,
}

/// The store, with one record at most: a scenario has one connection.
#[derive(Default)]
struct Store {
    record: Option<Record>,
    /// Records on the way, with the time of writing, and of the confirmation.
    writes: Vec<(u64, u64, Record)>,
    call_at: u64,
    generation: u32,
    pub(crate) count: u32,
}

struct Member {
    plane: Plane,
    server: Option<Server>,
    restart_at: u64,
    incarnation: u32,
    revival: Option<Revival>,
    turns: Turns,
    deferred: DeferredResponses,
    queues: RequestQueues,
}

pub(crate) struct Pool {
    scenario: Scenario,
    key: FlowKey,
    rng: StdRng,
    now: u64,
    client: Client,
    member: Member,
    store: Store,
    network: BTreeMap<(u64, u64), (Receiver, Vec<u8>)>,
    serial: u64,
    pub(crate) revived: u32,
    settled_at: Duration,
    /// Of these, with a record of the store.
    pub(crate) revived_by_record: u32,
    /// The client was reset, with good reason.
    pub(crate) is_reset: bool,
}

fn flow_key(v6: bool) -> FlowKey {
    let address = |v4: &str, v6_text: &str| if v6 { v6_text } else { v4 }.parse().expect("one");
    let client = address("10.0.0.1:40000", "[fd00::1]:40000");
    FlowKey::new(client, address("10.0.0.10:80", "[fd00::10]:80"))
}

impl Pool {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let mut rng = StdRng::seed_from_u64(scenario.seed);
        let key = flow_key(scenario.v6);
        let client = Client::new(key, rng.random(), scenario);
        let mut pool = Self {
            scenario: scenario.clone(),
            key,
            now: 0,
            client,
            member: Member {
                plane: plane(key, scenario.is_dynamic),
                server: None,
                restart_at: 0,
                incarnation: 1,
                revival: None,
                turns: Turns::default(),
                deferred: DeferredResponses::default(),
                queues: RequestQueues::new(scenario.is_dynamic),
            },
            store: Store::default(),
            network: BTreeMap::new(),
            serial: 0,
            settled_at: Duration::ZERO,
            revived: 0,
            revived_by_record: 0,
            is_reset: false,
            rng,
        };
        pool.member.plane.set_store(scenario.store_kind());
        pool.start_server();
        pool
    }

    fn time(&self) -> Duration {
        Duration::from_millis(1 + self.now)
    }

    fn start_server(&mut self) {
        let seed = self.rng.random();
        let Scenario {
            lengths,
            is_dynamic,
            ..
        } = &self.scenario;
        self.member.server = Some(Server::new(self.key, lengths, *is_dynamic, seed));
        self.member.plane.new_incarnation(self.member.incarnation);
    }

    /// Runs until the client has everything.
    pub(crate) fn run(mut self) -> Self {
        while !self.client.is_done() && !self.is_reset {
            assert!(
                self.now < TICK_COUNT_MAX,
                "stuck at {:?}",
                self.client.progress()
            );
            self.die();
            let packets = self.client.on_tick(self.now);
            self.send(Receiver::Pool, packets);
            let server = self.member.server.as_mut();
            let packets = server.map_or_else(Vec::new, |server| server.on_tick(self.now));
            self.leave(packets);
            self.user_space();
            self.deliver();
            self.now += 1;
        }
        self
    }

    fn die(&mut self) {
        let now = self.now;
        let deaths = self.scenario.deaths.clone();
        for (_, death) in deaths.iter().filter(|(at, _)| *at == now) {
            if !self.scenario.client_has_timestamps {
                self.settled_at = self.time() + SETTLE_TIME;
            }
            match death {
                Death::Host => {
                    self.member.plane = plane(self.key, self.scenario.is_dynamic);
                    self.member.plane.set_quiescence(LEASE_MAX);
                    self.member.plane.set_store(self.scenario.store_kind());
                    self.store.call_at = now + RESTART_TICKS;
                    self.forget_confirmations();
                    self.member.server = None;
                    self.member.restart_at = now + RESTART_TICKS;
                    self.member.revival = None;
                }
                Death::Server => {
                    self.forget_confirmations();
                    self.member.plane.gate();
                    self.member.incarnation += 1;
                    self.store.call_at = now + RESTART_TICKS;
                    self.member.server = None;
                    self.member.restart_at = now + RESTART_TICKS;
                    if self.member.revival.take().is_some() {
                        self.member.plane.forget_flow(&self.key);
                        self.member.plane.set_quiescence(LEASE_MAX);
                    }
                }
            }
        }
        if self.member.server.is_none() && now >= self.member.restart_at {
            self.start_server();
        }
    }

    fn send(&mut self, receiver: Receiver, packets: Vec<Vec<u8>>) {
        for packet in packets {
            let is_lost = self.rng.random_ratio(self.scenario.loss_percent, 100);
            let delay = self.rng.random_range(1..=self.scenario.delay_ticks);
            self.serial += 1;
            if !is_lost {
                let at = (self.now + delay, self.serial);
                self.network.insert(at, (receiver, packet));
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(first) = self.network.first_entry()
            && first.key().0 <= self.now
        {
            let (_, order) = *first.key();
            let (receiver, packet) = first.remove();
            match receiver {
                Receiver::Client => {
                    let packets = self.client.on_packet(&packet, order, self.now);
                    self.send(Receiver::Pool, packets);
                }
                Receiver::Pool => self.arrive(packet),
            }
        }
    }

    fn packet(&self, bytes: Vec<u8>) -> Packet {
        Packet {
            bytes,
            mark: 0,
            interface: 1,
            checksum: ChecksumMode::Full,
        }
    }

    /// A packet of the client at the member.
    fn arrive(&mut self, bytes: Vec<u8>) {
        let mut packet = self.packet(bytes);
        let verdict = self.member.plane.ingress(&mut packet, self.time());
        while let Some(sent) = self.member.plane.take_sent() {
            self.send(Receiver::Client, vec![sent.bytes]);
        }
        if verdict == Verdict::Next {
            self.reach_server(&packet.bytes);
        }
    }

    fn reach_server(&mut self, bytes: &[u8]) {
        let Some(server) = self.member.server.as_mut() else {
            return;
        };
        let answers = server.on_packet(bytes, self.now);
        self.leave(answers);
    }

    /// Packets of the server.
    fn leave(&mut self, packets: Vec<Vec<u8>>) {
        for bytes in packets {
            let mut packet = self.packet(bytes);
            match self.member.plane.egress(&mut packet, self.time()) {
                Verdict::Next => self.send(Receiver::Client, vec![packet.bytes]),
                Verdict::RedirectIngress => {
                    assert_eq!(packet.mark, MARK_BASE + MARK_SERVER_SPACE);
                    let verdict = self.member.plane.ingress(&mut packet, self.time());
                    assert_eq!(verdict, Verdict::Next);
                    self.reach_server(&packet.bytes);
                }
                Verdict::Drop | Verdict::Withheld | Verdict::RedirectNeighbour => {}
            }
        }
    }

    /// The host is dead: a record on its way may be written, and nobody hears of it.
    fn forget_confirmations(&mut self) {
        self.member.turns.clear();
        self.member.deferred.clear();
        self.member.queues.clear();
        for (_, confirmed_at, _) in &mut self.store.writes {
            *confirmed_at = u64::MAX;
        }
    }

    /// What the crate `member` does with the store.
    fn keep_records(&mut self) {
        let Some(delay) = self.scenario.store else {
            return;
        };
        let now = self.time();
        while let Some(copy) = self.member.plane.take_beginning() {
            let packet = IpPacket::parse_captured(&copy.packet, copy.packet_len).expect("one");
            let segment = Segment::of(&packet).expect("a segment");
            match copy.kind {
                CopyKind::Request => {
                    let due = now + Duration::from_millis(5);
                    self.member.turns.on_request(copy.key, &segment, due);
                }
                _ => self.member.turns.on_response(copy.key, &segment, now),
            }
        }
        self.store.generation += 1;
        let writer = Writer {
            owner: 1,
            generation: self.store.generation,
        };
        let plane = &self.member.plane;
        let flow = |key| Ok::<_, Infallible>(plane.flow(&key).cloned());
        let Ok(records) = self.member.turns.take_due(now, writer, flow);
        for (_, record) in records {
            self.write(record, delay);
        }
        self.confirm();
        self.release();
        let calls = self.scenario.has_index && self.member.server.is_some();
        if calls && self.now >= self.store.call_at {
            self.store.call_at = self.now + 500;
            let key = self.key;
            let serves = |flow: &Flow| {
                flow.mode == Mode::Served && flow.incarnation == self.member.incarnation
            };
            let is_served = self.member.plane.flow(&key).is_some_and(serves);
            let record = self.store.record.as_ref().filter(|_| !is_served);
            let packet = record.and_then(|record| call::packet(key, &POOL_KEY, record));
            self.send(Receiver::Client, packet.into_iter().collect());
        }
    }

    /// Responses that have waited for their records.
    fn release(&mut self) {
        let (plane, key) = (&self.member.plane, self.key);
        let (turns, is_written) = (&self.member.turns, !self.store.writes.is_empty());
        let flow = |key| Ok::<_, Infallible>(plane.flow(&key).cloned());
        let may_be_stored = |key: &FlowKey| turns.knows(key) || is_written;
        let now = self.time();
        let Ok(released) = self.member.deferred.take_due(now, flow, may_be_stored);
        for response in released {
            if let Some(turn) = response.given_up {
                self.is_reset |= turn.must_reset;
                self.member
                    .plane
                    .give_up_record(&key, turn.number, turn.request_start);
            }
            for bytes in response.packets {
                self.leave_from_server(bytes);
            }
        }
    }

    fn write(&mut self, record: Record, delay: u64) {
        self.store.count += 1;
        let written = self.now + self.rng.random_range(0..=delay);
        let confirmed = written + self.rng.random_range(0..=delay);
        self.store.writes.push((written, confirmed, record));
    }

    fn confirm(&mut self) {
        let (now, key) = (self.now, self.key);
        for (written, confirmed, record) in &self.store.writes {
            let newest = self.store.record.as_ref().map_or(0, |it| it.generation);
            if *written <= now && record.generation > newest {
                self.store.record = Some(record.clone());
            }
            if *confirmed <= now {
                self.member.deferred.wake(&key);
                let turn = &record.turns[0];
                let options = record.options.rounded();
                let options = options.unwrap_or(ClientOptions::of_number(0));
                let state = State::stored(&POOL_KEY, &key, record.slot, options, turn.number);
                let (number, start) = (turn.number, turn.request_start);
                self.member
                    .plane
                    .set_stored(&key, number, start, state.bits());
            }
        }
        self.store.writes.retain(|(written, confirmed, _)| {
            now < *confirmed && (now < *written || *confirmed < u64::MAX)
        });
    }

    /// What the crate `member` does.
    fn user_space(&mut self) {
        self.keep_records();
        let now = self.time();
        while let Some(copy) = self.member.plane.take_copy() {
            match copy.kind {
                CopyKind::Deferred => self.member.deferred.add(copy, now),
                CopyKind::Queued => {
                    let segment = copy.segment().expect("a segment");
                    if let Some(flow) = self.member.plane.flow(&copy.key) {
                        self.member.queues.add(copy.key, flow, &segment, now);
                    }
                }
                _ => self.take(&copy),
            }
        }
        self.pass_requests();
        if let Some(revival) = &mut self.member.revival
            && revival.deadline() <= now
        {
            let actions = revival.on_time(now);
            self.perform(actions);
        }
    }

    /// Requests whose turn has come.
    fn pass_requests(&mut self) {
        while let Some(event) = self.member.plane.take_event() {
            match event {
                Event::TurnOver { key } | Event::Unprotected { key, .. } => {
                    self.member.queues.wake(&key);
                }
                Event::Answered { key } => {
                    let flow = self.member.plane.flow(&key);
                    let flow = flow.filter(|_| self.member.queues.knows(&key));
                    let called = flow.and_then(|flow| queue::call(key, flow));
                    called.into_iter().for_each(|it| self.leave_from_server(it));
                }
                _ => {}
            }
        }
        let plane = &self.member.plane;
        let flow = |key| Ok::<_, Infallible>(plane.flow(&key).cloned());
        let server = ServerTerms {
            incarnation: self.member.incarnation,
            has_store: self.scenario.store.is_some(),
        };
        let Ok(passed) = self.member.queues.take_due(self.time(), server, flow);
        for bytes in passed.into_iter().flat_map(|it| it.packets) {
            let mut packet = self.packet(bytes);
            packet.mark = MARK_BASE + MARK_QUEUED;
            let verdict = self.member.plane.egress(&mut packet, self.time());
            assert_eq!(verdict, Verdict::RedirectIngress);
            if self.member.plane.ingress(&mut packet, self.time()) == Verdict::Next {
                self.reach_server(&packet.bytes);
            }
        }
    }

    /// A packet of user space in the numbers of the server's socket.
    fn leave_from_server(&mut self, bytes: Vec<u8>) {
        let mut packet = self.packet(bytes);
        packet.mark = MARK_BASE + MARK_FROM_SERVER;
        if self.member.plane.egress(&mut packet, self.time()) == Verdict::RedirectNeighbour {
            self.send(Receiver::Client, vec![packet.bytes]);
        }
    }

    fn take(&mut self, copy: &SegmentCopy) {
        let now = self.time();
        let packet = IpPacket::parse_captured(&copy.packet, copy.packet_len).expect("a packet");
        let segment = Segment::of(&packet).expect("a segment");
        let actions = match (&mut self.member.revival, copy.kind) {
            (Some(revival), CopyKind::Parked) => revival.on_server(&segment, now),
            (Some(revival), _) => revival.on_client(&segment, now),
            (None, CopyKind::Parked) => return,
            (None, _)
                if segment.payload().is_empty()
                    && !(self.scenario.has_index && Revival::needs_record(&segment)) =>
            {
                return;
            }
            (None, kind) => {
                let rules = Rules {
                    key: POOL_KEY,
                    judge: JudgeRules {
                        check: VersionCheck::Etag,
                        discard_limit: 1 << 30,
                        takes_chunks: false,
                    },
                    incarnation: self.member.incarnation,
                    unix_now: UNIX_NOW,
                    withhold: WITHHOLD_MAX,
                    settled_at: self.settled_at,
                };
                let record = self.store.record.as_ref();
                let record = record.ok_or(match self.scenario.store {
                    Some(_) => PositionError::RecordMissing,
                    None => PositionError::NoStore,
                });
                let begun =
                    Revival::with_record(self.key, rules, (&segment, copy.interface), record, now);
                let (revival, actions) = match begun {
                    Ok(begun) => begun,
                    Err(rejected) => return self.reject(&rejected.reason),
                };
                let is_known = kind == CopyKind::Client;
                let placeholder = revival.placeholder();
                if !self
                    .member
                    .plane
                    .write_flow(self.key, placeholder, is_known)
                {
                    return;
                }
                self.member.revival = Some(revival);
                actions
            }
        };
        self.perform(actions);
    }

    fn reject(&mut self, reason: &Reason) {
        match reason {
            Reason::Idle => {}
            // The response was further than its timestamps told, and the store had not answered.
            Reason::Position(
                PositionError::Unprotected
                | PositionError::RecordMissing
                | PositionError::OtherRecord,
            ) if self.scenario.store.is_some() && !self.client.knows_of_any_record() => {
                self.is_reset = true;
            }
            Reason::Position(PositionError::HeaderPart) => {
                assert!(self.client.has_bytes_behind_hole() || self.scenario.store.is_some());
                self.is_reset = true;
            }
            reason => panic!("the client holds all that is needed: {reason}"),
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::ToServer(packet) => self.reach_server(&packet),
                Action::Splice(flow) => {
                    let revival = self.member.revival.as_ref();
                    if let Some(asked) = revival.and_then(Revival::asked) {
                        let due = self.time() + Duration::from_millis(5);
                        self.member.turns.on_asked(self.key, asked, due);
                    }
                    self.revived += 1;
                    self.revived_by_record += u32::from(flow.is_stored());
                    self.member.plane.write_flow(self.key, *flow, true);
                }
                Action::ToClient(packet) => self.send(Receiver::Client, vec![packet]),
                Action::Refuse { reason, .. } => {
                    assert_eq!(reason, Reason::Position(PositionError::HeaderPart));
                    assert!(self.client.has_bytes_behind_hole(), "a reset without need");
                    self.is_reset = true;
                }
            }
        }
        if self.member.revival.as_ref().is_some_and(Revival::is_over) {
            self.member.revival = None;
        }
    }
}

fn plane(key: FlowKey, is_dynamic: bool) -> Plane {
    let mut plane = Plane::new(Settings {
        addresses: vec![key.server()],
        keys: vec![POOL_KEY],
        mark: MARK_BASE,
        version_check: VersionCheck::Etag,
        is_immutable: false,
        withhold: WITHHOLD_MAX,
        takes_inputs: is_dynamic,
        takes_chunks: false,
        encapsulates: false,
    });
    plane.accept(true);
    plane.set_lease(LEASE_MAX);
    plane
}
