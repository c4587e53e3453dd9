//! Flows of a dead host: the clients are probed.

use south_model::Restored;

use super::model::{Manner, Model, Peer, key, ms};
use crate::{Action, Cause, GaveUp, LostReason, Stage};

fn silent(id: u64) -> Peer {
    Peer::new(id, 10, 5).change(|peer| peer.flow.log.restored = Restored::Unconfirmed)
}

fn calls(model: &Model, id: u64) -> usize {
    let ours =
        |action: &&Action| matches!(action, Action::ProbeClient { key: k, .. } if *k == key(id));
    model.done.iter().filter(ours).count()
}

/// The client answers a probe, and the data plane reports the connection.
fn speak(model: &mut Model, id: u64) {
    let mut peer = model.peer(id).clone();
    peer.flow.log.restored = Restored::Confirmed;
    model.late(peer);
}

#[test]
fn silent_clients_are_probed() {
    let heard = silent(1).change(|peer| peer.flow.log.restored = Restored::Confirmed);
    let mut model = Model::new([heard, silent(2)]);
    model.cause = Cause::Host;
    model.die_and_return();
    model.until_serving(100);
    assert_eq!(
        model.serving(),
        (1, 0, 10),
        "nobody waits for the silent one"
    );
    assert_eq!((calls(&model, 2), model.recovery.silent()), (1, 1));
    model.pass_in_steps(ms(60), ms(1));
    assert_eq!(calls(&model, 2), 2);
    speak(&mut model, 2);
    model.pass_in_steps(ms(3_000), ms(1));
    assert_eq!(model.peer(2).received(), 10);
    assert_eq!((calls(&model, 2), model.recovery.silent()), (2, 0));
    let told = |action: &&Action| matches!(action, Action::UpdateWindow { .. });
    assert_eq!(model.done.iter().filter(told).count(), 2);
    assert!(model.reset.is_empty());
}

/// The client has shown that the record is whole, and is probed further. A client without SACK cannot report bytes
/// beyond a gap.
#[test]
fn client_without_sack_is_probed_or_reset() {
    let untold = |id, sack| {
        silent(id).change(|peer| {
            peer.flow.log.restored = Restored::GapUnknown;
            peer.flow.server.sack = sack;
        })
    };
    let mut model = Model::new([untold(1, true), untold(2, false)]);
    model.cause = Cause::Host;
    model.die_and_return();
    model.until_serving(100);
    assert_eq!((calls(&model, 1), model.recovery.silent()), (1, 1));
    assert_eq!(model.reset[&key(2)], LostReason::HoleUnknown);
    speak(&mut model, 1);
    model.pass_in_steps(ms(3_000), ms(1));
    assert_eq!(model.peer(1).received(), 10);
    assert_eq!(model.reset.len(), 1);
}

#[test]
fn silent_client_is_reset_at_timeout() {
    let mut model = Model::new([silent(1)]);
    model.die_and_return();
    model.pass_in_steps(ms(599_000), ms(50));
    assert!(model.reset.is_empty());
    let asked = calls(&model, 1);
    assert!((40..60).contains(&asked), "each 15 s at last: {asked}");
    model.pass_in_steps(ms(2_000), ms(50));
    assert_eq!(model.reset[&key(1)], LostReason::ClientSilent);
    assert_eq!(model.recovery.deadline(), None);
}

/// The last output of the dead host may not have reached the logger.
#[test]
fn client_ahead_of_record_is_reset() {
    let heard = |id, recorded: Option<u32>| {
        Peer::new(id, 10, 10_000).change(|peer| {
            peer.flow.log.restored = Restored::Confirmed;
            let record = peer.record.as_mut().expect("a record");
            record.outstream_end = recorded.map(|bytes| record.turn_outstream + bytes);
            record.answers = [record.turn_outstream; 2];
        })
    };
    let all = [
        heard(1, None),
        heard(2, Some(4_094)),
        heard(3, Some(4_095)), // the missing number may be a FIN
        heard(4, Some(4_096)),
    ];
    let mut model = Model::new(all);
    model.die_and_return();
    model.until_serving(1000);
    assert_eq!(model.serving(), (2, 2, 20));
    let (heard, recorded) = (4_096, 4_094);
    let lost = LostReason::NotComparable { heard, recorded };
    assert_eq!(model.reset[&key(2)], lost);
    assert!(model.reset.contains_key(&key(1)));
}

/// The client has acknowledged all recorded output, and has a later part of the output beyond a gap.
#[test]
fn sacked_output_counts_as_received() {
    let behind = |id, bytes: u32| {
        Peer::new(id, 10, 10_000).change(|peer| {
            peer.flow.log.restored = Restored::Confirmed;
            peer.flow.log.client_received = peer.flow.client.ack + bytes;
            let record = peer.record.as_mut().expect("a record");
            record.answers = [peer.flow.client.ack; 2];
        })
    };
    let mut model = Model::new([behind(1, 0), behind(2, 1_000)]);
    model.die_and_return();
    model.until_serving(1000);
    let (heard, recorded) = (1_000, 0);
    let lost = LostReason::NotComparable { heard, recorded };
    assert_eq!(model.reported_losses(), [(key(2), lost)]);
}

/// A recorded response may be followed by unrecorded responses. New output of the restarted server must not count as
/// these responses.
#[test]
fn each_unrecorded_response_resets() {
    // The request began at 5000; the client has 10,000. The head of the first response is recorded.
    let heard = |id, answers: [u32; 2], recorded: u32| {
        Peer::new(id, 10, 10_000).change(|peer| {
            peer.flow.log.restored = Restored::Confirmed;
            let record = peer.record.as_mut().expect("a record");
            record.answers = answers.map(|at| record.turn_outstream + at);
            record.outstream_end = Some(record.turn_outstream + recorded);
        })
    };
    let all = [
        heard(1, [0, 0], 4_096),         // a single response
        heard(2, [4_900, 4_900], 4_096), // 100 bytes of a second response
        heard(3, [4_900, 4_900], 4_998),
        heard(4, [4_900, 4_900], 4_999), // the missing number may be a FIN
        heard(5, [0, 4_900], 4_096),     // the oldest is whole, the next is missing
        heard(6, [0, 5_000], 4_096),     // the client has no byte of the next response
        heard(7, [0, 4_096], 4_096),     // a response may begin at the end of the record
        heard(8, [4_096, 5_500], 5_000), // and a response beyond the client's data
    ];
    let mut model = Model::new(all);
    model.die_and_return();
    model.until_serving(1000);
    let lost: Vec<u64> = (1..=8)
        .filter(|id| model.reset.contains_key(&key(*id)))
        .collect();
    assert_eq!(lost, [2, 3, 5, 7]);
    let (heard, recorded) = (100, 0);
    assert_eq!(
        model.reset[&key(2)],
        LostReason::NotComparable { heard, recorded }
    );
}

#[test]
fn death_restarts_probes() {
    let mut model = Model::new([silent(1)]);
    model.die_and_return();
    model.pass_in_steps(ms(20), ms(1));
    model.die();
    assert_eq!(model.recovery.silent(), 0);
    model.until_serving(100);
    assert_eq!((model.recovery.silent(), calls(&model, 1)), (1, 2));
    speak(&mut model, 1);
    model.pass_in_steps(ms(10), ms(1));
    assert_eq!(model.peer(1).received(), 10);
}

#[test]
fn closed_and_unrecorded_clients_are_not_probed() {
    let reset = silent(1).change(|peer| peer.flow.client.reset = true);
    let unknown = silent(2).change(|peer| peer.record = None);
    let mut model = Model::new([reset, unknown, silent(3)]);
    model.die_and_return();
    model.until_serving(100);
    assert_eq!((calls(&model, 1), calls(&model, 2)), (0, 0));
    assert!(model.forgotten.contains(&key(1)));
    assert_eq!(model.reset[&key(2)], LostReason::NoRecord);
    let mut peer = model.peer(3).clone();
    peer.flow.client.reset = true; // the client's answer is a reset
    model.late(peer);
    assert!(model.forgotten.contains(&key(3)));
    assert_eq!(
        (model.stage(), model.recovery.silent()),
        (Stage::Serving, 0)
    );
}

#[test]
fn give_up_resets_silent_clients() {
    let mut model = Model::new([silent(1), Peer::new(2, 10, 0).manner(Manner::Deaf)]);
    model.die_and_return();
    model.recovery.give_up(GaveUp::Stopped);
    model.pass_in_steps(ms(10), ms(1));
    assert_eq!(model.reset[&key(1)], LostReason::Stopped);
    assert_eq!(model.recovery.silent(), 0);
}
