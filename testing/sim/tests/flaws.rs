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
fn unrecorded_read_is_found() {
    for which in [1, 2, 5, 10] {
        found(Flaw::ForgetsRead(which));
    }
}

/// Behind the recorded beginning of a response, unless hashes are kept.
#[test]
fn mixed_response_is_found_and_prevented_by_digests() {
    is_noticed_and_prevented(Scenario::with_late_divergence);
}

/// The client's next request must not be executed; a comparison before the request prevents this.
#[test]
fn request_after_mixed_response_is_not_executed() {
    is_noticed_and_prevented(Scenario::with_late_divergence_and_requests);
}

/// Neither the request nor the head of the response reached the logger; the wait for input in doubt prevents a mix.
#[test]
fn unrecorded_response_is_found_and_prevented_by_doubt() {
    is_noticed_and_prevented(Scenario::doubtful);
}

/// Clients without selective acknowledgements do not report bytes behind a gap.
#[test]
fn bytes_beyond_gap_of_other_incarnation_are_found() {
    is_noticed_and_prevented(Scenario::behind_holes);
}

/// Nor on another host.
#[test]
fn request_after_mixed_response_is_not_executed_on_other_host() {
    is_noticed_and_prevented(Scenario::with_late_divergence_on_other_host);
}

/// A server that thinks before repeating the client's output gets no more input meanwhile.
#[test]
fn busy_server_gets_no_later_request() {
    is_noticed_and_prevented(|scenario, compares| {
        let scenario = scenario.with_late_divergence_and_requests(compares);
        scenario.in_order().thoughtful()
    });
}

/// Nor on another host.
#[test]
fn busy_server_on_other_host_gets_no_later_request() {
    is_noticed_and_prevented(|scenario, digests| {
        scenario
            .with_late_divergence_on_other_host(digests)
            .thoughtful()
    });
}

/// A server that half-closes in a replay gets the rest of the record from the replay alone.
#[test]
fn half_close_taken_for_close_is_found() {
    found_of(|scenario| scenario.half_closing(false));
}

/// All would be taken for something else.
#[test]
fn missing_digest_key_costs_connections() {
    found_of(|scenario| {
        scenario
            .with_late_divergence_on_other_host(true)
            .without_handing_key_on()
    });
}

fn found_of(kind: impl Fn(Scenario) -> Scenario) {
    let is_broken = (0..200).any(|seed| play(&kind(Scenario::drawn_from(seed))).is_err());
    assert!(is_broken, "nobody finds it");
}

/// Without comparisons a schedule is broken; with comparisons none is, and connections are reset instead.
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

/// All determinants exist, and only the output of the next incarnation can show the flaw.
#[test]
fn skipped_read_is_found() {
    for which in [1, 2, 5, 10] {
        found(Flaw::SkipsRead(which));
    }
}

/// The client received output from state that only the dead server knew.
#[test]
fn output_before_determinants_is_found() {
    found(Flaw::DeterminantsLate);
}

/// And output from state that only a dead host knew.
#[test]
fn output_before_stable_determinants_is_found() {
    found_in(Scenario::north_restarted, Flaw::SaysTooSoon);
}

/// The client's input was acknowledged, and only a host had the determinants.
#[test]
fn early_stable_report_is_found() {
    found_in(Scenario::north_restarted, Flaw::TellsTooSoon);
}

#[test]
fn graft_at_wrong_sequence_is_found() {
    found(Flaw::GraftsAhead);
}

#[test]
fn swallowed_output_is_found() {
    found(Flaw::SwallowsWords);
}
