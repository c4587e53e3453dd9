//! From the members to the next table, and from the newest table to the members.

use alloc::vec::Vec;
use core::time::Duration;

use protocol::pool::{BalancerMessage, MemberName, Refused, Table, TableMember};

use super::{DEAD_COUNT_MAX, Event, Member, Monitor, Output, StreamId};
use crate::register::{Register, Written};

impl<R: Register> Monitor<R> {
    /// The lease of a membership is over.
    pub(super) fn expire(&mut self, membership: u64, now: Duration) {
        let mut members = self.members.iter_mut();
        let found = members.find(|(_, member)| member.entry.membership == membership);
        let Some((name, member)) = found else {
            return;
        };
        member.is_over = true;
        let is_in = |entry: &TableMember| entry.membership == membership;
        if !self.table.members.iter().any(is_in) {
            // No connection belongs to a member that is in no table.
            let name = name.clone();
            self.remove_dead(&name, now);
        }
    }

    /// The member is dead.
    fn remove_dead(&mut self, name: &MemberName, now: Duration) {
        let Some(member) = self.members.remove(name) else {
            return;
        };
        if self.dead.len() == DEAD_COUNT_MAX {
            self.dead.pop_front();
        }
        self.dead.push_back(member.entry.membership);
        // Of a member that another balancer declared dead.
        self.granter.forget(member.entry.membership);
        let name = name.clone();
        let event = match (member.leaves, member.entry.draining) {
            (true, true) => Event::Drained { name },
            (true, false) => Event::Left { name },
            (false, _) => Event::DeclaredDead {
                name,
                silent: now.saturating_sub(member.heard),
            },
        };
        // A member that asks for the settings of the pool alone, before its server listens.
        if member.leased || !member.leaves {
            self.emit(event);
        }
        if let Some(stream) = member.stream {
            match member.leaves {
                true => self.close(stream),
                false => self.end(stream, Refused::Dead),
            }
        }
    }

    /// The members that belong into the table, in the order of their names.
    fn desired(&self) -> Vec<TableMember> {
        let granting = self.granting();
        let members = self.members.values().filter(|member| {
            let is_dead = member.is_over && granting.may_declare_dead(member);
            !is_dead && (granting.is_in_table(member) || granting.may_join(member))
        });
        members.map(|member| member.entry.clone()).collect()
    }

    pub(super) fn is_current(&self) -> bool {
        self.table.kind == self.settings.kind
            && self.table.granters == self.granting().desired()
            && self.table.members == self.desired()
    }

    /// Writes the table if the members have changed.
    pub(super) fn reconcile(&mut self, now: Duration) {
        loop {
            while let Some(written) = self.register.outcome() {
                self.take(written, now);
            }
            if let Some(shared) = &mut self.shared {
                shared.await_successors(&mut self.members, &self.settings.terms, now);
            }
            if self.proposes
                || now < self.settled_at
                || !self.register.is_available()
                || self.is_current()
            {
                return;
            }
            let table = Table {
                epoch: self.table.epoch.saturating_add(1),
                kind: self.settings.kind,
                members: self.desired(),
                granters: self.granting().desired(),
            };
            for member in self.members.values_mut() {
                let is_same = |it: &TableMember| it.membership == member.entry.membership;
                member.is_condemned = !table.members.iter().any(is_same) && member.is_over;
            }
            self.proposes = true;
            self.register.propose(self.table.epoch, table);
            // A register in memory has the outcome already.
            match self.register.outcome() {
                Some(written) => self.take(written, now),
                None => return,
            }
        }
    }

    fn take(&mut self, written: Written, now: Duration) {
        self.proposes = false;
        for member in self.members.values_mut() {
            member.is_condemned = false;
        }
        match written {
            Written::Own(table) | Written::Other(table) => self.adopt(table, now),
            Written::Failed => {}
        }
    }

    /// The caller makes a table durable before a member hears of the table: an epoch means the same table for ever.
    fn adopt(&mut self, table: Table, now: Duration) {
        if table.epoch <= self.table.epoch {
            return;
        }
        let before = core::mem::replace(&mut self.table, table.clone());
        if let Some(shared) = &mut self.shared {
            shared.adopt(&table);
        }
        self.remove_absent(&before, now);
        self.refuse_conflicting();
        self.assume_foreign(now);
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

    /// Members that the new table declares dead.
    fn remove_absent(&mut self, before: &Table, now: Duration) {
        for entry in &before.members {
            let known = self.members.get(&entry.name);
            let is_same = known.is_some_and(|it| it.entry.membership == entry.membership);
            let is_absent = known.is_some_and(|it| !self.granting().is_in_table(it));
            if is_same && is_absent {
                self.remove_dead(&entry.name, now);
            }
        }
    }

    /// Members that wait here, while another balancer has written a member with the name, membership or address.
    fn refuse_conflicting(&mut self) {
        let members = self.members.iter();
        let conflicts = members.filter_map(|(name, member)| {
            let mut entries = self.table.members.iter();
            let reason = entries.find_map(|entry| conflict(entry, &member.entry))?;
            Some((name.clone(), member.entry.membership, member.stream, reason))
        });
        let conflicts: Vec<_> = conflicts.collect();
        for (name, membership, stream, reason) in conflicts {
            self.members.remove(&name);
            self.granter.forget(membership);
            if let Some(stream) = stream {
                self.refuse(stream, Some(name), reason);
            }
        }
    }

    /// Members that another balancer has admitted, or has changed. A membership that was dead comes back if the member
    /// knows of no table with this membership: the member has sent no packet.
    fn assume_foreign(&mut self, now: Duration) {
        for entry in &self.table.members {
            if let Some(member) = self.members.get_mut(&entry.name) {
                member.entry.draining |= entry.draining;
            } else {
                self.dead
                    .retain(|membership| *membership != entry.membership);
                self.granter.admit(entry.membership, now, false);
                let member = Member::of_table(entry, now);
                self.members.insert(entry.name.clone(), member);
            }
        }
    }
}

/// Why both cannot be members.
pub(super) fn conflict(known: &TableMember, other: &TableMember) -> Option<Refused> {
    if known.name == other.name {
        return (known.membership != other.membership).then_some(Refused::NameTaken);
    }
    if known.membership == other.membership {
        return Some(Refused::MembershipTaken);
    }
    (known.address == other.address).then_some(Refused::AddressTaken)
}
