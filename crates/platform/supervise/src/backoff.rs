//! The time at which a dead server is started again.
//!
//! After rare deaths a server is restarted at once. After repeated deaths the pauses grow, because restarts must not
//! take all processor time. After a long enough run the earlier deaths are forgotten. Pure: the clock is an input.

#[cfg(test)]
mod tests;

use std::time::Duration;

/// The pauses of a [`Backoff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// Pause before the second restart in a row (the first comes at once).
    pub first_pause: Duration,
    /// No pause is longer than this.
    pub longest_pause: Duration,
    /// A server that lived at least this long starts without a pause again.
    pub forgiven_after: Duration,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
            // The server had begun to serve: the clients should not wait because of earlier deaths.
            forgiven_after: Duration::from_secs(1),
        }
    }
}

/// Restart back-off of one service.
///
/// Times are durations since any fixed point on a clock that does not go backwards. After a backward step the server
/// counts as having lived for no time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    config: BackoffConfig,
    started_at: Option<Duration>,
    /// Pause that the next death costs.
    next_pause: Duration,
}

impl Backoff {
    /// A service with no deaths so far.
    #[must_use]
    pub fn new(config: BackoffConfig) -> Self {
        Self {
            config,
            started_at: None,
            next_pause: Duration::ZERO,
        }
    }

    /// The server was started at `now`.
    pub fn started(&mut self, now: Duration) {
        self.started_at = Some(now);
    }

    /// The server died at `now`, or could not be started: returns how long to wait from
    /// `now` before the next start.
    pub fn died(&mut self, now: Duration) -> Duration {
        let lived = self
            .started_at
            .take()
            .map_or(Duration::ZERO, |at| now.saturating_sub(at));
        if lived >= self.config.forgiven_after {
            self.next_pause = Duration::ZERO;
        }
        let pause = self.next_pause;
        self.next_pause = self.after(pause);
        pause
    }

    /// The pause that follows `pause`.
    fn after(&self, pause: Duration) -> Duration {
        let longer = if pause.is_zero() {
            self.config.first_pause
        } else {
            pause.saturating_mul(2)
        };
        longer.min(self.config.longest_pause)
    }
}
