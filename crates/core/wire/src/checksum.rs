//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! A *sum* here is a one's complement sum of 16-bit big-endian words that has not been inverted. Sums that these
//! functions return fit in 16 bits, so a few of them may simply be added as `u32` before [`fold`]. A *checksum* is the
//! value of the header field: the inverted, folded sum.
//!
//! Bytes are summed in the byte order of this machine and swapped once at the end: the one's
//! complement sum does not care (RFC 1071, 2(B)).
//!
//! The updates are RFC 1624, equation 3: HC' = ~(~HC + ~m + m'). The result equals a full computation over the changed
//! data, unless all the data is zero. TCP's pseudo-header holds the protocol number, and so is never zero.

use core::net::IpAddr;

use crate::be16;

/// Where the checksum stands in a TCP header.
const FIELD: core::ops::Range<usize> = 16..18;

/// Folds a sum to 16 bits with end-around carry, without inversion.
#[must_use]
pub const fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    let [_, _, high, low] = twice.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// The one's complement sum of `bytes`, at most `0xffff`. An odd last byte counts as the high byte
/// of a word whose low byte is 0.
///
/// Pieces of one datum may be summed apart and added if all but the last have an even length.
#[must_use]
pub fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    // 2^32 words would be needed to overflow 64 bits: more than a slice of 16 GiB.
    let lanes: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let total = lanes + u64::from(u32::from_ne_bytes(last));
    u32::from(u16::from_be(fold_u64(total)))
}

/// Folds 64 bits to 16 with end-around carry.
const fn fold_u64(sum: u64) -> u16 {
    let [a, b, c, d, e, f, g, h] = sum.to_be_bytes();
    fold(
        u16::from_be_bytes([a, b]) as u32
            + u16::from_be_bytes([c, d]) as u32
            + u16::from_be_bytes([e, f]) as u32
            + u16::from_be_bytes([g, h]) as u32,
    )
}

/// The sum of the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1), at most `0xffff`. `len` is the
/// length of the transport header and its payload, in bytes.
#[must_use]
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: u32) -> u32 {
    let parts = sum_of_address(source)
        + sum_of_address(destination)
        + u32::from(protocol)
        + sum(&len.to_be_bytes());
    u32::from(fold(parts))
}

fn sum_of_address(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    }
}

/// The checksum that belongs into the header of `segment` (TCP header and payload). The present value of the field
/// does not matter. A slice that ends before the field is summed to the end of the slice.
#[must_use]
pub fn tcp_checksum(source: IpAddr, destination: IpAddr, segment: &[u8]) -> u16 {
    let before = &segment[..segment.len().min(FIELD.start)];
    let after = segment.get(FIELD.end..).unwrap_or_default();
    !fold(tcp_pseudo_header(source, destination, segment) + sum(before) + sum(after))
}

pub(crate) fn tcp_pseudo_header(source: IpAddr, destination: IpAddr, segment: &[u8]) -> u32 {
    // A slice longer than 32 bits can count is no segment, and any checksum is as good.
    let len = u32::try_from(segment.len()).unwrap_or(u32::MAX);
    pseudo_header(source, destination, crate::PROTOCOL_TCP, len)
}

/// The checksum after a 16-bit word under the checksum changed from `old` to `new`. The word stands at an even offset.
#[must_use]
pub const fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(!checksum as u32 + !old as u32 + new as u32)
}

/// The checksum after a 32-bit word under the checksum changed from `old` to `new`. The word stands at an even offset.
#[must_use]
pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    update_bytes(checksum, &old.to_be_bytes(), &new.to_be_bytes())
}

/// The checksum after bytes under the checksum, from an even offset on, changed from `old` to `new`. The lengths may
/// differ if the bytes behind keep the parity of the offset.
#[must_use]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    !fold(u32::from(!checksum) + u32::from(!fold(sum(old))) + sum(new))
}

/// The content of the checksum field in a written segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumMode {
    /// The whole checksum, as on the wire.
    Full,
    /// The folded sum of the pseudo-header alone, not inverted: the checksum is left to the network
    /// device or to the kernel (Linux: `CHECKSUM_PARTIAL`).
    Partial,
}

/// The content of the checksum field in a captured TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumState {
    /// The folded sum of the pseudo-header alone: an offloaded checksum before the device completes the sum.
    Partial,
    /// A checksum that verifies.
    Valid,
    /// Neither.
    Invalid,
}

impl ChecksumState {
    /// The state of `segment`: a whole TCP header and the whole payload. A segment that was captured in part cannot be
    /// told from a damaged segment.
    ///
    /// One segment in 65,536 fits both `Valid` and `Partial`, and counts as `Valid`, since a receiver would accept the
    /// segment as captured. A slice too short for the field is `Invalid`.
    #[must_use]
    pub fn of(source: IpAddr, destination: IpAddr, segment: &[u8]) -> Self {
        if segment.len() < FIELD.end {
            return Self::Invalid;
        }
        let pseudo = tcp_pseudo_header(source, destination, segment);
        if fold(pseudo + sum(segment)) == 0xffff {
            Self::Valid
        } else if u32::from(be16(segment, FIELD.start)) == pseudo {
            Self::Partial
        } else {
            Self::Invalid
        }
    }
}

#[cfg(test)]
mod tests;
