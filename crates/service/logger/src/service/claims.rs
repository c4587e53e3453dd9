//! Services and their addresses: the loop's side of [`lease::Claimant`].

use std::{net::IpAddr, time::Duration};

use lease::{Claimant, Taken};
use protocol::control::{Claim, ErrorCode, Response};

use super::{
    Event, Service,
    client::{ClaimingHost, ClientError},
    leases::Leases,
};

impl Leases {
    /// See [`lease::Granter::claim`], and [`lease::Granter::refresh`] and [`lease::Granter::withdraw`] below.
    fn claim(
        &mut self,
        now: Duration,
        who: &Claimant,
        claim: &Claim,
    ) -> Result<Option<Taken>, Taken> {
        self.granter.claim(now, who, claim)
    }

    pub(super) fn heard(&mut self, who: &Claimant, at: Duration) {
        self.granter.refresh(who, at);
    }

    pub(super) fn withdraw(&mut self, who: &Claimant) {
        self.granter.withdraw(who);
    }
}

impl Service {
    /// A service claims addresses.
    pub(super) fn claim(
        &mut self,
        at: usize,
        claim: &Claim,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<(), ClientError> {
        let now = self.now();
        let client = &mut self.clients[at];
        let who = Claimant {
            service: claim.service.clone(),
            host: claim.host,
            from: client.remote.ip().to_canonical(),
        };
        let beside = match self.leases.claim(now, &who, claim) {
            Ok(beside) => beside,
            Err(taken) => {
                client.say(&Response::Error {
                    code: ErrorCode::Taken,
                    message: taken.to_string(),
                })?;
                client.flush()?;
                let service = who.service;
                return Err(ClientError::Taken { service, taken });
            }
        };
        if let Some(taken) = &beside {
            tell(&Event::TwoServices {
                service: who.service.clone(),
                address: taken.address,
                other: taken.service.clone(),
                hosts: [who.from, taken.from],
            });
        }
        client.host = ClaimingHost {
            name: in_words(&claim.host_name, who.from),
            determinants: claim.determinants,
        };
        client.claims = Some(who);
        let beside = beside.map_or_else(String::new, |taken| taken.to_string());
        client.say(&Response::Claimed { beside })
    }

    /// Datagrams prove that a host lives, too.
    pub(super) fn renew_claims(&mut self) {
        for client in &self.clients {
            let session = client.instance.and_then(|one| self.sessions.get(one));
            let heard = session.and_then(|session| session.active_at());
            if let (Some(who), Some(heard)) = (&client.claims, heard) {
                self.leases.heard(who, heard);
            }
        }
    }
}

impl Service {
    /// Sends the names of the service's hosts, for people, if the names have changed since the last time.
    pub(super) fn tell_hosts(&mut self, at: usize) -> Result<(), ClientError> {
        let Some(who) = self.clients[at].claims.clone() else {
            return Ok(());
        };
        let holder = self.leases.granter.holder(&who.service);
        let holder = holder.map(|(_, instance)| instance);
        // The newest stream of each host counts: an old stream of a host without power may still exist.
        let host = |serves: bool| {
            let others = self.clients.iter().filter_map(|other| {
                let (instance, asked) = other.asks?;
                let is_of_another = other.claims.as_ref().is_some_and(|claims| {
                    claims.service == who.service && !claims.is_of_host(&who)
                });
                let is = serves == (Some(instance) == holder);
                (is_of_another && is).then_some((asked, &other.host))
            });
            let newest = others.max_by_key(|(asked, _)| *asked);
            newest.map_or_else(ClaimingHost::default, |(_, host)| host.clone())
        };
        let hosts = (host(true), host(false).name);
        let client = &mut self.clients[at];
        if client.hosts.as_ref() != Some(&hosts) {
            let (serves, stands_by) = hosts.clone();
            client.hosts = Some(hosts);
            client.say(&Response::Hosts {
                serves: serves.name,
                stands_by,
                determinants: serves.determinants,
            })?;
        }
        Ok(())
    }
}

/// Name and address of a host; the address alone if the name is empty.
fn in_words(name: &str, from: IpAddr) -> String {
    // The name appears on terminals of other hosts.
    let shown = name
        .chars()
        .filter(char::is_ascii_graphic)
        .take(HOST_NAME_BYTES_MAX);
    match shown.collect::<String>().as_str() {
        "" => from.to_string(),
        name => format!("{name} ({from})"),
    }
}

/// Longest host name in a message: the limit of Linux.
const HOST_NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_told_by_what_a_terminal_can_show() {
        let from = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(in_words("host-a", from), "host-a (10.0.0.1)");
        assert_eq!(in_words("\x1b[2J a\n", from), "[2Ja (10.0.0.1)");
        assert_eq!(in_words("\n", from), "10.0.0.1");
        assert_eq!(
            in_words(&"a".repeat(1000), from).len(),
            HOST_NAME_BYTES_MAX + 11
        );
    }
}
