//! A digest of each of the first schedules: a change that is to move no behaviour moves no digest.
//!
//! A digest covers the outcome of a run: virtual time to the nanosecond, steps, deaths, bytes, acknowledgements and
//! resets. A change of behaviour writes the new digests (`INSTA_UPDATE=always cargo test -p sim --test digests`),
//! and its commit says why. `OUTLIVE_SIM_TRACE` shows a run whose digest has moved, before and after.

use std::fmt::Write as _;

use sim::{Outcome, Scenario, play};

/// Schedules of each kind.
const SEED_COUNT: u64 = 100;
const DIGESTS_PER_LINE: u64 = 10;

type Change = fn(Scenario) -> Scenario;

/// The kinds of schedules.rs.
const SCHEDULE_KINDS: [(&str, Change); 11] = [
    ("crashes", |scenario| scenario),
    ("without crashes", Scenario::without_crashes),
    ("linked", Scenario::linked),
    ("durable", Scenario::durable),
    ("restarted", Scenario::restarted),
    ("answered otherwise", Scenario::answered_otherwise),
    ("in doubt", |scenario| scenario.doubtful(true)),
    ("behind holes", |scenario| scenario.behind_holes(true)),
    ("half-closing", |scenario| {
        scenario.half_closing(true).linked()
    }),
    ("north", Scenario::north),
    ("north restarted", Scenario::north_restarted),
];

/// The numbers of an outcome, without the names of the fields: a name may change.
fn values_of(outcome: &Outcome) -> String {
    let text = format!("{outcome:?}");
    text.chars()
        .filter(|one| !one.is_alphabetic() && *one != '_')
        .collect()
}

#[test]
fn schedules_have_their_digests() {
    let mut text = String::new();
    for (name, change) in SCHEDULE_KINDS {
        text.push_str(name);
        for seed in 0..SEED_COUNT {
            let outcome = play(&change(Scenario::drawn_from(seed)));
            let outcome = outcome.unwrap_or_else(|failure| panic!("{name}: {failure}"));
            let digest = crc32fast::hash(values_of(&outcome).as_bytes());
            let line_begins = seed % DIGESTS_PER_LINE == 0;
            let _ = write!(text, "{}{digest:08x}", if line_begins { '\n' } else { ' ' });
        }
        text.push('\n');
    }
    insta::assert_snapshot!(text);
}
