//! Permission to send for a service: the loop's side of the crate `lease`.

mod lease_store;

pub use lease_store::FORMAT;

use std::{collections::BTreeMap, io, path::Path, time::Duration};

use lease::{Granter, Memory, Record, StillHeld, Terms};
use protocol::control::{ErrorCode, LeaseAnswer, LeaseRequest, Response, Standing, Verdict};
use rand::{TryRngCore, rngs::OsRng};

use self::lease_store::LeaseStore;
use super::{
    Code, Event, Service, ServiceError,
    client::{ClientError, Over},
};

/// Interval of looks for a stored decision while a client waits.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The granter, and the store of the granter's decisions.
pub(super) struct Leases {
    pub(super) granter: Granter,
    /// The store, if there is a directory.
    store: Option<LeaseStore>,
    /// The state of the store that holds the newest decision about a service.
    waits_for: BTreeMap<String, u64>,
    /// Records of services that are known to be stored.
    on_disk: BTreeMap<String, Record>,
    told: bool,
}

impl Leases {
    /// Leases with a directory persist. Without a directory all grants are lost with the process; so the next
    /// process waits until all grants must have expired.
    pub(super) fn new(
        term: Option<Duration>,
        directory: Option<&Path>,
    ) -> Result<Self, ServiceError> {
        let mut terms = Terms::default();
        if let Some(term) = term {
            (terms.term, terms.least) = (term, term);
        }
        let terms = terms.checked()?;
        let life = OsRng.try_next_u64().map_err(io::Error::other)?.max(1);
        let (memory, store) = match directory {
            None => (Memory::Lost, None),
            Some(directory) => {
                let (store, records) =
                    LeaseStore::open(directory).map_err(|error| ServiceError::Log {
                        directory: directory.to_owned(),
                        error: error.to_string(),
                    })?;
                (Memory::Kept(records), Some(store))
            }
        };
        let now = Duration::ZERO; // the loop's clock begins a moment later
        Ok(Self {
            granter: Granter::new(life, memory, terms, now),
            store,
            waits_for: BTreeMap::new(),
            on_disk: BTreeMap::new(),
            told: false,
        })
    }

    /// Whether this instance serves.
    pub(super) fn serves(&self, service: &str, instance: u64) -> bool {
        let holder = self.granter.holder(service);
        holder.is_some_and(|(_, holder)| holder == instance)
    }

    /// Whether another instance serves instead of this instance.
    pub(super) fn is_over(&self, service: &str, instance: u64) -> bool {
        self.granter.is_over(service, instance)
    }

    /// See [`Granter::unserved_since`].
    pub(super) fn unserved_since(&self, service: &str, now: Duration) -> Option<Duration> {
        self.granter.unserved_since(service, now)
    }

    /// Whether the last decision about a service is stored, if there is a store.
    pub(super) fn is_kept(&self, service: &str) -> bool {
        let (waits_for, store) = (self.waits_for.get(service), self.store.as_ref());
        let kept = store.map_or(u64::MAX, LeaseStore::kept);
        waits_for.is_none_or(|state| *state <= kept)
    }

    /// See [`Granter::leased`] and [`Granter::record_speech`].
    pub(super) fn leased(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.granter.leased()
    }

    pub(super) fn spoke(&mut self, service: &str, now: Duration) {
        self.granter.record_speech(service, now);
    }

    /// The response to a request, if any, and whether the response may leave now. Otherwise the response leaves
    /// when [`Leases::is_kept`], because a change is stored first.
    fn answer(&mut self, now: Duration, request: &LeaseRequest) -> Option<(Response, bool)> {
        if self.is_kept(&request.service)
            && let Some(record) = self.granter.record(&request.service)
        {
            self.on_disk.insert(request.service.clone(), record);
        }
        let decision = self.granter.decide(now, request);
        if let Some(store) = &mut self.store
            && decision.record.is_some()
        {
            let state = store.keep(self.granter.records());
            self.waits_for.insert(request.service.clone(), state);
        }
        let answer = decision.answer?;
        if self.is_kept(&request.service) {
            return Some((Response::Lease(answer), true));
        }
        let meanwhile = self.meanwhile(&request.service, answer);
        let is_safe = meanwhile.is_some();
        Some((Response::Lease(meanwhile.unwrap_or(answer)), is_safe))
    }

    /// The interim answer to the serving host while a newer decision is not stored: a lease in the host's epoch, if
    /// the stored record has a lease of this host. The next logger reads the stored record and waits for the end of
    /// such leases. A permission without end must be stored first.
    fn meanwhile(&self, service: &str, answer: LeaseAnswer) -> Option<LeaseAnswer> {
        let known = self.on_disk.get(service)?;
        let holds = known.holder.is_some_and(|(_, it)| it == answer.instance);
        let verdict = match answer.verdict {
            Verdict::Lease { epoch, .. } if epoch == known.epoch => answer.verdict,
            Verdict::Free { epoch } if epoch == known.epoch => Verdict::Lease {
                epoch,
                term_us: u32::try_from(known.term.as_micros()).unwrap_or(u32::MAX),
                standby: false,
                former: self.granter.former(service),
            },
            _ => return None,
        };
        (holds && known.leased).then_some(LeaseAnswer { verdict, ..answer })
    }
}

impl Service {
    /// A host asks for permission to send.
    pub(super) fn lease(
        &mut self,
        at: usize,
        request: &LeaseRequest,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<(), ClientError> {
        let now = self.now();
        let leases = &mut self.leases;
        let before = leases.granter.holder(&request.service);
        let answer = leases.answer(now, request);
        let after = leases.granter.holder(&request.service);
        let client = &mut self.clients[at];
        // The new answer replaces a withheld answer.
        client.withheld = None;
        client.asks = Some((request.instance, now));
        client.serves = matches!(request.standing, Standing::Holds { .. });
        if let (Standing::Released { .. }, Some(who)) = (request.standing, &client.claims) {
            leases.withdraw(who);
        }
        if let Some((epoch, instance)) = after.filter(|after| Some(*after) != before) {
            tell(&Event::Granted {
                service: request.service.clone(),
                epoch,
                instance: format!("{instance:016x}"),
                to: client.remote,
            });
        }
        match leases.store.as_ref().and_then(LeaseStore::failure) {
            None => leases.told = false,
            Some(_) if leases.told => {}
            Some(error) => {
                leases.told = true;
                tell(&Event::Warning {
                    code: Code::GrantsNotNoted,
                    reason: format!(
                        "no host is granted a service that does not serve it already, until that can be noted in --dir: {error}"
                    ),
                });
            }
        }
        self.tell_hosts(at)?;
        let client = &mut self.clients[at];
        match answer {
            Some((answer, true)) => client.say(&answer),
            answer => {
                client.withheld = answer.map(|(answer, _)| (request.service.clone(), answer));
                Ok(())
            }
        }
    }

    /// The operator declares the holder of a service dead.
    pub(super) fn give_up(
        &mut self,
        at: usize,
        service: String,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<(), ClientError> {
        self.clients[at].over = Some(Over::Answered);
        let now = self.now();
        let leases = &mut self.leases;
        let given_up = leases.granter.give_up(now, &service);
        let (epoch, from) = match given_up {
            Ok((epoch, _)) => (epoch, self.clients[at].remote),
            Err(why) => {
                return self.clients[at].say(&Response::Error {
                    code: match why {
                        StillHeld::Unknown => ErrorCode::UnknownFlow,
                        StillHeld::NotHeld | StillHeld::Heard { .. } => ErrorCode::BadRequest,
                    },
                    message: why.to_string(),
                });
            }
        };
        if let Some(store) = &mut leases.store {
            let state = store.keep(leases.granter.records());
            leases.waits_for.insert(service.clone(), state);
        }
        tell(&Event::HolderReleased {
            service: service.clone(),
            epoch,
            from,
        });
        let answer = Response::GivenUp { epoch };
        if self.leases.is_kept(&service) {
            return self.clients[at].say(&answer);
        }
        self.clients[at].withheld = Some((service, answer));
        Ok(())
    }

    /// Sends the withheld responses of stored decisions: clients may wait for the host that gets a response.
    pub(super) fn tell_kept(&mut self) {
        for client in &mut self.clients {
            let kept = |(service, _): &mut (String, Response)| self.leases.is_kept(service);
            if let Some((_, answer)) = client.withheld.take_if(kept) {
                // A broken stream is found at the next read.
                let _ = client.say(&answer);
            }
        }
    }

    /// The interval of [`Service::tell_kept`] while a response is withheld.
    pub(super) fn kept_due(&self) -> Option<Duration> {
        let waits = self.clients.iter().any(|client| client.withheld.is_some());
        waits.then_some(STORE_POLL_INTERVAL)
    }
}
