use super::*;
use crate::{ChecksumState, IpPacket, Segment, packets, properties};
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;
use std::vec;

/// The spec that a captured packet is the result of.
fn spec_of(bytes: &[u8]) -> SegmentSpec<'_> {
    let packet = IpPacket::parse(bytes).unwrap();
    let segment = Segment::of(&packet).unwrap();
    SegmentSpec {
        source: SocketAddr::new(packet.source(), segment.source_port()),
        destination: SocketAddr::new(packet.destination(), segment.destination_port()),
        seq: segment.seq(),
        ack: segment.ack(),
        flags: segment.flags(),
        window: segment.window(),
        options: segment.option_bytes(),
        payload: segment.payload(),
    }
}

fn emit(spec: &SegmentSpec<'_>, mode: ChecksumMode) -> Result<Vec<u8>, EmitError> {
    let mut out = Vec::new();
    spec.emit(&mut out, mode)?;
    Ok(out)
}

#[test]
fn emitted_packet_equals_capture() {
    // Linux sends a SYN-ACK with identification 0, as we do: equal to the last byte.
    let spec = spec_of(packets::V4_SYN_ACK);
    assert_eq!(
        emit(&spec, ChecksumMode::Full).unwrap(),
        packets::V4_SYN_ACK
    );
    // Over IPv6 only the flow label differs, which no checksum covers.
    for (bytes, mode) in [
        (packets::V6_SYN, ChecksumMode::Full),
        (packets::V6_DATA, ChecksumMode::Full),
        (packets::V6_DATA_PARTIAL, ChecksumMode::Partial),
    ] {
        let mut unlabelled = bytes.to_vec();
        unlabelled[1..4].fill(0);
        assert_eq!(emit(&spec_of(bytes), mode).unwrap(), unlabelled);
    }
}

#[test]
fn ipv4_header_checksum_verifies() {
    let bytes = emit(&spec_of(packets::V4_DATA), ChecksumMode::Partial).unwrap();
    assert_eq!(checksum::fold(checksum::sum(&bytes[..20])), 0xffff);
}

#[test]
fn mapped_addresses_are_emitted_as_ipv4() {
    let mapped = |address: SocketAddr| {
        let SocketAddr::V4(v4) = address else {
            panic!("IPv4")
        };
        SocketAddr::new(IpAddr::V6(v4.ip().to_ipv6_mapped()), v4.port())
    };
    let plain = spec_of(packets::V4_DATA);
    let spec = SegmentSpec {
        source: mapped(plain.source),
        ..plain
    };
    assert_eq!(
        emit(&spec, ChecksumMode::Full),
        emit(&plain, ChecksumMode::Full)
    );
}

#[test]
fn mixed_families_are_refused() {
    let v4 = spec_of(packets::V4_DATA);
    let spec = SegmentSpec {
        destination: spec_of(packets::V6_DATA).destination,
        ..v4
    };
    let mismatch = EmitError::FamilyMismatch {
        source_address: spec.source.ip(),
        destination: spec.destination.ip(),
    };
    assert_eq!(emit(&spec, ChecksumMode::Full), Err(mismatch));
}

#[test]
fn limits_are_exact() {
    let payload = vec![7; MAX_PACKET];
    let plain = |original, len| SegmentSpec {
        options: &[],
        payload: &payload[..len],
        ..spec_of(original)
    };
    for (original, largest) in [(packets::V4_DATA, 65_495), (packets::V6_DATA, 65_515)] {
        let bytes = emit(&plain(original, largest), ChecksumMode::Full).unwrap();
        let packet = IpPacket::parse(&bytes).unwrap();
        let state = ChecksumState::of(packet.source(), packet.destination(), packet.payload());
        assert_eq!(
            (packet.total_len(), state),
            (bytes.len(), ChecksumState::Valid)
        );
        let refused = emit(&plain(original, largest + 1), ChecksumMode::Full);
        assert_eq!(refused, Err(EmitError::PacketTooLong(MAX_PACKET + 1)));
    }
    let spec = SegmentSpec {
        options: &[1; 41],
        ..spec_of(packets::V4_DATA)
    };
    assert_eq!(
        emit(&spec, ChecksumMode::Full),
        Err(EmitError::OptionsTooLong(41))
    );
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
        any::<u32>().prop_map(|bits| IpAddr::V6(Ipv4Addr::from_bits(bits).to_ipv6_mapped())),
    ]
}

proptest! {
    #[test]
    fn arbitrary_spec(
        (source, destination) in (address(), address()),
        (source_port, destination_port) in any::<(u16, u16)>(),
        (seq, ack, flags, window) in any::<(u32, u32, u8, u16)>(),
        options in prop::collection::vec(any::<u8>(), 0..44),
        payload in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        properties::round_trip(&SegmentSpec {
            source: SocketAddr::new(source, source_port),
            destination: SocketAddr::new(destination, destination_port),
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: Flags::from_bits(flags),
            window,
            options: &options,
            payload: &payload,
        });
    }
}
