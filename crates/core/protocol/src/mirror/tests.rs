use super::*;
use crate::properties;
use proptest::prelude::*;

/// Every byte of the header differs from the others where the layout allows it.
const OPENED: MirrorFrame<&[u8]> = MirrorFrame {
    kind: FrameKind::Opened {
        client_isn: SeqNumber(0xa3a2_a1a0),
        server_isn: SeqNumber(0xb3b2_b1b0),
    },
    flow_id: FlowId(0x1716_1514_1312_1110),
    timestamp_ns: 0x2726_2524_2322_2120,
    server_nxt: SeqNumber(0x3332_3130),
    server_ack: SeqNumber(0x4342_4140),
    packet_len: 0x5352_5150,
    unfinished: false,
    #[cfg(feature = "next-version")]
    next: 0,
    packet: &[0xde, 0xad, 0xbe],
};

#[rustfmt::skip]
const OPENED_BYTES: [u8; OLDEST_HEADER_LEN + 3] = [
    b'O', b'U', b'T', b'L', 3, 4, 0, 0,
    0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
    0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27,
    0x30, 0x31, 0x32, 0x33, 0x40, 0x41, 0x42, 0x43,
    0x50, 0x51, 0x52, 0x53, 3, 0, 0, 0,
    0xa0, 0xa1, 0xa2, 0xa3, 0xb0, 0xb1, 0xb2, 0xb3,
    0xde, 0xad, 0xbe,
];

fn encode_in(version: u8, frame: &MirrorFrame<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(version, &mut out).unwrap();
    out
}

/// In the oldest version.
fn encode(frame: &MirrorFrame<&[u8]>) -> Vec<u8> {
    encode_in(VERSIONS.oldest(), frame)
}

#[test]
fn the_layout_is_pinned_byte_by_byte() {
    assert_eq!(encode(&OPENED), OPENED_BYTES);
    assert_eq!(MirrorFrame::decode(&OPENED_BYTES), Ok(OPENED));
}

/// The next version has a field more between the header of this version and the packet.
#[cfg(feature = "next-version")]
#[test]
fn layout_of_next_version_is_pinned() {
    let frame = MirrorFrame {
        next: 0xc7c6_c5c4_c3c2_c1c0,
        ..OPENED
    };
    let (header, packet) = OPENED_BYTES.split_at(OLDEST_HEADER_LEN);
    let next = [0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
    let mut pinned = [header, &next, packet].concat();
    pinned[AT_VERSION] = 4;
    assert_eq!(encode_in(4, &frame), pinned);
    assert_eq!(MirrorFrame::decode(&pinned), Ok(frame));
    assert_eq!(encode(&frame), OPENED_BYTES, "the field goes");
    for len in OLDEST_HEADER_LEN..pinned.len() {
        let needed = if len < HEADER_LEN {
            HEADER_LEN
        } else {
            pinned.len()
        };
        let available = len;
        let truncated = FrameError::Truncated { needed, available };
        assert_eq!(MirrorFrame::decode(&pinned[..len]), Err(truncated));
    }
}

#[test]
fn unknown_version_is_not_written() {
    for version in [0, 2, VERSION + 1] {
        let mut out = vec![7];
        let unknown = FrameError::UnknownVersion(version);
        assert_eq!(OPENED.encode(version, &mut out), Err(unknown));
        assert_eq!(out, [7]);
    }
}

#[test]
fn kind_reason_and_token_are_pinned() {
    let token = 0x0807_0605_0403_0201;
    let rows = [
        (FrameKind::Instream, 1, 0, [0; 8]),
        (
            FrameKind::Outstream {
                from: SeqNumber(0x0403_0201),
                asked: SeqNumber(0x0807_0605),
            },
            2,
            0,
            [1, 2, 3, 4, 5, 6, 7, 8],
        ),
        (FrameKind::Barrier { token }, 3, 0, [1, 2, 3, 4, 5, 6, 7, 8]),
        (FrameKind::Closed(CloseReason::Finished), 5, 1, [0; 8]),
        (FrameKind::Closed(CloseReason::ResetByClient), 5, 2, [0; 8]),
        (FrameKind::Closed(CloseReason::ResetByServer), 5, 3, [0; 8]),
        (FrameKind::Closed(CloseReason::Evicted), 5, 4, [0; 8]),
        (FrameKind::Digest, 6, 0, [0; 8]),
    ];
    for (kind, code, reason, token) in rows {
        let bytes = encode(&MirrorFrame { kind, ..OPENED });
        let mut unfinished = bytes.clone();
        unfinished[7] = 1;
        let read = MirrorFrame::decode(&unfinished).map(|frame| frame.unfinished);
        if matches!(kind, FrameKind::Instream | FrameKind::Outstream { .. }) {
            assert_eq!(read, Ok(true));
            unfinished[7] = 2;
            assert!(MirrorFrame::decode(&unfinished).is_err());
        } else {
            assert_eq!(read, Err(FrameError::UnusedField("unfinished")));
        }
        assert_eq!(
            (bytes[5], bytes[6], &bytes[40..48]),
            (code, reason, &token[..])
        );
        assert_eq!(MirrorFrame::decode(&bytes).unwrap().kind, kind);
    }
}

#[test]
fn a_packet_may_be_there_as_a_whole_or_not_at_all() {
    for (packet_len, packet) in [(3, OPENED.packet), (3, &[][..]), (0, &[])] {
        let frame = MirrorFrame {
            packet_len,
            packet,
            ..OPENED
        };
        assert_eq!(MirrorFrame::decode(&encode(&frame)), Ok(frame));
    }
}

#[test]
fn a_digest_is_in_the_place_of_a_packet() {
    let digest = Digest {
        folded: 0x0807_0605_0403_0201,
        sum: 0x1817_1615_1413_1211,
        base: SeqNumber(0x2423_2221),
        next: SeqNumber(0x3433_3231),
    };
    let bytes = digest.to_bytes();
    let pinned = [
        1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23,
        0x24, 0x31, 0x32, 0x33, 0x34,
    ];
    assert_eq!(bytes, pinned);
    let frame = |packet| MirrorFrame {
        kind: FrameKind::Digest,
        packet_len: 24,
        packet,
        ..OPENED
    };
    let read = |packet| MirrorFrame::decode(&encode(&frame(packet))).map(|frame| frame.digest());
    assert_eq!(read(&bytes), Ok(Some(digest)));
    assert_eq!(read(&bytes[1..]), Ok(None));
}

/// The result of decoding when the byte at `at` is `value`.
fn with_byte(at: usize, value: u8) -> Result<(), FrameError> {
    let mut bytes = OPENED_BYTES;
    bytes[at] = value;
    MirrorFrame::decode(&bytes).map(|_| ())
}

#[test]
fn each_fault_has_its_error() {
    assert_eq!(with_byte(0, b'o'), Err(FrameError::BadMagic(0x4c54_556f)));
    for version in [0, 2, VERSION + 1] {
        let unknown = Err(FrameError::UnknownVersion(version));
        assert_eq!(with_byte(4, version), unknown);
    }
    assert_eq!(with_byte(5, 0), Err(FrameError::UnknownKind(0)));
    assert_eq!(with_byte(5, 7), Err(FrameError::UnknownKind(7)));
    assert_eq!(with_byte(5, 5), Err(FrameError::UnknownReason(0)));
    assert_eq!(with_byte(6, 1), Err(FrameError::UnusedField("reason")));
    assert_eq!(with_byte(7, 1), Err(FrameError::UnusedField("unfinished")));
    assert_eq!(with_byte(5, 1), Err(FrameError::UnusedField("token")));
    let beyond = FrameError::CapturedBeyondPacket {
        captured: 0x6000_0003,
        packet_len: OPENED.packet_len,
    };
    assert_eq!(with_byte(39, 0x60), Err(beyond));
}

#[test]
fn a_frame_cut_anywhere_is_truncated_and_what_follows_it_is_ignored() {
    for len in 0..OPENED_BYTES.len() {
        let needed = if len < OLDEST_HEADER_LEN {
            OLDEST_HEADER_LEN
        } else {
            OPENED_BYTES.len()
        };
        let truncated = FrameError::Truncated {
            needed,
            available: len,
        };
        assert_eq!(MirrorFrame::decode(&OPENED_BYTES[..len]), Err(truncated));
    }
    let padded = [&OPENED_BYTES[..], &[0xff; 9]].concat();
    assert_eq!(MirrorFrame::first(&padded), Ok((OPENED, &[0xff; 9][..])));
}

#[test]
fn a_frame_with_more_of_a_packet_than_it_has_is_not_written() {
    let frame = MirrorFrame {
        packet_len: 2,
        ..OPENED
    };
    let beyond = FrameError::CapturedBeyondPacket {
        captured: 3,
        packet_len: 2,
    };
    let mut out = vec![7];
    assert_eq!(frame.encode(VERSION, &mut out), Err(beyond));
    assert_eq!(out, [7]);
}

fn kind() -> impl Strategy<Value = FrameKind> {
    let reason = prop::sample::select(vec![
        CloseReason::Finished,
        CloseReason::ResetByClient,
        CloseReason::ResetByServer,
        CloseReason::Evicted,
    ]);
    prop_oneof![
        Just(FrameKind::Instream),
        any::<(u32, u32)>().prop_map(|(from, asked)| FrameKind::Outstream {
            from: SeqNumber(from),
            asked: SeqNumber(asked),
        }),
        any::<u64>().prop_map(|token| FrameKind::Barrier { token }),
        any::<(u32, u32)>().prop_map(|(client, server)| FrameKind::Opened {
            client_isn: SeqNumber(client),
            server_isn: SeqNumber(server),
        }),
        reason.prop_map(FrameKind::Closed),
        Just(FrameKind::Digest),
    ]
}

proptest! {
    #[test]
    fn any_frame_is_read_as_it_was_written(
        kind in kind(),
        (flow_id, timestamp_ns, nxt, ack, missing) in any::<(u64, u64, u32, u32, u16)>(),
        packet: Vec<u8>,
    ) {
        let frame = MirrorFrame {
            kind,
            flow_id: FlowId(flow_id),
            timestamp_ns,
            server_nxt: SeqNumber(nxt),
            server_ack: SeqNumber(ack),
            packet_len: u32::try_from(packet.len()).unwrap() + u32::from(missing),
            unfinished: missing % 2 == 1
                && matches!(kind, FrameKind::Instream | FrameKind::Outstream { .. }),
            #[cfg(feature = "next-version")]
            next: timestamp_ns,
            packet: &packet[..],
        };
        let bytes = encode_in(VERSION, &frame);
        prop_assert_eq!(MirrorFrame::decode(&bytes), Ok(frame));
        properties::mirror_frame(&bytes);
        properties::mirror_frame(&encode(&frame));
    }

    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        properties::mirror_frame(&bytes);
    }

    #[test]
    fn any_damaged_frame(changes: Vec<(prop::sample::Index, u8)>, cut: prop::sample::Index) {
        for version in VERSIONS.oldest()..=VERSION {
            let mut bytes = encode_in(version, &OPENED);
            for (at, value) in changes.iter().take(3) {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            properties::mirror_frame(&bytes);
            properties::mirror_frame(&bytes[..cut.index(bytes.len())]);
        }
    }
}
