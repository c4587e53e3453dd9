//! Verification of repeated output, and survival of the restarted server.

use wire::FlowId;

use super::model::{Manner, Model, Peer, SERVER, key, ms};
use crate::{Action, Config, Event, GaveUp, LostReason, Stage};

fn verified(model: &Model) -> Vec<(usize, u64)> {
    let numbers = |event: &Event| match event {
        Event::Verified {
            connections,
            compared,
            ..
        } => Some((*connections, *compared)),
        _ => None,
    };
    model.told.iter().filter_map(numbers).collect()
}

#[test]
fn expectation_lasts_from_splice_to_settlement() {
    let mut model = Model::new([Peer::new(1, 10, 100)]);
    model.die_and_return();
    let flow = FlowId(1);
    let at = |model: &Model, action| model.done.iter().position(|done| *done == action);
    let splice = model
        .done
        .iter()
        .position(|action| matches!(action, Action::Splice { .. }));
    assert!(at(&model, Action::Expect { flow }) < splice);
    model.until_serving(10);
    assert_eq!(at(&model, Action::ForgetExpected { flow }), None);
    model.pass_in_steps(ms(150), ms(1));
    assert!(at(&model, Action::ForgetExpected { flow }).is_some());
}

#[test]
fn equal_replays_are_verified_once() {
    let mut model = Model::new((1..=3).map(|id| Peer::new(id, 10, 100)));
    model.die_and_return();
    model.until_serving(10);
    model.pass_in_steps(ms(90), ms(1));
    assert_eq!(verified(&model), []);
    model.pass_in_steps(ms(20), ms(1));
    assert_eq!(verified(&model), [(3, 300)]);
    assert_eq!(model.recovery.deadline(), None);
}

#[test]
fn verification_before_death_is_not_recounted() {
    let mut model = Model::new([Peer::new(1, 10, 100), Peer::new(2, 1_000, 100).window(1)]);
    model.die_and_return();
    model.pass_in_steps(ms(500), ms(1)); // the first has settled, the second is being replayed
    model.peer(2).window = 1_000;
    model.die();
    model.until_serving(1_000);
    model.pass_in_steps(ms(300), ms(1));
    assert_eq!(verified(&model), [(2, 200)]);
}

/// The comparison needs the record: the record stays until all output was repeated. Other connections do not wait for
/// the comparison.
#[test]
fn slow_server_is_verified_late() {
    let config = Config {
        replay_timeout: ms(5_000),
        ..Config::default()
    };
    let mute = Peer::new(1, 10, 100).manner(Manner::Mute);
    let mut model = Model::with(config, [mute, Peer::new(2, 10, 100)]);
    model.die_and_return();
    model.until_serving(10);
    for _ in 0..40 {
        model.pass(ms(100));
        let deadline = model.recovery.deadline().expect("something to wait for");
        assert!(deadline > model.now, "no busy waiting");
    }
    assert_eq!(verified(&model), []);
    model.pass_in_steps(ms(1_500), ms(100));
    assert_eq!(verified(&model), [(1, 100)]);
    model.pass_in_steps(ms(3_600_000), ms(1_000));
    let flow = FlowId(1);
    let forgets = Action::ForgetExpected { flow };
    assert!(!model.done.contains(&forgets));
    let kept = Event::ConnectionsRecovered { connections: 1 };
    assert!(!model.told.contains(&kept));
    model.peer(1).manner = Manner::Reads;
    model.pass_in_steps(ms(120_000), ms(1_000));
    assert!(model.done.contains(&forgets));
    assert!(model.told.contains(&kept));
    assert_eq!(verified(&model), [(1, 100), (1, 100)]);
    assert!(model.reset.is_empty());
}

#[test]
fn divergence_during_recovery_resets_at_end() {
    let mut model = Model::new([Peer::new(1, 100, 100), Peer::new(2, 100, 100).window(1)]);
    model.die_and_return();
    model.pass_in_steps(ms(3), ms(1));
    model.diverge(1, SERVER + 30);
    model.act();
    assert!(model.reset.is_empty());
    assert!(
        model
            .done
            .contains(&Action::ForgetExpected { flow: FlowId(1) })
    );
    model.turn_page();
    model.until_serving(200);
    assert_eq!(model.pieces(1), []);
    assert_eq!(
        model.reported_losses(),
        [(key(1), LostReason::Diverged { offset: 30 })]
    );
    assert_eq!(
        model.serving(),
        (1, 1, 200),
        "the first one's bytes were given to the server"
    );
}

#[test]
fn divergence_after_recovery_resets_at_once() {
    let mut model = Model::new([Peer::new(1, 100, 100), Peer::new(2, 100, 100)]);
    model.die_and_return();
    model.until_serving(10);
    model.diverge(1, SERVER);
    model.act();
    assert_eq!(model.reset[&key(1)], LostReason::Diverged { offset: 0 });
    model.report_diverged(1);
    model.act();
    assert_eq!(model.reported_losses().len(), 1);
    model.pass_in_steps(ms(200), ms(1));
    assert_eq!(verified(&model), [(1, 100)]);
}

/// The flow's state may be seen before the event about the divergence is read.
#[test]
fn divergence_is_no_regular_end() {
    let mut model = Model::new([
        Peer::new(1, 100, 100).manner(Manner::SaysElse(7)),
        Peer::new(2, 10, 0),
    ]);
    model.die_and_return();
    model.until_serving(10);
    model.pass_in_steps(ms(200), ms(1));
    assert_eq!(model.reset[&key(1)], LostReason::Diverged { offset: 7 });
    model.report_diverged(1);
    model.act();
    assert_eq!(model.reported_losses().len(), 1);
}

#[test]
fn last_divergence_does_not_block_verified_event() {
    let mut model = Model::new([
        Peer::new(1, 100, 100),
        Peer::new(2, 100, 100).manner(Manner::Mute),
    ]);
    model.die_and_return();
    model.until_serving(10);
    model.pass_in_steps(ms(500), ms(1));
    assert_eq!(verified(&model), []);
    model.diverge(2, SERVER + 1);
    model.act();
    assert_eq!(verified(&model), [(1, 100)]);
}

#[test]
fn connection_ending_during_settlement_is_settled() {
    let mut model = Model::new([
        Peer::new(1, 100, 100).manner(Manner::Mute),
        Peer::new(2, 100, 100).manner(Manner::Mute),
    ]);
    model.die_and_return();
    model.until_serving(10);
    model.peer(1).flow.closed_ns = 1;
    model.peers.remove(&key(2));
    model.pass_in_steps(ms(200), ms(1));
    assert_eq!(model.recovery.deadline(), None, "nothing is waited for");
    assert_eq!(verified(&model), [(1, 0)]);
    assert_eq!(model.stage(), Stage::Serving);
}

/// The offset counts from the first byte that the client was ever sent, also across zero.
#[test]
fn divergence_offset_wraps() {
    let server = wire::SeqNumber(u32::MAX - 4);
    let mut model = Model::new([Peer::at(1, super::model::CLIENT, server, 10, 100)]);
    model.die_and_return();
    model.until_serving(10);
    model.diverge(1, wire::SeqNumber(15));
    model.act();
    assert_eq!(model.reset[&key(1)], LostReason::Diverged { offset: 20 });
}

/// The comparison goes on as long as the connection does; a client must not wait for ever for a
/// server whose output is held back.
#[test]
fn late_divergence_resets() {
    let mut model = Model::new([Peer::new(1, 100, 100)]);
    model.die_and_return();
    model.until_serving(10);
    model.pass_in_steps(ms(500), ms(1));
    assert_eq!(verified(&model), [(1, 100)]);
    model.diverge(1, SERVER + 3);
    model.act();
    assert_eq!(model.reset[&key(1)], LostReason::Diverged { offset: 3 });
}

#[test]
fn early_end_has_its_reason() {
    let mut model = Model::new([Peer::new(1, 100, 100)]);
    model.die_and_return();
    model.until_serving(10);
    model.peer(1).flow.verify.ended_early = true;
    model.diverge(1, SERVER + 9);
    model.act();
    assert_eq!(model.reset[&key(1)], LostReason::EndedEarly { offset: 9 });
}

/// The next server may say the right thing.
#[test]
fn divergence_of_dead_server_is_ignored() {
    let mut model = Model::new([Peer::new(1, 100, 100)]);
    model.die_and_return();
    model.until_serving(10);
    model.die();
    model.diverge(1, SERVER + 9);
    model.act();
    assert!(model.reset.is_empty());
}

#[test]
fn request_follows_repeated_output() {
    let mut peer = Peer::new(1, 90, 100);
    peer.beginnings = vec![(0, 10), (30, 40), (60, 70)];
    let mut model = Model::new([peer]);
    model.die_and_return();
    let mut most = 0;
    for _ in 0..100 {
        model.pass(ms(1));
        most = most.max(model.pieces(1).len());
        if model.recovery.awaits_server(model.now) {
            assert_eq!(model.stage(), Stage::Recovering);
        }
    }
    let pieces: Vec<_> = model.pieces(1).iter().map(|piece| piece.len).collect();
    assert_eq!(pieces, [30, 30, 30]);
    assert_eq!(model.serving(), (1, 0, 90));
}

/// The server may have sent some output by itself, or may repeat the output much later. The client does not wait
/// forever.
#[test]
fn unrepeated_output_stops_replay() {
    let timeout = Config::default().output_repeat_timeout;
    let mut peer = Peer::new(1, 90, 100).manner(Manner::Mute);
    peer.beginnings = vec![(30, 40)];
    let mut model = Model::new([peer, Peer::new(2, 10, 10)]);
    model.die_and_return();
    model.pass_in_steps(timeout - ms(10), ms(10));
    assert_eq!(model.peer(1).received(), 30);
    model.pass_in_steps(ms(60), ms(10));
    let (bytes, missing) = (40, 60);
    let reason = LostReason::OutputNotRepeated { bytes, missing };
    assert_eq!(model.reset[&key(1)], reason);
    assert_eq!(
        model.serving(),
        (1, 0, 40),
        "the other one is served long since"
    );
    let given = |event: &Event| {
        matches!(
            event,
            Event::ConnectionReset {
                replayed_bytes: 30,
                ..
            }
        )
    };
    assert!(model.told.iter().any(given), "what was given to it counts");
}

/// Like a long poll: the client waits as before, and no other connection waits.
#[test]
fn slow_response_blocks_one_client() {
    let mut peer = Peer::new(1, 90, 100).manner(Manner::Mute);
    peer.beginnings = vec![(30, 40)];
    let mut model = Model::new([peer, Peer::new(2, 10, 10)]);
    model.die_and_return();
    model.pass_in_steps(ms(2_000), ms(1));
    assert_eq!(model.stage(), Stage::Serving);
    assert_eq!(model.serving(), (1, 0, 40));
    assert!(!model.recovery.is_busy(model.now));
    assert!(!model.recovery.awaits_server(model.now));
    model.pass_in_steps(ms(300_000), ms(10));
    assert_eq!(model.peer(1).received(), 30);

    // A further death is not blamed on a replay that waits for output.
    model.die();
    model.until_serving(2_000);
    model.pass_in_steps(ms(300_000), ms(10));
    model.peer(1).manner = Manner::Reads;
    model.pass_in_steps(ms(200), ms(1));
    assert_eq!(model.peer(1).received(), 90);
    assert!(
        model
            .told
            .contains(&Event::ConnectionsRecovered { connections: 1 })
    );
    assert!(model.reset.is_empty());
}

/// Input that was not given before the stop is never given.
#[test]
fn end_reaches_waiting_client() {
    let mut peer = Peer::new(1, 90, 100).manner(Manner::Mute);
    peer.beginnings = vec![(30, 40)];
    let mut model = Model::new([peer, Peer::new(2, 10, 10)]);
    model.die_and_return();
    model.until_serving(2_000);
    model.recovery.give_up(GaveUp::Stopped);
    model.act();
    assert_eq!(model.reset[&key(1)], LostReason::Stopped);
    assert_eq!(model.reset.len(), 1);
}

#[test]
fn request_waits_for_unrecorded_response() {
    let mut peer = Peer::new(1, 90, 100);
    peer.beginnings = vec![(30, 40)];
    let record = peer.record.as_mut().expect("a record");
    record.outstream_end = None;
    let mut model = Model::new([peer.manner(Manner::Mute)]);
    model.die_and_return();
    model.pass_in_steps(ms(500), ms(1));
    assert_eq!(model.peer(1).received(), 30);
}
