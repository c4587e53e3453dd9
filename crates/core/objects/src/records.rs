//! Records of this pool's connections in the store (TRODS 4.1).
//!
//! | module | |
//! |---|---|
//! | `calls` | clients of dead members that may wait for bytes without a word |
//! | `keeping` | the records that this member has written |
//! | `looking` | records that a revival needs |
//! | `names` | the members that may have written records |
//! | `pending` | operations under way |
//!
//! A turn that is still under way after a delay is written once ([`crate::turns`]). With the confirmation of the
//! store the programs tell the client by timestamps, and acknowledge the request as soon as the client echoes that. So
//! a client that holds no request any more has an echo that says so, and only such a client needs the record.

mod calls;
mod keeping;
mod looking;
mod names;
mod pending;

use alloc::string::ToString as _;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use wire::{FlowKey, Segment, SeqNumber};

use self::{
    calls::Calls,
    keeping::Written,
    looking::LookUps,
    names::Names,
    pending::{Operations, Pending},
};
use crate::PoolKey;
use crate::deferred::{DeferredResponses, Released};
use crate::flaws::Flaws;
use crate::flow::Flow;
use crate::plane::{CopyKind, SegmentCopy, StoreKind};
use crate::record::{HashName, Record, RecordKey, StoreKey};
use crate::revivals::AskedRequest;
use crate::revive::{PositionError, Revival};
use crate::store::{
    Failure, Lookup, Nonces, ScanPosition, Store, StoreAcks, Stores, StoresCompletion, StoresEvent,
    StoresOutcome,
};
use crate::timestamp::{ClientOptions, State, StateBits};
use crate::turns::{Beginnings, Turns, Writer};

/// Pause between two looks at the ring of turns, while requests come.
const DRAIN_PERIOD: Duration = Duration::from_millis(5);
/// The same after a while without requests: the client holds the request for so long.
const IDLE_DRAIN_PERIOD: Duration = Duration::from_millis(100);
/// Generations in the difference between the clocks of two hosts ([`crate::revive::CLOCK_DIFFERENCE`]).
pub(crate) const GENERATIONS_OF_CLOCK_DIFFERENCE: u32 = 100;
/// Tries to write a record.
const PUT_TRIES_MAX: u32 = 8;

/// The flows of a member's programs, as the records see these.
pub trait StoredFlows {
    /// A call fails.
    type Error;

    /// A connection.
    ///
    /// # Errors
    /// The call fails.
    fn flow(&mut self, key: FlowKey) -> Result<Option<Flow>, Self::Error>;

    /// The store has confirmed the record of this turn. Returns whether the turn is under way.
    ///
    /// # Errors
    /// The call fails.
    fn set_stored(
        &mut self,
        key: FlowKey,
        number: u32,
        request_start: SeqNumber,
        state: StateBits,
    ) -> Result<bool, Self::Error>;

    /// The turn gets no record, and goes on without protection.
    ///
    /// # Errors
    /// The call fails.
    fn give_up_record(
        &mut self,
        key: FlowKey,
        number: u32,
        request_start: SeqNumber,
    ) -> Result<(), Self::Error>;

    /// Whether a record can be written now.
    ///
    /// # Errors
    /// The call fails.
    fn set_store(&mut self, kind: StoreKind) -> Result<(), Self::Error>;
}

/// Settings of a member's records.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The first address of the service.
    pub service: SocketAddr,
    /// Key of the pool.
    pub key: PoolKey,
    /// Time from a request to its record.
    pub delay: Duration,
    /// When a put is over.
    pub acks: StoreAcks,
    /// Every store has a list of the records of a member.
    pub has_index: bool,
}

/// The clocks of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Any clock that only advances.
    pub now: Duration,
    /// Time since the Unix epoch.
    pub unix: Duration,
}

/// The records of a member.
pub struct Records<S> {
    stores: Stores<S>,
    names: Names,
    delay: Duration,
    turns: Turns,
    deferred: DeferredResponses,
    next_drain: Duration,
    availability: Availability,
    pending: Operations,
    kept: Written,
    look_ups: LookUps,
    calls: Calls,
    owner: u64,
    notices: Vec<Notice>,
    flaws: Flaws,
}

/// The stores that answer.
#[derive(Debug)]
struct Availability {
    answers: Vec<bool>,
    acks: StoreAcks,
    has_index: bool,
}

/// News for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A store does not answer.
    Lost {
        /// Which store, from 0.
        store: usize,
        /// The reason.
        failure: Failure,
    },
    /// A store answers.
    Connected {
        /// Which store, from 0.
        store: usize,
    },
    /// A record was not written, or not read; or the record is beyond the limits.
    Failed {
        /// The connection.
        key: FlowKey,
        /// The reason.
        failure: Failure,
    },
    /// The records of a member, or the names of members, were not read or written.
    NotListed(Failure),
}

/// A segment whose record was looked up.
#[derive(Debug)]
pub struct LookedUp {
    /// The segment.
    pub copy: SegmentCopy,
    /// The record of the connection, or why there is none.
    pub record: Result<Record, PositionError>,
}

impl Availability {
    /// Whether a record can be written now.
    fn has_store(&self) -> bool {
        let mut answers = self.answers.iter();
        match self.acks {
            StoreAcks::Both => answers.all(|answers| *answers),
            StoreAcks::First => answers.any(|answers| *answers),
        }
    }

    fn kind(&self) -> StoreKind {
        match self.has_store() {
            false => StoreKind::None,
            true if self.has_index => StoreKind::Indexed,
            true => StoreKind::Unindexed,
        }
    }
}

impl<S: Store> Records<S> {
    /// `member`: the name of this member.
    #[must_use]
    pub fn new(settings: &Settings, member: &str, stores: Vec<S>, nonces: Nonces) -> Self {
        let Settings {
            service,
            key,
            delay,
            acks,
            has_index,
        } = *settings;
        Self {
            availability: Availability {
                answers: vec![false; stores.len()],
                acks,
                has_index,
            },
            stores: Stores::new(stores, RecordKey::of(&key), nonces, acks),
            names: Names::new(service, key, member),
            delay,
            turns: Turns::default(),
            deferred: DeferredResponses::default(),
            next_drain: Duration::ZERO,
            pending: Operations::default(),
            kept: Written::default(),
            look_ups: LookUps::default(),
            calls: Calls::default(),
            owner: 0,
            notices: Vec::new(),
            flaws: Flaws::default(),
        }
    }

    /// Plants mistakes.
    #[cfg(feature = "flaws")]
    pub const fn plant(&mut self, flaws: Flaws) {
        self.flaws = flaws;
        self.stores.plant(flaws);
    }

    /// The stores.
    #[must_use]
    pub fn stores(&self) -> &[S] {
        self.stores.stores()
    }

    /// Whether each store answers.
    #[must_use]
    pub fn answers(&self) -> &[bool] {
        &self.availability.answers
    }

    /// The stores, for a caller that carries messages.
    pub fn stores_mut(&mut self) -> &mut [S] {
        self.stores.stores_mut()
    }

    /// When [`Records::poll`] has something to do.
    pub fn deadline(&self) -> Duration {
        let due = [
            self.turns.deadline(),
            self.kept.deadline(),
            (self.look_ups.deadline()).filter(|_| !self.names.are_awaited()),
            self.calls.deadline(),
            self.deferred.deadline(),
            self.names.deadline(),
        ];
        due.into_iter()
            .flatten()
            .fold(self.next_drain, Duration::min)
    }

    /// Whether nothing of any connection is left.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty()
            && self.kept.is_empty()
            && self.look_ups.is_empty()
            && self.calls.is_empty()
            && self.deferred.deadline().is_none()
            && !self.pending.has_connection()
    }

    /// A new membership.
    pub fn begin_membership(&mut self, membership: u64) {
        self.owner = membership;
        self.forget();
        self.names.begin_membership();
    }

    /// Other members have the connections, and need the records.
    pub fn forget(&mut self) {
        self.turns.clear();
        self.deferred.clear();
        self.kept.clear();
        self.look_ups.clear();
        self.calls.clear();
        self.pending.retain_names();
    }

    /// The pool has changed: the clients of memberships that are over are called. `members`: membership and name of
    /// each.
    pub fn set_members<'m>(&mut self, members: impl Iterator<Item = (u64, &'m str)>) {
        let names = self.names.note(members);
        if self.availability.has_index {
            names.into_iter().for_each(|name| self.scan(name));
        }
    }

    /// Carries everything out that is due. `beginnings`: copies of the segments that begin turns and responses. `owns`:
    /// whether the balancer gives a connection to this member. Returns the segments whose records are looked up.
    ///
    /// # Errors
    /// A call of the programs fails.
    pub fn poll<F: StoredFlows>(
        &mut self,
        flows: &mut F,
        beginnings: &Beginnings,
        (incarnation, moment): (u32, Moment),
        owns: impl Fn(&FlowKey) -> bool,
    ) -> Result<Vec<LookedUp>, F::Error> {
        let mut found = Vec::new();
        let mut happened = Vec::new();
        self.stores.poll(&mut happened);
        for event in happened {
            match event {
                StoresEvent::Completed(StoresCompletion { ticket, outcome }) => {
                    if let Some(pending) = self.pending.remove(&ticket) {
                        self.note_failure(&pending, &outcome);
                        found.extend(self.complete(flows, pending, outcome, moment, &owns)?);
                    }
                }
                StoresEvent::Lost { store, failure } => {
                    self.set_answers(flows, store, false)?;
                    self.notices.push(Notice::Lost { store, failure });
                }
                StoresEvent::Connected {
                    store,
                    is_other_instance,
                } => {
                    self.set_answers(flows, store, true)?;
                    self.names.on_connected();
                    self.notices.push(Notice::Connected { store });
                    if is_other_instance {
                        // The records may be lost.
                        for (key, record) in self.kept.own_records(&self.names) {
                            self.put(key, record, 1);
                        }
                    }
                }
            }
        }
        self.keep_names(moment);
        self.drain(flows, beginnings, moment)?;
        for key in self.look_ups.due(moment.now, self.names.are_awaited()) {
            self.ask(key);
        }
        for name in self.calls.due_scans(moment.now) {
            self.scan(name);
        }
        for step in self.kept.due(flows, incarnation, moment.now)? {
            self.keep(step, moment);
        }
        Ok(found)
    }

    /// News since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        core::mem::take(&mut self.notices)
    }

    /// The server has died: no segment of its sockets leaves.
    ///
    /// `interrupted`: revivals that were under way, with their records.
    pub fn server_died(&mut self, interrupted: Vec<(FlowKey, Record)>, moment: Moment) {
        for (key, record) in interrupted {
            self.on_revived(key, &record, false, moment);
        }
        self.kept.server_died(moment.now);
        self.deferred.clear();
        self.turns.clear();
        // A record of the dead server's response says nothing of the next server's response to the same request.
        self.pending.forget_puts();
    }

    /// A segment of the server waits for the record of its turn.
    pub fn defer(&mut self, copy: SegmentCopy, now: Duration) {
        self.deferred.add(copy, now);
    }

    /// Responses that wait no longer. A turn that gets no record goes on without protection.
    ///
    /// # Errors
    /// A call of the programs fails.
    pub fn released<F: StoredFlows>(
        &mut self,
        flows: &mut F,
        now: Duration,
    ) -> Result<Vec<Released>, F::Error> {
        if self.deferred.deadline().is_none_or(|at| now < at) {
            return Ok(Vec::new());
        }
        let (turns, pending) = (&self.turns, &self.pending);
        let may_be_stored = |key: &FlowKey| turns.knows(key) || pending.is_writing(key);
        let flow = |key| flows.flow(key);
        let released = self.deferred.take_due(now, flow, may_be_stored)?;
        for given_up in &released {
            if let Some(turn) = given_up.given_up.filter(|turn| !turn.must_reset) {
                flows.give_up_record(given_up.key, turn.number, turn.request_start)?;
            }
        }
        Ok(released)
    }

    /// A revival has passed a request to the server, and the response waits for a record.
    pub fn on_asked(&mut self, key: FlowKey, asked: AskedRequest, now: Duration) {
        self.turns.on_asked(key, asked, now + self.delay);
    }

    /// Segments that call clients, as many as may leave now.
    ///
    /// # Errors
    /// A call of the programs fails.
    pub fn due_calls<F: StoredFlows>(
        &mut self,
        flows: &mut F,
        incarnation: u32,
        now: Duration,
    ) -> Result<Vec<Vec<u8>>, F::Error> {
        let serves = |key| {
            let flow = flows.flow(key)?;
            Ok(flow.is_some_and(|flow| flow.incarnation == incarnation))
        };
        self.calls.due(&self.names.key, now, serves)
    }

    fn note_failure(&mut self, pending: &Pending, outcome: &StoresOutcome) {
        let notice = match (pending, outcome) {
            (Pending::Put { key, .. }, StoresOutcome::Put(Err(failure)))
            | (Pending::LookUp(key), StoresOutcome::LookUp(Err(failure))) => {
                let (key, failure) = (*key, failure.clone());
                Some(Notice::Failed { key, failure })
            }
            (Pending::Scan(_), StoresOutcome::Page(page)) => {
                page.failure.clone().map(Notice::NotListed)
            }
            (Pending::AddMember, StoresOutcome::Added(Err(failure))) => {
                Some(Notice::NotListed(failure.clone()))
            }
            (Pending::Members(_), StoresOutcome::Members(found)) => {
                found.failure.clone().map(Notice::NotListed)
            }
            _ => None,
        };
        self.notices.extend(notice);
    }

    fn set_answers<F: StoredFlows>(
        &mut self,
        flows: &mut F,
        store: usize,
        answers: bool,
    ) -> Result<(), F::Error> {
        if let Some(place) = self.availability.answers.get_mut(store) {
            *place = answers;
        }
        flows.set_store(self.availability.kind())
    }

    fn complete<F: StoredFlows>(
        &mut self,
        flows: &mut F,
        pending: Pending,
        outcome: StoresOutcome,
        moment: Moment,
        owns: impl Fn(&FlowKey) -> bool,
    ) -> Result<Option<LookedUp>, F::Error> {
        match (pending, outcome) {
            (Pending::Put { key, record, .. }, StoresOutcome::Put(Ok(()))) => {
                self.confirm(flows, key, record, moment.now)?;
            }
            (Pending::Put { key, record, tries }, StoresOutcome::Put(Err(_))) => {
                self.deferred.wake(&key);
                let is_newest =
                    !self.pending.is_writing(&key) && !self.kept.is_behind(&key, &record);
                if tries < PUT_TRIES_MAX && is_newest && self.availability.has_store() {
                    self.put(key, record, tries + 1);
                }
            }
            (Pending::LookUp(key), StoresOutcome::LookUp(result)) => {
                if let Ok(Lookup::Found(name, record)) = &result {
                    self.names.note_owner(name.hash, record);
                }
                return Ok(self.look_ups.complete(key, result, &self.names, moment.now));
            }
            (Pending::AddMember, StoresOutcome::Added(result)) => {
                self.names.note_addition(result.is_ok(), moment.now);
            }
            (Pending::Members(look), StoresOutcome::Members(found)) => {
                let found = self.flaws.listed(found);
                let names = self.names.note_listed(look, found, moment.now);
                let has_index = self.availability.has_index;
                for name in names.into_iter().filter(|_| has_index) {
                    self.scan(name);
                }
            }
            (Pending::Scan(name), StoresOutcome::Page(page)) => {
                if page.failure.is_some() {
                    self.calls.retry_scan(name, moment.now);
                }
                let next = page.next;
                let records = page.records.into_iter();
                let names = &self.names;
                // No other member reads the records of this member's earlier life.
                let is_called = |(of, record): &(StoreKey, Record)| {
                    names.is_orphaned(record) && (name == names.own || owns(&of.flow))
                };
                self.calls.extend(records.filter(is_called), moment.now);
                if let Some(position) = next {
                    let ticket = self.stores.scan(name, position);
                    self.pending.insert(ticket, Pending::Scan(name));
                }
            }
            _ => {}
        }
        Ok(None)
    }

    /// The turns that are due are written.
    fn drain<F: StoredFlows>(
        &mut self,
        flows: &mut F,
        beginnings: &Beginnings,
        Moment { now, unix }: Moment,
    ) -> Result<(), F::Error> {
        for (key, newest) in beginnings.iter() {
            if let Some(segment) = newest.request() {
                self.turns.on_request(*key, &segment, now + self.delay);
            }
            if let Some(segment) = newest.response() {
                self.turns.on_response(*key, &segment, now);
            }
        }
        let is_busy = !beginnings.is_empty() || !self.turns.is_empty();
        self.next_drain = now
            + match is_busy {
                true => DRAIN_PERIOD,
                false => IDLE_DRAIN_PERIOD,
            };
        let writer = Writer {
            owner: self.owner,
            generation: generation(unix),
        };
        let due = self.turns.take_due(now, writer, |key| flows.flow(key))?;
        for (key, mut record) in due {
            let known = self.kept.record(&key).map(|known| known.generation);
            let next = known.map_or(0, |known| known.wrapping_add(1));
            record.generation = record.generation.max(next);
            if !self
                .flaws
                .awaits_confirmation(record.options.has_timestamps)
            {
                self.confirm(flows, key, record.clone(), now)?;
            }
            self.put(key, record, 1);
        }
        Ok(())
    }

    fn put(&mut self, key: FlowKey, record: Record, tries: u32) {
        match self.stores.put(self.names.own(key), &record) {
            Ok(ticket) => {
                let put = Pending::Put { key, record, tries };
                self.pending.insert(ticket, put);
            }
            Err(error) => {
                let failure = Failure::TooLarge(error.to_string());
                self.notices.push(Notice::Failed { key, failure });
            }
        }
    }

    /// The store has written a record of this member.
    fn confirm<F: StoredFlows>(
        &mut self,
        flows: &mut F,
        key: FlowKey,
        record: Record,
        now: Duration,
    ) -> Result<(), F::Error> {
        let Some(turn) = record.turns.last() else {
            return Ok(());
        };
        let (number, start) = (turn.number, turn.request_start);
        // Segments without timestamps have no state.
        let options = record.options.rounded();
        let options = options.unwrap_or(ClientOptions::of_number(0));
        let state = State::stored(&self.names.key, &key, record.slot, options, number);
        self.deferred.wake(&key);
        let name = self.names.own(key);
        if flows.set_stored(key, number, start, state.bits())? {
            let replaced = self.kept.insert(key, name, record, now);
            if let Some(old) = replaced.filter(|old| *old != name) {
                self.delete(old);
            }
        } else if self.kept.name(&key) != Some(name) && !self.pending.is_writing(&key) {
            self.delete(name);
        }
        Ok(())
    }

    fn delete(&mut self, name: StoreKey) {
        let ticket = self.stores.delete(name);
        self.pending.insert(ticket, Pending::Other);
    }

    fn keep(&mut self, step: keeping::Task, moment: Moment) {
        match step {
            // The record on the way has the same name.
            keeping::Task::Delete(name) if self.pending.is_writing(&name.flow) => {}
            keeping::Task::Delete(name) => self.delete(name),
            keeping::Task::Renew(name) => {
                let ticket = self.stores.renew(name);
                self.pending.insert(ticket, Pending::Other);
            }
            keeping::Task::Write(key, mut record) => {
                record.generation = generation(moment.unix).max(record.generation.wrapping_add(1));
                record.owner = self.owner;
                self.put(key, record, 1);
            }
        }
    }

    /// The own name is in the list of members, and the other names of the list are known.
    fn keep_names(&mut self, moment: Moment) {
        if let Some(list) = self.names.due_addition(moment) {
            let ticket = self.stores.add_member(list, self.names.own.member());
            self.pending.insert(ticket, Pending::AddMember);
        }
        if let Some((look, lists)) = self.names.due_look(moment) {
            let ticket = self.stores.members(&lists);
            self.pending.insert(ticket, Pending::Members(look));
        }
    }

    fn scan(&mut self, name: HashName) {
        let ticket = self.stores.scan(name, ScanPosition::START);
        self.pending.insert(ticket, Pending::Scan(name));
    }

    fn ask(&mut self, key: FlowKey) {
        let ticket = self.stores.look_up(&self.names.all(), key);
        self.look_ups.note_asked(key, self.names.version);
        self.pending.insert(ticket, Pending::LookUp(key));
    }

    /// The record that a segment needs: at once, if this member has written the record; otherwise [`Records::poll`]
    /// returns the segment with the record.
    pub fn look_up(&mut self, copy: SegmentCopy, now: Duration) -> Option<LookedUp> {
        if let Some(record) = self.kept.record(&copy.key) {
            let record = Ok(record.clone());
            return Some(LookedUp { copy, record });
        }
        let key = copy.key;
        if self.look_ups.begin(copy, now) && !self.names.are_awaited() {
            self.ask(key);
        }
        None
    }

    /// A revival with this record has ended.
    pub fn on_revived(&mut self, key: FlowKey, found: &Record, is_stored: bool, moment: Moment) {
        let old = { self.names.known.iter() }
            .find(|(membership, _)| **membership == found.owner)
            .map(|(_, name)| StoreKey::new(*name, key));
        let name = old.unwrap_or(self.names.own(key));
        // The client needs the record until the echo is of this member's response. Records of this member are newer,
        // also than a record that the dead member has written since, whose clock may be ahead.
        let mut known = found.clone();
        let newest = generation(moment.unix).max(found.generation);
        known.generation = newest.wrapping_add(GENERATIONS_OF_CLOCK_DIFFERENCE);
        self.kept.insert(key, name, known.clone(), moment.now);
        if is_stored {
            self.keep(keeping::Task::Write(key, known), moment);
        }
    }

    /// Whether a record can be written now.
    #[must_use]
    pub fn has_store(&self) -> bool {
        self.availability.has_store()
    }

    /// An answer of a client: no call is needed any more.
    pub fn on_answer(&mut self, key: &FlowKey) {
        self.calls.remove(key);
    }

    /// The server is there again after a death: clients may wait without a word.
    pub fn call_own(&mut self, now: Duration) {
        let records = self.kept.records();
        self.calls.extend(records, now);
    }

    /// Whether the segment needs a record that is not looked up yet. `is_reviving`: a revival of the connection is
    /// under way. Without an index of the store each client keeps its request, and sends the request soon.
    #[must_use]
    pub fn is_needed_for(&self, copy: &SegmentCopy, is_reviving: bool) -> bool {
        let needs_record = |segment: Segment<'_>| {
            let has_request = !segment.payload().is_empty();
            Revival::needs_record(&segment) && (has_request || self.availability.has_index)
        };
        copy.kind != CopyKind::Parked && !is_reviving && copy.segment().is_some_and(needs_record)
    }
}

/// Grows with the time, and from member to member: a sixteenth of a second is more than a record takes.
fn generation(unix: Duration) -> u32 {
    let [a, b, c, d, ..] = (unix.as_millis() / 62).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
