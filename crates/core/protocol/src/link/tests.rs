use super::*;
use crate::Digest;
use wire::{
    ChecksumMode, Flags, FlowId, FlowKey, IpPacket, Segment, SegmentSpec, SeqNumber, WireError,
};

mod noted;
mod whatever;

const KEY: LinkKey = LinkKey(*b"0123456789abcdef");
const FLOW: FlowId = FlowId(0x1122_3344_5566_7788);

const SIGNER: Signer<'static> = Signer {
    version: VERSION,
    slot: KeySlot::One,
    key: &KEY,
};

fn keys() -> KeySet {
    let mut keys = KeySet::EMPTY;
    keys.put(KeySlot::One, KEY);
    keys
}

fn flow_key(v6: bool) -> FlowKey {
    let [client, server] = if v6 {
        ["[fd00::1]:40000", "[fd00::10]:80"]
    } else {
        ["10.0.0.1:40000", "10.0.0.10:80"]
    };
    FlowKey::new(client.parse().unwrap(), server.parse().unwrap())
}

/// A client's packet.
fn packet(key: &FlowKey, seq: SeqNumber, payload: &[u8], mode: ChecksumMode) -> Vec<u8> {
    let mut bytes = Vec::new();
    SegmentSpec {
        source: key.client(),
        destination: key.server(),
        seq,
        ack: SeqNumber(77),
        flags: Flags::ACK | Flags::PSH,
        window: 1000,
        options: &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        payload,
    }
    .emit(&mut bytes, mode)
    .unwrap();
    bytes
}

fn flags(turn: bool, unfinished: bool) -> SegmentFlags {
    SegmentFlags {
        version: VERSION,
        kind: if turn {
            SegmentKind::Turn
        } else {
            SegmentKind::Plain
        },
        unfinished,
        slot: KeySlot::One,
    }
}

fn sealed(packet: &[u8], flags: SegmentFlags) -> Vec<u8> {
    let mut datagram = Vec::new();
    seal(packet, FLOW, (flags, SeqNumber(77)), &KEY, &mut datagram).unwrap();
    datagram
}

fn open() -> Open {
    Open {
        version: VERSION,
        slot: KeySlot::One,
        flow: FLOW,
        key: flow_key(false),
        client_isn: SeqNumber(0xa1a2_a3a4),
        server_isn: SeqNumber(0xb1b2_b3b4),
        handshake: Handshake {
            tsval: 0xd1d2_d3d4,
            syn_window: 0xe1e2,
            syn_flags: 0xc2,
            syn_options: SynOptions::new(&[2, 4, 5, 180]).unwrap(),
            window_scale: 7,
            client_scale: 8,
            timestamps: true,
            sack: false,
            whole_segments: true,
        },
    }
}

fn ack() -> Ack {
    Ack {
        version: VERSION,
        slot: KeySlot::One,
        counter: 9,
        flow: FLOW,
        key: flow_key(true),
        stable_seq: SeqNumber(0xc1c2_c3c4),
        ranges: [Some((SeqNumber(1), SeqNumber(2))), None, None],
    }
}

fn stream_position() -> StreamPosition {
    StreamPosition {
        version: VERSION,
        slot: KeySlot::One,
        instance: 0xa1a2,
        record: 0xb1b2,
        process: 3,
        offset: 5,
        is_over: false,
    }
}

/// Up to the number of the connection.
const BEGINNING: [u8; 16] = [
    0xf1, 0x4f, 0x4c, 0x6b, VERSION, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
#[rustfmt::skip]
fn the_layouts_are_pinned() {
    let datagram = open().encode(&KEY);
    let mut expected = BEGINNING.to_vec();
    expected[5] = 1;
    expected.extend([0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 10]);
    expected.extend([0x9c, 0x40, 0, 80]);
    expected.extend([0xa4, 0xa3, 0xa2, 0xa1, 0xb4, 0xb3, 0xb2, 0xb1]);
    expected.extend([0xd4, 0xd3, 0xd2, 0xd1, 0xe2, 0xe1, 0xc2, 4, 0x87, 5, 2, 4, 5, 180]);
    expected.extend([0; 38]);
    assert_eq!(datagram[..128], expected);
    assert_eq!(datagram[128..], KEY.tag(&expected).to_le_bytes());

    let datagram = ack().encode(&KEY);
    let mut expected = BEGINNING.to_vec();
    expected[5] = 3;
    expected[7] = 1;
    expected.extend([0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 9, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    expected.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10]);
    expected.extend([0x9c, 0x40, 0, 80]);
    expected.extend([0xc4, 0xc3, 0xc2, 0xc1, 1, 0, 0, 0, 2, 0, 0, 0]);
    expected.extend([0; 16]);
    assert_eq!(datagram[..96], expected);
    assert_eq!(datagram[96..], KEY.tag(&expected).to_le_bytes());

    for (kind, code) in [(ProbeKind::Probe, 4), (ProbeKind::Probed, 5)] {
        let datagram = Probe { version: VERSION, kind, slot: KeySlot::One, counter: 3 }.encode(&KEY);
        let mut expected = BEGINNING.to_vec();
        expected[5] = code;
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        if (code, VERSION) == (5, 9) {
            expected[9] = 1;
            expected.extend([0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        }
        let end = expected.len();
        assert_eq!(datagram[..end], expected);
        assert_eq!(datagram[end..], KEY.tag(&expected).to_le_bytes());
    }
}

#[test]
fn the_layout_of_a_segment_is_pinned() {
    let mut covered = [0; 16];
    covered[..8].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    covered[8..12].copy_from_slice(&[0x04, 0x03, 0x02, 0x01]);
    covered[12] = 0x32; // mode 1, slot 1, a turn
    covered[13] = VERSION;
    covered[14..].copy_from_slice(&heads_digest(SeqNumber(77)).to_be_bytes());
    let tag = KEY.tag(&covered).to_le_bytes();
    for v6 in [false, true] {
        let packet = packet(
            &flow_key(v6),
            SeqNumber(0x0102_0304),
            b"hello",
            ChecksumMode::Full,
        );
        let datagram = sealed(&packet, flags(true, false));
        let mut expected = packet.clone();
        let tcp = if v6 {
            expected[1] = VERSION << 4; // in the traffic class
            expected[7] = 0x32;
            expected[8..16].copy_from_slice(&tag);
            expected[16..40].fill(0);
            40
        } else {
            expected[1] = VERSION; // the TOS
            expected[8] = 0x32;
            expected[12..20].copy_from_slice(&tag);
            20
        };
        expected[tcp..tcp + 4].copy_from_slice(&[0x88, 0x77, 0x66, 0x55]);
        expected[tcp + 14..tcp + 16].copy_from_slice(&heads_digest(SeqNumber(77)).to_be_bytes());
        expected[tcp + 16..tcp + 18].copy_from_slice(&datagram[tcp + 16..tcp + 18]);
        expected[tcp + 18..tcp + 20].copy_from_slice(&[0x03, 0x04]);
        assert_eq!(datagram, expected);
        let segment = SegmentView::parse(&datagram).unwrap();
        assert!(segment.is_undamaged(&flow_key(v6)));
        assert!(!segment.is_undamaged(&flow_key(!v6)));
        assert!(segment.verify(&keys(), FLOW));
        let mut other = datagram.clone();
        other[tcp + 15] ^= 1;
        let other = SegmentView::parse(&other).unwrap();
        assert!(!other.verify(&keys(), FLOW), "the window is covered");
    }
}

#[test]
fn a_head_is_cut_and_says_what_was_before_it() {
    for v6 in [false, true] {
        let key = flow_key(v6);
        let packet = packet(
            &key,
            SeqNumber(9),
            b"HTTP/1.1 200 OK",
            ChecksumMode::Partial,
        );
        let kept = b"HTTP/1.1 200 OK";
        let all: [(u16, u16, &[u8], u32); 6] = [
            (8, 4096, b"HTTP/1.1", 4088),
            (99, 4096, kept, 4081),
            (0, 4096, b"", 4096),
            (15, 15, kept, 0),
            // Some of the answer before.
            (12, 3, b"200", 0),
            (15, 0, b"", 0),
        ];
        let asked = SeqNumber(u32::from_be_bytes([1, 2, 3, 4]));
        for (keep, whole, head_is, more) in all {
            let mut datagram = Vec::new();
            let after = SeqNumber(4);
            let says = Head {
                after,
                keep,
                whole,
                asked,
            };
            seal_head(&packet, FLOW, says, SIGNER, &mut datagram).unwrap();
            let head = SegmentView::parse(&datagram).unwrap();
            assert_eq!(head.flags().kind, SegmentKind::Head);
            assert_eq!((head.segment().seq(), head.after()), (SeqNumber(9), after));
            let end = usize::from(keep).min(kept.len());
            let told = Segment::of(&IpPacket::parse(&packet).unwrap())
                .unwrap()
                .ack();
            let ahead = asked.distance_from(told);
            let asked = told + ahead.map_or(0, |ahead| ahead.min((1 << 24) - 1));
            assert_eq!(head.asked(), Some(asked));
            let payload = [&kept[..end], &asked.0.to_be_bytes()].concat();
            assert_eq!(head.segment().payload(), payload);
            let skipped = u32::try_from(end - head_is.len()).unwrap();
            assert_eq!(head.head(), (SeqNumber(9) + skipped, head_is, more));
            assert!(head.verify(&keys(), FLOW) && head.is_undamaged(&key));
            // The checksum of a network card is as good.
            let at = if v6 { 40 } else { 20 };
            let sum =
                wire::checksum::tcp_checksum(key.client().ip(), key.server().ip(), &datagram[at..]);
            datagram[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
            assert!(SegmentView::parse(&datagram).unwrap().is_undamaged(&key));
            datagram[at + 13] ^= 1;
            assert!(!SegmentView::parse(&datagram).unwrap().is_undamaged(&key));
        }
    }
}

/// Whatever the segment carries of which it is made, and whether its payload was cut from a packet of the kernel's.
#[test]
fn a_digest_takes_the_place_of_a_payload() {
    let said = Digest {
        folded: 1,
        sum: u64::MAX,
        base: SeqNumber(3),
        next: SeqNumber(4),
    };
    for (v6, payload) in [
        (false, &b""[..]),
        (true, b""),
        (false, b"GET /"),
        (true, &[7; 900]),
    ] {
        let key = flow_key(v6);
        let packet = packet(&key, SeqNumber(9), payload, ChecksumMode::Full);
        let mut datagram = Vec::new();
        let says = (said, SeqNumber(8));
        seal_said(&packet, FLOW, says, SIGNER, &mut datagram).unwrap();
        let segment = SegmentView::parse(&datagram).unwrap();
        assert_eq!(segment.flags().kind, SegmentKind::Said);
        assert_eq!((segment.said(), segment.after()), (Some(said), says.1));
        assert_eq!(segment.segment().payload(), said.to_bytes());
        assert!(segment.verify(&keys(), FLOW) && segment.is_undamaged(&key));
        let at = if v6 { 40 } else { 20 };
        let sum =
            wire::checksum::tcp_checksum(key.client().ip(), key.server().ip(), &datagram[at..]);
        datagram[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
        assert!(SegmentView::parse(&datagram).unwrap().is_undamaged(&key));
        let last = datagram.len() - 1;
        datagram[last] ^= 1;
        assert!(!SegmentView::parse(&datagram).unwrap().is_undamaged(&key));
        // Other kinds and other lengths have none.
        let other = sealed(&packet, flags(false, false));
        assert_eq!(SegmentView::parse(&other).unwrap().said(), None);
    }
}

#[test]
fn every_kind_of_segment_says_what_it_is() {
    use SegmentKind::{Doubted, Head, HeardAll, Noted, Plain, Said, Turn};
    let packet = packet(&flow_key(false), SeqNumber(1), b"", ChecksumMode::Full);
    let kinds = [
        (0, Plain),
        (1, HeardAll),
        (2, Turn),
        (4, Noted),
        (5, Head),
        (6, Doubted),
        (7, Said),
    ];
    for (code, kind) in kinds {
        for (unfinished, slot) in [(false, KeySlot::One), (true, KeySlot::Zero)] {
            let flags = SegmentFlags {
                version: VERSION,
                kind,
                unfinished,
                slot,
            };
            assert_eq!(flags.byte() & 7, code);
            let datagram = sealed(&packet, flags);
            assert_eq!(SegmentView::parse(&datagram).unwrap().flags(), flags);
        }
    }
}

#[test]
fn the_digest_is_pinned_and_tells_distances_apart_that_servers_like() {
    assert_eq!(heads_digest(SeqNumber(0)), 0);
    assert_eq!(heads_digest(SeqNumber(1)), 0x9e37);
    assert_eq!(heads_digest(SeqNumber(0xdead_beef)), 0x9cb8);
    for power in 12..32 {
        for at in [0, 77, u32::MAX] {
            let other = SeqNumber(at) + (1 << power);
            assert_ne!(
                heads_digest(SeqNumber(at)),
                heads_digest(other),
                "2^{power}"
            );
        }
    }
}

/// The test vector of the authors of SipHash: the key 00..0f, the text 00..0e.
#[test]
fn the_tag_is_siphash_2_4() {
    let mut key = [0; 16];
    let mut text = [0; 15];
    for (value, byte) in (0..).zip(&mut key) {
        *byte = value;
    }
    for (value, byte) in (0..).zip(&mut text) {
        *byte = value;
    }
    assert_eq!(LinkKey(key).tag(&text), 0xa129_ca61_49be_45e5);
}

#[test]
fn a_key_does_not_show_itself() {
    let keys = LinkKeys {
        version: VERSION,
        slot: KeySlot::Zero,
        up: KEY,
        down: KEY,
    };
    assert!(!format!("{keys:?}").contains("48"));
}

#[test]
fn what_is_not_ours_is_refused() {
    assert_eq!(Kind::of(&[]), Err(LinkError::BadLength(0)));
    assert_eq!(
        Kind::of(b"\x16\x03\x01 hello"),
        Err(LinkError::BadMagic(0x2001_0316))
    );
    assert_eq!(Kind::of(&BEGINNING[..5]), Err(LinkError::BadLength(5)));
    assert_eq!(Kind::of(&BEGINNING), Err(LinkError::UnknownKind(0)));
    let mut newer = open().encode(&KEY);
    newer[4] = VERSION + 1;
    assert_eq!(
        Kind::of(&newer),
        Err(LinkError::UnknownVersion(VERSION + 1))
    );
    let mut of_other_mode = open().encode(&KEY);
    of_other_mode[8] = 2;
    assert_eq!(Kind::of(&of_other_mode), Err(LinkError::UnknownMode(2)));
    for at in [9, 15] {
        let mut with_options = open().encode(&KEY);
        with_options[at] = 1;
        renew_tag(&mut with_options);
        assert_eq!(
            Open::decode(&with_options, &keys()),
            Err(LinkError::BadField("options"))
        );
    }
    assert_eq!(
        SegmentView::parse(b"GET / HTTP"),
        Err(LinkError::Segment(WireError::Truncated {
            needed: 20,
            available: 10
        }))
    );
    let packet = packet(&flow_key(false), SeqNumber(1), b"", ChecksumMode::Full);
    assert_eq!(
        SegmentView::parse(&packet),
        Err(LinkError::UnknownVersion(0)),
        "a packet without a type of service"
    );
    for (at, flip, error) in [
        (1, 2, LinkError::UnknownVersion(VERSION ^ 2)),
        (8, 0x20, LinkError::UnknownMode(0)),
        (8, 3, LinkError::BadField("kind")),
    ] {
        let mut datagram = sealed(&packet, flags(false, false));
        datagram[at] ^= flip;
        assert_eq!(SegmentView::parse(&datagram), Err(error));
    }
}

fn renew_tag(datagram: &mut [u8]) {
    let signed = datagram.len() - 8;
    let tag = KEY.tag(&datagram[..signed]);
    datagram[signed..].copy_from_slice(&tag.to_le_bytes());
}

#[test]
fn one_kind_is_not_taken_for_another() {
    let ack = ack().encode(&KEY);
    assert_eq!(Kind::of(&ack), Ok(Kind::Ack));
    let mut padded = [0; OPEN_LEN];
    padded[..ACK_LEN].copy_from_slice(&ack);
    assert_eq!(
        Open::decode(&padded, &keys()),
        Err(LinkError::UnknownKind(3))
    );
    assert_eq!(
        Open::decode(&ack[..79], &keys()),
        Err(LinkError::BadLength(79))
    );
    let probe = Probe {
        version: VERSION,
        kind: ProbeKind::Probe,
        slot: KeySlot::One,
        counter: 1,
    };
    let probed = Probe::decode(ProbeKind::Probed, &probe.encode(&KEY), &keys());
    assert_eq!(probed, Err(LinkError::UnknownKind(4)));
}

#[test]
fn a_field_out_of_range_is_refused_even_with_a_tag() {
    let resign = |datagram: &mut [u8]| head::sign(datagram, &KEY);
    for (at, value, name) in [
        (7, 1, "count"),
        (24, 1, "counter"),
        (83, 41, "syn_options"),
        (84, 0x0f, "scales"),
        (84, 0xf0, "scales"),
        (85, 8, "agreed"),
        (90, 1, "unused"),
        (127, 1, "unused"),
    ] {
        let mut datagram = open().encode(&KEY);
        datagram[at] = value;
        resign(&mut datagram);
        let error = Open::decode(&datagram, &keys());
        assert_eq!(error, Err(LinkError::BadField(name)));
    }
    for (at, value, name) in [(7, 4, "count"), (80, 1, "ranges"), (6, 2, "slot")] {
        let mut datagram = ack().encode(&KEY);
        datagram[at] = value;
        resign(&mut datagram);
        let error = Ack::decode(&datagram, &keys());
        assert_eq!(error, Err(LinkError::BadField(name)));
    }
}

#[test]
fn only_the_keys_of_both_slots_are_taken() {
    let (new, mut keys) = (LinkKey([1; 16]), keys());
    let with = |slot, key: &LinkKey| Open { slot, ..open() }.encode(key);
    let unknown = Open::decode(&with(KeySlot::Zero, &new), &keys);
    assert_eq!(unknown, Err(LinkError::BadTag));
    keys.put(KeySlot::Zero, new);
    assert!(Open::decode(&with(KeySlot::Zero, &new), &keys).is_ok());
    assert!(Open::decode(&with(KeySlot::One, &KEY), &keys).is_ok());
    let wrong = Open::decode(&with(KeySlot::One, &new), &keys);
    assert_eq!(wrong, Err(LinkError::BadTag));
    assert_eq!(KeySlot::One.other(), KeySlot::Zero);
}

/// The next version has a field in PROBED, and nowhere else.
#[test]
fn options_of_probed_are_those_of_agreed_version() {
    for (version, len) in [(8, PROBE_LEN), (9, PROBE_LEN + 8)] {
        let probed = Probe {
            version,
            kind: ProbeKind::Probed,
            slot: KeySlot::One,
            counter: 5,
        };
        if !VERSIONS.contains(version) {
            continue;
        }
        let mut datagram = probed.encode(&KEY);
        assert_eq!(datagram.len(), len);
        let decode = |datagram: &[u8]| Probe::decode(ProbeKind::Probed, datagram, &keys());
        assert_eq!(decode(&datagram), Ok(probed));
        let kind = ProbeKind::Probe;
        assert_eq!(Probe { kind, ..probed }.encode(&KEY).len(), PROBE_LEN);
        if len > PROBE_LEN {
            datagram[PROBE_LEN - 8] ^= 1;
            head::sign(&mut datagram, &KEY);
            assert_eq!(decode(&datagram), Err(LinkError::BadField("options")));
        }
        datagram[4] ^= 8 ^ 9;
        head::sign(&mut datagram, &KEY);
        assert!(decode(&datagram).is_err(), "the length of another version");
    }
}

#[test]
fn a_probe_is_padded_its_answer_is_not() {
    for kind in [ProbeKind::Probe, ProbeKind::Probed] {
        let probe = Probe {
            version: VERSION,
            kind,
            slot: KeySlot::One,
            counter: 5,
        };
        let mut datagram = probe.encode(&KEY).to_vec();
        assert_eq!(Probe::decode(kind, &datagram, &keys()), Ok(probe));
        datagram.resize(1472, 0);
        let padded = Probe::decode(kind, &datagram, &keys());
        match kind {
            ProbeKind::Probe => assert_eq!(padded, Ok(probe)),
            ProbeKind::Probed => assert_eq!(padded, Err(LinkError::BadLength(1472))),
        }
        datagram[1000] = 1;
        assert!(Probe::decode(kind, &datagram, &keys()).is_err());
    }
}
