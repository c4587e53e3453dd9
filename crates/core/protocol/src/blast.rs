//! Datagrams of a bulk transfer: packets of blasts, and the acknowledgements.
//!
//! The transfer is agreed on a control stream; the data goes in UDP. Two kinds of datagrams exist:
//!
//! - PACKET ([`PacketHeader`]): one packet of a blast, from the sender. 24 bytes of header, then the payload. A header
//!   with a count of 0 is a *probe*: no payload, only the question for the state of the receiver.
//! - ACK ([`Acknowledgement`]): the answer to a packet that asks. It tells the missing packets of the blast, the first
//!   blast that is not whole, and how far the sender may go on.
//!
//! ```text
//! PACKET   0  u16 magic    2  u8 version   3  u8 kind = 1
//!          4  u32 transfer  8  u32 blast   12  u16 packet   14  u16 count
//!         16  u16 round    18  u16 flags   20  u32 sent, µs
//! ACK      0  u16 magic    2  u8 version   3  u8 kind = 2
//!          4  u32 transfer  8  u32 number  12  u32 blast    16  u16 round   18  u16 packets in the bitmap
//!         20  u32 sent, µs 24  u32 whole_below  28  u32 credit  32  u32 congestion  36  u32 duplicates
//!         40  bitmap of the missing packets, if any is missing: 8 packets in a byte, the first in the lowest bit
//! ```
//!
//! All fields are little-endian. Each datagram ends with a tag ([`TAG_LEN`]) of an AEAD cipher, which covers the
//! header; this module neither makes nor checks tags. A cipher needs a number that is used once per key:
//! [`PacketHeader::nonce`] and [`Acknowledgement::nonce`]. A sender therefore raises the round of a blast with each
//! repetition, and each direction has a key of its own.
//!
//! Datagrams may be lost, doubled and reordered.

mod acknowledgement;
mod packet;
mod packet_set;

use crate::Versions;

pub use acknowledgement::{ACKNOWLEDGEMENT_LEN_MIN, Acknowledgement};
pub use packet::{PACKET_HEADER_LEN, PacketHeader};
pub use packet_set::{PacketSet, Packets};

/// The newest version of the datagrams.
pub const DATAGRAM_VERSION: u8 = 1 + cfg!(feature = "next-version") as u8;
/// The versions that this program reads and writes.
pub const VERSIONS: Versions = match Versions::new(1, DATAGRAM_VERSION) {
    Some(versions) => versions,
    None => panic!("the newest version is older than the oldest"),
};

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "bulk transfer",
    version: DATAGRAM_VERSION as u32,
    oldest: VERSIONS.oldest() as u32,
};

/// The first two bytes of each datagram: `BT`.
pub const DATAGRAM_MAGIC: u16 = u16::from_le_bytes(*b"BT");
/// Most packets of a blast.
pub const PACKETS_MAX: u16 = 4096;

/// A datagram that is no datagram of a bulk transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// Not the length that this kind of datagram has.
    #[error("a datagram of {0} bytes is too short or too long for its kind")]
    BadLength(usize),
    /// No datagram of a bulk transfer at all.
    #[error("the datagram begins with {0:#06x}, which is not that of a bulk transfer")]
    BadMagic(u16),
    /// A version that this program does not read.
    #[error("version {0} of bulk transfers is not known")]
    UnknownVersion(u8),
    /// A kind that this version does not have, or not in this direction.
    #[error("kind {0} of datagram is not known here")]
    UnknownKind(u8),
    /// A value is out of range, or a bit without meaning is set.
    #[error("field {0} of the datagram has a value that it cannot have")]
    BadField(&'static str),
}

/// Bytes of the tag behind the payload.
pub const TAG_LEN: usize = 16;

const KIND_PACKET: u8 = 1;
const KIND_ACK: u8 = 2;

/// Reads the fields that both kinds have, and returns the number of the transfer.
fn transfer_of(datagram: &[u8], kind: u8, len_min: usize) -> Result<u32, DatagramError> {
    if datagram.len() < len_min {
        return Err(DatagramError::BadLength(datagram.len()));
    }
    match u16_at(datagram, 0) {
        DATAGRAM_MAGIC => {}
        magic => return Err(DatagramError::BadMagic(magic)),
    }
    if !VERSIONS.contains(datagram[2]) {
        return Err(DatagramError::UnknownVersion(datagram[2]));
    }
    if datagram[3] != kind {
        return Err(DatagramError::UnknownKind(datagram[3]));
    }
    Ok(u32_at(datagram, 4))
}

fn write_head(out: &mut [u8], version: u8, kind: u8, transfer: u32) {
    out[..2].copy_from_slice(&DATAGRAM_MAGIC.to_le_bytes());
    out[2] = version;
    out[3] = kind;
    out[4..8].copy_from_slice(&transfer.to_le_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The nonce of a datagram: three numbers that are never used together a second time.
fn nonce_of(first: u32, second: u32, third: u32) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&first.to_le_bytes());
    nonce[4..8].copy_from_slice(&second.to_le_bytes());
    nonce[8..].copy_from_slice(&third.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests;
