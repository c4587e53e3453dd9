//! Sockets of recovered connections are to be fast again: `bpf/renew.h` says why they would not be.

use std::time::Duration;

use crate::{clock, error::ServeError, service::Service};

/// The first look after a recovery, and how much later each one is than the one before.
const FIRST: Duration = Duration::from_millis(10);
const GROWTH: u32 = 2;
/// A client that says nothing for so long finds congestion control that has forgotten the replay by itself: BBR's
/// memory of the shortest round trip is 10 s long.
const LAST: Duration = Duration::from_secs(10);

/// When the sockets are looked at next, and how long after that again; `None`: when connections were recovered.
#[derive(Debug, Default)]
pub(crate) struct Renewal(Option<(Duration, Duration)>);

impl Renewal {
    pub(super) fn due(&self) -> Option<Duration> {
        self.0.map(|(at, _)| at)
    }
}

impl Service {
    /// Connections were recovered.
    pub(crate) fn renew_sockets_soon(&mut self) {
        self.renewal = Renewal(Some((clock::now(), FIRST)));
    }

    pub(super) fn renew_sockets_if_due(&mut self, now: Duration) -> Result<(), ServeError> {
        let Some((at, pause)) = self.renewal.0.filter(|(at, _)| now >= *at) else {
            return Ok(());
        };
        let left = self.ground.plane.renew_sockets()?;
        let next = (at.max(now) + pause, pause * GROWTH);
        self.renewal = Renewal(Some(next).filter(|_| left > 0 && pause <= LAST));
        Ok(())
    }
}
