//! The addresses of services.
//!
//! Epochs and leases belong to names: two hosts that serve one address under two names would each get an epoch. So a
//! service *claims* the addresses before any other request, and a living claim excludes the services of other hosts. A
//! claim lives as long as the host is heard, and as long as the host may speak: a lease runs out, and the operator
//! gives up a permission without end ([`Granter::give_up`]).
//!
//! A claim finds a mistake of configuration. Leases alone decide which host speaks for a service. So a service that has
//! clients already is told of the conflict, and not refused. (The granter has forgotten the claim of that service then,
//! or had never heard the claim.)

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use protocol::control::Claim;

use super::{Granter, SILENT_HOST_AFTER};

/// The party that claims.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    /// The name of the service.
    pub service: String,
    /// The number of the host.
    pub host: u64,
    /// The address of the host: copies of a virtual machine may share a number.
    pub from: IpAddr,
}

impl Claimant {
    /// Whether both claimants are on one host.
    #[must_use]
    pub fn is_of_host(&self, other: &Self) -> bool {
        (self.host, self.from) == (other.host, other.from)
    }
}

/// Another service has an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Taken {
    /// The address.
    pub address: SocketAddr,
    /// The name of the other service.
    pub service: String,
    /// The address of the other service's host.
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
struct LiveClaim {
    addresses: Vec<SocketAddr>,
    heard: Duration,
}

/// All claims.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims(BTreeMap<Claimant, LiveClaim>);

impl Granter {
    /// A service claims addresses. A claimant that serves already is not refused: the result is another service that
    /// has one of the addresses.
    ///
    /// # Errors
    /// A service of another host has one of the addresses. Nothing has changed.
    pub fn claim(
        &mut self,
        now: Duration,
        claimant: &Claimant,
        claim: &Claim,
    ) -> Result<Option<Taken>, Taken> {
        if claim.shared {
            self.withdraw(claimant);
            return Ok(None);
        }
        let services = &self.services;
        let speaks = |claimant: &Claimant| {
            let service = services.get(&claimant.service);
            service.is_some_and(|service| service.permits_speech(claimant.host, now))
        };
        let heard = |live: &LiveClaim| now.saturating_sub(live.heard) < SILENT_HOST_AFTER;
        self.claims
            .0
            .retain(|claimant, live| heard(live) || speaks(claimant));
        let taken = self.claims.taken(claimant, &claim.addresses, speaks);
        if let Some(taken) = taken.clone().filter(|_| !claim.serves) {
            return Err(taken);
        }
        let live = LiveClaim {
            addresses: claim.addresses.clone(),
            heard: now,
        };
        self.claims.0.insert(claimant.clone(), live);
        Ok(taken)
    }

    /// The host of a claimant was heard at this time.
    pub fn refresh(&mut self, claimant: &Claimant, at: Duration) {
        if let Some(live) = self.claims.0.get_mut(claimant) {
            live.heard = live.heard.max(at);
        }
    }

    /// A service ends on a host, or was moved away.
    pub fn withdraw(&mut self, claimant: &Claimant) {
        self.claims.0.remove(claimant);
    }
}

impl Claims {
    /// The service of another host that has one of the addresses; of several hosts the host that speaks. A second name
    /// on the same host is no conflict for the logger: that host sees both.
    fn taken(
        &self,
        by: &Claimant,
        addresses: &[SocketAddr],
        speaks: impl Fn(&Claimant) -> bool,
    ) -> Option<Taken> {
        let others = self.0.iter();
        let others = others
            .filter(|(claimant, _)| claimant.service != by.service && !claimant.is_of_host(by));
        let common = |live: &LiveClaim| {
            let known = |address: &&SocketAddr| is_known_elsewhere(address.ip());
            let mut all = live.addresses.iter().filter(known);
            all.find(|address| addresses.contains(address)).copied()
        };
        others
            .filter_map(|(claimant, live)| Some((claimant, common(live)?)))
            .max_by_key(|(claimant, _)| speaks(claimant))
            .map(|(claimant, address)| Taken {
                address,
                service: claimant.service.clone(),
                from: claimant.from,
            })
    }
}

/// Whether the address has the same meaning beyond a host and a link.
fn is_known_elsewhere(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;
