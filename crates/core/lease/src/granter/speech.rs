//! The granter's own host as a sender (FT-TCP IV.E.1): between two epochs no host serves, and the host that knows this
//! sends zero-window ACKs to the clients.
//!
//! The granter's host needs no lease: the host sends when the granter would grant the next epoch to any asking host,
//! and the granter grants no epoch until the packets have left. A restarted granter's host may have sent in a former
//! incarnation, and waits for as long. (Without memory, the granter learns of a service only from a holder that may
//! send at that moment, or when the longest lease is over.)

use std::time::Duration;

use super::Granter;

impl Granter {
    /// Since when no host may send for a service, if this is certain at `now`. Then the granter's host may send until
    /// the next call of [`Granter::decide`], and must report this before that call: [`Granter::record_speech`].
    #[must_use]
    pub fn unserved_since(&self, service: &str, now: Duration) -> Option<Duration> {
        let service = self.services.get(service)?;
        let nobodys = service.known && service.leased && now >= service.over;
        nobodys.then_some(service.over)
    }

    /// The services for which no host may send from a time on, past or future, without a new grant; and that time.
    pub fn leased(&self) -> impl Iterator<Item = (&str, Duration)> {
        let known = self.services.iter();
        let leased = known.filter(|(_, service)| service.known && service.leased);
        leased.map(|(name, service)| (name.as_str(), service.over))
    }

    /// The granter's host has sent packets in the name of a service, the last packet before `now`.
    pub fn record_speech(&mut self, service: &str, now: Duration) {
        let quiet = self.terms.drained_at(now);
        if let Some(service) = self.services.get_mut(service) {
            service.quiet_until = service.quiet_until.max(quiet);
        }
    }
}
