//! Servers that replay a determinant log before the servers receive connections.

use south_model::Restored;

use super::model::{CLIENT, Model, Peer, SERVER, key, ms};
use crate::{Action, Config, Event, LostReason, SplicePoint, Stage};

fn wrapped(peers: impl IntoIterator<Item = Peer>) -> Model {
    let config = Config {
        wrapped: true,
        ..Config::default()
    };
    Model::with(config, peers)
}

fn come_back(model: &mut Model) {
    model.come_back();
    assert_eq!(
        model.stage(),
        Stage::Starting,
        "not before it has replayed its record"
    );
    model.recovery.replayed(model.now);
    model.act();
}

#[test]
fn known_connections_are_grafted_before_handover() {
    let peers = (1..=100).map(|id| Peer::new(id, 100, 50).stands(100, 50));
    let mut model = wrapped(peers);
    model.die();
    model.turn_page();
    come_back(&mut model);
    let grafts = model
        .done
        .iter()
        .filter(|action| matches!(action, Action::Graft { .. }))
        .count();
    assert_eq!(grafts, 100);
    let handed_over = model
        .done
        .iter()
        .position(|action| *action == Action::HandOver);
    let last = model
        .done
        .iter()
        .rposition(|action| matches!(action, Action::Graft { .. }));
    assert!(handed_over > last);
    model.until_serving(10);
    assert!(model.reset.is_empty());
    assert_eq!(model.spliced, [], "nobody shakes hands");
}

#[test]
fn graft_continues_at_both_positions() {
    // Of 100 bytes the server has read 60; of 50 bytes of output the client has 30.
    let peer = Peer::new(1, 100, 50)
        .stands(60, 50)
        .change(|peer| peer.flow.client.ack = SERVER + 30);
    let mut model = wrapped([peer]);
    model.die();
    come_back(&mut model);
    let point = model.done.iter().find_map(|action| match action {
        Action::Graft { point, .. } => Some(*point),
        _ => None,
    });
    let expected = SplicePoint {
        instream: CLIENT + 59,
        outstream: SERVER + 30,
        verify_end: SERVER + 30,
    };
    assert_eq!(point, Some(expected));
    model.until_serving(10);
    let peer = model.peer(1);
    assert_eq!(peer.owed(), 40);
    assert_eq!(peer.received(), 40, "what it had not read is given to it");
}

#[test]
fn unaccepted_connection_is_spliced() {
    let mut model = wrapped([Peer::new(1, 100, 0), Peer::new(2, 100, 50).stands(100, 50)]);
    model.die();
    come_back(&mut model);
    model.until_serving(20);
    assert_eq!(model.spliced, [1]);
    assert!(model.reset.is_empty());
}

#[test]
fn death_before_replay_end_counts() {
    let mut model = wrapped([Peer::new(1, 100, 50).stands(100, 50)]);
    model.die();
    model.come_back();
    model.pass(ms(5));
    model.die();
    model.recovery.replayed(model.now); // of the dead incarnation
    model.act();
    assert_eq!(model.stage(), Stage::Clearing);
    come_back(&mut model);
    model.until_serving(10);
    assert!(model.reset.is_empty());
}

#[test]
fn lost_state_resets_connections_once() {
    let mut model = wrapped([Peer::new(1, 100, 50), Peer::new(2, 10, 0)]);
    model.die();
    model.recovery.on_state_lost();
    come_back(&mut model);
    model.until_serving(10);
    assert!(
        model
            .reset
            .values()
            .all(|reason| *reason == LostReason::Forgotten)
    );
    assert_eq!(model.reset.len(), 2);
    model.turn_page();
    model.late(Peer::new(3, 5, 0));
    model.until_serving(20);
    assert!(
        model
            .told
            .iter()
            .all(|event| !matches!(event, Event::ConnectionReset { .. }))
    );
}

#[test]
fn ack_of_unsent_output_resets() {
    let mut model = wrapped([Peer::new(1, 100, 50).stands(100, 20)]);
    model.die();
    come_back(&mut model);
    model.until_serving(10);
    assert_eq!(
        model.reset.values().next(),
        Some(&LostReason::Diverged { offset: 20 })
    );
}

/// The dead incarnation may have been about to close the connection. A server that has closed must not execute the
/// connection again.
#[test]
fn closed_connection_is_grafted_or_reset() {
    let closed = |id, outstream, is_certain| {
        Peer::new(id, 100, outstream)
            .stands(100, outstream)
            .change(|peer| {
                if let Some(standing) = &mut peer.replay_position {
                    (standing.is_closed, standing.is_certain) = (true, is_certain);
                }
            })
    };
    let mut model = wrapped([
        closed(1, 50, false),
        closed(2, 0, false),
        closed(3, 0, true),
    ]);
    model.die();
    come_back(&mut model);
    model.until_serving(10);
    assert_eq!(model.spliced, [], "nothing is executed again");
    assert_eq!(
        model.reset.values().collect::<Vec<_>>(),
        [&LostReason::Forgotten]
    );
    for kept in [1, 3] {
        assert!(model.peers.contains_key(&super::model::key(kept)));
    }
}

/// A connection of a dead host; the server has replayed all 100 bytes of input and 50 bytes of output.
fn unheard(id: u64) -> Peer {
    let peer = Peer::new(id, 100, 50).stands(100, 50);
    peer.change(|peer| peer.flow.log.restored = Restored::Unconfirmed)
}

fn acked_ahead(peer: &mut Peer) {
    (peer.flow.log.restored, peer.flow.log.snd_beyond_stable) = (Restored::Confirmed, true);
}

fn handed_over(model: &Model) -> bool {
    model.done.contains(&Action::HandOver)
}

#[test]
fn handover_waits_for_known_clients() {
    let nobody = Peer::new(3, 100, 0).change(|peer| peer.flow.log.restored = Restored::Unconfirmed);
    let mut model = wrapped([Peer::new(1, 100, 50).stands(100, 50), unheard(2), nobody]);
    model.die();
    model.turn_page();
    come_back(&mut model);
    model.pass_in_steps(ms(100), ms(1));
    assert!(!handed_over(&model));
    assert_eq!(model.stage(), Stage::Recovering);
    let mut peer = model.peer(2).clone();
    peer.flow.log.restored = Restored::Confirmed;
    model.late(peer);
    model.until_serving(10);
    assert!(handed_over(&model));
    assert!(model.reset.is_empty());
    assert_eq!(
        model.recovery.silent(),
        1,
        "whom it does not know, it does not wait for"
    );
}

#[test]
fn handover_wait_is_bounded() {
    let mut model = wrapped([Peer::new(1, 100, 50).stands(100, 50), unheard(2)]);
    model.die();
    model.turn_page();
    come_back(&mut model);
    model.pass_in_steps(ms(990), ms(1));
    assert!(!handed_over(&model));
    model.until_serving(20);
    assert!(handed_over(&model));
    assert_eq!(model.reset[&key(2)], LostReason::ClientSilent);
    assert_eq!(model.reset.len(), 1);
}

/// The server does not wait for the client, which may still lack the end of the output. No request is executed again.
#[test]
fn closed_connection_is_grafted_after_handover() {
    let closed = |id| {
        unheard(id).change(|peer| {
            if let Some(standing) = &mut peer.replay_position {
                standing.is_closed = true;
            }
        })
    };
    let mut model = wrapped([closed(1), closed(2)]);
    model.die();
    come_back(&mut model);
    model.until_serving(10);
    assert!(handed_over(&model));
    let mut heard = |id| {
        let mut peer = model.peer(id).clone();
        peer.flow.log.restored = Restored::Confirmed;
        model.late(peer);
    };
    // Both clients answer before any action is carried out.
    heard(1);
    heard(2);
    let grafted = model.done.iter().filter_map(|action| match action {
        Action::Graft { flow, .. } => Some(flow.0),
        _ => None,
    });
    assert_eq!(grafted.collect::<Vec<_>>(), [1, 2]);
    assert_eq!(model.spliced, [], "nothing is executed again");
    assert!(model.reset.is_empty());
}

/// The client retransmits input that the dead host may have acknowledged: until then the connection waits.
#[test]
fn unlogged_input_is_awaited_after_takeover() {
    let ahead = |id| Peer::new(id, 100, 50).stands(100, 50).change(acked_ahead);
    let mut model = wrapped([ahead(1), ahead(2)]);
    model.die();
    model.turn_page();
    come_back(&mut model);
    model.until_serving(10);
    assert!(handed_over(&model) && model.reset.is_empty());
    model.pass_in_steps(ms(120_000), ms(100));
    model.peer(1).flow.log.snd_beyond_stable = false;
    model.pass_in_steps(ms(470_000), ms(100));
    assert!(model.reset.is_empty());
    assert_eq!(model.recovery.unsettled(), 1, "the other one is watched");
    model.pass_in_steps(ms(20_000), ms(100));
    assert_eq!(model.reset[&key(2)], LostReason::ClientSilent);
    assert_eq!((model.reset.len(), model.recovery.unsettled()), (1, 0));
}

/// The next `serve` watches the connection, too.
#[test]
fn adopted_connection_with_unlogged_input_is_tracked() {
    let ahead = |id| Peer::new(id, 100, 50).change(acked_ahead);
    let mut model = wrapped([ahead(1), ahead(2), ahead(3)]);
    for id in [1, 2, 3] {
        let flow = model.peer(id).flow.clone();
        model.recovery.track_unacked(key(id), &flow, model.now);
    }
    assert_eq!(model.recovery.unsettled(), 3);
    model.pass_in_steps(ms(1000), ms(100));
    assert_eq!(model.recovery.unsettled(), 3);
    model.peer(1).flow.log.snd_beyond_stable = false;
    model.peer(2).flow.closed_ns = 1;
    model.pass_in_steps(ms(590_000), ms(100));
    assert!(model.reset.is_empty());
    assert_eq!(model.recovery.unsettled(), 1);
    model.pass_in_steps(ms(20_000), ms(100));
    assert_eq!(model.reset[&key(3)], LostReason::ClientSilent);
    assert_eq!((model.reset.len(), model.recovery.unsettled()), (1, 0));
}

/// A connection that ends needs no retransmission any more.
#[test]
fn connection_with_unlogged_input_may_end() {
    let mut model = wrapped([Peer::new(1, 100, 50).stands(100, 50).change(acked_ahead)]);
    model.die();
    come_back(&mut model);
    model.until_serving(10);
    model.pass_in_steps(ms(1000), ms(100));
    assert_eq!(model.recovery.unsettled(), 1);
    model.peer(1).flow.closed_ns = 1;
    model.pass_in_steps(ms(1000), ms(100));
    assert_eq!((model.reset.len(), model.recovery.unsettled()), (0, 0));
}

/// The client may have sent input while the gate was shut. Such input is recorded, and needs no retransmission.
#[test]
fn input_during_graft_is_requested() {
    let more = Peer::new(1, 100, 50).stands(100, 50);
    let more = more.change(|peer| peer.flow.client.nxt = CLIENT + 120);
    let mut model = wrapped([more, Peer::new(2, 100, 50).stands(100, 50)]);
    model.die();
    come_back(&mut model);
    model.until_serving(10);
    let asked = model.done.iter().filter_map(|action| match action {
        Action::MoreRecord { flow, from } => Some((flow.0, *from)),
        _ => None,
    });
    assert_eq!(asked.collect::<Vec<_>>(), [(1, CLIENT + 100)]);
}
