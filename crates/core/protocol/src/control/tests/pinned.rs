//! The encoding of one example of each message, so that no change of the format is made by accident.

use super::lease::{LEASE_ANSWER, lease_request};
use super::*;
use crate::DigestSeed;

const IMAGE: KeptImage = KeptImage {
    number: 1,
    length: 2,
    base: 3,
    processes: 4,
};

const EDITION: Edition = Edition {
    record: 300,
    history: 2,
};

fn requests() -> Vec<Request> {
    let (flow, from, max_len) = (FlowId(300), SeqNumber(0xa0b0_c0d0), 9);
    let service = String::from("web");
    let all = vec![
        Request::Hello {
            service: service.clone(),
            frames: crate::Versions::new(5, 6).unwrap(),
        },
        Request::Summaries,
        Request::Read {
            flow,
            from,
            max_len,
        },
        Request::OutstreamHeads { flow },
        Request::Beginnings { flow },
        Request::Digests { flow },
        Request::Unprotect { flow },
        Request::Statistics,
        Request::Shutdown,
        Request::HoldTurns { hold: true },
        Request::Attach(Attach {
            link: crate::Versions::only(7),
            frames: crate::Versions::new(5, 6).unwrap(),
            ..attach()
        }),
        Request::DigestSeed(DigestSeed([1, 300])),
        Request::Rekey,
        Request::Frames { bytes: vec![7, 8] },
        Request::Barrier { token: 1 },
        Request::Resume(resume()),
        Request::InUse { session: 9 },
        Request::Connections,
        Request::Lease(lease_request()),
        Request::GiveUp {
            service: service.clone(),
        },
        Request::Claim(Claim {
            host: 0x0102,
            serves: true,
            shared: false,
            host_name: "a".into(),
            service: service.clone(),
            addresses: vec![
                "10.0.0.1:80".parse().unwrap(),
                "[fd00::1]:443".parse().unwrap(),
            ],
            determinants: 29,
        }),
        Request::Determinants {
            record: Some(9),
            said: vec![(1, 300), (2, 3)],
        },
        Request::TellDeterminants {
            record: 1,
            process: 2,
            from: 3,
            bytes: vec![4],
        },
        Request::ReadDeterminants {
            process: 1,
            from: 2,
            max_len,
        },
        Request::Release {
            places: vec![(flow, from)],
        },
        Request::CutDeterminants {
            process: 1,
            length: 2,
        },
        Request::Follow {
            service,
            edition: Some(EDITION),
            streams: vec![(1, 2)],
        },
        Request::TellImage {
            record: 1,
            image: 2,
            length: 3,
            from: 4,
            bytes: vec![5],
        },
        Request::CommitImage {
            record: 1,
            image: 2,
            base: 3,
            processes: 4,
        },
        Request::DropImage,
        Request::ReadImage {
            image: 1,
            from: 2,
            max_len,
        },
        Request::StoredImage {
            service: "web".into(),
        },
        Request::ReadStoredImage {
            service: "web".into(),
            image: 1,
            from: 2,
            max_len,
        },
    ];
    #[cfg(feature = "next-version")]
    let all = [all, vec![Request::Next { token: 1 }]].concat();
    all
}

fn responses() -> Vec<Response> {
    let (flow, from) = (FlowId(300), SeqNumber(0xa0b0_c0d0));
    let bytes = vec![7, 8];
    let recorded = Recorded {
        beginning: resume(),
        acknowledged: 0x0a0b,
        tsval: 12,
        tsecr: 13,
    };
    vec![
        Response::Hello {
            pid: 300,
            frames: 5,
        },
        Response::Drained { token: 1 },
        Response::Summaries {
            summaries: vec![summary()],
            last: true,
        },
        Response::Data {
            flow,
            from,
            bytes: bytes.clone(),
        },
        Response::OutstreamHeads {
            flow,
            ranges: vec![(from, vec![0xaa]), (SeqNumber(9), vec![])],
            last: false,
        },
        Response::Beginnings {
            flow,
            places: vec![(from, SeqNumber(1))],
            last: true,
        },
        Response::DigestSeed(DigestSeed([1, 300])),
        Response::Digests {
            flow,
            digests: vec![DIGEST],
            last: true,
        },
        Response::Unprotected {
            flow,
            reason: UnprotectedReason::AwaitsTurn,
        },
        Response::Statistics(Statistics {
            flows: 1,
            unprotected_flows: 2,
            instream_bytes: 3,
            outstream_bytes: 4,
            held: 5,
            frames: 6,
            malformed_frames: 7,
            unknown_flow_frames: 300,
        }),
        Response::Error {
            code: ErrorCode::NoCommonVersion,
            message: "no".into(),
        },
        Response::Attached {
            pid: 9,
            kept: true,
            session: 8,
            keys: LINK_KEYS,
            frames: 5,
        },
        Response::Keys(LINK_KEYS),
        Response::Unknown { flow_low: 0x0102 },
        Response::Connections {
            connections: vec![recorded],
            last: false,
        },
        Response::GivenUp { epoch: 1 },
        Response::Claimed {
            beside: "so".into(),
        },
        Response::Lease(LEASE_ANSWER),
        Response::Hosts {
            serves: "a".into(),
            stands_by: "b".into(),
            determinants: 30,
        },
        Response::Determinants {
            edition: Some(EDITION),
            is_whole: true,
            image: Some(IMAGE),
            streams: vec![(1, 2)],
        },
        Response::DeterminantBytes {
            bytes: bytes.clone(),
        },
        Response::ImageTaken {
            record: 1,
            image: 2,
            there: 3,
        },
        Response::ImageKept {
            record: 1,
            image: 2,
        },
        Response::ImageRefused {
            record: 1,
            image: 2,
            why: "no".into(),
        },
        Response::ImageBytes {
            bytes: bytes.clone(),
        },
        Response::Followed { edition: None },
        Response::Grown {
            process: 1,
            from: 2,
            bytes,
        },
        Response::StoredImage { image: None },
    ]
}

/// Each message is there, and no number is left out.
fn are_all<M: Message + PartialEq + core::fmt::Debug>(examples: &[M]) {
    for (number, example) in examples.iter().enumerate() {
        let bytes = bytes_of(example);
        assert_eq!(usize::from(bytes[4]), number, "{example:?}");
        assert_eq!(pull::<M>(&bytes).unwrap().as_ref(), Some(example));
    }
    let next = u32::try_from(examples.len()).unwrap();
    let unknown = message(&postcard::to_allocvec(&next).unwrap());
    let error = ControlError::UnknownMessage(next);
    assert_eq!(pull::<M>(&unknown), Err(error));
}

#[test]
fn every_message_has_an_example() {
    are_all(&requests());
    are_all(&responses());
}

#[cfg(not(feature = "next-version"))]
fn table<M: Message + core::fmt::Debug>(examples: &[M]) -> String {
    use core::fmt::Write;
    let mut table = String::new();
    for example in examples {
        let named = format!("{example:?}");
        let name = named.split([' ', '(', '{']).next().unwrap_or_default();
        write!(table, "{name}:").unwrap();
        for byte in &bytes_of(example)[4..] {
            write!(table, " {byte:02x}").unwrap();
        }
        table.push('\n');
    }
    table
}

/// A change here is a change of the protocol: `CONTRIBUTING.md`, "Versions of formats".
#[cfg(not(feature = "next-version"))]
#[test]
fn encodings_are_pinned() {
    insta::assert_snapshot!("requests", table(&requests()));
    insta::assert_snapshot!("responses", table(&responses()));
}

/// A new message without a version of its own would be sent to peers that do not know the message.
#[test]
fn messages_of_each_version_are_counted() {
    let of_first = |since: &u8| *since == FIRST_NEGOTIATED;
    let requests: Vec<u8> = requests().iter().map(Message::since).collect();
    let responses: Vec<u8> = responses().iter().map(Message::since).collect();
    let first = |all: &[u8]| all.iter().copied().filter(|since| of_first(since)).count();
    assert_eq!((first(&requests), first(&responses)), (31, 27));
    let later = [requests, responses].concat();
    let known = FIRST_NEGOTIATED..=VERSION;
    assert!(later.iter().all(|since| known.contains(since)));
}

#[test]
fn older_stream_takes_all_messages_of_its_version() {
    let first = Agreed::on(VERSIONS, crate::Versions::only(OLDEST)).unwrap();
    let can_be_said = |message: &Request| encode(message, first, &mut Vec::new()).is_ok();
    let refused = requests().iter().filter(|one| !can_be_said(one)).count();
    // The requests of version 11, or of the version behind.
    let newer = match cfg!(feature = "next-version") {
        true => 1,
        false => 2,
    };
    assert_eq!(refused, newer);
}
