//! The granter's own host as a speaker (FT-TCP IV.E.1): between two epochs nobody serves, and clients
//! are told that there is no room now by the one who knows that it is so.
//!
//! It needs no lease, since it grants them: it speaks when it would grant the next epoch to whoever asked,
//! and grants nothing until what it has sent has left it. One that is started again may have spoken in
//! its former incarnation, and waits for as long. (One without memory knows of no service but from a holder
//! that speaks at that moment, or when the longest lease is over.)

use std::time::Duration;

use super::Granter;

impl Granter {
    /// Since when nobody may speak for a service, if it is known at `now` that it is so. Then the
    /// granter's host may, until [`Granter::decide`] is called for the next time, and has to say so
    /// before that: [`Granter::record_speech`].
    #[must_use]
    pub fn unserved_since(&self, service: &str, now: Duration) -> Option<Duration> {
        let service = self.services.get(service)?;
        let nobodys = service.known && service.leased && now >= service.over;
        nobodys.then_some(service.over)
    }

    /// The services for which nobody may speak from a time on, past or to come, unless somebody is
    /// granted it before; and that time.
    pub fn leased(&self) -> impl Iterator<Item = (&str, Duration)> {
        let known = self.services.iter();
        let leased = known.filter(|(_, service)| service.known && service.leased);
        leased.map(|(name, service)| (name.as_str(), service.over))
    }

    /// The granter's host has sent something in the name of a service, the last of it before `now`.
    pub fn record_speech(&mut self, service: &str, now: Duration) {
        let quiet = self.terms.drained_at(now);
        if let Some(service) = self.services.get_mut(service) {
            service.quiet_until = service.quiet_until.max(quiet);
        }
    }
}
