//! Beginning and end of a replay.

use wire::SeqNumber;

/// Part of a connection that is kept, and that the restarted server is given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "u8", try_from = "u8")
)]
pub enum ReplayMode {
    /// Everything from the handshake on (FT-TCP, section IV.E): the server executes earlier requests again.
    #[default]
    Connection,
    /// From the beginning of the last unanswered request: for servers without state between requests.
    Request,
}

impl ReplayMode {
    /// The stable code, 0 or 1.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Connection => 0,
            Self::Request => 1,
        }
    }

    /// The mode with this code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Connection),
            1 => Some(Self::Request),
            _ => None,
        }
    }
}

impl From<ReplayMode> for u8 {
    fn from(mode: ReplayMode) -> Self {
        mode.code()
    }
}

impl TryFrom<u8> for ReplayMode {
    type Error = &'static str;

    fn try_from(code: u8) -> Result<Self, Self::Error> {
        Self::from_code(code).ok_or("the code of the replay mode is unknown")
    }
}

/// The end of an instream, in client space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClientFin {
    /// Sequence number of the FIN.
    pub seq: SeqNumber,
    /// Acknowledgement of the FIN. The first server had sent the bytes before this number when the server heard the
    /// end. A server that hears the end earlier takes the client for gone, and stops in the middle of a response (nginx
    /// does).
    pub heard: SeqNumber,
}
