//! A server that does not come back.

use super::world::{Manner, Peer, SEGFAULT, World, key, ms};
use crate::{Action, Config, GaveUp, LostReason, Stage};

fn patient_for(count: u64) -> Config {
    Config {
        give_up_after: ms(count),
        ..Config::default()
    }
}

#[test]
fn connections_wait_up_to_the_limit_and_are_then_reset() {
    for started in [false, true] {
        let mut world = World::with(
            patient_for(1_000),
            [Peer::new(1, 10, 0), Peer::new(2, 10, 0)],
        );
        world.die();
        if started {
            world.clear();
            world.start();
        }
        world.pass(ms(999));
        assert!(world.reset.is_empty());
        world.pass(ms(1));
        let reason = LostReason::ServerDown;
        assert_eq!(world.reset.values().collect::<Vec<_>>(), [&reason, &reason]);
        assert_eq!(world.lost_told().len(), 2);
        world.pass(ms(1_000));
        assert_eq!(
            world.recovery.deadline(),
            None,
            "nothing more is due by itself"
        );
        assert_eq!(world.lost_told().len(), 2, "told once");
    }
}

#[test]
fn the_wait_begins_with_the_first_death() {
    let mut world = World::with(patient_for(1_000), [Peer::new(1, 10, 0)]);
    for _ in 0..9 {
        world.die();
        world.clear();
        world.start();
        world.pass(ms(100));
        assert!(world.reset.is_empty());
    }
    world.die();
    world.pass(ms(100));
    assert_eq!(world.reset.len(), 1);
}

#[test]
fn what_is_closing_is_left_alone_and_what_its_client_reset_is_forgotten() {
    let closing = Peer::new(1, 10, 0).change(|peer| peer.flow.server_closing = true);
    let closed = Peer::new(2, 10, 0).change(|peer| peer.flow.closed_ns = 5);
    let gone = Peer::new(3, 10, 0).change(|peer| peer.flow.client.reset = true);
    let mut world = World::with(
        patient_for(10),
        [closing, closed, gone, Peer::new(4, 10, 0)],
    );
    world.die();
    world.pass(ms(10));
    assert_eq!(world.reset.keys().collect::<Vec<_>>(), [&key(4)]);
    assert_eq!(world.forgotten.iter().collect::<Vec<_>>(), [&key(3)]);
}

#[test]
fn the_service_serves_again_when_the_server_comes_back_after_all() {
    let mut world = World::with(patient_for(100), [Peer::new(1, 10, 0), Peer::new(2, 10, 0)]);
    world.die();
    world.pass(ms(100));
    world.until_serving(10);
    assert_eq!(world.serving(), (0, 2, 0));

    // The next outage has a limit of its own, and a count of its own.
    world.peers.insert(key(3), Peer::new(3, 10, 0));
    world.die();
    world.pass(ms(90));
    world.until_serving(8);
    assert_eq!(world.serving(), (1, 0, 10));
}

#[test]
fn a_service_that_is_stopped_while_it_is_down_tells_its_clients() {
    for started in [false, true] {
        let mut world = World::new([Peer::new(1, 10, 0)]);
        world.die();
        if started {
            world.clear();
        }
        world.recovery.give_up(GaveUp::Stopped);
        world.recovery.give_up(GaveUp::Stopped);
        world.act();
        assert_eq!(world.reset[&key(1)], LostReason::Stopped);
    }
}

#[test]
fn giving_up_while_the_connections_are_listed_resets_each_once() {
    for performed_late in [false, true] {
        let mut world = World::new([Peer::new(1, 10, 0)]);
        world.die();
        world.clear();
        if performed_late {
            world.recovery.give_up(GaveUp::Stopped); // asks for a list, and the next step does so, too
        }
        world.recovery.listening(world.now);
        world.recovery.drained(world.drain.take().expect("a drain"));
        assert_eq!(world.stage(), Stage::Listing);
        world.recovery.give_up(GaveUp::Stopped);
        world.act();
        assert_eq!(world.reset[&key(1)], LostReason::Stopped);
        assert_eq!(world.lost_told().len(), 1);
        assert_eq!(world.serving(), (0, 1, 0));
    }
}

#[test]
fn giving_up_during_the_recovery_resets_what_is_not_served_yet() {
    let served = Peer::new(1, 10, 0);
    let deaf = Peer::new(2, 10, 0).manner(Manner::Deaf);
    let replaying = Peer::new(3, 1_000, 0).window(1);
    let unknown = Peer::new(4, 10, 0).change(|peer| peer.record = None);
    let mut world = World::new([served, deaf, replaying, unknown]);
    world.die_and_return();
    world.pass_in_steps(ms(5), ms(1));
    world.recovery.give_up(GaveUp::Stopped);
    world.act();
    let reasons: Vec<_> = world.reset.values().copied().collect();
    assert_eq!(
        reasons,
        [
            LostReason::Stopped,
            LostReason::Stopped,
            LostReason::NoRecord
        ]
    );
    world.turn_page();
    world.until_serving(5);
    assert_eq!(world.serving(), (1, 3, 15));
    let harmless =
        |action: &Action| matches!(action, Action::Recovered | Action::ForgetExpected { .. });
    assert!(world.done.iter().all(harmless), "{:?}", world.done);
}

#[test]
fn a_healthy_service_cannot_be_given_up() {
    let mut world = World::new([Peer::new(1, 10, 0)]);
    world.recovery.give_up(GaveUp::Stopped);
    world.act();
    assert_eq!(world.done, []);
    world.die();
    world.until_serving(10);
    assert_eq!(world.serving(), (1, 0, 10));
}

/// A death may come between the decision and the list.
#[test]
fn giving_up_is_not_called_off_by_another_death() {
    let mut world = World::with(patient_for(1_000), [Peer::new(1, 10, 0)]);
    world.die();
    world.clear();
    world.now += ms(1_000);
    world.recovery.poll(world.now);
    world.recovery.died(SEGFAULT, world.now, world.now);
    world.act();
    assert_eq!(world.reset[&key(1)], LostReason::ServerDown);
}
