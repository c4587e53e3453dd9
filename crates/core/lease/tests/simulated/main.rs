//! Hosts, a logger and the network between, with all faults, from a seed.
//!
//! Invariants at every step: no two hosts, the logger's own included, may send packets that a client can receive,
//! packets below the data plane included; with a logger that remembers, no two instances ever send in one epoch.
//! Invariant at the end, after the faults: a host may send, and continues.
//!
//! The same runs with a single mistake in each place on which the argument rests must be noticed.
//!
//! `LEASE_SEEDS=from..to` runs other seeds; a failure names the seed.

mod model;

use model::{Fault, Mistake, Model};

/// The seeds of the run: the default, or the seeds of the environment.
fn seeds(some: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("LEASE_SEEDS").ok();
    let range = asked.as_deref().and_then(|asked| asked.split_once(".."));
    range.map_or(0..some, |(from, to)| {
        from.parse().expect("a number")..to.parse().expect("a number")
    })
}

fn all_is_well(durable: bool) {
    let (mut takeovers, mut spoken) = (0, 0);
    for seed in seeds(150) {
        match Model::new(seed, durable, Mistake::None).run() {
            Ok(told) => (takeovers, spoken) = (takeovers + told.0, spoken + told.1),
            Err(fault) => panic!("seed {seed}: {fault:?}"),
        }
    }
    println!("{takeovers} takeovers, the logger spoke {spoken} times");
    assert!(takeovers > 0 && spoken > 0);
}

#[test]
fn one_host_speaks_with_durable_logger() {
    all_is_well(true);
}

#[test]
fn one_host_speaks_with_volatile_logger() {
    all_is_well(false);
}

/// A takeover would cost every connection a replay, or a reset, without need.
#[test]
fn volatile_logger_keeps_silent_holder() {
    for durable in [true, false] {
        for seed in seeds(100) {
            let model = Model::new(seed, durable, Mistake::None);
            let [before, afterwards] = match model.forgets_a_silent_holder() {
                Ok(speakers) => speakers,
                Err(fault) => panic!("seed {seed}: {fault:?}"),
            };
            assert!(before.is_some(), "seed {seed}");
            assert_eq!(before, afterwards, "seed {seed}, it remembers: {durable}");
        }
    }
}

/// The first seed with which the mistake is noticed.
fn noticed(mistake: Mistake, durable: bool) {
    let found = (0..400).find_map(|seed| {
        let fault = Model::new(seed, durable, mistake).run().err()?;
        Some((seed, fault))
    });
    let (seed, fault) = found.expect("nobody noticed");
    println!("{mistake:?}: seed {seed}, {fault:?}");
    assert!(!matches!(fault, Fault::NoSpeaker { .. }));
}

#[test]
fn counting_from_receipt_is_detected() {
    noticed(Mistake::CountsFromReceipt, true);
}

#[test]
fn excessive_drift_is_detected() {
    noticed(Mistake::NoDrift, true);
}

#[test]
fn unbounded_queue_is_detected() {
    noticed(Mistake::NoQueue, true);
}

#[test]
fn early_confirmation_is_detected() {
    noticed(Mistake::ConfirmsTooEarly, true);
}

#[test]
fn late_write_is_detected() {
    noticed(Mistake::OldMemory, true);
}

#[test]
fn missing_wait_is_detected() {
    noticed(Mistake::DoesNotWait, false);
}

#[test]
fn forgotten_speech_is_detected() {
    noticed(Mistake::SpeaksAndForgets, true);
    noticed(Mistake::SpeaksAndForgets, false);
}
