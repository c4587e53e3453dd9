//! A pool with all faults, from a seed: members whose processes stop while their data planes go on, streams that break,
//! hosts that start again, clocks that drift, and a balancer that starts again with its pinned table, or without.
//!
//! Invariants after every step: a member that is no longer in the table is silent, an epoch is one table for ever, and
//! epochs grow. At the end, after the faults: every member is in the table, and may send.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU16;
use std::time::Duration;

use lease::{Drift, Speech, Terms, pool::MemberLease};
use pool::{MemoryRegister, Monitor, Output, Settings, StreamId, TableKind};
use proptest::prelude::*;
use protocol::pool::{
    BalancerMessage, Config, Hello, MemberAddress, MemberMessage, MembershipState, PoolKey,
    Refused, Table, VersionCheck,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};

const MEMBER_COUNT: usize = 4;
const STEP_COUNT: u32 = 6000;
/// Steps without faults at the end: more than the longest lease.
const CALM_STEP_COUNT: u32 = 2000;
const DRIFT_PPM: u32 = 100_000;
const HOST_QUEUE_TIME: Duration = Duration::from_millis(10);

/// True nanoseconds in, readings out.
struct Clock {
    origin: u64,
    ppm: i64,
}

impl Clock {
    fn drawn(random: &mut SmallRng) -> Self {
        let most = i64::from(DRIFT_PPM);
        Self {
            origin: random.random_range(0..1_000_000_000_000),
            ppm: random.random_range(-most..=most),
        }
    }

    fn reading(&self, true_ns: u64) -> Duration {
        let advance = i128::from(true_ns) * i128::from(1_000_000 + self.ppm) / 1_000_000;
        Duration::from_nanos(self.origin + u64::try_from(advance).expect("forward"))
    }
}

struct Member {
    clock: Clock,
    membership: u64,
    admitted: bool,
    lease: MemberLease,
    /// Enforced by the data plane.
    speech: Speech,
    spoke: u64,
    stream: Option<StreamId>,
    stopped_until: u64,
    connects_at: u64,
}

/// Messages of one direction of a stream, with the time of arrival.
type Direction<M> = VecDeque<(u64, M)>;

#[derive(Default)]
struct Stream {
    up: Direction<MemberMessage>,
    /// `None`: the end of the stream.
    down: Direction<Option<BalancerMessage>>,
    member: usize,
}

struct PoolModel {
    random: SmallRng,
    terms: Terms,
    now: u64,
    balancer: Clock,
    monitor: Monitor<MemoryRegister>,
    /// The table in the data plane of the balancer's host.
    pinned: Option<Table>,
    tables: BTreeMap<u64, Table>,
    members: Vec<Member>,
    streams: BTreeMap<StreamId, Stream>,
    fresh: u64,
    /// All memberships that were in a table.
    joined: BTreeSet<u64>,
    calm: bool,
}

fn settings(terms: Terms) -> Settings {
    let config = Config {
        addresses: vec!["10.0.0.10:80".parse().expect("an address")],
        term_us: 250_000,
        least_term_us: 25_000,
        drift_ppm: DRIFT_PPM,
        queue_us: 10_000,
        quiescence_ms: 130_000,
        key: PoolKey([7; 16]),
        version_check: VersionCheck::Etag,
        store: None,
        encapsulation: None,
    };
    Settings {
        kind: TableKind::Modulo,
        terms,
        config,
        balancer: None,
    }
}

impl PoolModel {
    fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let terms = Terms {
            drift: Drift::new(DRIFT_PPM).expect("below a million"),
            queue: HOST_QUEUE_TIME,
            ..Terms::of_pool()
        };
        let balancer = Clock::drawn(&mut random);
        let monitor = started(terms, balancer.reading(0), empty_table(0));
        let members = (0..MEMBER_COUNT).map(|_| Member {
            clock: Clock::drawn(&mut random),
            membership: 0,
            admitted: false,
            lease: MemberLease::new(terms),
            speech: Speech::Silent,
            spoke: 0,
            stream: None,
            stopped_until: 0,
            connects_at: 0,
        });
        let members = members.collect();
        let mut model = Self {
            random,
            terms,
            now: 0,
            balancer,
            monitor,
            pinned: None,
            tables: BTreeMap::new(),
            members,
            streams: BTreeMap::new(),
            fresh: 0,
            joined: BTreeSet::new(),
            calm: false,
        };
        (0..MEMBER_COUNT).for_each(|at| model.begin_membership(at));
        model
    }

    /// Returns the number of memberships that are no more.
    fn run(mut self) -> Result<usize, String> {
        for _ in 0..STEP_COUNT {
            self.fail();
            self.step()?;
        }
        self.calm = true;
        for _ in 0..CALM_STEP_COUNT {
            self.step()?;
        }
        let table = self.monitor.table();
        for member in &self.members {
            let speaks = member.speech.at(member.clock.reading(self.now));
            let is_in = table
                .members
                .iter()
                .any(|entry| entry.membership == member.membership);
            if !speaks || !is_in {
                return Err(format!("membership {} is outside", member.membership));
            }
        }
        Ok(self.joined.len() - table.members.len())
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += self.random.random_range(0..4_000_000);
        self.speak();
        (0..MEMBER_COUNT).for_each(|at| self.act(at));
        self.deliver();
        // The balancer's process stops now and then, too.
        if self.calm || self.random.random_bool(0.7) {
            self.serve()?;
        }
        self.check()
    }

    fn speak(&mut self) {
        for member in &mut self.members {
            if member.speech.at(member.clock.reading(self.now)) {
                member.spoke = self.now;
            }
        }
    }

    fn begin_membership(&mut self, at: usize) {
        self.fresh += 1;
        let member = &mut self.members[at];
        member.membership = self.fresh;
        member.admitted = false;
        member.lease = MemberLease::new(self.terms);
        (member.speech, member.spoke, member.stream) = (Speech::Silent, 0, None);
    }

    fn fail(&mut self) {
        let at = self.random.random_range(0..MEMBER_COUNT);
        if self.random.random_bool(0.02) {
            self.members[at].stopped_until = self.now + self.random.random_range(0..400_000_000);
        }
        if self.random.random_bool(0.01)
            && let Some(stream) = self.members[at].stream.take()
        {
            self.lose(stream);
        }
        if self.random.random_bool(0.003) {
            // A host that starts again is silent.
            self.begin_membership(at);
        }
        if self.random.random_bool(0.002) {
            let member = &mut self.members[at];
            member.lease.silence();
            member.speech = Speech::Silent;
            member.stopped_until = self.now + 300_000_000;
            self.say(at, MemberMessage::Leave);
        }
        if self.random.random_bool(0.0005) {
            self.restart_balancer();
        }
    }

    fn restart_balancer(&mut self) {
        if self.random.random_bool(0.3) {
            self.pinned = None;
        }
        let now = self.balancer.reading(self.now);
        let table = self.pinned.clone();
        let table = table.unwrap_or_else(|| empty_table(self.now));
        self.monitor = started(self.terms, now, table);
        self.streams.clear();
        for member in &mut self.members {
            member.stream = None;
        }
    }

    fn lose(&mut self, stream: StreamId) {
        if self.streams.remove(&stream).is_some() {
            self.monitor.on_stream_lost(stream);
        }
    }

    fn act(&mut self, at: usize) {
        let (now, member) = (self.now, &mut self.members[at]);
        if now < member.stopped_until {
            return;
        }
        let clock = member.clock.reading(now);
        if member
            .stream
            .is_none_or(|stream| !self.streams.contains_key(&stream))
        {
            if now < member.connects_at {
                return;
            }
            member.connects_at = now + 5_000_000;
            self.connect(at, clock);
        }
        let member = &mut self.members[at];
        if member.admitted
            && member.lease.asks_at() <= clock
            && let Some((number, answered)) = member.lease.ask(clock)
        {
            self.say(at, MemberMessage::LeaseRequest { number, answered });
        }
    }

    fn connect(&mut self, at: usize, clock: Duration) {
        self.fresh += 1;
        let stream = StreamId(self.fresh);
        self.streams.insert(
            stream,
            Stream {
                member: at,
                ..Stream::default()
            },
        );
        let member = &mut self.members[at];
        member.stream = Some(stream);
        member.lease.on_reconnect();
        let state = match (member.admitted, member.speech.at(clock)) {
            (false, _) => MembershipState::New,
            (true, true) => MembershipState::Speaks,
            (true, false) => MembershipState::Silent,
        };
        let host = u8::try_from(at).expect("few");
        let hello = Hello {
            name: format!("web{at}").parse().expect("a name"),
            membership: member.membership,
            state,
            address: MemberAddress::new([10, 0, 0, host].into()).expect("an address"),
            claim_port: NonZeroU16::MAX,
            epoch: 0,
        };
        self.say(at, MemberMessage::Hello(hello));
    }

    fn delay(&mut self) -> u64 {
        let late = !self.calm && self.random.random_bool(0.05);
        self.random
            .random_range(0..if late { 400_000_000 } else { 2_000_000 })
    }

    fn say(&mut self, at: usize, message: MemberMessage) {
        let arrives = self.now + self.delay();
        let stream = self.members[at].stream;
        if let Some(stream) = stream.and_then(|stream| self.streams.get_mut(&stream)) {
            stream.up.push_back((arrives, message));
        }
    }

    fn deliver(&mut self) {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in streams {
            while let Some(stream) = self.streams.get_mut(&id)
                && self.members[stream.member].stopped_until <= self.now
                && let Some((arrives, _)) = stream.down.front()
                && *arrives <= self.now
            {
                let (_, message) = stream.down.pop_front().expect("it is there");
                let at = stream.member;
                if self.members[at].stream == Some(id) {
                    self.receive(at, message);
                }
            }
        }
    }

    fn receive(&mut self, at: usize, message: Option<BalancerMessage>) {
        let member = &mut self.members[at];
        let Some(message) = message else {
            member.stream = None;
            let has_left = member.lease.clone().ask(Duration::MAX).is_none();
            if has_left {
                self.begin_membership(at);
            }
            return;
        };
        match message {
            BalancerMessage::Config(_) => member.admitted = true,
            BalancerMessage::Lease { number, term_us } => {
                let term = Duration::from_micros(term_us.into());
                member.lease.on_grant(number, term);
                member.speech = member.lease.speech();
            }
            BalancerMessage::Table(_) | BalancerMessage::Granter { .. } => {}
            BalancerMessage::Refused { reason } => {
                member.stream = None;
                if reason == Refused::Dead {
                    self.begin_membership(at);
                }
            }
        }
    }

    /// The balancer reads all that has arrived, and obeys the monitor.
    fn serve(&mut self) -> Result<(), String> {
        let now = self.balancer.reading(self.now);
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in streams {
            while let Some(stream) = self.streams.get_mut(&id)
                && let Some((arrives, _)) = stream.up.front()
                && *arrives <= self.now
            {
                let (_, message) = stream.up.pop_front().expect("it is there");
                self.monitor.on_message(now, id, message);
            }
        }
        self.monitor.on_time(now);
        while let Some(output) = self.monitor.output() {
            match output {
                Output::Table(table) => self.pin(table)?,
                Output::Send { stream, message } => {
                    let arrives = self.now + self.delay();
                    if let Some(stream) = self.streams.get_mut(&stream) {
                        stream.down.push_back((arrives, Some(message)));
                    }
                }
                Output::Close { stream } => {
                    let arrives = self.now + self.delay();
                    if let Some(stream) = self.streams.get_mut(&stream) {
                        stream.down.push_back((arrives, None));
                    }
                }
                Output::Event(_) => {}
            }
        }
        Ok(())
    }

    fn pin(&mut self, table: Table) -> Result<(), String> {
        if self
            .tables
            .last_key_value()
            .is_some_and(|(newest, _)| *newest >= table.epoch)
        {
            return Err(format!("epoch {} comes again", table.epoch));
        }
        let names: BTreeSet<_> = table.members.iter().map(|entry| &entry.name).collect();
        let addresses: BTreeSet<_> = table.members.iter().map(|entry| entry.address).collect();
        if names.len() < table.members.len() || addresses.len() < table.members.len() {
            return Err(format!("two members are one: {table:?}"));
        }
        self.joined
            .extend(table.members.iter().map(|entry| entry.membership));
        self.pinned = Some(table.clone());
        self.tables.insert(table.epoch, table);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let Some((_, newest)) = self.tables.last_key_value() else {
            return Ok(());
        };
        let queue = u64::try_from(HOST_QUEUE_TIME.as_nanos()).expect("short");
        for member in &self.members {
            let speaks = member.speech.at(member.clock.reading(self.now));
            let waits = member.spoke > 0 && member.spoke + queue > self.now;
            let is_in = |entry: &protocol::pool::TableMember| entry.membership == member.membership;
            let is_dead =
                self.joined.contains(&member.membership) && !newest.members.iter().any(is_in);
            if (speaks || waits) && is_dead {
                return Err(format!(
                    "membership {} speaks, and is dead",
                    member.membership
                ));
            }
        }
        Ok(())
    }
}

fn started(terms: Terms, now: Duration, table: Table) -> Monitor<MemoryRegister> {
    Monitor::new(
        settings(terms),
        MemoryRegister::new(table.clone()),
        table,
        now,
    )
}

/// As the balancer does: the time makes the epoch of a first table higher than those of former lives.
fn empty_table(now: u64) -> Table {
    Table {
        epoch: now,
        kind: TableKind::Modulo,
        members: Vec::new(),
        granters: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn members_outside_the_table_are_silent(seed: u64) {
        let run = PoolModel::new(seed).run();
        prop_assert!(run.is_ok(), "{run:?}");
    }
}

#[test]
fn members_die_in_these_runs() {
    let gone: usize = (0..10)
        .map(|seed| PoolModel::new(seed).run().expect("silent"))
        .sum();
    assert!(gone > 50, "{gone}");
}
