//! Whether it is worth while not to sleep, for one who expects an answer sooner than a sleeper is woken.
//!
//! Who stays awake offers the processor to others between two looks (`sched_yield`). Nobody wants it: then nothing is lost by
//! that. Somebody does who has much to compute: then the processor is gone for a whole slice of the scheduler's, some
//! milliseconds, while a sleeper would have been woken in microseconds, and been let in at once for having slept. So who has
//! lost the processor for long sleeps instead of that for a while, longer each time.
//!
//! Times are nanoseconds of any clock that never goes back.

/// Who had the processor for so long had much to do.
const LONG: u64 = 200_000;
/// For so long no processor is offered after that: at first, and at most.
const FIRST_REST: u64 = 100_000_000;
const LONGEST_REST: u64 = 10_000_000_000;

/// Whether to stay awake, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awake {
    /// How long, at most.
    span: u64,
    /// How long the next rest is, and when the last one is over.
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

    /// Something may come soon: until when to stay awake for it. `None`: it is better to sleep at once.
    #[must_use]
    pub const fn until(&self, now: u64) -> Option<u64> {
        if self.span == 0 || now < self.rests_until {
            return None;
        }
        Some(now.saturating_add(self.span))
    }

    /// The processor was offered at `then`, and is ours again `now`. Whether to go on staying awake.
    #[must_use]
    pub fn has_offered(&mut self, then: u64, now: u64) -> bool {
        if now.saturating_sub(then) < LONG {
            return true;
        }
        self.rests_until = now.saturating_add(self.rest);
        self.rest = (self.rest * 2).min(LONGEST_REST);
        false
    }

    /// It was awake until the end, and nobody took the processor for long.
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

    /// Somebody else computes all the time: whoever offers the processor has lost it for a slice.
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
