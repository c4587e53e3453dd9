//! The witness can fail: servers with state whose north side has something wrong are found out.

use sim::{Flaw, Scenario, play};

/// What is said of the first schedule that this flaw breaks.
fn found(flaw: Flaw) -> String {
    let play = |seed| play(&Scenario::drawn_from(seed).north().flawed(flaw));
    let broken = (0..200).find_map(|seed| play(seed).err());
    let broken = broken.unwrap_or_else(|| panic!("nobody finds {flaw:?}"));
    broken.violation.to_string()
}

#[test]
fn a_read_that_is_not_noted_is_missed() {
    for which in [1, 2, 5, 10] {
        found(Flaw::ForgetsRead(which));
    }
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
    let violation = found(Flaw::NotesLate);
    assert!(violation.contains("was lost"), "{violation}");
}

#[test]
fn a_socket_at_other_numbers_is_noticed() {
    found(Flaw::GraftsAhead);
}

#[test]
fn a_word_that_is_swallowed_is_missed() {
    found(Flaw::SwallowsWords);
}
