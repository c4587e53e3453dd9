//! A view of a TCP segment (RFC 9293, 3.1), and a view that changes the segment in place.
//!
//! The window and the urgent pointer are as in the header: a window is not scaled, since the scale belongs to the
//! connection and not to the segment.

use core::fmt;
use core::ops::BitOr;

use crate::checksum::{self, ChecksumMode};
use crate::ip::need;
use crate::{
    IpPacket, Options, PROTOCOL_TCP, SeqNumber, TcpOption, Timestamps, WireError, be16, be32,
};

/// The length of a TCP header without options, in bytes.
pub const MIN_TCP_HEADER: usize = 20;

// Offsets of the fields in the header.
const SEQ: usize = 4;
const ACK: usize = 8;
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;
const WINDOW: usize = 14;
const CHECKSUM: usize = 16;
const URGENT: usize = 18;

/// The control bits of a TCP header (RFC 9293, 3.1), a set of the constants below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u8);

impl Flags {
    /// No bit at all.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(1);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(1 << 1);
    /// Reset the connection.
    pub const RST: Self = Self(1 << 2);
    /// Push.
    pub const PSH: Self = Self(1 << 3);
    /// The acknowledgement field is significant.
    pub const ACK: Self = Self(1 << 4);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(1 << 5);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(1 << 6);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(1 << 7);

    const NAMES: [&'static str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];

    /// The set with the bits of byte 13 of the header.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The set as byte 13 of the header.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether every bit of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits that are in this set, in `other`, or in both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

/// The names of the bits joined by `+`, lowest first (`SYN+ACK`), or `none`.
impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("none");
        }
        let mut separator = "";
        for (bit, name) in Self::NAMES.iter().enumerate() {
            if self.0 & (1 << bit) != 0 {
                write!(f, "{separator}{name}")?;
                separator = "+";
            }
        }
        Ok(())
    }
}

/// A TCP segment whose header is whole and whose data offset has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    bytes: &'a [u8],
    header_len: usize,
    payload_len: usize,
}

impl<'a> Segment<'a> {
    /// Reads `bytes` as a TCP header and the whole payload.
    ///
    /// # Errors
    ///
    /// [`WireError::Truncated`] if the header is not whole, [`WireError::BadDataOffset`] if the data offset means a
    /// header below 20 bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        Self::parse_captured(bytes, bytes.len())
    }

    /// Reads the TCP segment in `packet`, of which only the headers need to have been captured.
    ///
    /// # Errors
    ///
    /// [`WireError::NotTcp`], otherwise as [`Segment::parse`].
    pub fn of(packet: &IpPacket<'a>) -> Result<Self, WireError> {
        if packet.protocol() != PROTOCOL_TCP {
            return Err(WireError::NotTcp(packet.protocol()));
        }
        Self::parse_captured(packet.payload(), packet.payload_len())
    }

    /// `len` is the true length of the segment, at least `bytes.len()`.
    fn parse_captured(bytes: &'a [u8], len: usize) -> Result<Self, WireError> {
        let header_len = checked_header_len(bytes)?;
        Ok(Self {
            bytes,
            header_len,
            payload_len: len - header_len,
        })
    }

    /// The sender's port.
    #[must_use]
    pub fn source_port(&self) -> u16 {
        be16(self.bytes, 0)
    }

    /// The receiver's port.
    #[must_use]
    pub fn destination_port(&self) -> u16 {
        be16(self.bytes, 2)
    }

    /// The sequence number of the SYN, or of the first byte if there is no SYN.
    #[must_use]
    pub fn seq(&self) -> SeqNumber {
        SeqNumber(be32(self.bytes, SEQ))
    }

    /// The acknowledgement field, valid only with [`Flags::ACK`].
    #[must_use]
    pub fn ack(&self) -> SeqNumber {
        SeqNumber(be32(self.bytes, ACK))
    }

    /// The control bits.
    #[must_use]
    pub fn flags(&self) -> Flags {
        Flags::from_bits(self.bytes[FLAGS])
    }

    /// The window field, not scaled.
    #[must_use]
    pub fn window(&self) -> u16 {
        be16(self.bytes, WINDOW)
    }

    /// The checksum field.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        be16(self.bytes, CHECKSUM)
    }

    /// The urgent pointer, valid only with [`Flags::URG`].
    #[must_use]
    pub fn urgent(&self) -> u16 {
        be16(self.bytes, URGENT)
    }

    /// The length of the header with options, in bytes: 20 to 60.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.header_len
    }

    /// The bytes of the options with padding: at most 40, a multiple of 4.
    #[must_use]
    pub fn option_bytes(&self) -> &'a [u8] {
        &self.bytes[MIN_TCP_HEADER..self.header_len]
    }

    /// The options, one by one.
    #[must_use]
    pub fn options(&self) -> Options<'a> {
        Options::new(self.option_bytes())
    }

    /// The timestamps of the segment (RFC 7323, 3.2), if any; of several timestamps options the last counts, as in the
    /// kernel.
    #[must_use]
    pub fn timestamps(&self) -> Option<Timestamps> {
        let timestamps = |option| match option {
            Ok(TcpOption::Timestamps { value, echo }) => Some(Timestamps { value, echo }),
            _ => None,
        };
        self.options().filter_map(timestamps).last()
    }

    /// The captured part of the payload.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len..]
    }

    /// The true length of the payload, in bytes; also if less was captured.
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// The number of sequence numbers that the segment occupies (RFC 9293, 3.4): the true length of the payload, plus
    /// 1 for a SYN and 1 for a FIN.
    #[must_use]
    pub fn sequence_len(&self) -> u32 {
        // No packet is longer than 32 bits can count; the sequence numbers of such a packet would wrap.
        let payload = u32::try_from(self.payload_len).unwrap_or(u32::MAX);
        payload
            .wrapping_add(u32::from(self.flags().contains(Flags::SYN)))
            .wrapping_add(u32::from(self.flags().contains(Flags::FIN)))
    }

    /// The sequence number after the last number that the segment occupies.
    #[must_use]
    pub fn end_seq(&self) -> SeqNumber {
        self.seq() + self.sequence_len()
    }
}

/// The length of the TCP header at the beginning of `bytes`, which is there as a whole.
fn checked_header_len(bytes: &[u8]) -> Result<usize, WireError> {
    need(MIN_TCP_HEADER, bytes.len())?;
    let header_len = usize::from(bytes[DATA_OFFSET] >> 4) * 4;
    if header_len < MIN_TCP_HEADER {
        return Err(WireError::BadDataOffset(header_len));
    }
    need(header_len, bytes.len())?;
    Ok(header_len)
}

/// A TCP segment that is changed in place.
///
/// With [`ChecksumMode::Full`] each change is carried into the checksum field (RFC 1624): a valid checksum stays valid
/// and a wrong checksum stays wrong, so damage on the way is not covered up. With [`ChecksumMode::Partial`] the field
/// holds the sum of the pseudo-header, which no change here touches, and stays as it is.
#[derive(Debug)]
pub struct SegmentMut<'a> {
    bytes: &'a mut [u8],
    header_len: usize,
    mode: ChecksumMode,
}

impl<'a> SegmentMut<'a> {
    /// Reads `bytes` as a TCP header and the available part of the payload. `mode` tells the content of the checksum
    /// field.
    ///
    /// # Errors
    ///
    /// As [`Segment::parse`].
    pub fn parse(bytes: &'a mut [u8], mode: ChecksumMode) -> Result<Self, WireError> {
        let header_len = checked_header_len(bytes)?;
        Ok(Self {
            bytes,
            header_len,
            mode,
        })
    }

    /// The present segment. The payload is the part in the buffer.
    #[must_use]
    pub const fn view(&self) -> Segment<'_> {
        Segment {
            bytes: self.bytes,
            header_len: self.header_len,
            payload_len: self.bytes.len() - self.header_len,
        }
    }

    /// Sets the sequence number.
    pub fn set_seq(&mut self, seq: SeqNumber) {
        self.replace(SEQ, seq.0.to_be_bytes());
    }

    /// Sets the acknowledgement field.
    pub fn set_ack(&mut self, ack: SeqNumber) {
        self.replace(ACK, ack.0.to_be_bytes());
    }

    /// Sets the window field, unscaled.
    pub fn set_window(&mut self, window: u16) {
        self.replace(WINDOW, window.to_be_bytes());
    }

    /// Sets the control bits.
    pub fn set_flags(&mut self, flags: Flags) {
        // The checksum works on words: the byte before belongs to the change.
        self.replace(DATA_OFFSET, [self.bytes[DATA_OFFSET], flags.bits()]);
    }

    /// Lets `edit` change the option bytes, for example by [`crate::replace_timestamps`] and [`crate::strip`], and
    /// returns the result of `edit`.
    pub fn edit_options<T>(&mut self, edit: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut old = [0; crate::MAX_OPTIONS];
        let options = &mut self.bytes[MIN_TCP_HEADER..self.header_len];
        let old = &mut old[..options.len()];
        old.copy_from_slice(options);
        let result = edit(options);
        let checksum =
            checksum::update_bytes(self.view().checksum(), old, self.view().option_bytes());
        self.store_checksum(checksum);
        result
    }

    /// Overwrites the bytes at the even offset `at`.
    fn replace<const N: usize>(&mut self, at: usize, new: [u8; N]) {
        let checksum =
            checksum::update_bytes(self.view().checksum(), &self.bytes[at..at + N], &new);
        self.bytes[at..at + N].copy_from_slice(&new);
        self.store_checksum(checksum);
    }

    fn store_checksum(&mut self, checksum: u16) {
        if self.mode == ChecksumMode::Full {
            self.bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
