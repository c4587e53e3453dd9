use super::*;
use crate::link::{Handshake, KeySlot, LinkKey, LinkKeys, SynOptions};
use crate::{UnprotectedReason, properties};
use proptest::prelude::*;
use wire::{FlowId, FlowKey, SeqNumber};

mod lease;
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

const SUMMARY: FlowSummary = FlowSummary {
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
    outstream_end: None,
    unprotected: Some(UnprotectedReason::MirrorLost),
};

#[test]
#[rustfmt::skip]
fn the_encoding_is_pinned() {
    let read = Request::Read { flow: FlowId(0x0102), from: SeqNumber(0xa0b0_c0d0), max_len: 9 };
    assert_eq!(bytes_of(&read), [
        18, 0, 0, 0, 2, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0xd0, 0xc0, 0xb0, 0xa0, 9, 0, 0, 0,
    ]);
    let hello = Request::Hello { service: "web".into() };
    assert_eq!(bytes_of(&hello), [5, 0, 0, 0, 2, 1, b'w', b'e', b'b']);
    let summaries = Response::Summaries { summaries: vec![SUMMARY], last: true };
    assert_eq!(bytes_of(&summaries), [
        54, 0, 0, 0, 2, 0x83, 1,
        1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0,
        1, 0, 0, 0, 0, 8, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0, 0, 3,
    ]);
    let ranges = vec![(SeqNumber(7), vec![0xaa]), (SeqNumber(9), vec![])];
    let heads = Response::OutstreamHeads { flow: FlowId(1), ranges, last: false };
    assert_eq!(bytes_of(&heads), [
        28, 0, 0, 0, 2, 0x85, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        7, 0, 0, 0, 1, 0, 0, 0, 0xaa, 9, 0, 0, 0, 0, 0, 0, 0,
    ]);
}

const LINK_KEYS: LinkKeys = LinkKeys {
    slot: KeySlot::One,
    up: LinkKey([0xaa; 16]),
    down: LinkKey([0xbb; 16]),
};

fn attach() -> Attach {
    Attach {
        instance: 0x0102,
        replay: Replay::Turn,
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
        37, 0, 0, 0, 2, 9, 2, 1, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0,
        4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 7, 6, 1, b'w', b'e', b'b',
    ]);
    let mut resumed = vec![114, 0, 0, 0, 2, 13, 1, 0, 0, 0, 0, 0, 0, 0];
    resumed.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    resumed.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    resumed.extend([0x9c, 0x40, 0, 80, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0]);
    resumed.extend([6, 0, 0, 0, 7, 0, 2, 1, 8, 2, 1]);
    resumed.extend([0; 41]);
    assert_eq!(bytes_of(&Request::Resume(resume())), resumed);
    let recorded = Recorded { beginning: resume(), acknowledged: 0x0a0b, tsval: 12, tsecr: 13 };
    let connections = Response::Connections { connections: vec![recorded], last: false };
    let mut listed = vec![131, 0, 0, 0, 2, 0x8c, 0];
    listed.extend(&resumed[6..]);
    listed.extend([0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0]);
    assert_eq!(bytes_of(&connections), listed);
    let mut attached = vec![48, 0, 0, 0, 2, 0x89, 9, 0, 0, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 1];
    attached.extend([0xaa; 16]);
    attached.extend([0xbb; 16]);
    let message = Response::Attached { pid: 9, kept: true, session: 8, keys: LINK_KEYS };
    assert_eq!(bytes_of(&message), attached);
    let frames = Request::Frames { bytes: vec![7, 8] };
    assert_eq!(bytes_of(&frames), [4, 0, 0, 0, 2, 11, 7, 8]);
    let in_use = Request::InUse { session: 9 };
    assert_eq!(bytes_of(&in_use), [10, 0, 0, 0, 2, 16, 9, 0, 0, 0, 0, 0, 0, 0]);
    let unknown = Response::Unknown { flow_low: 0x0102 };
    assert_eq!(bytes_of(&unknown), [6, 0, 0, 0, 2, 0x8b, 2, 1, 0, 0]);
}

#[test]
fn types_are_pinned() {
    let flow = FlowId(1);
    let requests = [
        Request::Hello {
            service: String::new(),
        },
        Request::Summaries,
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
        Request::Attach(attach()),
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
        Response::Summaries {
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
        assert_eq!(error.is_some(), (1..=7).contains(&code));
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
        request_error(&[9, 0, 0, 0, 2, 17]),
        Some(ControlError::UnknownType(17))
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
        (&[3, 0, 0, 0, 2, 0x82, 0], "it ends within a field"),
        (
            &[7, 0, 0, 0, 2, 0x81, 1, 0, 0, 0, 0],
            "bytes behind the last field",
        ),
        (
            &[3, 0, 0, 0, 2, 0x83, 2],
            "a truth value is neither 0 nor 1",
        ),
        (&[4, 0, 0, 0, 2, 0x88, 1, 0xff], "the text is not UTF-8"),
        (&[3, 0, 0, 0, 2, 0x88, 9], "the error code is unknown"),
        (
            &[11, 0, 0, 0, 2, 0x86, 0, 0, 0, 0, 0, 0, 0, 0, 10],
            "the reason for no protection is unknown",
        ),
        (
            &[11, 0, 0, 0, 2, 0x86, 0, 0, 0, 0, 0, 0, 0, 0, 0],
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
    let widest = FlowSummary {
        outstream_end: Some(SeqNumber(1)),
        ..SUMMARY
    };
    let summaries = |count| Response::Summaries {
        summaries: vec![widest; count],
        last: false,
    };
    let one = bytes_of(&summaries(1)).len() - bytes_of(&summaries(0)).len();
    assert_eq!(one, FlowSummary::MAX_ENCODED);
    let full = summaries(FlowSummary::PER_MESSAGE);
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

fn flow() -> impl Strategy<Value = FlowId> {
    any::<u64>().prop_map(FlowId)
}

fn seq() -> impl Strategy<Value = SeqNumber> {
    any::<u32>().prop_map(SeqNumber)
}

fn reason() -> impl Strategy<Value = UnprotectedReason> {
    prop::sample::select(UnprotectedReason::ALL.to_vec())
}

fn text() -> impl Strategy<Value = String> {
    any::<Vec<char>>().prop_map(String::from_iter)
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        text().prop_map(|service| Request::Hello { service }),
        Just(Request::Summaries),
        (flow(), seq(), any::<u32>()).prop_map(|(flow, from, max_len)| Request::Read {
            flow,
            from,
            max_len
        }),
        flow().prop_map(|flow| Request::OutstreamHeads { flow }),
        flow().prop_map(|flow| Request::Unprotect { flow }),
        Just(Request::Statistics),
        Just(Request::Shutdown),
        any::<bool>().prop_map(|hold| Request::HoldTurns { hold }),
        request_of_a_link(),
    ]
}

fn request_of_a_link() -> impl Strategy<Value = Request> {
    let replay = prop::sample::select(vec![Replay::Connection, Replay::Turn]);
    let sizes = any::<(u64, u64, u64, u32, u16, bool)>();
    let attach = (sizes, replay, text()).prop_map(|(sizes, replay, service)| {
        let (instance, per_connection, total, connections, udp_port, inherit) = sizes;
        Request::Attach(Attach {
            instance,
            replay,
            per_connection,
            total,
            connections,
            udp_port,
            inherit,
            service,
        })
    });
    prop_oneof![
        attach,
        any_resume().prop_map(Request::Resume),
        Just(Request::Connections),
        lease::request().prop_map(Request::Lease),
        Just(Request::Rekey),
        any::<Vec<u8>>().prop_map(|bytes| Request::Frames { bytes }),
        any::<u64>().prop_map(|token| Request::Barrier { token }),
        any::<u64>().prop_map(|session| Request::InUse { session }),
    ]
}

fn handshake() -> impl Strategy<Value = Handshake> {
    let options = prop::collection::vec(any::<u8>(), 0..=40);
    let agreed = any::<[bool; 3]>();
    (
        any::<(u32, u16, u8)>(),
        options,
        [0..=14u8, 0..=14u8],
        agreed,
    )
        .prop_map(
            |((tsval, syn_window, syn_flags), options, [window_scale, client_scale], agreed)| {
                let [timestamps, sack, whole_segments] = agreed;
                Handshake {
                    tsval,
                    syn_window,
                    syn_flags,
                    syn_options: SynOptions::new(&options).unwrap(),
                    window_scale,
                    client_scale,
                    timestamps,
                    sack,
                    whole_segments,
                }
            },
        )
}

fn any_resume() -> impl Strategy<Value = Resume> {
    let address = || any::<([u8; 16], u16)>().prop_map(std::net::SocketAddr::from);
    let key = (address(), address()).prop_map(|(client, server)| FlowKey::new(client, server));
    (flow(), key, any::<[u32; 4]>(), handshake()).prop_map(|(flow, key, numbers, handshake)| {
        let [client_isn, server_isn, instream, outstream] = numbers.map(SeqNumber);
        Resume {
            flow,
            key,
            client_isn,
            server_isn,
            instream,
            outstream,
            handshake,
        }
    })
}

fn recorded() -> impl Strategy<Value = Recorded> {
    let numbers = any::<(u64, u32, u32)>();
    (any_resume(), numbers).prop_map(|(beginning, (acknowledged, tsval, tsecr))| Recorded {
        beginning,
        acknowledged,
        tsval,
        tsecr,
    })
}

fn link_keys() -> impl Strategy<Value = LinkKeys> {
    any::<(bool, [u8; 16], [u8; 16])>().prop_map(|(slot, up, down)| LinkKeys {
        slot: if slot { KeySlot::One } else { KeySlot::Zero },
        up: LinkKey(up),
        down: LinkKey(down),
    })
}

fn summary() -> impl Strategy<Value = FlowSummary> {
    let numbers = any::<[u32; 8]>().prop_map(|numbers| numbers.map(SeqNumber));
    let optional = || prop::option::of(seq());
    (
        flow(),
        numbers,
        prop::option::of((seq(), seq()).prop_map(|(seq, heard)| ClientFin { seq, heard })),
        optional(),
        prop::option::of(reason()),
    )
        .prop_map(|(flow, numbers, client_fin, outstream_end, unprotected)| {
            let [
                client_isn,
                server_isn,
                start,
                stable_seq,
                turn_instream,
                turn_outstream,
                oldest,
                next,
            ] = numbers;
            FlowSummary {
                flow,
                client_isn,
                server_isn,
                start,
                stable_seq,
                client_fin,
                turn_instream,
                turn_outstream,
                answers: [oldest, next],
                outstream_end,
                unprotected,
            }
        })
}

fn statistics() -> impl Strategy<Value = Statistics> {
    any::<[u64; 7]>().prop_map(|[a, b, c, d, e, f, g]| Statistics {
        flows: a,
        unprotected_flows: b,
        instream_bytes: c,
        outstream_bytes: d,
        frames: e,
        malformed_frames: f,
        unknown_flow_frames: g,
    })
}

fn response() -> impl Strategy<Value = Response> {
    let code = prop::sample::select(vec![
        ErrorCode::UnknownFlow,
        ErrorCode::Unprotected,
        ErrorCode::NotKept,
        ErrorCode::BadRequest,
        ErrorCode::Internal,
        ErrorCode::StillServed,
    ]);
    let connections = prop::collection::vec(recorded(), 0..4);
    let summaries = prop::collection::vec(summary(), 0..4);
    let ranges = prop::collection::vec((seq(), any::<Vec<u8>>()), 0..4);
    prop_oneof![
        any::<u32>().prop_map(|pid| Response::Hello { pid }),
        (connections, any::<bool>())
            .prop_map(|(connections, last)| Response::Connections { connections, last }),
        any::<u64>().prop_map(|token| Response::Drained { token }),
        (summaries, any::<bool>())
            .prop_map(|(summaries, last)| Response::Summaries { summaries, last }),
        (flow(), seq(), any::<Vec<u8>>()).prop_map(|(flow, from, bytes)| Response::Data {
            flow,
            from,
            bytes
        }),
        (flow(), ranges, any::<bool>()).prop_map(|(flow, ranges, last)| Response::OutstreamHeads {
            flow,
            ranges,
            last
        }),
        (flow(), reason()).prop_map(|(flow, reason)| Response::Unprotected { flow, reason }),
        statistics().prop_map(Response::Statistics),
        (code, text()).prop_map(|(code, message)| Response::Error { code, message }),
        (any::<u32>(), any::<bool>(), any::<u64>(), link_keys()).prop_map(
            |(pid, kept, session, keys)| {
                Response::Attached {
                    pid,
                    kept,
                    session,
                    keys,
                }
            }
        ),
        link_keys().prop_map(Response::Keys),
        any::<u32>().prop_map(|flow_low| Response::Unknown { flow_low }),
        lease::answer().prop_map(Response::Lease),
    ]
}

/// A message cut at each length is not there yet, and not an error.
fn cut_anywhere<M: Message + PartialEq + core::fmt::Debug>(message: &M) {
    let bytes = bytes_of(message);
    for len in 0..bytes.len() {
        let mut decoder = Decoder::<M>::new();
        decoder.feed(&bytes[..len]);
        assert_eq!(decoder.pull(), Ok(None));
        assert_eq!(decoder.is_at_boundary(), len == 0);
        decoder.feed(&bytes[len..]);
        assert_eq!(
            decoder.pull().as_ref(),
            Ok(&Some(M::decode_body(bytes[5], &bytes[6..]).unwrap()))
        );
        assert!(decoder.is_at_boundary());
    }
    assert_eq!(pull::<M>(&bytes).unwrap().as_ref(), Some(message));
}

/// A body cut at each length, with a length field that says so, is read or refused; never a panic.
fn body_cut_anywhere<M: Message>(message: &M) {
    let bytes = bytes_of(message);
    for len in 6..bytes.len() {
        let mut cut = bytes[..len].to_vec();
        cut[..4].copy_from_slice(&u32::try_from(len - 4).unwrap().to_le_bytes());
        match pull::<M>(&cut) {
            Ok(message) => assert_eq!(bytes_of(&message.expect("it is whole")), cut),
            Err(error) => assert!(matches!(error, ControlError::Malformed(_))),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_request_is_read_as_it_was_written(message in request()) {
        cut_anywhere(&message);
        body_cut_anywhere(&message);
    }

    #[test]
    fn any_response_is_read_as_it_was_written(message in response()) {
        cut_anywhere(&message);
        body_cut_anywhere(&message);
    }

    #[test]
    fn any_stream_is_the_same_in_pieces(
        messages in prop::collection::vec(response(), 0..6),
        cuts: Vec<prop::sample::Index>,
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            encode(message, &mut stream).unwrap();
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let mut decoder = Decoder::<Response>::new();
        let mut read = Vec::new();
        for piece in cuts.windows(2) {
            decoder.feed(&stream[piece[0]..piece[1]]);
            while let Some(message) = decoder.pull().unwrap() {
                read.push(message);
            }
        }
        prop_assert!(decoder.is_at_boundary());
        prop_assert_eq!(read, messages);
    }

    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        properties::control_stream(&bytes);
    }

    #[test]
    fn any_damaged_stream(
        requests in prop::collection::vec(request(), 0..3),
        responses in prop::collection::vec(response(), 0..3),
        size: u8,
        damage: Vec<(prop::sample::Index, u8)>,
    ) {
        let mut stream = vec![size];
        requests.iter().for_each(|message| encode(message, &mut stream).unwrap());
        responses.iter().for_each(|message| encode(message, &mut stream).unwrap());
        properties::control_stream(&stream);
        for (at, value) in damage.into_iter().take(2) {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        properties::control_stream(&stream);
    }
}
