//! The key-value stores of a pool: hosts that hold records, and the ways to the members.
//!
//! A host performs the operations of a connection in order. A host dies and forgets its records, or keeps these; loses
//! single records; answers late. A member's connection ([`StoreClient`]) has the time limits of the crate `store`.

mod client;

use std::collections::{BTreeMap, BTreeSet};

use objects::{
    PoolKey,
    record::{MemberHash, MemberList, Record, RecordKey, StoreKey},
    store::{Cursor, Failure, Operation, Outcome, Page, StoredValue, Ticket},
};
use rand::{Rng, rngs::SmallRng};
use wire::{FlowKey, SeqNumber};

pub(super) use self::client::StoreClient;
use super::{
    member::POOL_KEY,
    network::{Route, link_delay},
    scenario::StorePlan,
};
use crate::{MS, SECOND};

/// Longest time from the end of a failure until a member uses the store again.
const RECOVERY_TIME: u64 = 2 * SECOND;

/// Records of a page of a list.
const PAGE_LEN: usize = 2;

/// Between a member's connection and a store.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) member: usize,
    pub(super) store: usize,
    /// Number of the connection: grows with each attempt of the member.
    pub(super) connection: u64,
    /// The member's TCP has to repeat the message.
    pub(super) is_repeated: bool,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Connect,
    Request(Ticket, Operation),
    /// The member has closed the connection.
    Close,
    /// The answer to a connect, with the number of the store's life.
    Greeting(u64),
    Reply(Ticket, Result<Outcome, Failure>),
    /// The store ends the connection, or nobody listens.
    End,
}

impl Content {
    const fn is_for_store(&self) -> bool {
        matches!(self, Self::Connect | Self::Request(..))
    }
}

/// A record that a store has confirmed to a member.
pub(super) struct Confirmed {
    pub(super) key: FlowKey,
    pub(super) record: Record,
    pub(super) store: usize,
}

struct Host {
    is_indexed: bool,
    /// Each with the number of its put.
    records: BTreeMap<StoreKey, (u64, Vec<u8>)>,
    members: BTreeSet<(MemberList, MemberHash)>,
    puts: u64,
    /// Number of the life.
    instance: u64,
    is_up: bool,
    returns_at: u64,
    slow_until: u64,
    slow_by: u64,
    /// The newest connection of each member.
    connections: BTreeMap<usize, u64>,
}

/// A put of a member: member, store, connection and ticket.
type PutName = (usize, usize, u64, Ticket);

/// All stores, and the ways to these.
pub(super) struct StoreSide {
    hosts: Vec<Host>,
    way: Route<Message>,
    /// Messages of a direction keep their order: the arrival of the newest.
    newest: BTreeMap<(usize, usize, bool), u64>,
    /// Until when no message passes between a member and a store.
    cuts: BTreeMap<(usize, usize), u64>,
    /// The newest connections that members have closed.
    closed: BTreeMap<(usize, usize), u64>,
    /// Puts that were performed, and not confirmed.
    written: BTreeMap<PutName, (StoreKey, Vec<u8>)>,
    /// No store fails after this time.
    fails_until: u64,
}

impl Host {
    const fn new(is_indexed: bool) -> Self {
        Self {
            is_indexed,
            records: BTreeMap::new(),
            members: BTreeSet::new(),
            puts: 0,
            instance: 1,
            is_up: true,
            returns_at: u64::MAX,
            slow_until: 0,
            slow_by: 0,
            connections: BTreeMap::new(),
        }
    }

    fn perform(&mut self, operation: Operation) -> Result<Outcome, Failure> {
        Ok(match operation {
            Operation::Put { key, value } => {
                self.puts += 1;
                self.records.insert(key, (self.puts, value));
                Outcome::Stored
            }
            Operation::Get { hashes, flow } => {
                let keys = hashes.iter().map(|hash| StoreKey::new(*hash, flow));
                let values = keys.filter_map(|key| Some((key, &self.records.get(&key)?.1)));
                Outcome::Found(values.map(stored_value).collect())
            }
            Operation::Scan { .. } if !self.is_indexed => return Err(Failure::Unsupported),
            Operation::Scan { hash, cursor } => {
                let of_page = |key: &StoreKey| {
                    key.hash == hash && u64::from(key.flow.client().port()) >= cursor.0
                };
                let mut values: Vec<_> = { self.records.iter() }
                    .filter(|(key, _)| of_page(key))
                    .map(|(key, (_, value))| stored_value((*key, value)))
                    .collect();
                let next = values.get(PAGE_LEN);
                let next = next.map(|it| Cursor(it.key.flow.client().port().into()));
                values.truncate(PAGE_LEN);
                let foreign = 0;
                Outcome::Page(Page {
                    values,
                    foreign,
                    next,
                })
            }
            Operation::Delete { key } => Outcome::Deleted {
                existed: self.records.remove(&key).is_some(),
            },
            Operation::Renew { key } => Outcome::Renewed {
                exists: self.records.contains_key(&key),
            },
            Operation::AddMember { list, member } => {
                self.members.insert((list, member));
                Outcome::Stored
            }
            Operation::Members { lists } => {
                let all = { self.members.iter() }.filter(|(list, _)| lists.contains(list));
                Outcome::Members(all.map(|(_, member)| *member).collect())
            }
            Operation::Probe => return Err(Failure::Unsupported),
        })
    }
}

fn stored_value((key, value): (StoreKey, &Vec<u8>)) -> StoredValue {
    let value = value.clone();
    StoredValue { key, value }
}

impl StoreSide {
    pub(super) fn new(plan: Option<&StorePlan>) -> Self {
        let kinds = plan.map_or(&[][..], |plan| &plan.are_indexed);
        Self {
            hosts: kinds
                .iter()
                .map(|is_indexed| Host::new(*is_indexed))
                .collect(),
            way: Route::new(),
            newest: BTreeMap::new(),
            cuts: BTreeMap::new(),
            closed: BTreeMap::new(),
            written: BTreeMap::new(),
            fails_until: 0,
        }
    }

    pub(super) fn due(&self) -> u64 {
        let returns = self.hosts.iter().map(|host| host.returns_at).min();
        self.way.due().min(returns.unwrap_or(u64::MAX))
    }

    /// A message takes its way. TCP repeats the message until the end of a cut.
    pub(super) fn send(&mut self, mut message: Message, rng: &mut SmallRng, now: u64) {
        let (member, store) = (message.member, message.store);
        if matches!(message.content, Content::Close) {
            self.closed.insert((member, store), message.connection);
            return;
        }
        let host = &self.hosts[store];
        let late = if now < host.slow_until {
            host.slow_by
        } else {
            0
        };
        let cut = self.cuts.get(&(member, store)).copied().unwrap_or(0);
        message.is_repeated = now < cut;
        let from = match now < cut {
            true => cut + rng.random_range(0..200 * MS),
            false => now,
        };
        let is_for_store = message.content.is_for_store();
        let newest = self
            .newest
            .entry((member, store, is_for_store))
            .or_insert(0);
        *newest = (from + late + link_delay(rng)).max(*newest);
        self.way.carry(*newest, message);
    }

    /// The next message that has arrived at a member. Messages for stores are carried out.
    pub(super) fn arrived(&mut self, rng: &mut SmallRng, now: u64) -> Option<Message> {
        for host in &mut self.hosts {
            if now >= host.returns_at {
                (host.is_up, host.returns_at) = (true, u64::MAX);
                host.instance += 1;
            }
        }
        while let Some((_, message)) = self.way.arrived(now) {
            if !message.content.is_for_store() {
                return Some(message);
            }
            if let Some(content) = self.serve(&message) {
                let answer = Message { content, ..message };
                self.send(answer, rng, now);
            }
        }
        None
    }

    /// The answer of a store.
    fn serve(&mut self, message: &Message) -> Option<Content> {
        let Message {
            member,
            store,
            connection,
            is_repeated,
            ref content,
        } = *message;
        let closed = self.closed.get(&(member, store)).copied();
        if is_repeated && closed.is_some_and(|closed| connection <= closed) {
            return None;
        }
        let host = &mut self.hosts[store];
        if !host.is_up {
            return matches!(content, Content::Connect).then_some(Content::End);
        }
        match content {
            Content::Connect => {
                self.closed.remove(&(member, store));
                host.connections.insert(member, connection);
                Some(Content::Greeting(host.instance))
            }
            // The socket was closed.
            Content::Request(..) if host.connections.get(&member) != Some(&connection) => None,
            Content::Request(ticket, operation) => {
                if let Operation::Put { key, value } = operation {
                    let name = (member, store, connection, *ticket);
                    self.written.insert(name, (*key, value.clone()));
                }
                Some(Content::Reply(*ticket, host.perform(operation.clone())))
            }
            _ => None,
        }
    }

    /// A reply has arrived at its member: the record that is confirmed with that.
    pub(super) fn confirmed(&mut self, message: &Message) -> Option<Confirmed> {
        let Content::Reply(ticket, Ok(Outcome::Stored)) = &message.content else {
            return None;
        };
        let store = message.store;
        let name = (message.member, store, message.connection, *ticket);
        let (key, value) = self.written.remove(&name)?;
        let of_pool = RecordKey::of(&PoolKey(POOL_KEY));
        let record = Record::open(&value, &of_pool, &key).ok()?;
        let key = key.flow;
        Some(Confirmed { key, record, store })
    }

    /// A host dies. A host without power ends no connection.
    pub(super) fn kill(
        &mut self,
        store: usize,
        (returns_at, forgets, is_silent): (u64, bool, bool),
        rng: &mut SmallRng,
        now: u64,
    ) {
        self.fails_until = self.fails_until.max(returns_at);
        let host = &mut self.hosts[store];
        (host.is_up, host.returns_at) = (false, returns_at);
        if forgets {
            host.records.clear();
            host.members.clear();
        }
        let connections = std::mem::take(&mut host.connections);
        for (member, connection) in connections.into_iter().filter(|_| !is_silent) {
            let content = Content::End;
            let message = Message {
                member,
                store,
                connection,
                is_repeated: false,
                content,
            };
            self.send(message, rng, now);
        }
    }

    /// The host of a member has no power: its TCP repeats nothing.
    pub(super) fn lose_member(&mut self, member: usize) {
        for store in 0..self.hosts.len() {
            self.closed.insert((member, store), u64::MAX);
        }
    }

    pub(super) fn slow_down(&mut self, store: usize, until: u64, by: u64) {
        self.fails_until = self.fails_until.max(until + by);
        let host = &mut self.hosts[store];
        (host.slow_until, host.slow_by) = (until, by);
    }

    pub(super) fn cut(&mut self, member: usize, store: usize, until: u64) {
        self.fails_until = self.fails_until.max(until);
        self.cuts.insert((member, store), until);
    }

    /// Whether a store has the record of the request that begins at `start`, and no store has failed a short time ago.
    pub(super) fn has_record(&self, key: &FlowKey, start: SeqNumber, now: u64) -> bool {
        let of_pool = RecordKey::of(&PoolKey(POOL_KEY));
        let all = self.hosts.iter().flat_map(|host| &host.records);
        let mut records = all
            .filter(|(name, _)| name.flow == *key)
            .filter_map(|(name, (_, value))| Record::open(value, &of_pool, name).ok()?.turns.pop());
        now > self.fails_until + RECOVERY_TIME && records.any(|turn| turn.request_start == start)
    }

    /// A host drops all records, or the newest.
    pub(super) fn evict(&mut self, store: usize, all: bool) {
        let host = &mut self.hosts[store];
        let newest = host.records.values().map(|(number, _)| *number).max();
        host.records
            .retain(|_, (number, _)| !all && Some(*number) != newest);
    }
}
