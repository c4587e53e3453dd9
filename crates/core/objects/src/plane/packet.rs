//! TCP segments in IP packets (`bpf/lib/packet.h`, `options.h`, `edit.h` of the crate `dataplane`).
//!
//! Stricter or laxer parsing would be another behaviour. So this module follows the programs and not
//! [`wire::IpPacket`]: a packet that is not a whole TCP segment passes unchanged.

mod options;

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::{ChecksumMode, Flags, MIN_TCP_HEADER, PROTOCOL_TCP, SeqNumber, checksum};

pub(super) use options::{Options, find_options};

// Offsets into the TCP header.
pub(super) const SEQ_OFFSET: usize = 4;
pub(super) const ACK_OFFSET: usize = 8;
pub(super) const DATA_OFFSET: usize = 12;
pub(super) const FLAGS_OFFSET: usize = 13;
pub(super) const WINDOW_OFFSET: usize = 14;
pub(super) const CHECKSUM_OFFSET: usize = 16;

pub(super) const V4_HEADER_LEN: usize = 20;
pub(super) const V6_HEADER_LEN: usize = 40;

/// Linux puts this header between the IPv6 and the TCP header of a super-segment that is too long for the 16-bit length
/// (RFC 2675, 2). Before the length: TCP follows, eight bytes in all, one option of four bytes.
const JUMBO_START: [u8; 4] = [PROTOCOL_TCP, 0, 0xc2, 4];
const JUMBO_LEN: usize = 8;
const PROTOCOL_HOP_BY_HOP: u8 = 0;

/// A packet on its way through the programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The IP packet; bytes behind the end (padding of the link) are ignored. Also an ARP packet for Ethernet.
    pub bytes: Vec<u8>,
    /// Mark of the sender: 0, one of the marks of the member, or a foreign mark.
    pub mark: u32,
    /// The interface on which the packet comes in or goes out.
    pub interface: u32,
    /// Content of the TCP checksum field.
    pub checksum: ChecksumMode,
}

impl Packet {
    /// One hop less to live: two members that each take the other for the server would send a packet round for ever.
    /// False: no hop is left.
    pub(super) fn age(&mut self) -> bool {
        let is_v6 = self.bytes[0] >> 4 == 6;
        let at = if is_v6 { 7 } else { 8 };
        let hops = self.bytes[at];
        if hops < 2 {
            return false;
        }
        self.bytes[at] = hops - 1;
        if !is_v6 {
            // RFC 1624: the word of TTL and protocol is smaller by 0x100, so the sum is larger.
            let sum = u16::from_be_bytes([self.bytes[10], self.bytes[11]]);
            let (sum, has_carry) = sum.overflowing_add(0x100);
            let sum = sum + u16::from(has_carry);
            self.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        true
    }
}

/// Fields of the IP header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Network {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// Where the TCP header begins.
    pub(super) tcp_offset: usize,
    /// IP header to end of payload.
    pub(super) ip_len: usize,
}

/// A TCP segment: `struct packet`.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) network: Network,
    /// The TCP header, options included.
    pub(super) header: Vec<u8>,
    pub(super) payload_len: usize,
    pub(super) seq: SeqNumber,
    pub(super) ack: SeqNumber,
    pub(super) window: u16,
    pub(super) flags: Flags,
}

impl Network {
    /// `None` for a packet that is not a whole TCP segment: other protocols, fragments, extension headers except that
    /// of a super-segment.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
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
        let header: [u8; V4_HEADER_LEN] = array(bytes, 0)?;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
        let header_len = usize::from(header[0] & 15) * 4;
        if header[9] != PROTOCOL_TCP || fragment != 0 || header_len < header.len() {
            return None;
        }
        Some(Self {
            source: Ipv4Addr::from(array::<4>(bytes, 12)?).into(),
            destination: Ipv4Addr::from(array::<4>(bytes, 16)?).into(),
            tcp_offset: header_len,
            ip_len: usize::from(u16::from_be_bytes(array(bytes, 2)?)),
        })
    }

    fn parse_v6(bytes: &[u8]) -> Option<Self> {
        let header: [u8; V6_HEADER_LEN] = array(bytes, 0)?;
        let payload_len = usize::from(u16::from_be_bytes(array(bytes, 4)?));
        let tcp_offset = match (header[6], payload_len) {
            (PROTOCOL_TCP, _) => V6_HEADER_LEN,
            (PROTOCOL_HOP_BY_HOP, 0) if is_jumbo(bytes.get(V6_HEADER_LEN..)?) => {
                V6_HEADER_LEN + JUMBO_LEN
            }
            _ => return None,
        };
        Some(Self {
            source: Ipv6Addr::from(array::<16>(bytes, 8)?).into(),
            destination: Ipv6Addr::from(array::<16>(bytes, 24)?).into(),
            tcp_offset,
            ip_len: match payload_len {
                0 => 0,
                payload => payload + V6_HEADER_LEN,
            },
        })
    }

    /// Source and destination, with ports.
    pub(super) fn ends(&self, bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
        let port = |at| Some(u16::from_be_bytes(array(bytes, at)?));
        Some((
            SocketAddr::new(self.source, port(self.tcp_offset)?),
            SocketAddr::new(self.destination, port(self.tcp_offset + 2)?),
        ))
    }

    /// The TCP header follows the IP header of the usual length at once.
    pub(super) const fn is_plain(&self) -> bool {
        let usual = if self.source.is_ipv6() {
            V6_HEADER_LEN
        } else {
            V4_HEADER_LEN
        };
        self.tcp_offset == usual
    }
}

/// Whether a jumbo header and a TCP segment follow an IPv6 header up to the end of the frame.
fn is_jumbo(bytes: &[u8]) -> bool {
    array(bytes, 0) == Some(JUMBO_START)
        && array(bytes, JUMBO_START.len()).map(u32::from_be_bytes) == Some(length32(bytes.len()))
}

impl Segment {
    /// `None`: the segment is malformed.
    pub(super) fn parse(bytes: &[u8], network: Network) -> Option<Self> {
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
            seq: SeqNumber(read32(&header, SEQ_OFFSET)),
            ack: SeqNumber(read32(&header, ACK_OFFSET)),
            window: u16::from_be_bytes([fixed[WINDOW_OFFSET], fixed[WINDOW_OFFSET + 1]]),
            flags: Flags::from_bits(fixed[FLAGS_OFFSET]),
            header,
        })
    }

    pub(super) fn has(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// SYN, ACK and RST of the segment are exactly these.
    pub(super) fn is(&self, flags: Flags) -> bool {
        let mask = Flags::SYN.union(Flags::ACK).union(Flags::RST).bits();
        self.flags.bits() & mask == flags.bits()
    }

    /// Length in sequence numbers (RFC 9293, 3.4).
    pub(super) fn sequence_len(&self) -> u32 {
        length32(self.payload_len)
            + u32::from(self.has(Flags::FIN))
            + u32::from(self.has(Flags::SYN))
    }

    /// End of the payload.
    pub(super) fn payload_end(&self) -> SeqNumber {
        self.seq + length32(self.payload_len)
    }

    /// The window in bytes; never scaled in a SYN (RFC 7323, 2.2), also when the SYN is sent again.
    pub(super) fn window_bytes(&self, scale: u8) -> u32 {
        let shift = if self.has(Flags::SYN) { 0 } else { scale };
        u32::from(self.window) << shift
    }

    pub(super) fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = self.network.tcp_offset + self.header.len();
        bytes.get(start..self.network.ip_len).unwrap_or_default()
    }

    /// Puts `header` in the place of this segment's own, which is as long, and carries the difference into the
    /// checksum.
    pub(super) fn commit(&self, packet: &mut Packet, mut header: Vec<u8>) {
        if packet.checksum == ChecksumMode::Full {
            let old = u16::from_be_bytes(array(&self.header, CHECKSUM_OFFSET).unwrap_or_default());
            let new = checksum::update_bytes(old, &self.header, &header);
            overwrite(&mut header, CHECKSUM_OFFSET, &new.to_be_bytes());
        }
        overwrite(&mut packet.bytes, self.network.tcp_offset, &header);
    }
}

/// Lengths of packets have 32 bits at most.
pub(super) fn length32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The number at `at`; 0 outside of `bytes`, where no caller looks.
pub(super) fn read32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at).unwrap_or_default())
}

pub(super) fn write32(bytes: &mut [u8], at: usize, value: u32) {
    overwrite(bytes, at, &value.to_be_bytes());
}

/// Replaces the bytes at `at`, if the range lies within `bytes`.
pub(super) fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at.saturating_add(new.len())) {
        place.copy_from_slice(new);
    }
}
