//! The replay sender, by itself.

use std::time::Duration;

use south_model::{Digest, DigestHalf};
use wire::SeqNumber;

use super::model::ms;
use crate::{Beginning, Segment, replay::Replay};

const START: SeqNumber = SeqNumber(100);
const NEVER: Duration = Duration::ZERO;

fn replay(len: u32, fin: bool) -> Replay {
    let heard = SeqNumber(7);
    let mut replay = Replay::new(START, START + len, fin.then_some(heard), NEVER);
    replay.on_output(heard, NEVER);
    replay
}

fn all(replay: &mut Replay, max: u32, now: Duration) -> Vec<Segment> {
    std::iter::from_fn(|| replay.next_segment(max, now)).collect()
}

fn piece(offset: u32, len: u32, fin: bool) -> Segment {
    Segment {
        from: START + offset,
        len,
        fin,
    }
}

#[test]
fn zero_window_sends_empty_segments() {
    let mut replay = replay(100, true);
    assert_eq!(all(&mut replay, 50, NEVER), []);
    replay.update(START, START, ms(1));
    assert_eq!(all(&mut replay, 50, ms(100)), [piece(0, 0, false)]);
    assert_eq!(all(&mut replay, 50, ms(101)), [], "once for each timer");
    assert_eq!(all(&mut replay, 50, ms(200)), [piece(0, 0, false)]);
}

/// The end of the record was lost with a killed logger.
#[test]
fn shortened_record_completes_at_its_end() {
    let mut replay = replay(100, true);
    replay.update(START, START + 1_000, NEVER);
    assert_eq!(all(&mut replay, 100, NEVER), [piece(0, 100, true)]);
    replay.update(START + 20, START + 1_000, NEVER);
    replay.shorten(START + 60);
    assert!(!replay.complete());
    assert_eq!(all(&mut replay, 100, ms(100)), [piece(20, 40, false)]);
    replay.update(START + 60, START + 1_000, ms(100));
    assert!(replay.complete(), "without the end of the client");
    replay.shorten(START + 10);
    assert_eq!(replay.end(), START + 60, "the server has that");
}

#[test]
fn segments_fit_limit_and_window() {
    let mut replay = replay(100, false);
    replay.update(START, START + 70, NEVER);
    assert_eq!(
        all(&mut replay, 30, NEVER),
        [
            piece(0, 30, false),
            piece(30, 30, false),
            piece(60, 10, false)
        ]
    );
    replay.update(START + 60, START + 1_000, NEVER);
    assert_eq!(
        all(&mut replay, 50, NEVER),
        [piece(70, 30, false)],
        "not beyond the record"
    );
    assert!(!replay.complete());
    replay.update(START + 100, START + 1_000, NEVER);
    assert!(replay.complete());
    assert_eq!(all(&mut replay, 50, ms(500)), []);
}

#[test]
fn fin_goes_with_last_byte() {
    let mut replay = replay(100, true);
    replay.update(START, START + 1_000, NEVER);
    assert_eq!(
        all(&mut replay, 60, NEVER),
        [piece(0, 60, false), piece(60, 40, true)]
    );
    replay.update(START + 100, START + 1_000, NEVER);
    assert!(!replay.complete(), "the FIN is not acknowledged");
    assert_eq!(replay.missing(), 1);
    replay.update(START + 101, START + 1_000, NEVER);
    assert!(replay.complete());
}

/// RFC 9293 3.4: a FIN takes a sequence number.
#[test]
fn fin_waits_for_window() {
    let mut replay = replay(100, true);
    replay.update(START, START + 100, NEVER);
    assert_eq!(all(&mut replay, 200, NEVER), [piece(0, 100, false)]);
    replay.update(START + 100, START + 100, NEVER);
    assert_eq!(all(&mut replay, 200, ms(1)), []);
    replay.update(START + 100, START + 101, ms(2));
    assert_eq!(all(&mut replay, 200, ms(2)), [piece(100, 0, true)]);
    assert_eq!(all(&mut replay, 200, ms(2)), [], "once");
}

#[test]
fn empty_record_is_complete_without_fin() {
    assert!(replay(0, false).complete());
    assert_eq!(replay(0, false).next_segment(10, ms(100)), None);
    let mut fin = replay(0, true);
    assert!(!fin.complete());
    fin.update(START, START + 10, NEVER);
    assert_eq!(all(&mut fin, 10, NEVER), [piece(0, 0, true)]);
    fin.update(START + 1, START + 10, NEVER);
    assert!(fin.complete());
}

#[test]
fn unacked_bytes_are_retransmitted() {
    let mut replay = replay(100, true);
    replay.update(START, START + 200, NEVER);
    all(&mut replay, 40, NEVER);
    replay.update(START + 40, START + 200, ms(10));
    assert_eq!(all(&mut replay, 40, ms(49)), []);
    assert_eq!(replay.deadline(), ms(50));
    assert_eq!(
        all(&mut replay, 40, ms(50)),
        [piece(40, 40, false), piece(80, 20, true)]
    );
    assert_eq!(all(&mut replay, 40, ms(89)), []);
    assert_eq!(all(&mut replay, 40, ms(90)).len(), 2, "and again");
}

#[test]
fn lost_fin_is_retransmitted() {
    let mut replay = replay(10, true);
    replay.update(START, START + 200, NEVER);
    all(&mut replay, 40, NEVER);
    replay.update(START + 10, START + 200, ms(1));
    assert_eq!(all(&mut replay, 40, ms(41)), [piece(10, 0, true)]);
}

/// Otherwise a server that takes no input would never be given up.
#[test]
fn retransmission_is_no_progress() {
    let mut replay = replay(100, false);
    replay.update(START, START + 200, NEVER);
    for at in 0..1_000 {
        all(&mut replay, 40, ms(at));
        assert_eq!(replay.idle(ms(at)), ms(at));
    }
    replay.update(START + 1, START + 200, ms(1_000));
    assert_eq!(replay.idle(ms(1_000)), NEVER);
}

#[test]
fn ack_and_window_never_shrink() {
    let mut replay = replay(100, false);
    replay.update(START + 50, START + 80, NEVER);
    replay.update(START + 20, START + 60, NEVER);
    assert_eq!(replay.missing(), 50);
    assert_eq!(all(&mut replay, 100, NEVER), [piece(50, 30, false)]);
}

/// Live segments of the client may follow the record before the end of the record is acknowledged.
#[test]
fn ack_beyond_record_completes() {
    let mut replay = replay(100, true);
    replay.update(START + 5_000, START + 9_000, NEVER);
    assert!(replay.complete());
    assert_eq!(replay.missing(), 0);
    assert_eq!(replay.next_segment(10, NEVER), None);
}

#[test]
fn sequence_numbers_wrap() {
    let start = SeqNumber(u32::MAX - 49);
    let mut replay = Replay::new(start, start + 100, Some(SeqNumber(7)), NEVER);
    replay.on_output(SeqNumber(7), NEVER);
    replay.update(start, start + 80, NEVER);
    let first = all(&mut replay, 60, NEVER);
    let at = |offset, len, fin| Segment {
        from: start + offset,
        len,
        fin,
    };
    assert_eq!(first, [at(0, 60, false), at(60, 20, false)]);
    replay.update(SeqNumber(0), SeqNumber(60), ms(1));
    assert_eq!(all(&mut replay, 60, ms(1)), [at(80, 20, true)]);
    assert_eq!(all(&mut replay, 100, ms(41)), [at(50, 50, true)]);
    replay.update(SeqNumber(51), SeqNumber(60), ms(42));
    assert!(replay.complete());
    assert_eq!(replay.len(), 100);
}

#[test]
fn fin_waits_for_earlier_output() {
    let mut replay = Replay::new(START, START + 10, Some(SeqNumber(50)), NEVER);
    replay.update(START, START + 1_000, NEVER);
    assert_eq!(all(&mut replay, 50, NEVER), [piece(0, 10, false)]);
    replay.update(START + 10, START + 1_000, NEVER);
    replay.on_output(SeqNumber(49), ms(30));
    assert_eq!(all(&mut replay, 50, ms(31)), []);
    assert!(!replay.complete());
    assert_eq!(replay.idle(ms(35)), ms(5), "the server speaks");
    replay.on_output(SeqNumber(50), ms(40));
    assert_eq!(all(&mut replay, 50, ms(41)), [piece(10, 0, true)]);
    replay.update(START + 11, START + 1_000, ms(42));
    assert!(replay.complete());
}

/// The record has a retransmitted FIN: the server had answered the first FIN. The server does not repeat the last
/// number that the client has before the server gets the FIN.
#[test]
fn fin_wait_is_bounded() {
    for (said, patience) in [(6, 1_000), (3, 30_000)] {
        let mut replay = Replay::new(START, START + 10, Some(SeqNumber(7)), NEVER);
        replay.update(START + 10, START + 1_000, ms(5));
        replay.on_output(SeqNumber(said), ms(10));
        let fin = |replay: &mut Replay, now| all(replay, 100, now).iter().any(|piece| piece.fin);
        assert!(!fin(&mut replay, ms(9 + patience)), "{said}");
        assert!(fin(&mut replay, ms(60 + patience)), "{said}");
    }
}

fn gate(offset: u32, heard: u32) -> Beginning {
    Beginning {
        instream: START + offset,
        heard: SeqNumber(heard),
        said: None,
    }
}

/// Otherwise a request would be executed for a client that was sent other output.
#[test]
fn input_waits_for_earlier_output() {
    let replay = Replay::new(START, START + 100, None, NEVER);
    let gates = vec![gate(0, 20), gate(30, 50), gate(70, 60)];
    let mut replay = replay.with_gates(gates);
    replay.update(START, START + 1_000, NEVER);
    replay.on_output(SeqNumber(19), NEVER);
    assert_eq!(all(&mut replay, 50, NEVER), []);
    assert_eq!(replay.awaits(), Some(SeqNumber(20)));
    replay.on_output(SeqNumber(20), ms(5));
    assert_eq!(
        all(&mut replay, 20, ms(5)),
        [piece(0, 20, false), piece(20, 10, false)]
    );
    assert_eq!((replay.given().requests, replay.given().bytes), (1, 30));
    replay.update(START + 30, START + 1_000, ms(6));
    replay.on_output(SeqNumber(49), ms(7));
    assert_eq!(all(&mut replay, 50, ms(8)), []);
    assert_eq!(replay.idle(ms(10)), ms(3), "the server speaks");
    // The server may send more output than the gate needs.
    replay.on_output(SeqNumber(77), ms(11));
    assert_eq!(all(&mut replay, 70, ms(11)), [piece(30, 70, false)]);
    assert_eq!((replay.awaits(), replay.given().requests), (None, 3));
    replay.update(START + 100, START + 1_000, ms(12));
    assert!(replay.complete());
}

#[test]
fn no_bytes_count_no_request() {
    for gates in [vec![], vec![gate(0, 20)]] {
        let mut replay = Replay::new(START, START + 100, None, NEVER).with_gates(gates.clone());
        assert_eq!(replay.given().requests, 0);
        replay.update(START, START + 1_000, NEVER);
        replay.on_output(SeqNumber(20), NEVER);
        assert_eq!(all(&mut replay, 50, NEVER).len(), 2);
        assert_eq!(replay.given().requests, 1, "{gates:?}");
    }
}

/// Gates before the replay are ignored. If only the last request is replayed, all other requests lie before the replay.
#[test]
fn gates_beyond_replay_are_ignored() {
    let gates = vec![gate(0, 1_000), gate(60, 2_000)];
    let mut replay = Replay::new(START + 60, START + 100, None, NEVER);
    replay.on_output(SeqNumber(2_000), NEVER);
    let mut replay = replay.with_gates(gates);
    replay.on_output(SeqNumber(2_001), NEVER);
    replay.update(START + 60, START + 1_000, NEVER);
    assert_eq!(all(&mut replay, 50, NEVER), [piece(60, 40, false)]);
    // Gates behind the replayed input are ignored, too.
    let mut replay = Replay::new(START, START + 10, None, NEVER).with_gates(vec![gate(10, 20)]);
    replay.update(START, START + 1_000, NEVER);
    assert_eq!(all(&mut replay, 50, NEVER), [piece(0, 10, false)]);
    assert_eq!(replay.awaits(), None);
}

/// The FIN follows all input, and also waits for its own output.
#[test]
fn fin_waits_behind_gate() {
    let replay = Replay::new(START, START + 10, Some(SeqNumber(50)), NEVER);
    let mut replay = replay.with_gates(vec![gate(5, 30)]);
    replay.update(START, START + 1_000, NEVER);
    assert_eq!(all(&mut replay, 50, NEVER), [piece(0, 5, false)]);
    assert!(!replay.holds_fin());
    replay.on_output(SeqNumber(30), NEVER);
    assert_eq!(all(&mut replay, 50, NEVER), [piece(5, 5, false)]);
    replay.on_output(SeqNumber(50), NEVER);
    assert_eq!(all(&mut replay, 50, ms(50)), [piece(0, 10, true)]);
}

/// Equal response heads are not enough: the rest of each response is compared before the next request is given.
#[test]
fn request_waits_for_output_hash() {
    let said = |next| Digest {
        next: SeqNumber(next),
        sum: 7,
        ..Digest::default()
    };
    let with_digest = |offset, heard| Beginning {
        said: Some(said(heard)),
        ..gate(offset, heard)
    };
    let pending = |now, wanted| DigestHalf {
        now,
        wanted,
        ..DigestHalf::default()
    };
    let gates = vec![
        with_digest(10, 20),
        gate(30, 50),
        with_digest(70, 60),
        with_digest(90, 80),
    ];
    let mut replay = Replay::new(START, START + 100, None, NEVER).with_gates(gates);
    replay.update(START, START + 1_000, NEVER);
    assert_eq!(replay.want(), None, "it was asked for with the splice");
    assert_eq!(all(&mut replay, 50, NEVER), [piece(0, 10, false)]);
    let other = Digest { sum: 8, ..said(20) };
    for now in [said(15), other] {
        replay.compare(&pending(now, Some(said(20))));
        replay.on_output(SeqNumber(20), NEVER);
        assert_eq!(all(&mut replay, 50, NEVER), [], "{now:?}");
    }
    replay.compare(&pending(said(20), None));
    replay.on_output(SeqNumber(20), NEVER);
    assert_eq!(replay.want(), Some(said(60)));
    assert_eq!(replay.want(), None, "once");
    assert_eq!(all(&mut replay, 50, NEVER), [piece(10, 20, false)]);
    // The comparison was asked for when the server had already sent as much output.
    replay.compare(&pending(said(60), Some(said(60))));
    replay.on_output(SeqNumber(60), NEVER);
    assert_eq!(
        all(&mut replay, 50, NEVER),
        [piece(30, 50, false), piece(80, 10, false)]
    );
    // The server sends more output than the gate needs, and the data plane compares no digest at that place.
    assert_eq!(replay.want(), Some(said(80)));
    replay.compare(&pending(said(90), None));
    replay.on_output(SeqNumber(90), NEVER);
    assert_eq!(replay.want(), None);
    assert_eq!(all(&mut replay, 50, NEVER), [piece(90, 10, false)]);
}

/// A place in doubt may lie before the next gate: the input waits at the nearer place.
#[test]
fn doubt_may_begin_before_next_gate() {
    let mut replay = Replay::new(START, START + 100, None, NEVER).with_gates(vec![gate(70, 60)]);
    replay.update(START, START + 1_000, NEVER);
    replay.doubt(Some(gate(30, 80)), NEVER);
    replay.on_output(SeqNumber(50), NEVER);
    assert_eq!(all(&mut replay, 50, NEVER), [piece(0, 30, false)]);
    assert_eq!(replay.awaits(), Some(SeqNumber(80)));
    replay.doubt(None, NEVER);
    assert_eq!(all(&mut replay, 50, NEVER), [piece(30, 40, false)]);
    assert_eq!(replay.awaits(), Some(SeqNumber(60)));
}

/// The client has said more since the server died: that waits until all that the client was sent is said again.
#[test]
fn later_input_waits_for_all_output() {
    let mut replay = replay(10, false).with_gates(Vec::new());
    replay.update(START, START + 1000, NEVER);
    assert_eq!(all(&mut replay, 50, NEVER), [piece(0, 10, false)]);
    replay.update(START + 10, START + 1000, NEVER);
    // An earlier server may have read five bytes more.
    replay.extend(START + 30, Some(gate(15, 90)), ms(1));
    assert_eq!(all(&mut replay, 50, ms(1)), [piece(10, 5, false)]);
    assert_eq!(replay.awaits(), Some(SeqNumber(90)));
    replay.update(START + 15, START + 1000, ms(2));
    assert!(replay.awaits_later_only() && !replay.complete());
    replay.on_output(SeqNumber(89), ms(3));
    assert_eq!(all(&mut replay, 50, ms(3)), []);
    replay.on_output(SeqNumber(90), ms(4));
    assert_eq!(all(&mut replay, 50, ms(4)), [piece(15, 15, false)]);
}
