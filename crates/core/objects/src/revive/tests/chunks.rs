//! Revivals of responses in chunks.

use http1::version::ObjectVersion;

use super::records::record;
use super::*;
use crate::flow::ResponseEnd;
use crate::record::{Beginning, Record};

/// Three chunks, and the last.
const BODY: &str = "a\r\n0123456789\r\n3\r\n\r\n0\r\n14\r\nabcdefghijklmnopqrst\r\n0\r\n\r\n";
/// Bytes of the body that the client has, within the last chunk with data.
const CLIENT_BYTES: u32 = 30;
const HEAD: &str = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nTransfer-Encoding: chunked\r\n\r\n";

fn chunked(version: ObjectVersion) -> Record {
    let mut record = record(0);
    let answer = record.turns[0].answer.as_mut().unwrap();
    answer.version = ObjectVersion {
        complete_len: None,
        ..version
    };
    answer.response_len = None;
    record.chunks = Some(Beginning::of(&BODY.as_bytes()[..20]));
    record
}

fn taking_chunks() -> Rules {
    let rules = rules();
    Rules {
        judge: JudgeRules {
            takes_chunks: true,
            ..rules.judge
        },
        ..rules
    }
}

/// The server has the request of a client that has so many bytes.
fn begun_with(rules: Rules, record: &Record, offset: u32) -> (Revival, String) {
    let end = START + u32::try_from(REQUEST.len()).unwrap();
    let state = State::stored(&rules.key, &key(), slot(), options(), 0);
    let index = Index::new(40);
    let echo = Timestamp { index, state }.to_wire();
    let segment = packet(true, end, ack_at(offset), Flags::ACK, (50, echo), &[]);
    let begun = seen(&segment, |segment| {
        Revival::with_record(key(), rules, (segment, 2), Ok(record), NOW_SINCE_BOOT)
    });
    let (mut revival, actions) = begun.unwrap();
    let (request, _) = asked(&mut revival, &actions);
    (revival, request)
}

fn begun(offset: u32) -> Revival {
    begun_with(taking_chunks(), &chunked(version("\"a\"")), offset).0
}

fn answered(revival: &mut Revival, head: &str, body: &str) -> Vec<Action> {
    answer(revival, [head, body].concat().as_bytes(), Flags::NONE)
}

#[test]
fn response_in_chunks_is_asked_whole_and_read_to_the_end() {
    let (mut revival, request) =
        begun_with(taking_chunks(), &chunked(version("\"a\"")), CLIENT_BYTES);
    assert_eq!(request, REQUEST, "no range");
    let come = &BODY[..40];
    let actions = answered(&mut revival, HEAD, come);
    let flow = spliced(&actions);
    let first_needed = SERVER_ISN + 1 + u32::try_from(HEAD.len()).unwrap() + CLIENT_BYTES;
    assert_eq!(first_needed + flow.server.delta, ack_at(CLIENT_BYTES));
    let ResponseEnd::AtLastChunk(mut body) = flow.turn.end else {
        panic!("{:?}", flow.turn.end);
    };
    assert_eq!(body.next, ack_at(40));
    let rest = &BODY.as_bytes()[40..];
    assert_eq!(body.chunks.take(rest), Ok(rest.len()));
    assert!(body.chunks.is_done());
}

#[test]
fn response_in_chunks_that_has_come_whole_ends_there() {
    let mut revival = begun(CLIENT_BYTES);
    let flow = spliced(&answered(&mut revival, HEAD, BODY)).clone();
    let len = u64::from(HEADER_LEN) + u64::try_from(BODY.len()).unwrap();
    assert_eq!(flow.turn.end, ResponseEnd::After(len));
    assert_eq!(flow.turn.phase, Phase::Body);

    let all = u32::try_from(BODY.len()).unwrap();
    let mut revival = begun(all);
    let flow = spliced(&answered(&mut revival, HEAD, BODY)).clone();
    assert_eq!(flow.turn.phase, Phase::Idle, "the client has everything");
}

#[test]
fn verdict_waits_for_as_much_as_the_record_has() {
    let mut revival = begun(CLIENT_BYTES);
    let actions = answered(&mut revival, HEAD, &BODY[..19]);
    let come = SERVER_ISN + 1 + u32::try_from(HEAD.len() + 19).unwrap();
    seen(&to_server(&actions), |segment| {
        assert_eq!(segment.ack(), come, "the server may wait for that");
    });
    let actions = answered(&mut revival, HEAD, &BODY[..20]);
    spliced(&actions);

    // Bytes that the client lacks are not acknowledged: the server sends these again.
    let mut revival = begun(5);
    let actions = answered(&mut revival, HEAD, &BODY[..19]);
    let known = SERVER_ISN + 1 + u32::try_from(HEAD.len() + 5).unwrap();
    seen(&to_server(&actions), |segment| {
        assert_eq!(segment.ack(), known)
    });
}

#[test]
fn other_chunks_or_another_form_are_refused() {
    let other_lengths = "5\r\n01234\r\n5\r\n56789\r\n";
    let len = HEAD.replace("Transfer-Encoding: chunked", "Content-Length: 33");
    let part = HEAD.replace("200", "206") + BODY;
    let other_tag = HEAD.replace("\"a\"", "\"b\"");
    let malformed = format!("{}xyz\r\n", &BODY[..20]);
    let longer = format!("{BODY}more");
    for (head, body) in [
        (HEAD, other_lengths),
        (HEAD, &malformed),
        (HEAD, &longer),
        (&len, BODY),
        (&part, ""),
        (&other_tag, BODY),
    ] {
        let mut revival = begun(CLIENT_BYTES);
        let actions = answered(&mut revival, head, body);
        refusal(&actions);
    }
    // The client has more than the response.
    let mut revival = begun(u32::try_from(BODY.len()).unwrap() + 1);
    let actions = answered(&mut revival, HEAD, BODY);
    refusal(&actions);
    // The operator does not say that the chunks are the same.
    let (mut revival, _) = begun_with(rules(), &chunked(version("\"a\"")), CLIENT_BYTES);
    let actions = answered(&mut revival, HEAD, BODY);
    refusal(&actions);
}

#[test]
fn chunks_without_validators_need_inputs() {
    let none = ObjectVersion {
        etag: None,
        ..version("")
    };
    let head = HEAD.replace("ETag: \"a\"\r\n", "");
    let mut record = chunked(none);
    let (mut revival, _) = begun_with(taking_chunks(), &record, CLIENT_BYTES);
    refusal(&answered(&mut revival, &head, BODY));
    record.inputs = Some(b"7".to_vec());
    let (mut revival, request) = begun_with(taking_chunks(), &record, CLIENT_BYTES);
    assert!(request.contains("X-TRODS: 7\r\n"), "{request}");
    spliced(&answered(&mut revival, &head, BODY));
}
