//! Segments that tell how far the determinants at the logger reach.

use proptest::prelude::*;

use super::whatever::{piece, seq};
use super::*;

const NOTED: SegmentFlags = SegmentFlags {
    version: crate::link::VERSION,
    kind: SegmentKind::Noted,
    unfinished: false,
    slot: KeySlot::One,
};

fn noted(packet: &[u8], flags: SegmentFlags, place: SeqNumber) -> Vec<u8> {
    let mut datagram = Vec::new();
    seal(packet, FLOW, (flags, place), &KEY, &mut datagram).unwrap();
    datagram
}

#[test]
fn the_layout_is_pinned() {
    for (v6, tcp) in [(false, 20), (true, 40)] {
        let seq = SeqNumber(0x0001_0010);
        let packet = packet(&flow_key(v6), seq, b"hello", ChecksumMode::Full);
        let datagram = noted(&packet, NOTED, SeqNumber(0xfff0));
        assert_eq!(datagram[if v6 { 7 } else { 8 }], 0x34);
        assert_eq!(datagram[tcp + 14..tcp + 16], [0, 0x20]);
        let view = SegmentView::parse(&datagram).unwrap();
        assert_eq!(view.noted(), Some(SeqNumber(0xfff0)));
        assert!(view.is_undamaged(&flow_key(v6)) && view.verify(&keys(), FLOW));
    }
}

#[test]
fn no_other_kind_says_what_is_noted() {
    use SegmentKind::{Doubted, Head, HeardAll, Plain, Turn};
    let packet = packet(&flow_key(false), SeqNumber(1), b"", ChecksumMode::Full);
    for kind in [Plain, HeardAll, Turn, Head, Doubted] {
        let datagram = noted(&packet, SegmentFlags { kind, ..NOTED }, SeqNumber(1));
        assert_eq!(SegmentView::parse(&datagram).unwrap().noted(), None);
    }
}

/// The same for the client's data from a dead host, which never reaches beyond the original
/// position.
#[test]
fn what_is_in_doubt_says_what_its_client_had_heard() {
    let packet = packet(&flow_key(false), SeqNumber(1), b"again", ChecksumMode::Full);
    let plain = noted(&packet, NOTED, SeqNumber(1));
    let plain = SegmentView::parse(&plain).unwrap();
    assert_eq!(plain.heard(), None);
    let ack = plain.segment().ack();
    let kind = SegmentKind::Doubted;
    for (beyond, says) in [(0, 0), (700, 700), (65_535, 65_535), (70_000, 65_535)] {
        let datagram = noted(&packet, SegmentFlags { kind, ..NOTED }, ack + beyond);
        let view = SegmentView::parse(&datagram).unwrap();
        assert_eq!(view.heard(), Some(ack + says));
        assert!(view.is_undamaged(&flow_key(false)) && view.verify(&keys(), FLOW));
    }
}

#[test]
fn what_is_no_packet_is_not_sealed() {
    let mut out = Vec::new();
    let sealed = seal(b"hello", FLOW, (NOTED, SeqNumber(1)), &KEY, &mut out);
    assert!(sealed.is_err() && out.is_empty());
}

proptest! {
    /// Each piece of a packet that was cut on its way says the place that the packet said.
    #[test]
    fn the_place_is_the_same_in_all_pieces(
        v6: bool, unfinished: bool,
        seq in seq(),
        behind: u16,
        len in 0usize..65_000,
        size in 500usize..9000,
    ) {
        let key = flow_key(v6);
        let mode = if unfinished { ChecksumMode::Partial } else { ChecksumMode::Full };
        let packet = packet(&key, seq, &vec![7; len], mode);
        let place = seq - u32::from(behind);
        let datagram = noted(&packet, SegmentFlags { unfinished, ..NOTED }, place);
        let whole = SegmentView::parse(&datagram).unwrap();
        prop_assert_eq!((whole.noted(), whole.base_seq()), (Some(place), seq));
        prop_assert!(whole.is_undamaged(&key) && whole.verify(&keys(), FLOW));
        for index in 0..len.div_ceil(size) {
            let piece = piece(&datagram, &key, index, size);
            let view = SegmentView::parse(&piece).unwrap();
            prop_assert_eq!(view.noted(), Some(place));
            prop_assert!(view.is_undamaged(&key) && view.verify(&keys(), FLOW));
        }
    }

    /// A bit of the place that changes on the way is noticed: the tag does not cover it, the checksum does.
    #[test]
    fn a_damaged_place_is_not_believed(v6: bool, bit in 0u8..16) {
        let key = flow_key(v6);
        let packet = packet(&key, SeqNumber(7), b"hello", ChecksumMode::Full);
        let mut datagram = noted(&packet, NOTED, SeqNumber(7));
        let window = if v6 { 40 } else { 20 } + 14;
        datagram[window + usize::from(bit / 8)] ^= 1 << (bit % 8);
        prop_assert!(!SegmentView::parse(&datagram).unwrap().is_undamaged(&key));
    }
}
