//! The logger does not say what a server had said, or knows nothing of it.

use super::world::{Logger, Peer, World, key, ms};
use crate::{Action, LostReason, Stage};

#[test]
fn nothing_is_spliced_before_the_logger_answers() {
    let mut world = World::new((1..=3).map(|id| Peer::new(id, 10, 100)));
    world.logger = Logger::IsAway;
    world.die_and_return();
    world.pass_in_steps(ms(100_000), ms(100));
    assert_eq!(
        (&world.spliced[..], world.stage()),
        (&[][..], Stage::Recovering)
    );
    let asks = |action: &&Action| matches!(action, Action::Expect { .. });
    assert_eq!(world.done.iter().filter(asks).count(), 3, "each once");
    assert!(world.recovery.awaits_logger());

    world.logger = Logger::Answers;
    world.recovery.logger_answers(world.now);
    world.act();
    world.until_serving(10);
    assert_eq!(world.spliced, [1, 2, 3]);
    assert_eq!(world.serving(), (3, 0, 30));
}

/// The next life asks anew.
#[test]
fn a_death_ends_the_waiting_for_the_logger() {
    let mut world = World::new([Peer::new(1, 10, 100)]);
    world.logger = Logger::IsAway;
    world.die_and_return();
    world.logger = Logger::Answers;
    world.die();
    world.until_serving(20);
    assert_eq!(world.serving(), (1, 0, 10));
}

#[test]
fn what_waits_for_the_logger_is_lost_with_its_record() {
    let mut world = World::new([Peer::new(1, 10, 100), Peer::new(2, 10, 100)]);
    world.logger = Logger::IsAway;
    world.die_and_return();
    let flow = world.peer(1).flow.id;
    world.recovery.unprotected(flow, 7);
    world.logger = Logger::Answers;
    world.recovery.logger_answers(world.now);
    world.until_serving(20);
    assert_eq!(world.spliced, [2]);
    assert_eq!(
        world.lost_told(),
        [(key(1), LostReason::Unprotected { code: 7 })]
    );
}

/// Nothing would be compared of what its server says again, nor would its requests wait for that.
#[test]
fn a_connection_of_which_the_logger_knows_nothing_is_not_spliced() {
    let mut world = World::new([Peer::new(1, 10, 100)]);
    world.logger = Logger::KnowsNothing;
    world.die_and_return();
    world.until_serving(10);
    assert_eq!(world.spliced, []);
    assert_eq!(world.lost_told(), [(key(1), LostReason::NoRecord)]);
}

/// The frame that opens its record may still be on its way.
#[test]
fn a_connection_on_which_nothing_was_said_needs_no_record() {
    let mut world = World::new([Peer::new(1, 0, 0)]);
    world.logger = Logger::KnowsNothing;
    world.die_and_return();
    world.until_serving(10);
    assert_eq!(world.serving(), (1, 0, 0));
}
