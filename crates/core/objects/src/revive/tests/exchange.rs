//! Segments of a client and of the local server, and looks at the actions of a revival.

use std::format;
use std::string::String;

use http1::version::{ObjectVersion, VersionCheck};
use wire::{ChecksumMode, Flags, IpPacket, OptionsBuffer, SegmentSpec, TcpOption};

use super::super::*;
use crate::head::version_hash;
use crate::isn::{self, Slot};
use crate::timestamp::index::Index;
use crate::timestamp::{ClientOptions, State, version_word};

pub(super) const NOW_SINCE_BOOT: Duration = Duration::from_secs(100);
pub(super) const REQUEST: &str = "GET /large HTTP/1.1\r\nHost: pool\r\n\r\n";
pub(super) const HEADER_LEN: u16 = 200;
pub(super) const COMPLETE_LEN: u64 = 10_000;
/// Number of the first byte of the client's request.
pub(super) const START: SeqNumber = SeqNumber(0xffff_fff0);
pub(super) const SERVER_ISN: SeqNumber = SeqNumber(777);

pub(super) fn rules() -> Rules {
    Rules {
        key: PoolKey([5; 16]),
        judge: JudgeRules {
            check: VersionCheck::Etag,
            discard_limit: 1 << 20,
            takes_chunks: false,
        },
        incarnation: 3,
        unix_now: Duration::from_secs(784_111_990),
        withhold: WITHHOLD_MAX,
        settled_at: Duration::ZERO,
    }
}

pub(super) fn key() -> FlowKey {
    FlowKey::new(([10, 0, 0, 3], 4000).into(), ([10, 0, 9, 9], 80).into())
}

pub(super) fn options() -> ClientOptions {
    ClientOptions::new(7, 1460).unwrap()
}

/// The slot before the present slot.
pub(super) fn slot() -> Slot {
    Slot::at(rules().unix_now - isn::SLOT_DURATION)
}

pub(super) fn isn() -> SeqNumber {
    isn::initial(&rules().key, &key(), slot())
}

pub(super) fn version(etag: &str) -> ObjectVersion {
    ObjectVersion {
        complete_len: Some(COMPLETE_LEN),
        etag: Some(etag.into()),
        last_modified: None,
        content_encoding: None,
    }
}

/// The echo of a client that has a part of the first response, of the version "a", from this byte of the object on.
pub(super) fn first_echo(first: u64) -> u32 {
    let word = version_word(version_hash(&version("\"a\""), VersionCheck::Etag), first);
    let tag = State::first_tag(&rules().key, &key(), slot(), options(), HEADER_LEN, word);
    let state = State::First {
        slot: slot(),
        options: options(),
        header_len: HEADER_LEN,
        tag,
    };
    Timestamp {
        index: Index::new(40),
        state,
    }
    .to_wire()
}

pub(super) fn idle_echo() -> u32 {
    let tag = State::agreed_tag(&rules().key, &key(), slot(), options(), START);
    let state = State::Agreed {
        slot: slot(),
        options: options(),
        tag,
    };
    Timestamp {
        index: Index::new(40),
        state,
    }
    .to_wire()
}

/// Acknowledgement of a client that has this many bytes of the first body.
pub(super) fn ack_at(offset: u32) -> SeqNumber {
    isn() + 1 + u32::from(HEADER_LEN) + offset
}

pub(super) fn packet(
    is_of_client: bool,
    seq: SeqNumber,
    ack: SeqNumber,
    flags: Flags,
    stamps: (u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    packet_with_window(1000, is_of_client, (seq, ack), flags, stamps, payload)
}

/// The same with this window.
pub(super) fn packet_with_window(
    window: u16,
    is_of_client: bool,
    (seq, ack): (SeqNumber, SeqNumber),
    flags: Flags,
    stamps: (u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let mut options = OptionsBuffer::new();
    options
        .push(&TcpOption::Timestamps {
            value: stamps.0,
            echo: stamps.1,
        })
        .unwrap();
    let (source, destination) = match is_of_client {
        true => (key().client(), key().server()),
        false => (key().server(), key().client()),
    };
    let spec = SegmentSpec {
        source,
        destination,
        seq,
        ack,
        flags,
        window,
        options: options.as_slice(),
        payload,
    };
    let mut packet = Vec::new();
    spec.emit(&mut packet, ChecksumMode::Full).unwrap();
    packet
}

pub(super) fn seen<T>(packet: &[u8], see: impl FnOnce(&Segment<'_>) -> T) -> T {
    see(&Segment::of(&IpPacket::parse(packet).unwrap()).unwrap())
}

/// A client that repeats its request. With the first response the client was told that the first byte has arrived.
pub(super) fn repeat(request: &str, ack: SeqNumber, echo: u32) -> (Revival, Vec<Action>) {
    begin(&request.as_bytes()[1..], START + 1, ack, echo).unwrap()
}

pub(super) fn begin(
    request: &[u8],
    seq: SeqNumber,
    ack: SeqNumber,
    echo: u32,
) -> Result<(Revival, Vec<Action>), Reason> {
    let segment = packet(true, seq, ack, Flags::ACK, (50, echo), request);
    seen(&segment, |segment| {
        Revival::new(key(), rules(), segment, 2, NOW_SINCE_BOOT)
    })
    .map_err(|rejected| rejected.reason)
}

/// The only packet for the server.
pub(super) fn to_server(actions: &[Action]) -> Vec<u8> {
    let packets: Vec<&Vec<u8>> = actions
        .iter()
        .filter_map(|action| match action {
            Action::ToServer(packet) => Some(packet),
            _ => None,
        })
        .collect();
    assert_eq!(packets.len(), 1, "{actions:?}");
    packets[0].clone()
}

/// The server accepts, and gets the request.
pub(super) fn asked(revival: &mut Revival, actions: &[Action]) -> (String, Vec<Action>) {
    asked_up_to(
        START + u32::try_from(REQUEST.len()).unwrap(),
        revival,
        actions,
    )
}

/// The same, of a client whose request ends there.
pub(super) fn asked_up_to(
    request_end: SeqNumber,
    revival: &mut Revival,
    actions: &[Action],
) -> (String, Vec<Action>) {
    let syn = to_server(actions);
    let ack = seen(&syn, |syn| {
        assert_eq!(syn.flags(), Flags::SYN);
        syn.seq() + 1
    });
    let synack = packet(
        false,
        SERVER_ISN,
        ack,
        Flags::SYN.union(Flags::ACK),
        (9000, 50),
        &[],
    );
    let actions = seen(&synack, |segment| {
        revival.on_server(segment, NOW_SINCE_BOOT)
    });
    let request = to_server(&actions);
    let (text, end) = seen(&request, |segment| {
        assert_eq!(segment.ack(), SERVER_ISN + 1);
        (
            String::from_utf8(segment.payload().to_vec()).unwrap(),
            segment.end_seq(),
        )
    });
    assert_eq!(
        end, request_end,
        "the client's next request has the next number"
    );
    (text, actions)
}

pub(super) fn answer(revival: &mut Revival, bytes: &[u8], flags: Flags) -> Vec<Action> {
    let end = START + u32::try_from(REQUEST.len()).unwrap();
    let answer = packet(
        false,
        SERVER_ISN + 1,
        end,
        Flags::ACK.union(flags),
        (9001, 50),
        bytes,
    );
    seen(&answer, |segment| {
        revival.on_server(segment, NOW_SINCE_BOOT)
    })
}

pub(super) fn head(status: u16, etag: &str, first: u64) -> String {
    let len = COMPLETE_LEN - first;
    let range = match status {
        206 => format!(
            "Content-Range: bytes {first}-{}/{COMPLETE_LEN}\r\n",
            COMPLETE_LEN - 1
        ),
        _ => String::new(),
    };
    format!("HTTP/1.1 {status} x\r\nETag: {etag}\r\nContent-Length: {len}\r\n{range}\r\n")
}

pub(super) fn spliced(actions: &[Action]) -> &Flow {
    let flows: Vec<&Flow> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Splice(flow) => Some(&**flow),
            _ => None,
        })
        .collect();
    assert_eq!(flows.len(), 1, "{actions:?}");
    flows[0]
}

pub(super) fn refusal(actions: &[Action]) -> &Reason {
    let Some((
        Action::Refuse {
            reason,
            reset: Some(_),
        },
        before,
    )) = actions.split_last()
    else {
        panic!("{actions:?}");
    };
    // No socket of the server is left.
    for action in before {
        let Action::ToServer(packet) = action else {
            panic!("{action:?}");
        };
        seen(packet, |segment| assert_eq!(segment.flags(), Flags::RST));
    }
    reason
}
