//! The length of a lease, and the assumptions between two hosts.

use std::time::Duration;

const PARTS_PER_MILLION: u128 = 1_000_000;

/// By how much a clock may be wrong about the length of a time, as a fraction: when a time *t* passes,
/// the clock advances by at least *t* (1 - d) and at most *t* (1 + d).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drift {
    /// *d*, in millionths; below a million.
    parts_per_million: u32,
}

impl Drift {
    /// A drift of `parts_per_million`, below a million.
    ///
    /// # Errors
    /// A clock that may stand still measures no time.
    pub const fn new(parts_per_million: u32) -> Result<Self, TermsError> {
        if parts_per_million < 1_000_000 {
            Ok(Self { parts_per_million })
        } else {
            Err(TermsError::Drift)
        }
    }

    /// The bound, in millionths.
    #[must_use]
    pub const fn parts_per_million(self) -> u32 {
        self.parts_per_million
    }

    /// The longest advance of a clock in which no more than `time` has passed, with certainty: rounded down.
    #[must_use]
    pub fn at_most(self, time: Duration) -> Duration {
        let rate = PARTS_PER_MILLION - u128::from(self.parts_per_million);
        from_nanos((time.as_nanos() * rate) / PARTS_PER_MILLION)
    }

    /// The shortest advance of a clock in which at least `time` has passed, with certainty: rounded up.
    #[must_use]
    pub fn at_least(self, time: Duration) -> Duration {
        let rate = PARTS_PER_MILLION + u128::from(self.parts_per_million);
        from_nanos((time.as_nanos() * rate).div_ceil(PARTS_PER_MILLION))
    }
}

impl Default for Drift {
    /// 1/1000: quartz is fifty times better, and NTP slews by half of that at most.
    fn default() -> Self {
        Self {
            parts_per_million: 1000,
        }
    }
}

#[cfg(test)]
pub(crate) const NONE: Drift = Drift {
    parts_per_million: 0,
};

fn from_nanos(nanos: u128) -> Duration {
    let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    let rest = u32::try_from(nanos % 1_000_000_000).unwrap_or(0);
    Duration::new(seconds, rest)
}

/// The parameters that a logger and the asking hosts share, and the assumptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// For how long a lease is granted at the most; at least 1 ms.
    pub term: Duration,
    /// The term for a holder that asks steadily ([`crate::FailureDetector`]).
    pub least: Duration,
    /// No logger of this service has ever granted a longer lease. A logger without memory waits for this time.
    pub longest: Duration,
    /// Of the clocks of loggers and hosts, against true time.
    pub drift: Drift,
    /// For how long a packet that the data plane has let pass may still wait in this host.
    pub queue: Duration,
    /// A standby that is silent for this time no longer counts.
    pub forget: Duration,
}

/// Terms that cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// A drift of a million parts in a million or more.
    #[error("a clock may not drift by all of the time")]
    Drift,
    /// A term beyond the range of a message.
    #[error("a lease lasts from 1 ms up to an hour")]
    Term,
    /// `least` is more than `term`.
    #[error("no lease may be shorter at the most than at the least")]
    Least,
    /// `longest` is less than `term`.
    #[error("no lease may be longer than another logger of the service would wait for: 2 s")]
    Longest,
}

impl Terms {
    pub(crate) const SHORTEST_TERM: Duration = Duration::from_millis(1);
    const LONGEST_TERM: Duration = Duration::from_secs(3600);

    /// These terms, if valid.
    ///
    /// # Errors
    /// See [`TermsError`].
    pub fn checked(self) -> Result<Self, TermsError> {
        if !(Self::SHORTEST_TERM..=Self::LONGEST_TERM).contains(&self.term) {
            return Err(TermsError::Term);
        }
        if !(Self::SHORTEST_TERM..=self.term).contains(&self.least) {
            return Err(TermsError::Least);
        }
        if self.longest < self.term {
            return Err(TermsError::Longest);
        }
        Ok(self)
    }

    /// Between two requests: two of three may be lost.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.term / 3
    }

    /// Between two requests of a host that would serve: the most that this wait adds to a takeover.
    #[must_use]
    pub fn eager_interval(&self) -> Duration {
        self.term / 16
    }

    /// Until when a holder may send whose request, sent at `sent`, was granted for `term`: by the holder's clock.
    #[must_use]
    pub fn speaks_until(&self, sent: Duration, term: Duration) -> Duration {
        sent.saturating_add(self.drift.at_most(term))
    }

    /// When the holder of a lease over `term`, granted at `granted`, is silent, and all packets have left the host: by
    /// the granter's clock.
    #[must_use]
    pub fn silent_at(&self, granted: Duration, term: Duration) -> Duration {
        self.after(granted, term.saturating_add(self.queue))
    }

    /// When all has left the host that was silenced before `now`: by the granter's clock.
    #[must_use]
    pub fn drained_at(&self, now: Duration) -> Duration {
        self.after(now, self.queue)
    }

    fn after(&self, start: Duration, time: Duration) -> Duration {
        start.saturating_add(self.drift.at_least(time))
    }
}

impl Default for Terms {
    /// A term of 250 ms, or down to 50 ms, none ever longer than 2 s; 10 ms in queues; standbys are forgotten
    /// after a minute.
    fn default() -> Self {
        Self {
            term: Duration::from_millis(250),
            least: Duration::from_millis(50),
            longest: Duration::from_secs(2),
            drift: Drift::default(),
            queue: Duration::from_millis(10),
            forget: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_duration() -> impl Strategy<Value = Duration> {
        (any::<u64>(), 0..1_000_000_000u32).prop_map(|(s, n)| Duration::new(s, n))
    }

    proptest! {
        /// The whole argument: for any two clocks within the bound, with any readings, the holder's last packet has
        /// left the host before the granter takes the holder for silent. In picoseconds of true time; a clock advances
        /// by `1e6 + rate` in a million.
        #[test]
        fn holder_is_silent_before_grant(
            ppm in 0..500_000u32,
            (holder, granter) in (-1.0..=1.0f64, -1.0..=1.0f64),
            sent in 0..u64::from(u32::MAX),
            granted in 0..u64::from(u32::MAX),
            term in 1_000_000..3_600_000_000_000u64,
            queue in 0..1_000_000_000u64,
        ) {
            let terms = Terms { drift: Drift::new(ppm).unwrap(), queue: Duration::from_nanos(queue), ..Terms::default() };
            let (sent, granted, term) = (Duration::from_nanos(sent), Duration::from_nanos(granted), Duration::from_nanos(term));
            let true_time = |by_clock: Duration, rate: f64| {
                #[allow(clippy::cast_possible_truncation)]
                let rate = (f64::from(ppm) * rate) as i128;
                i128::try_from(by_clock.as_nanos()).unwrap() * 1_000_000_000 / (1_000_000 + rate)
            };
            let speaks = true_time(terms.speaks_until(sent, term) - sent, holder);
            let waits = true_time(terms.silent_at(granted, term) - granted, granter);
            prop_assert!(speaks + i128::from(queue) * 1000 <= waits);
        }

        #[test]
        fn long_times_saturate(start in any_duration(), time in any_duration(), ppm in 0..1_000_000u32) {
            let terms = Terms { drift: Drift::new(ppm).unwrap(), queue: time, ..Terms::default() };
            prop_assert!(terms.speaks_until(start, time) >= start);
            prop_assert!(terms.silent_at(start, time) >= start);
            prop_assert!(terms.drained_at(start) <= terms.silent_at(start, time));
            prop_assert!(terms.drift.at_most(time) <= time && time <= terms.drift.at_least(time).max(time));
        }
    }

    #[test]
    fn impossible_terms_are_refused() {
        assert_eq!(Drift::new(1_000_000), Err(TermsError::Drift));
        let terms = Terms::default();
        assert_eq!(terms.checked(), Ok(terms));
        for term in [Duration::ZERO, Duration::from_secs(3601)] {
            let longest = Duration::from_secs(4000);
            let terms = Terms {
                term,
                longest,
                ..terms
            };
            assert_eq!(terms.checked(), Err(TermsError::Term));
        }
        for least in [Duration::ZERO, terms.term * 2] {
            assert_eq!(Terms { least, ..terms }.checked(), Err(TermsError::Least));
        }
        let terms = Terms {
            longest: terms.term / 2,
            ..terms
        };
        assert_eq!(terms.checked(), Err(TermsError::Longest));
    }
}
