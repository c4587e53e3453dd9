//! Each event is true at the time of the event.

use super::model::{Manner, Model, Peer, SERVER, key, ms};
use crate::{Event, LostReason, Replayed};

/// Numbers of kept connections in the events so far: (recovered, still compared), or (recovered later, none).
fn told(model: &Model) -> Vec<(usize, Option<usize>)> {
    let numbers = |event: &Event| match event {
        Event::Serving {
            recovered,
            comparing,
            ..
        } => Some((*recovered, Some(*comparing))),
        Event::ConnectionsRecovered { connections } => Some((*connections, None)),
        _ => None,
    };
    model.told.iter().filter_map(numbers).collect()
}

/// Without the wait a connection would be reported as recovered, and lost a moment later.
#[test]
fn connection_is_recovered_after_verification() {
    let mute = |id| Peer::new(id, 10, 100).manner(Manner::Mute);
    let mut model = Model::new([mute(1), mute(2), Peer::new(3, 10, 100)]);
    model.die_and_return();
    model.until_serving(10);
    model.pass_in_steps(ms(20), ms(1));
    assert_eq!(told(&model), []);
    model.diverge(1, SERVER + 30);
    model.act();
    model.peer(2).manner = Manner::Reads;
    assert_eq!(model.serving(), (2, 1, 30));
    assert_eq!(told(&model), [(2, Some(0))]);
}

/// Who waits for the service is not kept waiting for a server that needs long for an answer.
#[test]
fn unverified_connections_are_reported_later() {
    let mute = |id| Peer::new(id, 10, 100).manner(Manner::Mute);
    let mut model = Model::new((1..=4).map(mute).chain([Peer::new(5, 10, 100)]));
    model.die_and_return();
    model.until_serving(10);
    model.pass_in_steps(ms(990), ms(10));
    assert_eq!(told(&model), []);
    model.pass_in_steps(ms(20), ms(10));
    assert_eq!(told(&model), [(1, Some(4))]);
    model.diverge(1, SERVER + 30);
    model.peer(2).manner = Manner::Reads;
    model.pass_in_steps(ms(300), ms(10));
    model.peer(3).flow.client.reset = true; // as any other that ends
    model.peer(4).manner = Manner::Reads;
    model.peer(3).manner = Manner::Reads;
    assert_eq!(told(&model).len(), 1);
    model.pass_in_steps(ms(300), ms(10));
    assert_eq!(told(&model)[1..], [(3, None)]);
    model.pass_in_steps(ms(60_000), ms(100));
    assert_eq!(told(&model).len(), 2, "once");
}

#[test]
fn next_death_does_not_lose_serving_event() {
    let mut model = Model::new([Peer::new(1, 10, 100).manner(Manner::Mute)]);
    model.die_and_return();
    model.until_serving(10);
    model.die();
    assert_eq!(told(&model), [(0, Some(1))]);
    model.peer(1).manner = Manner::Reads;
    model.until_serving(100);
    assert_eq!(model.serving(), (1, 0, 10));
    assert_eq!(told(&model)[1..], [(1, Some(0))]);
}

/// The requests that ran again, of kept and of lost connections.
#[test]
fn replayed_requests_are_reported() {
    let beginnings = vec![(10, 20), (30, 40), (60, 70)];
    let with_turns =
        |id| Peer::new(id, 90, 100).change(|peer| peer.beginnings = beginnings.clone());
    let mut model = Model::new([with_turns(1), with_turns(2), Peer::new(3, 0, 0)]);
    model.die_and_return();
    model.peer(2).beginnings.pop(); // the server has not sent the output before this request
    model.pass_in_steps(ms(50), ms(1));
    model.diverge(2, SERVER + 45);
    model.until_serving(10);
    assert_eq!(model.serving(), (2, 1, 150));
    let serving = model.told.iter().find_map(|event| match event {
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
    assert!(model.told.contains(&lost), "{:?}", model.told);
    let end = "the output of the restarted server differs at byte 45; 3 of the requests (60 bytes) ran again";
    assert!(lost.to_string().ends_with(end), "{lost}");
}
