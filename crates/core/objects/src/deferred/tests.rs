use alloc::vec;
use core::convert::Infallible;

use wire::IpPacket;

use super::*;
use crate::plane::CopyKind;

fn key() -> FlowKey {
    FlowKey::new(([10, 0, 0, 3], 4000).into(), ([10, 0, 9, 9], 80).into())
}

fn copy(payload: &[u8], flags: Flags) -> SegmentCopy {
    let spec = SegmentSpec {
        source: key().server(),
        destination: key().client(),
        seq: SeqNumber(u32::MAX - 100),
        ack: SeqNumber(7),
        flags,
        window: 500,
        options: &[],
        payload,
    };
    let mut packet = Vec::new();
    spec.emit(&mut packet, ChecksumMode::Partial).unwrap();
    SegmentCopy {
        key: key(),
        kind: CopyKind::Deferred,
        interface: 1,
        packet_len: packet.len(),
        packet,
    }
}

fn segments(packets: &[Vec<u8>]) -> Vec<(SeqNumber, usize, Flags)> {
    let of = |packet: &Vec<u8>| {
        let ip = IpPacket::parse(packet).unwrap();
        let segment = Segment::of(&ip).unwrap();
        assert_eq!(segment.ack(), SeqNumber(7));
        (segment.seq(), segment.payload().len(), segment.flags())
    };
    packets.iter().map(of).collect()
}

#[test]
fn long_segment_is_cut_and_its_end_has_the_flags() {
    let flags = Flags::ACK.union(Flags::FIN);
    let copy = copy(&vec![1; 2500], flags);
    let cut = cut(key(), &copy.segment().unwrap(), 1000);
    let first = SeqNumber(u32::MAX - 100);
    let wanted = vec![
        (first, 1000, Flags::ACK),
        (first + 1000, 1000, Flags::ACK),
        (first + 2000, 500, flags),
    ];
    assert_eq!(segments(&cut), wanted);
}

#[test]
fn segment_without_payload_is_one_packet() {
    let flags = Flags::ACK.union(Flags::FIN);
    let cut = cut(key(), &copy(&[], flags).segment().unwrap(), 1000);
    assert_eq!(segments(&cut), [(SeqNumber(u32::MAX - 100), 0, flags)]);
}

/// The end of the segment, with its FIN, is not in the copy.
#[test]
fn beginning_of_a_segment_leaves_without_the_flags_of_the_end() {
    let mut copy = copy(&[1; 1500], Flags::ACK.union(Flags::FIN));
    copy.packet.truncate(40 + 900);
    let cut = cut(key(), &copy.segment().unwrap(), 1000);
    assert_eq!(
        segments(&cut),
        [(SeqNumber(u32::MAX - 100), 900, Flags::ACK)]
    );
}

#[test]
fn segments_of_a_connection_that_is_gone_are_dropped() {
    let mut deferred = DeferredResponses::default();
    deferred.add(copy(b"x", Flags::ACK), Duration::ZERO);
    assert_eq!(deferred.deadline(), Some(Duration::ZERO));
    let no_flow = |_| Ok::<_, Infallible>(None);
    let Ok(released) = deferred.take_due(Duration::ZERO, no_flow, |_| true);
    assert_eq!((released.len(), deferred.deadline()), (0, None));
}

#[test]
fn number_of_segments_is_limited() {
    let mut deferred = DeferredResponses::default();
    for _ in 0..FLOW_SEGMENTS_MAX + 5 {
        deferred.add(copy(b"x", Flags::ACK), Duration::ZERO);
    }
    assert_eq!(deferred.segments, FLOW_SEGMENTS_MAX);
    deferred.clear();
    assert_eq!(deferred.segments, 0);
}
