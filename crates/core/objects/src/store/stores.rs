//! One or two stores with sealed records.
//!
//! | operation | with two stores |
//! |---|---|
//! | put | written to both; over with the first confirmation, or with both ([`StoreAcks`]) |
//! | look-up | read from both; the newest generation wins |
//! | scan | the records of the first store, then of the second |
//! | delete, renew, addition of a member | at both |
//! | list of members | read from both; the members of both |
//!
//! A look-up without a record is *missing* only if every store has answered. A store with a record that cannot be read
//! counts as a failed store.
//!
//! With [`StoreAcks::First`], the death of the first store loses the newest record: the other store may have an older
//! record of the connection, or none.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use core::fmt;

use wire::FlowKey;

use super::{
    Completion, Cursor, Failure, Operation, Outcome, Page, Report, Store, StoredValue, Ticket,
};
use crate::flaws::Flaws;
use crate::record::{
    HashName, MemberHash, MemberList, NONCE_LEN, Record, RecordError, RecordKey, StoreKey,
};

/// When a put is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StoreAcks {
    /// When the first store has confirmed.
    #[default]
    First,
    /// When both stores have confirmed.
    Both,
}

/// Random bytes for a record that is sealed.
pub type Nonces = fn() -> [u8; NONCE_LEN];

/// One or two stores.
pub struct Stores<S> {
    stores: Vec<S>,
    key: RecordKey,
    nonces: Nonces,
    acks: StoreAcks,
    next: u64,
    /// Operations of the stores, by store and ticket.
    parts: BTreeMap<(usize, Ticket), StoresTicket>,
    pending: BTreeMap<StoresTicket, Pending>,
    events: Vec<StoresEvent>,
    reports: Vec<Report>,
    flaws: Flaws,
}

/// Number of an operation of [`Stores`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoresTicket(u64);

/// Position in the records of a member at all stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ScanPosition {
    store: usize,
    cursor: Cursor,
}

impl ScanPosition {
    /// Before the first record.
    pub const START: Self = Self {
        store: 0,
        cursor: Cursor::START,
    };

    /// The store of the page.
    #[must_use]
    pub const fn store(self) -> usize {
        self.store
    }
}

/// An outcome, or a change of the connection to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoresEvent {
    /// An operation is over.
    Completed(StoresCompletion),
    /// See [`Report::Lost`].
    Lost {
        /// Which store, from 0.
        store: usize,
        /// The reason.
        failure: Failure,
    },
    /// See [`Report::Connected`].
    Connected {
        /// Which store, from 0.
        store: usize,
        /// The store is another instance than before.
        is_other_instance: bool,
    },
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoresCompletion {
    /// From the call.
    pub ticket: StoresTicket,
    /// The outcome.
    pub outcome: StoresOutcome,
}

/// The outcome of each operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoresOutcome {
    /// Of [`Stores::put`]: as many stores as wanted have written the record.
    Put(Result<(), Failure>),
    /// Of [`Stores::look_up`].
    LookUp(Result<Lookup, Failure>),
    /// Of [`Stores::scan`].
    Page(ScanPage),
    /// Of [`Stores::delete`]: whether a store had the record.
    Deleted(Result<bool, Failure>),
    /// Of [`Stores::renew`]: whether a store has the record.
    Renewed(Result<bool, Failure>),
    /// Of [`Stores::add_member`]: whether all stores have the name.
    Added(Result<(), Failure>),
    /// Of [`Stores::members`].
    Members(MembersFound),
}

/// The members that stores list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembersFound {
    /// Of all stores that have answered.
    pub members: Vec<MemberHash>,
    /// A store has failed: members may be missing.
    pub failure: Option<Failure>,
}

/// The newest record of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The record of the highest generation.
    Found(StoreKey, Box<Record>),
    /// Every store has answered, and none has a record.
    Missing,
}

/// Records of a member. A record of a connection may be in several pages: the newest generation counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanPage {
    /// Records.
    pub records: Vec<(StoreKey, Record)>,
    /// Records that cannot be read.
    pub unreadable: Vec<(StoreKey, RecordError)>,
    /// The store has failed; the next page is of the next store.
    pub failure: Option<Failure>,
    /// Where the next page begins. `None`: this is the last page.
    pub next: Option<ScanPosition>,
}

/// An operation under way.
#[derive(Debug)]
struct Pending {
    question: Question,
    /// Stores without an answer.
    missing: usize,
    /// Answers of stores.
    answers: Vec<Result<Outcome, Failure>>,
    is_over: bool,
}

#[derive(Debug, Clone, Copy)]
enum Question {
    Put { acks: usize },
    LookUp,
    Scan(ScanPosition),
    Delete,
    Renew,
    AddMember,
    Members,
}

impl<S: Store> Stores<S> {
    /// The stores of a pool, one or two.
    #[must_use]
    pub fn new(stores: Vec<S>, key: RecordKey, nonces: Nonces, acks: StoreAcks) -> Self {
        Self {
            stores,
            key,
            nonces,
            acks,
            next: 0,
            parts: BTreeMap::new(),
            pending: BTreeMap::new(),
            events: Vec::new(),
            reports: Vec::new(),
            flaws: Flaws::default(),
        }
    }

    /// Plants mistakes.
    #[cfg(feature = "flaws")]
    pub const fn plant(&mut self, flaws: Flaws) {
        self.flaws = flaws;
    }

    /// The stores.
    #[must_use]
    pub fn stores(&self) -> &[S] {
        &self.stores
    }

    /// The stores, for a caller that carries messages.
    pub fn stores_mut(&mut self) -> &mut [S] {
        &mut self.stores
    }

    /// Writes a record.
    ///
    /// # Errors
    /// The record is beyond the limits: nothing is written.
    pub fn put(&mut self, key: StoreKey, record: &Record) -> Result<StoresTicket, RecordError> {
        let value = record.seal(&self.key, &key, (self.nonces)())?;
        let acks = match self.acks {
            StoreAcks::First => 1,
            StoreAcks::Both => self.stores.len(),
        };
        Ok(self.submit_to_all(Question::Put { acks }, &Operation::Put { key, value }))
    }

    /// Reads the newest record of a connection. `hashes`: of all members that may have written a record.
    pub fn look_up(&mut self, hashes: &[HashName], flow: FlowKey) -> StoresTicket {
        let hashes = hashes.to_vec();
        self.submit_to_all(Question::LookUp, &Operation::Get { hashes, flow })
    }

    /// Reads a part of the records of a member.
    pub fn scan(&mut self, hash: HashName, position: ScanPosition) -> StoresTicket {
        let operation = Operation::Scan {
            hash,
            cursor: position.cursor,
        };
        self.submit(
            Question::Scan(position),
            &operation,
            position.store..position.store + 1,
        )
    }

    /// Deletes a record.
    pub fn delete(&mut self, key: StoreKey) -> StoresTicket {
        self.submit_to_all(Question::Delete, &Operation::Delete { key })
    }

    /// Begins the time to live of a record anew: see [`Operation::Renew`].
    pub fn renew(&mut self, key: StoreKey) -> StoresTicket {
        self.submit_to_all(Question::Renew, &Operation::Renew { key })
    }

    /// Adds a name to a list of members.
    pub fn add_member(&mut self, list: MemberList, member: MemberHash) -> StoresTicket {
        self.submit_to_all(Question::AddMember, &Operation::AddMember { list, member })
    }

    /// Reads lists of members.
    pub fn members(&mut self, lists: &[MemberList]) -> StoresTicket {
        let lists = lists.to_vec();
        self.submit_to_all(Question::Members, &Operation::Members { lists })
    }

    fn submit_to_all(&mut self, question: Question, operation: &Operation) -> StoresTicket {
        self.submit(question, operation, 0..self.stores.len())
    }

    fn submit(
        &mut self,
        question: Question,
        operation: &Operation,
        stores: core::ops::Range<usize>,
    ) -> StoresTicket {
        self.next += 1;
        let ticket = StoresTicket(self.next);
        let missing = stores.len();
        self.pending.insert(
            ticket,
            Pending {
                question,
                missing,
                answers: Vec::new(),
                is_over: false,
            },
        );
        for index in stores {
            match self.stores[index].submit(operation.clone()) {
                Ok(part) => drop(self.parts.insert((index, part), ticket)),
                Err(full) => self.answer(ticket, Err(full.into())),
            }
        }
        ticket
    }

    /// Appends all outcomes and changes since the last call. Never waits.
    pub fn poll(&mut self, events: &mut Vec<StoresEvent>) {
        for index in 0..self.stores.len() {
            let mut reports = core::mem::take(&mut self.reports);
            self.stores[index].poll(&mut reports);
            for report in reports.drain(..) {
                self.take(index, report);
            }
            self.reports = reports;
        }
        events.append(&mut self.events);
    }

    fn take(&mut self, store: usize, report: Report) {
        match report {
            Report::Completed(Completion { ticket, result }) => {
                if let Some(ticket) = self.parts.remove(&(store, ticket)) {
                    self.answer(ticket, result);
                }
            }
            Report::Lost(failure) => self.events.push(StoresEvent::Lost { store, failure }),
            Report::Connected { is_other_instance } => {
                self.events.push(StoresEvent::Connected {
                    store,
                    is_other_instance,
                });
            }
        }
    }

    /// The answer of a store.
    fn answer(&mut self, ticket: StoresTicket, result: Result<Outcome, Failure>) {
        let Some(pending) = self.pending.get_mut(&ticket) else {
            return;
        };
        pending.missing -= 1;
        pending.answers.push(result);
        let (is_over, are_all) = (pending.is_over, pending.missing == 0);
        let outcome = match pending.question {
            _ if is_over => None,
            Question::Put { acks } => put_outcome(acks, pending).map(StoresOutcome::Put),
            _ if !are_all => None,
            question => Some(combined(
                question,
                core::mem::take(&mut pending.answers),
                (&self.key, self.flaws),
                self.stores.len(),
            )),
        };
        pending.is_over |= outcome.is_some();
        if are_all {
            self.pending.remove(&ticket);
        }
        if let Some(outcome) = outcome {
            self.events
                .push(StoresEvent::Completed(StoresCompletion { ticket, outcome }));
        }
    }
}

impl<S: Store> fmt::Debug for Stores<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.stores.iter().map(Store::name).collect();
        write!(f, "Stores({names:?}, {} pending)", self.pending.len())
    }
}

/// `None`: the answers so far decide nothing.
fn put_outcome(acks: usize, pending: &Pending) -> Option<Result<(), Failure>> {
    let confirmed = pending
        .answers
        .iter()
        .filter(|answer| answer.is_ok())
        .count();
    if confirmed >= acks {
        return Some(Ok(()));
    }
    let failure = pending
        .answers
        .iter()
        .find_map(|answer| answer.as_ref().err())?;
    (confirmed + pending.missing < acks).then(|| Err(failure.clone()))
}

fn combined(
    question: Question,
    answers: Vec<Result<Outcome, Failure>>,
    (key, flaws): (&RecordKey, Flaws),
    store_count: usize,
) -> StoresOutcome {
    match question {
        Question::Put { .. } => {
            StoresOutcome::Put(Err(Failure::Protocol("a put with another question")))
        }
        Question::LookUp => StoresOutcome::LookUp(newest(answers, key, flaws)),
        Question::Scan(position) => {
            let answer = answers.into_iter().next();
            StoresOutcome::Page(scan_page(position, answer, key, store_count))
        }
        Question::Delete => StoresOutcome::Deleted(any_had(answers)),
        Question::Renew => StoresOutcome::Renewed(any_had(answers)),
        Question::AddMember => StoresOutcome::Added(all_stored(answers)),
        Question::Members => StoresOutcome::Members(all_members(answers)),
    }
}

fn any_had(answers: Vec<Result<Outcome, Failure>>) -> Result<bool, Failure> {
    let mut had = false;
    for answer in answers {
        had |= match answer? {
            Outcome::Deleted { existed } => existed,
            Outcome::Renewed { exists } => exists,
            _ => return Err(Failure::Protocol("the outcome of another operation")),
        };
    }
    Ok(had)
}

fn all_stored(answers: Vec<Result<Outcome, Failure>>) -> Result<(), Failure> {
    let mut answers = answers.into_iter();
    answers.try_for_each(|answer| match answer? {
        Outcome::Stored => Ok(()),
        _ => Err(Failure::Protocol("the outcome of another operation")),
    })
}

fn all_members(answers: Vec<Result<Outcome, Failure>>) -> MembersFound {
    let (mut members, mut failure) = (Vec::new(), None);
    for answer in answers {
        match answer {
            Ok(Outcome::Members(listed)) => members.extend(listed),
            Ok(_) => failure = Some(Failure::Protocol("the outcome of another operation")),
            Err(error) => failure = Some(error),
        }
    }
    members.sort_unstable();
    members.dedup();
    MembersFound { members, failure }
}

/// The newest record of all stores.
fn newest(
    answers: Vec<Result<Outcome, Failure>>,
    key: &RecordKey,
    flaws: Flaws,
) -> Result<Lookup, Failure> {
    let mut newest: Option<(StoreKey, Record)> = None;
    let mut failed = None;
    for answer in answers {
        match answer.and_then(|outcome| opened(outcome, key)) {
            Ok(records) => {
                let order = |(_, record): &(StoreKey, Record)| (record.generation, record.owner);
                let all = newest.into_iter().chain(records);
                newest = match flaws.prefers_newer() {
                    true => all.max_by_key(order),
                    false => all.min_by_key(order),
                };
            }
            Err(failure) => failed = Some(failure),
        }
    }
    match (newest, failed) {
        (Some((key, record)), _) => Ok(Lookup::Found(key, Box::new(record))),
        (None, Some(failure)) => Err(failure),
        (None, None) => Ok(Lookup::Missing),
    }
}

/// All records of a store are readable, or none is used: the newest may be among the unreadable.
fn opened(outcome: Outcome, key: &RecordKey) -> Result<Vec<(StoreKey, Record)>, Failure> {
    let Outcome::Found(values) = outcome else {
        return Err(Failure::Protocol("the outcome of another operation"));
    };
    let records = values.into_iter().map(|StoredValue { key: name, value }| {
        let record = Record::open(&value, key, &name)?;
        Ok((name, record))
    });
    records.collect()
}

fn scan_page(
    position: ScanPosition,
    answer: Option<Result<Outcome, Failure>>,
    key: &RecordKey,
    store_count: usize,
) -> ScanPage {
    let store = position.store;
    let behind = Some(store + 1).filter(|next| *next < store_count);
    let next_store = behind.map(|store| ScanPosition {
        store,
        cursor: Cursor::START,
    });
    let page = match answer {
        Some(Ok(Outcome::Page(page))) => Ok(page),
        Some(Err(failure)) => Err(failure),
        _ => Err(Failure::Protocol("the outcome of another operation")),
    };
    let Page { values, next, .. } = match page {
        Ok(page) => page,
        Err(failure) => {
            let (records, unreadable) = (Vec::new(), Vec::new());
            return ScanPage {
                records,
                unreadable,
                failure: Some(failure),
                next: next_store,
            };
        }
    };
    let next = next
        .map(|cursor| ScanPosition { store, cursor })
        .or(next_store);
    let mut scan = ScanPage {
        records: Vec::new(),
        unreadable: Vec::new(),
        failure: None,
        next,
    };
    for StoredValue { key: name, value } in values {
        match Record::open(&value, key, &name) {
            Ok(record) => scan.records.push((name, record)),
            Err(error) => scan.unreadable.push((name, error)),
        }
    }
    scan
}

#[cfg(test)]
mod tests;
