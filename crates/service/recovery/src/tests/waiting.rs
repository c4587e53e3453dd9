//! Clients that wait for long: they are told so, and that it is over.

use south_model::Restored;

use super::world::{Peer, World, key, ms};
use crate::{Action, GaveUp, Stage};

fn words(world: &World, id: u64) -> (usize, usize) {
    let count = |wanted: fn(&Action) -> bool| {
        let ours = |action: &&Action| match action {
            Action::CloseWindow { key: k, .. } | Action::TellClient { key: k, .. } => *k == key(id),
            _ => false,
        };
        let all = world.done.iter().filter(ours);
        all.filter(|action| wanted(action)).count()
    };
    let closed = count(|action| matches!(action, Action::CloseWindow { .. }));
    let opened = count(|action| matches!(action, Action::TellClient { .. }));
    (closed, opened)
}

#[test]
fn a_short_recovery_needs_no_words() {
    let mut world = World::new([Peer::new(1, 10, 5)]);
    world.die();
    world.pass_in_steps(ms(900), ms(10));
    world.come_back();
    world.until_serving(50);
    world.pass_in_steps(ms(3_000), ms(10));
    assert_eq!(words(&world, 1), (0, 0));
}

#[test]
fn who_waits_for_a_slow_server_is_told_so_and_of_room_at_once() {
    // The second one is idle.
    let mut world = World::new([Peer::new(1, 10, 5), Peer::new(2, 0, 0)]);
    world.die();
    world.clear();
    assert_eq!(world.recovery.deadline(), Some(world.now + ms(1_000)));
    world.pass_in_steps(ms(990), ms(10));
    assert_eq!(words(&world, 1), (0, 0));
    world.pass_in_steps(ms(3_000), ms(10));
    assert_eq!((words(&world, 1), words(&world, 2)), ((1, 0), (1, 0)));
    world.pass_in_steps(ms(4_000), ms(10));
    assert_eq!((words(&world, 1), words(&world, 2)), ((2, 0), (2, 0)));
    world.start();
    world.listen();
    world.drained();
    world.until_serving(50);
    assert_eq!((words(&world, 1), words(&world, 2)), ((2, 1), (2, 1)));
    assert!(world.closed.is_empty());
    world.pass_in_steps(ms(10_000), ms(10));
    assert_eq!((words(&world, 1), words(&world, 2)), ((2, 1), (2, 1)));
    assert_eq!(world.recovery.deadline(), None);
}

/// The server takes its time with one of them; a death in between changes nothing.
#[test]
fn who_waits_for_its_turn_is_told_so() {
    let slow = Peer::new(1, 10, 5).change(|peer| peer.syns_lost = 1_000);
    let mut world = World::new([slow, Peer::new(2, 10, 5)]);
    world.die_and_return();
    world.pass_in_steps(ms(2_000), ms(10));
    assert_eq!(world.stage(), Stage::Recovering);
    assert_eq!((words(&world, 1), words(&world, 2)), ((1, 0), (0, 0)));
    // The other one is served, and waits again.
    world.die();
    world.pass_in_steps(ms(100), ms(10));
    assert_eq!((words(&world, 1), words(&world, 2)), ((1, 0), (1, 0)));
    world.peer(1).syns_lost = 0;
    world.come_back();
    world.until_serving(100);
    assert_eq!((words(&world, 1), words(&world, 2)), ((1, 1), (1, 1)));
}

/// Who has not said where it stands is asked, and only then told.
#[test]
fn one_of_another_host_is_asked_first() {
    let silent = Peer::new(1, 10, 5).change(|peer| peer.flow.log.restored = Restored::Silent);
    let mut world = World::new([silent]);
    world.die();
    world.pass_in_steps(ms(2_000), ms(10));
    let asked = |action: &&Action| matches!(action, Action::Call { .. });
    assert_eq!(world.done.iter().filter(asked).count(), 1);
    world.peer(1).flow.log.restored = Restored::Heard;
    world.pass_in_steps(ms(5_000), ms(10));
    assert_eq!(world.done.iter().filter(asked).count(), 1);
    assert_eq!(words(&world, 1), (1, 0));
    world.come_back();
    world.until_serving(100);
    assert_eq!(words(&world, 1), (1, 1));
}

#[test]
fn many_are_told_a_few_at_a_time_and_who_is_given_up_no_more() {
    let mut world = World::new((1..=200).map(|id| Peer::new(id, 10, 5)));
    world.die();
    world.pass_in_steps(ms(1_000), ms(1_000));
    assert_eq!(world.closed.len(), 0, "they are being listed");
    for told in [64, 128, 192, 200] {
        assert_eq!(world.recovery.deadline(), Some(world.now.min(ms(11_000))));
        world.look();
        assert_eq!(world.closed.len(), told);
    }
    world.recovery.give_up(GaveUp::Stopped);
    world.act();
    assert_eq!(world.reset.len(), 200);
    world.turn_page();
    world.pass_in_steps(ms(10_000), ms(100));
    assert!(world.done.is_empty(), "{:?}", world.done);
}
