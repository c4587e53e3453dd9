//! Turns whose records are in the store of the pool.

use objects::{
    flow::{Phase, Unprotected},
    plane::{CopyKind, Counter, Event, MARK_FROM_SERVER, StoreKind, Verdict},
    timestamp::{State, Timestamp},
};
use wire::Segment;

use super::lab::*;
use super::turns::asked;
use crate::harness::*;

fn state(segment: &Segment<'_>) -> State {
    Timestamp::from_wire(segment.timestamps().expect("always").value).state
}

/// A response of `body_len` bytes to the request of this number has begun; `sent` bytes of the body have left.
fn answered(lab: &mut Lab, number: u32, body_len: u64, sent: usize) {
    let tick = 20 * number;
    lab.client(lab.next_of_client(12 + tick).payload(REQUEST_BYTES));
    let payload = [head(body_len), vec![b'x'; sent]].concat();
    lab.server(lab.next_of_server(901 + tick).payload(&payload));
    let turn = lab.flow().turn;
    assert_eq!((turn.phase, turn.number), (Phase::Body, number));
}

/// The same of a connection that begins, with a store.
fn stored(lab: Lab, body_len: u64) -> Lab {
    let mut lab = lab.open();
    lab.store(StoreKind::Indexed);
    answered(&mut lab, 0, body_len, 100);
    assert!(lab.stored(0));
    lab
}

/// The first response is over, and the second has begun.
fn second(lab: Lab, body_len: u64) -> Lab {
    let mut lab = lab.open();
    lab.store(StoreKind::Indexed);
    answered(&mut lab, 0, 4, 4);
    lab.client(lab.next_of_client(13));
    answered(&mut lab, 1, body_len, 100);
    lab
}

fn more(lab: &mut Lab, tsval: u32, len: usize) -> super::lab::Out {
    let bytes = vec![b'x'; len];
    lab.server(lab.next_of_server(tsval).payload(&bytes))
}

#[test]
fn guarded_request_and_head_of_its_response_are_copied() {
    alone(|lab| {
        let mut lab = lab.open();
        lab.store(StoreKind::Indexed);
        answered(&mut lab, 0, 4000, 100);
        more(&mut lab, 902, 1000);
        let kinds: Vec<_> = lab.turns().iter().map(|copy| copy.kind).collect();
        assert_eq!(kinds, [CopyKind::Request, CopyKind::Response]);
    });
}

#[test]
fn request_without_a_store_or_without_guard_is_not_copied() {
    alone(|lab| {
        let mut lab = lab.open();
        answered(&mut lab, 0, 4, 4);
        lab.client(lab.next_of_client(13));
        lab.store(StoreKind::Indexed);
        let post = b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx";
        lab.client(lab.next_of_client(14).payload(post));
        lab.server(lab.next_of_server(910).payload(&head(0)));
        assert_eq!(lab.turns(), []);
    });
}

#[test]
fn request_is_acknowledged_after_the_echo_of_the_stored_state() {
    alone(|lab| {
        let mut lab = stored(lab, 4000);
        let end = lab.c + 1 + length(REQUEST_BYTES);
        let out = more(&mut lab, 902, 1000);
        let seen = out.segment();
        assert_eq!(seen.ack(), lab.c + 2, "the client does not know yet");
        assert!(matches!(state(&seen), State::Stored { turn: 0, .. }));
        lab.client(lab.next_of_client(13));
        let out = more(&mut lab, 903, 1000);
        let seen = out.segment();
        assert_eq!(seen.ack(), end);
        assert!(matches!(state(&seen), State::Stored { .. }));
    });
}

#[test]
fn store_without_an_index_leaves_the_request_with_the_client() {
    alone(|lab| {
        let mut lab = stored(lab, 4000);
        lab.store(StoreKind::Unindexed);
        more(&mut lab, 902, 1000);
        lab.client(lab.next_of_client(13));
        let out = more(&mut lab, 903, 1000);
        let seen = out.segment();
        assert_eq!(seen.ack(), lab.c + 2);
        assert!(matches!(state(&seen), State::Stored { .. }));
    });
}

#[test]
fn echo_of_an_earlier_state_keeps_the_guard() {
    alone(|lab| {
        let mut lab = stored(lab, 4000);
        lab.client(lab.next_of_client(13));
        let out = more(&mut lab, 902, 1000);
        assert_eq!(out.segment().ack(), lab.c + 2);
    });
}

#[test]
fn end_of_a_stored_response_reaches_the_client() {
    alone(|lab| {
        let mut lab = stored(lab, 300);
        more(&mut lab, 902, 100);
        lab.client(lab.next_of_client(13));
        more(&mut lab, 903, 100);
        let out = lab.client(lab.next_of_client(14));
        let [ack] = &out.sent[..] else {
            panic!("{:?}", out.sent);
        };
        assert!(matches!(state(&segment_of(ack)), State::Agreed { .. }));
        assert_eq!(lab.flow().turn.number, 1);
    });
}

#[test]
fn record_of_another_response_has_no_effect() {
    alone(|lab| {
        let mut lab = second(lab, 4000);
        assert!(!lab.stored(0));
        let out = more(&mut lab, 930, 1000);
        assert!(matches!(state(&out.segment()), State::Later { .. }));
    });
}

#[test]
fn long_later_response_is_exposed_until_it_is_stored() {
    alone(|lab| {
        let mut lab = second(lab, 100_000);
        for step in 0..25 {
            more(&mut lab, 930 + step, 1000);
            lab.client(lab.next_of_client(40 + step));
        }
        let exposed = more(&mut lab, 960, 1000);
        assert_eq!(exposed.verdict, Verdict::Next);
        assert_eq!(state(&exposed.segment()).bits(), lab.flow().states.bare);
        // Two bytes in an odd turn, and two that tell of the length.
        let start = lab.flow().turn.request_start;
        assert_eq!(exposed.segment().ack(), start + 4);
        assert_eq!(lab.events(), []);
        assert!(lab.stored(1));
        lab.client(lab.next_of_client(70));
        let out = more(&mut lab, 961, 1000);
        assert!(matches!(
            state(&out.segment()),
            State::Stored { turn: 1, .. }
        ));
        assert_eq!(lab.flow().unprotected, None);
    });
}

/// The timestamps of a first response tell a head of at most 2,047 bytes.
#[test]
fn response_with_a_long_head_is_exposed_until_it_is_stored() {
    let head = |len: usize| {
        let fields = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 9000\r\nX: \r\n\r\n";
        let fill = "x".repeat(len - fields.len());
        fields.replace("X: ", &format!("X: {fill}")).into_bytes()
    };
    alone(|mut lab| {
        lab.store(StoreKind::Indexed);
        let mut lab = asked(lab);
        let out = lab.server(lab.next_of_server(901).payload(&head(2048)));
        assert_eq!(state(&out.segment()).bits(), lab.flow().states.bare);
        assert_eq!(lab.turns().len(), 2, "request and response, for the record");
        assert!(lab.stored(0));
        lab.client(lab.next_of_client(13));
        let out = more(&mut lab, 902, 1000);
        assert!(matches!(state(&out.segment()), State::Stored { .. }));
        assert_eq!(lab.flow().unprotected, None);
    });
    for (store, len) in [(StoreKind::None, 2048), (StoreKind::Indexed, 3300)] {
        alone(|mut lab| {
            lab.store(store);
            let mut lab = asked(lab);
            let head = head(len);
            // A head that the first segment does not have whole.
            let first = &head[..head.len().min(3000)];
            lab.server(lab.next_of_server(901).payload(first));
            assert_eq!(lab.flow().unprotected, Some(Unprotected::Header));
        });
    }
}

#[test]
fn long_later_response_without_a_store_is_unprotected() {
    alone(|lab| {
        let mut lab = second(lab, 100_000);
        lab.store(StoreKind::None);
        for step in 0..25 {
            more(&mut lab, 930 + step, 1000);
            lab.client(lab.next_of_client(40 + step));
        }
        let (key, reason) = (lab.key, Unprotected::LaterResponse);
        assert_eq!(lab.events(), [Event::Unprotected { key, reason }]);
        assert!(!lab.stored(1), "too late");
    });
}

#[test]
fn stored_echo_of_an_unknown_connection_goes_to_user_space() {
    alone(|lab| {
        let mut lab = stored(lab, 4000);
        more(&mut lab, 902, 1000);
        let (echo, first) = (lab.value(), lab.first());
        let key = lab.key;
        lab.plane.forget_flow(key).expect("it is there");
        lab.model.forget_flow(&key);
        for (flaw, copies) in [(0, 1), (1, 0)] {
            let spec = segment(lab.c + 50, first + 700).timestamps(60, echo ^ flaw);
            lab.client(spec);
            assert_eq!(lab.copies().len(), copies);
        }
        assert_eq!(lab.counted(Counter::Forged), 1);
    });
}

/// A connection of a client without timestamps, with a request.
fn asked_without_timestamps(mut lab: Lab) -> Lab {
    lab.store(StoreKind::Indexed);
    lab.shake_hands_without_timestamps();
    assert_eq!(lab.flow().unprotected, None);
    let (seq, ack) = (lab.flow().client.nxt, lab.flow().server.nxt);
    lab.client(segment(seq, ack).payload(REQUEST_BYTES));
    lab
}

fn of_server(lab: &Lab, payload: &[u8]) -> Spec {
    let flow = lab.flow();
    let seq = flow.server.nxt - flow.server.delta;
    segment(seq, flow.client.nxt).payload(payload)
}

#[test]
fn response_without_timestamps_waits_for_its_record() {
    alone(|lab| {
        let mut lab = asked_without_timestamps(lab);
        let first = lab.flow().server.nxt;
        let response = of_server(&lab, &[head(4000), vec![b'x'; 100]].concat());
        assert_eq!(lab.server(response.clone()).verdict, Verdict::Withheld);
        assert_eq!(lab.counted(Counter::Deferred), 1);
        let kinds: Vec<_> = lab.copies().iter().map(|copy| copy.kind).collect();
        assert_eq!(kinds, [CopyKind::Deferred]);
        assert_eq!(lab.flow().server.nxt, first);
        assert!(lab.stored(0));
        // User space sends the copy, and the request is acknowledged with it.
        let again = response.mark(MARK + MARK_FROM_SERVER);
        let out = lab.server(again);
        assert_eq!(out.verdict, Verdict::RedirectNeighbour);
        let seen = out.segment();
        assert_eq!((seen.seq(), seen.ack()), (first, lab.flow().client.nxt));
        let more = of_server(&lab, b"more");
        assert_eq!(lab.server(more).verdict, Verdict::Next);
    });
}

#[test]
fn response_without_timestamps_or_record_continues_without_protection() {
    alone(|lab| {
        let mut lab = asked_without_timestamps(lab);
        let response = of_server(&lab, &[head(4000), vec![b'x'; 100]].concat());
        assert_eq!(lab.server(response.clone()).verdict, Verdict::Withheld);
        assert!(!lab.given_up(1));
        assert!(lab.given_up(0));
        assert_eq!(lab.server(response).verdict, Verdict::Next);
        assert!(!lab.flow().turn.is_guarded);
        assert_eq!(lab.flow().unprotected, None);
    });
}

#[test]
fn response_without_timestamps_and_content_does_not_wait() {
    alone(|lab| {
        let mut lab = asked_without_timestamps(lab);
        let response = of_server(&lab, b"HTTP/1.1 304 Not Modified\r\n\r\n");
        assert_eq!(lab.server(response).verdict, Verdict::Next);
    });
}

#[test]
fn client_without_timestamps_is_unprotected_without_an_index_of_records() {
    for kind in [StoreKind::None, StoreKind::Unindexed] {
        alone(|lab| {
            let mut lab = lab;
            lab.store(kind);
            lab.shake_hands_without_timestamps();
            let unprotected = Some(Unprotected::NoTimestamps);
            assert_eq!(lab.flow().unprotected, unprotected);
        });
        alone(|lab| {
            let mut lab = lab;
            lab.store(StoreKind::Indexed);
            lab.shake_hands_without_timestamps();
            lab.store(kind);
            let (seq, ack) = (lab.flow().client.nxt, lab.flow().server.nxt);
            lab.client(segment(seq, ack).payload(REQUEST_BYTES));
            // The store may be back at the next request.
            assert_eq!(lab.flow().unprotected, None);
            assert!(!lab.flow().turn.is_guarded);
        });
    }
}

#[test]
fn unknown_segment_without_timestamps_is_copied_while_the_pool_is_in_quiescence() {
    alone(|lab| {
        let mut lab = lab;
        let spec = segment(lab.c, lab.s).payload(b"x");
        assert_eq!(lab.client(spec.clone()).verdict, Verdict::Next);
        lab.quiescence(true);
        assert_eq!(lab.client(spec.clone()).verdict, Verdict::Drop);
        assert!(lab.copies().is_empty());
        lab.store(StoreKind::Indexed);
        assert_eq!(lab.client(spec).verdict, Verdict::Drop);
        let kinds: Vec<_> = lab.copies().iter().map(|copy| copy.kind).collect();
        assert_eq!(kinds, [CopyKind::Unknown]);
    });
}

/// The client has the bytes from another server.
#[test]
fn bytes_before_the_clients_are_acknowledged_without_timestamps() {
    for is_v6 in [false, true] {
        alone(|lab| {
            let mut lab = asked_without_timestamps(lab.numbered(1000, 5000, is_v6));
            let mut flow = lab.flow().clone();
            flow.server.floor = flow.server.nxt + 10;
            lab.write_flow(&flow, true);
            let response = of_server(&lab, &head(4000));
            let out = lab.server(response);
            assert_eq!(out.verdict, Verdict::RedirectIngress);
            let seen = out.segment();
            let ack = flow.server.floor - flow.server.delta;
            assert_eq!((seen.ack(), seen.option_bytes().len()), (ack, 0));
        });
    }
}
