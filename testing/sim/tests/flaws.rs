//! The witness can fail: servers with state whose north side has something wrong are found out.

use sim::{Flaw, Scenario, play};

/// Some schedule is broken by this flaw.
fn found(flaw: Flaw) {
    found_in(Scenario::north, flaw);
}

fn found_in(kind: fn(Scenario) -> Scenario, flaw: Flaw) {
    let play = |seed| play(&kind(Scenario::drawn_from(seed)).flawed(flaw));
    let is_broken = (0..200).any(|seed| play(seed).is_err());
    assert!(is_broken, "nobody finds {flaw:?}");
}

#[test]
fn a_read_that_is_not_noted_is_missed() {
    for which in [1, 2, 5, 10] {
        found(Flaw::ForgetsRead(which));
    }
}

/// Behind the recorded beginning of an answer, unless it is digested.
#[test]
fn an_answer_of_two_lives_is_noticed_and_digests_prevent_it() {
    is_noticed_and_prevented(Scenario::with_late_lives);
}

/// What its client said after that is executed for nothing, unless it is compared before.
#[test]
fn what_follows_an_answer_of_two_lives_is_not_executed() {
    is_noticed_and_prevented(Scenario::with_late_lives_and_more);
}

/// Where neither what was asked nor the head of its answer came to the logger, unless what may have been answered
/// waits.
#[test]
fn an_answer_that_nobody_recorded_is_noticed_and_doubts_prevent_it() {
    is_noticed_and_prevented(Scenario::doubtful);
}

/// Clients without selective acknowledgements say nothing of what they have behind a hole.
#[test]
fn what_follows_a_hole_is_of_the_same_life() {
    is_noticed_and_prevented(Scenario::behind_holes);
}

/// Nor on another host.
#[test]
fn what_follows_an_answer_of_two_lives_is_not_executed_elsewhere() {
    is_noticed_and_prevented(Scenario::with_late_lives_elsewhere);
}

/// A server that thinks before it says again what its client had heard is given no more meanwhile.
#[test]
fn what_follows_is_not_given_to_a_server_that_still_thinks() {
    is_noticed_and_prevented(|scenario, compares| {
        let scenario = scenario.with_late_lives_and_more(compares);
        scenario.in_order().thoughtful()
    });
}

/// Nor on another host.
#[test]
fn what_follows_is_not_given_to_a_server_that_still_thinks_elsewhere() {
    is_noticed_and_prevented(|scenario, digests| {
        scenario.with_late_lives_elsewhere(digests).thoughtful()
    });
}

/// A server that half-closes in a replay gets the rest of the record from the replay alone.
#[test]
fn a_half_close_in_a_replay_that_is_taken_for_a_close_is_noticed() {
    found_of(|scenario| scenario.half_closing(false));
}

/// All would be taken for something else.
#[test]
fn a_key_that_is_not_handed_on_costs_connections() {
    found_of(|scenario| {
        scenario
            .with_late_lives_elsewhere(true)
            .without_handing_key_on()
    });
}

fn found_of(kind: impl Fn(Scenario) -> Scenario) {
    let is_broken = (0..200).any(|seed| play(&kind(Scenario::drawn_from(seed))).is_err());
    assert!(is_broken, "nobody finds it");
}

/// Without comparisons a schedule is broken; with them none is, and connections are lost in place of that.
fn is_noticed_and_prevented(scenario: impl Fn(Scenario, bool) -> Scenario) {
    let play = |seed, compares| play(&scenario(Scenario::drawn_from(seed), compares));
    let is_broken = (0..200).any(|seed| play(seed, false).is_err());
    assert!(is_broken, "nobody finds it");
    let mut lost = 0;
    for seed in 0..200 {
        match play(seed, true) {
            Ok(outcome) => lost += outcome.lost,
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(lost > 0, "no schedule loses it");
}

/// All is noted, and only what the next life says can show it.
#[test]
fn a_read_that_the_next_life_skips_is_missed() {
    for which in [1, 2, 5, 10] {
        found(Flaw::SkipsRead(which));
    }
}

/// The client was told what a dead server knew alone.
#[test]
fn a_word_before_its_notes_is_contradicted() {
    found(Flaw::NotesLate);
}

/// And what a dead host knew alone.
#[test]
fn a_word_before_its_notes_are_with_the_logger_is_contradicted() {
    found_in(Scenario::north_restarted, Flaw::SaysTooSoon);
}

/// A client was told of what it said, which a host knew alone.
#[test]
fn a_read_that_is_said_to_be_noted_too_soon_is_missed() {
    found_in(Scenario::north_restarted, Flaw::TellsTooSoon);
}

#[test]
fn a_socket_at_other_numbers_is_noticed() {
    found(Flaw::GraftsAhead);
}

#[test]
fn a_word_that_is_swallowed_is_missed() {
    found(Flaw::SwallowsWords);
}
