use std::time::Duration;

use proptest::prelude::*;

use super::{Backoff, BackoffConfig};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Pauses of a server that lives `lived` each time, for `deaths` deaths.
fn pauses(config: BackoffConfig, lived: Duration, deaths: usize) -> Vec<Duration> {
    let mut backoff = Backoff::new(config);
    let mut now = Duration::ZERO;
    (0..deaths)
        .map(|_| {
            backoff.started(now);
            now += lived;
            let pause = backoff.died(now);
            now += pause;
            pause
        })
        .collect()
}

#[test]
fn first_restart_is_immediate_then_delay_doubles() {
    let expected = [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000].map(ms);
    assert_eq!(pauses(BackoffConfig::default(), ms(3), 9), expected);
}

#[test]
fn long_run_resets_backoff() {
    let config = BackoffConfig::default();
    assert_eq!(pauses(config, ms(1_000), 5), [Duration::ZERO; 5]);
    assert_eq!(pauses(config, ms(999), 3), [0, 100, 200].map(ms));
}

#[test]
fn delays_restart_after_reset() {
    let mut backoff = Backoff::new(BackoffConfig::default());
    backoff.started(ms(0));
    assert_eq!(backoff.died(ms(1)), ms(0));
    backoff.started(ms(1));
    assert_eq!(backoff.died(ms(2)), ms(100));
    backoff.started(ms(102));
    assert_eq!(backoff.died(ms(20_000)), ms(0));
    backoff.started(ms(20_000));
    assert_eq!(backoff.died(ms(20_001)), ms(100));
}

#[test]
fn failed_start_counts_as_crash() {
    let mut backoff = Backoff::new(BackoffConfig::default());
    backoff.started(ms(0));
    assert_eq!(backoff.died(ms(60_000)), ms(0));
    assert_eq!(backoff.died(ms(120_000)), ms(100), "not forgiven");
    assert_eq!(backoff.died(ms(180_000)), ms(200));
}

prop_compose! {
    fn any_config()(first in 0u64..10_000, longest in 0u64..100_000, forgiven in 1u64..100_000)
        -> BackoffConfig {
        BackoffConfig {
            first_pause: ms(first),
            longest_pause: ms(longest),
            forgiven_after: ms(forgiven),
        }
    }
}

proptest! {
    #[test]
    fn delays_are_monotonic_and_bounded(
        config in any_config(), deaths in 1usize..100,
    ) {
        let pauses = pauses(config, Duration::ZERO, deaths);
        prop_assert_eq!(pauses[0], Duration::ZERO);
        prop_assert!(pauses.iter().all(|&p| p <= config.longest_pause));
        prop_assert!(pauses.is_sorted());
    }

    #[test]
    fn arbitrary_times_are_accepted(
        events in prop::collection::vec((any::<bool>(), any::<u64>(), 0u32..1_000_000_000), 0..200),
        first: u64, longest: u64, forgiven: u64,
    ) {
        let config = BackoffConfig {
            first_pause: Duration::from_secs(first),
            longest_pause: Duration::from_secs(longest),
            forgiven_after: Duration::from_secs(forgiven),
        };
        let mut backoff = Backoff::new(config);
        for (start, seconds, nanos) in events {
            let now = Duration::new(seconds.min(u64::MAX - 1), nanos);
            if start {
                backoff.started(now);
            } else {
                prop_assert!(backoff.died(now) <= config.longest_pause);
            }
        }
    }
}
