use super::*;
use crate::packets;
use std::string::ToString;
use std::vec::Vec;

fn segment(bytes: &[u8]) -> Segment<'_> {
    Segment::of(&IpPacket::parse(bytes).unwrap()).unwrap()
}

#[test]
fn captured_syn() {
    let syn = segment(packets::V4_SYN);
    assert_eq!((syn.source_port(), syn.destination_port()), (0xc4b6, 80));
    assert_eq!(
        (syn.seq(), syn.ack()),
        (SeqNumber(0x187d_ca88), SeqNumber(0))
    );
    assert_eq!(syn.flags(), Flags::SYN);
    assert_eq!(
        (syn.window(), syn.checksum(), syn.urgent()),
        (0xfaf0, 0x9fbb, 0)
    );
    assert_eq!((syn.header_len(), syn.option_bytes().len()), (40, 20));
    assert_eq!(
        syn.timestamps(),
        Some(Timestamps {
            value: 0x4cad_a494,
            echo: 0
        })
    );
    assert_eq!(syn.payload(), b"");
    assert_eq!(syn.sequence_len(), 1, "a SYN occupies one number");
}

#[test]
fn captured_segments_are_contiguous() {
    let (syn, answer) = (segment(packets::V4_SYN), segment(packets::V4_SYN_ACK));
    let (data, fin) = (segment(packets::V4_DATA), segment(packets::V4_FIN));
    assert_eq!(answer.ack(), syn.end_seq());
    assert_eq!(data.seq(), syn.end_seq());
    assert_eq!(data.payload(), b"GET / HTTP/1.0\r\n\r\n");
    assert_eq!(fin.seq(), data.end_seq());
    assert_eq!(fin.flags(), Flags::FIN | Flags::ACK);
    assert_eq!(fin.end_seq(), fin.seq() + 1, "a FIN occupies one number");
}

#[test]
fn truncated_capture_has_sequence_length() {
    let packet = IpPacket::parse_captured(&packets::V4_DATA[..55], 70).unwrap();
    let cut = Segment::of(&packet).unwrap();
    assert_eq!(cut.payload(), b"GET");
    assert_eq!((cut.payload_len(), cut.sequence_len()), (18, 18));
    assert_eq!(cut.end_seq(), segment(packets::V4_DATA).end_seq());
}

#[test]
fn malformed_segments_are_refused() {
    let icmp = IpPacket::parse(packets::V6_ICMP).unwrap();
    assert_eq!(Segment::of(&icmp), Err(WireError::NotTcp(58)));
    let mut bytes = packets::V4_DATA[20..].to_vec();
    let short = WireError::Truncated {
        needed: 20,
        available: 19,
    };
    assert_eq!(Segment::parse(&bytes[..19]), Err(short));
    let no_options = WireError::Truncated {
        needed: 32,
        available: 31,
    };
    assert_eq!(Segment::parse(&bytes[..31]), Err(no_options));
    bytes[DATA_OFFSET] = 0x4f;
    assert_eq!(Segment::parse(&bytes), Err(WireError::BadDataOffset(16)));
    let refused = SegmentMut::parse(&mut bytes, ChecksumMode::Full);
    assert_eq!(refused.map(|_| ()), Err(WireError::BadDataOffset(16)));
}

#[test]
fn flags_are_sets() {
    let syn_ack = Flags::SYN.union(Flags::ACK);
    assert!(syn_ack.contains(Flags::SYN) && syn_ack.contains(syn_ack));
    assert!(!Flags::SYN.contains(syn_ack) && syn_ack.contains(Flags::NONE));
    assert_eq!(syn_ack.bits(), 0x12);
    assert_eq!(syn_ack.to_string(), "SYN+ACK");
    assert_eq!(Flags::NONE.to_string(), "none");
    assert_eq!(
        Flags::from_bits(0xff).to_string(),
        "FIN+SYN+RST+PSH+ACK+URG+ECE+CWR"
    );
}

/// The packet and the checksum field after `change`, for a packet from the wire.
fn checksum_after(mode: ChecksumMode, change: impl Fn(&mut SegmentMut<'_>)) -> (Vec<u8>, u16) {
    let mut bytes = packets::V4_DATA[20..].to_vec();
    let mut segment = SegmentMut::parse(&mut bytes, mode).unwrap();
    change(&mut segment);
    let field = segment.view().checksum();
    (bytes, field)
}

#[test]
fn edits_update_full_checksum_only() {
    let packet = IpPacket::parse(packets::V4_DATA).unwrap();
    let changes: [fn(&mut SegmentMut<'_>); 5] = [
        |segment| segment.set_seq(SeqNumber(0)),
        |segment| segment.set_ack(SeqNumber(u32::MAX)),
        |segment| segment.set_window(1),
        |segment| segment.set_flags(Flags::RST),
        |segment| assert!(segment.edit_options(|o| crate::replace_timestamps(o, 1, 2))),
    ];
    for change in changes {
        let (bytes, field) = checksum_after(ChecksumMode::Full, change);
        let right = checksum::tcp_checksum(packet.source(), packet.destination(), &bytes);
        assert_ne!(bytes, packet.payload());
        assert_eq!(field, right);
        let (_, field) = checksum_after(ChecksumMode::Partial, change);
        assert_eq!(field, 0x0bef, "left as it was");
    }
}

#[test]
fn wrong_checksum_stays_wrong() {
    let packet = IpPacket::parse(packets::V4_DATA).unwrap();
    let mut bytes = packet.payload().to_vec();
    bytes[40] ^= 0x20;
    let mut segment = SegmentMut::parse(&mut bytes, ChecksumMode::Full).unwrap();
    segment.set_seq(SeqNumber(1));
    let state = crate::ChecksumState::of(packet.source(), packet.destination(), &bytes);
    assert_eq!(state, crate::ChecksumState::Invalid);
}
