//! How long a lease has to be for a holder that asks as steadily as this one.
//!
//! A short lease is taken over soon, and one that is over before its holder, which lives, has asked again costs
//! the service a takeover for nothing. How late a holder's requests are tells which is which
//! (`enhanced-server-fault-tolerance-2008`: failures are detected adaptively, by what was seen of the
//! network). Whatever the term, nobody speaks beyond it: only how soon somebody else may is decided here.

use std::time::Duration;

use crate::Terms;

/// A lease is so many times as long as the worst lateness of late. A third of it passes before the holder asks again,
/// so the next request may be four times as late as any before.
const LATENESS_FACTOR: u32 = 6;
/// Time in which two thirds of the doubt about an unknown holder decay.
const DOUBT_DECAY: Duration = Duration::from_secs(10);
/// Time in which two thirds of the lateness of a holder decay.
const LATENESS_DECAY: Duration = Duration::from_secs(20);
/// The decay time after a false suspicion: a machine that stood still once does so again.
const SUSPECTED_LATENESS_DECAY: Duration = Duration::from_secs(600);

/// What was seen of a holder.
#[derive(Debug, Clone)]
pub struct FailureDetector {
    /// When its last request came, and for how long it was granted then.
    last: Option<(Duration, Duration)>,
    /// How late it may be for all that we know.
    doubt: Duration,
    /// How late the worst of late was, less what was forgotten since.
    lateness: Duration,
    /// In which time two thirds of that are forgotten.
    memory: Duration,
}

impl FailureDetector {
    /// Nothing was seen yet: it may be as late as the longest lease allows.
    #[must_use]
    pub fn new(terms: &Terms) -> Self {
        Self {
            last: None,
            doubt: worst(terms),
            lateness: Duration::ZERO,
            memory: LATENESS_DECAY,
        }
    }

    /// The holder has asked, at `now`; the newest of its requests whose answer it had heard then was `behind` older,
    /// by its own clock (what is under way for long is late, however steadily it comes). For how long it is granted.
    pub fn term(&mut self, terms: &Terms, now: Duration, behind: Option<Duration>) -> Duration {
        if let Some((before, granted)) = self.last {
            let passed = now.saturating_sub(before);
            self.doubt = decayed(self.doubt, passed, DOUBT_DECAY);
            // It asks three times in a term.
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

    /// What is known of the next holder.
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

    /// A holder lives that was taken for dead: it, or the way to it, stands still for as long as no lease of ours
    /// lasted.
    pub fn record_false_suspicion(&mut self, terms: &Terms) {
        (self.lateness, self.memory) = (worst(terms), SUSPECTED_LATENESS_DECAY);
    }
}

/// What is left of it when so much of the time has passed in which two thirds go.
fn decayed(value: Duration, passed: Duration, time: Duration) -> Duration {
    let passed = passed.min(time).as_secs_f64() / time.as_secs_f64();
    value.mul_f64((-passed).exp())
}

/// More makes no lease longer.
fn worst(terms: &Terms) -> Duration {
    terms.term / LATENESS_FACTOR + Duration::from_nanos(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Asks as a holder does, each time so much too late; returns the terms.
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

    /// Asks steadily for a while, of a logger whose answers take so long; returns the shortest term, and whether each
    /// answer came before the lease before it was over.
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
            // It asks as often as the newest that it has heard says.
            now += newest.map_or(terms.term, |(_, term)| term) / 3;
            sent.drain(..sent.len().saturating_sub(64));
        }
        (shortest, speaks)
    }

    /// Else its host would be silent in a part of each term, for as long as nothing changes.
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
        /// It is never shorter, nor longer, and four times the lateness that there was fits between two requests.
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

        /// Terms of one length are that.
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
