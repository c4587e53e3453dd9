use super::*;
use crate::{packets, properties};
use proptest::prelude::*;
use std::vec::Vec;

#[test]
fn captured_ipv4_packet() {
    let packet = IpPacket::parse(packets::V4_DATA).unwrap();
    assert_eq!(packet.source(), IpAddr::from([10, 0, 0, 1]));
    assert_eq!(packet.destination(), IpAddr::from([10, 0, 0, 2]));
    assert_eq!(packet.protocol(), PROTOCOL_TCP);
    assert_eq!(
        (
            packet.header_len(),
            packet.total_len(),
            packet.payload_len()
        ),
        (20, 70, 50)
    );
    assert_eq!(packet.payload(), &packets::V4_DATA[20..]);
}

#[test]
fn captured_ipv6_packet() {
    let packet = IpPacket::parse(packets::V6_DATA).unwrap();
    assert_eq!(packet.source(), "fd00::2".parse::<IpAddr>().unwrap());
    assert_eq!(packet.destination(), "fd00::1".parse::<IpAddr>().unwrap());
    assert_eq!(packet.protocol(), PROTOCOL_TCP);
    assert_eq!((packet.header_len(), packet.total_len()), (40, 75));
}

#[test]
fn ethernet_padding_is_not_payload() {
    for original in [packets::V4_FIN, packets::V6_SYN] {
        let mut padded = original.to_vec();
        padded.extend_from_slice(&[0xee; 6]);
        assert_eq!(IpPacket::parse(&padded), IpPacket::parse(original));
    }
}

#[test]
fn ipv4_options_belong_to_header() {
    let mut bytes = packets::V4_DATA.to_vec();
    bytes[0] = 0x46;
    bytes[3] += 4;
    bytes.splice(20..20, [1, 1, 1, 0]);
    let packet = IpPacket::parse(&bytes).unwrap();
    assert_eq!(packet.header_len(), 24);
    assert_eq!(packet.payload(), &packets::V4_DATA[20..]);
}

#[test]
fn big_tcp_packet_extends_to_buffer_end() {
    let mut v4 = packets::V4_DATA.to_vec();
    v4[2..4].fill(0);
    v4.resize(100_000, 0xaa);
    assert_eq!(IpPacket::parse(&v4).unwrap().total_len(), 100_000);
    let mut v6 = packets::V6_DATA.to_vec();
    v6[4..6].fill(0);
    v6.resize(100_000, 0xaa);
    let packet = IpPacket::parse(&v6).unwrap();
    assert_eq!(
        (packet.total_len(), packet.payload().len()),
        (100_000, 99_960)
    );
    let packet = IpPacket::parse_captured(&v6[..200], 100_000).unwrap();
    assert_eq!(
        (packet.payload_len(), packet.payload().len()),
        (99_960, 160)
    );
}

#[test]
fn truncated_capture_behind_ip_header() {
    let bytes = packets::V4_DATA;
    let packet = IpPacket::parse_captured(&bytes[..60], 70).unwrap();
    assert_eq!((packet.total_len(), packet.payload_len()), (70, 50));
    assert_eq!(packet.payload(), &bytes[20..60]);
    let cut_short = |needed, available| WireError::Truncated { needed, available };
    assert_eq!(
        IpPacket::parse_captured(&bytes[..19], 70),
        Err(cut_short(20, 19))
    );
    assert_eq!(IpPacket::parse_captured(bytes, 69), Err(cut_short(70, 69)));
    assert_eq!(IpPacket::parse(&bytes[..69]), Err(cut_short(70, 69)));
    assert_eq!(IpPacket::parse(&[]), Err(cut_short(20, 0)));
}

#[test]
fn fragments_are_refused() {
    for (flags, is_fragment) in [(0x40, false), (0x20, true), (0x00, false), (0x1f, true)] {
        let mut bytes = packets::V4_DATA.to_vec();
        bytes[6] = flags;
        let refused = IpPacket::parse(&bytes) == Err(WireError::Fragment);
        assert_eq!(refused, is_fragment, "flags {flags:#x}");
    }
    let mut low_offset = packets::V4_DATA.to_vec();
    low_offset[7] = 1;
    assert_eq!(IpPacket::parse(&low_offset), Err(WireError::Fragment));
    let mut v6 = packets::V6_DATA.to_vec();
    v6[6] = V6_FRAGMENT;
    assert_eq!(IpPacket::parse(&v6), Err(WireError::Fragment));
}

#[test]
fn extension_headers_are_refused() {
    let parsed = IpPacket::parse(packets::V6_HOP_BY_HOP);
    assert_eq!(parsed, Err(WireError::ExtensionHeader(0)));
    assert_eq!(IpPacket::parse(packets::V6_ICMP).unwrap().protocol(), 58);
}

/// A jumbo packet as Linux makes it on the loopback device.
fn jumbo(segment_len: usize) -> Vec<u8> {
    let mut bytes = packets::V6_DATA.to_vec();
    bytes[4..6].fill(0);
    bytes[6] = V6_HOP_BY_HOP;
    let length = u32::try_from(JUMBO_HEADER + segment_len).unwrap();
    bytes.splice(V6_HEADER..V6_HEADER, length.to_be_bytes());
    bytes.splice(V6_HEADER..V6_HEADER, JUMBO);
    bytes.resize(V6_HEADER + JUMBO_HEADER + segment_len, 0xaa);
    bytes
}

#[test]
fn jumbo_header_belongs_to_ip_header() {
    let bytes = jumbo(130_960);
    let packet = IpPacket::parse(&bytes).unwrap();
    assert_eq!(packet.protocol(), PROTOCOL_TCP);
    assert_eq!(packet.source(), "fd00::2".parse::<IpAddr>().unwrap());
    assert_eq!((packet.header_len(), packet.total_len()), (48, 131_008));
    assert_eq!(
        (packet.payload_len(), packet.payload()),
        (130_960, &bytes[48..])
    );
    let captured = IpPacket::parse_captured(&bytes[..100], bytes.len()).unwrap();
    assert_eq!(
        (captured.payload_len(), captured.payload()),
        (130_960, &bytes[48..100])
    );
    let cut_short = |needed, available| WireError::Truncated { needed, available };
    let cut = IpPacket::parse(&bytes[..131_007]);
    assert_eq!(cut, Err(cut_short(131_008, 131_007)));
}

#[test]
fn foreign_hop_by_hop_header_is_refused() {
    let refused = |what, bytes: &[u8]| {
        let parsed = IpPacket::parse(bytes);
        assert_eq!(parsed, Err(WireError::ExtensionHeader(0)), "{what}");
    };
    refused("a length that the IPv6 header can tell", &jumbo(65_527));
    assert!(IpPacket::parse(&jumbo(65_528)).is_ok());
    for at in [5, 40, 41, 42, 43] {
        let mut bytes = jumbo(70_000);
        bytes[at] ^= 1;
        refused("another length or option", &bytes);
    }
    refused("nothing behind", &jumbo(70_000)[..47]);
}

#[test]
fn contradictory_length_and_version_are_refused() {
    let mut short_header = packets::V4_DATA.to_vec();
    short_header[0] = 0x44;
    let contradiction = WireError::BadIpLength {
        header_len: 16,
        total_len: 70,
    };
    assert_eq!(IpPacket::parse(&short_header), Err(contradiction));
    let mut short_total = packets::V4_DATA.to_vec();
    short_total[2..4].copy_from_slice(&[0, 19]);
    let contradiction = WireError::BadIpLength {
        header_len: 20,
        total_len: 19,
    };
    assert_eq!(IpPacket::parse(&short_total), Err(contradiction));
    assert_eq!(
        IpPacket::parse(&[0x50; 40]),
        Err(WireError::UnknownVersion(5))
    );
}

/// Bytes that are often nearly a TCP packet: a packet from the wire with some bytes overwritten.
fn nearly_a_packet() -> impl Strategy<Value = Vec<u8>> {
    let originals = prop::sample::select(std::vec![
        packets::V4_SYN,
        packets::V4_DATA,
        packets::V6_SYN,
        packets::V6_DATA,
    ]);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8);
    (originals, changes, 0usize..100).prop_map(|(original, changes, len)| {
        let mut bytes = original.to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.resize(bytes.len().min(20 + len), 0);
        bytes
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes(bytes: Vec<u8>) {
        properties::packet(&bytes);
    }

    #[test]
    fn damaged_packet(bytes in nearly_a_packet()) {
        properties::packet(&bytes);
    }

    #[test]
    fn arbitrary_segment_behind_valid_ipv4_header(segment in prop::collection::vec(any::<u8>(), 20..120)) {
        let mut bytes = packets::V4_DATA[..20].to_vec();
        bytes[2..4].fill(0);
        bytes.extend_from_slice(&segment);
        properties::packet(&bytes);
    }
}
