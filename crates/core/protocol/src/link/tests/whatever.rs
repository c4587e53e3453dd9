//! Whatever is said, and whatever becomes of it on the way.

use proptest::prelude::*;

use super::*;
use crate::properties;

/// Piece number `index` of a SEGMENT that segmentation offload cuts to `size` bytes of payload.
pub(super) fn piece(datagram: &[u8], key: &FlowKey, index: usize, size: usize) -> Vec<u8> {
    let whole = SegmentView::parse(datagram).unwrap();
    let segment = whole.segment();
    let ip = datagram.len() - segment.header_len() - segment.payload().len();
    let skipped = index * size;
    let payload = &segment.payload()[skipped..][..size.min(segment.payload().len() - skipped)];
    let mut piece = datagram[..ip + segment.header_len()].to_vec();
    piece.extend_from_slice(payload);
    let len = u16::try_from(piece.len()).unwrap();
    if ip == 20 {
        piece[2..4].copy_from_slice(&len.to_be_bytes());
    } else {
        piece[4..6].copy_from_slice(&(len - 40).to_be_bytes());
    }
    let seq = segment.seq() + u32::try_from(skipped).unwrap();
    piece[ip + 4..ip + 8].copy_from_slice(&seq.0.to_be_bytes());
    let (client, server) = (key.client().ip(), key.server().ip());
    let checksum = wire::checksum::tcp_checksum(client, server, &piece[ip..]);
    piece[ip + 16..ip + 18].copy_from_slice(&checksum.to_be_bytes());
    piece
}

pub(super) fn seq() -> impl Strategy<Value = SeqNumber> {
    any::<u32>().prop_map(SeqNumber)
}

proptest! {
    #[test]
    fn a_packet_is_found_again_in_its_segment(
        v6: bool, turn: bool, unfinished: bool,
        seq in seq(),
        payload in prop::collection::vec(any::<u8>(), 0..3000),
        other: u64,
    ) {
        let key = flow_key(v6);
        let mode = if unfinished { ChecksumMode::Partial } else { ChecksumMode::Full };
        let packet = packet(&key, seq, &payload, mode);
        let datagram = sealed(&packet, flags(turn, unfinished));
        prop_assert_eq!(datagram.len(), packet.len());
        prop_assert_eq!(Kind::of(&datagram), Ok(Kind::Segment));
        let segment = SegmentView::parse(&datagram).unwrap();
        prop_assert_eq!(segment.flags(), flags(turn, unfinished));
        prop_assert_eq!(segment.flow_low(), 0x5566_7788);
        prop_assert_eq!(segment.base_seq(), seq);
        prop_assert_eq!(segment.segment().seq(), seq);
        prop_assert_eq!(segment.segment().ack(), SeqNumber(77));
        prop_assert_eq!(segment.segment().payload(), &payload[..]);
        prop_assert!(segment.is_undamaged(&key));
        prop_assert!(segment.verify(&keys(), FLOW));
        prop_assert!(!segment.verify(&KeySet::EMPTY, FLOW));
        let other = FlowId(other);
        prop_assert_eq!(segment.verify(&keys(), other), other == FLOW);
        // Same low half, other flow.
        prop_assert!(!segment.verify(&keys(), FlowId(FLOW.0 ^ 1 << 32)));
    }

    #[test]
    fn each_piece_of_a_packet_that_was_cut_is_taken(
        v6: bool, unfinished: bool,
        seq in seq(),
        len in 1usize..65_000,
        size in 500usize..9000,
    ) {
        let key = flow_key(v6);
        let mode = if unfinished { ChecksumMode::Partial } else { ChecksumMode::Full };
        let packet = packet(&key, seq, &vec![7; len], mode);
        let datagram = sealed(&packet, flags(false, unfinished));
        for index in 0..len.div_ceil(size) {
            let piece = piece(&datagram, &key, index, size);
            let segment = SegmentView::parse(&piece).unwrap();
            let skipped = u32::try_from(index * size).unwrap();
            prop_assert_eq!(segment.base_seq(), seq);
            prop_assert_eq!(segment.segment().seq(), seq + skipped);
            prop_assert!(segment.verify(&keys(), FLOW));
            prop_assert!(segment.is_undamaged(&key));
        }
    }

    /// A bit that changes on the way is noticed: by the tag or, outside the tag's range, by the
    /// checksum. (Except in unused fields: fields of the IPv4 header other than length, protocol
    /// and fragment, and the flow label.)
    #[test]
    fn damage_is_noticed(v6: bool, at: prop::sample::Index, bit in 0u8..8) {
        let key = flow_key(v6);
        let packet = packet(&key, SeqNumber(7), b"hello", ChecksumMode::Full);
        let mut datagram = sealed(&packet, flags(true, false));
        let at = at.index(datagram.len());
        let header = if v6 { 40 } else { 20 };
        datagram[at] ^= 1 << bit;
        let taken = SegmentView::parse(&datagram)
            .is_ok_and(|s| s.verify(&keys(), FLOW) && s.is_undamaged(&key));
        let unread = if v6 {
            at < 4 || (16..40).contains(&at)
        } else {
            matches!(at, 1 | 4..=7 | 10 | 11)
        };
        prop_assert!(!taken || (at < header && unread), "byte {at}");
    }

    #[test]
    fn own_kinds_are_read_as_they_were_written(
        flow: u64, counter: u64, v6: bool,
        numbers: [u32; 9],
        count in 0usize..=MAX_RANGES,
        garble: prop::sample::Index,
        bit in 0u8..8,
    ) {
        let numbers = numbers.map(SeqNumber);
        let flow = FlowId(flow);
        let key = flow_key(v6);
        let mut ranges = [None; MAX_RANGES];
        for (index, range) in ranges.iter_mut().enumerate().take(count) {
            *range = Some((numbers[2 * index], numbers[2 * index + 1]));
        }
        let ack = Ack { flow, counter, key, stable_seq: numbers[6], ranges, ..ack() };
        let mut datagram = ack.encode(&KEY);
        prop_assert_eq!(Ack::decode(&datagram, &keys()), Ok(ack));
        datagram[garble.index(ACK_LEN)] ^= 1 << bit;
        prop_assert!(Ack::decode(&datagram, &keys()).is_err());

        let open = Open { flow, key, client_isn: numbers[7], server_isn: numbers[8], ..open() };
        let mut datagram = open.encode(&KEY);
        prop_assert_eq!(Open::decode(&datagram, &keys()), Ok(open));
        datagram[garble.index(OPEN_LEN)] ^= 1 << bit;
        prop_assert!(Open::decode(&datagram, &keys()).is_err());

        let probe = Probe { version: crate::link::VERSION, kind: ProbeKind::Probe, slot: KeySlot::One, counter };
        let mut datagram = probe.encode(&KEY);
        prop_assert_eq!(Probe::decode(probe.kind, &datagram, &keys()), Ok(probe));
        datagram[garble.index(PROBE_LEN)] ^= 1 << bit;
        prop_assert!(Probe::decode(probe.kind, &datagram, &keys()).is_err());
    }

    #[test]
    fn determinants_are_read_as_they_were_written(
        instance: u64, record: u64, offset: u64, process: u32, is_over: bool, bytes: Vec<u8>,
        garble: prop::sample::Index,
        bit in 0u8..8,
    ) {
        let at = StreamPosition { version: crate::link::VERSION, slot: KeySlot::One, instance, record, process, offset, is_over };
        let bytes = if is_over { Vec::new() } else { bytes };
        let mut datagram = vec![0; DETERMINANTS_OVERHEAD + bytes.len()];
        Determinants::room(&mut datagram).copy_from_slice(&bytes);
        Determinants::seal(&at, &KEY, &mut datagram);
        prop_assert_eq!(Kind::of(&datagram), Ok(Kind::Determinants));
        prop_assert_eq!(Determinants::instance(&datagram), Some(instance));
        let read = Determinants::decode(&datagram, &keys());
        prop_assert_eq!(read, Ok(Determinants { at, bytes: &bytes }));
        let at_garble = garble.index(datagram.len());
        datagram[at_garble] ^= 1 << bit;
        prop_assert!(Determinants::decode(&datagram, &keys()).is_err());

        let mut datagram = Stable(at).encode(&KEY);
        prop_assert_eq!(Kind::of(&datagram), Ok(Kind::Stable));
        prop_assert_eq!(Stable::decode(&datagram, &keys()), Ok(Stable(at)));
        datagram[garble.index(STABLE_LEN)] ^= 1 << bit;
        prop_assert!(Stable::decode(&datagram, &keys()).is_err());
    }

    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        properties::link_datagram(&bytes);
    }

    #[test]
    fn any_bytes_that_begin_well(
        v6: bool, kind in 0u8..6,
        damage: Vec<(prop::sample::Index, u8)>,
    ) {
        let packet = packet(&flow_key(v6), SeqNumber(7), b"hello", ChecksumMode::Full);
        let mut bytes = match kind {
            0 => packet,
            1 => sealed(&packet, flags(true, true)),
            2 => open().encode(&KEY).to_vec(),
            3 => Stable(stream_position()).encode(&KEY).to_vec(),
            4 => {
                let mut datagram = vec![0; DETERMINANTS_OVERHEAD + 9];
                Determinants::seal(&stream_position(), &KEY, &mut datagram);
                datagram
            }
            _ => ack().encode(&KEY).to_vec(),
        };
        properties::link_datagram(&bytes);
        for (at, value) in damage.into_iter().take(3) {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        properties::link_datagram(&bytes);
    }
}
