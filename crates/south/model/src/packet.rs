//! Reading and rewriting TCP segments (`packet.h`).
//!
//! Stricter or laxer parsing would be another behaviour. So this module follows the programs and
//! not [`wire::IpPacket`]: a packet that is not a whole TCP segment passes unchanged.

mod options;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::{ChecksumMode, Flags, MIN_TCP_HEADER, PROTOCOL_TCP, SeqNumber, checksum};

pub(crate) use options::{Options, find_options};

// Offsets into the TCP header.
pub(crate) const SEQ: usize = 4;
pub(crate) const ACK: usize = 8;
pub(crate) const DATA_OFFSET: usize = 12;
pub(crate) const FLAGS: usize = 13;
pub(crate) const WINDOW: usize = 14;
pub(crate) const CHECKSUM: usize = 16;

pub(crate) const V6_HEADER: usize = 40;

/// Linux puts this header between the IPv6 and the TCP header of a super-segment that is too long
/// for the 16-bit length (RFC 2675 2). Before the length: TCP follows, eight bytes in all, one
/// option of four bytes.
const JUMBO: [u8; 4] = [PROTOCOL_TCP, 0, 0xc2, 4];
const JUMBO_HEADER: usize = 8;
const HOP_BY_HOP: u8 = 0;

/// A packet as it passes the programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The IP packet; bytes behind the end (padding of the link) are ignored.
    pub bytes: Vec<u8>,
    /// Mark of the sender: 0, or one of the eight marks of the service, or a foreign mark.
    pub mark: u32,
    /// The interface on which the packet comes in or goes out.
    pub ifindex: u32,
    /// Content of the TCP checksum field.
    pub checksum: ChecksumMode,
}

/// Fields of the IP header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Network {
    pub(crate) v6: bool,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Where the TCP header begins.
    pub(crate) tcp_offset: usize,
    /// IP header to end of payload.
    pub(crate) ip_len: usize,
}

/// A TCP segment: `struct packet`.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) network: Network,
    /// The TCP header, options included.
    pub(crate) header: Vec<u8>,
    pub(crate) payload_len: usize,
    pub(crate) seq: SeqNumber,
    pub(crate) ack: SeqNumber,
    pub(crate) window: u16,
    pub(crate) flags: Flags,
}

impl Network {
    /// `None` for a packet that is not a whole TCP segment: other protocols, fragments, extension
    /// headers except that of a super-segment.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let network = match bytes.first()? >> 4 {
            4 => Self::parse_v4(bytes)?,
            6 => Self::parse_v6(bytes)?,
            _ => return None,
        };
        // A length of 0 is BIG TCP.
        let ip_len = match network.ip_len {
            0 => bytes.len(),
            announced => announced,
        };
        Some(Self { ip_len, ..network })
    }

    fn parse_v4(bytes: &[u8]) -> Option<Self> {
        let header: [u8; 20] = array(bytes, 0)?;
        let [
            _,
            _,
            _,
            _,
            _,
            _,
            fragment_high,
            fragment_low,
            _,
            protocol,
            ..,
        ] = header;
        let fragment = u16::from_be_bytes([fragment_high, fragment_low]) & 0x3fff;
        let header_len = usize::from(header[0] & 15) * 4;
        if protocol != PROTOCOL_TCP || fragment != 0 || header_len < header.len() {
            return None;
        }
        Some(Self {
            v6: false,
            source: Ipv4Addr::from(array::<4>(bytes, 12)?).into(),
            destination: Ipv4Addr::from(array::<4>(bytes, 16)?).into(),
            tcp_offset: header_len,
            ip_len: usize::from(u16::from_be_bytes(array(bytes, 2)?)),
        })
    }

    fn parse_v6(bytes: &[u8]) -> Option<Self> {
        let header: [u8; V6_HEADER] = array(bytes, 0)?;
        let payload_len = usize::from(u16::from_be_bytes(array(bytes, 4)?));
        let tcp_offset = match (header[6], payload_len) {
            (PROTOCOL_TCP, _) => V6_HEADER,
            (HOP_BY_HOP, 0) if is_jumbo(&bytes[V6_HEADER..]) => V6_HEADER + JUMBO_HEADER,
            _ => return None,
        };
        Some(Self {
            v6: true,
            source: Ipv6Addr::from(array::<16>(bytes, 8)?).into(),
            destination: Ipv6Addr::from(array::<16>(bytes, 24)?).into(),
            tcp_offset,
            ip_len: match payload_len {
                0 => 0,
                payload => payload + V6_HEADER,
            },
        })
    }

    /// Source and destination, with ports.
    pub(crate) fn ends(&self, bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
        let source = u16::from_be_bytes(array(bytes, self.tcp_offset)?);
        let destination = u16::from_be_bytes(array(bytes, self.tcp_offset + 2)?);
        Some((
            SocketAddr::new(self.source, source),
            SocketAddr::new(self.destination, destination),
        ))
    }
}

/// Whether a jumbo header and a TCP segment follow an IPv6 header up to the end of the frame.
fn is_jumbo(bytes: &[u8]) -> bool {
    array(bytes, 0) == Some(JUMBO)
        && array(bytes, JUMBO.len()).map(u32::from_be_bytes) == Some(length32(bytes.len()))
}

impl Segment {
    /// `None`: the segment is malformed.
    pub(crate) fn parse(bytes: &[u8], network: Network) -> Option<Self> {
        let packet = bytes.get(..network.ip_len)?;
        let segment = packet.get(network.tcp_offset..)?;
        let fixed: [u8; MIN_TCP_HEADER] = array(segment, 0)?;
        let header_len = usize::from(fixed[DATA_OFFSET] >> 4) * 4;
        if header_len < MIN_TCP_HEADER {
            return None;
        }
        let header = segment.get(..header_len)?.to_vec();
        Some(Self {
            network,
            payload_len: segment.len() - header_len,
            seq: SeqNumber(read32(&header, SEQ)),
            ack: SeqNumber(read32(&header, ACK)),
            window: u16::from_be_bytes([fixed[WINDOW], fixed[WINDOW + 1]]),
            flags: Flags::from_bits(fixed[FLAGS]),
            header,
        })
    }

    pub(crate) fn has(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// Length in sequence numbers (RFC 9293 3.4).
    pub(crate) fn sequence_len(&self) -> u32 {
        length32(self.payload_len)
            + u32::from(self.has(Flags::FIN))
            + u32::from(self.has(Flags::SYN))
    }

    pub(crate) fn end(&self) -> SeqNumber {
        self.seq + self.sequence_len()
    }

    /// Bytes of the packet before the payload.
    pub(crate) fn headers_len(&self) -> usize {
        self.network.tcp_offset + self.header.len()
    }

    pub(crate) fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes
            .get(self.headers_len()..self.network.ip_len)
            .unwrap_or_default()
    }

    /// Put `header` in the place of this segment's own, which is as long, and carry the difference
    /// into the checksum.
    pub(crate) fn commit(&self, packet: &mut Packet, mut header: Vec<u8>) {
        if packet.checksum == ChecksumMode::Full {
            let old = u16::from_be_bytes(array(&self.header, CHECKSUM).unwrap_or_default());
            let new = checksum::update_bytes(old, &self.header, &header);
            write(&mut header, CHECKSUM, new.to_be_bytes());
        }
        overwrite(&mut packet.bytes, self.network.tcp_offset, &header);
    }
}

/// Lengths of packets fit 32 bits; of a longer buffer only the low bits would count on the wire.
pub(crate) fn length32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The number at `at`; 0 outside of `bytes`, where no caller looks.
pub(crate) fn read32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at).unwrap_or_default())
}

pub(crate) fn write<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    overwrite(bytes, at, &value);
}

/// Replaces the bytes at `at`, if the range lies within `bytes`.
pub(crate) fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at.saturating_add(new.len())) {
        place.copy_from_slice(new);
    }
}

#[cfg(test)]
mod tests;
