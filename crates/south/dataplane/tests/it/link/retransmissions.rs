//! Without the logger, and with one again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::*;

#[test]
fn who_lost_the_logger_is_told_what_the_server_has() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"hello");
    assert_eq!(told(&linked.server_acks(6)).0, 1);
    linked.both.link_up(false);
    assert!(
        linked
            .both
            .unprotect(linked.both.key, UnprotectedReason::LoggerLost)
    );
    assert_eq!(told(&linked.server_acks(6)).0, 6);
    assert_eq!(linked.says(6, b"more"), Verdict::Next);
}

#[test]
fn a_connection_is_recorded_again_from_its_next_turn() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.both.link_up(false);
    linked
        .both
        .unprotect(linked.both.key, UnprotectedReason::LoggerLost);
    linked.says(1, b"hello");
    linked.server_acks(6);
    linked.both.link_up(true);
    assert!(linked.both.reprotect(linked.both.key));
    assert!(!linked.both.reprotect(linked.both.key), "it waits already");
    linked.both.copies();
    assert_eq!(
        linked.says(1, b"hello"),
        Verdict::Next,
        "sent again: no turn"
    );
    assert!(linked.both.copies().is_empty());
    let answer = segment(linked.both.s + 1, linked.both.c + 6)
        .timestamps(903, 21)
        .payload(b"answer");
    linked.both.server(answer);
    linked.says(6, b"of the same turn");
    assert!(linked.both.copies().is_empty());
    let answer = segment(linked.both.s + 7, linked.both.c + 22)
        .timestamps(903, 21)
        .payload(b"to all");
    assert_eq!(told(&linked.both.server(answer)).0, 22);
    linked.both.events();
    let next = segment(linked.both.c + 22, linked.both.s + 13)
        .timestamps(60, 903)
        .payload(b"next");
    assert_eq!(linked.both.client(next).verdict, Verdict::Next);
    let (c, s) = (linked.both.c, linked.both.s);
    let events = linked.both.events();
    let wanted = south_model::EventKind::Reprotected {
        key: linked.both.key,
        flow: FlowId(1),
        instream: c + 22,
        outstream: s + 13,
    };
    assert_eq!(events, [wanted]);
    assert_eq!(linked.both.copies().len(), 1);
    let acks = segment(s + 13, c + 26).timestamps(904, 60);
    assert_eq!(linked.both.server(acks).verdict, WITHHELD, "clamped again");
    assert_eq!(told(&linked.logged(26, &[])).0, 26);
}

#[test]
fn no_record_begins_in_the_middle_of_a_request() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.both.link_up(false);
    linked
        .both
        .unprotect(linked.both.key, UnprotectedReason::LoggerLost);
    linked.says(1, b"half of ");
    linked.server_acks(9);
    linked.both.link_up(true);
    assert!(linked.both.reprotect(linked.both.key));
    let waits = Some(UnprotectedReason::AwaitsTurn);
    // The client has all output, and the server has all input: still no request begins.
    assert_eq!(linked.says(9, b"a request"), Verdict::Next);
    assert_eq!(linked.both.flow().unprotected, waits, "the second half");
    linked.server_acks(18);
    let (c, s) = (linked.both.c, linked.both.s);
    let mut said = s + 1;
    let mut heard = c + 18;
    for (answer, protected) in [
        (&b"HTTP/1.1 100 Continue\r\n\r\n"[..], false),
        (b"HTTP/1.1 1", false),
        (b"HTTP/1.1 200 OK\r\n\r\n", true),
    ] {
        let segment_out = segment(said, heard).timestamps(903, 21).payload(answer);
        linked.both.server(segment_out);
        said += u32::try_from(answer.len()).unwrap();
        let next = segment(heard, said).timestamps(60, 903).payload(b"next");
        assert_eq!(linked.both.client(next).verdict, Verdict::Next);
        let state = linked.both.flow().unprotected;
        assert_eq!(state.is_none(), protected, "{state:?}");
        heard += 4;
        let acks = segment(said, heard).timestamps(904, 60);
        linked.both.server(acks);
    }
}

#[test]
fn no_record_begins_again_when_the_protocol_has_changed() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.both.link_up(false);
    linked
        .both
        .unprotect(linked.both.key, UnprotectedReason::LoggerLost);
    let (c, s) = (linked.both.c, linked.both.s);
    linked.says(1, b"upgrade");
    let switch = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";
    let out = segment(s + 1, c + 8).timestamps(903, 21).payload(switch);
    linked.both.server(out);
    linked.both.link_up(true);
    assert!(linked.both.reprotect(linked.both.key));
    let mut said = s + 1 + u32::try_from(switch.len()).unwrap();
    let mut heard = c + 8;
    for _ in 0..2 {
        let next = segment(heard, said).timestamps(60, 903).payload(b"frame");
        linked.both.client(next);
        let state = linked.both.flow().unprotected;
        assert_eq!(state, Some(UnprotectedReason::AwaitsTurn));
        heard += 5;
        let out = segment(said, heard).timestamps(903, 21).payload(b"other");
        linked.both.server(out);
        said += 5;
    }
}

#[test]
fn what_an_earlier_server_has_answered_begins_no_turn() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    let (c, s, s2) = (linked.both.c, linked.both.s, SeqNumber(77_000));
    linked.says(1, b"half ");
    linked.logged(6, &[]);
    linked.says(6, b"a request"); // and the logger does not get it
    let answer = segment(s + 1, c + 15).timestamps(903, 26).payload(b"yes");
    linked.both.server(answer);
    let heard = segment(c + 15, s + 4).timestamps(60, 903);
    linked.both.client(heard.clone());

    // The next server knows half of the request.
    linked.both.revive(s + 4);
    linked.both.server(linked.both.second_syn_ack(s2));
    let has_half = segment(s2 + 1, c + 6).timestamps(71, 60);
    linked.both.server(has_half);
    linked.both.copies();
    let again = Spec {
        seq: c + 6,
        ..heard
    };
    linked.both.client(again.payload(b"a request"));
    let copies = linked.both.copies();
    let payload = linked.payload(&copies[0]);
    assert!(SegmentView::parse(&payload).unwrap().flags().kind != SegmentKind::Turn);
}

/// A dead server has read unrecorded input, which led to the output that the client has. The new
/// server needs this input before repeating that output. Other input of the client waits, and
/// recorded input, too: the replay delivers both.
#[test]
fn what_was_read_and_not_recorded_does_not_wait_for_what_followed_from_it() {
    for v6 in [false, true] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, false).open();
        linked.says(1, b"question");
        let (c, s) = (linked.both.c, linked.both.s);
        let answer = segment(s + 1, c + 9).timestamps(903, 21).payload(b"answer");
        linked.both.server(answer);
        let client = |linked: &mut Linked, at: u32, says: &[u8]| {
            let says = segment(c + at, s + 7).timestamps(60, 903).payload(says);
            linked.both.client(says).verdict
        };
        linked
            .both
            .client(segment(c + 9, s + 7).timestamps(50, 903));
        let theirs = linked.splice_to_new_server();
        assert_eq!(client(&mut linked, 1, b"question"), Verdict::Next);
        assert_eq!(client(&mut linked, 1, b"question, and more"), DROP);
        assert_eq!(client(&mut linked, 9, b", and more"), DROP);
        linked.logged(9, &[]);
        assert_eq!(client(&mut linked, 1, b"question"), DROP, "it is recorded");
        let again = segment(theirs + 1, c + 9).timestamps(71, 33);
        linked.both.server(again.payload(b"answer"));
        assert_eq!(client(&mut linked, 9, b", and more"), Verdict::Next);
    }
}

/// A second `serve` brings up a link that is up. Meanwhile the client sends segments to another processor.
#[test]
fn second_serve_that_brings_the_link_up_costs_no_protection() {
    const SEGMENT_COUNT: u32 = 20_000;
    // Before the harness pins this thread.
    let processors = sched_getaffinity(None).expect("it is known");
    let linked = Linked::new(AckStrategy::Eager).open();
    let both = &linked.both;
    let says = segment(both.c + 1, both.s + 1)
        .timestamps(21, 901)
        .payload(b"hello");
    let packet = says.packet(both.key.client(), both.key.server());
    let plane = both.kernel.plane();
    let program = plane.program_fd("ingress").expect("it is loaded");
    let is_done = AtomicBool::new(false);
    let done = &is_done;
    thread::scope(|scope| {
        scope.spawn(move || {
            sched_setaffinity(None, &processors).expect("it is there");
            for _ in 0..SEGMENT_COUNT {
                let verdict = Frame::of(&packet).run(program);
                assert_eq!(verdict.expect("it is run"), Verdict::Next);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) {
            plane.link_up(true).expect("it runs");
        }
    });
    let flows = plane.flows().expect("readable");
    let unprotected: Vec<_> = flows.iter().map(|(_, flow)| flow.unprotected).collect();
    assert_eq!(unprotected, [None]);
}
