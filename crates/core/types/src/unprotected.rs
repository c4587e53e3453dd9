//! Reasons for a connection without protection.

use core::fmt;

/// Reason for which a connection would not survive the death of the server. Each reason has a code whose meaning never
/// changes, and a sentence for the operator (`Display`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "u8", try_from = "u8")
)]
pub enum UnprotectedReason {
    /// The record exceeded the limit of a connection.
    ConnectionLimit,
    /// The records of all connections together exceeded the limit.
    TotalLimit,
    /// A mirrored segment was lost, and the client did not retransmit the bytes.
    MirrorLost,
    /// The logger was started again and lost the record.
    LoggerRestarted,
    /// More connections were open than may be protected at once.
    TooManyConnections,
    /// The connection was open before the protection began: the handshake is not recorded.
    HandshakeNotSeen,
    /// The handshake agreed on an option that a splice cannot carry.
    UnsupportedOption,
    /// The logger on the other machine did not answer for too long.
    LoggerLost,
    /// The connection is recorded again from the next request on.
    AwaitsTurn,
}

impl UnprotectedReason {
    /// All reasons, in the order of their codes.
    pub const ALL: [Self; 9] = [
        Self::ConnectionLimit,
        Self::TotalLimit,
        Self::MirrorLost,
        Self::LoggerRestarted,
        Self::TooManyConnections,
        Self::HandshakeNotSeen,
        Self::UnsupportedOption,
        Self::LoggerLost,
        Self::AwaitsTurn,
    ];

    /// The stable code: 1 to 9. 0 is free for "none".
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::ConnectionLimit => 1,
            Self::TotalLimit => 2,
            Self::MirrorLost => 3,
            Self::LoggerRestarted => 4,
            Self::TooManyConnections => 5,
            Self::HandshakeNotSeen => 6,
            Self::UnsupportedOption => 7,
            Self::LoggerLost => 8,
            Self::AwaitsTurn => 9,
        }
    }

    /// The reason with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl From<UnprotectedReason> for u8 {
    fn from(reason: UnprotectedReason) -> Self {
        reason.code()
    }
}

impl TryFrom<u8> for UnprotectedReason {
    type Error = &'static str;

    fn try_from(code: u8) -> Result<Self, Self::Error> {
        Self::from_code(code).ok_or("the reason for no protection is unknown")
    }
}

impl fmt::Display for UnprotectedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectionLimit => "the record exceeded the limit per connection",
            Self::TotalLimit => "the records of all connections exceeded the total limit",
            Self::MirrorLost => "a mirrored segment was lost and was not retransmitted",
            Self::LoggerRestarted => "the logger was restarted and lost the record",
            Self::TooManyConnections => "too many connections were open at once",
            Self::HandshakeNotSeen => "open before the protection began",
            Self::UnsupportedOption => "the handshake has a TCP option that a splice cannot carry",
            Self::LoggerLost => "the logger did not answer",
            Self::AwaitsTurn => "recorded again from the next request on",
        })
    }
}

#[cfg(test)]
mod tests;
