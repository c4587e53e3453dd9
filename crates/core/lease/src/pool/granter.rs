//! The balancer's side: which membership is alive, and until when each may still be in use.

use std::{collections::BTreeMap, time::Duration};

use crate::{FailureDetector, Terms};

/// Grants leases to the members of a pool. Times are those of the balancer's clock.
#[derive(Debug, Clone)]
pub struct PoolGranter {
    terms: Terms,
    settled_at: Duration,
    memberships: BTreeMap<u64, Membership>,
}

#[derive(Debug, Clone)]
struct Membership {
    /// All packets that any granted lease permits have left the member's host.
    silent_at: Duration,
    /// The newest request.
    number: u64,
    detector: FailureDetector,
}

impl PoolGranter {
    /// A granter that starts at `now`, and knows no membership.
    #[must_use]
    pub fn new(terms: Terms, now: Duration) -> Self {
        Self {
            terms,
            settled_at: terms.silent_at(now, terms.longest),
            memberships: BTreeMap::new(),
        }
    }

    /// From this time on, no lease of a former life of the balancer is in use.
    #[must_use]
    pub const fn settled_at(&self) -> Duration {
        self.settled_at
    }

    /// A member joins, and has a full term for the first request. After a false suspicion the member, or the way to the
    /// member, is known to stand still now and then.
    pub fn admit(&mut self, membership: u64, now: Duration, falsely_suspected: bool) {
        let mut detector = FailureDetector::new(&self.terms);
        if falsely_suspected {
            detector.record_false_suspicion(&self.terms);
        }
        self.insert(
            membership,
            self.terms.silent_at(now, self.terms.term),
            detector,
        );
    }

    /// A former life of the balancer admitted this member: a lease of any length may be in use.
    pub fn assume(&mut self, membership: u64) {
        let (settled_at, detector) = (self.settled_at, FailureDetector::new(&self.terms));
        self.insert(membership, settled_at, detector);
        if let Some(lease) = self.memberships.get_mut(&membership) {
            lease.silent_at = lease.silent_at.max(settled_at);
        }
    }

    fn insert(&mut self, membership: u64, silent_at: Duration, detector: FailureDetector) {
        let fresh = Membership {
            silent_at,
            number: 0,
            detector,
        };
        // A second admission may not shorten a lease.
        self.memberships.entry(membership).or_insert(fresh);
    }

    /// Takes a request that was received at `now` or before. Returns the granted term. `None`: the membership is
    /// unknown or dead, or a newer request was granted already.
    ///
    /// `answered`: the newest request whose answer had reached the member. Requests have the time of sending as number,
    /// in nanoseconds of the member's clock.
    pub fn grant(
        &mut self,
        membership: u64,
        number: u64,
        answered: u64,
        now: Duration,
    ) -> Option<Duration> {
        let lease = self.memberships.get_mut(&membership)?;
        // Expired but not yet declared dead: nobody was told, and the lease may go on.
        if number <= lease.number {
            return None;
        }
        lease.number = number;
        let behind = number.checked_sub(answered).filter(|_| answered > 0);
        let behind = behind.map(Duration::from_nanos);
        let term = lease.detector.term(&self.terms, now, behind);
        let silent_at = self.terms.silent_at(now, term);
        lease.silent_at = lease.silent_at.max(silent_at);
        Some(term)
    }

    /// The member is silent already, and leaves: dead when the last packet has left the member's host.
    pub fn leave(&mut self, membership: u64, now: Duration) {
        if let Some(lease) = self.memberships.get_mut(&membership) {
            lease.silent_at = lease.silent_at.min(self.terms.drained_at(now));
        }
    }

    /// The membership is dead by the word of another balancer.
    pub fn forget(&mut self, membership: u64) {
        self.memberships.remove(&membership);
    }

    /// Whether the membership is admitted, and not dead.
    #[must_use]
    pub fn is_alive(&self, membership: u64) -> bool {
        self.memberships.contains_key(&membership)
    }

    /// Takes the memberships whose leases are over: from now on these are dead.
    pub fn expire(&mut self, now: Duration) -> Vec<u64> {
        let mut dead = Vec::new();
        self.memberships.retain(|membership, lease| {
            let alive = now < lease.silent_at;
            if !alive {
                dead.push(*membership);
            }
            alive
        });
        dead
    }

    /// When the next lease is over, if no request comes.
    #[must_use]
    pub fn expires_at(&self) -> Option<Duration> {
        self.memberships.values().map(|lease| lease.silent_at).min()
    }
}
