//! Grants epochs and leases. Runs in the logger.
//!
//! For each service the granter must always know one fact: whether every permission to send is a *lease that ends at a
//! known time*. Only then the granter grants the next epoch. So the two permissions of a holder differ:
//!
//! | | a standby may take over |
//! |---|---|
//! | a lease | after the newest lease, if the holder confirmed the lease and awaits no permission without end |
//! | without end | never |
//!
//! A restarted granter knows the grants of former incarnations from [`Memory`], or waits: after the longest lease, no
//! grant of a former incarnation counts any more. Before that time, the granter answers only a holder that *may send*
//! at the moment of asking: no other host may, because no epoch was granted while this holder could still send. To be
//! sure of the moment, the granter believes only requests that name the present incarnation. Afterwards a silent
//! holder whose requests arrived meanwhile comes before every standby.
//!
//! While no host may send, the granter's own host may ([`Granter::unserved_since`]).

use std::{collections::BTreeMap, fmt, time::Duration};

use protocol::control::{Former, LeaseAnswer, LeaseRequest, Standing, Verdict};

use crate::{FailureDetector, Terms};

/// The knowledge of a granter at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Memory {
    /// All decisions of former incarnations. A service without a record has never been served, as far as this logger
    /// knows.
    Kept(Vec<Record>),
    /// No decisions; and the new decisions will be forgotten, too. A service that has had an effective standby is then
    /// never free again: a granter after the next loss of memory could not know.
    Lost,
}

/// The state of a service that must outlive the granter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The service's name.
    pub service: String,
    /// The newest epoch.
    pub epoch: u32,
    /// Host and instance that were granted the epoch, unless given up.
    pub holder: Option<(u64, u64)>,
    /// Hosts send only by leases, none longer than `term`.
    pub leased: bool,
    /// See there.
    pub term: Duration,
}

/// Silence of a host after which the operator may release its services.
const SILENT_HOST_AFTER: Duration = Duration::from_secs(10);

/// The reason against giving a service up in the holder's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StillHeld {
    /// No service has this name.
    Unknown,
    /// No host holds the service.
    NotHeld,
    /// The holder may live: the last word is recent.
    Heard {
        /// The time since the last word.
        ago: Duration,
        /// The last word is the holder's; else the granter was started at that time, and has not heard the holder
        /// since.
        itself: bool,
    },
}

impl fmt::Display for StillHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most, ago) = (SILENT_HOST_AFTER.as_secs(), |ago: &Duration| {
            ago.as_secs_f32()
        });
        match self {
            Self::Unknown => write!(f, "no host was ever granted a service of this name here"),
            Self::NotHeld => write!(f, "no host holds it: any other may serve"),
            Self::Heard {
                ago: time,
                itself: true,
            } => write!(
                f,
                "the host that holds it was heard {:.1} s ago: it is there. To move the service, say `outlive switchover` on it; a host that is switched off is silent for {most} s first",
                ago(time)
            ),
            Self::Heard {
                ago: time,
                itself: false,
            } => write!(
                f,
                "this logger was started {:.1} s ago, and may not have heard the host that holds it: try again when {most} s have passed",
                ago(time)
            ),
        }
    }
}

/// The granter's reaction to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// To be sent to the asker, if there is anything to say.
    pub answer: Option<LeaseAnswer>,
    /// To be stored before the answer is sent, in place of the stored record of the service: only if changed. Without
    /// [`Memory::Kept`] no store is needed.
    pub record: Option<Record>,
}

/// Decides for all services of a logger.
#[derive(Debug, Clone)]
pub struct Granter {
    incarnation: u64,
    terms: Terms,
    remembers: bool,
    /// The time at which all grants of former incarnations are over.
    settled: Duration,
    began: Duration,
    services: BTreeMap<String, Service>,
    claims: claims::Claims,
}

#[derive(Debug, Clone)]
struct Service {
    /// The holder is known, or known to be absent.
    known: bool,
    epoch: u32,
    holder: Option<(u64, u64)>,
    /// All that anybody may speak by is over at `over`.
    leased: bool,
    over: Duration,
    /// No lease that counts is longer.
    term: Duration,
    /// The holder's newest request that was answered with a permission without end; 0: none.
    freed: u64,
    /// A host other than the holder may believe that the holder is leased: an effective standby, or a former holder.
    /// Without memory the holder must stay leased.
    watched: bool,
    /// The end of the epoch before.
    former: Former,
    /// The host of the last holder, which has not given the service up: the operator declared the host dead, or the
    /// host has a new instance.
    lost: Option<u64>,
    /// The lateness of the holder's requests.
    detector: FailureDetector,
    /// The time at which packets of the granter's own host, in the service's name, have left.
    quiet_until: Duration,
    /// By instance. Retired instances stay, so that late messages of such an instance are not believed.
    members: BTreeMap<u64, Member>,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    host: u64,
    /// Of the newest request.
    number: u64,
    heard: Duration,
    /// The instance has answered to this incarnation of the granter.
    accepted: bool,
    /// The host has another instance by now, or the instance was superseded.
    retired: bool,
    standby: bool,
    preference: u16,
    /// An earlier incarnation of the granter has granted this epoch; the member knows of no loss, and is silent.
    silent_in: Option<u32>,
}

impl Granter {
    /// A granter that is started at `now`. `life` is drawn at random, and not 0.
    #[must_use]
    pub fn new(incarnation: u64, memory: Memory, terms: Terms, now: Duration) -> Self {
        let (remembers, records) = match memory {
            Memory::Kept(records) => (true, records),
            Memory::Lost => (false, Vec::new()),
        };
        let services = records.into_iter().map(|record| {
            let term = record.term.max(terms.term);
            let service = Service {
                known: true,
                epoch: record.epoch,
                holder: record.holder,
                leased: record.leased,
                // A holder may not have reached the granter for a while, and comes first.
                over: terms.silent_at(now, term.max(terms.longest)),
                term,
                freed: 0,
                watched: false,
                former: Former::Unknown,
                lost: None,
                detector: FailureDetector::new(&terms),
                // Our former incarnation may have spoken a moment ago.
                quiet_until: terms.drained_at(now),
                members: BTreeMap::new(),
            };
            (record.service, service)
        });
        Self {
            incarnation,
            terms,
            remembers,
            settled: terms.silent_at(now, terms.longest.max(terms.term)),
            began: now,
            services: services.collect(),
            claims: claims::Claims::default(),
        }
    }

    /// The state that must outlive the granter, of all services.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let known = self.services.iter().filter(|(_, service)| service.known);
        known.map(|(name, service)| service.record(name)).collect()
    }

    /// The state of a service that must outlive the granter, if the service is known.
    #[must_use]
    pub fn record(&self, name: &str) -> Option<Record> {
        let service = self.services.get(name).filter(|service| service.known)?;
        Some(service.record(name))
    }

    /// The end of the epoch before the present epoch, as sent with leases.
    #[must_use]
    pub fn former(&self, name: &str) -> Former {
        let service = self.services.get(name);
        service.map_or(Former::Unknown, |service| service.former)
    }

    /// The epoch of a service and the instance that holds the epoch, if any.
    #[must_use]
    pub fn holder(&self, service: &str) -> Option<(u32, u64)> {
        let service = self.services.get(service).filter(|service| service.known)?;
        Some((service.epoch, service.holder?.1))
    }

    /// The operator says that the holder of a service is gone for good. No host holds the service then; the next grant
    /// waits for the end of the holder's lease. Returns the epoch that is over, and the record to be kept.
    ///
    /// # Errors
    /// The holder was heard a moment ago, or could not be heard yet; or no host holds the service.
    pub fn give_up(&mut self, now: Duration, name: &str) -> Result<(u32, Record), StillHeld> {
        let began = self.began;
        let known = self.services.get_mut(name).filter(|service| service.known);
        let service = known.ok_or(StillHeld::Unknown)?;
        let (host, instance) = service.holder.ok_or(StillHeld::NotHeld)?;
        let heard = service.members.get(&instance).map(|member| member.heard);
        let silent = now.saturating_sub(heard.unwrap_or(began));
        if silent < SILENT_HOST_AFTER {
            return Err(StillHeld::Heard {
                ago: silent,
                itself: heard.is_some(),
            });
        }
        service.retire(instance);
        service.holder = None;
        service.lost = Some(host);
        if !service.leased {
            service.leased = true;
            service.over = now;
        }
        Ok((service.epoch, service.record(name)))
    }

    /// Whether this instance was superseded, or has given the service up: messages of the instance are out of date.
    #[must_use]
    pub fn is_over(&self, service: &str, instance: u64) -> bool {
        let service = self.services.get(service);
        let member = service.and_then(|service| service.members.get(&instance));
        member.is_some_and(|member| member.retired)
    }

    /// Decides about a request. `now` is read after the arrival of the request.
    pub fn decide(&mut self, now: Duration, request: &LeaseRequest) -> Decision {
        let name = &request.service;
        let settled = self.settled;
        let service = self
            .services
            .entry(name.clone())
            .or_insert_with(|| Service::unknown(&self.terms, settled));
        let before = service.known.then(|| service.record(name));
        let round = Round {
            now,
            incarnation: self.incarnation,
            terms: self.terms,
            remembers: self.remembers,
            request,
        };
        let verdict = service.decide(&round);
        let after = service.known.then(|| service.record(name));
        Decision {
            answer: verdict.map(|verdict| LeaseAnswer {
                instance: request.instance,
                number: request.number,
                life: self.incarnation,
                verdict,
            }),
            record: after.filter(|after| Some(after) != before.as_ref()),
        }
    }
}

/// A request, with the values for the decision.
struct Round<'a> {
    now: Duration,
    incarnation: u64,
    terms: Terms,
    remembers: bool,
    request: &'a LeaseRequest,
}

impl Round<'_> {
    /// The age of the newest request whose answer the holder has received: request numbers are times.
    fn behind(&self) -> Option<Duration> {
        match self.request.standing {
            Standing::Holds { answered, .. } if answered > 0 => {
                let behind = self.request.number.checked_sub(answered)?;
                Some(Duration::from_nanos(behind))
            }
            _ => None,
        }
    }
}

impl Service {
    fn unknown(terms: &Terms, settled: Duration) -> Self {
        Self {
            known: false,
            epoch: 0,
            holder: None,
            leased: false,
            over: settled,
            term: Duration::ZERO,
            freed: 0,
            watched: false,
            former: Former::Unknown,
            lost: None,
            detector: FailureDetector::new(terms),
            quiet_until: Duration::ZERO,
            members: BTreeMap::new(),
        }
    }

    fn record(&self, name: &str) -> Record {
        Record {
            service: name.to_owned(),
            epoch: self.epoch,
            holder: self.holder,
            leased: self.leased,
            term: self.term,
        }
    }

    fn decide(&mut self, round: &Round<'_>) -> Option<Verdict> {
        let request = round.request;
        let superseded = Verdict::Superseded { epoch: self.epoch };
        let new = !self.members.contains_key(&request.instance);
        let member = self.members.entry(request.instance).or_insert(Member {
            host: request.host,
            number: 0,
            heard: round.now,
            accepted: false,
            retired: false,
            standby: false,
            preference: request.preference,
            silent_in: None,
        });
        // The request may be very old. The answer contains the present incarnation, and a request with that
        // incarnation is new.
        if new || request.life != round.incarnation {
            return Some(Verdict::Wait);
        }
        if request.number <= member.number {
            return None;
        }
        member.number = request.number;
        member.heard = round.now;
        if member.retired {
            if let Standing::Holds { epoch, .. } = request.standing
                && epoch.saturating_add(1) == self.epoch
            {
                self.detector.record_false_suspicion(&round.terms);
            }
            return Some(superseded);
        }
        if !member.accepted {
            member.accepted = true;
            self.register_instance(request, round.now);
        }
        if let Standing::Released { .. } = request.standing {
            self.retire(request.instance);
            if self.is_holder(request.instance) {
                self.holder = None;
                self.leased = true;
                self.over = round.terms.drained_at(round.now);
            }
            return Some(superseded);
        }
        if round.now < self.quiet_until {
            return None; // the host asks again
        }
        if self.is_holder(request.instance) {
            return Some(self.prolong(round));
        }
        match request.standing {
            Standing::Holds { .. } if self.known => {
                self.retire(request.instance);
                Some(superseded)
            }
            Standing::Holds {
                epoch,
                speaks,
                leased,
                ..
            } => Some(self.learn(round, epoch, speaks, leased)),
            Standing::Standby { effective_in } => {
                self.register(request);
                if let Some(epoch) = effective_in.filter(|_| !self.known) {
                    self.remember(epoch, true, round.remembers);
                }
                Some(self.apply(round, false))
            }
            _ => {
                self.register(request);
                Some(self.apply(round, true))
            }
        }
    }

    /// A host may speak for the service, as far as is known.
    fn permits_speech(&self, host: u64, now: Duration) -> bool {
        let holds = self.holder.is_some_and(|(holder, _)| holder == host);
        self.known && holds && !(self.leased && now >= self.over)
    }

    fn is_holder(&self, instance: u64) -> bool {
        self.holder.is_some_and(|(_, holder)| holder == instance)
    }

    /// A host takes part as a new instance: older instances of the host are over, even with a permission without end.
    fn register_instance(&mut self, request: &LeaseRequest, now: Duration) {
        for (instance, member) in &mut self.members {
            member.retired |= member.host == request.host && *instance != request.instance;
        }
        if self
            .holder
            .is_some_and(|(host, instance)| host == request.host && instance != request.instance)
        {
            self.holder = None;
            self.lost = Some(request.host);
            self.leased = true;
            self.over = now;
        }
    }

    fn retire(&mut self, instance: u64) {
        if let Some(member) = self.members.get_mut(&instance) {
            member.retired = true;
            member.standby = false;
        }
    }

    fn register(&mut self, request: &LeaseRequest) {
        if let Some(member) = self.members.get_mut(&request.instance) {
            member.standby = true;
            member.preference = request.preference;
        }
    }

    /// A host that knew of an epoch before the loss of memory.
    fn remember(&mut self, epoch: u32, leased: bool, remembers: bool) {
        self.epoch = self.epoch.max(epoch);
        self.leased |= leased;
        self.watched |= leased && !remembers;
    }

    /// A former holder asks, while the granter knows of no holder.
    fn learn(&mut self, round: &Round<'_>, epoch: u32, speaks: bool, leased: bool) -> Verdict {
        self.remember(epoch, leased, round.remembers);
        if !speaks {
            if let Some(member) = self.members.get_mut(&round.request.instance) {
                member.silent_in = Some(epoch);
            }
            return self.apply(round, false);
        }
        self.epoch = epoch;
        self.known = true;
        self.holder = Some((round.request.host, round.request.instance));
        self.leased = leased;
        self.prolong(round)
    }

    /// The holder asks.
    fn prolong(&mut self, round: &Round<'_>) -> Verdict {
        let mut heard = false;
        if let Standing::Holds {
            epoch,
            leased,
            answered,
            ..
        } = round.request.standing
        {
            heard = epoch == self.epoch;
            // An answer without a lease that is still under way belongs to a request that the holder will find to be
            // old.
            self.leased = leased && (self.leased || answered > self.freed);
        }
        // The first grant in an epoch is a lease: if the holder is dead already, the epoch must end.
        if self.watched || !heard || self.has_standby(round) {
            let term = self.detector.term(&round.terms, round.now, round.behind());
            let over = round.terms.silent_at(round.now, term);
            self.over = self.over.max(over);
            self.term = self.term.max(round.terms.term);
            let term_us = u32::try_from(term.as_micros()).unwrap_or(u32::MAX);
            // A host that has not confirmed the lease yet may send without end, as far as the granter knows: no
            // standby would be granted the next epoch.
            let standby = self.leased && self.standbys(round, round.terms.term).next().is_some();
            return Verdict::Lease {
                epoch: self.epoch,
                term_us,
                standby,
                former: self.former,
            };
        }
        self.leased = false;
        self.freed = round.request.number;
        Verdict::Free { epoch: self.epoch }
    }

    fn has_standby(&self, round: &Round<'_>) -> bool {
        self.standbys(round, round.terms.forget).next().is_some()
    }

    /// The standbys heard within `time`, as pairs for the order of preference.
    fn standbys(&self, round: &Round<'_>, time: Duration) -> impl Iterator<Item = (u16, u64)> {
        let now = round.now;
        let standbys = self.members.iter().filter(move |(instance, member)| {
            member.standby
                && !member.retired
                && !self.is_holder(**instance)
                && now.saturating_sub(member.heard) < time
        });
        standbys.map(|(instance, member)| (member.preference, *instance))
    }

    /// Is the asking host the first of the hosts that would serve and were heard within a term? Without memory, the
    /// silent holder of the newest known epoch comes first: server and connections are on that host, and no takeover
    /// is needed.
    fn comes_first(&self, round: &Round<'_>) -> bool {
        let instance = round.request.instance;
        let holds = |member: &Member| {
            let heard = round.now.saturating_sub(member.heard) < round.terms.term;
            heard && !member.retired && member.silent_in == Some(self.epoch)
        };
        let mut members = self.members.iter().filter(|_| !self.known);
        match members.find(|(_, member)| holds(member)) {
            Some((holder, _)) => *holder == instance,
            None => {
                let own = (round.request.preference, instance);
                let mut others = self.standbys(round, round.terms.term);
                !others.any(|other| other < own)
            }
        }
    }

    /// A host that may not send would serve.
    fn apply(&mut self, round: &Round<'_>, vouched: bool) -> Verdict {
        let over = round.now >= self.over;
        let may = self.leased && over || !self.known && vouched && (over || round.remembers);
        let instance = round.request.instance;
        if may && self.comes_first(round) {
            self.former = match self.holder.map(|(host, _)| host).or(self.lost) {
                Some(host) if host == round.request.host => Former::Same,
                Some(_) => Former::Other,
                None if self.known && self.epoch > 0 => Former::GivenUp,
                None => Former::Unknown,
            };
            self.lost = None;
            if let Some((_, former)) = self.holder {
                self.retire(former);
                // The former holder does not know yet, and may be believed after the next loss of memory.
                self.watched |= !round.remembers;
            }
            if let Some(member) = self.members.get_mut(&instance) {
                member.standby = false;
            }
            self.known = true;
            self.epoch = self.epoch.saturating_add(1);
            self.holder = Some((round.request.host, instance));
            self.leased = true;
            self.over = round.now;
            self.term = round.terms.term;
            self.detector = self.detector.next(&round.terms);
            self.freed = 0;
            return self.prolong(round);
        }
        if !self.known {
            return Verdict::Wait;
        }
        self.watched |= self.leased && !round.remembers;
        let over = if self.leased { self.over } else { round.now };
        let left = over.saturating_sub(round.now).as_nanos().div_ceil(1000);
        Verdict::Standby {
            epoch: self.epoch,
            effective: self.leased,
            again_us: u32::try_from(left).unwrap_or(u32::MAX),
        }
    }
}

mod claims;
mod speech;
pub use claims::{Claimant, Taken};
#[cfg(test)]
mod tests;
