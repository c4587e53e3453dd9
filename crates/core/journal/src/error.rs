//! Why a connection has no record, and why a call did nothing.

use thiserror::Error;
use types::UnprotectedReason;
use wire::SeqNumber;

/// Why a connection is unprotected: the death of the server would reset the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Unprotected {
    /// the record would have exceeded the limit per connection
    #[error("its record would have exceeded the limit per connection")]
    ConnectionLimit,
    /// the records of all connections together would have exceeded the total limit
    #[error("the records of all connections together would have exceeded the total limit")]
    TotalLimit,
    /// the instream arrived with more gaps at a time than a record can track
    #[error("its instream arrived with more holes at a time than are kept track of")]
    Fragmented,
    /// a mirrored segment was lost and not repaired
    #[error("a mirrored segment was lost and not repaired")]
    MirrorLost,
    /// the connection was given up on request
    #[error("it was given up on request")]
    Requested,
}

impl From<Unprotected> for UnprotectedReason {
    /// The reason for other processes and hosts.
    fn from(reason: Unprotected) -> Self {
        match reason {
            Unprotected::ConnectionLimit | Unprotected::Fragmented => Self::ConnectionLimit,
            Unprotected::TotalLimit => Self::TotalLimit,
            Unprotected::MirrorLost | Unprotected::Requested => Self::MirrorLost,
        }
    }
}

/// Why [`Journal::open`](crate::Journal::open) did not open a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OpenError {
    /// as many connections are known as the limits allow
    #[error("as many connections are known as the limits allow ({0})")]
    TooManyConnections(
        /// The limit.
        usize,
    ),
}

/// Why a segment was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// the connection is not known
    #[error("the connection is not known")]
    Unknown,
    /// the connection is unprotected
    #[error("the connection is unprotected: {0}")]
    Unprotected(
        /// The reason.
        Unprotected,
    ),
    /// the connection became unprotected by this segment: reported once, the record is freed
    #[error("the connection became unprotected: {0}")]
    BecameUnprotected(
        /// The limit that the record would have exceeded.
        Unprotected,
    ),
    /// the sequence number is too far from the known numbers
    #[error("the sequence number is too far from what is known")]
    Implausible,
}

/// Why [`Journal::read`](crate::Journal::read) read no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReadError {
    /// the connection is not known
    #[error("the connection is not known")]
    Unknown,
    /// the connection is unprotected
    #[error("the connection is unprotected: {0}")]
    Unprotected(
        /// The reason.
        Unprotected,
    ),
    /// the record begins later: earlier requests were dropped
    #[error("the record begins later, at {0}: earlier turns were dropped")]
    Dropped(
        /// The first instream sequence number that is kept.
        SeqNumber,
    ),
    /// the record ends earlier
    #[error("the record ends earlier, at {0}")]
    NotRecorded(
        /// stable_seq.
        SeqNumber,
    ),
}
