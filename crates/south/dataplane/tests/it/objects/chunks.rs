//! Responses in chunks.

use objects::{
    flow::{ChunkedBody, Flow, Phase, ResponseEnd, Unprotected},
    plane::{Event, StoreKind, Verdict},
};

use super::lab::*;
use super::turns::asked;
use crate::harness::*;

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nTransfer-Encoding: chunked\r\n\r\n";

fn alone_with_chunks(store: StoreKind, test: impl FnOnce(Lab) + Send) {
    let settings = dataplane::MemberSettings {
        takes_chunks: true,
        ..member_settings()
    };
    alone_with(&settings, |mut lab| {
        lab.store(store);
        test(lab);
    });
}

/// A connection whose client has the head of the response.
fn begun(lab: Lab) -> Lab {
    let mut lab = asked(lab);
    let spec = lab.next_of_server(901).payload(HEAD);
    assert_eq!(lab.server(spec).verdict, Verdict::Next);
    lab
}

fn say(lab: &mut Lab, bytes: &[u8]) {
    let spec = lab.next_of_server(902).payload(bytes);
    assert_eq!(lab.server(spec).verdict, Verdict::Next);
}

fn place(flow: &Flow) -> ChunkedBody {
    match flow.turn.end {
        ResponseEnd::AtLastChunk(body) => body,
        ResponseEnd::After(_) | ResponseEnd::AtClose => panic!("{:?}", flow.turn.end),
    }
}

#[test]
fn last_chunk_ends_the_response() {
    alone_with_chunks(StoreKind::Indexed, |lab| {
        let mut lab = begun(lab);
        assert!(lab.flow().turn.is_guarded);
        // A chunk that has what an end looks like, cut anywhere.
        let body = b"c\r\nhello\r\n0\r\n\r\n\r\n1;a=b\r\nx\r\n0\r\nA: trailer\r\n\r\n";
        for piece in body.chunks(5) {
            assert_eq!(lab.flow().turn.response_len(), None);
            say(&mut lab, piece);
        }
        let len = u64::from(length(HEAD) + length(body));
        assert_eq!(lab.flow().turn.response_len(), Some(len));
        lab.client(lab.next_of_client(13));
        let flow = lab.flow();
        assert_eq!((flow.turn.phase, flow.turn.number), (Phase::Idle, 1));
        assert_eq!(flow.unprotected, None);
    });
}

#[test]
fn bytes_that_are_no_chunks_end_the_protection() {
    let bodies: [(&[u8], Unprotected); 4] = [
        (b"5\r\nhelloworld\r\n", Unprotected::Chunked),
        (b"-1\r\n", Unprotected::Chunked),
        (b"0\r\nA: trailer\n\r\n", Unprotected::Chunked),
        (b"0\r\n\r\nHTTP/1.1", Unprotected::Server),
    ];
    for (body, reason) in bodies {
        alone_with_chunks(StoreKind::Indexed, |lab| {
            let mut lab = begun(lab);
            say(&mut lab, body);
            assert_eq!(lab.flow().unprotected, Some(reason));
            // The server must hear of everything that the client gets.
            say(&mut lab, b"more");
            let out = lab.client(lab.next_of_client(13));
            let flow = lab.flow();
            assert_eq!(out.segment().ack(), flow.server.nxt - flow.server.delta);
        });
    }
}

#[test]
fn response_in_chunks_needs_the_operators_word_and_a_store() {
    alone_with_chunks(StoreKind::None, |lab| {
        let lab = begun(lab);
        assert_eq!(lab.flow().unprotected, Some(Unprotected::Chunked));
    });
    alone(|mut lab| {
        lab.store(StoreKind::Indexed);
        let lab = begun(lab);
        assert_eq!(lab.flow().unprotected, Some(Unprotected::Chunked));
    });
}

/// A revived connection, whose client has this body but for 4 bytes: the server sends the response from the first byte
/// on. Returns the number of the first byte of the body, as the client sees the number.
fn revived(lab: &mut Lab, body: &[u8]) -> wire::SeqNumber {
    let mut flow = lab.flow().clone();
    flow.server.floor = flow.server.nxt + length(body) - 4;
    flow.server.nxt = flow.server.floor;
    flow.client.ack = flow.server.floor;
    flow.turn.sent += u64::from(length(body)) - 4;
    flow.turn.acked = flow.turn.sent;
    lab.write_flow(&flow, true);
    place(&flow).next
}

/// The server of such a connection says or does something else than the server before.
#[test]
fn response_that_ends_before_the_position_of_the_client_resets_the_client() {
    let body = b"5\r\nhello\r\n0\r\n\r\n";
    let none: &[u8] = b"";
    for (flags, bytes) in [
        (ACK, &b"0\r\n\r\n"[..]),
        (ACK, b"5\nhello"),
        (FIN_ACK, b"5\r\nhel"),
        (FIN_ACK, none),
        (RST.union(ACK), none),
    ] {
        alone_with_chunks(StoreKind::Indexed, |lab| {
            let mut lab = begun(lab);
            let begins = revived(&mut lab, body);
            let seq = begins - lab.flow().server.delta;
            let spec = segment(seq, lab.flow().client.nxt).timestamps(903, 12);
            let spec = spec.flags(flags).payload(bytes);
            assert_eq!(lab.server(spec).verdict, Verdict::Withheld);
            let key = lab.key;
            assert_eq!(lab.events(), [Event::Diverged { key }], "{bytes:?}");
        });
    }
}

#[test]
fn chunks_that_the_client_has_are_read() {
    alone_with_chunks(StoreKind::Indexed, |lab| {
        let mut lab = begun(lab);
        let body = b"5\r\nhello\r\n0\r\n\r\n";
        let end = lab.flow().server.nxt + length(body);
        let begins = revived(&mut lab, body);
        let from = |lab: &Lab, at: u32, payload: &[u8]| {
            let seq = begins + at - lab.flow().server.delta;
            segment(seq, lab.flow().client.nxt)
                .timestamps(903, 12)
                .payload(payload)
        };
        // Behind a hole: the server must send the bytes again, in order.
        let spec = from(&lab, 3, &body[3..8]);
        assert_eq!(lab.server(spec).verdict, Verdict::Withheld);
        let spec = from(&lab, 0, &body[..3]);
        assert_eq!(lab.server(spec).verdict, Verdict::RedirectIngress);
        assert_eq!(place(lab.flow()).next, begins + 3);
        // The client may have more than this server has sent.
        let ahead = segment(lab.flow().client.nxt, end).timestamps(14, 0);
        let out = lab.client(ahead);
        assert_eq!(lab.flow().client.ack, end);
        let unread = place(lab.flow()).next - lab.flow().server.delta;
        assert_eq!(out.segment().ack(), unread, "the server must send the rest");
        let spec = from(&lab, 3, &body[3..12]);
        assert_eq!(lab.server(spec).verdict, Verdict::RedirectIngress);
        let spec = from(&lab, 12, &body[12..]);
        lab.server(spec);
        let len = u64::from(length(HEAD) + length(body));
        assert_eq!(lab.flow().turn.end, ResponseEnd::After(len));
        lab.client(lab.next_of_client(15));
        assert_eq!(lab.flow().turn.phase, Phase::Idle);
    });
}
