//! Which service has which addresses: the loop's side of [`lease::Claimant`].

use std::time::Duration;

use lease::{Claimant, Taken};
use protocol::control::{Claim, ErrorCode, Response};

use super::{Event, Service, client::ClientError, leases::Leases};

impl Leases {
    /// See [`lease::Granter::claim`] and those beside it.
    fn claim(
        &mut self,
        now: Duration,
        who: &Claimant,
        claim: &Claim,
    ) -> Result<Option<Taken>, Taken> {
        self.granter.claim(now, who, claim)
    }

    pub(super) fn heard(&mut self, who: &Claimant, at: Duration) {
        self.granter.heard(who, at);
    }

    pub(super) fn withdraw(&mut self, who: &Claimant) {
        self.granter.withdraw(who);
    }
}

impl Service {
    /// A service says which addresses it has.
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
        client.claims = Some(who);
        let beside = beside.map_or_else(String::new, |taken| taken.to_string());
        client.say(&Response::Claimed { beside })
    }

    /// Datagrams show that hosts live, too.
    pub(super) fn renew_claims(&mut self) {
        for client in &self.clients {
            let session = client.instance.and_then(|one| self.sessions.get(one));
            let heard = session.and_then(|session| session.heard());
            if let (Some(who), Some(heard)) = (&client.claims, heard) {
                self.leases.heard(who, heard);
            }
        }
    }
}
