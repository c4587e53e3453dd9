//! Many seeds. `OUTLIVE_SIM_SEED` replays one, `OUTLIVE_SIM_RUNS` sets how many there are.

use sim::{Outcome, Scenario, play};

#[test]
fn probe() {
    let first: u64 = std::env::var("OUTLIVE_SIM_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let runs: u64 = std::env::var("OUTLIVE_SIM_RUNS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(200);
    let mut bad = 0;
    let mut total = Outcome::default();
    for seed in first..first + runs {
        let mut scenario = Scenario::drawn_from(seed);
        if std::env::var("NOCRASH").is_ok() {
            scenario = scenario.without_crashes();
        }
        match play(&scenario) {
            Ok(outcome) => {
                total.steps += outcome.steps;
                total.deaths += outcome.deaths;
                total.complete += outcome.complete;
                total.lost += outcome.lost;
                total.mirror_full += outcome.mirror_full;
                total.replayed_bytes += outcome.replayed_bytes;
                total.self_acks += outcome.self_acks;
                total.recoveries += outcome.recoveries;
            }
            Err(failure) => {
                bad += 1;
                if bad < 40 {
                    println!("{failure}");
                }
            }
        }
    }
    println!("bad {bad} of {runs}; {total:?}");
}
