use super::*;
use wire::{ChecksumMode, SegmentSpec, SeqNumber};

const FLOW: FlowId = FlowId(1);
const ISN: SeqNumber = SeqNumber(100);

fn frame(kind: FrameKind, unfinished: bool, packet: &[u8]) -> Vec<u8> {
    let frame = MirrorFrame {
        server_nxt: ISN + 1,
        server_ack: ISN + 1,
        packet_len: u32::try_from(packet.len()).unwrap(),
        unfinished,
        packet,
        ..MirrorFrame::of(kind, FLOW)
    };
    let mut bytes = Vec::new();
    frame.encode(protocol::mirror::VERSION, &mut bytes).unwrap();
    bytes
}

fn opened() -> Ingest {
    let limits = Limits {
        per_connection: 1 << 20,
        total: 1 << 20,
        connections: 1,
    };
    let mut ingest = Ingest::new(limits, ReplayMode::Connection);
    let kind = FrameKind::Opened {
        client_isn: ISN,
        server_isn: ISN,
    };
    ingest.take(&frame(kind, false, &[]));
    ingest
}

/// The client's first 4000 bytes.
fn data(v6: bool, mode: ChecksumMode) -> Vec<u8> {
    let [source, destination] = if v6 {
        ["[fd00::1]:40000", "[fd00::10]:80"]
    } else {
        ["10.0.0.1:40000", "10.0.0.10:80"]
    };
    let mut bytes = Vec::new();
    SegmentSpec {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        seq: ISN + 1,
        ack: ISN + 1,
        flags: Flags::ACK,
        window: 1000,
        options: &[],
        payload: &[7; 4000],
    }
    .emit(&mut bytes, mode)
    .unwrap();
    bytes
}

/// Number of recorded bytes of a frame, and number of malformed frames.
fn recorded(unfinished: bool, packet: &[u8]) -> (u32, u64) {
    let mut ingest = opened();
    ingest.take(&frame(FrameKind::Instream, unfinished, packet));
    let stable = ingest.journal.stable_seq(FLOW).unwrap();
    (stable.0 - (ISN + 1).0, ingest.malformed)
}

#[test]
fn what_the_servers_tcp_takes_is_recorded() {
    for v6 in [false, true] {
        let (full, partial) = (
            data(v6, ChecksumMode::Full),
            data(v6, ChecksumMode::Partial),
        );
        assert_eq!(recorded(false, &full), (4000, 0));
        assert_eq!(recorded(true, &partial), (4000, 0));
    }
}

#[test]
fn what_a_wire_has_damaged_is_not_recorded() {
    for v6 in [false, true] {
        let mut damaged = data(v6, ChecksumMode::Full);
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(recorded(false, &damaged), (0, 1));
        // The field holds the sum of the pseudo-header: valid only if the kernel marks the checksum as unfinished.
        let lucky = data(v6, ChecksumMode::Partial);
        assert_eq!(recorded(false, &lucky), (0, 1));
        // An unfinished checksum must be the sum of the pseudo-header.
        assert_eq!(recorded(true, &damaged), (0, 1));
    }
}

/// As Linux makes it for the loopback, see `wire::IpPacket`.
#[test]
fn a_jumbo_header_is_no_obstacle() {
    let plain = data(true, ChecksumMode::Full);
    let (header, segment) = plain.split_at(40);
    let jumbo = |segment: &[u8]| {
        let length = u32::try_from(segment.len() + 8).unwrap().to_be_bytes();
        let mut bytes = [header, &[6, 0, 0xc2, 4], &length, segment].concat();
        bytes[4..7].fill(0);
        bytes
    };
    let mut long = segment.to_vec();
    long.resize(100_000, 7);
    let sum = {
        let bytes = jumbo(&long);
        let packet = IpPacket::parse(&bytes).unwrap();
        checksum::tcp_checksum(packet.source(), packet.destination(), packet.payload())
    };
    long[16..18].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(recorded(false, &jumbo(&long)), (99_980, 0));
    assert_eq!(recorded(false, &jumbo(segment)), (0, 1), "no need for one");
}
