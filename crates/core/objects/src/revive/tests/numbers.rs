//! Clients without timestamps: the record and the numbers of a segment tell the position.

use std::vec::Vec;

use wire::{ChecksumMode, Flags, IpPacket, SegmentSpec};

use super::super::*;
use super::exchange::*;
use super::records::record;
use crate::queue::FLOW_LEN_MAX;

fn record_without_timestamps() -> Record {
    let options = StoredOptions {
        has_timestamps: false,
        ..record(4).options
    };
    Record {
        options,
        ..record(4)
    }
}

fn request_end() -> SeqNumber {
    START + u32::try_from(REQUEST.len()).unwrap()
}

fn begin_at(
    now: Duration,
    (seq, ack): (SeqNumber, SeqNumber),
    flags: Flags,
    payload: &[u8],
) -> Result<(Revival, Vec<Action>), Rejected> {
    let spec = SegmentSpec {
        source: key().client(),
        destination: key().server(),
        seq,
        ack,
        flags,
        window: 1000,
        options: &[],
        payload,
    };
    let mut bytes = Vec::new();
    spec.emit(&mut bytes, ChecksumMode::Full).unwrap();
    let packet = IpPacket::parse(&bytes).unwrap();
    let segment = Segment::of(&packet).unwrap();
    let record = record_without_timestamps();
    Revival::with_record(key(), rules(), (&segment, 1), Ok(&record), now)
}

fn begin(
    seq: SeqNumber,
    ack: SeqNumber,
    payload: &[u8],
) -> Result<(Revival, Vec<Action>), Rejected> {
    begin_at(NOW_SINCE_BOOT, (seq, ack), Flags::ACK, payload)
}

fn rejected(begun: Result<(Revival, Vec<Action>), Rejected>) -> Rejected {
    begun.map(|_| ()).unwrap_err()
}

fn whole() -> SeqNumber {
    ack_at(u32::try_from(COMPLETE_LEN).unwrap())
}

#[test]
fn acknowledgement_in_a_recorded_response_tells_the_position() {
    for (seq, payload) in [
        (request_end(), &b""[..]),
        (START, REQUEST.as_bytes()),
        (START + 1, &REQUEST.as_bytes()[1..]),
    ] {
        let (revival, actions) = begin(seq, ack_at(3000), payload).unwrap();
        assert_eq!(revival.offset(), Some(3000));
        assert!(matches!(actions[..], [Action::ToServer(_)]));
        let flow = revival.placeholder();
        assert!(!flow.client.has_timestamps);
    }
}

#[test]
fn client_without_a_byte_of_a_recorded_response_is_reset() {
    for payload in [&b""[..], REQUEST.as_bytes()] {
        let seq = request_end() - u32::try_from(payload.len()).unwrap();
        let reason = rejected(begin(seq, isn() + 1, payload)).reason;
        assert_eq!(reason, Reason::Position(PositionError::HeaderPart));
    }
}

/// As of another connection with the same ends.
#[test]
fn numbers_beyond_the_record_are_refused() {
    let ack = ack_at(3000);
    for (seq, ack) in [
        (START - 1, ack),
        (START - 70_000, ack),
        (
            request_end() + u32::try_from(FLOW_LEN_MAX).unwrap() + 1,
            ack,
        ),
        (START + (1 << 30), ack),
        (request_end(), isn()),
        (request_end(), whole() + 1),
        (request_end(), isn() + (1 << 31)),
    ] {
        let reason = rejected(begin(seq, ack, b"")).reason;
        let is_refused = matches!(
            reason,
            Reason::Position(PositionError::OtherRecord | PositionError::NextRequest)
        );
        assert!(is_refused, "{seq:?} {ack:?}: {reason}");
    }
}

#[test]
fn next_request_of_a_client_with_the_whole_response_is_asked() {
    let request = b"GET /other HTTP/1.1\r\n\r\n";
    let (revival, _) = begin(request_end(), whole(), request).unwrap();
    assert_eq!((revival.offset(), revival.stored()), (None, None));
}

/// The request behind was acknowledged, and its response was not protected: nobody would answer.
#[test]
fn client_that_waits_behind_the_record_is_reset_after_a_while() {
    let behind = (request_end() + 100, whole());
    // The timer of a client whose request is unacknowledged may have grown, and a message makes it shorter.
    for seconds in [0, 14] {
        let early = Duration::from_secs(seconds);
        let early = rejected(begin_at(early, behind, Flags::ACK, b""));
        let message = crate::unreachable::about(key(), request_end());
        assert_eq!((early.reason, early.reset), (Reason::Idle, message));
    }
    let late = rejected(begin_at(NOW_SINCE_BOOT, behind, Flags::ACK, b""));
    assert_eq!(late.reason, Reason::Position(PositionError::NextRequest));
    assert!(late.reset.is_some());
    let idle = rejected(begin(request_end(), whole(), b""));
    assert_eq!((idle.reason, idle.reset), (Reason::Idle, None));
}

/// The client answers a call after its FIN, and repeats the FIN.
#[test]
fn client_whose_fin_was_lost_is_not_reset() {
    let behind_fin = (request_end() + 1, whole());
    let late = rejected(begin_at(NOW_SINCE_BOOT, behind_fin, Flags::ACK, b""));
    assert_eq!((late.reason, late.reset), (Reason::Idle, None));
}

#[test]
fn end_of_an_idle_client_is_acknowledged() {
    let numbers = (request_end(), whole());
    let flags = Flags::ACK.union(Flags::FIN);
    let closed = rejected(begin_at(NOW_SINCE_BOOT, numbers, flags, b""));
    assert_eq!(closed.reason, Reason::Idle);
    let bytes = closed.reset.expect("an answer");
    let packet = IpPacket::parse(&bytes).unwrap();
    let segment = Segment::of(&packet).unwrap();
    assert_eq!(
        (segment.seq(), segment.ack(), segment.option_bytes()),
        (whole(), request_end() + 1, &[][..])
    );
    assert!(segment.flags().contains(Flags::FIN));
}

#[test]
fn record_of_a_client_with_timestamps_is_of_another_connection() {
    let spec = SegmentSpec {
        source: key().client(),
        destination: key().server(),
        seq: request_end(),
        ack: ack_at(3000),
        flags: Flags::ACK,
        window: 1000,
        options: &[],
        payload: &[],
    };
    let mut bytes = Vec::new();
    spec.emit(&mut bytes, ChecksumMode::Full).unwrap();
    let packet = IpPacket::parse(&bytes).unwrap();
    let segment = Segment::of(&packet).unwrap();
    let record = record(4);
    let client = (&segment, 1);
    let begun = Revival::with_record(key(), rules(), client, Ok(&record), NOW_SINCE_BOOT);
    let reason = rejected(begun).reason;
    assert_eq!(reason, Reason::Position(PositionError::OtherRecord));
}
