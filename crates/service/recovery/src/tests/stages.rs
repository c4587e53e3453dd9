//! The way of a failure, stage by stage.

use super::world::{Manner, Peer, SEGFAULT, World, ms};
use crate::{Action, Cause, Event, Stage};

#[test]
fn a_new_service_serves_and_asks_for_nothing() {
    let mut world = World::new([]);
    world.pass(ms(100_000));
    assert_eq!(world.stage(), Stage::Serving);
    assert_eq!((world.done, world.told), (vec![], vec![]));
    assert_eq!(world.recovery.deadline(), None);
}

#[test]
fn the_steps_come_in_their_order() {
    let mut world = World::new([Peer::new(1, 100, 50)]);
    world.die();
    assert_eq!(world.done, [Action::Gate, Action::KillService]);
    assert_eq!(world.stage(), Stage::Clearing);
    world.turn_page();

    world.clear();
    let token = world.drain.expect("a drain");
    let started = [
        Action::RemoveOrphans,
        Action::Drain { token },
        Action::NewIncarnation,
        Action::StartServer,
    ];
    assert_eq!(world.done, started);
    assert_eq!(world.stage(), Stage::Starting);
    world.turn_page();

    world.start();
    world.listen();
    assert_eq!(world.done, []);
    world.drained();
    assert!(matches!(
        world.done[..],
        [
            Action::ListConnections,
            Action::Expect { .. },
            Action::Splice { .. }
        ]
    ));
    assert_eq!(world.stage(), Stage::Recovering);
    world.turn_page();

    world.until_serving(10);
    let last: Vec<_> = world.done.iter().rev().take(2).collect();
    assert!(
        matches!(last[..], [Action::Recovered, Action::OpenWindow { .. }]),
        "{last:?}"
    );
}

#[test]
fn a_server_may_listen_before_the_record_is_drained_or_after() {
    for listens_first in [true, false] {
        let mut world = World::new([]);
        world.die();
        world.clear();
        if listens_first {
            world.listen();
            assert_eq!(world.stage(), Stage::Starting);
            world.drained();
        } else {
            world.drained();
            assert_eq!(world.stage(), Stage::Starting);
            world.listen();
        }
        assert_eq!(world.stage(), Stage::Serving, "nothing to be recovered");
    }
}

#[test]
fn only_the_newest_drain_counts() {
    let mut world = World::new([Peer::new(1, 100, 0)]);
    world.die();
    world.clear();
    let token = world.drain.expect("a drain");
    world.listen();
    world.recovery.drained(token + 1);
    world.recovery.drained(token.wrapping_sub(1));
    assert_eq!(world.stage(), Stage::Starting);
    world.drained();
    assert_eq!(world.stage(), Stage::Recovering);
}

/// What the second life received was recorded after the first drain.
#[test]
fn a_drain_of_an_earlier_life_does_not_count_for_the_next() {
    let mut world = World::new([Peer::new(1, 100, 0)]);
    world.die();
    world.clear();
    let old = world.drain.expect("a drain");
    world.die();
    world.recovery.drained(old); // while it is being cleared
    world.clear();
    world.listen();
    assert_eq!(world.stage(), Stage::Starting);
    world.recovery.drained(old);
    assert_eq!(world.stage(), Stage::Starting);
    world.drained();
    assert_eq!(world.stage(), Stage::Recovering);
}

#[test]
fn a_new_logger_is_asked_to_drain_again() {
    let mut world = World::new([]);
    world.recovery.logger_restarted();
    world.act();
    assert_eq!(world.done, [], "nothing is being drained");
    world.die();
    world.clear();
    let old = world.drain.expect("a drain");
    world.turn_page();
    world.recovery.logger_restarted();
    world.act();
    assert!(matches!(world.done[..], [Action::Drain { token }] if token != old));
    world.listen();
    world.recovery.drained(old);
    assert_eq!(
        world.stage(),
        Stage::Starting,
        "the old one's answer is void"
    );
    world.drained();
    assert_eq!(world.stage(), Stage::Serving);
}

#[test]
fn a_logger_that_restarts_after_it_has_drained_is_not_asked_again() {
    let mut world = World::new([]);
    world.die();
    world.clear();
    world.drained();
    world.turn_page();
    world.recovery.logger_restarted();
    world.act();
    assert_eq!(world.done, []);
}

#[test]
fn reports_that_come_at_the_wrong_time_change_nothing() {
    let mut world = World::new([Peer::new(1, 10, 0)]);
    world.clear();
    world.start();
    world.listen();
    world.recovery.connections(world.candidates(), world.now);
    assert_eq!(world.stage(), Stage::Serving);
    world.die();
    world.listen();
    world.start();
    world.recovery.connections(world.candidates(), world.now);
    assert_eq!(world.stage(), Stage::Clearing);
    world.act();
    assert_eq!(world.done, [Action::Gate, Action::KillService]);
    assert_eq!(world.told.len(), 1);
}

#[test]
fn one_death_has_many_witnesses() {
    let mut world = World::new([]);
    world.die();
    world.die();
    assert_eq!(world.done, [Action::Gate, Action::KillService]);
    assert_eq!(
        world.told,
        [Event::Died {
            cause: SEGFAULT,
            detected_ms: 0.0
        }]
    );
}

#[test]
fn each_step_is_told_once_with_its_time_since_the_death() {
    let mut world = World::new([Peer::new(1, 100, 50), Peer::new(2, 100, 50)]);
    world.recovery.died(SEGFAULT, world.now - ms(2), world.now);
    world.now += ms(3);
    world.clear();
    world.now += ms(5);
    world.start();
    world.now += ms(7);
    world.listen();
    world.listen();
    world.drained();
    world.until_serving(10);
    assert_eq!(
        world.told[0],
        Event::Died {
            cause: SEGFAULT,
            detected_ms: 2.0
        }
    );
    assert_eq!(
        world.told[1],
        Event::Restarted {
            pid: 42,
            after_ms: 10.0
        }
    );
    assert_eq!(world.told[2], Event::Listening { after_ms: 17.0 });
    let [
        Event::Spliced {
            connections: 2,
            after_ms,
        },
        Event::Serving { timings, .. },
    ] = world.told[3..]
    else {
        panic!("{:?}", world.told)
    };
    assert_eq!((timings.detected_ms, timings.cleared_ms), (2.0, 5.0));
    assert_eq!((timings.restarted_ms, timings.listening_ms), (10.0, 17.0));
    assert_eq!(
        (timings.first_spliced_ms, timings.spliced_ms),
        (18.0, after_ms)
    );
    assert!(timings.live_ms >= timings.spliced_ms);
}

#[test]
fn serving_counts_the_kept_the_lost_and_the_bytes() {
    let unknown = Peer::new(3, 30, 0).change(|peer| peer.record = None);
    let deaf = Peer::new(4, 30, 0).manner(Manner::Deaf);
    let mut world = World::new([
        Peer::new(1, 1_000, 50),
        Peer::new(2, 2_000, 50).with_fin(),
        unknown,
        deaf,
    ]);
    world.die_and_return();
    world.until_serving(20_000);
    assert_eq!(world.serving(), (2, 2, 3_000));
    assert_eq!(world.reset.len(), 2);
}

/// The lost are told that the connection is gone only when strangers are, too.
#[test]
fn the_lost_are_reset_when_the_recovery_is_over() {
    let unknown = Peer::new(1, 30, 0).change(|peer| peer.record = None);
    let mut world = World::new([unknown, Peer::new(2, 30, 0)]);
    world.die_and_return();
    assert!(world.reset.is_empty());
    world.until_serving(10);
    let recovered = world
        .done
        .iter()
        .position(|action| *action == Action::Recovered);
    let reset = world
        .done
        .iter()
        .position(|action| matches!(action, Action::ResetClient { .. }));
    assert!(recovered.is_some() && recovered < reset);
    assert_eq!(world.lost_told().len(), 1);
}

#[test]
fn a_start_that_fails_is_a_death_like_any_other() {
    let mut world = World::new([Peer::new(1, 10, 0)]);
    world.die();
    world.clear();
    world.turn_page();
    world.recovery.died(Cause::NotServing, world.now, world.now);
    world.act();
    assert_eq!(world.stage(), Stage::Clearing);
    assert_eq!(world.done, [Action::Gate, Action::KillService]);
    world.come_back();
    world.until_serving(10);
    assert_eq!(world.serving(), (1, 0, 10));
}
