//! Revivals with a record of the store.

use super::*;
use crate::queue::FLOW_LEN_MAX;
use crate::record::{Record, StoredOptions, StoredTurn};

fn request_end() -> SeqNumber {
    START + u32::try_from(REQUEST.len()).unwrap()
}

/// The record of the response of this turn, which begins at the first byte of the connection.
pub(super) fn record(number: u32) -> Record {
    let answer = StoredAnswer {
        start: isn() + 1,
        header_len: HEADER_LEN.into(),
        response_len: Some(u64::from(HEADER_LEN) + COMPLETE_LEN),
        first_byte: 0,
        acked: 0,
        version: version("\"a\""),
    };
    let turn = StoredTurn {
        number,
        request_start: START,
        request: REQUEST.into(),
        has_range: false,
        answer: Some(answer),
    };
    Record {
        generation: 1,
        owner: 2,
        client_isn: START - 1,
        server_isn: isn(),
        slot: slot(),
        options: StoredOptions {
            window_scale: Some(7),
            segment_size: 1440,
            has_sack: true,
            has_timestamps: true,
        },
        turns: vec![turn],
        inputs: None,
        chunks: None,
    }
}

fn stored_echo(number: u32) -> u32 {
    let state = State::stored(&rules().key, &key(), slot(), options(), number);
    Timestamp {
        index: Index::new(40),
        state,
    }
    .to_wire()
}

fn begin_with(
    record: Result<&Record, PositionError>,
    segment: (SeqNumber, SeqNumber, u32, &[u8]),
) -> Result<(Revival, Vec<Action>), Rejected> {
    let (seq, ack, echo, payload) = segment;
    let packet = packet(true, seq, ack, Flags::ACK, (50, echo), payload);
    seen(&packet, |segment| {
        Revival::with_record(key(), rules(), (segment, 2), record, NOW_SINCE_BOOT)
    })
}

fn reason(begun: Result<(Revival, Vec<Action>), Rejected>) -> Reason {
    begun.expect_err("no revival").reason
}

#[test]
fn stored_download_is_continued_without_the_clients_request() {
    let record = record(0);
    let segment = (request_end(), ack_at(3000), stored_echo(0), &[][..]);
    let (mut revival, actions) = begin_with(Ok(&record), segment).unwrap();
    assert_eq!(revival.offset(), Some(3000));
    let (request, _) = asked(&mut revival, &actions);
    assert!(request.contains("Range: bytes=2999-"), "{request}");
    let actions = answer(
        &mut revival,
        head(206, "\"a\"", 2999).as_bytes(),
        Flags::NONE,
    );
    let flow = spliced(&actions);
    // The client may hold the request on, as with a store that has no list.
    assert!(flow.is_stored() && !flow.is_released());
    assert_eq!(flow.server.told, START + 1);
    assert_eq!(flow.turn.acked, u64::from(HEADER_LEN) + 3000);
    assert_eq!(flow.states.stored.bits(), stored_echo(0) % (1 << 26));
}

/// A timestamp tells a scale of at most 8: the server would use a fourth of this client's window.
#[test]
fn server_gets_the_options_of_the_record() {
    let mut record = record(0);
    record.options.window_scale = Some(10);
    record.options.segment_size = 1460;
    let segment = (request_end(), ack_at(3000), stored_echo(0), &[][..]);
    let (_, actions) = begin_with(Ok(&record), segment).unwrap();
    seen(&to_server(&actions), |syn| {
        let options = SynOptions::parse(syn.option_bytes());
        let agreed = (options.window_scale, options.mss);
        assert_eq!(agreed, (Some(10), Some(1460)));
    });
}

#[test]
fn client_that_holds_its_request_keeps_it_after_a_revival() {
    let record = record(0);
    let repeated = &REQUEST.as_bytes()[1..];
    let segment = (START + 1, ack_at(3000), stored_echo(0), repeated);
    let (mut revival, actions) = begin_with(Ok(&record), segment).unwrap();
    asked(&mut revival, &actions);
    let actions = answer(
        &mut revival,
        head(206, "\"a\"", 2999).as_bytes(),
        Flags::NONE,
    );
    let flow = spliced(&actions);
    assert!(flow.is_stored() && !flow.is_released());
    assert_eq!(flow.server.told, START + 1);
}

#[test]
fn other_version_than_that_of_the_record_is_refused() {
    let record = record(0);
    let segment = (request_end(), ack_at(3000), stored_echo(0), &[][..]);
    let (mut revival, actions) = begin_with(Ok(&record), segment).unwrap();
    asked(&mut revival, &actions);
    let actions = answer(
        &mut revival,
        head(206, "\"b\"", 2999).as_bytes(),
        Flags::NONE,
    );
    assert!(matches!(
        refusal(&actions),
        Reason::Answer(Refusal::Version(_))
    ));
}

#[test]
fn stored_echo_without_its_record_is_refused() {
    let segment = (request_end(), ack_at(3000), stored_echo(0), &[][..]);
    for error in [PositionError::RecordMissing, PositionError::StoreLost] {
        let begun = begin_with(Err(error), segment);
        assert_eq!(reason(begun), Reason::Position(error));
    }
    let others = [
        record(2),
        Record {
            server_isn: isn() + 1,
            ..record(0)
        },
        Record {
            turns: vec![],
            ..record(0)
        },
    ];
    for other in others {
        let begun = begin_with(Ok(&other), segment);
        let expected = Reason::Position(PositionError::OtherRecord);
        assert_eq!(reason(begun), expected);
    }
}

/// 256 s are a round of slots: the server's number is the same, and the clock of the client's numbers has gone on.
#[test]
fn record_of_a_connection_on_the_same_port_a_round_before_is_refused() {
    for (number, later) in [
        (0, 64_000_000),
        (0, 1 << 31),
        (0, 3 << 30),
        (1, 64_000_000),
        (1, 3 << 30),
    ] {
        let record = record(number);
        let segment = (request_end() + later, ack_at(3000), stored_echo(0), &[][..]);
        let refused = reason(begin_with(Ok(&record), segment));
        let is_other = matches!(
            refused,
            Reason::Position(PositionError::OtherRecord | PositionError::NextRequest)
        );
        assert!(is_other, "{number}, {later}: {refused}");
    }
}

#[test]
fn stored_echo_with_another_tag_is_refused() {
    let record = record(0);
    let segment = (request_end(), ack_at(3000), stored_echo(0) ^ 1, &[][..]);
    let begun = begin_with(Ok(&record), segment);
    assert_eq!(reason(begun), Reason::Position(PositionError::OtherRecord));
}

#[test]
fn client_with_the_whole_stored_response_is_idle() {
    let record = record(0);
    let end = ack_at(u32::try_from(COMPLETE_LEN).unwrap());
    let silent = begin_with(Ok(&record), (request_end(), end, stored_echo(0), &[]));
    let Err(Rejected { reason, reset }) = silent else {
        panic!("{silent:?}");
    };
    assert_eq!((reason, reset), (Reason::Idle, None));
    let next = (request_end(), end, stored_echo(0), REQUEST.as_bytes());
    let (mut revival, actions) = begin_with(Ok(&record), next).unwrap();
    assert_eq!(revival.offset(), None);
    let next_end = request_end() + u32::try_from(REQUEST.len()).unwrap();
    let (request, _) = asked_up_to(next_end, &mut revival, &actions);
    assert_eq!(request, REQUEST);
}

/// The request of the newer record is the client's: nothing of its response has come in order.
#[test]
fn client_that_echoes_the_response_before_the_record_is_idle() {
    let record = record(1);
    let segment = (START, isn() + 1, stored_echo(0), REQUEST.as_bytes());
    let (revival, _) = begin_with(Ok(&record), segment).unwrap();
    assert_eq!(revival.offset(), None);
}

#[test]
fn stored_download_with_a_part_of_the_header_or_another_request_is_refused() {
    let record = record(0);
    let behind_queue = request_end() + u32::try_from(FLOW_LEN_MAX).unwrap() + 1;
    let cases = [
        (request_end(), isn() + 100, PositionError::HeaderPart),
        (behind_queue, ack_at(5), PositionError::NextRequest),
        (request_end(), isn() - 7, PositionError::OtherRecord),
    ];
    for (seq, ack, error) in cases {
        let begun = begin_with(Ok(&record), (seq, ack, stored_echo(0), &[]));
        assert_eq!(reason(begun), Reason::Position(error));
    }
}

/// The client has sent requests behind the request of the record, and says so with each segment.
#[test]
fn stored_download_of_a_client_that_pipelines_is_continued() {
    let record = record(0);
    for behind in [1, 100, u32::try_from(FLOW_LEN_MAX).unwrap()] {
        let segment = (
            request_end() + behind,
            ack_at(3000),
            stored_echo(0),
            &[][..],
        );
        let (revival, actions) = begin_with(Ok(&record), segment).unwrap();
        assert_eq!(revival.offset(), Some(3000));
        assert!(matches!(actions[..], [Action::ToServer(_)]));
    }
}

/// Three bytes of the request are acknowledged: the client may be further than its echo tells.
#[test]
fn later_echo_of_a_long_response_needs_the_record() {
    let record = record(1);
    let state = State::Later {
        options: options(),
        is_odd: true,
        position: LaterPosition::Near {
            distance: 0,
            tag: 0,
        },
    };
    let index = Index::new(40);
    let echo = Timestamp { index, state }.to_wire();
    let repeated = &REQUEST.as_bytes()[4..];
    let segment = (START + 4, ack_at(9000), echo, repeated);
    let (revival, _) = begin_with(Ok(&record), segment).unwrap();
    assert_eq!(revival.offset(), Some(9000));
    let begun = begin_with(Err(PositionError::RecordMissing), segment);
    assert_eq!(
        reason(begun),
        Reason::Position(PositionError::RecordMissing)
    );
}

/// A dynamic response without validators, of a server that ignores ranges or not.
#[test]
fn response_with_inputs_is_asked_with_the_inputs() {
    let mut record = record(0);
    record.inputs = Some(b"seed=7".to_vec());
    let answer = record.turns[0].answer.as_mut().unwrap();
    answer.version.etag = None;
    answer.version.last_modified = None;
    let segment = (request_end(), ack_at(3000), stored_echo(0), &[][..]);
    let (mut revival, actions) = begin_with(Ok(&record), segment).unwrap();
    let (request, _) = asked(&mut revival, &actions);
    assert!(request.contains("\r\nX-TRODS: seed=7\r\n"), "{request}");
    assert!(request.contains("Range: bytes=2999-"), "{request}");
    let whole = format!("HTTP/1.1 200 x\r\nContent-Length: {COMPLETE_LEN}\r\n\r\n");
    let actions = answer_of(&mut revival, &whole);
    assert_eq!(spliced(&actions).turn.acked, u64::from(HEADER_LEN) + 3000);
    // Of other inputs the length may differ.
    let (mut revival, actions) = begin_with(Ok(&record), segment).unwrap();
    asked(&mut revival, &actions);
    let shorter = format!(
        "HTTP/1.1 200 x\r\nContent-Length: {}\r\n\r\n",
        COMPLETE_LEN - 1
    );
    assert!(matches!(
        refusal(&answer_of(&mut revival, &shorter)),
        Reason::Answer(Refusal::Version(_))
    ));
}

fn answer_of(revival: &mut Revival, head: &str) -> Vec<Action> {
    answer(revival, head.as_bytes(), Flags::NONE)
}
