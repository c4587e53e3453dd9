//! Pipelined requests, and requests in several segments.

use objects::{
    flow::{Phase, Unprotected},
    plane::{CopyKind, Counter, Event, MARK_QUEUED, StoreKind, Verdict},
    timestamp::Timestamp,
};

use super::lab::*;
use super::turns::{answered, asked};
use crate::harness::*;

/// The next bytes of the client, from user space.
fn queued(lab: &Lab, payload: &[u8]) -> Spec {
    lab.next_of_client(14)
        .payload(payload)
        .mark(MARK + MARK_QUEUED)
}

fn next_request(lab: &Lab) -> Spec {
    lab.next_of_client(13).payload(REQUEST_BYTES)
}

#[test]
fn request_behind_a_response_waits_in_user_space() {
    alone(|lab| {
        let mut lab = asked(lab);
        let nxt = lab.flow().client.nxt;
        let out = lab.client(next_request(&lab));
        assert_eq!(out.verdict, Verdict::Drop);
        let [copy] = &lab.copies()[..] else {
            panic!("a copy");
        };
        assert_eq!(copy.kind, CopyKind::Queued);
        assert_eq!(copy.packet.len(), copy.packet_len);
        assert_eq!(lab.counted(Counter::Queued), 1);
        assert_eq!(lab.flow().client.nxt, nxt, "as if it had not come");
        assert_eq!(lab.flow().unprotected, None);
    });
}

/// A client that repeats its bytes without end fills no ring.
#[test]
fn copies_of_bytes_that_wait_are_limited_in_each_round() {
    for (payload, most) in [(&REQUEST_BYTES.to_vec(), 240), (&vec![b'x'; 2000], 30)] {
        alone(|lab| {
            let mut lab = asked(lab);
            for _ in 0..2 {
                for _ in 0..most + 5 {
                    let out = lab.client(lab.next_of_client(13).payload(payload));
                    assert_eq!(out.verdict, Verdict::Drop);
                }
                assert_eq!(lab.copies().len(), most);
                lab.next_queue_round();
            }
            assert_eq!(lab.flow().unprotected, None);
        });
    }
}

#[test]
fn joined_requests_wait_in_user_space() {
    alone(|lab| {
        let mut lab = lab.open();
        let joined = [REQUEST_BYTES, REQUEST_BYTES].concat();
        let out = lab.client(lab.next_of_client(12).payload(&joined));
        assert_eq!(out.verdict, Verdict::Drop);
        assert_eq!(lab.flow().turn.phase, Phase::Idle);
        let out = lab.client(queued(&lab, REQUEST_BYTES));
        assert_eq!(out.verdict, Verdict::Next);
        assert_eq!(lab.flow().turn.phase, Phase::Asked);
        assert_eq!(lab.events(), []);
    });
}

#[test]
fn part_of_a_request_waits_if_a_store_may_have_the_whole() {
    for store in [StoreKind::Indexed, StoreKind::Unindexed] {
        alone(|lab| {
            let mut lab = lab.open();
            lab.store(store);
            let part = &REQUEST_BYTES[..9];
            let out = lab.client(lab.next_of_client(12).payload(part));
            assert_eq!(out.verdict, Verdict::Drop);
            assert_eq!(lab.flow().unprotected, None);
            // The rest has come before its beginning.
            let behind = segment(lab.flow().client.nxt + 9, lab.flow().client.ack);
            let behind = behind.timestamps(12, 901).payload(&REQUEST_BYTES[9..]);
            assert_eq!(lab.client(behind).verdict, Verdict::Drop);
            let out = lab.client(queued(&lab, part));
            assert_eq!(out.verdict, Verdict::Next);
            assert_eq!(lab.flow().unprotected, Some(Unprotected::SplitRequest));
        });
    }
}

/// User space has no more to wait for.
#[test]
fn queued_bytes_that_do_not_fit_are_unprotected() {
    alone(|lab| {
        let mut lab = asked(lab);
        let out = lab.client(queued(&lab, REQUEST_BYTES));
        assert_eq!(out.verdict, Verdict::Next);
        let reason = Unprotected::Pipelined;
        let key = lab.key;
        assert_eq!(lab.events(), [Event::Unprotected { key, reason }]);
    });
}

#[test]
fn responses_of_a_client_with_a_queue_are_events() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 0);
        lab.client(next_request(&lab));
        lab.server(lab.next_of_server(902).payload(b"xx"));
        assert_eq!(lab.events(), []);
        lab.server(lab.next_of_server(903).payload(b"xx"));
        let key = lab.key;
        assert_eq!(lab.events(), [Event::Answered { key }]);
        lab.client(lab.next_of_client(14));
        assert_eq!(lab.events(), [Event::TurnOver { key }]);
        let out = lab.client(queued(&lab, REQUEST_BYTES));
        assert_eq!(out.verdict, Verdict::Next);
        lab.server(lab.next_of_server(910).payload(&head(0)));
        assert_eq!(lab.events(), [Event::Answered { key }]);
        lab.client(lab.next_of_client(15));
        assert_eq!(lab.events(), [Event::TurnOver { key }]);
        assert_eq!(lab.flow().turn.number, 2);
    });
}

#[test]
fn responses_of_a_client_without_a_queue_are_no_events() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 4);
        lab.client(lab.next_of_client(14));
        assert_eq!(lab.events(), []);
    });
}

/// The client's TCP joins what it sends again.
#[test]
fn repetition_with_the_next_request_is_a_repetition() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 0);
        let start = lab.flow().turn.request_start;
        let joined = [REQUEST_BYTES, REQUEST_BYTES].concat();
        let repeated = segment(start + 1, lab.flow().client.ack).timestamps(13, 901);
        let out = lab.client(repeated.payload(&joined[1..]));
        assert_eq!(out.verdict, Verdict::Drop);
        let (key, seq) = (lab.key, start + 1);
        assert_eq!(lab.events(), [Event::Repeated { key, seq }]);
        assert_eq!(lab.copies().len(), 1);
    });
}

/// The rest of an upload is of the request under way.
#[test]
fn request_behind_a_body_waits() {
    alone(|lab| {
        let mut lab = lab.open();
        let upload = b"POST / HTTP/1.1\r\nContent-Length: 8\r\n\r\nbody";
        lab.client(lab.next_of_client(12).payload(upload));
        let rest = lab.client(lab.next_of_client(13).payload(b"rest"));
        assert_eq!(rest.verdict, Verdict::Next);
        assert_eq!(lab.client(next_request(&lab)).verdict, Verdict::Drop);
        assert_eq!(lab.flow().unprotected, None);
    });
}

/// A sender that guesses gains nothing by user space, which would add the client's newest numbers.
#[test]
fn bytes_with_unfitting_numbers_do_not_wait() {
    alone(|lab| {
        let mut lab = asked(lab);
        let flow = lab.flow().clone();
        let window_max = u32::from(u16::MAX) << flow.client.window_scale;
        let echo = Timestamp::value(flow.echoes.parts().newest, flow.states.newest);
        let behind = |ack, tsval| {
            let spec = segment(flow.client.nxt, ack).timestamps(tsval, echo);
            spec.payload(REQUEST_BYTES)
        };
        let old_ack = behind(flow.client.ack - window_max - 1, 13);
        let old_stamp = behind(flow.client.ack, flow.client.tsval - 1);
        let without = segment(flow.client.nxt, flow.client.ack).payload(REQUEST_BYTES);
        for spec in [old_ack, old_stamp, without] {
            assert_eq!(lab.client(spec).verdict, Verdict::Drop);
            assert_eq!(lab.copies(), []);
        }
        let fitting = behind(flow.client.ack - window_max, flow.client.tsval);
        assert_eq!(lab.client(fitting).verdict, Verdict::Drop);
        assert_eq!(lab.copies().len(), 1);
    });
}

/// The server answers an upload early, and the client has the answer before it has sent everything.
#[test]
fn last_bytes_of_an_answered_upload_complete_the_response() {
    alone(|lab| {
        let mut lab = lab.open();
        let upload = b"POST / HTTP/1.1\r\nContent-Length: 8\r\n\r\nbody";
        lab.client(lab.next_of_client(12).payload(upload));
        lab.server(lab.next_of_server(901).payload(&head(0)));
        lab.client(lab.next_of_client(13));
        assert_eq!(lab.flow().turn.phase, Phase::Body);
        lab.client(lab.next_of_client(14).payload(b"rest"));
        assert_eq!(
            (lab.flow().turn.phase, lab.flow().turn.number),
            (Phase::Idle, 1)
        );
        let next = lab.client(next_request(&lab));
        assert_eq!(next.verdict, Verdict::Next);
    });
}
