//! Servers that replay a record of their own before they are given their connections.

use south_model::Restored;

use super::world::{CLIENT, Peer, SERVER, World, key, ms};
use crate::{Action, Config, Event, LostReason, SplicePoint, Stage};

fn wrapped(peers: impl IntoIterator<Item = Peer>) -> World {
    let config = Config {
        wrapped: true,
        ..Config::default()
    };
    World::with(config, peers)
}

fn come_back(world: &mut World) {
    world.come_back();
    assert_eq!(
        world.stage(),
        Stage::Starting,
        "not before it has replayed its record"
    );
    world.recovery.replayed(world.now);
    world.act();
}

#[test]
fn all_that_it_knows_go_on_at_once_and_before_it_does() {
    let peers = (1..=100).map(|id| Peer::new(id, 100, 50).stands(100, 50));
    let mut world = wrapped(peers);
    world.die();
    world.turn_page();
    come_back(&mut world);
    let grafts = world
        .done
        .iter()
        .filter(|action| matches!(action, Action::Graft { .. }))
        .count();
    assert_eq!(grafts, 100);
    let handed_over = world
        .done
        .iter()
        .position(|action| *action == Action::HandOver);
    let last = world
        .done
        .iter()
        .rposition(|action| matches!(action, Action::Graft { .. }));
    assert!(handed_over > last);
    world.until_serving(10);
    assert!(world.reset.is_empty());
    assert_eq!(world.spliced, [], "nobody shakes hands");
}

#[test]
fn it_goes_on_where_both_sides_are() {
    // Of 100 bytes it has read 60; of 50 that it said the client has 30.
    let peer = Peer::new(1, 100, 50)
        .stands(60, 50)
        .change(|peer| peer.flow.client.ack = SERVER + 30);
    let mut world = wrapped([peer]);
    world.die();
    come_back(&mut world);
    let point = world.done.iter().find_map(|action| match action {
        Action::Graft { point, .. } => Some(*point),
        _ => None,
    });
    let expected = SplicePoint {
        instream: CLIENT + 59,
        outstream: SERVER + 30,
        verify_end: SERVER + 30,
    };
    assert_eq!(point, Some(expected));
    world.until_serving(10);
    let peer = world.peer(1);
    assert_eq!(peer.owed(), 40);
    assert_eq!(peer.received(), 40, "what it had not read is given to it");
}

#[test]
fn one_that_it_has_never_accepted_shakes_hands_as_ever() {
    let mut world = wrapped([Peer::new(1, 100, 0), Peer::new(2, 100, 50).stands(100, 50)]);
    world.die();
    come_back(&mut world);
    world.until_serving(20);
    assert_eq!(world.spliced, [1]);
    assert!(world.reset.is_empty());
}

#[test]
fn a_death_before_the_record_was_replayed_is_a_death() {
    let mut world = wrapped([Peer::new(1, 100, 50).stands(100, 50)]);
    world.die();
    world.come_back();
    world.pass(ms(5));
    world.die();
    world.recovery.replayed(world.now); // of the dead life
    world.act();
    assert_eq!(world.stage(), Stage::Clearing);
    come_back(&mut world);
    world.until_serving(10);
    assert!(world.reset.is_empty());
}

#[test]
fn a_server_that_has_forgotten_its_connections_loses_them_once() {
    let mut world = wrapped([Peer::new(1, 100, 50), Peer::new(2, 10, 0)]);
    world.die();
    world.recovery.forgotten();
    come_back(&mut world);
    world.until_serving(10);
    assert!(
        world
            .reset
            .values()
            .all(|reason| *reason == LostReason::Forgotten)
    );
    assert_eq!(world.reset.len(), 2);
    world.turn_page();
    world.late(Peer::new(3, 5, 0));
    world.until_serving(20);
    assert!(
        world
            .told
            .iter()
            .all(|event| !matches!(event, Event::ConnectionReset { .. }))
    );
}

#[test]
fn a_client_cannot_have_heard_what_was_not_said() {
    let mut world = wrapped([Peer::new(1, 100, 50).stands(100, 20)]);
    world.die();
    come_back(&mut world);
    world.until_serving(10);
    assert_eq!(
        world.reset.values().next(),
        Some(&LostReason::Diverged { offset: 20 })
    );
}

/// The dead life may have been about to close it: it is not to be executed again by a server that has done so.
#[test]
fn one_that_it_has_closed_is_grafted_to_be_finished_or_lost() {
    let closed = |id, outstream, is_certain| {
        Peer::new(id, 100, outstream)
            .stands(100, outstream)
            .change(|peer| {
                if let Some(standing) = &mut peer.standing {
                    (standing.is_closed, standing.is_certain) = (true, is_certain);
                }
            })
    };
    let mut world = wrapped([
        closed(1, 50, false),
        closed(2, 0, false),
        closed(3, 0, true),
    ]);
    world.die();
    come_back(&mut world);
    world.until_serving(10);
    assert_eq!(world.spliced, [], "nothing is executed again");
    assert_eq!(
        world.reset.values().collect::<Vec<_>>(),
        [&LostReason::Forgotten]
    );
    for kept in [1, 3] {
        assert!(world.peers.contains_key(&super::world::key(kept)));
    }
}

/// A connection of a host that has died, of which the server has lived through so much.
fn unheard(id: u64) -> Peer {
    let peer = Peer::new(id, 100, 50).stands(100, 50);
    peer.change(|peer| peer.flow.log.restored = Restored::Silent)
}

fn heard_ahead(peer: &mut Peer) {
    (peer.flow.log.restored, peer.flow.log.ahead) = (Restored::Heard, true);
}

fn handed_over(world: &World) -> bool {
    world.done.contains(&Action::HandOver)
}

#[test]
fn the_server_waits_for_the_clients_that_it_knows() {
    let nobody = Peer::new(3, 100, 0).change(|peer| peer.flow.log.restored = Restored::Silent);
    let mut world = wrapped([Peer::new(1, 100, 50).stands(100, 50), unheard(2), nobody]);
    world.die();
    world.turn_page();
    come_back(&mut world);
    world.pass_in_steps(ms(100), ms(1));
    assert!(!handed_over(&world));
    assert_eq!(world.stage(), Stage::Recovering);
    let mut peer = world.peer(2).clone();
    peer.flow.log.restored = Restored::Heard;
    world.late(peer);
    world.until_serving(10);
    assert!(handed_over(&world));
    assert!(world.reset.is_empty());
    assert_eq!(
        world.recovery.silent(),
        1,
        "whom it does not know, it does not wait for"
    );
}

#[test]
fn it_does_not_wait_for_ever() {
    let mut world = wrapped([Peer::new(1, 100, 50).stands(100, 50), unheard(2)]);
    world.die();
    world.turn_page();
    come_back(&mut world);
    world.pass_in_steps(ms(990), ms(1));
    assert!(!handed_over(&world));
    world.until_serving(20);
    assert!(handed_over(&world));
    assert_eq!(world.reset[&key(2)], LostReason::ClientSilent);
    assert_eq!(world.reset.len(), 1);
}

/// Nobody waits for its client, which may still have to hear the end; what it had asked for is not executed again.
#[test]
fn one_that_it_has_closed_is_finished_after_it_has_gone_on() {
    let closed = |id| {
        unheard(id).change(|peer| {
            if let Some(standing) = &mut peer.standing {
                standing.is_closed = true;
            }
        })
    };
    let mut world = wrapped([closed(1), closed(2)]);
    world.die();
    come_back(&mut world);
    world.until_serving(10);
    assert!(handed_over(&world));
    let mut heard = |id| {
        let mut peer = world.peer(id).clone();
        peer.flow.log.restored = Restored::Heard;
        world.late(peer);
    };
    // One after the other, before anything is done.
    heard(1);
    heard(2);
    let grafted = world.done.iter().filter_map(|action| match action {
        Action::Graft { flow, .. } => Some(flow.0),
        _ => None,
    });
    assert_eq!(grafted.collect::<Vec<_>>(), [1, 2]);
    assert_eq!(world.spliced, [], "nothing is executed again");
    assert!(world.reset.is_empty());
}

/// What it had sent to the host that has died it sends again: until then it may have been acknowledged.
#[test]
fn one_that_is_ahead_goes_on_and_has_to_send_that_again() {
    let ahead = |id| Peer::new(id, 100, 50).stands(100, 50).change(heard_ahead);
    let mut world = wrapped([ahead(1), ahead(2)]);
    world.die();
    world.turn_page();
    come_back(&mut world);
    world.until_serving(10);
    assert!(handed_over(&world) && world.reset.is_empty());
    world.pass_in_steps(ms(120_000), ms(100));
    world.peer(1).flow.log.ahead = false;
    world.pass_in_steps(ms(470_000), ms(100));
    assert!(world.reset.is_empty());
    assert_eq!(world.recovery.unsettled(), 1, "the other one is watched");
    world.pass_in_steps(ms(20_000), ms(100));
    assert_eq!(world.reset[&key(2)], LostReason::ClientSilent);
    assert_eq!((world.reset.len(), world.recovery.unsettled()), (1, 0));
}

/// Whoever looks after the service next looks after that, too.
#[test]
fn one_that_is_ahead_is_watched_when_it_is_found() {
    let ahead = |id| Peer::new(id, 100, 50).change(heard_ahead);
    let mut world = wrapped([ahead(1), ahead(2), ahead(3)]);
    for id in [1, 2, 3] {
        let flow = world.peer(id).flow.clone();
        world.recovery.found(key(id), &flow, world.now);
    }
    assert_eq!(world.recovery.unsettled(), 3);
    world.pass_in_steps(ms(1000), ms(100));
    assert_eq!(world.recovery.unsettled(), 3);
    world.peer(1).flow.log.ahead = false;
    world.peer(2).flow.closed_ns = 1;
    world.pass_in_steps(ms(590_000), ms(100));
    assert!(world.reset.is_empty());
    assert_eq!(world.recovery.unsettled(), 1);
    world.pass_in_steps(ms(20_000), ms(100));
    assert_eq!(world.reset[&key(3)], LostReason::ClientSilent);
    assert_eq!((world.reset.len(), world.recovery.unsettled()), (1, 0));
}

/// Who ends it needs nothing any more.
#[test]
fn one_that_is_ahead_may_end() {
    let mut world = wrapped([Peer::new(1, 100, 50).stands(100, 50).change(heard_ahead)]);
    world.die();
    come_back(&mut world);
    world.until_serving(10);
    world.pass_in_steps(ms(1000), ms(100));
    assert_eq!(world.recovery.unsettled(), 1);
    world.peer(1).flow.closed_ns = 1;
    world.pass_in_steps(ms(1000), ms(100));
    assert_eq!((world.reset.len(), world.recovery.unsettled()), (0, 0));
}

/// It may have sent it while the gate was shut: then it is recorded, and need not be sent again.
#[test]
fn what_a_client_has_sent_meanwhile_is_asked_for() {
    let more = Peer::new(1, 100, 50).stands(100, 50);
    let more = more.change(|peer| peer.flow.client.nxt = CLIENT + 120);
    let mut world = wrapped([more, Peer::new(2, 100, 50).stands(100, 50)]);
    world.die();
    come_back(&mut world);
    world.until_serving(10);
    let asked = world.done.iter().filter_map(|action| match action {
        Action::MoreRecord { flow, from } => Some((flow.0, *from)),
        _ => None,
    });
    assert_eq!(asked.collect::<Vec<_>>(), [(1, CLIENT + 100)]);
}
