//! A view of an IPv4 (RFC 791) or IPv6 (RFC 8200) packet that may carry TCP.
//!
//! A buffer does not always end where the packet does. An Ethernet frame shorter than 60 bytes is padded: bytes beyond
//! the announced length are cut off. A capture may have been limited to the first bytes: [`IpPacket::parse_captured`]
//! takes the true length and accepts the missing bytes. A packet above 64 KiB that never leaves the host ("BIG TCP")
//! does not fit the 16-bit length field, which is then 0: the packet reaches to the end of the buffer. Over IPv6,
//! Linux (6.18, for one) puts the length into a hop-by-hop header with the jumbo payload option (RFC 2675), which
//! counts as a part of the header here.
//!
//! Fragments are refused: TCP sees only whole packets. Other IPv6 extension headers before the transport header are
//! refused, too: TCP connections do not use these in practice.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{WireError, be16};

/// The protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;

pub(crate) const V4_HEADER: usize = 20;
pub(crate) const V6_HEADER: usize = 40;
const V6_HOP_BY_HOP: u8 = 0;
const V6_FRAGMENT: u8 = 44;
/// A hop-by-hop header with only the jumbo payload option, before the length: TCP follows, eight bytes in all, an
/// option of four bytes (RFC 2675, 2).
const JUMBO: [u8; 4] = [PROTOCOL_TCP, 0, 0xc2, 4];
const JUMBO_HEADER: usize = 8;
/// A jumbo payload is longer than the IPv6 header can announce (RFC 2675, 3).
const LARGEST_PLAIN: usize = 65_535;

/// An IP packet whose lengths have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpPacket<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    header_len: usize,
    total_len: usize,
    payload: &'a [u8],
}

impl<'a> IpPacket<'a> {
    /// Reads the packet at the beginning of `bytes`. The whole packet must be there; bytes behind the packet are
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`WireError`], if the bytes are not an unfragmented IPv4 packet or an IPv6 packet without
    /// extension headers, or end before the packet does.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        Self::parse_captured(bytes, bytes.len())
    }

    /// Reads a packet of which `captured` holds only the beginning; `wire_len` is how many bytes
    /// there were. The IP header must have been captured, the rest may be missing.
    ///
    /// # Errors
    ///
    /// As [`IpPacket::parse`].
    pub fn parse_captured(captured: &'a [u8], wire_len: usize) -> Result<Self, WireError> {
        let captured = &captured[..captured.len().min(wire_len)];
        match captured.first().map(|byte| byte >> 4) {
            Some(4) => Self::parse_v4(captured, wire_len),
            Some(6) => Self::parse_v6(captured, wire_len),
            Some(version) => Err(WireError::UnknownVersion(version)),
            None => Err(WireError::Truncated {
                needed: V4_HEADER,
                available: 0,
            }),
        }
    }

    fn parse_v4(bytes: &'a [u8], wire_len: usize) -> Result<Self, WireError> {
        need(V4_HEADER, bytes.len())?;
        let header_len = usize::from(bytes[0] & 0xf) * 4;
        let total_len = match usize::from(be16(bytes, 2)) {
            0 => wire_len,
            announced => announced,
        };
        if header_len < V4_HEADER || total_len < header_len {
            return Err(WireError::BadIpLength {
                header_len,
                total_len,
            });
        }
        // "More fragments" and the 13 bits of the offset; not "don't fragment".
        if be16(bytes, 6) & 0x3fff != 0 {
            return Err(WireError::Fragment);
        }
        let address = |at| IpAddr::V4(Ipv4Addr::from(chunk::<4>(bytes, at)));
        Ok(Self {
            source: address(12),
            destination: address(16),
            protocol: bytes[9],
            header_len,
            total_len,
            payload: payload(bytes, header_len, total_len, wire_len)?,
        })
    }

    fn parse_v6(bytes: &'a [u8], wire_len: usize) -> Result<Self, WireError> {
        need(V6_HEADER, bytes.len())?;
        let protocol = bytes[6];
        if protocol == V6_HOP_BY_HOP
            && be16(bytes, 4) == 0
            && let Some(total_len) = jumbo_len(bytes)
        {
            return Self::of_v6(
                bytes,
                PROTOCOL_TCP,
                V6_HEADER + JUMBO_HEADER,
                total_len,
                wire_len,
            );
        }
        if protocol == V6_FRAGMENT {
            return Err(WireError::Fragment);
        }
        if is_extension_header(protocol) {
            return Err(WireError::ExtensionHeader(protocol));
        }
        let total_len = match usize::from(be16(bytes, 4)) {
            0 => wire_len,
            payload_len => V6_HEADER + payload_len,
        };
        Self::of_v6(bytes, protocol, V6_HEADER, total_len, wire_len)
    }

    fn of_v6(
        bytes: &'a [u8],
        protocol: u8,
        header_len: usize,
        total_len: usize,
        wire_len: usize,
    ) -> Result<Self, WireError> {
        let address = |at| IpAddr::V6(Ipv6Addr::from(chunk::<16>(bytes, at)));
        Ok(Self {
            source: address(8),
            destination: address(24),
            protocol,
            header_len,
            total_len,
            payload: payload(bytes, header_len, total_len, wire_len)?,
        })
    }

    /// The sender's address.
    #[must_use]
    pub const fn source(&self) -> IpAddr {
        self.source
    }

    /// The receiver's address.
    #[must_use]
    pub const fn destination(&self) -> IpAddr {
        self.destination
    }

    /// The number of the transport protocol.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The length of the IP header with options (and the jumbo header), in bytes.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.header_len
    }

    /// The true length of the packet, header included, in bytes; also if less was captured.
    #[must_use]
    pub const fn total_len(&self) -> usize {
        self.total_len
    }

    /// The true length of transport header and payload, in bytes.
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.total_len - self.header_len
    }

    /// The captured part of transport header and payload.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The total length that a jumbo header behind the IPv6 header tells.
fn jumbo_len(bytes: &[u8]) -> Option<usize> {
    let header: [u8; JUMBO_HEADER] = bytes.get(V6_HEADER..)?.first_chunk().copied()?;
    let [.., a, b, c, d] = header;
    let payload_len = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    (header.starts_with(&JUMBO) && payload_len > LARGEST_PLAIN).then_some(V6_HEADER + payload_len)
}

/// The captured bytes between the header and the end of the packet, after the length checks that
/// both versions share.
fn payload(
    bytes: &[u8],
    header_len: usize,
    total_len: usize,
    wire_len: usize,
) -> Result<&[u8], WireError> {
    need(header_len, bytes.len())?;
    need(total_len, wire_len)?;
    Ok(&bytes[header_len..total_len.min(bytes.len())])
}

pub(crate) fn need(needed: usize, available: usize) -> Result<(), WireError> {
    if available < needed {
        Err(WireError::Truncated { needed, available })
    } else {
        Ok(())
    }
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut chunk = [0; N];
    chunk.copy_from_slice(&bytes[at..at + N]);
    chunk
}

/// Whether a "next header" number is an extension header (IANA, "IPv6 Extension Header Types"); the fragment header is
/// a separate error. 59 ("no next header") is an empty transport.
const fn is_extension_header(next: u8) -> bool {
    matches!(next, 0 | 43 | 50 | 51 | 60 | 135 | 139 | 140 | 253 | 254)
}

#[cfg(test)]
mod tests;
