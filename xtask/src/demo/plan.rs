//! Who is killed, and when.

use std::collections::VecDeque;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// From the moment that all connections are live again to the next kill, milliseconds.
const BETWEEN_KILLS: std::ops::Range<u64> = 600..1700;

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Nginx,
    Logger,
    /// The power of the host that serves.
    Host,
}

/// The victims, and the waiting times before that.
///
/// nginx dies at the same moments with and without a logger. The host's death is in the middle, and the
/// logger's half-way to it.
pub(crate) fn plan(seed: u64, kills: u32, with_logger: bool) -> VecDeque<(Duration, Victim)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut wait = || Duration::from_millis(random.random_range(BETWEEN_KILLS));
    let mut plan: VecDeque<_> = (0..kills).map(|_| (wait(), Victim::Nginx)).collect();
    if with_logger && kills > 0 {
        let middle = plan.len() / 2;
        plan.insert(middle, (wait(), Victim::Host));
        plan.insert(middle / 2, (wait(), Victim::Logger));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_plan() {
        assert_eq!(plan(7, 20, true), plan(7, 20, true));
        assert_ne!(plan(7, 20, false), plan(8, 20, false));
        assert_eq!(plan(7, 20, false).len(), 20);
    }

    #[test]
    fn logger_and_host_die_once_and_before_the_last_death_of_nginx() {
        for kills in 1..9 {
            let without = plan(7, kills, false);
            let mut with = plan(7, kills, true);
            for victim in [Victim::Logger, Victim::Host] {
                let at = with.iter().position(|(_, one)| *one == victim);
                let at = at.expect("it dies");
                assert!(at + 1 < with.len());
                with.remove(at);
            }
            assert_eq!(with, without);
        }
        assert!(plan(7, 0, true).is_empty());
    }
}
