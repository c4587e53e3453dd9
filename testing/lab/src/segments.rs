//! The TCP segments in a capture, and the ends of connections.
//!
//! This module reads Ethernet frames independently of the product and keeps only the values that tests count: tests
//! must not depend on the product's own view of packets.

#[cfg(test)]
mod tests;

use crate::pcap::Packet;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const TCP_PROTOCOL: u8 = 6;

/// The part of a TCP header that tests look at (RFC 9293, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSegment {
    /// The version of IP: 4 or 6. Each version has separate connections between the same ports.
    pub version: u8,
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// The sequence number.
    pub sequence: u32,
    /// The acknowledgment number, whether or not ACK is set.
    pub acknowledgment: u32,
    /// The control bits from CWR (128) to FIN (1).
    pub flags: u8,
    /// The bytes of data in the segment.
    pub payload: usize,
}

impl TcpSegment {
    /// The segment in an Ethernet frame; `None` for anything else, for fragments, and for
    /// headers that are cut off.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let payload = frame.get(14..)?;
        let (tcp, length) = match half(frame, 12)? {
            0x0800 => ipv4_payload(payload)?,
            0x86dd => ipv6_payload(payload)?,
            _ => return None,
        };
        Some(Self {
            version: payload.first()? >> 4,
            source: half(tcp, 0)?,
            destination: half(tcp, 2)?,
            sequence: word(tcp, 4)?,
            acknowledgment: word(tcp, 8)?,
            flags: *tcp.get(13)?,
            payload: length.saturating_sub(usize::from(*tcp.get(12)? >> 4) * 4),
        })
    }

    /// Whether SYN is set.
    #[must_use]
    pub fn is_syn(self) -> bool {
        self.flags & SYN != 0
    }

    /// Whether ACK is set.
    #[must_use]
    pub fn is_ack(self) -> bool {
        self.flags & ACK != 0
    }

    /// Whether RST is set.
    #[must_use]
    pub fn is_rst(self) -> bool {
        self.flags & RST != 0
    }

    /// Whether FIN is set.
    #[must_use]
    pub fn is_fin(self) -> bool {
        self.flags & FIN != 0
    }
}

/// How many segments end a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endings {
    /// Segments with RST.
    pub rst: usize,
    /// Segments with FIN, repeated ones each time.
    pub fin: usize,
}

/// Counts the FINs and RSTs sent from a port. With the service's port these are the endings sent to the clients; with
/// a client's port, the endings sent by the client.
#[must_use]
pub fn endings(packets: &[Packet], source: u16) -> Endings {
    let sent = packets
        .iter()
        .filter_map(|packet| TcpSegment::parse(&packet.frame))
        .filter(|segment| segment.source == source);
    sent.fold(Endings::default(), |count, segment| Endings {
        rst: count.rst + usize::from(segment.is_rst()),
        fin: count.fin + usize::from(segment.is_fin()),
    })
}

/// The bytes behind the IP header, and the true length; part of these bytes may be missing in the capture, and short
/// frames are padded.
fn ipv4_payload(packet: &[u8]) -> Option<(&[u8], usize)> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let fragment = half(packet, 6)? & 0x3fff != 0;
    if header < 20 || fragment || *packet.get(9)? != TCP_PROTOCOL {
        return None;
    }
    let length = usize::from(half(packet, 2)?).saturating_sub(header);
    Some((packet.get(header..)?, length))
}

fn ipv6_payload(packet: &[u8]) -> Option<(&[u8], usize)> {
    let mut left = usize::from(half(packet, 4)?);
    let mut next = *packet.get(6)?;
    let mut rest = packet.get(40..)?;
    // Hop-by-hop options, routing and destination options may come before (RFC 8200, section 4). Each header has 8
    // bytes or more, so the loop ends.
    while [0, 43, 60].contains(&next) {
        let length = (usize::from(*rest.get(1)?) + 1) * 8;
        next = *rest.first()?;
        rest = rest.get(length..)?;
        left = left.saturating_sub(length);
    }
    (next == TCP_PROTOCOL).then_some((rest, left))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u16::from_be_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u32::from_be_bytes)
}
