//! Reading the classic pcap format, as tcpdump writes it: a file header of 24 bytes, then
//! for each packet a header of 16 bytes and the packet's first bytes.
//! (Format: draft-ietf-opsawg-pcap.)

#[cfg(test)]
mod tests;

use std::time::Duration;

/// The link type of Ethernet frames.
pub const ETHERNET: u32 = 1;

/// A packet's header says at most this many bytes; more is nonsense, not a packet.
const LARGEST_PACKET: usize = 1 << 20;

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The time of the capture, since 1970-01-01 UTC.
    pub time: Duration,
    /// The captured part of the frame, from the link-layer header on.
    pub frame: Vec<u8>,
    /// The frame's length on the wire, in bytes.
    pub length: usize,
}

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pcap {
    /// The kind of link-layer header, for instance [`ETHERNET`].
    pub link_type: u32,
    /// The packets in the order of the file.
    pub packets: Vec<Packet>,
    /// Whether the file ends within a packet, as happens when the writer is killed. That packet is left out.
    pub torn: bool,
}

/// Why bytes are not a pcap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PcapError {
    /// Fewer bytes than a file header has.
    #[error("the file is too short for a pcap header: {0} bytes")]
    Short(usize),
    /// Another format, such as pcapng.
    #[error("the file does not begin like a pcap file: {0:#010x}")]
    Magic(u32),
    /// A packet longer than any can be.
    #[error("the packet at offset {offset} claims {length} bytes")]
    Length {
        /// The offset of the packet's header in the file.
        offset: usize,
        /// The claim.
        length: usize,
    },
}

/// Reads a whole file.
///
/// # Errors
/// [`PcapError`]. A torn end is none.
pub fn read(bytes: &[u8]) -> Result<Pcap, PcapError> {
    let (header, mut rest) = bytes
        .split_first_chunk::<24>()
        .ok_or(PcapError::Short(bytes.len()))?;
    let format = Format::from_magic(word(header, 0))?;
    let mut packets = Vec::new();
    while let Some((header, after)) = rest.split_first_chunk::<16>() {
        let length = format.length(header, 8);
        if length > LARGEST_PACKET {
            let offset = bytes.len() - rest.len();
            return Err(PcapError::Length { offset, length });
        }
        let Some((frame, after)) = after.split_at_checked(length) else {
            break;
        };
        packets.push(Packet {
            time: format.time(header),
            frame: frame.to_vec(),
            length: format.length(header, 12),
        });
        rest = after;
    }
    Ok(Pcap {
        // The upper bits hold other things.
        link_type: format.word(header, 20) & 0xffff,
        packets,
        torn: !rest.is_empty(),
    })
}

/// The byte order and the unit of time of the writing machine.
#[derive(Clone, Copy)]
struct Format {
    swapped: bool,
    nanoseconds: bool,
}

impl Format {
    fn from_magic(magic: u32) -> Result<Self, PcapError> {
        let (swapped, nanoseconds) = match magic {
            0xa1b2_c3d4 => (false, false),
            0xa1b2_3c4d => (false, true),
            0xd4c3_b2a1 => (true, false),
            0x4d3c_b2a1 => (true, true),
            other => return Err(PcapError::Magic(other)),
        };
        Ok(Self {
            swapped,
            nanoseconds,
        })
    }

    fn word(self, header: &[u8], at: usize) -> u32 {
        let value = word(header, at);
        if self.swapped {
            value.swap_bytes()
        } else {
            value
        }
    }

    fn length(self, header: &[u8], at: usize) -> usize {
        usize::try_from(self.word(header, at)).unwrap_or(usize::MAX)
    }

    fn time(self, header: &[u8]) -> Duration {
        let seconds = Duration::from_secs(self.word(header, 0).into());
        let fraction = u64::from(self.word(header, 4));
        seconds
            + if self.nanoseconds {
                Duration::from_nanos(fraction)
            } else {
                Duration::from_micros(fraction)
            }
    }
}

/// The four bytes at an offset, least significant first. Every header is long enough.
fn word(header: &[u8], at: usize) -> u32 {
    header
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
