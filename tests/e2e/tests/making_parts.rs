//! `outlive make` beside `make`: what several makes, or one make several times, have taken over.

mod twice;

use twice::Twice;

/// Asks for a target that was not expected: the command of the target is taken over.
fn asked_for(twice: &Twice, target: &str) {
    let said = twice.make(&[target]);
    assert!(!said.contains("revealed"), "{said}");
}

/// Two targets with the same command, which leaves nothing.
const TEMPORARY: &str = "all: out one two\none two: in\n\t@echo text >temporary; rm temporary; cat in\n\
    out: in\n\tcp in $@\n";

#[test]
fn a_command_that_is_done_twice_leaves_nothing_twice() {
    let mut twice = Twice::new(&[("Makefile", TEMPORARY), ("in", "text\n")]);
    twice.watch(&[]);
    for number in 0..3 {
        twice.anticipated();
        let said = twice.make(&[]);
        assert!(said.contains("revealed"), "{said}");
        twice.save("in", &format!("text {number}\n"));
    }
}

/// Another make had it before, whose user has asked for that part only.
#[test]
fn what_was_shown_and_is_gone_is_shown_once_more() {
    let mut twice = Twice::new(&[("Makefile", TEMPORARY), ("in", "text\n")]);
    twice.watch(&[]);
    twice.anticipated();
    asked_for(&twice, "one");
    asked_for(&twice, "out");
    twice.shell("rm out");
    twice.anticipated();
    let said = twice.make(&[]);
    assert!(said.contains("revealed"), "{said}");
}
