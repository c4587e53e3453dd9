mod chunks;
mod exchange;
mod numbers;
mod records;

use std::format;
use std::string::String;
use std::vec;

use http1::version::VersionCheck;
use wire::{ChecksumMode, Flags, OptionsBuffer, SackBlock, SackBlocks, SegmentSpec, TcpOption};

use super::*;
use crate::flow::{Mode, Phase};
use crate::head::version_hash;
use crate::isn::{self, Slot};
use crate::timestamp::index::Index;
use crate::timestamp::{LaterPosition, State, version_word};
use crate::window_update;

use exchange::*;

#[test]
fn download_is_continued_at_the_clients_byte() {
    let (mut revival, actions) = repeat(REQUEST, ack_at(3000), first_echo(0));
    assert_eq!(
        (revival.offset(), revival.target()),
        (Some(3000), Some("/large"))
    );
    let (request, _) = asked(&mut revival, &actions);
    assert_eq!(
        request,
        "GET /large HTTP/1.1\r\nHost: pool\r\nRange: bytes=2999-\r\n\r\n"
    );
    let head = head(206, "\"a\"", 2999);
    let body = vec![b'x'; 2000];
    let actions = answer(
        &mut revival,
        &[head.as_bytes(), &body].concat(),
        Flags::NONE,
    );
    let flow = spliced(&actions);
    let head_len = u32::try_from(head.len()).unwrap();
    // Behind the byte that the client has.
    let first_body_byte = SERVER_ISN + 1 + head_len + 1;
    assert_eq!(first_body_byte + flow.server.delta, ack_at(3000));
    assert_eq!(
        (flow.server.floor, flow.server.told),
        (ack_at(3000), START + 1)
    );
    assert_eq!(
        (flow.mode, flow.turn.phase, flow.turn.is_guarded),
        (Mode::Served, Phase::Body, true)
    );
    assert_eq!(
        flow.turn.response_len(),
        Some(u64::from(HEADER_LEN) + COMPLETE_LEN)
    );
    assert_eq!(flow.turn.acked, u64::from(HEADER_LEN) + 3000);
    assert_eq!(flow.incarnation, 3);
    seen(&to_server(&actions), |ack| {
        assert_eq!(ack.ack(), first_body_byte, "in the client's name")
    });
    let mut next = ack_at(3000);
    for action in &actions {
        let Action::ToClient(packet) = action else {
            continue;
        };
        next = seen(packet, |segment| {
            assert_eq!(
                (segment.seq(), segment.ack()),
                (next, START + 1),
                "the request stays unacknowledged"
            );
            assert!(segment.payload().iter().all(|byte| *byte == b'x'));
            let value = segment.timestamps().unwrap().value;
            assert_eq!(
                value % (1 << 26),
                first_echo(0) % (1 << 26),
                "a second death finds the same state"
            );
            assert_eq!(Index::of_wire(value).steps_after(Index::new(40)), 30);
            segment.end_seq()
        });
    }
    assert_eq!(next, ack_at(4999));
    assert!(revival.is_over());
}

#[test]
fn paused_client_is_continued_when_its_window_opens() {
    let request = &REQUEST.as_bytes()[1..];
    let segment = |window, payload: &[u8]| {
        let numbers = (START + 1, ack_at(3000));
        packet_with_window(
            window,
            true,
            numbers,
            Flags::ACK,
            (50, first_echo(0)),
            payload,
        )
    };
    let (mut revival, first) = seen(&segment(0, request), |segment| {
        Revival::new(key(), rules(), segment, 2, NOW_SINCE_BOOT).unwrap()
    });
    let later = NOW_SINCE_BOOT + Duration::from_secs(100);
    let repeated = seen(&segment(0, request), |it| revival.on_client(it, later));
    for actions in [&first, &repeated] {
        assert!(
            matches!(actions[..], [Action::ToClient(_)]),
            "the pauses between repetitions stay short: {actions:?}"
        );
    }
    assert!(seen(&segment(0, b""), |it| revival.on_client(it, later)).is_empty());
    assert_eq!(revival.target(), Some("/large"));
    assert_eq!(revival.on_time(later + Duration::from_secs(149)), []);
    let actions = seen(&segment(1, b""), |it| revival.on_client(it, later));
    let (request, _) = asked(&mut revival, &actions);
    assert!(request.contains("Range: bytes=2999-"), "{request}");
}

#[test]
fn end_of_a_short_rest_comes_with_the_close_of_the_server() {
    let (mut revival, actions) = repeat(REQUEST, ack_at(9990), first_echo(0));
    asked(&mut revival, &actions);
    let bytes = format!("{}x0123456789", head(206, "\"a\"", 9989));
    let actions = answer(&mut revival, bytes.as_bytes(), Flags::FIN);
    let Some(Action::ToClient(last)) = actions.last() else {
        panic!("{actions:?}")
    };
    seen(last, |segment| {
        assert_eq!(segment.payload(), b"0123456789");
        assert!(segment.flags().contains(Flags::FIN));
    });
    assert_eq!(spliced(&actions).server.nxt, ack_at(10_001));
}

#[test]
fn server_of_a_client_with_a_closed_window_sends_the_bytes_before_the_clients() {
    for (first, missing_units) in [(2999, 1), (0, 24)] {
        let (mut revival, actions) = repeat(REQUEST, ack_at(3000), first_echo(0));
        asked(&mut revival, &actions);
        let end = START + u32::try_from(REQUEST.len()).unwrap();
        let stamps = (50, first_echo(0));
        let full = packet_with_window(0, true, (end, ack_at(3000)), Flags::ACK, stamps, b"");
        let none = seen(&full, |segment| revival.on_client(segment, NOW_SINCE_BOOT));
        assert_eq!(none, Vec::new());
        let head = match first {
            0 => head(200, "\"a\"", 0),
            first => head(206, "\"a\"", first),
        };
        let actions = answer(&mut revival, head.as_bytes(), Flags::NONE);
        let flow = spliced(&actions);
        // The next repetition tells the window at the client's position.
        let update = window_update::after_repetition(key(), flow).unwrap();
        seen(&update, |ack| {
            assert_eq!(ack.ack(), ack_at(3000) - flow.server.delta);
            assert_eq!((ack.seq(), ack.window()), (end, 0));
        });
        seen(&to_server(&actions), |ack| {
            let head_end = SERVER_ISN + 1 + u32::try_from(head.len()).unwrap();
            assert_eq!((ack.ack(), ack.window()), (head_end, missing_units));
        });
    }
}

#[test]
fn server_that_ignores_the_range_is_read_up_to_the_clients_byte() {
    let (mut revival, actions) = repeat(REQUEST, ack_at(3000), first_echo(0));
    asked(&mut revival, &actions);
    let head = head(200, "\"a\"", 0);
    let actions = answer(
        &mut revival,
        &[head.as_bytes(), &[b'y'; 500]].concat(),
        Flags::NONE,
    );
    let flow = spliced(&actions);
    let needed = SERVER_ISN + 1 + u32::try_from(head.len()).unwrap() + 3000;
    assert_eq!(
        (needed + flow.server.delta, flow.server.floor),
        (ack_at(3000), ack_at(3000))
    );
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::ToClient(_))),
        "no byte before the client's byte"
    );
    let known = SERVER_ISN + 1 + u32::try_from(head.len() + 500).unwrap();
    seen(&to_server(&actions), |ack| {
        assert_eq!(ack.ack(), known);
        let room = 2500_u16.div_ceil(1 << options().window_scale());
        assert_eq!(ack.window(), 1000 + room, "also if the client's is shut");
    });
}

#[test]
fn other_version_and_other_part_are_reset() {
    let refused = |bytes: String| {
        let (mut revival, actions) = repeat(REQUEST, ack_at(3000), first_echo(0));
        asked(&mut revival, &actions);
        refusal(&answer(&mut revival, bytes.as_bytes(), Flags::NONE)).clone()
    };
    // One of 64 other versions has the same tag, and version b has not.
    assert_eq!(refused(head(206, "\"b\"", 2999)), Reason::Version);
    assert_eq!(
        refused(head(206, "\"a\"", 3000)),
        Reason::Answer(Refusal::Part)
    );
    assert!(matches!(
        refused("HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n".into()),
        Reason::Answer(Refusal::Gone { status: 404 })
    ));
    assert!(matches!(
        refused("HTTP/1.1 206 x\nETag: \"a\"\r\n\r\n".into()),
        Reason::Answer(Refusal::Doubt(_))
    ));
}

/// A server whose own servers are not there yet.
#[test]
fn failing_server_is_asked_for_a_while() {
    const FAILURE: &[u8] = b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n";
    let start = || repeat(REQUEST, ack_at(3000), first_echo(0));
    let fail = |revival: &mut Revival, actions: &[Action]| {
        asked(revival, actions);
        answer(revival, FAILURE, Flags::NONE)
    };
    let (mut revival, mut actions) = start();
    let mut pauses = Duration::ZERO;
    for pause in FAILURE_PAUSES {
        let resets = fail(&mut revival, &actions);
        assert_eq!(resets.len(), 2, "the failed connection is over: {resets:?}");
        pauses += pause;
        assert_eq!(revival.deadline(), NOW_SINCE_BOOT + pause);
        actions = revival.on_time(revival.deadline());
    }
    assert!(pauses < Duration::from_secs(1));
    assert_eq!(refusal(&fail(&mut revival, &actions)), &Reason::NoServer);

    let (mut revival, actions) = start();
    fail(&mut revival, &actions);
    let actions = revival.on_time(revival.deadline());
    let (request, _) = asked(&mut revival, &actions);
    assert!(request.contains("Range: bytes=2999-"), "{request}");
    let whole = head(206, "\"a\"", 2999);
    assert_eq!(
        spliced(&answer(&mut revival, whole.as_bytes(), Flags::NONE))
            .turn
            .acked,
        u64::from(HEADER_LEN) + 3000
    );
}

#[test]
fn client_that_has_everything_hears_that_the_request_has_arrived() {
    let (mut revival, actions) = repeat(REQUEST, ack_at(10_000), first_echo(0));
    asked(&mut revival, &actions);
    let last_byte = format!("{}z", head(206, "\"a\"", 9999));
    let actions = answer(&mut revival, last_byte.as_bytes(), Flags::NONE);
    let flow = spliced(&actions);
    assert_eq!(
        (flow.turn.phase, flow.turn.is_guarded),
        (Phase::Idle, false)
    );
    let end = SERVER_ISN + 1 + u32::try_from(last_byte.len()).unwrap();
    assert_eq!(
        end + flow.server.delta,
        ack_at(10_000),
        "no byte reaches the client again"
    );
    let Some(Action::ToClient(told)) = actions.last() else {
        panic!("{actions:?}")
    };
    seen(told, |segment| {
        assert_eq!(segment.ack(), START + u32::try_from(REQUEST.len()).unwrap());
        assert!(segment.payload().is_empty());
    });
}

/// 416 does not tell whether the client has all of another version, or of this one.
#[test]
fn object_that_is_shorter_than_the_clients_part_is_reset() {
    for complete_len in [10_000, 3_000] {
        let (mut revival, actions) = repeat(REQUEST, ack_at(10_000), first_echo(0));
        asked(&mut revival, &actions);
        let refused = format!(
            "HTTP/1.1 416 x\r\nContent-Range: bytes */{complete_len}\r\nContent-Length: 0\r\n\r\n"
        );
        let actions = answer(&mut revival, refused.as_bytes(), Flags::NONE);
        let expected = Reason::Answer(Refusal::Condition { status: 416 });
        assert_eq!(refusal(&actions), &expected);
    }
}

#[test]
fn request_of_an_idle_client_is_not_asked_before_the_pool_has_settled() {
    let rules = Rules {
        settled_at: NOW_SINCE_BOOT + Duration::from_millis(1),
        ..rules()
    };
    let ack = isn() + 1;
    let stamps = (50, idle_echo());
    let segment = packet(true, START, ack, Flags::ACK, stamps, REQUEST.as_bytes());
    seen(&segment, |segment| {
        let begun = Revival::new(key(), rules, segment, 2, NOW_SINCE_BOOT);
        let (mut revival, actions) = begun.unwrap();
        assert_eq!(actions, []);
        to_server(&revival.on_client(segment, rules.settled_at));
    });
}

/// The request before was lost with the server, and the client has sent two.
#[test]
fn later_request_of_an_idle_client_waits_for_the_first() {
    let end = START + u32::try_from(REQUEST.len()).unwrap();
    let ack = isn() + 1;
    let (mut revival, actions) = begin(REQUEST.as_bytes(), end, ack, idle_echo()).unwrap();
    assert_eq!(actions, []);
    let stamps = (51, idle_echo());
    let first = packet(true, START, ack, Flags::ACK, stamps, REQUEST.as_bytes());
    let actions = seen(&first, |segment| revival.on_client(segment, NOW_SINCE_BOOT));
    asked(&mut revival, &actions);
}

#[test]
fn revival_without_a_request_ends() {
    let (mut revival, actions) = begin(&[], START + 5, ack_at(10), first_echo(0)).unwrap();
    assert_eq!(actions, []);
    let end = revival.deadline();
    assert_eq!(end, NOW_SINCE_BOOT + CLIENT_PAUSE_MAX);
    let reset = None;
    let reason = Reason::Silent;
    assert_eq!(revival.on_time(end), [Action::Refuse { reason, reset }]);
}

#[test]
fn own_range_of_the_client_is_continued() {
    let text = "GET /large HTTP/1.1\r\nRange: bytes=1000-\r\n\r\n";
    let (mut revival, actions) = repeat(text, ack_at(500), first_echo(1000));
    let end = START + u32::try_from(text.len()).unwrap();
    let (request, _) = asked_up_to(end, &mut revival, &actions);
    assert_eq!(request, "GET /large HTTP/1.1\r\nRange: bytes=1499-\r\n\r\n");
    let head = head(206, "\"a\"", 1499);
    let actions = answer(&mut revival, head.as_bytes(), Flags::NONE);
    let part_len = COMPLETE_LEN - 1000;
    assert_eq!(
        spliced(&actions).turn.response_len(),
        Some(u64::from(HEADER_LEN) + part_len)
    );
}

#[test]
fn request_of_which_the_beginning_was_acknowledged_is_completed() {
    for released in [1_u8, 3] {
        let rest = &REQUEST.as_bytes()[usize::from(released)..];
        let (mut revival, actions) = begin(
            rest,
            START + u32::from(released),
            ack_at(3000),
            first_echo(0),
        )
        .unwrap();
        let (request, _) = asked(&mut revival, &actions);
        assert!(request.starts_with("GET /large HTTP/1.1\r\n"), "{request}");
        let actions = answer(
            &mut revival,
            head(206, "\"a\"", 2999).as_bytes(),
            Flags::NONE,
        );
        assert_eq!(spliced(&actions).server.told, START + u32::from(released));
    }
}

/// A revival that begins with a client's segment that has a SACK block, from there to there behind its acknowledgement.
fn begun_with_hole(
    seq: SeqNumber,
    ack: SeqNumber,
    echo: u32,
    payload: &[u8],
    (left, right): (u32, u32),
) -> Vec<Action> {
    let block = SackBlock {
        left: ack + left,
        right: ack + right,
    };
    let mut options = OptionsBuffer::new();
    for option in [
        TcpOption::Timestamps { value: 50, echo },
        TcpOption::Sack(SackBlocks::new(&[block]).unwrap()),
    ] {
        options.push(&option).unwrap();
    }
    let spec = SegmentSpec {
        source: key().client(),
        destination: key().server(),
        seq,
        ack,
        flags: Flags::ACK,
        window: 1000,
        options: options.as_slice(),
        payload,
    };
    let mut packet = Vec::new();
    spec.emit(&mut packet, ChecksumMode::Full).unwrap();
    seen(&packet, |segment| {
        Revival::new(key(), rules(), segment, 2, NOW_SINCE_BOOT)
    })
    .unwrap()
    .1
}

/// The next request was acknowledged in part by a segment behind a hole, so the echo is still of the response before.
#[test]
fn next_request_with_bytes_of_its_response_behind_a_hole_is_reset() {
    for released in [2, RELEASED_MAX] {
        let rest = &REQUEST.as_bytes()[usize::from(released)..];
        let seq = START + u32::from(released);
        let actions = begun_with_hole(seq, ack_at(10_000), first_echo(0), rest, (1400, 2800));
        let expected = Reason::Position(PositionError::HeaderPart);
        assert_eq!(refusal(&actions), &expected, "{released}");
    }
}

/// A segment without payload has brought the acknowledgement.
#[test]
fn next_request_without_a_byte_of_its_response_is_asked() {
    let rest = &REQUEST.as_bytes()[2..];
    let ack = ack_at(10_000);
    let (mut revival, actions) = begin(rest, START + 2, ack, first_echo(0)).unwrap();
    let (request, actions) = asked(&mut revival, &actions);
    assert_eq!(request, REQUEST);
    let flow = spliced(&actions);
    assert_eq!(SERVER_ISN + 1 + flow.server.delta, ack);
    assert_eq!(
        (flow.turn.phase, flow.server.told),
        (Phase::Asked, START + 2)
    );
}

/// Another server writes another header.
#[test]
fn idle_client_with_bytes_of_a_response_behind_a_hole_is_reset() {
    let begun = |block| begun_with_hole(START, isn() + 1, idle_echo(), REQUEST.as_bytes(), block);
    let expected = Reason::Position(PositionError::HeaderPart);
    assert_eq!(refusal(&begun((1400, 2800))), &expected);
    // A duplicate, RFC 2883.
    to_server(&begun((0_u32.wrapping_sub(100), 0)));
}

#[test]
fn client_without_a_response_gets_the_whole_answer() {
    let ack = isn() + 1;
    let (mut revival, actions) = begin(REQUEST.as_bytes(), START, ack, idle_echo()).unwrap();
    let (request, actions) = asked(&mut revival, &actions);
    assert_eq!(request, REQUEST);
    let flow = spliced(&actions);
    assert_eq!(SERVER_ISN + 1 + flow.server.delta, ack);
    assert_eq!(
        (flow.turn.phase, flow.turn.number, flow.turn.is_guarded),
        (Phase::Asked, 0, true)
    );
}

#[test]
fn later_response_on_a_connection_is_continued() {
    let start = isn() + 5_000_000;
    let base = isn::initial(&rules().key, &key(), Slot::new(0));
    let distance =
        u16::try_from(start.0.wrapping_sub(base.0) % crate::timestamp::NEAR_POSITIONS).unwrap();
    let word = version_word(version_hash(&version("\"a\""), VersionCheck::Etag), 0);
    let tag = State::later_tag(&rules().key, &key(), options(), distance, word);
    let state = State::Later {
        options: options(),
        is_odd: true,
        position: LaterPosition::Near { distance, tag },
    };
    let echo = Timestamp {
        index: Index::new(1),
        state,
    }
    .to_wire();
    let (mut revival, actions) =
        begin(&REQUEST.as_bytes()[2..], START + 2, start + 4000, echo).unwrap();
    assert_eq!(revival.offset(), Some(4000));
    let (request, _) = asked(&mut revival, &actions);
    assert!(request.contains("Range: bytes=3999-\r\n"), "{request}");
    let actions = answer(
        &mut revival,
        head(206, "\"a\"", 3999).as_bytes(),
        Flags::NONE,
    );
    assert_eq!(spliced(&actions).turn.number, 1);
}

/// The first flight of the answer is longer than the timestamps of a later response can tell.
#[test]
fn bytes_beyond_the_position_of_a_later_response_come_from_the_server() {
    let start = isn() + 5_000_000;
    let base = isn::initial(&rules().key, &key(), Slot::new(0));
    let positions = crate::timestamp::FAR_POSITIONS;
    let distance = start.0.wrapping_sub(base.0) % positions;
    let state = State::Later {
        options: options(),
        is_odd: true,
        position: LaterPosition::Far { distance },
    };
    let echo = Timestamp {
        index: Index::new(1),
        state,
    }
    .to_wire();
    let offset = positions - (64 << 10) - 1000;
    let request = &REQUEST.as_bytes()[2..];
    let (mut revival, actions) = begin(request, START + 2, start + offset, echo).unwrap();
    asked(&mut revival, &actions);
    let complete_len = u64::from(positions);
    let first = u64::from(offset) - 1;
    let head = format!(
        "HTTP/1.1 206 x\r\nETag: \"a\"\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{}/{complete_len}\r\n\r\n",
        complete_len - first,
        complete_len - 1
    );
    let bytes = [head.as_bytes(), &[b'x'; 3001]].concat();
    let actions = answer(&mut revival, &bytes, Flags::NONE);
    assert_eq!(spliced(&actions).server.nxt, start + offset + 1000);
}

#[test]
fn echo_without_a_position_is_reset() {
    let refused = |ack, echo| begin(REQUEST.as_bytes(), START, ack, echo).unwrap_err();
    assert_eq!(
        refused(ack_at(0) - 1, first_echo(0)),
        PositionError::HeaderPart.into()
    );
    let tag = State::unprotected_tag(&rules().key, &key(), slot(), options());
    let bare = State::Agreed {
        slot: slot(),
        options: options(),
        tag,
    };
    let bare = Timestamp {
        index: Index::new(0),
        state: bare,
    }
    .to_wire();
    assert_eq!(refused(isn() + 1, bare), PositionError::Unprotected.into());
}

#[test]
fn request_that_must_not_be_repeated_is_reset() {
    for (text, reason) in [
        (
            "POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            Reason::Request(Unprotected::Method),
        ),
        (
            "GET /a HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
            Reason::Request(Unprotected::Upgraded),
        ),
        (
            "GET /a HTTP/1.1\r\nHost: b",
            Reason::Request(Unprotected::SplitRequest),
        ),
        ("\x16\x03\x01", Reason::Request(Unprotected::NotHttp)),
    ] {
        let ack = isn() + 1;
        let (_, actions) = begin(text.as_bytes(), START, ack, idle_echo()).unwrap();
        assert_eq!(refusal(&actions), &reason, "{text}");
    }
}

#[test]
fn range_from_the_end_and_several_ranges_are_asked_but_not_continued() {
    for range in ["-5", "0-1,5-6"] {
        let text = format!("GET /a HTTP/1.1\r\nRange: bytes={range}\r\n\r\n");
        let (_, actions) = repeat(&text, ack_at(10), first_echo(0));
        assert_eq!(refusal(&actions), &Reason::OwnRange, "{text}");
        let (mut revival, actions) = begin(text.as_bytes(), START, isn() + 1, idle_echo()).unwrap();
        let end = START + u32::try_from(text.len()).unwrap();
        let (request, actions) = asked_up_to(end, &mut revival, &actions);
        assert_eq!(request, text);
        assert!(spliced(&actions).turn.has_range);
    }
}

#[test]
fn silent_server_is_given_up_after_the_last_try() {
    let (mut revival, actions) = repeat(REQUEST, ack_at(10), first_echo(0));
    let syn = to_server(&actions);
    let mut now = NOW_SINCE_BOOT;
    for _ in 1..TRIES_MAX {
        now = revival.deadline();
        assert_eq!(to_server(&revival.on_time(now)), syn);
        assert!(
            revival.on_time(now).is_empty(),
            "not before the next deadline"
        );
    }
    now += RETRY_INTERVAL;
    assert_eq!(refusal(&revival.on_time(now)), &Reason::NoServer);
    assert!(revival.on_time(now + RETRY_INTERVAL).is_empty());
}

/// The client has the whole response, and asks again at once; the member died before it told that the request has
/// arrived.
#[test]
fn next_request_waits_for_the_request_of_the_response() {
    for next in ["GET /other HTTP/1.1\r\n\r\n", "POST /b HTTP/1.1\r\n"] {
        let end = START + u32::try_from(REQUEST.len()).unwrap();
        let (ack, echo) = (ack_at(10_000), first_echo(0));
        let (mut revival, actions) = begin(next.as_bytes(), end, ack, echo).unwrap();
        assert_eq!(actions, [], "{next}");
        let again = packet(
            true,
            START + 1,
            ack,
            Flags::ACK,
            (51, echo),
            &REQUEST.as_bytes()[1..],
        );
        let actions = seen(&again, |segment| revival.on_client(segment, NOW_SINCE_BOOT));
        let (request, _) = asked(&mut revival, &actions);
        assert!(request.starts_with("GET /large "), "{request}");
    }
}

#[test]
fn client_that_never_repeats_the_request_of_the_response_is_reset() {
    let (ack, echo) = (ack_at(10_000), first_echo(0));
    let (mut revival, _) = begin(REQUEST.as_bytes(), START, ack, echo).unwrap();
    let again = packet(true, START, ack, Flags::ACK, (51, echo), REQUEST.as_bytes());
    let mut repeat = || seen(&again, |segment| revival.on_client(segment, NOW_SINCE_BOOT));
    for _ in 2..LATER_REQUESTS_MAX {
        assert_eq!(repeat(), []);
    }
    assert_eq!(refusal(&repeat()), &Reason::LaterRequest);
}

#[test]
fn segment_without_a_request_waits_for_the_request() {
    let (mut revival, actions) = begin(&[], START + 5, ack_at(10), first_echo(0)).unwrap();
    assert!(actions.is_empty());
    let segment = packet(
        true,
        START + 1,
        ack_at(12),
        Flags::ACK,
        (51, first_echo(0)),
        &REQUEST.as_bytes()[1..],
    );
    let actions = seen(&segment, |segment| {
        revival.on_client(segment, NOW_SINCE_BOOT)
    });
    let (request, _) = asked(&mut revival, &actions);
    assert!(
        request.contains("Range: bytes=9-\r\n"),
        "the position of the first segment: {request}"
    );
}

#[test]
fn object_that_may_have_changed_during_the_download_is_reset() {
    // The connection has the number of the slot before the present slot, 784111984 - 16, and may have begun three slots
    // earlier.
    let answered = |modified: &str| {
        let (mut revival, actions) = repeat(REQUEST, ack_at(3000), first_echo(0));
        asked(&mut revival, &actions);
        let modified = format!("Last-Modified: Sun, 06 Nov 1994 08:{modified} GMT\r\n\r\n");
        let head = head(206, "\"a\"", 2999);
        let head = format!("{}\r\n{modified}", head.trim_end_matches("\r\n"));
        answer(&mut revival, head.as_bytes(), Flags::NONE)
    };
    // 08:52:00 is 784111920.
    assert_eq!(refusal(&answered("52:00")), &Reason::Modified);
    assert_eq!(
        refusal(&answered("51:56")),
        &Reason::Modified,
        "clocks differ"
    );
    spliced(&answered("51:52"));
}
