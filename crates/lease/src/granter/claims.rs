//! Which service has which addresses.
//!
//! Epochs and leases are of names: of two hosts that serve one address under two names each is granted its own. So a
//! service *claims* its addresses before it asks for anything else, and no other service of another host gets one of them
//! while the claim lives. One lives as long as its host is heard of, and as long as that host may speak: a lease runs out,
//! and a permission without end is given up by the operator ([`Granter::give_up`]).
//!
//! Claims are there to tell a mistake of configuration. That one host speaks for a service rests on leases alone, so a
//! service that has clients already is not refused, but told. (Then the granter has forgotten its claim, or had not
//! heard of it.)

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use protocol::control::Claim;

use super::{GONE, Granter};

/// Who claims.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    /// The name of the service.
    pub service: String,
    /// Its host.
    pub host: u64,
    /// The address of that host: copies of a virtual machine may have one number.
    pub from: IpAddr,
}

impl Claimant {
    /// Are both on one host?
    #[must_use]
    pub fn is_of_host(&self, other: &Self) -> bool {
        (self.host, self.from) == (other.host, other.from)
    }
}

/// Another service has an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Taken {
    /// Which.
    pub address: SocketAddr,
    /// The name of that service.
    pub service: String,
    /// The address of its host.
    pub from: IpAddr,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            service,
            from,
        } = self;
        write!(
            f,
            "{address} is the address of the service {service} on the host {from}"
        )
    }
}

#[derive(Debug, Clone)]
struct Held {
    addresses: Vec<SocketAddr>,
    heard: Duration,
}

/// What is claimed.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims(BTreeMap<Claimant, Held>);

impl Granter {
    /// A service claims addresses. Tells who has one of them besides, if the claimant is not refused for that: it serves
    /// already.
    ///
    /// # Errors
    /// Another service has one of them, on another host. Nothing has changed.
    pub fn claim(
        &mut self,
        now: Duration,
        who: &Claimant,
        claim: &Claim,
    ) -> Result<Option<Taken>, Taken> {
        if claim.shared {
            self.withdraw(who);
            return Ok(None);
        }
        let services = &self.services;
        let speaks = |who: &Claimant| {
            let service = services.get(&who.service);
            service.is_some_and(|service| service.lets_speak(who.host, now))
        };
        let heard = |held: &Held| now.saturating_sub(held.heard) < GONE;
        self.claims.0.retain(|who, held| heard(held) || speaks(who));
        let taken = self.claims.taken(who, &claim.addresses, speaks);
        if let Some(taken) = taken.clone().filter(|_| !claim.serves) {
            return Err(taken);
        }
        let held = Held {
            addresses: claim.addresses.clone(),
            heard: now,
        };
        self.claims.0.insert(who.clone(), held);
        Ok(taken)
    }

    /// Somebody who has claimed addresses was heard of then.
    pub fn heard(&mut self, who: &Claimant, at: Duration) {
        if let Some(held) = self.claims.0.get_mut(who) {
            held.heard = held.heard.max(at);
        }
    }

    /// A service ends on its host, or was moved.
    pub fn withdraw(&mut self, who: &Claimant) {
        self.claims.0.remove(who);
    }
}

impl Claims {
    /// The service of another host that has one of the addresses; of several hosts the host that speaks. A second name on the
    /// same host is no conflict for the logger: that host sees both.
    fn taken(
        &self,
        by: &Claimant,
        addresses: &[SocketAddr],
        speaks: impl Fn(&Claimant) -> bool,
    ) -> Option<Taken> {
        let others = self.0.iter();
        let others = others.filter(|(who, _)| who.service != by.service && !who.is_of_host(by));
        let common = |held: &Held| {
            let known = |address: &&SocketAddr| is_known_elsewhere(address.ip());
            let mut all = held.addresses.iter().filter(known);
            all.find(|address| addresses.contains(address)).copied()
        };
        others
            .filter_map(|(who, held)| Some((who, common(held)?)))
            .max_by_key(|(who, _)| speaks(who))
            .map(|(who, address)| Taken {
                address,
                service: who.service.clone(),
                from: who.from,
            })
    }
}

/// Not of one host or one link alone.
fn is_known_elsewhere(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;
