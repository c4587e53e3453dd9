//! Chooses the term of a lease from the lateness of the holder's requests.
//!
//! A standby takes a short lease over soon. A lease that expires before the living holder has asked again costs the
//! service a takeover without need. The lateness of the holder's requests tells both cases apart
//! (`enhanced-server-fault-tolerance-2008`: adaptive detection of failures, from observations of the network). For any
//! term, no host sends beyond the lease; the term only decides how soon another host may send.

use std::time::Duration;

use crate::Terms;

/// The ratio of a lease to the worst recent lateness. The holder asks again after a third of the lease, so the next
/// request may be four times as late as any before.
const LATENESS_FACTOR: u32 = 6;
/// Time in which two thirds of the doubt about an unknown holder decay.
const DOUBT_DECAY: Duration = Duration::from_secs(10);
/// Time in which two thirds of the lateness of a holder decay.
const LATENESS_DECAY: Duration = Duration::from_secs(20);
/// The decay time after a false suspicion: a machine that was stopped for a while may stop again.
const SUSPECTED_LATENESS_DECAY: Duration = Duration::from_secs(600);

/// The observations of a holder.
#[derive(Debug, Clone)]
pub struct FailureDetector {
    /// The time of the last request, and the term granted then.
    last: Option<(Duration, Duration)>,
    /// Assumed lateness of a holder that is not known yet.
    doubt: Duration,
    /// The worst recent lateness, less the decay since.
    lateness: Duration,
    /// Time in which two thirds of the lateness decay.
    memory: Duration,
}

impl FailureDetector {
    /// No observation yet: the holder may be as late as the longest lease allows.
    #[must_use]
    pub fn new(terms: &Terms) -> Self {
        Self {
            last: None,
            doubt: worst(terms),
            lateness: Duration::ZERO,
            memory: LATENESS_DECAY,
        }
    }

    /// Takes a request of the holder at `now`, and returns the granted term. `behind`: the age of the newest request
    /// whose answer the holder had received, by the holder's clock (a request that is under way for long is late, even
    /// at a steady rate).
    pub fn term(&mut self, terms: &Terms, now: Duration, behind: Option<Duration>) -> Duration {
        if let Some((before, granted)) = self.last {
            let passed = now.saturating_sub(before);
            self.doubt = decayed(self.doubt, passed, DOUBT_DECAY);
            // A holder asks three times in a term.
            let late = passed
                .max(behind.unwrap_or_default())
                .saturating_sub(granted / 3);
            let known = decayed(self.lateness, passed, self.memory);
            self.lateness = known.max(late).min(worst(terms));
        }
        let late = self.lateness.max(self.doubt);
        let term = (late * LATENESS_FACTOR).clamp(terms.least, terms.term);
        self.last = Some((now, term));
        term
    }

    /// The detector of the next holder.
    #[must_use]
    pub fn next(&self, terms: &Terms) -> Self {
        match self.memory {
            SUSPECTED_LATENESS_DECAY => Self {
                last: None,
                doubt: worst(terms),
                ..*self
            },
            _ => Self::new(terms),
        }
    }

    /// A holder that was taken for dead lives: the holder, or the path, stood still for longer than any granted lease.
    pub fn record_false_suspicion(&mut self, terms: &Terms) {
        (self.lateness, self.memory) = (worst(terms), SUSPECTED_LATENESS_DECAY);
    }
}

/// The rest of `value` after `passed`, when two thirds decay in `time`.
fn decayed(value: Duration, passed: Duration, time: Duration) -> Duration {
    let passed = passed.min(time).as_secs_f64() / time.as_secs_f64();
    value.mul_f64((-passed).exp())
}

/// A greater lateness makes no lease longer.
fn worst(terms: &Terms) -> Duration {
    terms.term / LATENESS_FACTOR + Duration::from_nanos(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Asks as a holder does, each time late by the given µs; returns the last term.
    fn asks(
        detector: &mut FailureDetector,
        now: &mut Duration,
        late: impl IntoIterator<Item = u64>,
    ) -> Duration {
        let terms = Terms::default();
        let mut term = detector.term(&terms, *now, None);
        for late in late {
            *now += term / 3 + Duration::from_micros(late);
            term = detector.term(&terms, *now, None);
        }
        term
    }

    /// Asks steadily for a while, with answers after `round_trip`. Returns the shortest term, and whether each answer
    /// arrived before the previous lease expired.
    fn asks_from_afar(round_trip: Duration) -> (Duration, bool) {
        let terms = Terms::default();
        let (mut detector, mut now) = (FailureDetector::new(&terms), Duration::ZERO);
        let mut sent: Vec<(Duration, Duration)> = Vec::new();
        let (mut shortest, mut speaks) = (terms.term, true);
        while now < Duration::from_secs(60) {
            let heard = sent.iter().filter(|(sent, _)| *sent + round_trip <= now);
            let newest = heard.max_by_key(|(sent, _)| *sent).copied();
            let behind = newest.map(|(sent, _)| now - sent);
            let end = newest.map(|(sent, term)| sent + term);
            speaks &= end.is_none_or(|end| end > now);
            let term = detector.term(&terms, now, behind);
            shortest = shortest.min(term);
            sent.push((now, term));
            // The newest received answer sets the interval of requests.
            now += newest.map_or(terms.term, |(_, term)| term) / 3;
            sent.drain(..sent.len().saturating_sub(64));
        }
        (shortest, speaks)
    }

    /// Otherwise the host would be silent in a part of each term, without end.
    #[test]
    fn distant_holder_keeps_speaking() {
        let (shortest, speaks) = asks_from_afar(Duration::from_millis(1));
        assert_eq!((shortest, speaks), (Terms::default().least, true));
        for far in [10, 20, 30, 40, 60, 80, 120] {
            let (_, speaks) = asks_from_afar(Duration::from_millis(far));
            assert!(speaks, "a round trip of {far} ms");
        }
    }

    #[test]
    fn false_suspicion_lengthens_terms() {
        let terms = Terms::default();
        let (mut detector, mut now) = (FailureDetector::new(&terms), Duration::ZERO);
        asks(&mut detector, &mut now, [0; 2000]);
        detector.record_false_suspicion(&terms);
        let begin = now;
        let after = asks(&mut detector, &mut now, [0; 400]);
        assert!(now - begin > Duration::from_secs(30), "{:?}", now - begin);
        assert!(after > Duration::from_millis(200), "{after:?}");
    }

    #[test]
    fn steady_holder_gets_short_terms() {
        let terms = Terms::default();
        let (mut detector, mut now) = (FailureDetector::new(&terms), Duration::ZERO);
        assert_eq!(
            asks(&mut detector, &mut now, []),
            terms.term,
            "nothing is known"
        );
        asks(&mut detector, &mut now, [500; 600]);
        let after = asks(&mut detector, &mut now, []);
        assert_eq!(after, terms.least, "after {now:?}");
        assert!(now < Duration::from_secs(30), "{now:?}");
    }

    #[test]
    fn late_request_lengthens_terms() {
        let terms = Terms::default();
        let (mut detector, mut now) = (FailureDetector::new(&terms), Duration::ZERO);
        asks(&mut detector, &mut now, [0; 2000]);
        let late = asks(&mut detector, &mut now, [30_000]);
        assert_eq!(late, Duration::from_millis(180));
        let begin = now;
        let soon = asks(&mut detector, &mut now, [0; 10]);
        assert!(now - begin < Duration::from_secs(1));
        assert!(soon > Duration::from_millis(160), "{soon:?}");
        assert_eq!(asks(&mut detector, &mut now, [0; 2000]), terms.least);
    }

    proptest! {
        /// A term stays within both bounds, and four times the observed lateness fits between two requests.
        #[test]
        fn terms_are_within_bounds(late in prop::collection::vec(0..400_000u64, 1..50)) {
            let terms = Terms::default();
            let (mut detector, mut now) = (FailureDetector::new(&terms), Duration::ZERO);
            for late in late {
                let term = asks(&mut detector, &mut now, [late]);
                prop_assert!((terms.least..=terms.term).contains(&term));
                let room = term - term / 3;
                let seen = Duration::from_micros(late);
                prop_assert!(term == terms.term || room + Duration::from_micros(1) >= seen * 4);
            }
        }

        /// With equal bounds, all terms are equal.
        #[test]
        fn equal_bounds_fix_terms(late in prop::collection::vec(0..400_000u64, 1..20)) {
            let terms = Terms { least: Terms::default().term, ..Terms::default() };
            let (mut detector, mut now) = (FailureDetector::new(&terms), Duration::ZERO);
            for late in late {
                now += Duration::from_micros(late);
                prop_assert_eq!(detector.term(&terms, now, None), terms.term);
            }
        }
    }
}
