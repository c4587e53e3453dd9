use super::*;
use crate::{Verdict, testing::*};
use protocol::control::ClientFin;
use wire::FlowId;

const TURN: u32 = 100;

/// A host that knows the connection only from the record, behind a shut gate.
fn lab(c: u32, s: u32) -> Lab {
    let mut lab = Lab::with(settings(), c, s, false);
    let (recorded, summary) = record(lab.c, lab.s, false, true);
    let flow = restored_flow(&recorded, &summary, 4096);
    lab.south.restore(lab.key, flow);
    lab
}

/// The client's answer to a probe, with `heard` bytes received and data sent up to `said`.
fn word(lab: &Lab, said: u32, heard: u32) -> Spec {
    segment(lab.c + 1 + said, lab.s + 1 + heard).timestamps(33, 977)
}

#[test]
fn a_flow_is_what_its_record_says() {
    for base in [1000, u32::MAX - 20] {
        let lab = lab(base, base);
        let flow = lab.flow();
        let end = lab.c + 1 + TURN;
        assert_eq!((flow.id, flow.incarnation), (FlowId(7), 0));
        assert_eq!((flow.client.nxt, flow.client.ack), (end, lab.s + 51));
        assert_eq!((flow.server.nxt, flow.server.ack), (lab.s + 51, end));
        assert_eq!((flow.server.sent, flow.server.tsval), (50, 950));
        assert_eq!((flow.log.stable, flow.log.copied_ack), (end, lab.s + 51));
        assert_eq!(flow.client.window_scale, CLIENT_SCALE);
        assert_eq!(flow.verify.head_next, lab.s + 61);
        assert_eq!((flow.verify.head_left, flow.verify.head_sent), (4036, 0));
    }
}

#[test]
fn a_long_connection_keeps_count_of_what_was_sent() {
    let (mut recorded, mut summary) = record(SeqNumber(5), SeqNumber(9), false, true);
    recorded.acknowledged = (3 << 32) + 50;
    summary.turn_outstream = SeqNumber(10) + 20;
    summary.answers = [SeqNumber(10) + 20; 2];
    summary.outstream_end = None;
    let flow = restored_flow(&recorded, &summary, 10);
    assert_eq!(
        (flow.server.nxt, flow.client.ack),
        (SeqNumber(60), SeqNumber(60))
    );
    assert_eq!(flow.server.sent, (3 << 32) + 50);
    assert_eq!(flow.verify.head_sent, (3 << 32) + 20);
    assert_eq!(
        (flow.verify.head_next, flow.verify.head_left),
        (SeqNumber(30), 10)
    );
}

/// Of several responses in a request, the head of the last response goes on where the head ends in
/// the record.
#[test]
fn the_head_of_the_last_answer_goes_on() {
    let (recorded, mut summary) = record(SeqNumber(5), SeqNumber(9), false, true);
    let head = |summary: &RecordSummary| {
        let verify = restored_flow(&recorded, summary, 100).verify;
        (verify.head_next, verify.head_left)
    };
    summary.outstream_end = Some(SeqNumber(10) + 230);
    summary.answers = [SeqNumber(10) + 200; 2];
    assert_eq!(head(&summary), (SeqNumber(240), 70));
    summary.answers[1] = SeqNumber(10) + 250;
    assert_eq!(head(&summary), (SeqNumber(260), 100));
}

#[test]
fn of_one_that_was_not_heard_again_the_handshake_tells_the_time() {
    let (mut recorded, summary) = record(SeqNumber(5), SeqNumber(9), false, true);
    (recorded.tsval, recorded.tsecr) = (0, 0);
    recorded.beginning.handshake.tsval = u32::MAX - 5; // which 0 would be newer than
    let flow = restored_flow(&recorded, &summary, 10);
    assert_eq!((flow.client.tsval, flow.server.tsval), (10, u32::MAX - 5));
}

#[test]
fn of_two_records_with_the_same_ends_the_later_counts() {
    let (first, _) = record(SeqNumber(5), SeqNumber(9), false, true);
    let numbered = |id| {
        let mut recorded = first;
        recorded.beginning.flow = FlowId(id);
        recorded
    };
    let mut other = numbered(4);
    other.beginning.key = FlowKey::new(client_end(true), server_end(true));
    let records = vec![numbered(3), numbered(9), other, numbered(7)];
    let (newest, others) = newest_records(records);
    assert_eq!(newest.len(), 2);
    assert!(newest.contains(&numbered(9)) && newest.contains(&other));
    assert_eq!(others, [FlowId(3), FlowId(7)]);
}

#[test]
fn a_fin_that_is_recorded_counts() {
    let (recorded, mut summary) = record(SeqNumber(5), SeqNumber(9), false, true);
    summary.client_fin = Some(ClientFin {
        seq: summary.stable_seq,
        heard: SeqNumber(60),
    });
    let flow = restored_flow(&recorded, &summary, 10);
    assert_eq!(flow.server.ack, summary.stable_seq + 1);
    assert_eq!(flow.log.stable, summary.stable_seq + 1);
}

#[test]
fn a_client_that_has_sent_no_more_than_is_recorded_is_heard() {
    for base in [1000, u32::MAX - 20, u32::MAX - 120] {
        let mut lab = lab(base, base);
        let out = lab.client(word(&lab, TURN, 80).window(500));
        assert_eq!(out.verdict, Verdict::Drop, "it is still behind the gate");
        let flow = lab.flow().clone();
        assert_eq!(flow.log.restored, Restored::Confirmed);
        assert_eq!((flow.client.ack, flow.client.window), (lab.s + 81, 500));
        assert_eq!((flow.server.nxt, flow.server.sent), (lab.s + 81, 80));
        assert_eq!((flow.client.tsval, flow.server.tsval), (33, 977));
        let late = |event: &crate::Event| matches!(event.kind, EventKind::Late { .. });
        assert!(lab.events().iter().any(late));
    }
}

#[test]
fn one_that_sends_again_from_a_place_that_is_recorded_is_heard() {
    for from in [TURN, TURN - 60] {
        let mut lab = lab(1000, 5000);
        lab.client(word(&lab, from, 50).payload(&[7; 200]));
        assert_eq!(lab.flow().log.restored, Restored::GapUnknown);
        let kept = lab.mirrored();
        assert_eq!(kept.len(), 1, "what is new in it is recorded");
        // Some stacks leave SACK blocks out of retransmissions.
        lab.client(word(&lab, from + 200, 50));
        assert_eq!(lab.flow().log.restored, Restored::Confirmed);
    }
}

/// The client may have an acknowledgement beyond the record.
#[test]
fn one_that_has_sent_more_is_not_believed() {
    let mut lab = lab(1000, 5000);
    let before = lab.flow().clone();
    lab.client(word(&lab, TURN + 1, 50));
    lab.client(word(&lab, TURN + 1, 50).payload(b"more"));
    lab.client(word(&lab, TURN, 49)); // of an earlier time
    lab.client(word(&lab, TURN, 50).flags(SYN_ACK));
    let flow = lab.flow().clone();
    let log = LogHalf {
        restored: Restored::GapKnown, // of what it has behind a hole: nothing
        client_wnd_edge: flow.log.client_wnd_edge,
        ..before.log.clone()
    };
    assert_eq!(
        flow,
        Flow {
            ifindex: flow.ifindex,
            log,
            ..before
        }
    );
    assert!(lab.mirrored().is_empty());
}

/// The server has determinants: input that was not acknowledged before the crash comes again.
#[test]
fn one_that_is_ahead_of_a_server_with_state_is_heard() {
    for base in [1000, u32::MAX - 20, u32::MAX - 120] {
        for (more, heard) in [(1, true), (OFFERED, true), (OFFERED + 1, false)] {
            let mut lab = stateful(base, base);
            let spec = word(&lab, TURN + more, 50);
            assert_eq!(is_heard(&mut lab, spec), heard, "{more}");
            assert_eq!(lab.flow().log.snd_beyond_stable, heard, "{more}");
        }
    }
    // Input behind the gap is recorded, and is no missing input; a retransmission is.
    let mut lab = stateful(1000, 5000);
    lab.client(word(&lab, TURN + 30, 50));
    lab.client(word(&lab, TURN + 30, 50).payload(b"next"));
    assert!(lab.flow().log.snd_beyond_stable);
    assert_eq!(lab.mirrored().len(), 1);
    // An acknowledgement brings no missing byte, whatever the number.
    lab.client(word(&lab, TURN, 50));
    assert!(lab.flow().log.snd_beyond_stable);
    lab.client(word(&lab, TURN, 50).payload(&[7; 30]));
    assert!(!lab.flow().log.snd_beyond_stable);
    assert_eq!(lab.mirrored().len(), 1);
    // A client that is not ahead has no gap to show.
    let mut lab = stateful(1000, 5000);
    lab.client(word(&lab, TURN, 50));
    assert_eq!(
        (lab.flow().log.restored, lab.flow().log.snd_beyond_stable),
        (Restored::Confirmed, false)
    );
}

fn stateful(c: u32, s: u32) -> Lab {
    let mut lab = lab(c, s);
    let mut flow = lab.flow().clone();
    flow.log.stateful = true;
    lab.south.restore(lab.key, flow);
    lab
}

/// A window of the server and a window of the client, as the shifts of the handshake allow.
const OFFERED: u32 = 65_535 << SERVER_SCALE;
const ROOM: u32 = 65_535 << CLIENT_SCALE;

fn is_heard(lab: &mut Lab, spec: Spec) -> bool {
    lab.client(spec);
    lab.flow().log.restored != Restored::Unconfirmed
}

#[test]
fn one_that_guesses_is_not_believed() {
    let near = ROOM + PROGRESS.max(ROOM / 2);
    let from = |lab: &Lab, back: u32, ahead: u32| {
        segment(lab.c + 1 + TURN - back, lab.s + 51 + ahead).timestamps(33, 977)
    };
    for base in [1000, u32::MAX - 20, u32::MAX - 120] {
        for (back, ahead, heard) in [
            (OFFERED + 1, 0, true),
            (OFFERED + 2, 0, false),
            (1, near, true),
            (1, near + 1, false),
            (0, near + LAG, true),
            (0, near + LAG + 1, false),
        ] {
            let mut lab = lab(base, base);
            let spec = from(&lab, back, ahead);
            assert_eq!(is_heard(&mut lab, spec), heard, "{back} {ahead}");
            if !heard {
                assert_eq!(lab.flow().client.ack, lab.s + 51);
            }
        }
    }
}

/// (20, 950) are known.
#[test]
fn timestamps_are_as_new_as_they_can_be() {
    let stamped = |back: u32, tsval: u32, tsecr: u32| {
        let mut lab = lab(1000, 5000);
        let spec = segment(lab.c + 1 + TURN - back, lab.s + 51).timestamps(tsval, tsecr);
        let heard = is_heard(&mut lab, spec);
        let flow = lab.flow();
        if heard {
            assert_eq!((flow.client.tsval, flow.server.tsval), (tsval, tsecr));
            assert_eq!(flow.log.tsecr, tsval);
        } else {
            assert_eq!((flow.client.tsval, flow.server.tsval), (20, 950));
        }
        heard
    };
    for back in [0, 1] {
        assert!(stamped(back, 20 + AGE, 950 + AGE));
        assert!(!stamped(back, 19, 950), "of an earlier time");
        assert!(!stamped(back, 20, 949));
        // A client at the end of the record may have waited for longer than timestamps can tell.
        assert_eq!(stamped(back, 21 + AGE, 950), back == 0);
        assert_eq!(stamped(back, 20, 951 + AGE), back == 0);
        assert_eq!(stamped(back, 19 + (1 << 31), 950 + (1 << 31)), back == 0);
        assert!(!stamped(back, 20u32.wrapping_sub(AGE), 950));
    }
    let mut lab = lab(1000, 5000);
    let without = segment(lab.c + 1 + TURN, lab.s + 51).options(&[]);
    assert!(!is_heard(&mut lab, without), "they were agreed on");
}

#[test]
fn without_timestamps_the_numbers_have_to_do() {
    let (mut recorded, summary) = record(SeqNumber(1000), SeqNumber(5000), false, true);
    recorded.beginning.handshake.timestamps = false;
    let flow = restored_flow(&recorded, &summary, 10);
    let mut lab = Lab::with(settings(), 1000, 5000, false);
    lab.south.restore(lab.key, flow);
    let (tsval, tsecr) = (lab.flow().client.tsval, lab.flow().server.tsval);
    let word = segment(lab.c + 1 + TURN, lab.s + 51);
    assert!(is_heard(&mut lab, word));
    assert_eq!(
        (lab.flow().client.tsval, lab.flow().server.tsval),
        (tsval, tsecr)
    );
}

#[test]
fn a_client_that_knows_nothing_of_it_resets_it() {
    let mut lab = lab(1000, 5000);
    lab.client(word(&lab, TURN - 1, 0).flags(RST));
    assert!(
        !lab.flow().client.reset,
        "not at the place that was asked for"
    );
    lab.client(word(&lab, TURN, 0).flags(RST));
    assert!(lab.flow().client.reset);
    assert_eq!(lab.flow().log.restored, Restored::Unconfirmed);
    assert_eq!(lab.events().len(), 1);
}

#[test]
fn a_client_that_never_had_its_answer_begins_anew() {
    let mut lab = lab(1000, 5000);
    let other = segment(lab.c + 9, SeqNumber(0)).flags(SYN);
    assert_eq!(lab.client(other).verdict, Verdict::Drop);
    assert_eq!(lab.client(lab.syn()).verdict, Verdict::Next);
    assert!(lab.south.flow(&lab.key).is_none());
    assert_eq!(lab.south.half_open(), 1);
}

/// Behind a gap, the client has output of the dead host; the client shows the output when the gap
/// is filled.
#[test]
fn what_the_dead_host_sent_is_learned_from_the_client() {
    let mut lab = lab(1000, 5000);
    lab.client(word(&lab, TURN, 80).window(500));
    let room = 500 << CLIENT_SCALE;
    lab.client(word(&lab, TURN, 80 + room + 1).window(500));
    assert_eq!(
        lab.flow().server.nxt,
        lab.s + 81,
        "for so much it had no room"
    );
    lab.client(word(&lab, TURN, 80 + room - 1).window(900));
    assert_eq!(lab.flow().log.restored, Restored::Confirmed);
    lab.client(word(&lab, TURN, 80 + room + 1).window(900));
    assert_eq!(
        lab.flow().server.nxt,
        lab.s + 80 + room,
        "it had no room for that when the host died"
    );
    lab.client(word(&lab, TURN, 80 + room).window(500));
    assert_eq!(lab.flow().server.nxt, lab.s + 81 + room);
    assert_eq!(lab.flow().server.sent, u64::from(80 + room));
    assert_eq!(lab.flow().log.client_received, lab.s + 81 + room);
    assert_eq!(
        lab.flow().log.restored,
        Restored::Confirmed,
        "its server may have said less"
    );
    let acknowledged = lab.flow().client.ack;
    lab.client(word(&lab, TURN, 80 + room + 1).window(500));
    assert_eq!(lab.flow().client.ack, acknowledged);
}

/// A client with a zero window had the same when the host died; but the client may have only the
/// beginning of a response.
#[test]
fn without_room_nothing_is_forgotten_before_something_is_said() {
    let mut lab = lab(1000, 5000);
    lab.client(word(&lab, TURN, 80).window(0));
    assert_eq!(lab.flow().log.client_wnd_edge, lab.s + 81);
    lab.client(word(&lab, TURN, 80).window(500));
    assert_eq!(lab.flow().log.restored, Restored::Confirmed);
    lab.client(word(&lab, TURN, 81).window(500));
    assert_eq!(lab.flow().server.nxt, lab.s + 81);
}
