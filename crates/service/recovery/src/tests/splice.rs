//! Fabricated handshakes and replays, as the service asks for them.

use wire::FlowId;

use super::model::{CLIENT, Manner, Model, Peer, key, ms};
use types::UnprotectedReason;

use crate::{Action, Config, Event, LostReason, ReplayMode, Segment, Stage};

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    change(&mut config);
    config
}

#[test]
fn splices_follow_handshake_order() {
    let mut model = Model::new([5, 3, 9, 1, 7].map(|id| Peer::new(id, 10, 0)));
    model.die_and_return();
    model.until_serving(100);
    assert_eq!(model.spliced, [1, 3, 5, 7, 9]);
}

#[test]
fn splice_window_limits_pending_splices() {
    for (window, steps) in [(1, 100), (3, 100), (16, 100)] {
        let peers = (1..=20).map(|id| Peer::new(id, 10, 0));
        let mut model = Model::with(config(|config| config.splice_window = window), peers);
        model.die_and_return();
        model.until_serving(steps);
        assert_eq!(model.most_splicing, window.min(20));
        assert_eq!(model.serving(), (20, 0, 200));
    }
}

/// A connection without an answer keeps a place, but other connections do not wait for that place.
#[test]
fn unaccepted_connection_does_not_block_splices() {
    let peers = (2..=20)
        .map(|id| Peer::new(id, 10, 0))
        .chain([Peer::new(1, 10, 0).manner(Manner::Deaf)]);
    let mut model = Model::with(config(|config| config.splice_window = 2), peers);
    model.die_and_return();
    model.pass_in_steps(ms(100), ms(1));
    assert_eq!(model.spliced.len(), 20);
    assert_eq!(model.stage(), Stage::Recovering);
}

#[test]
fn syn_repeats_back_off() {
    let mut model = Model::new([Peer::new(1, 10, 0).manner(Manner::Deaf)]);
    model.die_and_return();
    let begin = model.now;
    let mut at = Vec::new();
    for _ in 0..400 {
        model.turn_page();
        model.pass(ms(1));
        if model.done.contains(&Action::RepeatSyn {
            key: key(1),
            flow: FlowId(1),
        }) {
            at.push((model.now - begin).as_millis());
        }
    }
    assert_eq!(at, [1, 3, 7, 15, 31, 63, 127, 191, 255, 319, 383]);
}

#[test]
fn lost_syn_is_repeated() {
    let mut model = Model::new([Peer::new(1, 10, 0).change(|peer| peer.syns_lost = 3)]);
    model.die_and_return();
    model.until_serving(20);
    assert_eq!(model.serving(), (1, 0, 10));
    let repeated = model.done.iter().filter(|action| {
        **action
            == Action::RepeatSyn {
                key: key(1),
                flow: FlowId(1),
            }
    });
    assert!(repeated.count() >= 3);
}

#[test]
fn unanswered_syn_times_out() {
    let timeout = Config::default().accept_timeout;
    let mut model = Model::new([
        Peer::new(1, 10, 0).manner(Manner::Deaf),
        Peer::new(2, 10, 0),
    ]);
    model.die_and_return();
    model.pass_in_steps(timeout - ms(10), ms(10));
    assert_eq!(model.stage(), Stage::Recovering);
    model.pass_in_steps(ms(20), ms(10));
    assert_eq!(model.stage(), Stage::Serving);
    assert_eq!(model.reset[&key(1)], LostReason::NotAccepted);
    assert_eq!(model.serving(), (1, 1, 10));
    assert!(
        model
            .told
            .iter()
            .any(|event| matches!(event, Event::Spliced { connections: 1, .. }))
    );
}

#[test]
fn replay_follows_window() {
    let mut model = Model::new([Peer::new(1, 1_000, 0).window(300)]);
    model.die_and_return();
    model.until_serving(20);
    let at = |offset, len| Segment {
        from: CLIENT + offset,
        len,
        fin: false,
    };
    assert_eq!(
        model.pieces(1),
        [at(0, 300), at(300, 300), at(600, 300), at(900, 100)]
    );
    assert_eq!(model.serving(), (1, 0, 1_000));
}

#[test]
fn only_last_request_is_replayed() {
    let mut model = Model::with(
        config(|config| config.replay = ReplayMode::Request),
        [Peer::new(1, 1_000, 0)],
    );
    model.die_and_return();
    model.until_serving(20);
    assert_eq!(
        model.pieces(1),
        [Segment {
            from: CLIENT + 500,
            len: 500,
            fin: false
        }]
    );
    assert_eq!(model.serving(), (1, 0, 500));
}

#[test]
fn segments_respect_limit() {
    let limit = |config: &mut Config| config.max_segment = 400;
    let mut model = Model::with(config(limit), [Peer::new(1, 1_000, 0).with_fin()]);
    model.die_and_return();
    model.until_serving(20);
    let lengths: Vec<_> = model
        .pieces(1)
        .iter()
        .map(|piece| (piece.len, piece.fin))
        .collect();
    assert_eq!(lengths, [(400, false), (400, false), (200, true)]);
}

#[test]
fn lost_segments_are_retransmitted() {
    let mut model = Model::new([Peer::new(1, 10_000, 0).with_fin().window(1_000)]);
    model.peer(1).pieces_lost = 3;
    model.die_and_return();
    model.until_serving(1_000);
    assert_eq!(model.serving(), (1, 0, 10_000));
    assert_eq!(model.peer(1).received(), 10_001);
}

#[test]
fn idle_connection_is_spliced_without_replay() {
    let mut model = Model::new([Peer::new(1, 0, 0)]);
    model.die_and_return();
    model.until_serving(5);
    assert_eq!(model.pieces(1), []);
    assert!(model.done.contains(&Action::OpenWindow {
        key: key(1),
        flow: FlowId(1)
    }));
    assert_eq!(model.serving(), (1, 0, 0));
}

#[test]
fn stalled_replay_times_out() {
    let timeout = Config::default().replay_timeout;
    let stuck = Peer::new(1, 1_000, 0).manner(Manner::Stuck);
    let closed_window = Peer::new(2, 1_000, 0).window(0);
    let mut model = Model::new([stuck, closed_window, Peer::new(3, 10, 0)]);
    model.die_and_return();
    model.pass_in_steps(timeout - ms(10), ms(10));
    assert_eq!(model.stage(), Stage::Recovering);
    model.pass_in_steps(ms(60), ms(10));
    assert_eq!(model.stage(), Stage::Serving);
    for id in [1, 2] {
        assert_eq!(
            model.reset[&key(id)],
            LostReason::ReplayStalled { missing: 1_000 }
        );
    }
    // The server may have read these bytes without an acknowledgement.
    assert_eq!(model.serving(), (1, 2, 1_010));
}

/// A response may need no more input, such as status 413 to an upload (RFC 9110 15.5.14).
#[test]
fn early_server_close_is_accepted() {
    let closes = Peer::new(1, 1_000, 0)
        .window(100)
        .manner(Manner::ClosesAfter(200));
    let mut model = Model::new([closes]);
    model.die_and_return();
    model.until_serving(20);
    assert!(model.reset.is_empty());
    assert_eq!(model.serving().1, 0);
    assert!(model.pieces(1).iter().map(|piece| piece.len).sum::<u32>() < 1_000);
}

/// The connection is spliced, reset by the client, closed by the server and replaced between two looks at the flow.
#[test]
fn successor_on_same_4_tuple_is_left_alone() {
    for looks_before in [false, true] {
        let mut model = Model::new([Peer::new(1, 1_000, 0).window(10)]);
        model.die_and_return();
        if looks_before {
            model.pass_in_steps(ms(2), ms(1));
        }
        let other = Peer::new(99, 5, 0).change(|peer| peer.flow.incarnation = 2);
        model.peers.insert(key(1), other);
        model.turn_page();
        model.pass_in_steps(ms(15_000), ms(10));
        assert_eq!(model.stage(), Stage::Serving);
        let harmful =
            |action: &&Action| !matches!(action, Action::ForgetExpected { .. } | Action::Recovered);
        assert_eq!(model.done.iter().find(harmful), None);
        assert!(model.reset.is_empty());
    }
}

#[test]
fn late_connection_is_recovered() {
    let mut model = Model::new([Peer::new(1, 10, 0).manner(Manner::Deaf)]);
    model.die_and_return();
    model.late(Peer::new(2, 20, 0));
    model.pass_in_steps(ms(11_000), ms(1));
    assert_eq!(model.serving(), (1, 1, 20));
    model.turn_page();

    model.late(Peer::new(3, 30, 0)); // after the recovery
    model.late(Peer::new(4, 30, 0).change(|peer| peer.record = None));
    assert_eq!(model.reset[&key(4)], LostReason::NoRecord);
    assert_eq!(model.stage(), Stage::Serving);
    model.pass_in_steps(ms(10), ms(1));
    assert_eq!(model.peer(3).received(), 30);
}

#[test]
fn late_connection_waits_for_listing() {
    let mut model = Model::new([]);
    model.die();
    model.late(Peer::new(1, 10, 0));
    model.clear();
    model.late(Peer::new(2, 10, 0));
    model.start();
    model.listen();
    model.drained();
    assert_eq!(model.spliced, [1, 2]);
    model.until_serving(10);
    assert_eq!(model.serving(), (2, 0, 20));
}

/// The report of a late connection may be on the way while the connections are listed.
#[test]
fn listed_and_late_connection_is_recovered_once() {
    let unknown = Peer::new(2, 10, 0).change(|peer| peer.record = None);
    let mut model = Model::new([Peer::new(1, 10, 0).window(1), unknown]);
    model.die_and_return();
    model.pass_in_steps(ms(4), ms(1));
    for id in [1, 2] {
        let peer = model.peer(id).clone();
        model.late(peer);
    }
    model.until_serving(50);
    assert_eq!(model.spliced, [1]);
    assert_eq!(model.serving(), (1, 1, 10));
    assert_eq!(model.reported_losses().len(), 1);
}

/// A report may come between the decision to splice and the splice.
#[test]
fn flow_of_earlier_incarnation_is_ignored() {
    let mut model = Model::new([]);
    let earlier = Peer::new(1, 100, 10).change(|peer| {
        peer.flow.mode = south_model::Mode::Spliced;
        peer.flow.splice.ack = CLIENT + 100;
        peer.flow.splice.rcv_wnd_edge = CLIENT + 1_000;
    });
    let flow = earlier.flow.clone();
    model.die_and_return();
    model.incarnation += 1; // of a third incarnation
    model.peers.insert(key(1), earlier);
    let candidate = model.candidates().remove(0);
    model.recovery.late_connection(&candidate, model.now);
    model.recovery.observe(flow.id, Some(&flow), model.now);
    let actions: Vec<_> = std::iter::from_fn(|| model.recovery.next_action()).collect();
    assert!(
        matches!(actions[..], [Action::Expect { .. }, Action::Splice { .. }]),
        "{actions:?}"
    );
}

#[test]
fn deadline_is_next_due_time() {
    let mut model = Model::new([Peer::new(1, 10, 0).manner(Manner::Deaf)]);
    model.die();
    // A client may wait.
    assert_eq!(model.recovery.deadline(), Some(model.now + ms(1_000)));
    model.come_back();
    assert_eq!(model.recovery.deadline(), Some(model.now + ms(1)));
    model.pass(ms(1));
    assert_eq!(model.recovery.deadline(), Some(model.now + ms(2)));
}

#[test]
fn record_lost_during_replay_resets() {
    let stuck = Peer::new(1, 1_000, 0).manner(Manner::Stuck);
    let late = Peer::new(3, 10, 0).manner(Manner::Deaf);
    let mut model = Model::new([stuck, Peer::new(2, 10, 0), late]);
    model.die_and_return();
    model.pass_in_steps(ms(5), ms(1));
    assert!(!model.pieces(1).is_empty(), "its replay has begun");
    model.turn_page();
    model
        .recovery
        .unprotected(FlowId(1), UnprotectedReason::ConnectionLimit);
    model
        .recovery
        .unprotected(FlowId(3), UnprotectedReason::TotalLimit);
    model.until_serving(10);
    assert_eq!(model.pieces(1), []);
    assert_eq!(
        model.reported_losses(),
        [
            (
                key(1),
                LostReason::Unprotected {
                    reason: UnprotectedReason::ConnectionLimit
                }
            ),
            (
                key(3),
                LostReason::Unprotected {
                    reason: UnprotectedReason::TotalLimit
                }
            )
        ]
    );
    assert_eq!(model.serving(), (1, 2, 1_010));
}

#[test]
fn record_lost_after_replay_is_ignored() {
    let mut model = Model::new([Peer::new(1, 1_000, 0)]);
    model.die_and_return();
    model.until_serving(10);
    model
        .recovery
        .unprotected(FlowId(1), UnprotectedReason::ConnectionLimit);
    model
        .recovery
        .unprotected(FlowId(7), UnprotectedReason::ConnectionLimit); // an unknown connection
    model.pass_in_steps(ms(500), ms(10));
    assert_eq!((model.reported_losses(), model.reset.len()), (vec![], 0));
}

/// A FIN waits as long as the server needs for the output before the FIN.
#[test]
fn waiting_fin_blocks_no_connection() {
    let mute = Peer::new(1, 100, 100)
        .with_fin()
        .manner(Manner::Mute)
        .change(|peer| {
            let record = peer.record.as_mut().expect("a record");
            let fin = record.client_fin.as_mut().expect("a FIN");
            fin.heard = peer.flow.server.nxt;
        });
    let mut model = Model::new([mute, Peer::new(2, 10, 0)]);
    model.die_and_return();
    model.until_serving(10);
    model.pass_in_steps(ms(20_000), ms(100));
    assert!(model.reset.is_empty());
    assert!(!model.pieces(1).iter().any(|piece| piece.fin));
    let splice = &mut model.peer(1).flow.splice;
    splice.nxt += 100;
    model.pass_in_steps(ms(500), ms(1));
    assert!(model.pieces(1).iter().any(|piece| piece.fin));
}
