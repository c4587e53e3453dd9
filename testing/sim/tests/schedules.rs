//! Many schedules, each a function of its seed. `OUTLIVE_SIM_SEED` replays one,
//! `OUTLIVE_SIM_RUNS` sets how many there are, `OUTLIVE_SIM_PART=3/8` plays a part of them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use sim::{NorthCounters, Outcome, Scenario, play};

/// Schedules in an ordinary run.
const RUNS: u64 = 10_000;
/// The number of runs with a logger on another machine.
const LINKED_RUNS: u64 = 4_000;
/// The number of runs with a logger that is killed, too.
const DURABLE_RUNS: u64 = 2_000;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

/// The number of runs with power-offs of the server's host.
const RESTARTED_RUNS: u64 = 2_000;

/// The number of runs in which the logger often misses a request and the head of the response.
const DOUBTFUL_RUNS: u64 = 1_000;

/// The number of runs with a server that thinks.
const THOUGHTFUL_RUNS: u64 = 2_000;

/// The same with a server that half-closes.
const HALF_CLOSING_RUNS: u64 = 1_000;

/// The number of runs with a server that has state.
const NORTH_RUNS: u64 = 2_000;
/// The number of runs with a server that has state, and power-offs of the host.
const NORTH_RESTARTED_RUNS: u64 = 1_000;

/// Play the schedules of these seeds, on all CPUs; every invariant must hold in each of them.
fn play_all(seeds: Range<u64>, change: fn(Scenario) -> Scenario) -> Vec<Outcome> {
    let next = AtomicU64::new(seeds.start);
    let some = || {
        let mut played = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return played;
            }
            let scenario = change(Scenario::drawn_from(seed));
            let result = play(&scenario).map_err(|failure| failure.to_string());
            played.push((seed, result));
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

/// The schedules to run; `most` by default, or as in the environment.
fn wanted(most: u64) -> Range<u64> {
    match from_environment("OUTLIVE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => part(from_environment("OUTLIVE_SIM_RUNS").unwrap_or(most)),
    }
}

/// How many were played.
fn seeds_of(outcomes: &[Outcome]) -> u64 {
    u64::try_from(outcomes.len()).expect("few")
}

/// The part of the seeds that `OUTLIVE_SIM_PART` names; all seeds without that variable.
fn part(seeds: u64) -> Range<u64> {
    let Ok(text) = std::env::var("OUTLIVE_SIM_PART") else {
        return 0..seeds;
    };
    let (part, parts) = text.split_once('/').expect("a part, like 3/8");
    let part: u64 = part.parse().expect("a number");
    let parts: u64 = parts.parse().expect("a number");
    assert!(
        part < parts,
        "OUTLIVE_SIM_PART={text}: the last part is {}/{parts}",
        parts - 1
    );
    seeds * part / parts..seeds * (part + 1) / parts
}

/// With a logger on another machine that is killed again and again, and has a log.
#[test]
fn logger_crash_loses_no_acknowledged_byte() {
    let seeds = wanted(DURABLE_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, Scenario::durable);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    assert!(alone || sum(|o| o.recoveries.into()) > 0, "no recovery");
    assert!(alone || sum(|o| o.logger_deaths.into()) > 0, "it lives");
    assert!(alone || sum(|o| o.acks_made) > 0, "the logger said nothing");
}

/// The server's host loses power, and afterwards knows only the logger's data.
#[test]
fn power_loss_is_invisible_to_clients() {
    let seeds = wanted(RESTARTED_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, Scenario::restarted);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    assert!(alone || sum(|o| o.recoveries.into()) > 0, "no recovery");
    assert!(alone || sum(|o| o.self_acks) > 0, "nothing was said again");
}

/// The same with servers that do not say the same again.
#[test]
fn no_response_mixes_incarnations() {
    let seeds = wanted(RESTARTED_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, Scenario::answered_otherwise);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    assert!(alone || sum(|o| o.recoveries.into()) > 0, "no recovery");
    assert!(
        alone || outcomes.iter().any(|o| o.lost > 0),
        "nothing was lost"
    );
}

/// Neither a client's request nor the head of the response reaches the logger before the power-off: many schedules of
/// a kind of which the test before has a few.
#[test]
fn doubt_waits_for_the_new_server() {
    let seeds = wanted(DOUBTFUL_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, |scenario| scenario.doubtful(true));
    assert!(
        alone || outcomes.iter().any(|o| o.lost > 0),
        "nothing was lost"
    );
}

/// The same with clients that do not report bytes behind a gap.
#[test]
fn bytes_beyond_gap_are_of_same_incarnation() {
    let seeds = wanted(DOUBTFUL_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, |scenario| scenario.behind_holes(true));
    assert!(
        alone || outcomes.iter().any(|o| o.lost > 0),
        "nothing was lost"
    );
}

/// A server that thinks before repeating the client's output does not get later input meanwhile.
#[test]
fn busy_server_gets_no_early_input() {
    let seeds = wanted(THOUGHTFUL_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, |scenario| {
        let scenario = match scenario.seed() % 3 {
            0 => scenario.with_late_divergence_on_other_host(true),
            1 => scenario.with_late_divergence_and_requests(true).linked(),
            _ => scenario.with_late_divergence_and_requests(true),
        };
        scenario.in_order().thoughtful()
    });
    assert!(
        alone || outcomes.iter().any(|o| o.lost > 0),
        "nothing was lost"
    );
}

/// Nor does any part wait for ever, with any comparison.
#[test]
fn waits_for_busy_server_end() {
    let seeds = wanted(THOUGHTFUL_RUNS);
    play_all(seeds, |scenario| match scenario.seed() % 4 {
        0 => scenario.restarted().thoughtful(),
        1 => scenario.linked().thoughtful(),
        2 => scenario.durable().thoughtful(),
        _ => scenario.thoughtful(),
    });
}

/// A server that half-closes early, and reads on, is given the rest of a replay.
#[test]
fn half_closing_server_gets_rest_of_record() {
    let seeds = wanted(HALF_CLOSING_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, |scenario| {
        let half = scenario.half_closing(true);
        match half.seed() % 2 {
            0 => half.linked(),
            _ => half,
        }
    });
    let recoveries: u32 = outcomes.iter().map(|o| o.recoveries).sum();
    assert!(alone || recoveries > 0, "no recovery");
}

/// With a logger on another machine.
#[test]
fn acks_stay_within_the_log() {
    let seeds = wanted(LINKED_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, Scenario::linked);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    assert!(alone || sum(|o| o.recoveries.into()) > 0, "no recovery");
    assert!(alone || sum(|o| o.acks_made) > 0, "the logger said nothing");
    assert!(alone || sum(|o| o.acks_clamped) > 0, "it was never behind");
}

/// A server with state replays the determinants, and continues with the clients at their numbers.
#[test]
fn stateful_output_follows_from_input() {
    let seeds = wanted(NORTH_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, Scenario::north);
    let counters =
        |of: fn(&NorthCounters) -> u32| outcomes.iter().map(|o| of(&o.north)).sum::<u32>();
    assert!(alone || counters(|t| t.grafts) > 0, "no graft");
    assert!(
        alone || counters(|t| t.resumed) > 0,
        "nobody lacked anything"
    );
    // This is rare: a part of the schedules may have none.
    let whole = seeds_of(&outcomes) == NORTH_RUNS;
    assert!(!whole || counters(|t| t.closed) > 0, "none came further");
    for stage in 0..4 {
        let died = outcomes.iter().any(|o| o.north.deaths[stage] > 0);
        assert!(alone || died, "nobody died in stage {stage}");
    }
}

/// The determinants in the logger outlive the host, and no client has output that depends on others.
#[test]
fn stateful_server_survives_power_loss() {
    let seeds = wanted(NORTH_RESTARTED_RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, Scenario::north_restarted);
    let counters =
        |of: fn(&NorthCounters) -> u32| outcomes.iter().map(|o| of(&o.north)).sum::<u32>();
    assert!(alone || counters(|t| t.grafts) > 0, "no graft");
    assert!(
        alone || counters(|t| t.resumed) > 0,
        "nobody lacked anything"
    );
    let left = outcomes.iter().any(|outcome| outcome.mirror_skipped > 0);
    assert!(alone || left, "every segment was copied");
}

#[test]
fn crash_schedules_break_no_invariant() {
    let seeds = wanted(RUNS);
    let alone = seeds.end - seeds.start == 1;
    let outcomes = play_all(seeds, |scenario| scenario);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    // A path that is never exercised is not tested either.
    assert!(alone || sum(|o| o.recoveries.into()) > 0, "no recovery");
    assert!(alone || sum(|o| o.self_acks) > 0, "nothing was said again");
    assert!(
        alone || sum(|o| o.mirror_full) > 0,
        "the ring was never full"
    );
}

#[test]
fn conversations_complete_without_crashes() {
    let outcomes = play_all(0..100, Scenario::without_crashes);
    assert!(outcomes.iter().any(|outcome| outcome.complete > 0));
}
