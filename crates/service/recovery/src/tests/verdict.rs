//! The decision table, with a test for each row. Each later row applies only if the earlier rows do not.

use south_model::{Mode, UnprotectedReason};
use wire::{FlowId, SeqNumber};

use super::model::{CLIENT, Manner, Model, Peer, SERVER, candidate, key, ms};
use crate::{
    Action, Candidate, Config, Event, LostReason, RecordSummary, ReplayMode, SplicePoint,
    connection::{Verdict, judge},
};

fn verdict(peer: &Peer, mode: ReplayMode, deaths: u32) -> Verdict {
    judge(&candidate(key(1), peer), mode, deaths, &Config::default())
}

fn in_connection_mode(peer: &Peer) -> Verdict {
    verdict(peer, ReplayMode::Connection, 0)
}

fn peer() -> Peer {
    Peer::new(1, 100, 50)
}

fn with_record(change: impl FnOnce(&mut RecordSummary)) -> Peer {
    peer().change(|peer| change(peer.record.as_mut().expect("a record")))
}

#[test]
fn connection_closed_by_live_server_is_finished() {
    let closing = peer().change(|peer| {
        peer.flow.server_closing = true;
        peer.flow.client.reset = true;
        peer.record = None;
    });
    assert_eq!(in_connection_mode(&closing), Verdict::Finished);
    let closed = peer().change(|peer| peer.flow.closed_ns = 1);
    assert_eq!(in_connection_mode(&closed), Verdict::Finished);
}

#[test]
fn diverged_and_closed_connection_is_reset() {
    let diverged = peer().change(|peer| {
        peer.flow.mode = Mode::Diverged;
        peer.flow.server_closing = true;
        peer.flow.verify.diverged_at = peer.flow.server.isn + 8;
    });
    let lost = Verdict::Lose(LostReason::Diverged { offset: 7 });
    assert_eq!(in_connection_mode(&diverged), lost);
}

#[test]
fn client_reset_wins_over_record() {
    let reset = peer().change(|peer| {
        peer.flow.client.reset = true;
        peer.flow.unprotected = Some(UnprotectedReason::MirrorLost);
        peer.record = None;
    });
    assert_eq!(in_connection_mode(&reset), Verdict::Reset);
}

#[test]
fn unprotected_flow_is_reset_with_reason() {
    let unprotected = peer().change(|peer| {
        peer.flow.unprotected = Some(UnprotectedReason::MirrorLost);
        peer.record = None;
    });
    assert_eq!(
        in_connection_mode(&unprotected),
        Verdict::Lose(LostReason::Unprotected {
            reason: UnprotectedReason::MirrorLost
        })
    );
}

#[test]
fn flow_without_record_is_reset() {
    let unknown = peer().change(|peer| peer.record = None);
    assert_eq!(
        in_connection_mode(&unknown),
        Verdict::Lose(LostReason::NoRecord)
    );
}

#[test]
fn unprotected_record_is_reset_with_reason() {
    let unprotected =
        with_record(|record| record.unprotected = Some(UnprotectedReason::TotalLimit));
    assert_eq!(
        verdict(&unprotected, ReplayMode::Connection, 9),
        Verdict::Lose(LostReason::Unprotected {
            reason: UnprotectedReason::TotalLimit
        })
    );
}

#[test]
fn repeated_killer_is_quarantined() {
    assert!(matches!(
        verdict(&peer(), ReplayMode::Connection, 2),
        Verdict::Keep { .. }
    ));
    let hole = with_record(|record| record.stable_seq = CLIENT);
    for deaths in [3, 4] {
        assert_eq!(
            verdict(&hole, ReplayMode::Connection, deaths),
            Verdict::Lose(LostReason::Quarantined { deaths })
        );
    }
}

#[test]
fn record_shorter_than_ack_is_incomplete() {
    let hole = with_record(|record| record.stable_seq = CLIENT + 99);
    let reason = LostReason::RecordIncomplete {
        stable_seq: CLIENT + 99,
        acknowledged: CLIENT + 100,
    };
    assert_eq!(in_connection_mode(&hole), Verdict::Lose(reason));
    assert_eq!(
        verdict(&hole, ReplayMode::Request, 0),
        Verdict::Lose(reason)
    );
}

#[test]
fn unrecorded_acked_fin_is_incomplete() {
    let acknowledged = peer().change(|peer| peer.flow.server.ack = CLIENT + 101);
    assert!(matches!(
        in_connection_mode(&acknowledged),
        Verdict::Lose(LostReason::RecordIncomplete { .. })
    ));
    assert!(matches!(
        in_connection_mode(&peer().with_fin()),
        Verdict::Keep { fin: Some(_), .. }
    ));
}

#[test]
fn record_longer_than_ack_is_complete() {
    let ahead = with_record(|record| record.stable_seq = CLIENT + 300);
    assert!(matches!(in_connection_mode(&ahead), Verdict::Keep { end, .. } if end == CLIENT + 300));
}

#[test]
fn record_without_beginning_serves_request_replay_only() {
    let short = with_record(|record| record.start = record.turn_instream);
    assert!(matches!(
        in_connection_mode(&short),
        Verdict::Lose(LostReason::RecordIncomplete { .. })
    ));
    assert!(matches!(
        verdict(&short, ReplayMode::Request, 0),
        Verdict::Keep { .. }
    ));
    let shorter = with_record(|record| record.start = record.turn_instream + 1);
    assert!(matches!(
        verdict(&shorter, ReplayMode::Request, 0),
        Verdict::Lose(LostReason::RecordIncomplete { .. })
    ));
}

/// A server with state has its input in the determinant log. Without the log the input is unknown.
#[test]
fn input_of_lost_record_is_forgotten() {
    let config = Config {
        wrapped: true,
        ..Config::default()
    };
    let judged = |peer: &Peer| judge(&candidate(key(1), peer), ReplayMode::Connection, 0, &config);
    let short = with_record(|record| record.start = record.turn_instream + 1);
    assert_eq!(judged(&short), Verdict::Lose(LostReason::Forgotten));
    // A connection without any earlier input is served as by any server, but not if the client has output.
    let mut untold = candidate(key(1), &peer());
    untold.flow.server.sent = 0;
    let judged = |candidate: &Candidate| judge(candidate, ReplayMode::Connection, 0, &config);
    assert!(matches!(judged(&untold), Verdict::Keep { .. }));
    untold.flow.server.sent = 1;
    assert_eq!(judged(&untold), Verdict::Lose(LostReason::Forgotten));
}

#[test]
fn request_beyond_record_is_incomplete() {
    let odd = with_record(|record| record.turn_instream = record.stable_seq + 1);
    assert!(matches!(
        verdict(&odd, ReplayMode::Request, 0),
        Verdict::Lose(LostReason::RecordIncomplete { .. })
    ));
}

/// "Before" and "after" have no meaning beyond half of the sequence space (RFC 9293 3.4).
#[test]
fn record_of_2_gib_is_not_replayed() {
    for (bytes, kept) in [
        ((1 << 31) - 1, true),
        (1 << 31, false),
        ((1 << 31) + 5, false),
    ] {
        let long = Peer::new(1, bytes, 0);
        assert_eq!(
            matches!(in_connection_mode(&long), Verdict::Keep { .. }),
            kept,
            "{bytes}"
        );
    }
}

#[test]
fn connection_replay_begins_at_syn() {
    let point = SplicePoint {
        instream: CLIENT - 1,
        outstream: SERVER,
        verify_end: SERVER + 50,
    };
    assert_eq!(
        in_connection_mode(&peer()),
        Verdict::Keep {
            point,
            end: CLIENT + 100,
            fin: None
        }
    );
    assert_eq!(
        in_connection_mode(&peer().with_fin()),
        Verdict::Keep {
            point,
            end: CLIENT + 100,
            fin: Some(SERVER)
        }
    );
}

#[test]
fn request_replay_begins_at_request() {
    let point = SplicePoint {
        instream: CLIENT + 49,
        outstream: SERVER + 25,
        verify_end: SERVER + 50,
    };
    let keep = |fin| Verdict::Keep {
        point,
        end: CLIENT + 100,
        fin,
    };
    assert_eq!(verdict(&peer(), ReplayMode::Request, 0), keep(None));
    assert_eq!(
        verdict(&peer().with_fin(), ReplayMode::Request, 0),
        keep(Some(SERVER))
    );
}

#[test]
fn sequence_numbers_wrap_in_verdict() {
    let (client, server) = (SeqNumber(u32::MAX - 10), SeqNumber(0));
    let wrapped = Peer::at(1, client, server, 100, 50).with_fin();
    let point = SplicePoint {
        instream: client - 1,
        outstream: server,
        verify_end: SeqNumber(50),
    };
    assert_eq!(
        in_connection_mode(&wrapped),
        Verdict::Keep {
            point,
            end: SeqNumber(89),
            fin: Some(server)
        }
    );
}

#[test]
fn no_recorded_output_means_no_comparison() {
    for end in [None, Some(SERVER - 7)] {
        let silent = with_record(|record| record.outstream_end = end);
        assert!(
            matches!(in_connection_mode(&silent), Verdict::Keep { point, .. } if point.verify_end == point.outstream)
        );
    }
}

/// How a connection fared in an earlier incarnation's replay is no part of the table.
#[test]
fn earlier_replay_state_is_ignored() {
    for mode in [Mode::Splicing, Mode::Spliced, Mode::Diverged] {
        let earlier = peer().change(|peer| peer.flow.mode = mode);
        assert_eq!(in_connection_mode(&earlier), in_connection_mode(&peer()));
    }
}

#[test]
fn verdicts_become_actions() {
    let closing = Peer::new(1, 10, 0).change(|peer| peer.flow.server_closing = true);
    let gone = Peer::new(2, 10, 0).change(|peer| peer.flow.client.reset = true);
    let unknown = Peer::new(3, 10, 0).change(|peer| peer.record = None);
    let mut model = Model::new([closing, gone, unknown, Peer::new(4, 10, 0)]);
    model.die_and_return();
    assert_eq!(
        model
            .recovery
            .watched(model.now)
            .map(|(id, _)| id.0)
            .collect::<Vec<_>>(),
        [4]
    );
    assert!(model.done.contains(&Action::Forget {
        key: key(2),
        flow: FlowId(2)
    }));
    assert!(
        model
            .told
            .contains(&Event::ClientReset { connection: key(2) })
    );
    model.until_serving(10);
    assert_eq!(model.reported_losses(), [(key(3), LostReason::NoRecord)]);
    assert!(model.peers.contains_key(&key(1)), "the kernel finishes it");
    assert_eq!(model.serving(), (1, 1, 10));
}

#[test]
fn client_reset_during_replay_is_forgotten() {
    for replaying in [false, true] {
        let peers = [Peer::new(1, 100, 10).window(10).manner(if replaying {
            Manner::Stuck
        } else {
            Manner::Deaf
        })];
        let mut model = Model::new(peers);
        model.die_and_return();
        model.pass_in_steps(ms(5), ms(1));
        model.peer(1).flow.client.reset = true;
        model.turn_page();
        model.pass(ms(1));
        assert!(model.done.contains(&Action::Forget {
            key: key(1),
            flow: FlowId(1)
        }));
        assert!(
            model
                .told
                .contains(&Event::ClientReset { connection: key(1) })
        );
        let given = if replaying { 10 } else { 0 };
        assert_eq!(model.serving(), (0, 0, given));
        model.pass_in_steps(ms(200), ms(10));
        assert!(model.reset.is_empty());
    }
}

/// Sequence numbers of repeated output must be in order with the numbers that the client has.
#[test]
fn output_of_2_gib_is_not_repeated() {
    let sent = |sent: u64| peer().change(|peer| peer.flow.server.sent = sent);
    let too_long = |sent| Verdict::Lose(LostReason::OutstreamTooLong { sent });
    let half = 1 << 31;
    assert!(matches!(
        in_connection_mode(&sent(half - 1)),
        Verdict::Keep { .. }
    ));
    for much in [half, 3 * half, 9 * half] {
        assert_eq!(in_connection_mode(&sent(much)), too_long(much));
    }
    // The last turn began after 25 bytes ...
    assert!(matches!(
        verdict(&sent(half + 24), ReplayMode::Request, 0),
        Verdict::Keep { .. }
    ));
    assert_eq!(
        verdict(&sent(half + 25), ReplayMode::Request, 0),
        too_long(half + 25)
    );
    // ... or after 25 and many times the space, if the data plane knows.
    let round = 10 * (1 << 32);
    assert_eq!(
        verdict(&sent(round + 50), ReplayMode::Request, 0),
        too_long(round + 50)
    );
    let known = sent(round + 50).change(|peer| peer.flow.verify.head_sent = round + 25);
    assert!(matches!(
        verdict(&known, ReplayMode::Request, 0),
        Verdict::Keep { .. }
    ));
}
