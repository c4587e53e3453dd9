//! Several balancers of a pool.
//!
//! The table has a set of *granters*: the balancers that grant leases. A member sends by the leases of **all** granters
//! of the newest table that the member knows, and only if the member is in that table ([`crate::Leases`]). So each
//! granter can declare a member dead alone, by its own clock, whatever the other balancers grant, even if these are cut
//! off from the register:
//!
//! - A table replaces the table of the epoch before, by compare-and-swap. A balancer that was removed as a granter
//!   declares nobody dead: its write fails.
//! - A granter may declare a member dead that has told ([`MemberMessage::Enforces`]) a table with this granter: the
//!   member needs the lease of this granter, and that lease is over by the clock of this granter.
//! - When all members of a table have told that, the granter is *settled*, and the register keeps this fact: a member
//!   that joins later has this granter in its first table. A granter that starts again waits for the longest term.
//! - A balancer becomes a granter when all members of the table have its leases, or when the members lack the leases of
//!   all granters.
//! - A granter whose lease all members lack is removed. No wait is necessary: the members need the leases of another
//!   granter.
//! - Without the register, no member is declared dead, because the table cannot change. Leases are granted on.
//!
//! A member may be silent for ever while no granter may declare this member dead: the member died before a takeover, so
//! no living balancer knows whether a granter that is gone still grants leases. The member is dead when a new member
//! with its name has asked for longer than the longest lease, or when the operator confirms the death
//! ([`Monitor::confirm_dead`](super::Monitor::confirm_dead)).
//!
//! [`MemberMessage::Enforces`]: protocol::pool::MemberMessage::Enforces

use alloc::vec::Vec;
use core::time::Duration;

use lease::Terms;
use protocol::pool::{BalancerId, Granter, Table, TableMember};

use super::{Member, Members};

/// A new member waits at most this long for a member of its name that no granter declares dead: then the granters are
/// gone.
const GRANTERS_GONE_AFTER: Duration = Duration::from_secs(3);

/// State of a balancer with a common register.
#[derive(Debug)]
pub(super) struct Shared {
    own: BalancerId,
    /// Epoch since which this balancer is a granter, if it is.
    since: Option<u64>,
    leaves: bool,
    /// New members wait for members that no granter declares dead.
    finds_no_granter: bool,
}

/// What a member has told about its table, and what is told about a member.
#[derive(Debug, Clone, Default)]
pub(super) struct Knowledge {
    pub(super) enforced: u64,
    pub(super) lacks: Vec<BalancerId>,
    /// Since when a new member asks with the name of this member.
    pub(super) succeeded_since: Option<Duration>,
    /// The new member has asked for longer than the longest lease, or the operator says that the member is dead.
    pub(super) is_confirmed: bool,
}

impl Knowledge {
    /// The member lives.
    pub(super) const fn on_request(&mut self) {
        (self.succeeded_since, self.is_confirmed) = (None, false);
    }
}

impl Shared {
    pub(super) fn new(own: BalancerId, table: &Table) -> Self {
        let is_in = table.granters.iter().any(|it| it.balancer == own);
        Self {
            own,
            since: is_in.then_some(table.epoch),
            leaves: false,
            finds_no_granter: false,
        }
    }
}

impl Shared {
    /// The table is the newest.
    pub(super) fn adopt(&mut self, table: &Table) {
        let is_in = table.granters.iter().any(|it| it.balancer == self.own);
        self.since = is_in.then(|| self.since.unwrap_or(table.epoch));
    }

    /// This balancer ends.
    pub(super) const fn leave(&mut self) {
        self.leaves = true;
    }

    pub(super) const fn leaves(&self) -> bool {
        self.leaves
    }

    pub(super) const fn is_granter(&self) -> bool {
        self.since.is_some()
    }

    /// Notes which members are dead by the word of a new member of the same name.
    pub(super) fn await_successors(&mut self, members: &mut Members, terms: &Terms, now: Duration) {
        let mut is_lost = false;
        for member in members.values_mut() {
            let Some(since) = member.knowledge.succeeded_since else {
                continue;
            };
            is_lost |= since.saturating_add(GRANTERS_GONE_AFTER) <= now;
            if member.is_over && terms.silent_at(since, terms.longest) <= now {
                member.knowledge.is_confirmed = true;
            }
        }
        self.finds_no_granter = is_lost && !self.is_granter();
    }
}

/// Decides about granters and members by the newest table.
#[derive(Clone, Copy)]
pub(super) struct Granting<'a> {
    pub(super) shared: Option<&'a Shared>,
    pub(super) table: &'a Table,
    pub(super) members: &'a Members,
    pub(super) is_register_available: bool,
}

impl Granting<'_> {
    pub(super) fn is_in_table(self, member: &Member) -> bool {
        let is_same = |entry: &TableMember| entry.membership == member.entry.membership;
        self.table.members.iter().any(is_same)
    }

    /// Whether the member can send as soon as a table has the member.
    pub(super) fn may_join(self, member: &Member) -> bool {
        let knowledge = &member.knowledge;
        let holds_all = self.shared.is_none()
            || (knowledge.enforced == self.table.epoch && knowledge.lacks.is_empty());
        member.leased && !member.is_over && holds_all
    }

    /// Whether the end of the leases of this balancer is the end of the member's permission to send.
    pub(super) fn may_declare_dead(self, member: &Member) -> bool {
        let Some(shared) = self.shared else {
            return true;
        };
        let Some(since) = shared.since.filter(|_| self.is_register_available) else {
            return false;
        };
        // A member that leaves is silent already.
        let is_known_silent = member.leaves || member.knowledge.is_confirmed;
        is_known_silent || self.is_settled(shared.own) || member.knowledge.enforced >= since
    }

    fn is_settled(self, own: BalancerId) -> bool {
        let mut granters = self.table.granters.iter();
        granters.any(|it| it.balancer == own && it.settled)
    }

    /// The granters of the next table.
    pub(super) fn desired(self) -> Vec<Granter> {
        let Some(shared) = self.shared else {
            return Vec::new();
        };
        let own = shared.own;
        let mut granters = self.table.granters.clone();
        granters.retain(|it| it.balancer == own || !self.is_gone(it.balancer));
        let others = granters.iter().filter(|it| it.balancer != own).count();
        match granters.iter().position(|it| it.balancer == own) {
            Some(at) if shared.leaves && others > 0 => {
                granters.remove(at);
            }
            Some(at) => granters[at].settled |= self.has_settled(shared),
            None if shared.leaves => granters.clone_from(&self.table.granters),
            None if shared.finds_no_granter => granters = Vec::from([new_granter(own)]),
            None if others == 0 || self.hears_all() => granters.push(new_granter(own)),
            None => granters.clone_from(&self.table.granters),
        }
        granters
    }

    /// Each member of the table has told a table with this granter.
    fn has_settled(self, shared: &Shared) -> bool {
        let Some(since) = shared.since else {
            return false;
        };
        let mut entries = self.table.members.iter();
        entries.all(|entry| {
            let member = self.members.get(&entry.name);
            member.is_some_and(|it| it.knowledge.enforced >= since)
        })
    }

    fn hears_all(self) -> bool {
        let mut entries = self.table.members.iter();
        entries.all(|entry| self.members.get(&entry.name).is_some_and(Member::has_lease))
    }

    /// Whether all members with a lease of this balancer lack the leases of this granter. If these are all in no table
    /// yet, they count, too.
    fn is_gone(self, granter: BalancerId) -> bool {
        let voters = || self.members.values().filter(|it| it.has_lease());
        let is_of_table = voters().any(|it| self.is_in_table(it));
        let lacks = |member: &Member| {
            member.knowledge.enforced == self.table.epoch
                && member.knowledge.lacks.contains(&granter)
        };
        let mut counted = voters().filter(|it| self.is_in_table(it) == is_of_table);
        voters().next().is_some() && counted.all(lacks)
    }
}

const fn new_granter(balancer: BalancerId) -> Granter {
    Granter {
        balancer,
        settled: false,
    }
}
