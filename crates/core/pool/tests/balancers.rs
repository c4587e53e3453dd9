//! Several balancers with a common register: a member in no table is silent, whatever is lost, late, dead or cut off.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    num::NonZeroU16,
    rc::Rc,
    time::Duration,
};

use lease::{Drift, Speech, Terms};
use pool::{
    CasRegister, Leases, Link, Monitor, Output, Register, Reply, Request, Settings, StreamId,
    TableKind, Written,
};
use proptest::prelude::*;
use protocol::pool::{
    BalancerId, BalancerMessage, Config, Hello, MemberAddress, MemberMessage, MembershipState,
    PoolKey, Refused, Table, VersionCheck,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};

const MEMBER_COUNT: usize = 3;
const BALANCER_COUNT: usize = 2;
const STEP_COUNT: u32 = 6000;
/// Steps without faults at the end.
const CALM_STEP_COUNT: u32 = 5000;
const DRIFT_PPM: u32 = 100_000;
const HOST_QUEUE_TIME: Duration = Duration::from_millis(10);
const MS_IN_NS: u64 = 1_000_000;
/// A stream is given up after this time without an answer.
const UNANSWERED_NS: u64 = 1000 * MS_IN_NS;

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

/// The store, and all tables that it ever had.
#[derive(Default)]
struct Store {
    revision: u64,
    table: Option<Table>,
    all: BTreeMap<u64, Table>,
    joined: BTreeSet<u64>,
}

impl Store {
    fn serve(&mut self, request: Request) -> Result<Reply, String> {
        match request {
            Request::Swap { revision, table } if revision == self.revision => {
                self.revision += 1;
                let before = self.all.insert(table.epoch, table.clone());
                if before.is_some_and(|before| before != table) {
                    return Err(format!("two tables of epoch {}", table.epoch));
                }
                self.joined
                    .extend(table.members.iter().map(|it| it.membership));
                self.table = Some(table);
                Ok(Reply::Swapped(self.revision))
            }
            Request::Read | Request::Swap { .. } => Ok(Reply::Value(
                self.table.clone().map(|table| (self.revision, table)),
            )),
        }
    }
}

/// Shared by the monitor and the model.
#[derive(Clone)]
struct Handle(Rc<RefCell<CasRegister>>);

impl Register for Handle {
    fn propose(&mut self, before: u64, table: Table) {
        self.0.borrow_mut().propose(before, table);
    }

    fn outcome(&mut self) -> Option<Written> {
        self.0.borrow_mut().outcome()
    }

    fn refresh(&mut self) {
        self.0.borrow_mut().refresh();
    }

    fn is_available(&self) -> bool {
        self.0.borrow().is_available()
    }
}

struct Balancer {
    id: u64,
    clock: Clock,
    register: Handle,
    /// `None`: not claimed yet, or no process runs.
    monitor: Option<Monitor<Handle>>,
    starts_at: u64,
    cut_until: u64,
    stopped_until: u64,
    /// Numbered requests on their way to the store, also those that were given up.
    requests: Vec<(u64, u64, Request)>,
    replies: Vec<(u64, u64, Reply)>,
    /// The request whose reply is awaited.
    awaited: u64,
}

struct Member {
    clock: Clock,
    membership: u64,
    leases: Leases,
    /// Enforced by the data plane.
    speech: Speech,
    spoke: u64,
    streams: [Option<StreamId>; BALANCER_COUNT],
    connects_at: [u64; BALANCER_COUNT],
    cut_until: [u64; BALANCER_COUNT],
    stopped_until: u64,
}

/// Messages of one direction of a stream, with the time of arrival.
type Direction<M> = VecDeque<(u64, M)>;

#[derive(Default)]
struct Stream {
    up: Direction<MemberMessage>,
    /// `None`: the end of the stream.
    down: Direction<Option<BalancerMessage>>,
    member: usize,
    balancer: usize,
    is_admitted: bool,
    /// When the newest message of the balancer arrived.
    heard: u64,
}

struct PoolModel {
    random: SmallRng,
    terms: Terms,
    now: u64,
    store: Store,
    balancers: Vec<Balancer>,
    members: Vec<Member>,
    streams: BTreeMap<StreamId, Stream>,
    fresh: u64,
    calm: bool,
}

fn settings(terms: Terms, balancer: u64) -> Settings {
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
        balancer: Some(BalancerId(balancer)),
    }
}

fn first_table(epoch: u64) -> Table {
    Table {
        epoch,
        kind: TableKind::Modulo,
        members: Vec::new(),
        granters: Vec::new(),
    }
}

impl Balancer {
    fn new(random: &mut SmallRng, id: u64) -> Self {
        Self {
            id,
            clock: Clock::drawn(random),
            register: Handle(Rc::new(RefCell::new(CasRegister::new(first_table(id))))),
            monitor: None,
            starts_at: 0,
            cut_until: 0,
            stopped_until: 0,
            requests: Vec::new(),
            replies: Vec::new(),
            awaited: 0,
        }
    }

    /// The process dies. What it has sent is on its way.
    fn die(&mut self, starts_at: u64) {
        self.monitor = None;
        self.starts_at = starts_at;
        self.replies.clear();
        self.awaited = 0;
        let register = CasRegister::new(first_table(self.id));
        self.register = Handle(Rc::new(RefCell::new(register)));
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
        let balancers = (1..).take(BALANCER_COUNT);
        let balancers = balancers.map(|id| Balancer::new(&mut random, id)).collect();
        let members = (0..MEMBER_COUNT).map(|_| Member {
            clock: Clock::drawn(&mut random),
            membership: 0,
            leases: Leases::new(0, terms, BALANCER_COUNT, Duration::ZERO),
            speech: Speech::Silent,
            spoke: 0,
            streams: [None; BALANCER_COUNT],
            connects_at: [0; BALANCER_COUNT],
            cut_until: [0; BALANCER_COUNT],
            stopped_until: 0,
        });
        let members = members.collect();
        let mut model = Self {
            random,
            terms,
            now: 0,
            store: Store::default(),
            balancers,
            members,
            streams: BTreeMap::new(),
            fresh: 100,
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
        for at in 0..BALANCER_COUNT {
            self.balancers[at].starts_at = self.now;
        }
        for _ in 0..CALM_STEP_COUNT {
            self.step()?;
        }
        let table = self.store.table.clone().expect("a table");
        for member in &self.members {
            let speaks = member.speech.at(member.clock.reading(self.now));
            let is_in = { table.members.iter() }.any(|it| it.membership == member.membership);
            if !speaks || !is_in {
                return Err(format!(
                    "membership {} is outside of {table:?}: {:?}",
                    member.membership, member.leases
                ));
            }
        }
        let are_settled = table.granters.iter().all(|granter| granter.settled);
        if table.granters.len() < BALANCER_COUNT || !are_settled {
            return Err(format!("a balancer is outside of {table:?}"));
        }
        Ok(self.store.joined.len() - table.members.len())
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += self.random.random_range(0..4 * MS_IN_NS);
        self.speak();
        (0..MEMBER_COUNT).for_each(|at| self.act(at));
        self.deliver();
        for at in 0..BALANCER_COUNT {
            self.exchange(at)?;
            if self.calm || self.random.random_bool(0.7) {
                self.serve(at);
            }
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
        let now = member.clock.reading(self.now);
        member.leases = Leases::new(self.fresh, self.terms, BALANCER_COUNT, now);
        (member.speech, member.spoke) = (Speech::Silent, 0);
        let streams = std::mem::take(&mut member.streams);
        for id in streams.into_iter().flatten() {
            self.lose(id);
        }
    }

    fn fail(&mut self) {
        let at = self.random.random_range(0..MEMBER_COUNT);
        let balancer = self.random.random_range(0..BALANCER_COUNT);
        if self.random.random_bool(0.01) {
            self.members[at].stopped_until = self.now + self.random.random_range(0..400 * MS_IN_NS);
        }
        if self.random.random_bool(0.005) {
            let until = self.now + self.random.random_range(0..900 * MS_IN_NS);
            self.members[at].cut_until[balancer] = until;
        }
        if self.random.random_bool(0.002) {
            // A host that starts again is silent.
            self.begin_membership(at);
        }
        if self.random.random_bool(0.001) {
            let member = &mut self.members[at];
            member.leases.silence();
            member.speech = Speech::Silent;
            member.stopped_until = self.now + 300 * MS_IN_NS;
            (0..BALANCER_COUNT).for_each(|to| self.say(at, to, MemberMessage::Leave));
        }
        if self.random.random_bool(0.003) {
            self.balancers[balancer].cut_until =
                self.now + self.random.random_range(0..2000 * MS_IN_NS);
        }
        if self.random.random_bool(0.003) {
            self.balancers[balancer].stopped_until =
                self.now + self.random.random_range(0..600 * MS_IN_NS);
        }
        if self.random.random_bool(0.002) {
            self.kill_balancer(balancer);
        }
    }

    fn kill_balancer(&mut self, at: usize) {
        let starts_at = self.now + self.random.random_range(0..3000 * MS_IN_NS);
        self.balancers[at].die(starts_at);
        if self.random.random_bool(0.3) {
            // Another host has its place.
            self.fresh += 1;
            self.balancers[at].id = self.fresh;
        }
        let ended: Vec<StreamId> = { self.streams.iter() }
            .filter(|(_, stream)| stream.balancer == at)
            .map(|(id, _)| *id)
            .collect();
        let hears = self.random.random_bool(0.5);
        for id in ended {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.up.clear();
                if hears {
                    stream.down.push_back((self.now, None));
                }
            }
        }
    }

    fn lose(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.remove(&id)
            && let Some(monitor) = &mut self.balancers[stream.balancer].monitor
        {
            monitor.on_stream_lost(id);
        }
    }

    fn act(&mut self, at: usize) {
        for to in 0..BALANCER_COUNT {
            let (now, member) = (self.now, &mut self.members[at]);
            if now < member.stopped_until {
                return;
            }
            let link = Link(to);
            let stream = member.streams[to].and_then(|id| self.streams.get(&id));
            if stream.is_none_or(|it| it.heard + UNANSWERED_NS < now) {
                if let Some(id) = self.members[at].streams[to].take() {
                    self.lose(id);
                }
                let member = &mut self.members[at];
                member.leases.on_lost(link);
                if now < member.connects_at[to].max(member.cut_until[to]) {
                    continue;
                }
                member.connects_at[to] = now + 5 * MS_IN_NS;
                self.connect(at, to);
                continue;
            }
            let clock = member.clock.reading(now);
            member.speech = member.leases.speech();
            for message in member.leases.due(link, clock) {
                self.say(at, to, message);
            }
        }
    }

    fn connect(&mut self, at: usize, to: usize) {
        if self.balancers[to].monitor.is_none() {
            return;
        }
        self.fresh += 1;
        let stream = StreamId(self.fresh);
        let fresh = Stream {
            member: at,
            balancer: to,
            heard: self.now,
            ..Stream::default()
        };
        self.streams.insert(stream, fresh);
        let now = self.now;
        let member = &mut self.members[at];
        member.streams[to] = Some(stream);
        let clock = member.clock.reading(now);
        let is_new = member.leases.table().epoch == 0;
        let host = u8::try_from(at).expect("few");
        let hello = Hello {
            name: format!("web{at}").parse().expect("a name"),
            membership: member.membership,
            state: match is_new {
                true => MembershipState::New,
                false => member.leases.state(clock),
            },
            address: MemberAddress::new([10, 0, 0, host].into()).expect("an address"),
            claim_port: NonZeroU16::MAX,
            epoch: member.leases.table().epoch,
        };
        self.say(at, to, MemberMessage::Hello(hello));
    }

    fn delay(&mut self) -> u64 {
        let late = !self.calm && self.random.random_bool(0.05);
        self.random
            .random_range(0..if late { 400 * MS_IN_NS } else { 2 * MS_IN_NS })
    }

    fn say(&mut self, at: usize, to: usize, message: MemberMessage) {
        let member = &self.members[at];
        let arrives = self.now.max(member.cut_until[to]);
        let id = member.streams[to];
        let arrives = arrives + self.delay();
        if let Some(stream) = id.and_then(|id| self.streams.get_mut(&id)) {
            stream.up.push_back((arrives, message));
        }
    }

    fn deliver(&mut self) {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in streams {
            while let Some(stream) = self.streams.get_mut(&id)
                && self.members[stream.member].stopped_until <= self.now
                && self.members[stream.member].cut_until[stream.balancer] <= self.now
                && let Some((arrives, _)) = stream.down.front()
                && *arrives <= self.now
            {
                stream.heard = self.now;
                let (_, message) = stream.down.pop_front().expect("it is there");
                let (at, from) = (stream.member, stream.balancer);
                if self.members[at].streams[from] != Some(id) {
                    continue;
                }
                match message {
                    Some(message) => self.receive(at, from, id, message),
                    None => {
                        self.members[at].streams[from] = None;
                        self.members[at].leases.on_lost(Link(from));
                        self.streams.remove(&id);
                    }
                }
            }
        }
    }

    fn receive(&mut self, at: usize, from: usize, id: StreamId, message: BalancerMessage) {
        let (link, now) = (Link(from), self.now);
        let member = &mut self.members[at];
        let clock = member.clock.reading(now);
        match message {
            BalancerMessage::Config(_) => {}
            BalancerMessage::Granter { balancer } => member.leases.on_granter(link, balancer),
            BalancerMessage::Lease { number, term_us } => {
                let term = Duration::from_micros(term_us.into());
                member.leases.on_grant(link, number, term);
            }
            BalancerMessage::Table(table) => {
                member.leases.on_table(table, clock);
                let stream = self.streams.get_mut(&id).expect("it is there");
                if !std::mem::replace(&mut stream.is_admitted, true) {
                    member.leases.on_connect(link);
                }
            }
            BalancerMessage::Refused {
                reason: Refused::Dead,
            } => member.leases.silence(),
            BalancerMessage::Refused { .. } => {}
        }
        member.speech = member.leases.speech();
        if member.leases.is_over() {
            self.begin_membership(at);
        }
    }

    /// Requests to the store, and replies.
    fn exchange(&mut self, at: usize) -> Result<(), String> {
        let (now, cut_until) = (self.now, self.balancers[at].cut_until);
        let delay = self.delay();
        let loses = !self.calm && self.random.random_bool(0.03);
        let balancer = &mut self.balancers[at];
        let clock = balancer.clock.reading(now);
        if now >= balancer.starts_at && now >= balancer.stopped_until {
            let mut register = balancer.register.0.borrow_mut();
            while let Some(place) = { balancer.replies.iter() }.position(|(at, ..)| *at <= now) {
                let (_, number, reply) = balancer.replies.remove(place);
                if number == balancer.awaited {
                    balancer.awaited = 0;
                    register.on_reply(reply, clock);
                }
            }
            if let Some(request) = register.request(clock) {
                match now < cut_until {
                    true => register.on_reply(Reply::Unsent, clock),
                    false => {
                        self.fresh += 1;
                        let number = self.fresh;
                        balancer.awaited = number;
                        balancer.requests.push((now + delay, number, request));
                        if loses {
                            let gives_up_at = now + delay / 2;
                            let reply = (gives_up_at, number, Reply::Unknown);
                            balancer.replies.push(reply);
                        }
                    }
                }
            }
        }
        while let Some(place) = { balancer.requests.iter() }.position(|(at, ..)| *at <= now) {
            let (_, number, request) = balancer.requests.remove(place);
            let reply = self.store.serve(request)?;
            balancer.replies.push((now, number, reply));
        }
        Ok(())
    }

    /// The balancer reads all that has arrived, and obeys the monitor.
    fn serve(&mut self, at: usize) {
        let now = self.now;
        let balancer = &mut self.balancers[at];
        if now < balancer.starts_at || now < balancer.stopped_until {
            return;
        }
        let clock = balancer.clock.reading(now);
        if balancer.monitor.is_none() {
            if !balancer.register.is_available() {
                return;
            }
            let table = balancer.register.0.borrow().newest().clone();
            let settings = settings(self.terms, balancer.id);
            let monitor = Monitor::new(settings, balancer.register.clone(), table, clock);
            balancer.monitor = Some(monitor);
        }
        let Some(monitor) = &mut balancer.monitor else {
            return;
        };
        for (id, stream) in &mut self.streams {
            while stream.balancer == at
                && let Some((arrives, _)) = stream.up.front()
                && *arrives <= now
            {
                let (_, message) = stream.up.pop_front().expect("it is there");
                monitor.on_message(clock, *id, message);
            }
        }
        monitor.on_time(clock);
        let mut outputs = Vec::new();
        while let Some(output) = monitor.output() {
            outputs.push(output);
        }
        for output in outputs {
            let (id, message) = match output {
                Output::Send { stream, message } => (stream, Some(message)),
                Output::Close { stream } => (stream, None),
                Output::Table(_) | Output::Event(_) => continue,
            };
            let arrives = self.now + self.delay();
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.down.push_back((arrives, message));
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let Some(newest) = &self.store.table else {
            return Ok(());
        };
        let queue = u64::try_from(HOST_QUEUE_TIME.as_nanos()).expect("short");
        for member in &self.members {
            let speaks = member.speech.at(member.clock.reading(self.now));
            let waits = member.spoke > 0 && member.spoke + queue > self.now;
            let is_in = { newest.members.iter() }.any(|it| it.membership == member.membership);
            if (speaks || waits) && !is_in {
                return Err(format!(
                    "at {}: membership {} speaks, and is in no table: {newest:?}",
                    self.now, member.membership
                ));
            }
        }
        Ok(())
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
    let gone: usize = (0..20)
        .map(|seed| PoolModel::new(seed).run().expect("silent"))
        .sum();
    assert!(gone > 30, "{gone}");
}
