//! Whether the server listens where clients are to find it, and what was told of that.

use std::{net::SocketAddr, time::Duration};

use recovery::Stage;
use sd_notify::NotifyState;

use super::{Service, tell_manager};
use crate::{
    clock,
    config::{in_words, is_next},
    error::{ServeError, SystemContext},
    events::Happening,
    status::FIRST_START,
};

/// How long after its start a server is said not to listen, and how often again.
const SAID_AFTER: Duration = Duration::from_secs(5);
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// While a start waits for others than the server, the service manager is told, so often, to go on waiting for so long.
const EXTENDED_EACH: Duration = Duration::from_secs(1);
const EXTENDED_BY: Duration = Duration::from_secs(30);

/// What is known of the server's listening sockets.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    /// It has listened, in this life or in an earlier one.
    has: bool,
    /// The service manager knows that the service is there.
    ready: bool,
    /// When the service manager was told last that the start takes longer.
    extended: Option<Duration>,
    /// What the service manager was told of the state.
    status: String,
    /// The present life began then, and when it is to be said that it does not listen.
    life: Option<(Duration, Duration)>,
}

impl Listening {
    /// Tells whether this is the first time.
    pub(super) fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.has, true)
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has
    }

    /// Tells whether the service manager does not know yet, and is to be told now.
    pub(super) fn becomes_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.ready, true)
    }

    /// Whether the service manager is to be told now that the start takes longer.
    fn is_to_extend(&mut self, now: Duration) -> bool {
        let due = |told: Duration| now >= told + EXTENDED_EACH;
        let is = !self.ready && self.extended.is_none_or(due);
        if is {
            self.extended = Some(now);
        }
        is
    }

    /// A life of the server begins.
    pub(crate) fn started(&mut self, now: Duration) {
        self.life = Some((now, now + SAID_AFTER));
    }

    /// How long this life has had, if it is to be looked now whether it listens everywhere.
    fn due(&mut self, now: Duration) -> Option<Duration> {
        let (since, due) = self.life.as_mut().filter(|(_, due)| now >= *due)?;
        *due = now + SAID_AGAIN;
        Some(now.saturating_sub(*since))
    }

    /// Nothing is to be said of this life any more.
    pub(crate) fn settled(&mut self) {
        self.life = None;
    }
}

impl Service {
    /// The server is there for clients.
    pub(super) fn is_ready(&mut self) {
        if self.listening.becomes_ready() {
            tell_manager(NotifyState::Ready);
        }
        self.show_status();
    }

    /// The start takes longer, for a reason that is not the server's: a time limit of the service manager is not meant.
    pub(super) fn start_goes_on(&mut self) {
        if self.listening.is_to_extend(clock::now()) {
            let by = u32::try_from(EXTENDED_BY.as_micros()).unwrap_or(u32::MAX);
            tell_manager(NotifyState::ExtendTimeoutUsec(by));
        }
        self.show_status();
    }

    /// The service manager shows what the service is doing (`STATUS=`), if that has changed.
    pub(super) fn show_status(&mut self) {
        let addresses = in_words(&self.config.addresses).join(", ");
        let stage = match self.stage_name() {
            FIRST_START => "waiting for the server to listen",
            "not_started" => "not started",
            stage => stage,
        };
        let status = format!("{stage}: {addresses}");
        if status != self.listening.status {
            tell_manager(NotifyState::Status(&status));
            self.listening.status = status;
        }
    }

    /// There is a record to be replayed, however long it is.
    pub(super) fn replays(&self) -> bool {
        match self.recovery.stage() {
            _ if !self.listening.has_begun() => false,
            Stage::Serving => false,
            Stage::Starting => self.north.is_some(), // replays before it listens
            Stage::Clearing | Stage::Listing | Stage::Recovering => true,
        }
    }

    /// Where the server does not listen some time after its start, that is said.
    pub(super) fn look_where_it_listens(&mut self) -> Result<(), ServeError> {
        if self.server.is_none() && !self.ground.cgroup.populated()? {
            return Ok(()); // that it ends is told elsewhere
        }
        let Some(waited) = self.listening.due(clock::now()) else {
            return Ok(());
        };
        let mut missing = self.not_listened_on()?;
        if missing.len() < self.config.addresses.len() {
            self.listening.settled(); // of some addresses, that is said once
            let single = without_ranges(&self.config.addresses);
            missing.retain(|address| single.contains(address));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let elsewhere = supervise::listening_in(&self.ground.cgroup)
            .doing("list the listening sockets of the server")?;
        self.tell(Happening::NotListening {
            addresses: in_words(&missing),
            elsewhere: elsewhere.iter().map(ToString::to_string).collect(),
            waited_ms: clock::millis(waited),
            standby: self.stands_by(),
        });
        Ok(())
    }

    /// The same of a server that follows, when it has done all that the one has done where it serves: one that listens
    /// elsewhere, or never, would be found out by clients, when this host serves.
    pub(super) fn look_where_it_will_listen(&mut self) -> Result<(), ServeError> {
        match self.follows_to_the_end() {
            true => self.look_where_it_listens(),
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

/// On a port of a range a server listens when there is something for it.
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
    fn a_life_is_looked_at_after_five_seconds_and_every_minute() {
        let at = |seconds: u64| Duration::from_secs(1000 + seconds);
        let mut listening = Listening::default();
        assert_eq!(listening.due(at(0)), None);
        listening.started(at(0));
        assert_eq!(listening.due(at(4)), None);
        assert_eq!(listening.due(at(5)), Some(Duration::from_secs(5)));
        assert_eq!(listening.due(at(64)), None);
        assert_eq!(listening.due(at(65)), Some(Duration::from_secs(65)));
        listening.started(at(70));
        assert_eq!(listening.due(at(74)), None);
        assert_eq!(listening.due(at(75)), Some(Duration::from_secs(5)));
        listening.settled();
        assert_eq!(listening.due(at(1000)), None);
    }

    #[test]
    fn ranges_are_not_missed() {
        let parse = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let single = ["10.0.0.1:80", "10.0.0.1:443", "10.0.0.2:444"].map(parse);
        let range = ["10.0.0.1:2000", "10.0.0.1:2001"].map(parse);
        let all = [&single[..], &range].concat();
        assert_eq!(without_ranges(&all), single);
    }

    #[test]
    fn what_was_told_is_told_once() {
        let mut listening = Listening::default();
        assert!(!listening.has_begun() && listening.begins() && !listening.begins());
        assert!(listening.has_begun());
        let at = Duration::from_secs;
        assert!(listening.is_to_extend(at(10)) && !listening.is_to_extend(at(10)));
        assert!(listening.is_to_extend(at(11)));
        assert!(listening.becomes_ready() && !listening.becomes_ready());
        assert!(!listening.is_to_extend(at(20)));
    }
}
