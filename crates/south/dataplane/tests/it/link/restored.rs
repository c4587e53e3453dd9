//! Connections of a dead host, restored from records; and the data that the logger gets for this
//! purpose.

use protocol::{
    control::{RecordSummary, Recorded, Resume},
    link::{Handshake, SynOptions},
};
use south_model::{EventKind, Restored, restored_flow};
use wire::FlowKey;

use super::*;

const SERVER_ISN: SeqNumber = SeqNumber(u32::MAX - 30);

/// A request of 100 bytes is recorded, and that the client has 50 of the answer.
pub(crate) fn record(
    key: FlowKey,
    (c, s): (SeqNumber, SeqNumber),
    flow: FlowId,
) -> (Recorded, RecordSummary) {
    let beginning = Resume {
        flow,
        key,
        client_isn: c,
        server_isn: s,
        instream: c + 1,
        outstream: s + 1,
        handshake: Handshake {
            tsval: 900,
            syn_window: 64_000,
            syn_flags: SYN.bits(),
            syn_options: SynOptions::new(&syn_options(10, 0, CLIENT_SCALE)).unwrap(),
            window_scale: SERVER_SCALE,
            client_scale: CLIENT_SCALE,
            timestamps: true,
            sack: true,
            whole_segments: false,
        },
    };
    let recorded = Recorded {
        beginning,
        acknowledged: 50,
        tsval: 20,
        tsecr: 950,
    };
    let summary = RecordSummary {
        stable_seq: c + 101,
        outstream_end: Some(s + 61),
        doubt: c + 101,
        ..RecordSummary::fresh(flow, c, s)
    };
    (recorded, summary)
}

/// A host that knows such a connection only from the record, behind a shut gate.
fn restored(strategy: AckStrategy, v6: bool) -> Linked {
    restored_of(strategy, v6, false)
}

fn restored_of(strategy: AckStrategy, v6: bool, stateful: bool) -> Linked {
    restored_with(strategy, v6, |flow| flow.log.stateful = stateful)
}

fn restored_with(
    strategy: AckStrategy,
    v6: bool,
    change: impl FnOnce(&mut south_model::Flow),
) -> Linked {
    let mut linked = Linked::over(strategy, v6, false);
    linked.both.s = SERVER_ISN;
    let ends = (linked.both.c, linked.both.s);
    let (recorded, summary) = record(linked.both.key, ends, FlowId(7));
    let mut flow = restored_flow(&recorded, &summary, 60);
    change(&mut flow);
    linked.both.restore(linked.both.key, &flow);
    assert_eq!(linked.both.flow(), &flow, "as it went in");
    linked
}

/// A segment of the client, which has sent up to `said`, and received `heard`.
fn word(linked: &Linked, said: u32, heard: u32) -> Spec {
    segment(linked.both.c + 1 + said, linked.both.s + 1 + heard).timestamps(33, 977)
}

#[test]
fn a_client_is_heard_spliced_and_goes_on() {
    for v6 in [false, true] {
        let mut linked = restored(AckStrategy::Eager, v6);
        assert_eq!(linked.both.client(word(&linked, 101, 50)).verdict, DROP);
        assert_eq!(linked.both.flow().log.restored, Restored::GapKnown);
        assert_eq!(linked.both.client(word(&linked, 100, 70)).verdict, DROP);
        assert_eq!(linked.both.flow().log.restored, Restored::Confirmed);
        let late = |event: &EventKind| matches!(event, EventKind::Late { .. });
        assert!(linked.both.events().iter().any(late));

        // The new server has other numbers.
        let theirs = linked.splice_to_new_server();
        let (c, s) = (linked.both.c, linked.both.s);
        // Output that the client has is acknowledged in the client's name; new output reaches the
        // client.
        let again = segment(theirs + 1, c + 101).timestamps(71, 33);
        let again = |at: u32| Spec {
            seq: again.seq + at,
            ..again.clone()
        };
        let had = linked.both.server(again(0).payload(&[1; 70]));
        assert_eq!(had.verdict, Verdict::RedirectIngress);
        let new = linked.both.server(again(70).payload(&[2; 30]));
        assert_eq!(new.verdict, Verdict::Next);
        assert_eq!(new.segment().seq(), s + 71);
        assert_eq!(new.segment().ack(), c + 101);
        assert!(tsval(&new) > 977, "the client has seen 977");
        // The client has received more than that: now the client acknowledges more, and the new
        // server gets an acknowledgement of the new server's output.
        let more = segment(c + 101, s + 400).timestamps(40, tsval(&new));
        let out = linked.both.client(more);
        assert_eq!(out.verdict, Verdict::Next);
        assert_eq!(out.segment().ack(), theirs + 101);
        assert_eq!(linked.both.flow().server.nxt, s + 400);
    }
}

/// The blocks of a selective acknowledgement, behind timestamps.
fn blocks(linked: &Linked, edges: &[u32]) -> Vec<u8> {
    let numbers = edges.iter().map(|at| (linked.both.s + 1 + *at).0);
    let bytes: Vec<u8> = numbers.flat_map(u32::to_be_bytes).collect();
    let length = u8::try_from(2 + bytes.len()).unwrap();
    [&timestamps(33, 977)[..], &[1, 1, 5, length], &bytes].concat()
}

/// Data that a client has behind a gap came from the dead host, too.
#[test]
fn what_a_client_has_behind_a_hole_it_has_heard() {
    for v6 in [false, true] {
        for (edges, heard) in [
            (&[90, 120][..], 120),
            (&[200, 300, 90, 120], 300),
            (&[10, 20], 70),
            // A block beyond the client's window is impossible.
            (&[90, 1 << 25], 90),
        ] {
            let mut linked = restored(AckStrategy::Eager, v6);
            let word = word(&linked, 100, 70).options(&blocks(&linked, edges));
            linked.both.client(word);
            let flow = linked.both.flow();
            assert_eq!(flow.log.restored, Restored::Confirmed);
            let first = flow.server.isn + 1;
            assert_eq!(
                (flow.client.ack, flow.log.client_received),
                (first + 70, first + heard)
            );
        }
        // Later, too: the output was on the way.
        let mut linked = restored(AckStrategy::Eager, v6);
        linked.both.client(word(&linked, 100, 70));
        let later = word(&linked, 100, 70).options(&blocks(&linked, &[150, 200]));
        linked.both.client(later);
        let flow = linked.both.flow();
        assert_eq!(flow.log.client_received, flow.server.isn + 201);
    }
}

fn tsval(out: &Out) -> u32 {
    let find = |option| match option {
        Ok(wire::TcpOption::Timestamps { value, .. }) => Some(value),
        _ => None,
    };
    out.segment().options().find_map(find).expect("it has one")
}

#[test]
fn what_it_sends_again_is_recorded_before_anyone_serves_it() {
    let mut linked = restored(AckStrategy::Eager, false);
    let again = word(&linked, 40, 50).payload(&[7; 100]);
    assert_eq!(linked.both.client(again).verdict, DROP);
    assert_eq!(linked.both.copies().len(), 1);
    assert_eq!(linked.both.flow().log.restored, Restored::GapUnknown);
}

fn heard(linked: &mut Linked, word: Spec) -> (Restored, u32) {
    assert_eq!(linked.both.client(word).verdict, DROP);
    let (log, first) = (&linked.both.flow().log, linked.both.s + 1);
    (
        log.restored,
        log.client_received.distance_from(first).unwrap(),
    )
}

fn late_events(linked: &mut Linked) -> usize {
    let late = |event: &&EventKind| matches!(event, EventKind::Late { .. });
    linked.both.events().iter().filter(late).count()
}

/// Some stacks leave SACK blocks out of retransmissions: an acknowledgement has the blocks.
#[test]
fn one_that_sends_again_is_asked_what_it_has_behind_a_hole() {
    for v6 in [false, true] {
        let mut linked = restored(AckStrategy::Eager, v6);
        let again = word(&linked, 40, 50).payload(&[7; 100]);
        assert_eq!(heard(&mut linked, again), (Restored::GapUnknown, 50));
        assert_eq!(late_events(&mut linked), 1, "it is asked at once");
        let doubted = (SegmentKind::Doubted, Some(linked.both.s + 51));
        assert_eq!(last_copy(&mut linked), doubted);
        let told = word(&linked, 140, 50).options(&blocks(&linked, &[90, 120]));
        assert_eq!(heard(&mut linked, told), (Restored::Confirmed, 120));
        assert_eq!(late_events(&mut linked), 1);
        // Other stacks do not.
        let mut linked = restored(AckStrategy::Eager, v6);
        let again = word(&linked, 40, 50).options(&blocks(&linked, &[90, 120]));
        let again = again.payload(&[7; 100]);
        assert_eq!(heard(&mut linked, again), (Restored::Confirmed, 120));
    }
}

/// The client shows the blocks before retransmitting unrecorded input.
#[test]
fn one_that_is_ahead_of_the_record_tells_what_it_has_behind_a_hole() {
    for v6 in [false, true] {
        let mut linked = restored(AckStrategy::Eager, v6);
        let more = word(&linked, 140, 50).payload(b"more");
        assert_eq!(heard(&mut linked, more), (Restored::Unconfirmed, 50));
        let told = word(&linked, 140, 50).options(&blocks(&linked, &[90, 120]));
        assert_eq!(heard(&mut linked, told), (Restored::GapKnown, 120));
        assert_eq!(late_events(&mut linked), 0);
        let again = word(&linked, 100, 50).payload(&[7; 40]);
        assert_eq!(heard(&mut linked, again), (Restored::Confirmed, 120));
        assert_eq!(late_events(&mut linked), 1);
    }
}

/// Without SACK, the part of an unrecorded response that the client has is unknown.
#[test]
fn one_without_selective_acknowledgements_has_nothing_behind_a_hole_if_it_waits_for_nothing() {
    // Length of a recorded head.
    const WHOLE: u32 = 4096;
    let without = |head_left: u32, restored: Restored| {
        restored_with(AckStrategy::Eager, false, |flow| {
            flow.server.sack = false;
            flow.verify.head_left = head_left;
            flow.log.restored = restored;
        })
    };
    for (from, payload, head_left, is) in [
        (100, 0, WHOLE - 1, Restored::Confirmed),
        (100, 0, WHOLE, Restored::GapUnknown),
        // Unrecorded input, which may have been answered.
        (60, 41, WHOLE - 1, Restored::GapUnknown),
        (140, 0, WHOLE - 1, Restored::GapUnknown),
        // These segments do not show later input.
        (60, 40, WHOLE - 1, Restored::Unconfirmed),
        (99, 0, WHOLE, Restored::Unconfirmed),
    ] {
        let mut linked = without(head_left, Restored::Unconfirmed);
        let word = word(&linked, from, 50).payload(&vec![7; payload]);
        let is_heard = heard(&mut linked, word).0;
        assert_eq!(is_heard, is, "{from} {payload} {head_left}");
    }
    // All beginnings of answers are known of a host that has handed over.
    let mut linked = without(WHOLE, Restored::GapKnown);
    let word = word(&linked, 100, 50);
    assert_eq!(heard(&mut linked, word).0, Restored::Confirmed);
}

/// The client continues at once; `snd_beyond_stable` stays until the client has retransmitted the
/// missing input.
#[test]
fn one_that_is_ahead_of_a_server_with_state_is_heard() {
    let mut linked = restored_of(AckStrategy::Eager, false, true);
    assert_eq!(linked.both.client(word(&linked, 101, 50)).verdict, DROP);
    let flow = linked.both.flow();
    assert_eq!(
        (flow.log.restored, flow.log.snd_beyond_stable),
        (Restored::Confirmed, true)
    );
    linked
        .both
        .client(word(&linked, 101, 50).payload(b"and more"));
    assert!(linked.both.flow().log.snd_beyond_stable);
    linked.both.client(word(&linked, 100, 50));
    assert!(
        linked.both.flow().log.snd_beyond_stable,
        "it brings nothing"
    );
    linked.both.client(word(&linked, 100, 50).payload(b"?"));
    assert!(!linked.both.flow().log.snd_beyond_stable);
    assert_eq!(linked.both.copies().len(), 2);
}

/// The dead server may have answered unrecorded input that comes again.
#[test]
fn no_turn_begins_before_the_client_has_heard_something_new() {
    let mut linked = restored(AckStrategy::Eager, false);
    let asks = |linked: &mut Linked, heard: u32| {
        let asked = word(linked, 100, heard).payload(b"what next?");
        linked.both.client(asked);
        last_copy(linked)
    };
    let first = linked.both.s + 1;
    linked.both.client(word(&linked, 100, 60));
    // The heads of answers are recorded up to there.
    assert_eq!(asks(&mut linked, 60), (SegmentKind::HeardAll, None));
    assert_eq!(asks(&mut linked, 60), (SegmentKind::HeardAll, None));
    let doubted = (SegmentKind::Doubted, Some(first + 71));
    assert_eq!(asks(&mut linked, 71), doubted);
}

/// Kind of the newest mirrored segment, and the end of the client's data from a dead host.
fn last_copy(linked: &mut Linked) -> (SegmentKind, Option<SeqNumber>) {
    let copies = linked.both.copies();
    let payload = linked.payload(copies.last().expect("it is recorded"));
    let segment = SegmentView::parse(&payload).expect("a segment");
    (segment.flags().kind, segment.heard())
}

/// A host whose client has received `heard` bytes, and the new server, which has the record and
/// sends from the number after the result on.
fn taken_over(v6: bool, heard: u32) -> (Linked, SeqNumber) {
    let mut linked = restored(AckStrategy::Eager, v6);
    linked.both.client(word(&linked, 100, heard));
    let theirs = linked.splice_to_new_server();
    (linked, theirs)
}

/// The server sends `bytes` bytes behind the first `at`.
fn says(linked: &mut Linked, theirs: SeqNumber, at: u32, bytes: usize) -> Verdict {
    let said = segment(theirs + 1 + at, linked.both.c + 101).timestamps(71, 33);
    linked.both.server(said.payload(&vec![1; bytes])).verdict
}

/// The client has more output than the recorded heads: the dead host may have answered this input,
/// and the record of input and response was lost.
#[test]
fn what_a_dead_host_may_have_answered_waits_until_all_that_was_heard_is_said_again() {
    for v6 in [false, true] {
        let (mut linked, theirs) = taken_over(v6, 200);
        let asks = |linked: &mut Linked| {
            let asked = word(linked, 100, 200).payload(b"what next?");
            linked.both.client(asked).verdict
        };
        assert_eq!(asks(&mut linked), DROP);
        let doubted = (SegmentKind::Doubted, Some(linked.both.s + 201));
        assert_eq!(last_copy(&mut linked), doubted, "it is recorded");
        assert_eq!(says(&mut linked, theirs, 0, 150), Verdict::RedirectIngress);
        assert_eq!(asks(&mut linked), DROP);
        assert_eq!(says(&mut linked, theirs, 150, 50), Verdict::RedirectIngress);
        assert_eq!(asks(&mut linked), Verdict::Next);
    }
}

/// The last number of the client's data may be the FIN of the server, which the server may repeat
/// only after the input that caused the FIN. If the number was a byte, the response of the byte is
/// unknown.
#[test]
fn what_waits_for_the_end_alone_is_given_and_a_byte_in_its_place_is_none() {
    let (mut linked, theirs) = taken_over(false, 200);
    says(&mut linked, theirs, 0, 199);
    let asked = word(&linked, 100, 200).payload(b"goodbye");
    assert_eq!(linked.both.client(asked.clone()).verdict, DROP);
    let replayed = asked.mark(MARK + south_model::MARK_CLIENT_SPACE);
    assert_eq!(linked.both.client(replayed).verdict, Verdict::Next);
    assert_eq!(says(&mut linked, theirs, 199, 5), DROP);
    let diverged = |event: &EventKind| matches!(event, EventKind::Diverged { .. });
    assert!(linked.both.events().iter().any(diverged));
    let (mut linked, theirs) = taken_over(false, 200);
    says(&mut linked, theirs, 0, 199);
    let asked = word(&linked, 100, 200).payload(b"goodbye");
    linked
        .both
        .client(asked.mark(MARK + south_model::MARK_CLIENT_SPACE));
    let end = segment(theirs + 200, linked.both.c + 108)
        .flags(Flags::FIN | Flags::ACK)
        .timestamps(72, 33);
    assert_ne!(linked.both.server(end).verdict, DROP);
}

#[test]
fn one_that_was_told_more_than_is_recorded_is_not_heard() {
    let mut linked = restored(AckStrategy::Eager, false);
    for spec in [
        word(&linked, 101, 50),
        word(&linked, 101, 50).payload(b"more"),
        word(&linked, 100, 49),
        word(&linked, 100, 50).flags(SYN_ACK),
        word(&linked, 100, 50).flags(Flags::from_bits(0)),
    ] {
        assert_eq!(linked.both.client(spec).verdict, DROP);
        assert_eq!(linked.both.flow().log.restored, Restored::GapKnown);
    }
    assert!(linked.both.copies().is_empty());
    assert!(linked.both.events().is_empty());
}

/// The bounds of credible numbers, in the kernel as in the model.
#[test]
fn one_that_guesses_is_not_heard() {
    const FULL: u32 = 65_535;
    let near = (FULL << CLIENT_SCALE) + (64 * 1024).max((FULL << CLIENT_SCALE) / 2);
    let (offered, lag, age) = ((FULL << SERVER_SCALE) + 1, 1 << 28, 1u32 << 28);
    // Distance below the end of the record, above the recorded acknowledgement, and after
    // timestamps 20 and 950.
    for (back, ahead, stamps, heard) in [
        (0, near + lag, Some((0, 0)), true),
        (0, near + lag + 1, Some((0, 0)), false),
        (1, near, Some((age, age)), true),
        (1, near + 1, Some((0, 0)), false),
        (offered, 0, Some((0, 0)), true),
        (offered + 1, 0, Some((0, 0)), false),
        (1, 0, Some((age + 1, 0)), false),
        (1, 0, Some((0, age + 1)), false),
        (0, 0, Some((1 << 31, age + 1)), true),
        (0, 0, Some((u32::MAX, 0)), false),
        (0, 0, Some((0, age.wrapping_neg())), false),
        (0, 0, None, false),
    ] {
        let mut linked = restored(AckStrategy::Eager, false);
        let (c, s) = (linked.both.c, linked.both.s);
        let spec = segment(c + 101 - back, s + 51 + ahead);
        let spec = match stamps {
            Some((tsval, tsecr)) => {
                spec.timestamps(20u32.wrapping_add(tsval), 950u32.wrapping_add(tsecr))
            }
            None => spec.options(&[]),
        };
        linked.both.client(spec);
        let now = linked.both.flow().log.restored;
        assert_eq!(
            now != Restored::Unconfirmed,
            heard,
            "{back} {ahead} {stamps:?}"
        );
    }
}

/// The client's former window bounds the output of the dead host; after that much output, the bound
/// is dropped.
#[test]
fn what_only_the_dead_host_knew_is_forgotten() {
    let mut linked = restored(AckStrategy::Eager, false);
    let room = 500 << CLIENT_SCALE;
    let says = |linked: &mut Linked, heard: u32| {
        let spec = word(linked, 100, heard).window(500);
        linked.both.client(spec);
        let flow = linked.both.flow();
        (
            flow.server.nxt.0.wrapping_sub(linked.both.s.0) - 1,
            flow.log.restored,
        )
    };
    assert_eq!(says(&mut linked, 70), (70, Restored::Confirmed));
    assert_eq!(says(&mut linked, 71), (71, Restored::Confirmed));
    assert_eq!(says(&mut linked, 70 + room + 1), (71, Restored::Confirmed));
    // Until the present server has sent more, an acknowledgement up to there may be of unrecorded
    // output.
    assert_eq!(
        says(&mut linked, 70 + room),
        (70 + room, Restored::Confirmed)
    );
    assert_eq!(
        says(&mut linked, 70 + room + 1),
        (70 + room, Restored::Confirmed)
    );
    assert_eq!(
        linked.both.flow().log.client_received,
        linked.both.s + 71 + room
    );
}

#[test]
fn a_client_may_know_nothing_of_it() {
    let mut linked = restored(AckStrategy::Eager, false);
    let reset = |linked: &Linked, at| word(linked, at, 0).flags(RST);
    linked.both.client(reset(&linked, 99));
    assert!(!linked.both.flow().client.reset);
    linked.both.client(reset(&linked, 100));
    assert!(linked.both.flow().client.reset);
    assert_eq!(linked.both.events().len(), 1);

    let mut linked = restored(AckStrategy::Eager, false);
    let other = Spec {
        seq: linked.both.c + 1,
        ..linked.both.syn()
    };
    assert_eq!(linked.both.client(other).verdict, DROP);
    assert_eq!(linked.both.client(linked.both.syn()).verdict, Verdict::Next);
    assert!(linked.both.model.flow(&linked.both.key).is_none());
    let (open, _) = linked.answer();
    assert_eq!(open.flow, FlowId(8), "no number is used twice");
}

#[test]
fn an_open_says_what_was_agreed_on() {
    for v6 in [false, true] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, v6);
        // Longer options than the next SYN's: no rest of the options is left.
        linked.both.client(linked.both.syn().options(&[1; 40]));
        linked.both.client(linked.both.syn());
        let (open, _) = linked.answer();
        assert_eq!(
            open.handshake,
            Handshake {
                tsval: 900,
                syn_window: 64_000,
                syn_flags: SYN.bits(),
                syn_options: SynOptions::new(&syn_options(10, 0, CLIENT_SCALE)).unwrap(),
                window_scale: SERVER_SCALE,
                client_scale: CLIENT_SCALE,
                timestamps: true,
                sack: true,
                whole_segments: false,
            }
        );
    }
}

#[test]
fn a_logger_hears_how_far_a_listener_is() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"give me all");
    linked.both.copies();
    let (c, s) = (linked.both.c, linked.both.s);
    let mut told = Vec::new();
    for round in 0..40u32 {
        let at = round * 10_000;
        let sent = segment(s + 1 + at + 9000, c + 12)
            .timestamps(903 + round, 21)
            .payload(&[3; 1000]);
        linked.both.server(sent);
        let heard = segment(c + 12, s + 1 + at + 10_000).timestamps(50 + round, 903 + round);
        assert_eq!(linked.both.client(heard).verdict, Verdict::Next);
        for copy in linked.both.copies() {
            let payload = linked.payload(&copy);
            let view = SegmentView::parse(&payload).expect("the logger understands it");
            assert!(view.verify(&keys(UP), FlowId(1)) && view.flags().kind != SegmentKind::Turn);
            if view.flags().kind == SegmentKind::Head {
                assert_eq!(
                    view.head().1,
                    b"",
                    "the copy tells only how far the server has read"
                );
                continue;
            }
            assert!(view.segment().payload().is_empty());
            told.push(view.segment().ack().0.wrapping_sub(s.0) - 1);
        }
    }
    // Each time when 64 KiB more have been heard.
    assert_eq!(told, [70_000, 140_000, 210_000, 280_000, 350_000]);
    assert_eq!(linked.both.counted("mirrored"), 1, "they are no segments");
}
