use super::*;
use crate::link::{Handshake, KeySlot, LinkKey, LinkKeys, SynOptions};
use crate::{UnprotectedReason, properties};
use proptest::prelude::*;
use wire::{FlowId, FlowKey, SeqNumber};

mod claim;
mod lease;
mod round_trip;
use lease::{LEASE_ANSWER, lease_request};

fn bytes_of<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, &mut out).unwrap();
    out
}

fn pull<M: Message>(bytes: &[u8]) -> Result<Option<M>, ControlError> {
    let mut decoder = Decoder::new();
    decoder.feed(bytes);
    decoder.pull()
}

/// The error, if any, of a stream of requests.
fn request_error(bytes: &[u8]) -> Option<ControlError> {
    pull::<Request>(bytes).err()
}

const SUMMARY: RecordSummary = RecordSummary {
    flow: FlowId(1),
    client_isn: SeqNumber(2),
    server_isn: SeqNumber(3),
    start: SeqNumber(4),
    stable_seq: SeqNumber(5),
    client_fin: Some(ClientFin {
        seq: SeqNumber(0),
        heard: SeqNumber(8),
    }),
    turn_instream: SeqNumber(6),
    turn_outstream: SeqNumber(7),
    answers: [SeqNumber(9), SeqNumber(10)],
    doubt: SeqNumber(13),
    outstream_end: None,
    unprotected: Some(UnprotectedReason::MirrorLost),
};

#[test]
#[rustfmt::skip]
fn the_encoding_is_pinned() {
    let read = Request::Read { flow: FlowId(0x0102), from: SeqNumber(0xa0b0_c0d0), max_len: 9 };
    assert_eq!(bytes_of(&read), [
        18, 0, 0, 0, 7, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0xd0, 0xc0, 0xb0, 0xa0, 9, 0, 0, 0,
    ]);
    let hello = Request::Hello { service: "web".into() };
    assert_eq!(bytes_of(&hello), [5, 0, 0, 0, 7, 1, b'w', b'e', b'b']);
    let summaries = Response::Summaries { summaries: vec![SUMMARY], last: true };
    assert_eq!(bytes_of(&summaries), [
        58, 0, 0, 0, 8, 0x9b, 1,
        1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0,
        1, 0, 0, 0, 0, 8, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0, 0, 13, 0, 0, 0, 3,
    ]);
    let ranges = vec![(SeqNumber(7), vec![0xaa]), (SeqNumber(9), vec![])];
    let heads = Response::OutstreamHeads { flow: FlowId(1), ranges, last: false };
    assert_eq!(bytes_of(&heads), [
        28, 0, 0, 0, 7, 0x85, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        7, 0, 0, 0, 1, 0, 0, 0, 0xaa, 9, 0, 0, 0, 0, 0, 0, 0,
    ]);
}

const LINK_KEYS: LinkKeys = LinkKeys {
    version: crate::link::VERSION,
    slot: KeySlot::One,
    up: LinkKey([0xaa; 16]),
    down: LinkKey([0xbb; 16]),
};

fn attach() -> Attach {
    Attach {
        instance: 0x0102,
        replay: ReplayMode::Request,
        per_connection: 3,
        total: 4,
        connections: 5,
        udp_port: 0x0607,
        inherit: true,
        service: "web".into(),
    }
}

fn resume() -> Resume {
    Resume {
        flow: FlowId(1),
        key: FlowKey::new(
            "10.0.0.1:40000".parse().unwrap(),
            "[fd00::1]:80".parse().unwrap(),
        ),
        client_isn: SeqNumber(2),
        server_isn: SeqNumber(3),
        instream: SeqNumber(4),
        outstream: SeqNumber(5),
        handshake: Handshake {
            tsval: 6,
            syn_window: 7,
            syn_flags: 2,
            syn_options: SynOptions::new(&[1]).unwrap(),
            window_scale: 8,
            sack: true,
            ..Handshake::PLAIN
        },
    }
}

#[test]
#[rustfmt::skip]
fn the_encoding_of_what_a_link_needs_is_pinned() {
    assert_eq!(bytes_of(&Request::Attach(attach())), [
        37, 0, 0, 0, 8, 0x20, 2, 1, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0,
        4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 7, 6, 1, b'w', b'e', b'b',
    ]);
    let mut resumed = vec![114, 0, 0, 0, 7, 13, 1, 0, 0, 0, 0, 0, 0, 0];
    resumed.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    resumed.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    resumed.extend([0x9c, 0x40, 0, 80, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0]);
    resumed.extend([6, 0, 0, 0, 7, 0, 2, 1, 8, 2, 1]);
    resumed.extend([0; 41]);
    assert_eq!(bytes_of(&Request::Resume(resume())), resumed);
    let recorded = Recorded { beginning: resume(), acknowledged: 0x0a0b, tsval: 12, tsecr: 13 };
    let connections = Response::Connections { connections: vec![recorded], last: false };
    let mut listed = vec![131, 0, 0, 0, 7, 0x8c, 0];
    listed.extend(&resumed[6..]);
    listed.extend([0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0]);
    assert_eq!(bytes_of(&connections), listed);
    let mut attached = vec![48, 0, 0, 0, 7, 0x89, 9, 0, 0, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 1];
    attached.extend([0xaa; 16]);
    attached.extend([0xbb; 16]);
    let message = Response::Attached { pid: 9, kept: true, session: 8, keys: LINK_KEYS };
    assert_eq!(bytes_of(&message), attached);
    let frames = Request::Frames { bytes: vec![7, 8] };
    assert_eq!(bytes_of(&frames), [4, 0, 0, 0, 7, 11, 7, 8]);
    let in_use = Request::InUse { session: 9 };
    assert_eq!(bytes_of(&in_use), [10, 0, 0, 0, 7, 16, 9, 0, 0, 0, 0, 0, 0, 0]);
    let unknown = Response::Unknown { flow_low: 0x0102 };
    assert_eq!(bytes_of(&unknown), [6, 0, 0, 0, 7, 0x8b, 2, 1, 0, 0]);
}

#[test]
fn types_are_pinned() {
    let flow = FlowId(1);
    let requests = [
        Request::Hello {
            service: String::new(),
        },
        Request::FormerSummaries,
        Request::Read {
            flow,
            from: SeqNumber(0),
            max_len: 0,
        },
        Request::OutstreamHeads { flow },
        Request::Unprotect { flow },
        Request::Statistics,
        Request::Shutdown,
        Request::HoldTurns { hold: true },
        Request::FormerAttach(attach()),
        Request::Rekey,
        Request::Frames { bytes: vec![] },
        Request::Barrier { token: 1 },
        Request::Resume(resume()),
        Request::Connections,
        Request::Lease(lease_request()),
        Request::InUse { session: 1 },
    ];
    assert_eq!(
        requests.map(|message| message.type_code()),
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    );
    let reason = UnprotectedReason::TotalLimit;
    let responses = [
        Response::Hello { pid: 1 },
        Response::Drained { token: 1 },
        Response::FormerSummaries {
            summaries: vec![],
            last: true,
        },
        Response::Data {
            flow,
            from: SeqNumber(0),
            bytes: vec![],
        },
        Response::OutstreamHeads {
            flow,
            ranges: vec![],
            last: true,
        },
        Response::Unprotected { flow, reason },
        Response::Statistics(Statistics::default()),
        Response::Error {
            code: ErrorCode::Internal,
            message: String::new(),
        },
        Response::Attached {
            pid: 1,
            kept: false,
            session: 2,
            keys: LINK_KEYS,
        },
        Response::Keys(LINK_KEYS),
        Response::Unknown { flow_low: 1 },
        Response::Connections {
            connections: vec![],
            last: true,
        },
        Response::Lease(LEASE_ANSWER),
    ];
    let types = responses.map(|message| message.type_code());
    assert_eq!(
        types,
        [
            0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8b, 0x8c, 0x8d
        ]
    );
}

#[test]
fn error_codes_lead_back() {
    for code in 0..=u8::MAX {
        let error = ErrorCode::from_code(code);
        assert_eq!(error.is_some(), (1..=8).contains(&code));
        assert!(error.is_none_or(|error| error.code() == code));
    }
}

#[test]
fn a_stranger_is_refused_before_the_body_arrives() {
    let too_long = u32::try_from(MAX_MESSAGE).unwrap() + 1;
    let error = request_error(&too_long.to_le_bytes());
    assert_eq!(error, Some(ControlError::TooLong(MAX_MESSAGE + 1)));
    assert_eq!(
        request_error(&[1, 0, 0, 0]),
        Some(ControlError::TooShort(1))
    );
    assert_eq!(
        request_error(&[9, 0, 0, 0, 1]),
        Some(ControlError::UnknownVersion(1))
    );
    assert_eq!(
        request_error(&[9, 0, 0, 0, 7, 30]),
        Some(ControlError::UnknownType(30))
    );
    assert_eq!(
        request_error(b"GET / HTTP/1.0"),
        Some(ControlError::TooLong(0x2054_4547))
    );
}

#[test]
fn the_two_directions_are_told_apart() {
    let hello = bytes_of(&Response::Hello { pid: 1 });
    assert_eq!(request_error(&hello), Some(ControlError::UnknownType(0x81)));
    let shutdown = bytes_of(&Request::Shutdown);
    assert_eq!(
        pull::<Response>(&shutdown),
        Err(ControlError::UnknownType(7))
    );
}

#[test]
fn a_body_that_is_no_encoding_is_malformed() {
    let malformed: [(&[u8], &str); 7] = [
        (&[3, 0, 0, 0, 7, 0x82, 0], "it ends within a field"),
        (
            &[7, 0, 0, 0, 7, 0x81, 1, 0, 0, 0, 0],
            "bytes behind the last field",
        ),
        (
            &[3, 0, 0, 0, 8, 0x9b, 2],
            "a truth value is neither 0 nor 1",
        ),
        (&[4, 0, 0, 0, 7, 0x88, 1, 0xff], "the text is not UTF-8"),
        (&[3, 0, 0, 0, 7, 0x88, 9], "the error code is unknown"),
        (
            &[11, 0, 0, 0, 7, 0x86, 0, 0, 0, 0, 0, 0, 0, 0, 10],
            "the reason for no protection is unknown",
        ),
        (
            &[11, 0, 0, 0, 7, 0x86, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            "the reason for no protection is unknown",
        ),
    ];
    for (bytes, what) in malformed {
        assert_eq!(pull::<Response>(bytes), Err(ControlError::Malformed(what)));
    }
    let mut keys = bytes_of(&Response::Keys(LINK_KEYS));
    keys[6] = 2;
    let error = ControlError::Malformed("the slot of a key is neither 0 nor 1");
    assert_eq!(pull::<Response>(&keys), Err(error));
    let mut attach = bytes_of(&Request::Attach(attach()));
    attach[14] = 2;
    let error = ControlError::Malformed("how much is to be replayed is unknown");
    assert_eq!(request_error(&attach), Some(error));
}

#[test]
fn after_an_error_the_stream_is_dead() {
    let mut decoder = Decoder::<Request>::new();
    decoder.feed(&bytes_of(&Request::Summaries));
    decoder.feed(&[1, 0, 0, 0]);
    assert_eq!(decoder.pull(), Ok(Some(Request::Summaries)));
    assert_eq!(decoder.pull(), Err(ControlError::TooShort(1)));
    decoder.feed(&bytes_of(&Request::Summaries));
    assert_eq!(decoder.pull(), Err(ControlError::TooShort(1)));
    assert!(!decoder.is_at_boundary());
}

#[test]
fn the_promised_sizes_fit_and_larger_ones_are_refused() {
    let flow = FlowId(u64::MAX);
    let widest = RecordSummary {
        outstream_end: Some(SeqNumber(1)),
        ..SUMMARY
    };
    let summaries = |count| Response::Summaries {
        summaries: vec![widest; count],
        last: false,
    };
    let one = bytes_of(&summaries(1)).len() - bytes_of(&summaries(0)).len();
    assert_eq!(one, RecordSummary::MAX_ENCODED);
    let full = summaries(RecordSummary::PER_MESSAGE);
    assert_eq!(pull(&bytes_of(&full)), Ok(Some(full)));

    let data = |len| Response::Data {
        flow,
        from: SeqNumber(0),
        bytes: vec![7; len],
    };
    assert_eq!(pull(&bytes_of(&data(MAX_DATA))), Ok(Some(data(MAX_DATA))));
    let heads = |len| Response::OutstreamHeads {
        flow,
        ranges: vec![(SeqNumber(0), vec![7; len])],
        last: false,
    };
    assert_eq!(
        pull(&bytes_of(&heads(MAX_DATA - 8))),
        Ok(Some(heads(MAX_DATA - 8)))
    );
    let mut out = vec![1];
    let error = encode(&data(MAX_MESSAGE), &mut out);
    assert_eq!(error, Err(ControlError::TooLong(MAX_MESSAGE + 14)));
    assert_eq!(out, [1]);
}
