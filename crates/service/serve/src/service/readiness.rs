//! Does the server listen on the addresses of the service? And the words about that.

use std::{net::SocketAddr, time::Duration};

use recovery::Stage;
use sd_notify::NotifyState;

use super::{Service, notify_manager};
use crate::{
    clock,
    config::{in_words, is_next},
    error::{ServeError, SystemContext},
    events::Event,
    status::FIRST_START,
};

/// Time from the start of a server to the first event that the server does not listen, and between two events.
const NOT_LISTENING_DELAY: Duration = Duration::from_secs(5);
const NOT_LISTENING_INTERVAL: Duration = Duration::from_secs(60);

/// While a start waits for anything but the server, the service manager is asked this often to wait this much longer.
const START_EXTENSION_INTERVAL: Duration = Duration::from_secs(1);
const START_EXTENSION: Duration = Duration::from_secs(30);

/// Knowledge of the server's listening sockets.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    /// The server has listened, in this incarnation or an earlier incarnation.
    has: bool,
    /// The service manager knows that the service is there.
    ready: bool,
    /// The time of the last word to the service manager that the start takes longer.
    extended: Option<Duration>,
    /// The state in the last notification of the service manager.
    status: String,
    /// The beginning of the present incarnation, and the time of the next word that the server does not listen.
    started: Option<(Duration, Duration)>,
}

impl Readiness {
    /// Is this the first time?
    pub(super) fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.has, true)
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has
    }

    /// Is a notification of the service manager due?
    pub(super) fn becomes_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.ready, true)
    }

    /// Is a notification due that the start takes longer?
    fn is_to_extend(&mut self, now: Duration) -> bool {
        let due = |told: Duration| now >= told + START_EXTENSION_INTERVAL;
        let is = !self.ready && self.extended.is_none_or(due);
        if is {
            self.extended = Some(now);
        }
        is
    }

    /// An incarnation of the server begins.
    pub(crate) fn started(&mut self, now: Duration) {
        self.started = Some((now, now + NOT_LISTENING_DELAY));
    }

    /// The age of the present incarnation, if the listening sockets are to be looked at now.
    fn due(&mut self, now: Duration) -> Option<Duration> {
        let (since, due) = self.started.as_mut().filter(|(_, due)| now >= *due)?;
        *due = now + NOT_LISTENING_INTERVAL;
        Some(now.saturating_sub(*since))
    }

    /// No more words about this incarnation.
    pub(crate) fn settled(&mut self) {
        self.started = None;
    }
}

impl Service {
    /// The server serves clients.
    pub(super) fn notify_ready(&mut self) {
        if self.readiness.becomes_ready() {
            notify_manager(NotifyState::Ready);
        }
        self.show_status();
    }

    /// The start takes longer, and not because of the server: the service manager's time limit is not meant for that.
    pub(super) fn extend_start(&mut self) {
        if self.readiness.is_to_extend(clock::now()) {
            let by = u32::try_from(START_EXTENSION.as_micros()).unwrap_or(u32::MAX);
            notify_manager(NotifyState::ExtendTimeoutUsec(by));
        }
        self.show_status();
    }

    /// State of the service in the service manager (`STATUS=`): sent when changed.
    pub(super) fn show_status(&mut self) {
        let addresses = in_words(&self.config.addresses).join(", ");
        let stage = match self.stage_name() {
            FIRST_START => "waiting for the server to listen",
            "not_started" => "not started",
            stage => stage,
        };
        let status = format!("{stage}: {addresses}");
        if status != self.readiness.status {
            notify_manager(NotifyState::Status(&status));
            self.readiness.status = status;
        }
    }

    /// A record is being replayed, or is about to be.
    pub(super) fn is_replaying(&self) -> bool {
        match self.recovery.stage() {
            _ if !self.readiness.has_begun() => false,
            Stage::Serving => false,
            Stage::Starting => self.north.is_some(), // replays before listening
            Stage::Clearing | Stage::Listing | Stage::Recovering => true,
        }
    }

    /// Says on which addresses the server does not listen, some time after the start.
    pub(super) fn check_listeners(&mut self) -> Result<(), ServeError> {
        if self.server.is_none() && !self.resources.cgroup.populated()? {
            return Ok(()); // the end is reported elsewhere
        }
        let Some(waited) = self.readiness.due(clock::now()) else {
            return Ok(());
        };
        let mut missing = self.not_listened_on()?;
        if missing.len() < self.config.addresses.len() {
            self.readiness.settled(); // of some addresses, that is said once
            let single = without_ranges(&self.config.addresses);
            missing.retain(|address| single.contains(address));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let elsewhere = supervise::listening_in(&self.resources.cgroup)
            .doing("list the listening sockets of the server")?;
        self.emit(Event::NotListening {
            addresses: in_words(&missing),
            elsewhere: elsewhere.iter().map(ToString::to_string).collect(),
            waited_ms: clock::millis(waited),
            standby: self.stands_by(),
        });
        Ok(())
    }

    /// [`Self::check_listeners`] for a replica that has caught up: otherwise clients would meet the mistake after a
    /// takeover.
    pub(super) fn check_replica_listeners(&mut self) -> Result<(), ServeError> {
        match self.replica_is_current() {
            true => self.check_listeners(),
            false => Ok(()),
        }
    }

    pub(super) fn not_listened_on(&self) -> Result<Vec<SocketAddr>, ServeError> {
        let mut missing = Vec::new();
        for address in &self.config.addresses {
            if !supervise::is_listened_on(*address).doing("list the listening sockets")? {
                missing.push(*address);
            }
        }
        Ok(missing)
    }

    pub(super) fn listens(&self) -> Result<bool, ServeError> {
        for address in &self.config.addresses {
            if supervise::is_listened_on(*address).doing("list the listening sockets")? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A server listens on a port of a range only when needed.
fn without_ranges(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let rows = addresses.chunk_by(is_next);
    rows.filter(|row| row.len() == 1)
        .flatten()
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_checked_at_intervals() {
        let at = |seconds: u64| Duration::from_secs(1000 + seconds);
        let mut readiness = Readiness::default();
        assert_eq!(readiness.due(at(0)), None);
        readiness.started(at(0));
        assert_eq!(readiness.due(at(4)), None);
        assert_eq!(readiness.due(at(5)), Some(Duration::from_secs(5)));
        assert_eq!(readiness.due(at(64)), None);
        assert_eq!(readiness.due(at(65)), Some(Duration::from_secs(65)));
        readiness.started(at(70));
        assert_eq!(readiness.due(at(74)), None);
        assert_eq!(readiness.due(at(75)), Some(Duration::from_secs(5)));
        readiness.settled();
        assert_eq!(readiness.due(at(1000)), None);
    }

    #[test]
    fn port_ranges_are_not_reported() {
        let parse = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let single = ["10.0.0.1:80", "10.0.0.1:443", "10.0.0.2:444"].map(parse);
        let range = ["10.0.0.1:2000", "10.0.0.1:2001"].map(parse);
        let all = [&single[..], &range].concat();
        assert_eq!(without_ranges(&all), single);
    }

    #[test]
    fn service_manager_is_notified_once() {
        let mut readiness = Readiness::default();
        assert!(!readiness.has_begun() && readiness.begins() && !readiness.begins());
        assert!(readiness.has_begun());
        let at = Duration::from_secs;
        assert!(readiness.is_to_extend(at(10)) && !readiness.is_to_extend(at(10)));
        assert!(readiness.is_to_extend(at(11)));
        assert!(readiness.becomes_ready() && !readiness.becomes_ready());
        assert!(!readiness.is_to_extend(at(20)));
    }
}
