//! Pools of servers, each run a function of its seed. `OUTLIVE_SIM_SEED` replays one, `OUTLIVE_SIM_RUNS` sets how many
//! there are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use sim::{PoolFlaw, PoolOutcome, PoolScenario, play_pool};

/// Runs of an ordinary test.
const POOL_RUNS: u64 = 500;
/// The same, of pools with a store.
const STORE_RUNS: u64 = 200;
/// Most runs until a mistake is found.
const FLAW_RUNS: u64 = 2000;

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok();
    text.map(|text| text.parse().expect("a number"))
}

/// Plays the runs of these seeds on all CPUs. The outcomes, and the failures.
fn play_all(
    seeds: std::ops::Range<u64>,
    change: impl Fn(PoolScenario) -> PoolScenario + Sync,
) -> (Vec<PoolOutcome>, Vec<String>) {
    let next = AtomicU64::new(seeds.start);
    let some = || {
        let mut played = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return played;
            }
            let result = play_pool(&change(PoolScenario::drawn_from(seed)));
            played.push((seed, result.map_err(|failure| failure.to_string())));
        }
    };
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let mut played: Vec<_> = thread::scope(|scope| {
        let players: Vec<_> = (0..cpus).map(|_| scope.spawn(some)).collect();
        let joined = players.into_iter().map(|player| player.join());
        joined.flat_map(|it| it.expect("no panic")).collect()
    });
    played.sort_by_key(|(seed, _)| *seed);
    let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
    for (_, result) in played {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(failure) => failures.push(failure),
        }
    }
    (outcomes, failures)
}

fn wanted(runs: u64) -> std::ops::Range<u64> {
    match from_environment("OUTLIVE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_environment("OUTLIVE_SIM_RUNS").unwrap_or(runs),
    }
}

/// Plays the runs, none of which may fail.
fn survive(seeds: std::ops::Range<u64>, change: fn(PoolScenario) -> PoolScenario) {
    let is_alone = seeds.end - seeds.start == 1;
    let (outcomes, failures) = play_all(seeds, change);
    for failure in &failures {
        let end = failure.find('\n').unwrap_or(failure.len());
        eprintln!("{}", &failure[..end]);
    }
    assert!(
        failures.is_empty(),
        "{} runs failed, the first: {}",
        failures.len(),
        failures[0]
    );
    let sum = |of: fn(&PoolOutcome) -> u32| outcomes.iter().map(of).sum::<u32>();
    let counts = (
        sum(|it| it.revived),
        sum(|it| it.reset),
        sum(|it| it.forwarded),
    );
    assert!(is_alone || counts.0 > 50, "{counts:?}");
    eprintln!("{counts:?}");
}

#[test]
fn downloads_survive_any_faults() {
    survive(wanted(POOL_RUNS), |scenario| scenario);
}

#[test]
fn stored_downloads_survive_any_faults() {
    survive(wanted(STORE_RUNS), PoolScenario::with_store);
}

/// Some run is broken by a mistake.
fn found(flaw: PoolFlaw) {
    found_in(flaw, |scenario| scenario);
}

fn found_in(flaw: PoolFlaw, change: fn(PoolScenario) -> PoolScenario) {
    let is_broken = |seed: &u64| {
        let result = play_pool(&change(PoolScenario::drawn_from(*seed)).flawed(flaw));
        if let Err(failure) = &result {
            let failure = failure.to_string();
            let end = failure.find('\n').unwrap_or(failure.len());
            eprintln!("{flaw:?}: {}", &failure[..end]);
        }
        result.is_err()
    };
    assert!(
        (0..FLAW_RUNS).any(|seed| is_broken(&seed)),
        "nobody finds {flaw:?}"
    );
}

macro_rules! flaws {
    ($($name:ident: $flaw:ident,)*) => {
        $(#[test] fn $name() { found(PoolFlaw::$flaw); })*
    };
}

macro_rules! flaws_of_stores {
    ($($name:ident: $flaw:ident,)*) => {
        $(#[test] fn $name() { found_in(PoolFlaw::$flaw, PoolScenario::with_store); })*
    };
}

#[test]
fn release_without_parity_is_found() {
    found_in(
        PoolFlaw::ReleaseWithoutParity,
        PoolScenario::with_small_objects,
    );
}

flaws! {
    idle_in_spite_of_hole_is_found: IdleInSpiteOfHole,
    tag_without_first_byte_is_found: TagWithoutFirstByte,
    ignored_claims_are_found: ClaimsIgnored,
    unawaited_greeting_is_found: GreetingNotAwaited,
    answer_without_lease_is_found: AnswersWithoutLease,
    unenforced_lease_is_found: LeaseNotEnforced,
    missing_quiescence_is_found: NoQuiescence,
    early_gate_is_found: GateBeforeListening,
    missing_gate_is_found: NoGate,
    uncompared_version_is_found: VersionNotCompared,
    early_release_is_found: GuardReleasedEarly,
    ignored_floor_is_found: FloorIgnored,
    retained_connections_are_found: ConnectionsRetained,
    revival_at_next_index_is_found: RevivedAtNextIndex,
}

flaws_of_stores! {
    missing_record_taken_for_idle_is_found: MissingRecordTakenForIdle,
    release_before_confirmation_is_found: ReleasedBeforeConfirmation,
    passed_deferred_byte_is_found: DeferredBytePassed,
    uncompared_numbers_are_found: NumbersNotCompared,
    older_generation_is_found: OlderGenerationPreferred,
    skipped_chunks_are_found: ChunksSkipped,
    ignored_list_of_members_is_found: ListedMembersIgnored,
}
