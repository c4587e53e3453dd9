use super::*;
use crate::link::{Handshake, KeySlot, LinkKey, LinkKeys, SynOptions};
use crate::{Digest, UnprotectedReason, properties};
use proptest::prelude::*;
use wire::{FlowId, FlowKey, SeqNumber};

mod claim;
mod growth;
mod lease;
mod opening;
mod pinned;
mod round_trip;

fn bytes_of<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, Agreed::OWN, &mut out).unwrap();
    out
}

fn pull<M: Message>(bytes: &[u8]) -> Result<Option<M>, ControlError> {
    let mut decoder = Decoder::new(Agreed::OWN);
    decoder.feed(bytes);
    decoder.pull()
}

/// Bytes as a message, behind their length.
fn message(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).unwrap();
    [&len.to_le_bytes(), bytes].concat()
}

/// The error, if any, of a stream of requests.
fn request_error(bytes: &[u8]) -> Option<ControlError> {
    pull::<Request>(bytes).err()
}

fn malformed(why: &str) -> ControlError {
    ControlError::Malformed(why.into())
}

fn summary() -> RecordSummary {
    RecordSummary {
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
        ..RecordSummary::fresh(FlowId(1), SeqNumber(2), SeqNumber(3))
    }
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
        ..Attach::PLAIN
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
fn too_long_message_is_refused_before_it_arrives() {
    let too_long = u32::try_from(MAX_MESSAGE).unwrap() + 1;
    let error = request_error(&too_long.to_le_bytes());
    assert_eq!(error, Some(ControlError::TooLong(MAX_MESSAGE + 1)));
    assert_eq!(
        request_error(b"GET / HTTP/1.0"),
        Some(ControlError::TooLong(0x2054_4547))
    );
}

#[test]
fn unknown_message_is_refused_by_its_number() {
    for number in [90, 127] {
        let error = ControlError::UnknownMessage(number);
        let bytes = message(&[u8::try_from(number).unwrap()]);
        assert_eq!(request_error(&bytes), Some(error.clone()));
        assert_eq!(pull::<Response>(&bytes), Err(error));
    }
}

#[test]
fn bytes_without_a_message_are_malformed() {
    let cases: [(Vec<u8>, &str); 8] = [
        (vec![], "it ends within a field"),
        (vec![1, 0x80], "it ends within a field"),
        (vec![0, 1, 3, 0], "bytes behind the last field"),
        (vec![1, 0x80, 0], "a number is longer than necessary"),
        (
            vec![0, 0xff, 0xff, 0xff, 0xff, 0x1f],
            "a number is too large",
        ),
        (vec![2, 0, 2], "a truth value is neither 0 nor 1"),
        (vec![10, 4, 1, 0xff], "the text is not UTF-8"),
        (vec![10, 77, 0], "no value has the number 77"),
    ];
    for (bytes, why) in cases {
        assert_eq!(pull::<Response>(&message(&bytes)), Err(malformed(why)));
    }
    let reason = message(&[8, 0, 10]);
    let why = "the reason for no protection is unknown";
    assert_eq!(pull::<Response>(&reason), Err(malformed(why)));
}

/// Changes the only byte with this value.
fn with_other_byte(message: &impl Message, before: u8, after: u8) -> Vec<u8> {
    let mut bytes = bytes_of(message);
    let mut places = bytes[5..].iter_mut().filter(|byte| **byte == before);
    *places.next().expect("it is there") = after;
    assert_eq!(places.next(), None, "the byte is not the only one");
    bytes
}

#[test]
fn value_out_of_range_is_malformed() {
    let keys = with_other_byte(&Response::Keys(LINK_KEYS), 1, 2);
    let why = "the slot of a key is neither 0 nor 1";
    assert_eq!(pull::<Response>(&keys), Err(malformed(why)));
    let connection = |scale| {
        let handshake = Handshake {
            window_scale: 11,
            ..resume().handshake
        };
        let resume = Resume {
            handshake,
            ..resume()
        };
        request_error(&with_other_byte(&Request::Resume(resume), 11, scale))
    };
    assert_eq!(connection(14), None);
    assert_eq!(
        connection(15),
        Some(malformed("a window scale is above 14"))
    );
    let attach = |replay| {
        let attach = Attach {
            instance: 77,
            replay,
            ..Attach::PLAIN
        };
        bytes_of(&Request::Attach(attach))
    };
    let mut unknown = attach(ReplayMode::Request);
    let differs = |(a, b)| a != b;
    let other = attach(ReplayMode::Connection);
    let at = unknown.iter().zip(&other).position(differs).unwrap();
    unknown[at] = 2;
    let why = "the code of the replay mode is unknown";
    assert_eq!(request_error(&unknown), Some(malformed(why)));
    let last = attach(ReplayMode::Request).len() - 1;
    if !cfg!(feature = "next-version") {
        let mut empty = attach(ReplayMode::Request);
        empty[last] = 0;
        let why = "a range of versions has no version";
        assert_eq!(request_error(&empty), Some(malformed(why)));
    }
}

/// A name is passed on to other hosts, so it must leave room in any message.
#[test]
fn long_name_is_refused_in_each_message() {
    let error = |len: usize| {
        let name = || "n".repeat(len);
        let claim = |service, host_name| {
            Request::Claim(Claim {
                host: 0,
                serves: false,
                shared: false,
                host_name,
                service,
                addresses: Vec::new(),
                determinants: 0,
            })
        };
        let requests = [
            Request::Hello {
                service: name(),
                frames: crate::mirror::VERSIONS,
            },
            Request::Attach(Attach {
                service: name(),
                ..Attach::PLAIN
            }),
            Request::Lease(LeaseRequest {
                instance: 0,
                host: 0,
                number: 0,
                life: 0,
                preference: 0,
                standing: Standing::First,
                service: name(),
            }),
            Request::GiveUp { service: name() },
            Request::Follow {
                service: name(),
                edition: None,
                streams: Vec::new(),
            },
            claim(name(), String::new()),
            claim(String::new(), name()),
        ];
        let responses = [(len, 0), (0, len)].map(|(serves, stands_by)| Response::Hosts {
            serves: "n".repeat(serves),
            stands_by: "n".repeat(stands_by),
            determinants: 0,
        });
        let requests = requests.map(|one| request_error(&bytes_of(&one)));
        let responses = responses.map(|one| pull::<Response>(&bytes_of(&one)).err());
        requests.into_iter().chain(responses).collect::<Vec<_>>()
    };
    assert_eq!(error(NAME_LEN_MAX), vec![None; 9]);
    let why = "a name has 256 bytes, and the longest name 255 bytes";
    assert_eq!(error(NAME_LEN_MAX + 1), vec![Some(malformed(why)); 9]);
}

#[test]
fn after_an_error_the_stream_is_dead() {
    let mut decoder = Decoder::<Request>::new(Agreed::OWN);
    decoder.feed(&bytes_of(&Request::Summaries));
    decoder.feed(&message(&[]));
    assert_eq!(decoder.pull(), Ok(Some(Request::Summaries)));
    let error = malformed("it ends within a field");
    assert_eq!(decoder.pull(), Err(error.clone()));
    decoder.feed(&bytes_of(&Request::Summaries));
    assert_eq!(decoder.pull(), Err(error));
    assert!(!decoder.is_at_boundary());
    assert_eq!(decoder.agreed(), None);
}

const FLOW: FlowId = FlowId(u64::MAX);
const SEQ: SeqNumber = SeqNumber(u32::MAX);

/// Values whose encodings are as long as they get.
fn widest_summary() -> RecordSummary {
    RecordSummary {
        start: SEQ,
        stable_seq: SEQ,
        client_fin: Some(ClientFin {
            seq: SEQ,
            heard: SEQ,
        }),
        turn_instream: SEQ,
        turn_outstream: SEQ,
        answers: [SEQ; 2],
        doubt: SEQ,
        outstream_end: Some(SEQ),
        unprotected: Some(UnprotectedReason::MirrorLost),
        #[cfg(feature = "next-version")]
        next: Some(SEQ),
        ..RecordSummary::fresh(FLOW, SEQ, SEQ)
    }
}

fn widest_connection() -> Recorded {
    Recorded {
        beginning: Resume {
            flow: FLOW,
            client_isn: SEQ,
            server_isn: SEQ,
            instream: SEQ,
            outstream: SEQ,
            handshake: Handshake {
                tsval: u32::MAX,
                syn_window: u16::MAX,
                syn_flags: u8::MAX,
                syn_options: SynOptions::new(&[1; 40]).unwrap(),
                ..Handshake::PLAIN
            },
            ..resume()
        },
        acknowledged: u64::MAX,
        tsval: u32::MAX,
        tsecr: u32::MAX,
    }
}

const DIGEST: Digest = Digest {
    folded: u64::MAX,
    sum: u64::MAX,
    base: SEQ,
    next: SEQ,
};

/// A list of so many of the widest elements fills a message and fits; each element is as long as promised.
fn list_fits(message: impl Fn(usize) -> Response, promised: usize) {
    let one = bytes_of(&message(2)).len() - bytes_of(&message(1)).len();
    assert_eq!(one, promised);
    let full = message(MAX_DATA / promised);
    let bytes = bytes_of(&full);
    assert!(bytes.len() > MAX_DATA - promised);
    assert_eq!(pull(&bytes), Ok(Some(full)));
}

#[test]
fn lists_of_promised_length_fit() {
    let (last, flow) = (false, FLOW);
    list_fits(
        |count| Response::Summaries {
            summaries: vec![widest_summary(); count],
            last,
        },
        MAX_DATA / RecordSummary::PER_MESSAGE,
    );
    list_fits(
        |count| Response::Connections {
            connections: vec![widest_connection(); count],
            last,
        },
        MAX_DATA / Recorded::PER_MESSAGE,
    );
    list_fits(
        |count| Response::Beginnings {
            flow,
            places: vec![(SEQ, SEQ); count],
            last,
        },
        PLACE_LEN,
    );
    list_fits(
        |count| Response::Digests {
            flow,
            digests: vec![DIGEST; count],
            last,
        },
        DIGEST_LEN,
    );
}

#[test]
fn bytes_of_promised_length_fit_and_longer_ones_are_refused() {
    let flow = FLOW;
    let data = |len| Response::Data {
        flow,
        from: SEQ,
        bytes: vec![7; len],
    };
    assert_eq!(pull(&bytes_of(&data(MAX_DATA))), Ok(Some(data(MAX_DATA))));
    let heads = |lens: &[usize]| Response::OutstreamHeads {
        flow,
        ranges: lens.iter().map(|len| (SEQ, vec![7; *len])).collect(),
        last: false,
    };
    let half = MAX_DATA / 2 - HEAD_OVERHEAD;
    let many = vec![0; MAX_DATA / HEAD_OVERHEAD];
    for lens in [&[MAX_DATA - HEAD_OVERHEAD][..], &[half, half], &many] {
        assert_eq!(pull(&bytes_of(&heads(lens))), Ok(Some(heads(lens))));
    }
    let image = Request::TellImage {
        record: u64::MAX,
        image: u64::MAX,
        length: u64::MAX,
        from: u64::MAX,
        bytes: vec![7; MAX_DATA],
    };
    assert_eq!(pull(&bytes_of(&image)), Ok(Some(image)));
    let mut out = vec![1];
    let error = encode(&data(MAX_MESSAGE), Agreed::OWN, &mut out);
    assert_eq!(error, Err(ControlError::TooLong(MAX_MESSAGE + 19)));
    assert_eq!(out, [1]);
}

#[test]
fn list_of_too_many_elements_is_refused_at_both_ends() {
    let heads = |count| Response::OutstreamHeads {
        flow: FlowId(0),
        ranges: vec![(SeqNumber(0), vec![]); count],
        last: false,
    };
    let most = framed::list::most::<(SeqNumber, Vec<u8>)>();
    assert_eq!(pull(&bytes_of(&heads(most))), Ok(Some(heads(most))));
    let error = encode(&heads(most + 1), Agreed::OWN, &mut Vec::new());
    assert_eq!(error, Err(ControlError::ListTooLong));
    // As a peer would write it: number, flow, count, and elements of two bytes in frames.
    let mut bytes = vec![4, 0];
    let count = u32::try_from(most + 1).unwrap();
    bytes.extend(postcard::to_allocvec(&count).unwrap());
    bytes.extend([2, 0, 0].repeat(most + 1));
    bytes.push(0);
    let error = pull::<Response>(&message(&bytes));
    assert_eq!(error, Err(malformed("a list is too long")));
}

/// An announced length is a number, and nothing is allocated for it.
#[test]
fn announced_length_beyond_the_message_is_malformed() {
    for number in [0xff_u32, u32::MAX] {
        let length = postcard::to_allocvec(&number).unwrap();
        for kind in [2, 4, 5, 16] {
            for fields in [&[][..], &[0]] {
                let bytes = [&[kind], fields, &length[..]].concat();
                let error = pull::<Response>(&message(&bytes)).err();
                assert!(
                    matches!(error, Some(ControlError::Malformed(_))),
                    "{error:?}"
                );
            }
        }
    }
}

#[test]
fn fixed_layout_of_a_connection_leads_back() {
    for resume in [resume(), widest_connection().beginning] {
        let bytes = resume.to_bytes();
        assert_eq!(Resume::from_bytes(&bytes), Some(resume));
        let mut wrong = bytes;
        wrong[Resume::LEN - 1] = 1;
        assert_eq!(Resume::from_bytes(&wrong), None);
    }
}
