//! Round trips, and the retransmission timeout.

use core::time::Duration;

/// Estimates of the round trip to a receiver (RFC 6298, section 2).
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrip {
    smoothed: Duration,
    /// Mean deviation.
    variation: Duration,
    is_measured: bool,
    /// Timeouts since the last answer.
    timeouts: u32,
}

impl RoundTrip {
    /// Longest round trip that is believed: a longer figure is an echo of another time.
    const BELIEVED_MAX: Duration = Duration::from_secs(10);
    const TIMEOUT_MIN: Duration = Duration::from_millis(10);
    const TIMEOUT_MAX: Duration = Duration::from_secs(1);

    /// `assumed` until a round trip has been measured.
    pub(crate) const fn new(assumed: Duration) -> Self {
        Self {
            smoothed: assumed,
            variation: Duration::ZERO,
            is_measured: false,
            timeouts: 0,
        }
    }

    /// An answer to a packet of this age has arrived. Returns the age, if it can be one.
    pub(crate) fn on_answer(&mut self, age: Duration) -> Option<Duration> {
        self.timeouts = 0;
        if age > Self::BELIEVED_MAX {
            return None;
        }
        if self.is_measured {
            self.variation = (self.variation * 3 + self.smoothed.abs_diff(age)) / 4;
            self.smoothed = (self.smoothed * 7 + age) / 8;
        } else {
            self.variation = age / 2;
            self.smoothed = age;
        }
        self.is_measured = true;
        Some(age)
    }

    /// An answer that tells no round trip has arrived.
    pub(crate) const fn on_untimed_answer(&mut self) {
        self.timeouts = 0;
    }

    pub(crate) const fn on_timeout(&mut self) {
        self.timeouts = self.timeouts.saturating_add(1);
    }

    pub(crate) const fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// No answer came within the last timeout.
    pub(crate) const fn is_silent(&self) -> bool {
        self.timeouts > 0
    }

    /// Twice the round trip, or more if round trips vary; and twice that for each timeout before.
    pub(crate) fn timeout(&self) -> Duration {
        let varied = self.smoothed + self.variation * 4;
        let first = varied.max(self.smoothed * 2).max(Self::TIMEOUT_MIN);
        let doubled = first.saturating_mul(1 << self.timeouts.min(16));
        doubled.min(Self::TIMEOUT_MAX.max(first))
    }
}
