//! Admission: is a member that says `Hello` a member?

use core::time::Duration;

use protocol::pool::{
    BalancerMessage, Hello, MEMBER_COUNT_MAX, MembershipState, Refused, TableMember,
};

use super::{Member, Monitor, StreamId};
use crate::register::Register;

impl<R: Register> Monitor<R> {
    pub(super) fn hello(&mut self, now: Duration, stream: StreamId, hello: Hello) {
        if let Some(reason) = self.reason_against(&hello) {
            if reason == Refused::Dead {
                // The member lives: the member, or the way to it, stood still for longer than its lease.
                self.suspected.insert(hello.name.clone());
            }
            self.refuse(stream, Some(hello.name), reason);
            return;
        }
        self.streams.insert(stream, hello.name.clone());
        self.send(
            stream,
            BalancerMessage::Config(self.settings.config.clone()),
        );
        self.send(stream, BalancerMessage::Table(self.table.clone()));
        match self.members.get_mut(&hello.name) {
            Some(member) => {
                member.heard = now;
                member.entry.address = hello.address;
                member.entry.claim_port = hello.claim_port;
                if let Some(former) = member.stream.replace(stream) {
                    self.close(former);
                }
            }
            None => self.admit(now, stream, hello),
        }
        self.reconcile(now);
    }

    fn admit(&mut self, now: Duration, stream: StreamId, hello: Hello) {
        let suspected = self.suspected.remove(&hello.name);
        self.granter.admit(hello.membership, now, suspected);
        if hello.state == MembershipState::Speaks {
            self.granter.assume(hello.membership);
        }
        let entry = TableMember {
            name: hello.name.clone(),
            membership: hello.membership,
            address: hello.address,
            claim_port: hello.claim_port,
            draining: false,
        };
        let member = Member {
            entry,
            stream: Some(stream),
            leased: false,
            leaves: false,
            heard: now,
        };
        self.members.insert(hello.name, member);
    }

    fn reason_against(&self, hello: &Hello) -> Option<Refused> {
        let config = &self.settings.config;
        if hello.address.ip().is_ipv4() && config.addresses.iter().any(|at| at.is_ipv6()) {
            return Some(Refused::NeedsIpv6);
        }
        if self.dead.contains(&hello.membership) {
            return Some(Refused::Dead);
        }
        let known = self.members.get(&hello.name);
        if let Some(known) = known
            && known.entry.membership != hello.membership
        {
            return Some(Refused::NameTaken);
        }
        if known.is_some_and(|known| known.leaves) {
            return Some(Refused::Dead);
        }
        for (name, other) in &self.members {
            if *name == hello.name {
                continue;
            }
            if other.entry.membership == hello.membership {
                return Some(Refused::MembershipTaken);
            }
            if other.entry.address == hello.address {
                return Some(Refused::AddressTaken);
            }
        }
        match (known, hello.state) {
            (Some(_), _) => None,
            // A former life of the balancer may have declared the membership dead.
            (None, MembershipState::Silent) => Some(Refused::Dead),
            (None, MembershipState::New | MembershipState::Speaks) => {
                let is_full = self.members.len() >= MEMBER_COUNT_MAX;
                is_full.then_some(Refused::Full)
            }
        }
    }
}
