//! The plan of the kills.

use std::collections::VecDeque;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng, SeedableRng};

use crate::server::Server;

/// Time from live connections to the next kill, milliseconds.
const BETWEEN_KILLS: std::ops::Range<u64> = 600..1700;

/// A victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    /// A server's main process.
    Server(Server),
    Logger,
    /// The power of the host that serves.
    Host,
}

/// The victims, and the pauses before.
///
/// The servers die in turn, in a new order each time, at the same moments with and without a logger. The host dies in
/// the middle, and the logger half-way before that.
pub(crate) fn plan(seed: u64, kills: u32, with_logger: bool) -> VecDeque<(Duration, Victim)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut plan = VecDeque::new();
    let mut turn = Vec::new();
    for _ in 0..kills {
        let wait = wait(&mut random);
        if turn.is_empty() {
            turn.extend(Server::ALL);
            turn.shuffle(&mut random);
        }
        plan.extend(turn.pop().map(|server| (wait, Victim::Server(server))));
    }
    if with_logger && kills > 0 {
        let middle = plan.len() / 2;
        plan.insert(middle, (wait(&mut random), Victim::Host));
        plan.insert(middle / 2, (wait(&mut random), Victim::Logger));
    }
    plan
}

fn wait(random: &mut StdRng) -> Duration {
    Duration::from_millis(random.random_range(BETWEEN_KILLS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_plan() {
        assert_eq!(plan(7, 20, true), plan(7, 20, true));
        assert_ne!(plan(7, 20, false), plan(8, 20, false));
        assert_eq!(plan(7, 20, false).len(), 20);
    }

    #[test]
    fn deaths_are_spread_over_servers() {
        for seed in 0..50 {
            for kills in 3..12 {
                let plan = plan(seed, kills, false);
                let deaths = Server::ALL.map(|server| {
                    let of_it = |(_, victim): &&_| *victim == Victim::Server(server);
                    u32::try_from(plan.iter().filter(of_it).count()).expect("a few")
                });
                assert!(
                    deaths
                        .iter()
                        .all(|n| [kills / 3, kills.div_ceil(3)].contains(n))
                );
            }
        }
    }

    #[test]
    fn logger_and_host_die_before_last_server() {
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
