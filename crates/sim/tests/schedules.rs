//! Many schedules, each a function of its seed. `OUTLIVE_SIM_SEED` replays one,
//! `OUTLIVE_SIM_RUNS` sets how many there are.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use sim::{Outcome, Scenario, play};

/// Schedules in an ordinary run.
const RUNS: u64 = 10_000;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

/// Play the schedules of these seeds, on all CPUs; every invariant must hold in each of them.
fn play_all(seeds: Range<u64>, crashes: bool) -> Vec<Outcome> {
    let next = AtomicU64::new(seeds.start);
    let some = || {
        let mut played = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return played;
            }
            played.push((seed, play_one(seed, crashes)));
        }
    };
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let mut played: Vec<_> = thread::scope(|scope| {
        let players: Vec<_> = (0..cpus).map(|_| scope.spawn(some)).collect();
        let joined = players.into_iter().map(|player| player.join());
        joined
            .flat_map(|played| played.expect("no panic"))
            .collect()
    });
    played.sort_by_key(|(seed, _)| *seed);
    let mut failures = Vec::new();
    let mut outcomes = Vec::new();
    for (seed, result) in played {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(failure) => failures.push(format!("OUTLIVE_SIM_SEED={seed}: {failure}")),
        }
    }
    assert!(
        failures.is_empty(),
        "{} schedules failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    outcomes
}

fn play_one(seed: u64, crashes: bool) -> Result<Outcome, String> {
    let scenario = Scenario::drawn_from(seed);
    let scenario = if crashes {
        scenario
    } else {
        scenario.without_crashes()
    };
    play(&scenario).map_err(|failure| failure.to_string())
}

#[test]
fn no_schedule_of_crashes_breaks_an_invariant() {
    let seeds = match from_environment("OUTLIVE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_environment("OUTLIVE_SIM_RUNS").unwrap_or(RUNS),
    };
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, true);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    // What is never exercised is not tested either.
    assert!(alone || sum(|o| o.recoveries.into()) > 0, "no recovery");
    assert!(alone || sum(|o| o.self_acks) > 0, "nothing was said again");
    assert!(
        alone || sum(|o| o.mirror_full) > 0,
        "the ring was never full"
    );
}

#[test]
fn without_crashes_every_conversation_is_completed() {
    let outcomes = play_all(0..100, false);
    assert!(outcomes.iter().any(|outcome| outcome.complete > 0));
}
