//! Requests and responses.

use std::time::Duration;

use objects::{
    flow::{Phase, Unprotected},
    plane::{Counter, Event, MARK_QUEUED, StoreKind, Verdict},
    timestamp::{State, Timestamp},
    window_update,
};
use wire::{IpPacket, Segment, SeqNumber};

use super::lab::*;
use crate::harness::*;

/// The state that the client sees.
fn state(segment: &Segment<'_>) -> State {
    Timestamp::from_wire(segment.timestamps().expect("always").value).state
}

pub(super) fn asked(lab: Lab) -> Lab {
    let mut lab = lab.open();
    lab.client(lab.next_of_client(12).payload(REQUEST_BYTES));
    assert_eq!(lab.flow().turn.phase, Phase::Asked);
    lab
}

/// A response of `body_len` bytes has begun; `sent` bytes of the body have left.
pub(super) fn answered(lab: Lab, body_len: u64, sent: usize) -> Lab {
    let mut lab = asked(lab);
    let payload = [head(body_len), vec![b'x'; sent]].concat();
    lab.server(lab.next_of_server(901).payload(&payload));
    assert_eq!(lab.flow().turn.phase, Phase::Body);
    lab
}

#[test]
fn pure_ack_of_a_guarded_request_is_withheld() {
    alone(|lab| {
        let mut lab = asked(lab);
        assert_eq!(
            lab.server(lab.next_of_server(901)).verdict,
            Verdict::Withheld
        );
        assert_eq!(lab.counted(Counter::Withheld), 1);
    });
}

#[test]
fn response_acknowledges_one_byte_of_the_request_and_tells_its_header() {
    alone(|lab| {
        let mut lab = asked(lab);
        let head = head(1000);
        let out = lab.server(lab.next_of_server(901).payload(&head));
        let seen = out.segment();
        assert_eq!((seen.seq(), seen.ack()), (lab.first(), lab.c + 2));
        let State::First { header_len, .. } = state(&seen) else {
            panic!("{seen:?}");
        };
        assert_eq!(usize::from(header_len), head.len());
    });
}

#[test]
fn whole_response_releases_the_request() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 4);
        let out = lab.client(lab.next_of_client(13));
        assert_eq!(out.verdict, Verdict::Next);
        let [ack] = &out.sent[..] else {
            panic!("{:?}", out.sent);
        };
        let seen = segment_of(ack);
        assert_eq!(seen.ack(), lab.c + 1 + length(REQUEST_BYTES));
        assert_eq!(seen.seq(), lab.flow().server.nxt);
        assert!(matches!(state(&seen), State::Agreed { .. }));
        assert_eq!(lab.flow().turn.number, 1);
    });
}

#[test]
fn second_response_tells_its_position() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 4);
        lab.client(lab.next_of_client(13));
        lab.client(lab.next_of_client(14).payload(REQUEST_BYTES));
        let out = lab.server(lab.next_of_server(910).payload(&head(50)));
        let seen = out.segment();
        assert!(matches!(state(&seen), State::Later { is_odd: true, .. }));
        // Two bytes in an odd turn.
        assert_eq!(seen.ack(), lab.c + 1 + length(REQUEST_BYTES) + 2);
        let body = vec![b'x'; 50];
        lab.server(lab.next_of_server(911).payload(&body));
        assert_eq!(lab.client(lab.next_of_client(15)).sent.len(), 1);
        assert_eq!(lab.events(), []);
    });
}

/// The reasons of a request that cannot be guarded.
#[test]
fn unrepeatable_request_is_unprotected() {
    let cases: [(&[u8], Unprotected); 6] = [
        (b"GET / HTTP/1.1\r\nHost:", Unprotected::SplitRequest),
        (b"\x16\x03\x01\x02\x00\x01", Unprotected::NotHttp),
        (
            b"GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n",
            Unprotected::Upgraded,
        ),
        (
            b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
            Unprotected::Upgraded,
        ),
        (
            b"GET / HTTP/1.1\r\nRange: bytes=1-2,4-5\r\n\r\n",
            Unprotected::Multipart,
        ),
        (
            b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            Unprotected::Method,
        ),
    ];
    for (request, reason) in cases {
        alone(|lab| {
            let mut lab = lab.open();
            lab.client(lab.next_of_client(12).payload(request));
            let key = lab.key;
            assert_eq!(lab.events(), [Event::Unprotected { key, reason }]);
            let out = lab.server(lab.next_of_server(901));
            assert_eq!(out.verdict, Verdict::Next);
            assert_eq!(out.segment().ack(), lab.flow().client.nxt);
        });
    }
}

/// The reasons of a response that cannot go on elsewhere.
#[test]
fn response_that_cannot_go_on_elsewhere_is_unprotected() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(2100));
    let part = "HTTP/1.1 206 P\r\nContent-Range: bytes 0-1/4\r\nContent-Length: 2\r\n\r\n";
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-", Unprotected::Header),
        ("HTTP/1.1 103 Early Hints\r\n\r\n", Unprotected::Header),
        (&long, Unprotected::Header),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            Unprotected::Chunked,
        ),
        (
            "HTTP/1.1 206 P\r\nContent-Type: multipart/byteranges; boundary=a\r\n\r\n",
            Unprotected::Multipart,
        ),
        (part, Unprotected::OwnRange),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc",
            Unprotected::Server,
        ),
    ];
    for (response, reason) in cases {
        alone(|lab| {
            let mut lab = asked(lab);
            let out = lab.server(lab.next_of_server(901).payload(response.as_bytes()));
            let key = lab.key;
            assert_eq!(lab.events(), [Event::Unprotected { key, reason }]);
            assert_eq!(out.segment().ack(), lab.c + 1 + length(REQUEST_BYTES));
        });
    }
}

#[test]
fn server_that_speaks_first_is_unprotected() {
    alone(|lab| {
        let mut lab = lab.open();
        lab.server(lab.next_of_server(901).payload(b"220 ready\r\n"));
        assert_eq!(lab.flow().unprotected, Some(Unprotected::Server));
    });
}

#[test]
fn response_without_a_body_leaves_the_client_idle() {
    let cases: [(&[u8], &str); 3] = [
        (
            b"HEAD / HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        ),
        (
            REQUEST_BYTES,
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        ),
        (
            REQUEST_BYTES,
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ),
    ];
    for (request, response) in cases {
        alone(|lab| {
            let mut lab = lab.open();
            lab.client(lab.next_of_client(12).payload(request));
            let out = lab.server(lab.next_of_server(901).payload(response.as_bytes()));
            // Nothing of an object is behind these heads, so another member has nothing to continue.
            let nxt = lab.flow().client.nxt;
            assert_eq!(
                (out.segment().ack(), lab.flow().turn.is_guarded),
                (nxt, false)
            );
            let out = lab.client(lab.next_of_client(13));
            assert_eq!(lab.flow().turn.phase, Phase::Idle);
            // The echo of the next request says that nothing was under way before.
            let [ack] = &out.sent[..] else {
                panic!("{:?}", out.sent);
            };
            assert_eq!(segment_of(ack).ack(), nxt);
            assert!(matches!(state(&segment_of(ack)), State::Agreed { .. }));
            let out = lab.server(lab.next_of_server(902));
            assert!(matches!(state(&out.segment()), State::Agreed { .. }));
            assert_eq!(lab.flow().unprotected, None);
        });
    }
}

#[test]
fn response_until_close_ends_with_the_fin() {
    alone(|lab| {
        let mut lab = asked(lab);
        let response = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody";
        lab.server(lab.next_of_server(901).payload(response));
        assert!(lab.client(lab.next_of_client(13)).sent.is_empty());
        lab.server(lab.next_of_server(902).flags(FIN_ACK).payload(b"end"));
        assert_eq!(lab.client(lab.next_of_client(14)).sent.len(), 1);
        assert_eq!(lab.flow().turn.phase, Phase::Idle);
    });
}

/// The client repeats a long request in several segments.
#[test]
fn request_longer_than_a_segment_is_unprotected_without_a_store() {
    let request_of = |len: usize| {
        let rest = len - "GET / HTTP/1.1\r\nX: \r\n\r\n".len();
        format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(rest)).into_bytes()
    };
    let split = Some(Unprotected::SplitRequest);
    for (store, len, unprotected) in [
        (StoreKind::None, 1448, None),
        (StoreKind::None, 1449, split),
        (StoreKind::Indexed, 1449, None),
        (StoreKind::Unindexed, 3000, None),
    ] {
        alone(|lab| {
            let mut lab = lab.open();
            lab.store(store);
            lab.client(lab.next_of_client(12).payload(&request_of(len)));
            assert_eq!(lab.flow().unprotected, unprotected, "{len}");
        });
    }
}

/// The body of a request is acknowledged as it comes: the client does not send the rest otherwise.
#[test]
fn request_with_a_body_is_acknowledged() {
    alone(|lab| {
        let mut lab = lab.open();
        let request = b"POST / HTTP/1.1\r\nContent-Length: 8\r\n\r\nbody";
        lab.client(lab.next_of_client(12).payload(request));
        let out = lab.server(lab.next_of_server(901));
        assert_eq!(out.segment().ack(), lab.c + 1 + length(request));
        lab.client(lab.next_of_client(13).payload(b"rest"));
        lab.server(lab.next_of_server(902).payload(&head(2)));
        lab.server(lab.next_of_server(903).payload(b"ok"));
        assert_eq!(lab.client(lab.next_of_client(14)).sent.len(), 1);
        assert_eq!(lab.flow().turn.number, 1);
        assert_eq!(lab.flow().unprotected, None);
    });
}

#[test]
fn client_of_an_unprotected_connection_gets_no_further_acknowledgement() {
    alone(|lab| {
        let mut lab = asked(lab);
        let response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        lab.server(lab.next_of_server(901).payload(response));
        assert_eq!(lab.flow().unprotected, Some(Unprotected::Chunked));
        assert!(lab.client(lab.next_of_client(13)).sent.is_empty());
    });
}

#[test]
fn later_response_beyond_the_position_is_unprotected() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 4);
        lab.client(lab.next_of_client(13));
        lab.client(lab.next_of_client(14).payload(REQUEST_BYTES));
        lab.server(lab.next_of_server(910).payload(&head(1 << 20)));
        let body = vec![b'x'; 3 << 10];
        for _ in 0..7 {
            lab.server(lab.next_of_server(911).payload(&body));
        }
        assert_eq!(lab.flow().unprotected, None);
        lab.server(lab.next_of_server(911).payload(&body));
        assert_eq!(lab.flow().unprotected, Some(Unprotected::LaterResponse));
    });
}

#[test]
fn retransmitted_request_is_a_duplicate_for_the_server() {
    alone(|lab| {
        let mut lab = answered(lab, 1000, 10);
        let again = segment(lab.c + 2, lab.flow().client.ack).timestamps(14, lab.value());
        let out = lab.client(again.payload(&REQUEST_BYTES[1..]));
        assert_eq!(out.verdict, Verdict::Next);
        let (key, seq) = (lab.key, lab.c + 2);
        assert_eq!(lab.events(), [Event::Repeated { key, seq }]);
        let dsack = [&timestamps(903, 14)[..], &[1, 1, 5, 10], &[0; 8]].concat();
        let out = lab.server(lab.next_of_server(903).options(&dsack));
        assert_eq!(out.verdict, Verdict::Withheld);
        let out = lab.server(lab.next_of_server(904).options(&dsack).payload(b"more"));
        assert_eq!(out.segment().option_bytes()[14..24], [1; 10]);
    });
}

/// A client that asks at once acknowledges the response with the next request.
#[test]
fn window_in_a_repeated_request_reaches_the_server() {
    alone(|lab| {
        let mut lab = answered(lab, 1000, 500);
        let shut = lab.next_of_client(13);
        lab.client(Spec {
            window: 0,
            ..shut.clone()
        });
        let repetition = Spec {
            seq: lab.c + 1,
            window: 900,
            ..shut
        };
        lab.client(repetition.payload(REQUEST_BYTES));
        let flow = lab.flow().clone();
        let update = window_update::after_repetition(lab.key, &flow).expect("an update");
        let ip = IpPacket::parse(&update).expect("a packet");
        let update = Segment::of(&ip).expect("a segment");
        assert_eq!((update.seq(), update.window()), (flow.client.nxt, 900));
        assert_eq!(update.ack(), flow.server.nxt - flow.server.delta);
        lab.server(lab.next_of_server(903).payload(b"on its way"));
        let update = window_update::after_repetition(lab.key, lab.flow());
        assert_eq!(update, None, "the server's TCP sends again by itself");
    });
}

#[test]
fn next_request_acknowledges_the_response_before() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 4);
        let out = lab.client(lab.next_of_client(13).payload(REQUEST_BYTES));
        assert!(out.sent.is_empty());
        assert_eq!(lab.events(), []);
        assert_eq!(
            (lab.flow().turn.phase, lab.flow().turn.number),
            (Phase::Asked, 1)
        );
        let out = lab.server(lab.next_of_server(910));
        let released = lab.c + 1 + length(REQUEST_BYTES);
        assert_eq!(
            (out.verdict, out.segment().ack()),
            (Verdict::Next, released)
        );
        assert_eq!(
            lab.server(lab.next_of_server(911)).verdict,
            Verdict::Withheld
        );
    });
}

#[test]
fn end_of_a_body_acknowledges_the_response() {
    alone(|lab| {
        let mut lab = lab.open();
        let request = b"POST / HTTP/1.1\r\nContent-Length: 8\r\n\r\nbody";
        lab.client(lab.next_of_client(12).payload(request));
        lab.server(lab.next_of_server(901).payload(&head(0)));
        lab.client(lab.next_of_client(13).payload(b"rest"));
        assert_eq!(lab.flow().turn.phase, Phase::Idle);
    });
}

/// A guarded response whose newest index is as far ahead of the newest echo as allowed.
fn exhausted(lab: Lab) -> Lab {
    let mut lab = answered(lab, 1000, 0);
    for tsval in 1..=40 {
        lab.server(lab.next_of_server(1000 + 100 * tsval).payload(b"x"));
    }
    let echoes = lab.flow().echoes.parts();
    assert_eq!(echoes.newest.steps_after(echoes.echoed), 30);
    lab
}

/// The hole behind which the client's echo stands still is filled.
#[test]
fn retransmission_leaves_without_an_index_for_a_new_state() {
    alone(|lab| {
        let mut lab = exhausted(lab);
        let (flow, echoed) = (lab.flow().clone(), lab.flow().echoes.parts().echoed);
        let echo = Timestamp::value(echoed, flow.states.newest);
        let pipelined = segment(flow.client.nxt, flow.client.ack).timestamps(12, echo);
        lab.client(pipelined.payload(REQUEST_BYTES).mark(MARK + MARK_QUEUED));
        assert_eq!(lab.flow().unprotected, Some(Unprotected::Pipelined));
        let news = lab.next_of_server(9000).payload(b"x");
        assert_eq!(lab.server(news).verdict, Verdict::Withheld);
        let hole = segment(lab.s + 1, lab.flow().client.nxt).timestamps(9001, 12);
        let out = lab.server(hole.payload(&head(1000)));
        assert_eq!(out.verdict, Verdict::Next);
        assert!(matches!(state(&out.segment()), State::First { .. }));
        lab.client(lab.next_of_client(13));
        let out = lab.server(lab.next_of_server(9002).payload(b"x"));
        assert_eq!(out.verdict, Verdict::Next);
        assert!(matches!(state(&out.segment()), State::Agreed { .. }));
    });
}

/// The newest index was in acknowledgements that are lost: nothing but the response would bring a newer echo.
#[test]
fn response_leaves_without_a_newer_echo() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 4);
        lab.client(lab.next_of_client(13));
        for tsval in 1..=40 {
            lab.server(lab.next_of_server(1000 + 100 * tsval));
        }
        let (flow, echoed) = (lab.flow().clone(), lab.flow().echoes.parts().echoed);
        let echo = Timestamp::value(echoed, flow.states.newest);
        let request = segment(flow.client.nxt, flow.client.ack).timestamps(14, echo);
        lab.client(request.payload(REQUEST_BYTES));
        let pure = segment(
            lab.flow().server.nxt - lab.flow().server.delta + 50,
            lab.c + 1,
        );
        lab.server(pure.timestamps(9001, 14));
        assert_eq!(lab.flow().server.nxt, flow.server.nxt);
        let out = lab.server(
            lab.next_of_server(9002)
                .payload(&[&head(4)[..], b"body"].concat()),
        );
        assert_eq!(out.verdict, Verdict::Next);
        assert!(matches!(state(&out.segment()), State::Later { .. }));
        assert_eq!(lab.client(lab.next_of_client(16)).sent.len(), 1);
    });
}

/// A client that reads no more has a closed window. The server's TCP asks for the window, and gives up without an
/// answer.
#[test]
fn probe_leaves_while_the_request_is_guarded() {
    alone(|lab| {
        let mut lab = answered(lab, 1000, 10);
        let flow = lab.flow().clone();
        let probe = segment(flow.server.nxt - flow.server.delta - 1, flow.client.nxt);
        let out = lab.server(probe.timestamps(950, 12));
        assert_eq!(out.verdict, Verdict::Next);
        assert_eq!(out.segment().ack(), lab.c + 2);
        assert_eq!(
            lab.server(lab.next_of_server(951)).verdict,
            Verdict::Withheld
        );
    });
}

/// A client of HTTP/1.0 may half-close behind its request. The acknowledgement at the end is of the FIN, too.
#[test]
fn fin_behind_the_request_is_acknowledged_with_the_response() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 4);
        let fin = segment(lab.flow().client.nxt, lab.flow().client.ack).flags(FIN_ACK);
        lab.client(fin.timestamps(13, lab.value()));
        assert_eq!(
            lab.server(lab.next_of_server(902)).verdict,
            Verdict::Withheld
        );
        let out = lab.client(lab.next_of_client(14));
        assert_eq!(
            segment_of(&out.sent[0]).ack(),
            lab.c + 2 + length(REQUEST_BYTES)
        );
    });
}

/// The client measures a round trip with the echo.
#[test]
fn acknowledgement_at_the_end_echoes_the_newest_timestamp() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 2);
        lab.client(lab.next_of_client(50));
        lab.server(lab.next_of_server(902).payload(b"xx"));
        let out = lab.client(lab.next_of_client(90));
        assert_eq!(segment_of(&out.sent[0]).timestamps().unwrap().echo, 90);
        let old = segment(lab.c + 1, lab.flow().client.ack).timestamps(60, lab.value());
        lab.client(old);
        assert_eq!(lab.flow().client.tsval, 90);
    });
}

#[test]
fn acknowledgement_at_the_end_is_made_of_any_options() {
    alone(|lab| {
        let mut lab = answered(lab.numbered(1000, 5000, true), 4, 4);
        let dsack = [&[5, 10, 1, 1][..], &[2; 8]].concat();
        let options = [timestamps(13, lab.value()), dsack].concat();
        let out = lab.client(lab.next_of_client(13).options(&options));
        let seen = segment_of(&out.sent[0]);
        assert_eq!(seen.option_bytes()[12..], [1; 12]);
        assert_eq!(seen.ack(), lab.c + 1 + length(REQUEST_BYTES));
        assert_eq!(out.segment().option_bytes()[12..14], [5, 10]);
    });
}

/// The client's process is gone, and its TCP answers a segment of the response.
#[test]
fn reset_at_the_unacknowledged_request_reaches_the_server() {
    alone(|lab| {
        let mut lab = answered(lab, 1000, 10);
        let received = lab.flow().client.nxt;
        let out = lab.client(segment(lab.c + 2, SeqNumber(0)).flags(RST));
        assert_eq!(out.segment().seq(), received);
        for other in [lab.c, lab.c + 3, received] {
            let out = lab.client(segment(other, SeqNumber(0)).flags(RST));
            assert_eq!(out.segment().seq(), other);
        }
    });
}

#[test]
fn fourth_repetition_of_a_request_releases_two_bytes() {
    for is_odd in [false, true] {
        alone(|lab| {
            let mut lab = answered(lab, if is_odd { 4 } else { 1000 }, 4);
            let mut first = lab.c + 1;
            if is_odd {
                lab.client(lab.next_of_client(13));
                first += length(REQUEST_BYTES);
                lab.client(lab.next_of_client(13).payload(REQUEST_BYTES));
                lab.server(lab.next_of_server(901).payload(&head(1000)));
            }
            let (before, after) = if is_odd { (2, 4) } else { (1, 3) };
            for number in 1..=10_u32 {
                let again = segment(first, lab.flow().client.ack).timestamps(14, lab.value());
                lab.client(again.payload(REQUEST_BYTES));
                let seq = first + if number > 4 { after } else { before };
                assert_eq!(lab.events(), [Event::Repeated { key: lab.key, seq }]);
                let out = lab.server(lab.next_of_server(902));
                if number == 4 {
                    assert_eq!(out.verdict, Verdict::Next);
                    assert_eq!(out.segment().ack(), first + after);
                } else {
                    assert_eq!(out.verdict, Verdict::Withheld);
                }
            }
            let out = lab.server(lab.next_of_server(903).payload(b"more"));
            assert_eq!(out.segment().ack(), first + after);
        });
    }
}

/// The server is slow, and the client repeats the request before there is an answer.
#[test]
fn repetitions_before_the_response_release_as_the_response_would() {
    alone(|lab| {
        let mut lab = asked(lab);
        for number in 1..=4 {
            let again = segment(lab.c + 1, lab.flow().client.ack).timestamps(14, lab.value());
            lab.client(again.payload(REQUEST_BYTES));
            let out = lab.server(lab.next_of_server(902));
            assert_eq!(out.verdict == Verdict::Next, number == 4);
        }
        assert_eq!(lab.flow().server.told, lab.c + 2);
        let out = lab.server(lab.next_of_server(903).payload(&head(9)));
        assert_eq!(out.segment().ack(), lab.c + 2);
    });
}

/// The acknowledgement of the request before was lost.
#[test]
fn repetition_of_the_request_before_does_not_count() {
    alone(|lab| {
        let mut lab = answered(lab, 4, 4);
        let before = segment(lab.c + 2, lab.flow().client.ack).timestamps(14, lab.value());
        lab.client(lab.next_of_client(13).payload(REQUEST_BYTES));
        for _ in 0..5 {
            lab.client(before.clone().payload(&REQUEST_BYTES[1..]));
        }
        assert_eq!(lab.events(), []);
        assert_eq!(lab.flow().turn.released, 0);
    });
}

/// The client's host was booted anew, and the client connects from the same port (RFC 5961, 4).
#[test]
fn syn_on_a_guarded_connection_is_answered() {
    alone(|lab| {
        let mut lab = answered(lab, 1000, 10);
        let syn = segment(lab.c + 77, SeqNumber(0)).flags(SYN);
        assert_eq!(lab.client(syn).verdict, Verdict::Next);
        let out = lab.server(lab.next_of_server(902));
        assert_eq!(
            (out.verdict, out.segment().ack()),
            (Verdict::Next, lab.c + 2)
        );
        assert_eq!(
            lab.server(lab.next_of_server(903)).verdict,
            Verdict::Withheld
        );
    });
}

/// The request is lost, and a pure ACK or a FIN comes behind the hole.
#[test]
fn request_behind_a_later_segment_is_guarded() {
    for flags in [ACK, FIN_ACK] {
        alone(|lab| {
            let mut lab = lab.open();
            let request = lab.next_of_client(12).payload(REQUEST_BYTES);
            let behind = lab.c + 1 + length(REQUEST_BYTES);
            let spec = segment(behind, lab.first()).flags(flags);
            lab.client(spec.timestamps(13, lab.value()));
            lab.client(request);
            assert_eq!(lab.flow().turn.phase, Phase::Asked);
            assert!(lab.flow().turn.is_guarded);
        });
    }
}

/// The client has the end of the response from a server that died, and the hole before it from this server.
#[test]
fn end_of_a_response_may_come_from_another_server() {
    alone(|lab| {
        let mut lab = answered(lab, 1000, 10);
        let mut flow = lab.flow().clone();
        flow.server.floor = flow.server.nxt;
        lab.write_flow(&flow, true);
        let end = flow.server.nxt + 990;
        let too_far = segment(flow.client.nxt, end + 2).timestamps(20, lab.value());
        assert!(lab.client(too_far).sent.is_empty());
        assert_eq!(lab.flow().client.ack, flow.client.ack);
        let whole = segment(flow.client.nxt, end).timestamps(21, lab.value());
        let out = lab.client(whole);
        assert_eq!(segment_of(&out.sent[0]).seq(), end);
        assert_eq!(out.segment().ack(), flow.server.nxt - flow.server.delta);
        let rest = segment(flow.server.nxt - flow.server.delta, flow.client.nxt);
        lab.server(rest.timestamps(950, 21).payload(&[b'x'; 990]));
        assert_eq!((lab.flow().unprotected, lab.flow().server.nxt), (None, end));
    });
}

/// The slot in an echo tells the beginning of a connection only for so long. A client may repeat its request two
/// minutes later.
#[test]
fn request_unacknowledged_for_too_long_loses_protection_with_the_next_ack() {
    let settings = dataplane::MemberSettings {
        withhold: Duration::from_millis(500),
        ..member_settings()
    };
    alone_with(&settings, |lab| {
        let mut lab = answered(lab, 4000, 100);
        let mut flow = lab.flow().clone();
        flow.turn.asked_at = Duration::ZERO;
        assert!(lab.write_flow(&flow, true));
        lab.client(lab.next_of_client(13));
        assert_eq!(lab.flow().unprotected, Some(Unprotected::WithheldTooLong));
        assert!(!lab.flow().turn.is_guarded);
    });
}

/// A client that connects long before its first request.
#[test]
fn first_request_is_unacknowledged_since_the_handshake() {
    alone(|lab| {
        let mut lab = lab.open();
        let mut flow = lab.flow().clone();
        flow.turn.asked_at = Duration::ZERO;
        assert!(lab.write_flow(&flow, true));
        lab.client(lab.next_of_client(12).payload(REQUEST_BYTES));
        assert_eq!(lab.flow().turn.asked_at, Duration::ZERO);
    });
}
