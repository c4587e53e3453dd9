//! The event loop of a member: the crate `member` does the same with the maps of the kernel (`engine.rs`).

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use objects::{
    PoolKey,
    budget::Budget,
    flow::{Flow, Mode, Phase},
    judge::{JudgeRules, Refusal},
    plane::{CopyKind, Event, MARK_CLIENT_SPACE, MARK_QUEUED, Plane, SegmentCopy},
    queue::{self, RequestQueues, ServerTerms},
    records::LookedUp,
    revivals::{Ended, Programs, Revivals},
    revive::{PositionError, Rules, SETTLE_TIME, WITHHOLD_MAX},
    timestamp::index::{EchoParts, EchoTable},
    unreachable, window_update,
};
use pool::{Claiming, Decided};
use protocol::pool::Claim;
use rand::Rng;
use wire::FlowKey;

use super::{Around, Member, POOL_KEY, Sent, flaws, records::StoredRecords, version_check};
use crate::{
    MS,
    pool::{
        scenario::{PoolFlaw, PoolScenario},
        server::Server,
        site::Life,
        store::Message,
        witness::Broken,
    },
};

/// Pause between two looks at the server.
const LOOK_PERIOD: u64 = 20 * MS;
/// Shortest round of queues.
const QUEUE_ROUND_MIN: Duration = Duration::from_millis(250);
/// Pause after a failed try to join the pool again.
const REJOIN_PAUSE: u64 = 200 * MS;

/// Whether the member belongs to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Membership {
    /// The server has to listen first.
    Waits,
    /// The next try comes then.
    Out(u64),
    /// The lease is asked for, or kept. The newest table that was carried out.
    Kept(u64),
}

pub(in crate::pool) struct UserSpace {
    pub(super) stopped_until: u64,
    runs_next: u64,
    rules: Rules,
    membership: Membership,
    claiming: Claiming<SegmentCopy>,
    budget: Budget,
    /// Addresses by membership.
    others: BTreeMap<u64, IpAddr>,
    revivals: Revivals,
    queues: RequestQueues,
    accepts: bool,
    /// When the server is started; `None`: a process runs, as far as is known.
    starts_at: Option<u64>,
    /// The server was seen to listen.
    listens: bool,
    inbox: Inbox,
    /// `None`: the pool has no store.
    pub(super) records: Option<StoredRecords>,
}

/// Input that waits for the event loop.
#[derive(Debug, Default)]
struct Inbox {
    copies: VecDeque<SegmentCopy>,
    /// Bytes that wait for their turn, in a ring of their own.
    queued: VecDeque<SegmentCopy>,
    /// When the programs begin another round of queues.
    next_queue_round: Option<Duration>,
    /// When the kernel gets segments of unknown connections again.
    next_stray_round: Duration,
    events: VecDeque<Event>,
    datagrams: VecDeque<Claim>,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.copies.is_empty()
            && self.queued.is_empty()
            && self.events.is_empty()
            && self.datagrams.is_empty()
    }
}

/// The programs, as revivals see these.
struct Reached<'a> {
    plane: &'a mut Plane,
    scenario: &'a PoolScenario,
    to_server: Vec<Vec<u8>>,
    to_client: Vec<Vec<u8>>,
    passed_on: Vec<Vec<u8>>,
}

impl Programs for Reached<'_> {
    type Error = Infallible;

    fn write_flow(
        &mut self,
        key: FlowKey,
        flow: &Flow,
        is_known: bool,
    ) -> Result<bool, Infallible> {
        let mut flow = flow.clone();
        if self.scenario.has(PoolFlaw::FloorIgnored) && flow.mode == Mode::Served {
            flow.server.floor = flow.server.isn;
        }
        if self.scenario.has(PoolFlaw::RevivedAtNextIndex) && flow.mode == Mode::Served {
            let parts = flow.echoes.parts();
            flow.echoes = EchoTable::of_parts(EchoParts {
                newest: parts.echoed,
                ..parts
            });
        }
        Ok(self.plane.write_flow(key, flow, is_known))
    }

    fn flow(&mut self, key: FlowKey) -> Result<Option<Flow>, Infallible> {
        Ok(self.plane.flow(&key).cloned())
    }

    fn forget_flow(&mut self, key: FlowKey) -> Result<(), Infallible> {
        self.plane.forget_flow(&key);
        Ok(())
    }

    fn forget_handshakes(&mut self) -> Result<(), Infallible> {
        self.plane.forget_handshakes();
        Ok(())
    }

    fn flows(&mut self) -> Result<Vec<(FlowKey, Flow)>, Infallible> {
        let flows = self.plane.flows();
        Ok(flows.map(|(key, flow)| (*key, flow.clone())).collect())
    }

    fn to_server(&mut self, _interface: u32, packet: &[u8]) -> Result<(), Infallible> {
        self.to_server.push(packet.to_vec());
        Ok(())
    }

    fn pass_on(&mut self, copy: &SegmentCopy) -> Result<(), Infallible> {
        self.passed_on.push(copy.packet.clone());
        Ok(())
    }

    fn to_client(&mut self, _interface: u32, packet: &[u8]) -> Result<(), Infallible> {
        self.to_client.push(packet.to_vec());
        Ok(())
    }
}

/// Whether the turn goes on without protection, and the next turn is protected again.
fn is_bare(flow: &Flow) -> bool {
    let turn = &flow.turn;
    let is_open = turn.phase != Phase::Idle && !turn.is_guarded;
    flow.mode == Mode::Served && (is_open || flow.is_exposed())
}

impl UserSpace {
    pub(super) fn new(
        number: usize,
        scenario: &PoolScenario,
        service: SocketAddr,
        now: u64,
    ) -> Self {
        let mut revivals = Revivals::default();
        revivals.plant(flaws(scenario));
        Self {
            stopped_until: 0,
            runs_next: now,
            rules: Rules {
                key: PoolKey(POOL_KEY),
                judge: JudgeRules {
                    check: version_check(scenario),
                    discard_limit: 1 << 30,
                    takes_chunks: scenario.store.is_some(),
                },
                incarnation: 1,
                unix_now: Duration::ZERO,
                withhold: WITHHOLD_MAX,
                settled_at: Duration::ZERO,
            },
            membership: Membership::Waits,
            claiming: Claiming::new(0, 0),
            budget: Budget::default(),
            others: BTreeMap::new(),
            revivals,
            queues: RequestQueues::default(),
            accepts: false,
            starts_at: Some(now),
            listens: false,
            inbox: Inbox::default(),
            records: StoredRecords::new(number, scenario, service, now),
        }
    }

    fn say_claims(
        &self,
        claims: impl IntoIterator<Item = pool::claims::Addressed>,
        sent: &mut Sent,
    ) {
        for datagram in claims {
            let to = self.others.get(&datagram.to);
            sent.claims.extend(to.map(|to| (*to, datagram.claim)));
        }
    }

    /// A claim of another member arrives.
    pub(in crate::pool) fn receive(&mut self, claim: Claim) {
        self.inbox.datagrams.push_back(claim);
    }

    /// A message of a store arrives.
    pub(in crate::pool) fn on_store_message(&mut self, message: Message, now: u64) {
        if let Some(records) = &mut self.records {
            records.on_message(message, now);
        }
    }

    /// Messages of the stores' threads, which go on while user space stops.
    pub(in crate::pool) fn messages(&mut self, now: u64) -> Vec<Message> {
        let records = self.records.as_mut();
        records.map_or_else(Vec::new, |records| records.messages(now))
    }

    /// Requests whose turn has come, in the client's name.
    fn due_requests(&mut self, plane: &Plane, now: Duration) -> Vec<Vec<u8>> {
        let flow = |key| Ok::<_, Infallible>(plane.flow(&key).cloned());
        let server = ServerTerms {
            incarnation: self.rules.incarnation,
            has_store: { self.records.as_ref() }.is_some_and(StoredRecords::has_store),
        };
        let Ok(passed) = self.queues.take_due(now, server, flow);
        passed.into_iter().flat_map(|it| it.packets).collect()
    }

    fn begin_stray_round(&mut self, plane: &mut Plane, now: Duration) {
        if now >= self.inbox.next_stray_round {
            self.inbox.next_stray_round = now + Duration::from_nanos(LOOK_PERIOD);
            plane.next_stray_round();
        }
    }

    /// Bytes of clients that wait for their turn, behind all other copies.
    fn take_queued(&mut self, plane: &mut Plane, now: Duration) {
        if self.inbox.next_queue_round.is_some_and(|at| at <= now) {
            self.inbox.next_queue_round = None;
            plane.next_queue_round();
        }
        if !self.inbox.queued.is_empty() {
            let next = now + QUEUE_ROUND_MIN;
            self.inbox.next_queue_round.get_or_insert(next);
        }
        while let Some(copy) = self.inbox.queued.pop_front() {
            if let (Some(segment), Some(flow)) = (copy.segment(), plane.flow(&copy.key))
                && self.budget.allows_queued(now)
            {
                self.queues.add(copy.key, flow, &segment, now);
            }
        }
    }

    pub(super) fn revival_count(&self) -> usize {
        self.revivals.len()
    }
}

impl Member {
    /// The rings, when packets have passed. The witness hears at once which connections are without protection.
    pub(in crate::pool) fn fill_rings(&mut self, sent: &mut Sent) {
        let plane = &mut self.plane;
        let copies: Vec<SegmentCopy> = std::iter::from_fn(|| plane.take_copy()).collect();
        let events: Vec<Event> = std::iter::from_fn(|| plane.take_event()).collect();
        sent.unprotected
            .extend(events.iter().filter_map(|event| match event {
                Event::Unprotected { key, .. } => Some(*key),
                _ => None,
            }));
        let bare = self.plane.flows().filter(|(_, flow)| is_bare(flow));
        let bare = bare.map(|(key, flow)| {
            let is_exposed = flow.is_exposed() && flow.turn.is_guarded;
            (*key, flow.turn.request_start, is_exposed)
        });
        sent.bare.extend(bare);
        if let Some(records) = &mut self.user_space.records {
            records.begin(&mut self.plane);
        }
        let is_queued = |copy: &SegmentCopy| copy.kind == CopyKind::Queued;
        let (queued, copies): (Vec<_>, Vec<_>) = copies.into_iter().partition(is_queued);
        self.user_space.inbox.copies.extend(copies);
        self.user_space.inbox.queued.extend(queued);
        self.user_space.inbox.events.extend(events);
    }

    pub(super) fn user_space_due(&self, now: u64) -> u64 {
        let space = &self.user_space;
        let records = space.records.as_ref();
        let has_input = !space.inbox.is_empty() || records.is_some_and(StoredRecords::has_input);
        let clock = |at: Option<Duration>| at.map_or(u64::MAX, |at| self.clock.when(at));
        let server = match self.server.listens_at {
            Some(at) if !space.listens => at,
            None if space.starts_at.is_none() => now,
            _ => space.starts_at.unwrap_or(u64::MAX),
        };
        let lease_client = self.lease_client.as_ref();
        let membership = match space.membership {
            Membership::Waits => u64::MAX,
            Membership::Out(at) => at,
            Membership::Kept(epoch) => lease_client.map_or(u64::MAX, |lease_client| {
                let is_new = lease_client
                    .table
                    .as_ref()
                    .is_some_and(|it| it.epoch > epoch);
                let has_news =
                    (is_new && lease_client.lease.is_some()) || lease_client.refused.is_some();
                if has_news {
                    now
                } else {
                    lease_client.gives_up_at()
                }
            }),
        };
        let input = if has_input { now } else { u64::MAX };
        let revivals = clock(space.revivals.deadline());
        let claims = clock(space.claiming.deadline());
        let records = clock(records.map(StoredRecords::deadline));
        let queues = clock(space.queues.deadline());
        let due = [input, server, membership, revivals, claims, records, queues];
        let due = due.into_iter().min().unwrap_or(now);
        due.max(space.runs_next).max(space.stopped_until)
    }

    /// Carries everything out that is due.
    pub(super) fn run_once(
        &mut self,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        let pace = around.scenario.pace;
        self.user_space.runs_next = around.now + around.rng.random_range(pace / 4..=pace);
        self.kernel_events(around, sent)?;
        self.poll_server(around, sent)?;
        self.poll_pool(around, sent)?;
        self.receive_claims(around, sent)?;
        self.take_copies(around, sent)?;
        let now = self.reading(around);
        for packet in self.user_space.due_requests(&self.plane, now) {
            self.send_on(packet, MARK_QUEUED, around, sent)?;
        }
        self.keep_records(around, sent)?;
        let now = self.reading(around);
        self.with_revivals(around, sent, |revivals, programs| {
            let Ok(ended) = revivals.poll(programs, now);
            ended
        })
    }

    fn kernel_events(&mut self, around: &mut Around<'_>, sent: &mut Sent) -> Result<(), Broken> {
        while let Some(event) = self.user_space.inbox.events.pop_front() {
            match event {
                Event::Death if self.user_space.starts_at.is_none() => {
                    self.server_died(around, sent)?;
                }
                Event::Death | Event::Listening => {}
                Event::Unprotected { key, .. } | Event::TurnOver { key } => {
                    self.user_space.queues.wake(&key);
                }
                Event::Diverged { key } => {
                    let now = self.reading(around);
                    self.with_revivals(around, sent, |revivals, programs| {
                        let Ok(ended) = revivals.refuse(programs, key, Refusal::Part.into(), now);
                        ended.into_iter().collect()
                    })?;
                }
                Event::Answered { key } => {
                    let flow = self.plane.flow(&key);
                    let flow = flow.filter(|_| self.user_space.queues.knows(&key));
                    if let Some(call) = flow.and_then(|flow| queue::call(key, flow)) {
                        self.say_as_server(call, around, sent);
                    }
                }
                Event::Repeated { key, seq } => {
                    let Some(flow) = self.plane.flow(&key) else {
                        continue;
                    };
                    let update = window_update::after_repetition(key, flow);
                    if let Some(message) = unreachable::about(key, seq) {
                        self.send_to_client(message, around, sent);
                    }
                    if let Some(update) = update {
                        self.reach_server(&update, around, sent)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn server_died(&mut self, around: &mut Around<'_>, sent: &mut Sent) -> Result<(), Broken> {
        self.plane.gate();
        self.user_space.queues.clear();
        let output = self.server.crash();
        self.leave(output, around, sent)?;
        let incarnation = self.user_space.rules.incarnation;
        let now = self.reading(around);
        let mut interrupted = Vec::new();
        self.with_revivals(around, sent, |revivals, programs| {
            let Ok(died) = revivals.server_died(programs, incarnation, now);
            interrupted = died.interrupted;
            died.ended
        })?;
        let moment = self.clock.moment(around.now);
        let space = &mut self.user_space;
        let records = space.records.iter_mut();
        records.for_each(|it| it.server_died(interrupted.clone(), moment));
        space.rules.incarnation += 1;
        space.rules.settled_at = now + SETTLE_TIME;
        space.listens = false;
        space.starts_at = Some(around.now + around.rng.random_range(15 * MS..400 * MS));
        Ok(())
    }

    fn poll_server(&mut self, around: &mut Around<'_>, sent: &mut Sent) -> Result<(), Broken> {
        let now = around.now;
        if self.server.listens_at.is_none() && self.user_space.starts_at.is_none() {
            self.server_died(around, sent)?;
        }
        if self.user_space.starts_at.is_some_and(|at| at <= now) {
            self.user_space.starts_at = None;
            let life = Life {
                number: around.rng.random(),
                aligns: around.scenario.aligns && around.rng.random_bool(0.5),
            };
            self.server = Server::new(around.rng.random(), life);
            self.server.listens_at = Some(now + around.rng.random_range(MS..50 * MS));
            if around.scenario.has(PoolFlaw::GateBeforeListening) {
                let incarnation = self.user_space.rules.incarnation;
                self.plane.new_incarnation(incarnation);
            }
        }
        if !self.user_space.listens && self.server.listens(now) {
            self.user_space.listens = true;
            let incarnation = self.user_space.rules.incarnation;
            self.plane.new_incarnation(incarnation);
            let reading = self.reading(around);
            if let Some(records) = self.user_space.records.as_mut().filter(|_| incarnation > 1) {
                records.call_own(reading);
            }
            if self.user_space.membership == Membership::Waits {
                self.user_space.membership = Membership::Out(now + LOOK_PERIOD);
            }
        }
        Ok(())
    }

    fn poll_pool(&mut self, around: &mut Around<'_>, sent: &mut Sent) -> Result<(), Broken> {
        let now = around.now;
        match self.user_space.membership {
            Membership::Out(at) if now >= at => {
                self.join(around);
                Ok(())
            }
            Membership::Waits | Membership::Out(_) => Ok(()),
            Membership::Kept(epoch) => self.follow(epoch, around, sent),
        }
    }

    fn join(&mut self, around: &mut Around<'_>) {
        let membership = around.rng.random();
        let space = &mut self.user_space;
        space.claiming = Claiming::new(membership, around.rng.random::<u32>().into());
        space.others.clear();
        if let Some(records) = &mut space.records {
            records.begin_membership(membership);
        }
        space.accepts = around.scenario.has(PoolFlaw::GreetingNotAwaited);
        space.membership = Membership::Kept(0);
        self.plane.accept(space.accepts);
        self.begin_membership(membership, around.now);
    }

    fn follow(
        &mut self,
        epoch: u64,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        let Some(lease_client) = &self.lease_client else {
            return Ok(());
        };
        let (was_admitted, is_refused) =
            (lease_client.lease.is_some(), lease_client.refused.is_some());
        if lease_client.has_failed(around.now) || (is_refused && !was_admitted) {
            self.user_space.membership = Membership::Out(around.now + REJOIN_PAUSE);
            self.lease_client = None;
            return Ok(());
        }
        if let Some(table) = lease_client.table.clone()
            && was_admitted
            && table.epoch > epoch
        {
            self.user_space.membership = Membership::Kept(table.epoch);
            self.user_space.rules.settled_at = self.reading(around) + SETTLE_TIME;
            self.plane.clear_forwards();
            let members = table.members.iter();
            let others = members.map(|member| (member.membership, member.address.ip()));
            self.user_space.others = others.collect();
            let members: Vec<u64> = self.user_space.others.keys().copied().collect();
            let decided = self.user_space.claiming.set_members(members);
            if let Some(records) = &mut self.user_space.records {
                records.set_table(&table);
            }
            self.carry_out(decided, around, sent)?;
        }
        if is_refused {
            if !around.scenario.has(PoolFlaw::ConnectionsRetained) {
                self.drop_connections(around, sent)?;
            }
            self.lease_client = None;
            self.user_space.membership = Membership::Out(around.now);
        }
        Ok(())
    }

    /// Other members have the connections. The member is silent: no client hears of the end.
    fn drop_connections(&mut self, around: &mut Around<'_>, sent: &mut Sent) -> Result<(), Broken> {
        // Before the sockets end: a tombstone would answer if the connection came back.
        let now = self.reading(around);
        self.with_revivals(around, sent, |revivals, programs| {
            let Ok(ended) = revivals.drop_connections(programs, now);
            ended
        })?;
        self.user_space.queues.clear();
        let records = self.user_space.records.iter_mut();
        records.for_each(StoredRecords::forget);
        let output = self.server.clear();
        self.leave(output, around, sent)
    }

    fn receive_claims(&mut self, around: &mut Around<'_>, sent: &mut Sent) -> Result<(), Broken> {
        let reading = self.reading(around);
        let speaks = self
            .lease_client
            .as_ref()
            .is_some_and(|it| it.speaks(reading));
        while let Some(claim) = self.user_space.inbox.datagrams.pop_front() {
            let mut knows = self.plane.knows(&claim.key);
            if around.scenario.has(PoolFlaw::AnswersWithoutLease) {
                knows &= speaks;
            }
            let reception = self.user_space.claiming.on_datagram(&claim, knows, speaks);
            self.user_space.say_claims(reception.answer, sent);
            self.carry_out(reception.decided.into_iter().collect(), around, sent)?;
        }
        if self.user_space.claiming.is_known() && !self.user_space.accepts {
            self.user_space.accepts = true;
            self.plane.accept(true);
        }
        Ok(())
    }

    fn take_copies(&mut self, around: &mut Around<'_>, sent: &mut Sent) -> Result<(), Broken> {
        let now = self.reading(around);
        while let Some(copy) = self.user_space.inbox.copies.pop_front() {
            let space = &mut self.user_space;
            if copy.kind == CopyKind::Deferred {
                let records = space.records.iter_mut();
                records.for_each(|it| it.defer(copy.clone(), now));
                continue;
            }
            let is_claimed = copy.kind != CopyKind::Unknown || space.revivals.knows(&copy.key);
            if is_claimed || around.scenario.has(PoolFlaw::ClaimsIgnored) {
                self.revive(copy, around, sent)?;
            } else if space.budget.allows(now, &copy) {
                let decided = space.claiming.begin(copy.key, copy, now);
                self.carry_out(decided.into_iter().collect(), around, sent)?;
            }
        }
        let due = self.user_space.claiming.due(now);
        self.user_space.say_claims(due, sent);
        self.user_space.begin_stray_round(&mut self.plane, now);
        self.user_space.take_queued(&mut self.plane, now);
        Ok(())
    }

    fn carry_out(
        &mut self,
        decided: Vec<Decided<SegmentCopy>>,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        for Decided { segment, other } in decided {
            let to = other.map(|other| self.user_space.others.get(&other).copied());
            match to {
                None => self.revive(segment, around, sent)?,
                Some(None) => {}
                Some(Some(to)) => {
                    self.plane.forward(segment.key, to);
                    let records = self.user_space.records.iter_mut();
                    records.for_each(|it| it.on_answer(&segment.key));
                    self.send_on(segment.packet, MARK_CLIENT_SPACE, around, sent)?;
                }
            }
        }
        Ok(())
    }

    fn revive(
        &mut self,
        copy: SegmentCopy,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        let now = self.reading(around);
        let space = &mut self.user_space;
        let is_reviving = space.revivals.takes(&copy);
        let looked_up = match &mut space.records {
            Some(records) if records.is_needed_for(&copy, is_reviving) => {
                records.look_up(copy, now)
            }
            _ => {
                let record = Err(PositionError::NoStore);
                Some(LookedUp { copy, record })
            }
        };
        match looked_up {
            Some(looked_up) => self.revive_with(looked_up, around, sent),
            None => Ok(()),
        }
    }

    fn revive_with(
        &mut self,
        LookedUp { copy, record }: LookedUp,
        around: &mut Around<'_>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        let now = self.reading(around);
        let rules = Rules {
            unix_now: self.clock.unix_offset + now,
            ..self.user_space.rules
        };
        let mut is_over = copy.segment().is_some_and(|it| it.timestamps().is_some());
        self.with_revivals(around, sent, |revivals, programs| {
            let Ok(ended) = revivals.take(programs, &rules, &copy, record, now);
            is_over |= ended.is_some();
            ended.into_iter().collect()
        })?;
        if let Some(records) = self.user_space.records.as_mut().filter(|_| is_over) {
            records.on_answer(&copy.key);
        }
        Ok(())
    }

    /// Writes records, calls clients, and goes on with revivals whose records are there.
    fn keep_records(&mut self, around: &mut Around<'_>, sent: &mut Sent) -> Result<(), Broken> {
        let moment = self.clock.moment(around.now);
        let incarnation = self.user_space.rules.incarnation;
        let Some(records) = &mut self.user_space.records else {
            return Ok(());
        };
        let polled = records.poll(&mut self.plane, incarnation, moment);
        for packet in polled.calls {
            self.send_to_client(packet, around, sent);
        }
        for released in polled.released {
            if released.given_up.is_some_and(|turn| turn.must_reset) {
                let reason = PositionError::StoreLost.into();
                self.with_revivals(around, sent, |revivals, programs| {
                    let Ok(ended) = revivals.refuse(programs, released.key, reason, moment.now);
                    ended.into_iter().collect()
                })?;
            } else {
                for bytes in released.packets {
                    self.say_as_server(bytes, around, sent);
                }
            }
        }
        for looked_up in polled.found {
            self.revive_with(looked_up, around, sent)?;
        }
        Ok(())
    }

    fn with_revivals(
        &mut self,
        around: &mut Around<'_>,
        sent: &mut Sent,
        work: impl FnOnce(&mut Revivals, &mut Reached<'_>) -> Vec<Ended>,
    ) -> Result<(), Broken> {
        let mut reached = Reached {
            plane: &mut self.plane,
            scenario: around.scenario,
            to_server: Vec::new(),
            to_client: Vec::new(),
            passed_on: Vec::new(),
        };
        let ended = work(&mut self.user_space.revivals, &mut reached);
        let Reached {
            to_server,
            to_client,
            passed_on,
            ..
        } = reached;
        let moment = self.clock.moment(around.now);
        if let Some(records) = &mut self.user_space.records {
            ended.iter().for_each(|it| records.on_ended(it, moment));
        }
        sent.ended.extend(ended);
        for packet in to_client {
            self.send_to_client(packet, around, sent);
        }
        for packet in to_server {
            self.reach_server(&packet, around, sent)?;
        }
        for packet in passed_on {
            self.send_on(packet, MARK_CLIENT_SPACE, around, sent)?;
        }
        Ok(())
    }
}
