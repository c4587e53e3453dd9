//! Messages of the protocols.

use north_abi::{Call, HEADER_MAX, Record, handover};
use protocol::{
    Digest, DigestSeed, UnprotectedReason,
    control::{
        Agreed, Attach, Claim, ErrorCode, Message, Opening, ReplayMode, Request, Response, Resume,
        Role, encode,
    },
    link::{
        Ack, DETERMINANTS_OVERHEAD, Determinants, Handshake, Head, KeySlot, LinkKey, Open, Probe,
        ProbeKind, SegmentFlags, SegmentKind, Signer, Stable, StreamPosition, SynOptions, VERSION,
        seal, seal_head, seal_said,
    },
    mirror::{self, CloseReason, FrameKind, MirrorFrame},
};
use wire::{ChecksumMode, Flags, FlowId, FlowKey, SegmentSpec, SeqNumber};

const FLOW: FlowId = FlowId(1);

/// The property's key, in both slots.
pub(crate) const KEY: LinkKey = LinkKey([7; 16]);

fn flow_key(v6: bool) -> FlowKey {
    let [client, server] = match v6 {
        true => ["[fd00::1]:40000", "[fd00::10]:80"],
        false => ["10.0.0.1:40000", "10.0.0.10:80"],
    };
    FlowKey::new(
        client.parse().expect("an address"),
        server.parse().expect("an address"),
    )
}

pub(crate) fn packet(
    v6: bool,
    from_client: bool,
    seq: u32,
    flags: Flags,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let key = flow_key(v6);
    let (source, destination) = match from_client {
        true => (key.client(), key.server()),
        false => (key.server(), key.client()),
    };
    let mut bytes = Vec::new();
    let spec = SegmentSpec {
        source,
        destination,
        seq: SeqNumber(seq),
        ack: SeqNumber(5001),
        flags,
        window: 1000,
        options,
        payload,
    };
    spec.emit(&mut bytes, ChecksumMode::Full).expect("a packet");
    bytes
}

pub(crate) const TIMES: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];

const OF_A_SYN: [u8; 20] = [
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];

const SACK: [u8; 12] = [1, 1, 5, 10, 0, 0, 0, 9, 0, 0, 0, 12];

pub(crate) fn packets() -> Vec<Vec<u8>> {
    let data = Flags::ACK | Flags::PSH;
    vec![
        packet(false, true, 1000, Flags::SYN, &OF_A_SYN, b""),
        packet(true, true, 1000, Flags::SYN, &OF_A_SYN, b""),
        packet(false, false, 5000, Flags::SYN | Flags::ACK, &OF_A_SYN, b""),
        packet(false, true, 1001, data, &TIMES, b"GET / HTTP/1.1\r\n\r\n"),
        packet(true, false, 5001, data, &TIMES, b"HTTP/1.1 200 OK\r\n"),
        packet(false, true, 1019, Flags::ACK, &SACK, b""),
        packet(false, true, 1019, Flags::ACK | Flags::FIN, &[], b""),
        packet(true, true, 1019, Flags::RST, &[], b""),
        OF_A_SYN.to_vec(),
    ]
}

pub(crate) fn frame(kind: FrameKind, packet: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let frame = MirrorFrame {
        timestamp_ns: 7,
        server_nxt: SeqNumber(5001),
        server_ack: SeqNumber(1001),
        packet_len: u32::try_from(packet.len()).expect("short"),
        packet,
        ..MirrorFrame::of(kind, FLOW)
    };
    frame.encode(mirror::VERSION, &mut bytes).expect("a frame");
    bytes
}

fn opened() -> FrameKind {
    FrameKind::Opened {
        client_isn: SeqNumber(1000),
        server_isn: SeqNumber(5000),
    }
}

fn request_packet() -> Vec<u8> {
    packet(
        false,
        true,
        1001,
        Flags::ACK | Flags::PSH,
        &TIMES,
        b"GET / HTTP/1.1\r\n\r\n",
    )
}

pub(crate) fn answer_frame() -> Vec<u8> {
    let (from, asked) = (SeqNumber(5001), SeqNumber(1019));
    let answer = packet(
        false,
        false,
        5001,
        Flags::ACK | Flags::PSH,
        &TIMES,
        b"HTTP/1.1 200 OK\r\n",
    );
    frame(FrameKind::Outstream { from, asked }, &answer)
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    vec![
        frame(opened(), b""),
        frame(FrameKind::Instream, &request_packet()),
        answer_frame(),
        frame(FrameKind::Barrier { token: 3 }, b""),
        frame(FrameKind::Closed(CloseReason::ResetByClient), b""),
    ]
}

fn handshake() -> Handshake {
    Handshake {
        tsval: 6,
        syn_window: 7,
        syn_flags: 2,
        syn_options: SynOptions::new(&OF_A_SYN).expect("options"),
        window_scale: 7,
        client_scale: 8,
        timestamps: true,
        sack: true,
        ..Handshake::PLAIN
    }
}

fn position() -> StreamPosition {
    StreamPosition {
        version: VERSION,
        slot: KeySlot::One,
        instance: 5,
        record: 9,
        process: 3,
        offset: 5,
        is_over: false,
    }
}

pub(crate) fn datagrams() -> Vec<Vec<u8>> {
    let slot = KeySlot::One;
    let mut all = Vec::new();
    for kind in [
        SegmentKind::Plain,
        SegmentKind::Turn,
        SegmentKind::Noted,
        SegmentKind::Doubted,
    ] {
        let unfinished = false;
        let flags = SegmentFlags {
            version: VERSION,
            kind,
            unfinished,
            slot,
        };
        let mut datagram = Vec::new();
        seal(
            &request_packet(),
            FLOW,
            (flags, SeqNumber(1001)),
            &KEY,
            &mut datagram,
        )
        .expect("a packet");
        all.push(datagram);
    }
    let (after, keep, whole) = (SeqNumber(77), 9, 9);
    let signer = Signer {
        version: VERSION,
        slot,
        key: &KEY,
    };
    let mut datagram = Vec::new();
    let head = Head {
        after,
        keep,
        whole,
        asked: SeqNumber(1019),
    };
    seal_head(&request_packet(), FLOW, head, signer, &mut datagram).expect("a packet");
    all.push(datagram);
    let mut datagram = Vec::new();
    let says = (digest(), SeqNumber(1019));
    seal_said(&request_packet(), FLOW, says, signer, &mut datagram).expect("a packet");
    all.push(datagram);
    let open = Open {
        version: VERSION,
        slot,
        flow: FLOW,
        key: flow_key(false),
        client_isn: SeqNumber(1000),
        server_isn: SeqNumber(5000),
        handshake: handshake(),
    };
    let ack = Ack {
        version: VERSION,
        slot,
        counter: 9,
        flow: FLOW,
        key: flow_key(true),
        stable_seq: SeqNumber(1019),
        ranges: [Some((SeqNumber(1100), SeqNumber(1200))), None, None],
    };
    all.push(open.encode(&KEY).to_vec());
    all.push(ack.encode(&KEY).to_vec());
    all.push(Stable(position()).encode(&KEY).to_vec());
    for kind in [ProbeKind::Probe, ProbeKind::Probed] {
        let counter = 3;
        all.push(
            Probe {
                version: VERSION,
                kind,
                slot,
                counter,
            }
            .encode(&KEY)
            .to_vec(),
        );
    }
    let mut datagram = vec![0; DETERMINANTS_OVERHEAD + 4];
    Determinants::room(&mut datagram).copy_from_slice(b"said");
    Determinants::seal(&position(), &KEY, &mut datagram);
    all.push(datagram);
    all
}

pub(crate) fn said<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, Agreed::OWN, &mut bytes).expect("a message");
    bytes
}

pub(crate) fn resume(flow: u64) -> Resume {
    Resume {
        flow: FlowId(flow),
        key: flow_key(flow % 2 == 0),
        client_isn: SeqNumber(1000),
        server_isn: SeqNumber(5000),
        instream: SeqNumber(1001),
        outstream: SeqNumber(5001),
        handshake: handshake(),
    }
}

pub(crate) fn digest() -> Digest {
    Digest {
        folded: 7,
        sum: 8,
        base: SeqNumber(5001),
        next: SeqNumber(90_001),
    }
}

pub(crate) fn attach() -> Attach {
    Attach {
        instance: 5,
        replay: ReplayMode::Request,
        per_connection: 4096,
        total: 1 << 14,
        connections: 4,
        udp_port: 1000,
        inherit: false,
        service: "web".into(),
        ..Attach::PLAIN
    }
}

pub(crate) fn requests() -> Vec<Request> {
    let flow = FLOW;
    let (from, max_len) = (SeqNumber(1001), 100);
    vec![
        Request::Hello {
            service: "web".into(),
            frames: mirror::VERSIONS,
        },
        Request::Summaries,
        Request::Read {
            flow,
            from,
            max_len,
        },
        Request::OutstreamHeads { flow },
        Request::Unprotect { flow },
        Request::Statistics,
        Request::HoldTurns { hold: true },
        Request::Attach(attach()),
        Request::Frames {
            bytes: answer_frame(),
        },
        Request::Barrier { token: 1 },
        Request::Resume(resume(1)),
        Request::Connections,
        Request::Release {
            places: vec![(flow, SeqNumber(1019))],
        },
        Request::InUse { session: 1 },
        Request::TellDeterminants {
            record: 9,
            process: 1,
            from: 0,
            bytes: b"said".to_vec(),
        },
        Request::ReadDeterminants {
            process: 1,
            from: 0,
            max_len,
        },
        Request::CutDeterminants {
            process: 1,
            length: 2,
        },
        Request::DropImage,
        Request::Beginnings { flow },
        Request::Digests { flow },
        Request::DigestSeed(DigestSeed([1, 2])),
        Request::Claim(Claim {
            host: 1,
            serves: false,
            shared: false,
            host_name: "host-a".into(),
            service: "web".into(),
            addresses: [false, true].map(|v6| flow_key(v6).server()).to_vec(),
            determinants: 29,
        }),
    ]
}

pub(crate) fn responses() -> Vec<Vec<u8>> {
    let flow = FLOW;
    let from = SeqNumber(1001);
    let all = [
        Response::Hello { pid: 1, frames: 3 },
        Response::Drained { token: 1 },
        Response::Data {
            flow,
            from,
            bytes: b"GET /".to_vec(),
        },
        Response::OutstreamHeads {
            flow,
            ranges: vec![(SeqNumber(5001), b"HTTP".to_vec())],
            last: true,
        },
        Response::Unprotected {
            flow,
            reason: UnprotectedReason::TotalLimit,
        },
        Response::Error {
            code: ErrorCode::NotKept,
            message: "no".into(),
        },
        Response::Beginnings {
            flow,
            places: vec![(from, SeqNumber(5001)), (SeqNumber(1009), SeqNumber(5005))],
            last: true,
        },
        Response::Digests {
            flow,
            digests: vec![digest()],
            last: true,
        },
        Response::DigestSeed(DigestSeed([1, 2])),
        Response::Claimed {
            beside: "another".into(),
        },
        Response::Hosts {
            serves: "host-a".into(),
            stands_by: "host-b".into(),
            determinants: 29,
        },
    ];
    all.iter().map(said).collect()
}

/// Openings of a control stream, alone and with a message after the opening.
pub(crate) fn openings() -> Vec<Vec<u8>> {
    let asks = Opening::of(Role::Asks).encode().to_vec();
    let answers = Opening::of(Role::Answers).encode().to_vec();
    vec![
        [&asks[..], &said(&Request::Summaries)].concat(),
        [&answers[..], &said(&Response::Hello { pid: 1, frames: 3 })].concat(),
        asks[..6].to_vec(),
    ]
}

/// Some targets read the size of the pieces first.
pub(crate) fn with_size(all: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    all.into_iter()
        .map(|bytes| [&[3], &bytes[..]].concat())
        .collect()
}

pub(crate) fn control_socket() -> Vec<Vec<u8>> {
    let lines = [
        "{\"ask\":\"status\"}\n",
        "{\"ask\":\"status\",\"list\":true}\n",
        "{\"ask\":\"events\",\"follow\":true}\n",
        "{\"ask\":\"move\"}\n",
    ];
    let mut all = with_size(lines.map(|line| line.as_bytes().to_vec()).to_vec());
    let frames = |frames: Vec<Vec<u8>>| Request::Frames {
        bytes: frames.concat(),
    };
    let all_requests: Vec<u8> = requests().iter().flat_map(said).collect();
    let opened = Request::Frames {
        bytes: frame(opened(), b""),
    };
    let taken = Request::Frames {
        bytes: frame(FrameKind::Instream, &request_packet()),
    };
    let ring = [said(&opened), said(&taken), all_requests.clone()].concat();
    let heads = frames(vec![
        answer_frame(),
        frame(FrameKind::Closed(CloseReason::Finished), b""),
    ]);
    let link = [
        said(&Request::Resume(resume(1))),
        said(&heads),
        all_requests,
    ]
    .concat();
    // No connection has this number: copies of records are read under this number.
    let reserved = Request::Resume(resume(FlowId::RESERVED.0));
    let reserved = [said(&reserved), said(&heads), said(&Request::Summaries)].concat();
    all.extend([ring, link, reserved]);
    all.extend(
        requests()
            .iter()
            .map(|request| [said(&Request::Resume(resume(1))), said(request)].concat()),
    );
    all
}

/// Openings of a handshake, valid and invalid.
pub(crate) fn strangers() -> Vec<Vec<u8>> {
    let key = channel::Key::generate("k").expect("randomness");
    let session = channel::Session::initiator(&key).expect("randomness");
    let greeting = session.outgoing().to_vec();
    with_size(vec![
        greeting.clone(),
        greeting[..greeting.len() / 2].to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ])
}

pub(crate) fn north() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for code in [1, 2, 5, 9, 14, 20, 28] {
        let payload = &b"PING\r\n"[..];
        let record = Record {
            call: Call::from_code(code).expect("a kind"),
            fd: 7,
            outcome: 6,
            payload,
        };
        let mut header = [0; HEADER_MAX];
        let length = record.header().write(&mut header);
        all.push([&header[..length], payload].concat());
    }
    let ends = handover::Ends::new(flow_key(false).client(), flow_key(false).server());
    let bytes = &b"+PONG\r\n"[..];
    let entry = handover::Entry::Output {
        connection: 1,
        offset: 2,
        bytes,
    };
    all.push([&entry.header()[..], bytes].concat());
    for entry in [
        handover::Entry::Began {
            connection: 1,
            ends,
        },
        handover::Entry::Open {
            connection: 1,
            fd: 7,
            ends,
        },
    ] {
        all.push(entry.header().to_vec());
    }
    all.push(
        handover::Message::Replayed {
            process: 1,
            connections: 2,
        }
        .to_bytes()
        .to_vec(),
    );
    all
}
