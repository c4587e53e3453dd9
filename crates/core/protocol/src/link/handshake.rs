//! The agreement of both ends in the handshake, as far as a server on a host that did not see the
//! handshake needs the values (FT-TCP, section IV.E.3: the fabricated SYN).
//!
//! | offset | field | |
//! |---|---|---|
//! | 0 | tsval `u32` | of the SYN-ACK |
//! | 4 | syn_window `u16` | |
//! | 6 | syn_flags `u8` | byte 13 of the SYN's header |
//! | 7 | syn_options_len `u8` | 0 to 40 |
//! | 8 | scales `u8` | of windows, each 0 to 14: low half of the server's, high half of the client's |
//! | 9 | agreed `u8` | bit 0 timestamps, 1 SACK; 2: no segment of which the client has a part |
//! | 10 | syn_options | 40 bytes, 0 behind the options |
//! | 50 | `u16` | 0 |

use super::LinkError;

/// The length of a handshake, in bytes.
pub(crate) const HANDSHAKE_LEN: usize = 52;

/// Options of a TCP header: at most 40 bytes (RFC 9293 3.1).
const MAX_OPTIONS: usize = 40;
/// RFC 7323 2.3.
const MAX_SCALE: u8 = 14;

const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WHOLE_SEGMENTS: u8 = 4;

/// The options of a SYN: at most 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynOptions {
    len: u8,
    bytes: [u8; MAX_OPTIONS],
}

impl SynOptions {
    /// None at all.
    pub const NONE: Self = Self {
        len: 0,
        bytes: [0; MAX_OPTIONS],
    };

    /// Options of a SYN; `None` if `options` do not fit a TCP header.
    #[must_use]
    pub fn new(options: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_OPTIONS];
        bytes.get_mut(..options.len())?.copy_from_slice(options);
        let len = u8::try_from(options.len()).ok()?;
        Some(Self { len, bytes })
    }

    /// The bytes of the options.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Values that both ends agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// TSval of the SYN-ACK; 0 without timestamps.
    pub tsval: u32,
    /// Window of the client's SYN, which is not scaled (RFC 7323 2.2).
    pub syn_window: u16,
    /// Flags of the SYN: byte 13 of the header.
    pub syn_flags: u8,
    /// Options of the SYN.
    pub syn_options: SynOptions,
    /// How far the window fields of the server are shifted: 0 to 14.
    pub window_scale: u8,
    /// Window scale of the client.
    pub client_scale: u8,
    /// Timestamps were agreed on.
    pub timestamps: bool,
    /// SACK was.
    pub sack: bool,
    /// The client must not get a segment of which the client has a part.
    pub whole_segments: bool,
}

impl Handshake {
    /// Without any options.
    pub const PLAIN: Self = Self {
        tsval: 0,
        syn_window: u16::MAX,
        syn_flags: 2, // SYN
        syn_options: SynOptions::NONE,
        window_scale: 0,
        client_scale: 0,
        timestamps: false,
        sack: false,
        whole_segments: false,
    };

    /// Encodes the handshake.
    #[must_use]
    pub(crate) fn encode(&self) -> [u8; HANDSHAKE_LEN] {
        let mut bytes = [0; HANDSHAKE_LEN];
        bytes[..4].copy_from_slice(&self.tsval.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.syn_window.to_le_bytes());
        bytes[6] = self.syn_flags;
        bytes[7] = self.syn_options.len;
        bytes[8] = self.window_scale | self.client_scale << 4;
        for (agreed, bit) in [
            (self.timestamps, TIMESTAMPS),
            (self.sack, SACK),
            (self.whole_segments, WHOLE_SEGMENTS),
        ] {
            bytes[9] |= if agreed { bit } else { 0 };
        }
        bytes[10..10 + MAX_OPTIONS].copy_from_slice(&self.syn_options.bytes);
        bytes
    }

    /// Decodes the bytes of [`Handshake::encode`].
    ///
    /// # Errors
    /// [`LinkError::BadField`] for any other bytes.
    pub(crate) fn decode(bytes: &[u8; HANDSHAKE_LEN]) -> Result<Self, LinkError> {
        let len = usize::from(bytes[7]);
        let options = bytes.get(10..10 + len).filter(|_| len <= MAX_OPTIONS);
        let syn_options = options.and_then(SynOptions::new);
        let syn_options = syn_options.ok_or(LinkError::BadField("syn_options"))?;
        let (window_scale, client_scale) = (bytes[8] & 15, bytes[8] >> 4);
        if window_scale > MAX_SCALE || client_scale > MAX_SCALE {
            return Err(LinkError::BadField("scales"));
        }
        if bytes[9] & !(TIMESTAMPS | SACK | WHOLE_SEGMENTS) != 0 {
            return Err(LinkError::BadField("agreed"));
        }
        if bytes[10 + len..].iter().any(|byte| *byte != 0) {
            return Err(LinkError::BadField("unused"));
        }
        Ok(Self {
            tsval: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            syn_window: u16::from_le_bytes([bytes[4], bytes[5]]),
            syn_flags: bytes[6],
            syn_options,
            window_scale,
            client_scale,
            timestamps: bytes[9] & TIMESTAMPS != 0,
            sack: bytes[9] & SACK != 0,
            whole_segments: bytes[9] & WHOLE_SEGMENTS != 0,
        })
    }
}
