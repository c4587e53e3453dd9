//! Writing whole packets: fabricated SYNs, replayed bytes, resets.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::checksum::{self, ChecksumMode};
use crate::flow::canonical;
use crate::ip::{V4_HEADER, V6_HEADER};
use crate::tcp::{Flags, MIN_TCP_HEADER};
use crate::{MAX_OPTIONS, PROTOCOL_TCP, SeqNumber};

/// The most bytes that the 16-bit length field of either IP version can announce: all of an IPv4
/// packet, all of an IPv6 packet but its 40-byte header.
pub const MAX_PACKET: usize = 65_535;

/// Hops that an emitted packet may take.
const HOP_LIMIT: u8 = 64;

/// "Don't fragment", version 4.
const DONT_FRAGMENT: u16 = 0x4000;

/// A packet that cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// One address is IPv4 and the other IPv6.
    #[error("the addresses are of two families: {source_address} and {destination}")]
    FamilyMismatch {
        /// The sender's address.
        source_address: IpAddr,
        /// The receiver's address.
        destination: IpAddr,
    },
    /// More than 40 bytes of options. The value is the number of bytes.
    #[error("{0} bytes of TCP options do not fit into a header")]
    OptionsTooLong(usize),
    /// More bytes than an IP length field can count. The value is the needed length.
    #[error("a length of {0} does not fit into the length field of an IP header")]
    PacketTooLong(usize),
}

/// A TCP/IP packet to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSpec<'a> {
    /// The sender's address and port.
    pub source: SocketAddr,
    /// The receiver's address and port.
    pub destination: SocketAddr,
    /// The sequence number field.
    pub seq: SeqNumber,
    /// The acknowledgement field.
    pub ack: SeqNumber,
    /// The control bits.
    pub flags: Flags,
    /// The window field, not scaled.
    pub window: u16,
    /// The options, at most 40 bytes, padded with "end of list" to a multiple of four.
    pub options: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl SegmentSpec<'_> {
    /// Appends the packet to `out`: IPv4 with "don't fragment" or IPv6 without a flow label, 64
    /// hops, urgent pointer 0. IPv4-mapped IPv6 addresses are written as IPv4.
    ///
    /// # Errors
    ///
    /// [`EmitError`]; `out` is unchanged.
    pub fn emit(&self, out: &mut Vec<u8>, mode: ChecksumMode) -> Result<(), EmitError> {
        let source = canonical(self.source).ip();
        let destination = canonical(self.destination).ip();
        if self.options.len() > MAX_OPTIONS {
            return Err(EmitError::OptionsTooLong(self.options.len()));
        }
        let tcp_header = MIN_TCP_HEADER + self.options.len().next_multiple_of(4);
        let segment_len = tcp_header + self.payload.len();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = v4_header(source.octets(), destination.octets(), segment_len)?;
                out.extend_from_slice(&header);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = v6_header(source.octets(), destination.octets(), segment_len)?;
                out.extend_from_slice(&header);
            }
            _ => {
                return Err(EmitError::FamilyMismatch {
                    source_address: source,
                    destination,
                });
            }
        }
        let start = out.len();
        self.emit_segment(out, tcp_header);
        let segment = &mut out[start..];
        let checksum = match mode {
            ChecksumMode::Full => checksum::tcp_checksum(source, destination, segment),
            ChecksumMode::Partial => {
                checksum::fold(checksum::tcp_pseudo_header(source, destination, segment))
            }
        };
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }

    /// Appends the TCP header, with 0 for the checksum, and the payload.
    fn emit_segment(&self, out: &mut Vec<u8>, header_len: usize) {
        let end_of_header = out.len() + header_len;
        out.extend_from_slice(&self.source.port().to_be_bytes());
        out.extend_from_slice(&self.destination.port().to_be_bytes());
        out.extend_from_slice(&self.seq.0.to_be_bytes());
        out.extend_from_slice(&self.ack.0.to_be_bytes());
        out.extend_from_slice(&[data_offset(header_len), self.flags.bits()]);
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend_from_slice(&[0; 4]); // checksum and urgent pointer
        out.extend_from_slice(self.options);
        // The padding is composed of zeros (RFC 9293, 3.1).
        out.resize(end_of_header, 0);
        out.extend_from_slice(self.payload);
    }
}

/// Byte 12 of a TCP header of 20 to 60 bytes.
fn data_offset(header_len: usize) -> u8 {
    // 60 / 4 = 15: at most four bits.
    u8::try_from(header_len / 4).unwrap_or(0xf) << 4
}

fn length_field(len: usize) -> Result<[u8; 2], EmitError> {
    let len = u16::try_from(len).map_err(|_| EmitError::PacketTooLong(len))?;
    Ok(len.to_be_bytes())
}

fn v4_header(
    source: [u8; 4],
    destination: [u8; 4],
    segment_len: usize,
) -> Result<[u8; V4_HEADER], EmitError> {
    let mut header = [0; V4_HEADER];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&length_field(V4_HEADER + segment_len)?);
    header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    header[8] = HOP_LIMIT;
    header[9] = PROTOCOL_TCP;
    header[12..16].copy_from_slice(&source);
    header[16..20].copy_from_slice(&destination);
    let checksum = !checksum::fold(checksum::sum(&header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Ok(header)
}

fn v6_header(
    source: [u8; 16],
    destination: [u8; 16],
    segment_len: usize,
) -> Result<[u8; V6_HEADER], EmitError> {
    let mut header = [0; V6_HEADER];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&length_field(segment_len)?);
    header[6] = PROTOCOL_TCP;
    header[7] = HOP_LIMIT;
    header[8..24].copy_from_slice(&source);
    header[24..40].copy_from_slice(&destination);
    Ok(header)
}

#[cfg(test)]
mod tests;
