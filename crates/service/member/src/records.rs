//! Records of this pool's connections in the store (TRODS 4.1).
//!
//! | module | |
//! |---|---|
//! | `calls` | clients of dead members that may wait for bytes without a word |
//! | `keeping` | the records that this member has written |
//! | `looking` | records that a revival needs |
//!
//! A turn that is still under way after a delay is written once ([`objects::turns`]). With the confirmation of the
//! store the programs tell the client by timestamps, and acknowledge the request as soon as the client echoes that. So
//! a client that holds no request any more has an echo that says so, and only such a client needs the record.

mod calls;
mod keeping;
mod looking;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::SocketAddr,
    os::fd::BorrowedFd,
    rc::Rc,
    time::Duration,
};

use dataplane::{MemberPlane, ObjectRing};
use objects::{
    PoolKey,
    deferred::{DeferredResponses, Released},
    plane::{CopyKind, SegmentCopy, StoreKind},
    record::{HashName, MemberHash, Record, RecordKey, StoreKey},
    revivals::AskedRequest,
    revive::{PositionError, Revival},
    timestamp::{ClientOptions, State},
    turns::{Turns, Writer},
};
use protocol::pool::{StoreSettings, Table};
use store::{
    Settings, Store as _, StoreAcks, StoreClient, Stores, StoresCompletion, StoresEvent,
    StoresOutcome, StoresTicket,
};
use wire::{FlowKey, Segment};

use self::{calls::Calls, keeping::Written, looking::LookUps};
use crate::{
    clock,
    error::{MemberError, SystemContext},
    event::Event,
    revivals::{Revivals, owned},
};

/// Pause between two looks at the ring of turns, while requests come.
const DRAIN_PERIOD: Duration = Duration::from_millis(5);
/// The same after a while without requests: the client holds the request for so long.
const IDLE_DRAIN_PERIOD: Duration = Duration::from_millis(100);
/// URLs of stores without a list of the records of a member.
const UNINDEXED_SCHEME: &str = "memcached:";
/// Generations in the difference between the clocks of two hosts ([`objects::revive::CLOCK_DIFFERENCE`]).
const GENERATIONS_OF_CLOCK_DIFFERENCE: u32 = 100;
/// Tries to write a record.
const PUT_TRIES_MAX: u32 = 8;

/// The store of a member.
pub(crate) struct Records {
    stores: Stores<StoreClient>,
    names: Names,
    delay: Duration,
    ring: ObjectRing<'static>,
    copied: Rc<RefCell<Vec<SegmentCopy>>>,
    turns: Turns,
    deferred: DeferredResponses,
    next_drain: Duration,
    /// Whether each store answers.
    answers: Vec<bool>,
    needs_all: bool,
    pending: HashMap<StoresTicket, Pending>,
    kept: Written,
    look_ups: LookUps,
    calls: Calls,
    owner: u64,
}

/// Names in the store.
struct Names {
    service: SocketAddr,
    key: PoolKey,
    own: HashName,
    /// Of all members that this member has heard of, by membership.
    known: BTreeMap<u64, HashName>,
    /// The memberships of the newest table.
    present: BTreeSet<u64>,
}

/// An operation under way.
enum Pending {
    Put {
        key: FlowKey,
        record: Record,
        tries: u32,
    },
    LookUp(FlowKey),
    Scan(HashName),
    Other,
}

/// A segment whose record was looked up.
pub(crate) struct LookedUp {
    pub(crate) copy: SegmentCopy,
    pub(crate) record: Result<Record, PositionError>,
}

impl Names {
    fn of(&self, member: &str) -> HashName {
        HashName::new(self.service, MemberHash::of(member, &self.key))
    }

    fn own(&self, key: FlowKey) -> StoreKey {
        StoreKey::new(self.own, key)
    }

    /// Notes the members of a table. Returns the names of members that are gone.
    fn note(&mut self, table: &Table) -> Vec<HashName> {
        let now: BTreeMap<u64, HashName> = { table.members.iter() }
            .map(|member| (member.membership, self.of(member.name.as_str())))
            .collect();
        let gone = { self.present.iter() }
            .filter(|membership| !now.contains_key(membership))
            .filter_map(|membership| self.known.get(membership).copied())
            .collect();
        self.present = now.keys().copied().collect();
        self.known.extend(now);
        gone
    }

    fn all(&self) -> Vec<HashName> {
        let mut all: Vec<HashName> = self.known.values().copied().collect();
        all.push(self.own);
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Records {
    /// Begins to connect to the stores. `member`: the name of this member.
    ///
    /// # Errors
    /// A URL is malformed, or the host has no address.
    pub(crate) fn open(
        settings: &StoreSettings,
        key: PoolKey,
        service: SocketAddr,
        member: &str,
        plane: &MemberPlane,
    ) -> Result<Self, MemberError> {
        let stores: Result<Vec<StoreClient>, MemberError> = { settings.urls.iter() }
            .map(|url| {
                let url = url.text.parse().map_err(MemberError::StoreUrl)?;
                StoreClient::open(&url, Settings::default()).doing("find the store")
            })
            .collect();
        let stores = stores?;
        let acks = match settings.needs_all {
            true => StoreAcks::Both,
            false => StoreAcks::First,
        };
        let copied: Rc<RefCell<Vec<SegmentCopy>>> = Rc::default();
        let into_copied = Rc::clone(&copied);
        Ok(Self {
            answers: vec![false; stores.len()],
            stores: Stores::new(stores, RecordKey::of(&key), rand::random, acks),
            names: Names {
                service,
                key,
                own: HashName::new(service, MemberHash::of(member, &key)),
                known: BTreeMap::new(),
                present: BTreeSet::new(),
            },
            delay: Duration::from_micros(settings.after_us.into()),
            ring: plane.turns(move |copy| into_copied.borrow_mut().push(owned(copy)))?,
            copied,
            turns: Turns::default(),
            deferred: DeferredResponses::default(),
            next_drain: Duration::ZERO,
            needs_all: settings.needs_all,
            pending: HashMap::new(),
            kept: Written::default(),
            look_ups: LookUps::default(),
            calls: Calls::default(),
            owner: 0,
        })
    }

    /// Readable when something is to do.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.stores
            .stores()
            .iter()
            .map(StoreClient::readiness)
            .chain([self.ring.as_fd()])
    }

    /// When [`Records::poll`] has something to do.
    pub(crate) fn deadline(&self) -> Duration {
        let due = [
            self.turns.deadline(),
            self.kept.deadline(),
            self.look_ups.deadline(),
            self.calls.deadline(),
            self.deferred.deadline(),
        ];
        due.into_iter()
            .flatten()
            .fold(self.next_drain, Duration::min)
    }

    /// A new membership.
    pub(crate) fn begin_membership(&mut self, membership: u64) {
        self.owner = membership;
        self.forget();
        self.names.present.clear();
    }

    /// Other members have the connections, and need the records.
    pub(crate) fn forget(&mut self) {
        self.turns.clear();
        self.deferred.clear();
        self.kept.clear();
        self.look_ups.clear();
        self.calls.clear();
        self.pending.clear();
    }

    /// The pool has changed: the clients of the members that are gone are called.
    pub(crate) fn set_table(&mut self, table: &Table, key: protocol::pool::PoolKey) {
        self.calls.set_table(table, key, self.owner);
        let gone = self.names.note(table);
        if self.has_index() {
            gone.into_iter().for_each(|name| self.scan(name));
        }
    }

    /// Carries everything out that is due. Returns the segments whose records are looked up.
    pub(crate) fn poll(
        &mut self,
        plane: &MemberPlane,
        incarnation: u32,
        events: &mut Vec<Event>,
    ) -> Result<Vec<LookedUp>, MemberError> {
        let mut found = Vec::new();
        let mut happened = Vec::new();
        self.stores.poll(&mut happened);
        for event in happened {
            self.take(plane, event, &mut found, events)?;
        }
        self.drain(plane)?;
        let now = clock::now();
        for key in self.look_ups.due(now) {
            self.ask(key);
        }
        for name in self.calls.due_scans(now) {
            self.scan(name);
        }
        for step in self.kept.due(plane, incarnation, now)? {
            self.keep(step);
        }
        Ok(found)
    }

    /// The server has died: no segment of its sockets leaves.
    pub(crate) fn server_died(&mut self) {
        self.deferred.clear();
        self.turns.clear();
        // A record of the dead server's response says nothing of the next server's response to the same request.
        for pending in self.pending.values_mut() {
            if matches!(pending, Pending::Put { .. }) {
                *pending = Pending::Other;
            }
        }
    }

    /// A segment of the server waits for the record of its turn.
    pub(crate) fn defer(&mut self, copy: SegmentCopy) {
        self.deferred.add(copy, clock::now());
    }

    /// Responses that wait no longer. A turn that gets no record goes on without protection.
    pub(crate) fn released(&mut self, plane: &MemberPlane) -> Result<Vec<Released>, MemberError> {
        let now = clock::now();
        if self.deferred.deadline().is_none_or(|at| now < at) {
            return Ok(Vec::new());
        }
        let turns = &self.turns;
        let written: HashSet<FlowKey> = { self.pending.values() }
            .filter_map(|pending| match pending {
                Pending::Put { key, .. } => Some(*key),
                _ => None,
            })
            .collect();
        let may_be_stored = |key: &FlowKey| turns.knows(key) || written.contains(key);
        let flow = |key| plane.flow(key);
        let released = self.deferred.take_due(now, flow, may_be_stored)?;
        for given_up in &released {
            if let Some(turn) = given_up.given_up.filter(|turn| !turn.must_reset) {
                plane.give_up_record(given_up.key, turn.number, turn.request_start)?;
            }
        }
        Ok(released)
    }

    /// A revival has passed a request to the server, and the response waits for a record.
    pub(crate) fn on_asked(&mut self, key: FlowKey, asked: AskedRequest) {
        self.turns.on_asked(key, asked, clock::now() + self.delay);
    }

    /// Segments that call clients, as many as may leave now.
    pub(crate) fn due_calls(
        &mut self,
        plane: &MemberPlane,
        incarnation: u32,
    ) -> Result<Vec<Vec<u8>>, MemberError> {
        let serves = |key| {
            let flow = plane.flow(key)?;
            Ok::<_, MemberError>(flow.is_some_and(|flow| flow.incarnation == incarnation))
        };
        self.calls.due(&self.names.key, clock::now(), serves)
    }

    fn take(
        &mut self,
        plane: &MemberPlane,
        event: StoresEvent,
        found: &mut Vec<LookedUp>,
        events: &mut Vec<Event>,
    ) -> Result<(), MemberError> {
        match event {
            StoresEvent::Completed(StoresCompletion { ticket, outcome }) => {
                if let Some(pending) = self.pending.remove(&ticket) {
                    self.complete(plane, pending, outcome, found)?;
                }
            }
            StoresEvent::Lost { store, failure } => {
                self.set_answers(plane, store, false)?;
                let reason = failure.to_string();
                events.push(Event::StoreLost {
                    store: self.name_of(store),
                    reason,
                });
            }
            StoresEvent::Connected {
                store,
                is_other_instance,
            } => {
                self.set_answers(plane, store, true)?;
                let store = self.name_of(store);
                events.push(Event::StoreConnected { store });
                if is_other_instance {
                    // The records may be lost.
                    for (key, record) in self.kept.own_records(&self.names) {
                        self.put(key, record, 1);
                    }
                }
            }
        }
        Ok(())
    }

    fn name_of(&self, store: usize) -> String {
        let store = self.stores.stores().get(store);
        store.map_or_else(String::new, |store| store.name().to_owned())
    }

    fn set_answers(
        &mut self,
        plane: &MemberPlane,
        store: usize,
        answers: bool,
    ) -> Result<(), MemberError> {
        if let Some(place) = self.answers.get_mut(store) {
            *place = answers;
        }
        Ok(plane.set_store(match self.has_store() {
            false => StoreKind::None,
            true if self.has_index() => StoreKind::Indexed,
            true => StoreKind::Unindexed,
        })?)
    }

    /// Whether the records of a dead member can be listed, and the clients called.
    pub(crate) fn has_index(&self) -> bool {
        let mut stores = self.stores.stores().iter();
        !stores.any(|store| store.name().starts_with(UNINDEXED_SCHEME))
    }

    /// Whether a record can be written now.
    fn has_store(&self) -> bool {
        let mut answers = self.answers.iter();
        match self.needs_all {
            true => answers.all(|answers| *answers),
            false => answers.any(|answers| *answers),
        }
    }

    fn complete(
        &mut self,
        plane: &MemberPlane,
        pending: Pending,
        outcome: StoresOutcome,
        found: &mut Vec<LookedUp>,
    ) -> Result<(), MemberError> {
        match (pending, outcome) {
            (Pending::Put { key, record, .. }, StoresOutcome::Put(Ok(()))) => {
                self.confirm(plane, key, record)?;
            }
            (Pending::Put { key, record, tries }, StoresOutcome::Put(Err(error))) => {
                tracing::debug!(%error, client = %key.client(), "a record was not written");
                self.deferred.wake(&key);
                let is_newest = !self.is_being_written(&key) && !self.kept.is_behind(&key, &record);
                if tries < PUT_TRIES_MAX && is_newest && self.has_store() {
                    self.put(key, record, tries + 1);
                }
            }
            (Pending::LookUp(key), StoresOutcome::LookUp(result)) => {
                found.extend(self.look_ups.complete(key, result, clock::now()));
            }
            (Pending::Scan(name), StoresOutcome::Page(page)) => {
                if let Some(failure) = &page.failure {
                    tracing::debug!(%failure, "the records of a member were not read");
                    self.calls.retry_scan(name, clock::now());
                }
                let next = page.next;
                self.calls.extend(page.records, clock::now());
                if let Some(position) = next {
                    let ticket = self.stores.scan(name, position);
                    self.pending.insert(ticket, Pending::Scan(name));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The turns that are due are written.
    fn drain(&mut self, plane: &MemberPlane) -> Result<(), MemberError> {
        self.ring.consume()?;
        let now = clock::now();
        let copied: Vec<SegmentCopy> = self.copied.borrow_mut().drain(..).collect();
        for copy in &copied {
            let Some(segment) = copy.segment() else {
                continue;
            };
            match copy.kind {
                CopyKind::Request => {
                    let due = now + self.delay;
                    self.turns.on_request(copy.key, &segment, due);
                }
                CopyKind::Response => self.turns.on_response(copy.key, &segment, now),
                CopyKind::Unknown
                | CopyKind::Client
                | CopyKind::Parked
                | CopyKind::Deferred
                | CopyKind::Queued => {}
            }
        }
        let is_busy = !copied.is_empty() || !self.turns.is_empty();
        self.next_drain = now
            + match is_busy {
                true => DRAIN_PERIOD,
                false => IDLE_DRAIN_PERIOD,
            };
        let writer = Writer {
            owner: self.owner,
            generation: generation(),
        };
        let due = self.turns.take_due(now, writer, |key| plane.flow(key))?;
        for (key, mut record) in due {
            let known = self.kept.record(&key).map(|known| known.generation);
            let next = known.map_or(0, |known| known.wrapping_add(1));
            record.generation = record.generation.max(next);
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
                tracing::debug!(%error, client = %key.client(), "a connection without a record");
            }
        }
    }

    /// The store has written a record of this member.
    fn confirm(
        &mut self,
        plane: &MemberPlane,
        key: FlowKey,
        record: Record,
    ) -> Result<(), MemberError> {
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
        if plane.set_stored(key, number, start, state.bits())? {
            let replaced = self.kept.insert(key, name, record, clock::now());
            if let Some(old) = replaced.filter(|old| *old != name) {
                self.delete(old);
            }
        } else if self.kept.name(&key) != Some(name) && !self.is_being_written(&key) {
            self.delete(name);
        }
        Ok(())
    }

    /// Whether another record of the connection is on the way to the store.
    fn is_being_written(&self, key: &FlowKey) -> bool {
        let mut pending = self.pending.values();
        pending.any(|pending| matches!(pending, Pending::Put { key: of, .. } if of == key))
    }

    fn delete(&mut self, name: StoreKey) {
        let ticket = self.stores.delete(name);
        self.pending.insert(ticket, Pending::Other);
    }

    fn keep(&mut self, step: keeping::Task) {
        match step {
            // The record on the way has the same name.
            keeping::Task::Delete(name) if self.is_being_written(&name.flow) => {}
            keeping::Task::Delete(name) => self.delete(name),
            keeping::Task::Renew(name) => {
                let ticket = self.stores.renew(name);
                self.pending.insert(ticket, Pending::Other);
            }
            keeping::Task::Write(key, mut record) => {
                record.generation = generation().max(record.generation.wrapping_add(1));
                record.owner = self.owner;
                self.put(key, record, 1);
            }
        }
    }

    fn scan(&mut self, name: HashName) {
        let ticket = self.stores.scan(name, store::ScanPosition::START);
        self.pending.insert(ticket, Pending::Scan(name));
    }

    fn ask(&mut self, key: FlowKey) {
        let ticket = self.stores.look_up(&self.names.all(), key);
        self.pending.insert(ticket, Pending::LookUp(key));
    }

    /// The record that a segment needs: at once, if this member has written the record; otherwise [`Records::poll`]
    /// returns the segment with the record.
    pub(crate) fn look_up(&mut self, copy: SegmentCopy) -> Option<LookedUp> {
        if let Some(record) = self.kept.record(&copy.key) {
            let record = Ok(record.clone());
            return Some(LookedUp { copy, record });
        }
        let key = copy.key;
        if self.look_ups.begin(copy, clock::now()) {
            self.ask(key);
        }
        None
    }

    /// A revival with this record has ended.
    pub(crate) fn on_revived(&mut self, key: FlowKey, found: &Record, is_stored: bool) {
        let old = { self.names.known.iter() }
            .find(|(membership, _)| **membership == found.owner)
            .map(|(_, name)| StoreKey::new(*name, key));
        let name = old.unwrap_or(self.names.own(key));
        // The client needs the record until the echo is of this member's response. Records of this member are newer,
        // also than a record that the dead member has written since, whose clock may be ahead.
        let mut known = found.clone();
        let now = generation().max(found.generation);
        known.generation = now.wrapping_add(GENERATIONS_OF_CLOCK_DIFFERENCE);
        self.kept.insert(key, name, known, clock::now());
        if is_stored {
            self.keep(keeping::Task::Write(key, found.clone()));
        }
    }

    /// An answer of a client: no call is needed any more.
    pub(crate) fn on_answer(&mut self, key: &FlowKey) {
        self.calls.remove(key);
    }

    /// The server is there again after a death: clients may wait without a word.
    pub(crate) fn call_own(&mut self) {
        let records = self.kept.records();
        self.calls.extend_own(records, clock::now());
    }

    /// Whether the segment needs a record that is not looked up yet. Without an index of the store each client keeps
    /// its request, and sends the request soon.
    pub(crate) fn is_needed_for(&self, copy: &SegmentCopy, revivals: &Revivals) -> bool {
        let needs_record = |segment: Segment<'_>| {
            let has_request = !segment.payload().is_empty();
            Revival::needs_record(&segment) && (has_request || self.has_index())
        };
        copy.kind != CopyKind::Parked
            && !revivals.knows(&copy.key)
            && copy.segment().is_some_and(needs_record)
    }
}

/// Grows with the time, and from member to member: a sixteenth of a second is more than a record takes.
fn generation() -> u32 {
    let unix = clock::unix_offset() + clock::boot();
    let [a, b, c, d, ..] = (unix.as_millis() / 62).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
