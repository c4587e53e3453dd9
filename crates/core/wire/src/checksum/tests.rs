use super::*;
use crate::{IpPacket, Segment, packets};
use proptest::prelude::*;
use std::vec::Vec;

/// The definition in RFC 1071, word by word.
fn slow_sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(0, |sum, word| {
        let word = u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low));
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    })
}

#[test]
fn rfc_1071_section_3_example() {
    assert_eq!(
        sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
        0xddf2
    );
    assert_eq!(sum(&[]), 0);
    assert_eq!(sum(&[0xab]), 0xab00);
}

#[test]
fn rfc_1624_section_4_example() {
    assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn fold_wraps_carry() {
    assert_eq!(fold(0xffff), 0xffff);
    assert_eq!(fold(0x1_0000), 1);
    assert_eq!(fold(u32::MAX), 0xffff);
    assert_eq!(fold(0x1_ffff), 1);
}

#[test]
fn captured_packets_verify() {
    for bytes in [
        packets::V4_SYN,
        packets::V4_SYN_ACK,
        packets::V4_DATA,
        packets::V6_SYN,
        packets::V6_DATA,
    ] {
        let packet = IpPacket::parse(bytes).unwrap();
        let (source, destination) = (packet.source(), packet.destination());
        let segment = packet.payload();
        assert_eq!(
            ChecksumState::of(source, destination, segment),
            ChecksumState::Valid
        );
        let field = Segment::of(&packet).unwrap().checksum();
        assert_eq!(tcp_checksum(source, destination, segment), field);
    }
}

#[test]
fn offloaded_packets_are_partial() {
    for bytes in [packets::V4_SYN_PARTIAL, packets::V6_DATA_PARTIAL] {
        let packet = IpPacket::parse(bytes).unwrap();
        let state = ChecksumState::of(packet.source(), packet.destination(), packet.payload());
        assert_eq!(state, ChecksumState::Partial);
    }
}

#[test]
fn flipped_bit_is_invalid() {
    let packet = IpPacket::parse(packets::V4_DATA).unwrap();
    let mut segment = packet.payload().to_vec();
    *segment.last_mut().unwrap() ^= 1;
    let state = ChecksumState::of(packet.source(), packet.destination(), &segment);
    assert_eq!(state, ChecksumState::Invalid);
    let state = ChecksumState::of(packet.source(), packet.destination(), &segment[..17]);
    assert_eq!(state, ChecksumState::Invalid);
}

proptest! {
    #[test]
    fn fast_sum_equals_reference(bytes: Vec<u8>) {
        prop_assert_eq!(sum(&bytes), slow_sum(&bytes));
    }

    #[test]
    fn even_pieces_add_up(bytes: Vec<u8>, at: prop::sample::Index) {
        let at = at.index(bytes.len() + 1) & !1;
        let pieces = sum(&bytes[..at]) + sum(&bytes[at..]);
        prop_assert_eq!(u32::from(fold(pieces)), sum(&bytes));
    }

    #[test]
    fn long_run_of_ones_does_not_overflow(len in 0usize..200_000) {
        let bytes = std::vec![0xff; len];
        prop_assert_eq!(sum(&bytes), slow_sum(&bytes));
    }

    #[test]
    fn update_equals_full_computation(
        source: [u8; 16],
        destination: [u8; 16],
        mut segment in prop::collection::vec(any::<u8>(), 24..128),
        at: prop::sample::Index,
        new: [u8; 4],
        run: Vec<u8>,
    ) {
        let (source, destination) = (IpAddr::from(source), IpAddr::from(destination));
        let full = |segment: &[u8]| tcp_checksum(source, destination, segment);

        // Any even offset but the field itself.
        let at = 18 + (at.index(segment.len() - 21) & !1);
        let before = full(&segment);
        let old: [u8; 4] = segment[at..at + 4].try_into().unwrap();
        segment[at..at + 2].copy_from_slice(&new[..2]);
        let after_u16 = update_u16(before, be16(&old, 0), be16(&new, 0));
        prop_assert_eq!(after_u16, full(&segment));

        segment[at..at + 4].copy_from_slice(&new);
        let after_u32 = update_u32(before, u32::from_be_bytes(old), u32::from_be_bytes(new));
        prop_assert_eq!(after_u32, full(&segment));

        let run = &run[..run.len().min(segment.len() - at)];
        let old_run = segment[at..at + run.len()].to_vec();
        segment[at..at + run.len()].copy_from_slice(run);
        let after_run = update_bytes(after_u32, &old_run, run);
        prop_assert_eq!(after_run, full(&segment));
    }
}
