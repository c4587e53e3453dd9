//! Segments of the small TCPs.

use wire::{ChecksumMode, IpPacket, OptionsBuffer, Segment, SegmentSpec, TcpOption};

/// The timestamps option of a segment (RFC 7323, appendix A).
pub(super) fn stamps(value: u32, echo: u32) -> OptionsBuffer {
    let mut options = OptionsBuffer::new();
    for option in [
        TcpOption::NoOperation,
        TcpOption::NoOperation,
        TcpOption::Timestamps { value, echo },
    ] {
        options.push(&option).expect("twelve bytes");
    }
    options
}

pub(super) fn emit(spec: &SegmentSpec<'_>) -> Vec<u8> {
    let mut packet = Vec::new();
    spec.emit(&mut packet, ChecksumMode::Full).expect("short");
    packet
}

/// A line for people.
pub(super) fn described(bytes: &[u8]) -> String {
    let Ok(packet) = IpPacket::parse(bytes) else {
        return "no packet".into();
    };
    let Ok(segment) = Segment::of(&packet) else {
        return format!("ICMP to {}", packet.destination());
    };
    let port = segment.source_port().max(segment.destination_port());
    let payload = segment.payload();
    let start = &payload[..payload.len().min(24)];
    let stamps = segment.timestamps().map_or_else(String::new, |stamps| {
        let (value, echo) = (stamps.value, stamps.echo);
        format!(
            " ts {}|{:07x} {}|{:07x}",
            value >> 26,
            value & 0x3ff_ffff,
            echo >> 26,
            echo & 0x3ff_ffff
        )
    });
    format!(
        "{port}: seq {} ack {} flags {:02x} {}{stamps} {}",
        segment.seq(),
        segment.ack(),
        segment.flags().bits(),
        payload.len(),
        start.escape_ascii(),
    )
}
