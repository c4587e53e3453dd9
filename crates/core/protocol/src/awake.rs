//! Should a thread stay awake that expects an answer sooner than a wake-up takes?
//!
//! A thread that stays awake offers the processor to other threads between two looks (`sched_yield`). On an idle
//! processor the offer costs nothing. Beside a thread with much to compute, the processor is gone for a whole slice of
//! the scheduler's, some milliseconds. A sleeping thread would be woken in microseconds, and would run at once for
//! having slept. So a thread that has lost the processor for long sleeps from then on for a while, longer each time.
//!
//! Times are nanoseconds of any clock that never goes back.

/// A thread that had the processor for this time had much to do.
const LONG: u64 = 500_000;
/// After such a loss the processor is not offered for this time: at first, and at the most.
const FIRST_REST: u64 = 100_000_000;
const LONGEST_REST: u64 = 10_000_000_000;

/// The decision to stay awake, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awake {
    /// The longest time awake.
    span: u64,
    /// The length of the next rest, and the end of the last rest.
    rest: u64,
    rests_until: u64,
}

impl Awake {
    /// For `span` each time; 0: never.
    #[must_use]
    pub const fn of(span: u64) -> Self {
        Self {
            span,
            rest: FIRST_REST,
            rests_until: 0,
        }
    }

    /// An answer may come soon: the time until which to stay awake. `None`: sleep at once.
    #[must_use]
    pub const fn until(&self, now: u64) -> Option<u64> {
        if self.span == 0 || now < self.rests_until {
            return None;
        }
        Some(now.saturating_add(self.span))
    }

    /// The processor was offered at `then`, and is back `now`. Returns whether to stay awake longer.
    #[must_use]
    pub fn has_offered(&mut self, then: u64, now: u64) -> bool {
        if now.saturating_sub(then) < LONG {
            return true;
        }
        self.rests_until = now.saturating_add(self.rest);
        self.rest = (self.rest * 2).min(LONGEST_REST);
        false
    }

    /// The thread was awake until the end, and no other thread took the processor for long.
    pub fn was_undisturbed(&mut self) {
        self.rest = FIRST_REST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: u64 = 50_000;
    const SLICE: u64 = 3_000_000;

    #[test]
    fn alone_it_stays_awake_each_time() {
        let mut awake = Awake::of(SPAN);
        let mut now = 7;
        for _ in 0..1000 {
            let until = awake.until(now).expect("nobody disturbs");
            assert_eq!(until, now + SPAN);
            while now < until {
                assert!(awake.has_offered(now, now + 500));
                now += 1000;
            }
            awake.was_undisturbed();
        }
    }

    #[test]
    fn no_span_is_never() {
        assert_eq!(Awake::of(0).until(1), None);
    }

    /// Another thread computes all the time: a thread that offers the processor has lost a slice.
    fn lost_slices(awake: &mut Awake, from: u64, datagrams: u64, apart: u64) -> u64 {
        let (mut now, mut lost) = (from, 0);
        for _ in 0..datagrams {
            now += apart;
            if awake.until(now).is_some() && !awake.has_offered(now, now + SLICE) {
                now += SLICE;
                lost += 1;
            }
        }
        lost
    }

    #[test]
    fn beside_others_that_compute_it_loses_the_processor_a_few_times_only() {
        let mut awake = Awake::of(SPAN);
        // Ten seconds: rests of 0.1, 0.2, 0.4 … s.
        assert_eq!(lost_slices(&mut awake, 0, 100_000, 100_000), 7);
        // A hundred more: one for each of the longest rests.
        let lost = lost_slices(&mut awake, 10_000_000_000, 1_000_000, 100_000);
        assert!((9..=11).contains(&lost), "{lost}");
    }

    #[test]
    fn one_who_has_little_to_do_is_let_in() {
        let mut awake = Awake::of(SPAN);
        assert!(awake.has_offered(0, LONG - 1));
        assert!(awake.until(LONG).is_some());
    }

    #[test]
    fn when_the_others_are_gone_the_next_rest_is_short_again() {
        let mut awake = Awake::of(SPAN);
        let mut now = 0;
        for _ in 0..5 {
            assert!(!awake.has_offered(now, now + SLICE));
            now += LONGEST_REST;
        }
        assert!(awake.until(now).is_some());
        awake.was_undisturbed();
        assert!(!awake.has_offered(now, now + SLICE));
        now += SLICE;
        assert_eq!(awake.until(now + FIRST_REST - 1), None);
        assert!(awake.until(now + FIRST_REST).is_some());
    }

    #[test]
    fn no_times_overflow() {
        let mut awake = Awake::of(u64::MAX);
        assert_eq!(awake.until(5), Some(u64::MAX));
        assert!(!awake.has_offered(0, u64::MAX));
        assert_eq!(awake.until(1), None);
    }
}
