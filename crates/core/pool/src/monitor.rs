//! Which members are alive. Runs in the balancer.
//!
//! A member *joins* with its first lease, and leaves the table when it is dead: when no packet of the member can reach
//! a client any more ([`lease::pool`]). A lost stream is no death: a member whose lease runs may connect again.
//!
//! Time is an argument: a [`Duration`] since an origin of this host. Inputs come in the order of their arrival; the
//! caller hands over all messages that have arrived before [`Monitor::on_time`], because a member whose request waits
//! is not dead.
//!
//! Several balancers of a pool write their tables into a common register ([`granters`]).

mod admission;
mod event;
mod granters;
mod tables;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use lease::{Terms, pool::PoolGranter};
use protocol::pool::{
    BalancerId, BalancerMessage, Config, MemberMessage, MemberName, Refused, Table, TableKind,
    TableMember,
};

use crate::register::Register;
pub use event::{ConfirmError, DrainError, Event, MemberState, Output};
use granters::{Granting, Knowledge, Shared};

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
    /// This balancer among the balancers with a common register. `None`: the only balancer.
    pub balancer: Option<BalancerId>,
}

#[derive(Debug, Clone)]
struct Member {
    entry: TableMember,
    /// `None`: the stream is lost, or the member was known to a former life of the balancer.
    stream: Option<StreamId>,
    /// A lease was granted: the member belongs into the table.
    leased: bool,
    leaves: bool,
    /// No lease of this balancer is in use. The member is dead as soon as a table without the member is written.
    is_over: bool,
    /// A table without this member may be on its way into the register.
    is_condemned: bool,
    /// When the newest message arrived.
    heard: Duration,
    knowledge: Knowledge,
}

type Members = BTreeMap<MemberName, Member>;

impl Member {
    /// The member asks, and has a lease of this balancer.
    const fn has_lease(&self) -> bool {
        self.stream.is_some() && self.leased && !self.is_over && !self.leaves
    }

    /// A member of a table. Its lease may be in use.
    fn of_table(entry: &TableMember, now: Duration) -> Self {
        Self {
            entry: entry.clone(),
            stream: None,
            leased: true,
            leaves: false,
            is_over: false,
            is_condemned: false,
            heard: now,
            knowledge: Knowledge::default(),
        }
    }
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
    shared: Option<Shared>,
    /// No table is written before: members of an unknown table may be sending.
    settled_at: Duration,
    members: Members,
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
            members.insert(entry.name.clone(), Member::of_table(entry, now));
        }
        let settled_at = match table.members.is_empty() {
            true => granter.settled_at(),
            false => now,
        };
        Self {
            shared: settings.balancer.map(|own| Shared::new(own, &table)),
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

    /// The register.
    pub const fn register(&mut self) -> &mut R {
        &mut self.register
    }

    /// The same, to look at.
    pub const fn register_ref(&self) -> &R {
        &self.register
    }

    /// The living members, also those that are not in the table yet.
    pub fn members(&self) -> impl Iterator<Item = MemberState<'_>> {
        self.members.values().map(|member| MemberState {
            entry: &member.entry,
            is_connected: member.stream.is_some(),
            is_leased: member.leased,
            is_unknown: member.is_over,
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
        let settles = (!self.proposes && self.register.is_available() && !self.is_current())
            .then_some(self.settled_at);
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
            (Some(name), MemberMessage::Enforces { epoch, lacks }) => {
                self.enforces(now, &name, epoch, lacks);
            }
            (Some(name), MemberMessage::Drain) => {
                // An error: the last member keeps its connections until it leaves.
                let _ = self.drain(now, &name);
            }
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
            self.expire(membership, now);
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
        if !core::mem::replace(&mut member.entry.draining, true) {
            self.emit(Event::Draining { name: name.clone() });
        }
        self.reconcile(now);
        Ok(())
    }

    /// Ends the work as a granter: the members no longer need the leases of this balancer.
    pub fn leave_granters(&mut self, now: Duration) {
        if let Some(shared) = &mut self.shared {
            shared.leave();
        }
        self.reconcile(now);
    }

    /// Whether [`Monitor::leave_granters`] has an effect that is still to come.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        let is_wanted = self.shared.as_ref().is_some_and(Shared::leaves);
        let is_due = self.granting().desired() != self.table.granters;
        is_wanted && self.register.is_available() && is_due
    }

    /// Whether the members need the leases of this balancer.
    #[must_use]
    pub fn is_granter(&self) -> bool {
        self.shared.as_ref().is_none_or(Shared::is_granter)
    }

    /// The operator confirms that a member is dead that no balancer may declare dead.
    ///
    /// # Errors
    /// [`ConfirmError`].
    pub fn confirm_dead(&mut self, now: Duration, name: &MemberName) -> Result<(), ConfirmError> {
        let Some(member) = self.members.get_mut(name) else {
            return Err(ConfirmError::Unknown);
        };
        if !member.is_over {
            return Err(ConfirmError::Alive);
        }
        member.knowledge.is_confirmed = true;
        self.reconcile(now);
        Ok(())
    }

    fn granting(&self) -> Granting<'_> {
        Granting {
            shared: self.shared.as_ref(),
            table: &self.table,
            members: &self.members,
            is_register_available: self.register.is_available(),
        }
    }

    /// The member sends by the table of this epoch.
    fn enforces(&mut self, now: Duration, name: &MemberName, epoch: u64, lacks: Vec<BalancerId>) {
        if epoch > self.table.epoch {
            self.register.refresh();
        }
        if let Some(member) = self.members.get_mut(name) {
            let knowledge = &mut member.knowledge;
            knowledge.enforced = knowledge.enforced.max(epoch);
            knowledge.lacks = lacks;
        }
        self.reconcile(now);
    }

    fn lease(&mut self, now: Duration, name: &MemberName, (number, answered): (u64, u64)) {
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        let is_over = member.leaves || member.is_condemned;
        let Some(stream) = member.stream.filter(|_| !is_over) else {
            return;
        };
        member.heard = now;
        member.knowledge.on_request();
        if core::mem::take(&mut member.is_over) {
            // Nobody has declared the member dead: the lease may go on.
            self.granter.admit(member.entry.membership, now, true);
        }
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
