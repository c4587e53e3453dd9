//! The logger does not answer for old output, or has no record of the output.

use south_model::Digest;
use wire::SeqNumber;

use super::model::{CLIENT, Logger, Manner, Model, Peer, SERVER, key, ms};
use types::UnprotectedReason;

use crate::{Action, Config, LostReason, Recovery, Stage};

#[test]
fn splice_waits_for_logger() {
    let mut model = Model::new((1..=3).map(|id| Peer::new(id, 10, 100)));
    model.logger = Logger::IsAway;
    model.die_and_return();
    model.pass_in_steps(ms(100_000), ms(100));
    assert_eq!(
        (&model.spliced[..], model.stage()),
        (&[][..], Stage::Recovering)
    );
    let asks = |action: &&Action| matches!(action, Action::Expect { .. });
    assert_eq!(model.done.iter().filter(asks).count(), 3, "each once");
    assert!(model.recovery.awaits_logger());

    model.logger = Logger::Answers;
    model.recovery.logger_answers(model.now);
    model.act();
    model.until_serving(10);
    assert_eq!(model.spliced, [1, 2, 3]);
    assert_eq!(model.serving(), (3, 0, 30));
}

/// The next incarnation asks anew.
#[test]
fn death_ends_wait_for_logger() {
    let mut model = Model::new([Peer::new(1, 10, 100)]);
    model.logger = Logger::IsAway;
    model.die_and_return();
    model.logger = Logger::Answers;
    model.die();
    model.until_serving(20);
    assert_eq!(model.serving(), (1, 0, 10));
}

#[test]
fn lost_record_resets_waiting_connection() {
    let mut model = Model::new([Peer::new(1, 10, 100), Peer::new(2, 10, 100)]);
    model.logger = Logger::IsAway;
    model.die_and_return();
    let flow = model.peer(1).flow.id;
    model
        .recovery
        .unprotected(flow, UnprotectedReason::UnsupportedOption);
    model.logger = Logger::Answers;
    model.recovery.logger_answers(model.now);
    model.until_serving(20);
    assert_eq!(model.spliced, [2]);
    assert_eq!(
        model.reported_losses(),
        [(
            key(1),
            LostReason::Unprotected {
                reason: UnprotectedReason::UnsupportedOption
            }
        )]
    );
}

/// No repeated output would be compared, and no request would wait for the output.
#[test]
fn unknown_connection_is_not_spliced() {
    let mut model = Model::new([Peer::new(1, 10, 100)]);
    model.logger = Logger::KnowsNothing;
    model.die_and_return();
    model.until_serving(10);
    assert_eq!(model.spliced, []);
    assert_eq!(model.reported_losses(), [(key(1), LostReason::NoRecord)]);
}

/// The frame that opens the record may still be on the way.
#[test]
fn fresh_connection_needs_no_record() {
    let mut model = Model::new([Peer::new(1, 0, 0)]);
    model.logger = Logger::KnowsNothing;
    model.die_and_return();
    model.until_serving(10);
    assert_eq!(model.serving(), (1, 0, 0));
}

/// Repeated output differs beyond the recorded head of a response.
#[test]
fn different_hash_stops_replay() {
    for differs in [false, true] {
        let mut peer = Peer::new(1, 100, 50_000);
        peer.beginnings = vec![(30, 20_000), (60, 40_000)];
        peer.digests = [20_000, 40_000].map(|said| digest(SERVER + said)).to_vec();
        if differs {
            peer.manner = Manner::SaysElse(30_000);
        }
        let mut model = Model::new([peer]);
        model.die_and_return();
        model.until_serving(100);
        let asked = model.done.iter().filter_map(|action| match action {
            Action::Compare { digest, .. } => Some(*digest),
            _ => None,
        });
        assert_eq!(asked.collect::<Vec<_>>(), [digest(SERVER + 40_000)]);
        let lost = (key(1), LostReason::DivergedBefore { offset: 40_000 });
        if differs {
            assert_eq!(model.reported_losses(), [lost]);
        }
        let (kept, lost) = if differs { (0, 1) } else { (1, 0) };
        let given = if differs { 60 } else { 100 };
        assert_eq!(model.serving(), (kept, lost, given));
    }
}

/// The digest is asked for when the server has said as much already, and something else; the server waits for the next
/// request.
#[test]
fn early_output_is_compared_with_late_hash() {
    for differs in [false, true] {
        let mut peer = Peer::new(1, 100, 50_000).manner(Manner::Mute);
        peer.beginnings = vec![(30, 20_000)];
        peer.digests = vec![digest(SERVER + 20_000)];
        let mut model = Model::new([peer]);
        model.die_and_return();
        model.pass_in_steps(ms(10), ms(1));
        let flow = &mut model.peer(1).flow;
        flow.digest.now.next = SERVER + 20_000;
        flow.digest.now.sum = u64::from(differs);
        flow.splice.nxt = flow.splice.isn + 1 + 20_000;
        model.pass_in_steps(ms(2000), ms(40));
        let lost = (key(1), LostReason::DivergedBefore { offset: 20_000 });
        let lost = differs.then_some(lost);
        assert_eq!(model.reported_losses(), Vec::from_iter(lost));
        let given = model.pieces(1).iter().map(|piece| piece.len).sum::<u32>();
        assert_eq!(given > 30, !differs, "{given}");
    }
}

/// The client sends when the server has all recorded input and has not repeated all output. The data plane holds the
/// new input back until the server has repeated the output.
#[test]
fn input_waits_for_slow_server() {
    for when in [5, 50, 5000] {
        let mut model = Model::new([Peer::new(1, 100, 50_000).manner(Manner::Mute)]);
        model.die_and_return();
        model.pass_in_steps(ms(when), ms(1));
        speaks(&mut model, 120);
        model.pass_in_steps(ms(20_000), ms(40));
        assert_eq!(given(&model), 100, "after {when} ms");
        says_all(&mut model);
        model.pass_in_steps(ms(50), ms(1));
        assert_eq!(given(&model), 120, "after {when} ms");
        model.pass_in_steps(ms(1000), ms(40));
        assert_eq!((model.reset.len(), model.recovery.unsettled()), (0, 0));
    }
}

/// The wait has a timeout.
#[test]
fn unrepeated_output_resets_client() {
    let mut model = Model::new([Peer::new(1, 100, 50_000).manner(Manner::Mute)]);
    model.die_and_return();
    model.pass_in_steps(ms(1000), ms(10));
    speaks(&mut model, 120);
    model.pass_in_steps(ms(610_000), ms(100));
    let reason = LostReason::OutputNotRepeated {
        bytes: 50_000,
        missing: 20,
    };
    assert_eq!(model.reported_losses(), [(key(1), reason)]);
}

/// The next `serve` watches the connection, too.
#[test]
fn adopted_connection_with_slow_server_is_tracked() {
    let mut model = Model::new([Peer::new(1, 100, 50_000).manner(Manner::Mute)]);
    model.die_and_return();
    model.pass_in_steps(ms(1000), ms(10));
    let found = model.peer(1).flow.clone();
    model.recovery = Recovery::new(Config::default());
    model.turn_page();
    model.recovery.track_unacked(key(1), &found, model.now);
    speaks(&mut model, 120);
    model.pass_in_steps(ms(1000), ms(10));
    assert_eq!(given(&model), 0);
    says_all(&mut model);
    model.pass_in_steps(ms(1000), ms(10));
    let mut pieces = model.pieces(1);
    pieces.retain(|piece| piece.len > 0);
    let pieces: Vec<_> = pieces.iter().map(|piece| (piece.from, piece.len)).collect();
    assert_eq!(pieces, [(CLIENT + 100, 20)]);
}

fn speaks(model: &mut Model, end: u32) {
    let peer = model.peer(1);
    peer.flow.client.nxt = CLIENT + end;
    let record = peer.record.as_mut().expect("a record");
    record.stable_seq = CLIENT + end;
}

fn says_all(model: &mut Model) {
    let flow = &mut model.peer(1).flow;
    flow.splice.nxt = flow.splice.isn + 1 + 50_000;
}

fn given(model: &Model) -> u32 {
    model.pieces(1).iter().map(|piece| piece.len).sum()
}

fn digest(next: SeqNumber) -> Digest {
    Digest {
        next,
        ..Digest::default()
    }
}
