//! The mirror frame: observations of a program in the kernel, for the logger.
//!
//! A frame is a header of 48 bytes ([`header_len`]), all fields little-endian, and the IP packet.
//! Of the outstream, where the whole content does not matter, only the beginning of the packet
//! follows:
//!
//! | offset | field | |
//! |---|---|---|
//! | 0 | magic `u32` | `OUTL` |
//! | 4 | version `u8` | |
//! | 5 | kind `u8` | 1 instream, 2 outstream, 3 barrier, 4 opened, 5 closed, 6 digest |
//! | 6 | reason `u8` | of closed: 1 finished, 2 reset by client, 3 reset by server, 4 evicted; else 0 |
//! | 7 | unfinished `u8` | of instream and outstream: 1 if the checksum field holds only the pseudo-header's sum; else
//! 0 |
//! | 8 | flow_id `u64` | |
//! | 16 | timestamp_ns `u64` | CLOCK_MONOTONIC |
//! | 24 | server_nxt `u32` | end of the outstream sent so far, in the client's sequence space |
//! | 28 | server_ack `u32` | instream acknowledged to the client so far |
//! | 32 | packet_len `u32` | true length of the packet |
//! | 36 | captured_len `u32` | bytes of the packet that follow |
//! | 40 | token `u64` | of outstream: low half: where the record of the outstream goes on; |
//! | | | high half: end of the client's data when this response began; |
//! | | | of barrier: the token; of opened: client ISN low, server ISN high; else 0 |
//!
//! A frame of the kind "digest" has a [`Digest`] in the place of a packet.
//!
//! `serve` and a logger process on its host agree on a version, and tell the programs. A logger on another machine gets
//! each frame in the version that is agreed on with that logger. A reader takes any version in [`VERSIONS`]: a ring may
//! hold frames of the version before.
//!
//! The programs in the kernel write this layout from C; a test pins each byte. A buffer may be
//! longer than the frame: bytes behind the frame are ignored. Neither Ethernet padding nor the
//! rounding of a ring buffer matters.

use core::ops::Range;

use wire::{FlowId, SeqNumber};

use crate::{Digest, Versions};

/// The first four bytes of a frame, read as a little-endian number: `OUTL`.
pub const MAGIC: u32 = 0x4c54_554f;
/// The newest version of the layout. The feature `next-version` builds the version after 3, with a field more.
pub const VERSION: u8 = 3 + cfg!(feature = "next-version") as u8;
/// The versions that this program reads and writes.
pub const VERSIONS: Versions = match Versions::new(3, VERSION) {
    Some(versions) => versions,
    None => panic!("the newest version is older than the oldest"),
};

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "mirror frame",
    version: VERSION as u32,
    oldest: VERSIONS.oldest() as u32,
};
/// The length of the header in the oldest version, bytes.
const OLDEST_HEADER_LEN: usize = 48;
/// The length of the header in the newest version, bytes.
pub const HEADER_LEN: usize = header_len(VERSION);

/// The length of the header in frames of this version, bytes.
#[must_use]
pub const fn header_len(version: u8) -> usize {
    let has_next = cfg!(feature = "next-version") && version == VERSION;
    OLDEST_HEADER_LEN + if has_next { 8 } else { 0 }
}

const AT_MAGIC: Range<usize> = 0..4;
const AT_VERSION: usize = 4;
const AT_KIND: usize = 5;
const AT_REASON: usize = 6;
const AT_UNFINISHED: usize = 7;
const AT_FLOW_ID: Range<usize> = 8..16;
const AT_TIMESTAMP: Range<usize> = 16..24;
const AT_SERVER_NXT: Range<usize> = 24..28;
const AT_SERVER_ACK: Range<usize> = 28..32;
const AT_PACKET_LEN: Range<usize> = 32..36;
const AT_CAPTURED_LEN: Range<usize> = 36..40;
const AT_TOKEN: Range<usize> = 40..48;
#[cfg(feature = "next-version")]
const AT_NEXT: Range<usize> = 48..56;

/// A byte string that is not a mirror frame, or a frame that cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than the header, or fewer than the header announces.
    #[error("the frame is cut short: {needed} bytes are needed, {available} are there")]
    Truncated {
        /// Bytes of the header, or of header and packet.
        needed: usize,
        /// Bytes that are there.
        available: usize,
    },
    /// No mirror frame at all.
    #[error("the magic is {0:#010x}, which is not that of a mirror frame")]
    BadMagic(u32),
    /// A version that this program does not read or write.
    #[error("version {0} of the mirror frame is not known")]
    UnknownVersion(u8),
    /// A kind that this version does not have.
    #[error("kind {0} of mirror frame is not known")]
    UnknownKind(u8),
    /// A reason that this version does not have.
    #[error("reason {0} for the end of a connection is not known")]
    UnknownReason(u8),
    /// A field that this kind of frame does not use is not 0.
    #[error("field {0} is not used in this kind of frame, yet not 0")]
    UnusedField(&'static str),
    /// `captured_len` is greater than `packet_len`.
    #[error("{captured} bytes were captured of a packet of {packet_len}")]
    CapturedBeyondPacket {
        /// Bytes of the packet in the frame.
        captured: usize,
        /// The length that the packet is said to have.
        packet_len: u32,
    },
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Both directions were finished and acknowledged.
    Finished,
    /// The client sent a RST.
    ResetByClient,
    /// The server sent a RST.
    ResetByServer,
    /// The table of connections was full, or the connection was silent for too long.
    Evicted,
}

impl CloseReason {
    /// The code in the frame.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Finished => 1,
            Self::ResetByClient => 2,
            Self::ResetByServer => 3,
            Self::Evicted => 4,
        }
    }

    const fn from_code(code: u8) -> Result<Self, FrameError> {
        match code {
            1 => Ok(Self::Finished),
            2 => Ok(Self::ResetByClient),
            3 => Ok(Self::ResetByServer),
            4 => Ok(Self::Evicted),
            _ => Err(FrameError::UnknownReason(code)),
        }
    }
}

/// Kind of a frame, with the fields of that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// The client sent this packet.
    Instream,
    /// The server sent this packet; usually only the beginning is in the frame.
    Outstream {
        /// Sequence number of the first payload byte to be recorded, in the client's space: earlier
        /// bytes of the packet belong to an earlier request.
        from: SeqNumber,
        /// How far the client had sent when this answer began.
        asked: SeqNumber,
    },
    /// All frames before this frame have been written. The token names the question.
    Barrier {
        /// The number that the asker chose.
        token: u64,
    },
    /// A connection was established. There is no packet.
    Opened {
        /// The client's initial sequence number.
        client_isn: SeqNumber,
        /// The server's initial sequence number, in the client's sequence space.
        server_isn: SeqNumber,
    },
    /// The connection is over.
    Closed(CloseReason),
    /// Digest of the outstream so far: [`MirrorFrame::digest`].
    Digest,
}

impl FrameKind {
    /// The code in the frame.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Instream => 1,
            Self::Outstream { .. } => 2,
            Self::Barrier { .. } => 3,
            Self::Opened { .. } => 4,
            Self::Closed(_) => 5,
            Self::Digest => 6,
        }
    }

    /// The fields "reason" and "token".
    fn reason_and_token(self) -> (u8, u64) {
        match self {
            Self::Instream | Self::Digest => (0, 0),
            Self::Outstream { from, asked } => (0, u64::from(asked.0) << 32 | u64::from(from.0)),
            Self::Barrier { token } => (0, token),
            Self::Opened {
                client_isn,
                server_isn,
            } => (0, u64::from(server_isn.0) << 32 | u64::from(client_isn.0)),
            Self::Closed(reason) => (reason.code(), 0),
        }
    }

    fn from_fields(code: u8, reason: u8, token: [u8; 8]) -> Result<Self, FrameError> {
        let [a, b, c, d, e, f, g, h] = token;
        let kind = match code {
            1 => Self::Instream,
            2 => Self::Outstream {
                from: SeqNumber(u32::from_le_bytes([a, b, c, d])),
                asked: SeqNumber(u32::from_le_bytes([e, f, g, h])),
            },
            3 => Self::Barrier {
                token: u64::from_le_bytes(token),
            },
            4 => Self::Opened {
                client_isn: SeqNumber(u32::from_le_bytes([a, b, c, d])),
                server_isn: SeqNumber(u32::from_le_bytes([e, f, g, h])),
            },
            5 => Self::Closed(CloseReason::from_code(reason)?),
            6 => Self::Digest,
            _ => return Err(FrameError::UnknownKind(code)),
        };
        let (used_reason, used_token) = kind.reason_and_token();
        if reason != used_reason {
            return Err(FrameError::UnusedField("reason"));
        }
        if u64::from_le_bytes(token) != used_token {
            return Err(FrameError::UnusedField("token"));
        }
        Ok(kind)
    }
}

/// A mirror frame. A frame that was read borrows the packet from the buffer; the model of the programs owns its
/// packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MirrorFrame<P> {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The connection; without meaning in a barrier.
    pub flow_id: FlowId,
    /// Time of writing, in nanoseconds of CLOCK_MONOTONIC of the host that wrote the frame.
    pub timestamp_ns: u64,
    /// The end of the outstream sent so far, in the client's sequence space.
    pub server_nxt: SeqNumber,
    /// The end of the instream that was acknowledged to the client so far.
    pub server_ack: SeqNumber,
    /// The true length of the IP packet, in bytes. Not below `packet.len()`.
    pub packet_len: u32,
    /// The kernel has deferred the packet's checksum and vouches for the packet: the checksum field
    /// holds the sum of the pseudo-header alone. False without a packet.
    pub unfinished: bool,
    /// Of the next version, for tests.
    #[cfg(feature = "next-version")]
    pub next: u64,
    /// The IP packet, as far as captured. [`wire::IpPacket::parse_captured`] takes this field and
    /// `packet_len`.
    pub packet: P,
}

impl<P: Default> MirrorFrame<P> {
    /// A frame without a packet, in which all numbers are 0.
    #[must_use]
    pub fn of(kind: FrameKind, flow_id: FlowId) -> Self {
        Self {
            kind,
            flow_id,
            timestamp_ns: 0,
            server_nxt: SeqNumber(0),
            server_ack: SeqNumber(0),
            packet_len: 0,
            unfinished: false,
            #[cfg(feature = "next-version")]
            next: 0,
            packet: P::default(),
        }
    }
}

impl<'a> MirrorFrame<&'a [u8]> {
    /// Reads the frame at the beginning of `bytes`.
    ///
    /// # Errors
    ///
    /// As of [`Self::first`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FrameError> {
        Self::first(bytes).map(|(frame, _)| frame)
    }

    /// Reads the frame at the beginning of `bytes`, and gives back the bytes behind the frame, too.
    ///
    /// # Errors
    ///
    /// [`FrameError`], if there is no whole frame of a known version and kind in which the unused
    /// fields are 0.
    pub fn first(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), FrameError> {
        let header = header(bytes)?;
        let code = header[AT_KIND];
        let token = u64_at(header, AT_TOKEN).to_le_bytes();
        let packet_len = u32_at(header, AT_PACKET_LEN);
        let kind = FrameKind::from_fields(code, header[AT_REASON], token)?;
        let (packet, rest) = captured(
            bytes,
            header.len(),
            u32_at(header, AT_CAPTURED_LEN),
            packet_len,
        )?;
        let frame = Self {
            kind,
            unfinished: match header[AT_UNFINISHED] {
                0 => false,
                1 if matches!(kind, FrameKind::Instream | FrameKind::Outstream { .. }) => true,
                _ => return Err(FrameError::UnusedField("unfinished")),
            },
            flow_id: FlowId(u64_at(header, AT_FLOW_ID)),
            timestamp_ns: u64_at(header, AT_TIMESTAMP),
            server_nxt: SeqNumber(u32_at(header, AT_SERVER_NXT)),
            server_ack: SeqNumber(u32_at(header, AT_SERVER_ACK)),
            packet_len,
            #[cfg(feature = "next-version")]
            next: match header.len() {
                HEADER_LEN => u64_at(header, AT_NEXT),
                _ => 0, // of the version before
            },
            packet,
        };
        Ok((frame, rest))
    }
}

impl<P: AsRef<[u8]>> MirrorFrame<P> {
    /// The digest in a frame of the kind [`FrameKind::Digest`].
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.packet.as_ref().try_into().ok().map(Digest::from_bytes)
    }

    /// Appends the frame to `out`, in this version.
    ///
    /// # Errors
    ///
    /// [`FrameError::CapturedBeyondPacket`] and [`FrameError::UnknownVersion`], and nothing is appended.
    pub fn encode(&self, version: u8, out: &mut Vec<u8>) -> Result<(), FrameError> {
        if !VERSIONS.contains(version) {
            return Err(FrameError::UnknownVersion(version));
        }
        let packet = self.packet.as_ref();
        let captured_len = u32::try_from(packet.len()).ok();
        let Some(captured_len) = captured_len.filter(|len| *len <= self.packet_len) else {
            return Err(FrameError::CapturedBeyondPacket {
                captured: packet.len(),
                packet_len: self.packet_len,
            });
        };
        let (reason, token) = self.kind.reason_and_token();
        let mut header = [0; HEADER_LEN];
        header[AT_MAGIC].copy_from_slice(&MAGIC.to_le_bytes());
        header[AT_VERSION] = version;
        header[AT_KIND] = self.kind.code();
        header[AT_REASON] = reason;
        header[AT_UNFINISHED] = u8::from(self.unfinished);
        header[AT_FLOW_ID].copy_from_slice(&self.flow_id.0.to_le_bytes());
        header[AT_TIMESTAMP].copy_from_slice(&self.timestamp_ns.to_le_bytes());
        header[AT_SERVER_NXT].copy_from_slice(&self.server_nxt.0.to_le_bytes());
        header[AT_SERVER_ACK].copy_from_slice(&self.server_ack.0.to_le_bytes());
        header[AT_PACKET_LEN].copy_from_slice(&self.packet_len.to_le_bytes());
        header[AT_CAPTURED_LEN].copy_from_slice(&captured_len.to_le_bytes());
        header[AT_TOKEN].copy_from_slice(&token.to_le_bytes());
        #[cfg(feature = "next-version")]
        header[AT_NEXT].copy_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&header[..header_len(version)]);
        out.extend_from_slice(packet);
        Ok(())
    }
}

/// The header at the beginning of `bytes`, of a known version.
fn header(bytes: &[u8]) -> Result<&[u8], FrameError> {
    let truncated = |needed| FrameError::Truncated {
        needed,
        available: bytes.len(),
    };
    let Some(header) = bytes.first_chunk::<OLDEST_HEADER_LEN>() else {
        return Err(truncated(OLDEST_HEADER_LEN));
    };
    let magic = u32_at(header, AT_MAGIC);
    if magic != MAGIC {
        return Err(FrameError::BadMagic(magic));
    }
    let version = header[AT_VERSION];
    if !VERSIONS.contains(version) {
        return Err(FrameError::UnknownVersion(version));
    }
    let len = header_len(version);
    bytes.get(..len).ok_or(truncated(len))
}

/// The bytes of the packet behind a header of `header_len` bytes, and the bytes behind the packet.
fn captured(
    bytes: &[u8],
    header_len: usize,
    captured_len: u32,
    packet_len: u32,
) -> Result<(&[u8], &[u8]), FrameError> {
    // A length beyond the address space is beyond the buffer too.
    let captured = usize::try_from(captured_len).unwrap_or(usize::MAX);
    if captured_len > packet_len {
        return Err(FrameError::CapturedBeyondPacket {
            captured,
            packet_len,
        });
    }
    let behind = bytes.get(header_len..).unwrap_or_default();
    behind
        .split_at_checked(captured)
        .ok_or(FrameError::Truncated {
            needed: header_len.saturating_add(captured),
            available: bytes.len(),
        })
}

/// The field at a range of four bytes within the header.
fn u32_at(header: &[u8], at: Range<usize>) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&header[at]);
    u32::from_le_bytes(field)
}

/// The field at a range of eight bytes within the header.
fn u64_at(header: &[u8], at: Range<usize>) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&header[at]);
    u64::from_le_bytes(field)
}

#[cfg(test)]
mod tests;
