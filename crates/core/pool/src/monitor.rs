//! Which members are alive. Runs in the balancer.
//!
//! A member *joins* with its first lease, and leaves the table when it is dead: when no packet of the member can reach
//! a client any more ([`lease::pool`]). A lost stream is no death: a member whose lease runs may connect again.
//!
//! Time is an argument: a [`Duration`] since an origin of this host. Inputs come in the order of their arrival; the
//! caller hands over all messages that have arrived before [`Monitor::on_time`], because a member whose request waits
//! is not dead.

mod admission;
mod event;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use lease::{Terms, pool::PoolGranter};
use protocol::pool::{
    BalancerMessage, Config, MemberMessage, MemberName, Refused, Table, TableKind, TableMember,
};

use crate::register::{Register, Written};
pub use event::{DrainError, Event, MemberState, Output};

/// Dead memberships that are remembered. Forgotten memberships are refused, too: a member that continues must be known.
const DEAD_COUNT_MAX: usize = 4096;

/// A control stream of a member, numbered by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(
    /// Never used again.
    pub u64,
);

/// The settings of a pool.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How connections are spread over the members.
    pub kind: TableKind,
    /// The terms of leases.
    pub terms: Terms,
    /// The answer to a `Hello`.
    pub config: Config,
}

#[derive(Debug, Clone)]
struct Member {
    entry: TableMember,
    /// `None`: the stream is lost, or the member was known to a former life of the balancer.
    stream: Option<StreamId>,
    /// A lease was granted: the member belongs into the table.
    leased: bool,
    leaves: bool,
    /// When the newest message arrived.
    heard: Duration,
}

/// The members of a pool, and their table.
#[derive(Debug)]
pub struct Monitor<R> {
    settings: Settings,
    granter: PoolGranter,
    register: R,
    /// The newest table.
    table: Table,
    /// A proposal is under way.
    proposes: bool,
    /// No table is written before: members of an unknown table may be sending.
    settled_at: Duration,
    members: BTreeMap<MemberName, Member>,
    /// The streams that have begun with a `Hello`.
    streams: BTreeMap<StreamId, MemberName>,
    /// The newest dead memberships.
    dead: VecDeque<u64>,
    /// Names whose membership was declared dead and spoke again.
    suspected: BTreeSet<MemberName>,
    outputs: VecDeque<Output>,
}

impl<R: Register> Monitor<R> {
    /// A monitor that starts at `now`. `table` is the newest table of the register; a balancer without a table of a
    /// former life has a table without members.
    #[must_use]
    pub fn new(settings: Settings, register: R, table: Table, now: Duration) -> Self {
        let mut granter = PoolGranter::new(settings.terms, now);
        let mut members = BTreeMap::new();
        for entry in &table.members {
            granter.assume(entry.membership);
            let member = Member {
                entry: entry.clone(),
                stream: None,
                leased: true,
                leaves: false,
                heard: now,
            };
            members.insert(entry.name.clone(), member);
        }
        let settled_at = match table.members.is_empty() {
            true => granter.settled_at(),
            false => now,
        };
        Self {
            settings,
            granter,
            register,
            table,
            proposes: false,
            settled_at,
            members,
            streams: BTreeMap::new(),
            dead: VecDeque::new(),
            suspected: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// The newest table.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// The settings that members get.
    #[must_use]
    pub const fn config(&self) -> &protocol::pool::Config {
        &self.settings.config
    }

    /// The living members, also those that are not in the table yet.
    pub fn members(&self) -> impl Iterator<Item = MemberState<'_>> {
        self.members.values().map(|member| MemberState {
            entry: &member.entry,
            is_connected: member.stream.is_some(),
            is_leased: member.leased,
            heard: member.heard,
        })
    }

    /// The next thing for the caller to do.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Monitor::on_time`] is due, without new input.
    #[must_use]
    pub fn due_at(&self) -> Option<Duration> {
        let settles = (!self.is_current()).then_some(self.settled_at);
        self.granter.expires_at().into_iter().chain(settles).min()
    }

    /// A message of a member has arrived.
    pub fn on_message(&mut self, now: Duration, stream: StreamId, message: MemberMessage) {
        match (self.streams.get(&stream).cloned(), message) {
            (None, MemberMessage::Hello(hello)) => self.hello(now, stream, hello),
            (Some(name), MemberMessage::LeaseRequest { number, answered }) => {
                self.lease(now, &name, (number, answered));
            }
            (Some(name), MemberMessage::Leave) => self.leave(now, &name),
            (name, _) => self.refuse(stream, name, Refused::OutOfOrder),
        }
    }

    /// A stream has ended.
    pub fn on_stream_lost(&mut self, stream: StreamId) {
        let name = self.streams.remove(&stream);
        let member = name.and_then(|name| self.members.get_mut(&name));
        if let Some(member) = member.filter(|member| member.stream == Some(stream)) {
            member.stream = None;
            if !member.leaves {
                let name = member.entry.name.clone();
                self.emit(Event::StreamLost { name });
            }
        }
    }

    /// Declares members dead whose leases are over, and takes the outcome of the register.
    pub fn on_time(&mut self, now: Duration) {
        for membership in self.granter.expire(now) {
            self.remove_dead(membership, now);
        }
        self.reconcile(now);
    }

    /// The member gets no new connections.
    ///
    /// # Errors
    /// [`DrainError`].
    pub fn drain(&mut self, now: Duration, name: &MemberName) -> Result<(), DrainError> {
        let others = self
            .members
            .iter()
            .filter(|(other, member)| *other != name && member.leased && !member.entry.draining);
        let is_last = others.count() == 0;
        let Some(member) = self.members.get_mut(name) else {
            return Err(DrainError::Unknown);
        };
        if is_last {
            return Err(DrainError::LastMember);
        }
        member.entry.draining = true;
        self.reconcile(now);
        Ok(())
    }

    fn lease(&mut self, now: Duration, name: &MemberName, (number, answered): (u64, u64)) {
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        let Some(stream) = member.stream.filter(|_| !member.leaves) else {
            return;
        };
        member.heard = now;
        let granted = self
            .granter
            .grant(member.entry.membership, number, answered, now);
        let Some(term) = granted else {
            return; // an old request
        };
        member.leased = true;
        let term_us = u32::try_from(term.as_micros()).unwrap_or(u32::MAX);
        self.send(stream, BalancerMessage::Lease { number, term_us });
        self.reconcile(now);
    }

    fn leave(&mut self, now: Duration, name: &MemberName) {
        if let Some(member) = self.members.get_mut(name) {
            member.leaves = true;
            self.granter.leave(member.entry.membership, now);
        }
    }

    /// The member of this membership is dead.
    fn remove_dead(&mut self, membership: u64, now: Duration) {
        if self.dead.len() == DEAD_COUNT_MAX {
            self.dead.pop_front();
        }
        self.dead.push_back(membership);
        let mut members = self.members.iter();
        let found = members.find(|(_, member)| member.entry.membership == membership);
        let Some(name) = found.map(|(name, _)| name.clone()) else {
            return;
        };
        let Some(member) = self.members.remove(&name) else {
            return;
        };
        self.emit(match (member.leaves, member.entry.draining) {
            (true, true) => Event::Drained { name },
            (true, false) => Event::Left { name },
            (false, _) => Event::DeclaredDead {
                name,
                silent: now.saturating_sub(member.heard),
            },
        });
        if let Some(stream) = member.stream {
            match member.leaves {
                true => self.close(stream),
                false => self.end(stream, Refused::Dead),
            }
        }
    }

    /// The members that belong into the table, in the order of their names.
    fn desired(&self) -> Vec<TableMember> {
        let leased = self.members.values().filter(|member| member.leased);
        leased.map(|member| member.entry.clone()).collect()
    }

    fn is_current(&self) -> bool {
        self.table.kind == self.settings.kind && self.table.members == self.desired()
    }

    /// Writes the table if the members have changed.
    fn reconcile(&mut self, now: Duration) {
        loop {
            while let Some(written) = self.register.outcome() {
                self.proposes = false;
                self.adopt(written, now);
            }
            if self.proposes || now < self.settled_at || self.is_current() {
                return;
            }
            let table = Table {
                epoch: self.table.epoch.saturating_add(1),
                kind: self.settings.kind,
                members: self.desired(),
            };
            self.proposes = true;
            self.register.propose(self.table.epoch, table);
            // A register in memory has the outcome already.
            match self.register.outcome() {
                Some(written) => {
                    self.proposes = false;
                    self.adopt(written, now);
                }
                None => return,
            }
        }
    }

    /// The caller makes a table durable before a member hears of the table: an epoch means the same table for ever.
    fn adopt(&mut self, written: Written, now: Duration) {
        let table = match written {
            Written::Own(table) => table,
            Written::Other(table) => {
                self.assume_foreign(&table, now);
                table
            }
        };
        if table.epoch <= self.table.epoch {
            return;
        }
        let before = core::mem::replace(&mut self.table, table.clone());
        self.outputs.push_back(Output::Table(table.clone()));
        for entry in &table.members {
            let is_old = |old: &TableMember| old.membership == entry.membership;
            if !before.members.iter().any(is_old) {
                self.emit(Event::Joined {
                    name: entry.name.clone(),
                    address: entry.address,
                });
            }
        }
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            self.send(stream, BalancerMessage::Table(table.clone()));
        }
    }

    /// Members that another balancer has admitted.
    fn assume_foreign(&mut self, table: &Table, now: Duration) {
        for entry in &table.members {
            if self.members.contains_key(&entry.name) || self.dead.contains(&entry.membership) {
                continue;
            }
            self.granter.admit(entry.membership, now, false);
            let member = Member {
                entry: entry.clone(),
                stream: None,
                leased: true,
                leaves: false,
                heard: now,
            };
            self.members.insert(entry.name.clone(), member);
        }
    }

    fn send(&mut self, stream: StreamId, message: BalancerMessage) {
        self.outputs.push_back(Output::Send { stream, message });
    }

    fn emit(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    fn close(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
        self.outputs.push_back(Output::Close { stream });
    }

    /// Ends the stream of a member that is not admitted under this name.
    fn refuse(&mut self, stream: StreamId, name: Option<MemberName>, reason: Refused) {
        self.emit(Event::Refused { name, reason });
        self.end(stream, reason);
    }

    fn end(&mut self, stream: StreamId, reason: Refused) {
        self.send(stream, BalancerMessage::Refused { reason });
        for member in self.members.values_mut() {
            member.stream = member.stream.filter(|of| *of != stream);
        }
        self.close(stream);
    }
}

#[cfg(test)]
mod tests;
