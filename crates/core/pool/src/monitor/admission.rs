//! Admission: is a member that says `Hello` a member?

use core::time::Duration;

use protocol::pool::{
    BalancerMessage, Hello, MEMBER_COUNT_MAX, MembershipState, Refused, TableMember,
};

use super::{Member, Monitor, StreamId, tables::conflict};
use crate::register::Register;

impl<R: Register> Monitor<R> {
    pub(super) fn hello(&mut self, now: Duration, stream: StreamId, hello: Hello) {
        if self.is_behind(&hello) {
            // This balancer cannot judge: the member comes again.
            self.register.refresh();
            self.close(stream);
            return;
        }
        if let Some(reason) = self.reason_against(&hello) {
            if reason == Refused::Dead {
                // The member lives: the member, or the way to it, stood still for longer than its lease.
                self.suspected.insert(hello.name.clone());
            }
            if reason == Refused::NameTaken
                && hello.state == MembershipState::New
                && let Some(member) = self.members.get_mut(&hello.name)
            {
                member.knowledge.succeeded_since.get_or_insert(now);
            }
            self.refuse(stream, Some(hello.name), reason);
            self.reconcile(now);
            return;
        }
        self.streams.insert(stream, hello.name.clone());
        self.send(
            stream,
            BalancerMessage::Config(self.settings.config.clone()),
        );
        if let Some(balancer) = self.settings.balancer {
            self.send(stream, BalancerMessage::Granter { balancer });
        }
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
        let member = Member {
            stream: Some(stream),
            leased: false,
            ..Member::of_table(&entry_of(&hello), now)
        };
        self.members.insert(hello.name, member);
    }

    /// The member knows a newer table than this balancer.
    fn is_behind(&self, hello: &Hello) -> bool {
        self.shared.is_some() && hello.epoch > self.table.epoch
    }

    fn reason_against(&self, hello: &Hello) -> Option<Refused> {
        let config = &self.settings.config;
        let is_neighbour = config.encapsulation.is_none();
        let has_ipv6 = config.addresses.iter().any(|at| at.is_ipv6());
        if is_neighbour && hello.address.ip().is_ipv4() && has_ipv6 {
            return Some(Refused::NeedsIpv6);
        }
        if self.dead.contains(&hello.membership) {
            return Some(Refused::Dead);
        }
        let known = self.members.get(&hello.name);
        let entry = entry_of(hello);
        if let Some(reason) = known.and_then(|known| conflict(&known.entry, &entry)) {
            return Some(reason);
        }
        if known.is_some_and(|known| known.leaves) {
            return Some(Refused::Dead);
        }
        let mut others = self.members.values();
        if let Some(reason) = others.find_map(|other| conflict(&other.entry, &entry)) {
            return Some(reason);
        }
        // Neighbours may be of both families: a frame to an IPv6 neighbour carries IPv4, too.
        let is_other =
            |other: &Member| other.entry.address.ip().is_ipv4() != entry.address.ip().is_ipv4();
        let mut others = self.members.values();
        if !is_neighbour && known.is_none() && others.any(is_other) {
            return Some(Refused::OtherFamily);
        }
        match (known, hello.state) {
            (Some(_), _) => None,
            // A former life of the balancer may have declared the membership dead.
            (None, MembershipState::Silent) => Some(Refused::Dead),
            // The newest table lacks the member, and another balancer had written a table with the member.
            (None, MembershipState::Speaks) if self.shared.is_some() => Some(Refused::Dead),
            (None, MembershipState::New | MembershipState::Speaks) => {
                let is_full = self.members.len() >= MEMBER_COUNT_MAX;
                is_full.then_some(Refused::Full)
            }
        }
    }
}

fn entry_of(hello: &Hello) -> TableMember {
    TableMember {
        name: hello.name.clone(),
        membership: hello.membership,
        address: hello.address,
        claim_port: hello.claim_port,
        draining: false,
    }
}
