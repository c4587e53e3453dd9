//! What is told is true when it is told.

use super::world::{Manner, Peer, SERVER, World, key, ms};
use crate::{Event, LostReason, Replayed};

/// What of kept connections was told so far: kept and still compared, or kept since.
fn told(world: &World) -> Vec<(usize, Option<usize>)> {
    let numbers = |event: &Event| match event {
        Event::Serving {
            recovered,
            comparing,
            ..
        } => Some((*recovered, Some(*comparing))),
        Event::ConnectionsRecovered { connections } => Some((*connections, None)),
        _ => None,
    };
    world.told.iter().filter_map(numbers).collect()
}

/// It was told to be kept, and a moment later it was lost.
#[test]
fn a_connection_is_kept_when_it_was_compared() {
    let mute = |id| Peer::new(id, 10, 100).manner(Manner::Mute);
    let mut world = World::new([mute(1), mute(2), Peer::new(3, 10, 100)]);
    world.die_and_return();
    world.until_serving(10);
    world.pass_in_steps(ms(20), ms(1));
    assert_eq!(told(&world), []);
    world.diverge(1, SERVER + 30);
    world.act();
    world.peer(2).manner = Manner::Reads;
    assert_eq!(world.serving(), (2, 1, 30));
    assert_eq!(told(&world), [(2, Some(0))]);
}

/// Who waits for the service is not kept waiting for a server that needs long for an answer.
#[test]
fn what_is_still_compared_is_told_as_such_and_later() {
    let mute = |id| Peer::new(id, 10, 100).manner(Manner::Mute);
    let mut world = World::new((1..=4).map(mute).chain([Peer::new(5, 10, 100)]));
    world.die_and_return();
    world.until_serving(10);
    world.pass_in_steps(ms(990), ms(10));
    assert_eq!(told(&world), []);
    world.pass_in_steps(ms(20), ms(10));
    assert_eq!(told(&world), [(1, Some(4))]);
    world.diverge(1, SERVER + 30);
    world.peer(2).manner = Manner::Reads;
    world.pass_in_steps(ms(300), ms(10));
    world.peer(3).flow.client.reset = true; // as any other that ends
    world.peer(4).manner = Manner::Reads;
    world.peer(3).manner = Manner::Reads;
    assert_eq!(told(&world).len(), 1);
    world.pass_in_steps(ms(300), ms(10));
    assert_eq!(told(&world)[1..], [(3, None)]);
    world.pass_in_steps(ms(60_000), ms(100));
    assert_eq!(told(&world).len(), 2, "once");
}

#[test]
fn a_server_that_dies_again_does_not_take_the_word_with_it() {
    let mut world = World::new([Peer::new(1, 10, 100).manner(Manner::Mute)]);
    world.die_and_return();
    world.until_serving(10);
    world.die();
    assert_eq!(told(&world), [(0, Some(1))]);
    world.peer(1).manner = Manner::Reads;
    world.until_serving(100);
    assert_eq!(world.serving(), (1, 0, 10));
    assert_eq!(told(&world)[1..], [(1, Some(0))]);
}

/// Which requests ran again, of those that are kept and of those that are lost.
#[test]
fn what_ran_again_is_told() {
    let beginnings = vec![(10, 20), (30, 40), (60, 70)];
    let with_turns =
        |id| Peer::new(id, 90, 100).change(|peer| peer.beginnings = beginnings.clone());
    let mut world = World::new([with_turns(1), with_turns(2), Peer::new(3, 0, 0)]);
    world.die_and_return();
    world.peer(2).beginnings.pop(); // of that the server has not said so much
    world.pass_in_steps(ms(50), ms(1));
    world.diverge(2, SERVER + 45);
    world.until_serving(10);
    assert_eq!(world.serving(), (2, 1, 150));
    let serving = world.told.iter().find_map(|event| match event {
        Event::Serving {
            replayed,
            replayed_requests,
            ..
        } => Some((replayed.clone(), *replayed_requests)),
        _ => None,
    });
    let (connection, requests, bytes) = (key(1), 4, 90);
    let replayed = vec![Replayed {
        connection,
        requests,
        bytes,
    }];
    assert_eq!(
        serving,
        Some((replayed, 7)),
        "as the 150 bytes, with what is lost"
    );
    let lost = Event::ConnectionReset {
        connection: key(2),
        reason: LostReason::Diverged { offset: 45 },
        replayed_requests: 3,
        replayed_bytes: 60,
    };
    assert!(world.told.contains(&lost), "{:?}", world.told);
    let end = "the output of the restarted server differs at byte 45; 3 of the requests (60 bytes) ran again";
    assert!(lost.to_string().ends_with(end), "{lost}");
}
