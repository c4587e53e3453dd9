//! Actions of a revival, and the reasons for which a connection is not revived.

use alloc::{boxed::Box, vec::Vec};

use super::PositionError;
use crate::flow::{Flow, Unprotected};
use crate::judge::Refusal;

/// Next action of the member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// An IP packet for the local server, in the numbers of its socket.
    ToServer(Vec<u8>),
    /// The programs translate from now on.
    Splice(Box<Flow>),
    /// An IP packet for the client.
    ToClient(Vec<u8>),
    /// The revival is over. The packet, if any, resets the client's connection.
    Refuse {
        /// The reason.
        reason: Reason,
        /// A RST for the client.
        reset: Option<Vec<u8>>,
    },
}

/// Why a connection cannot be revived.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The client's echo does not tell a position.
    #[error(transparent)]
    Position(#[from] PositionError),
    /// The client's request is not one that can be asked again.
    #[error("the client's request cannot be repeated: {0}")]
    Request(Unprotected),
    /// The client asked for the last bytes of an object, or several ranges.
    #[error("the client's own range cannot be continued")]
    OwnRange,
    /// The answer of the local server.
    #[error(transparent)]
    Answer(#[from] Refusal),
    /// The version of the object is another than the version that the client has a part of.
    #[error("another version of the object")]
    Version,
    /// The object was modified since the download may have begun. The few bits of a timestamp do not tell with
    /// certainty whether the client has a part of the version before.
    #[error("the object was modified a short time ago")]
    Modified,
    /// The client sends later requests, and never the first that was not acknowledged.
    #[error("the client does not repeat its first unacknowledged request")]
    LaterRequest,
    /// The client sends nothing more.
    #[error("the client sends no request")]
    Silent,
    /// No response is under way. The packet beside, if any, closes the client's connection.
    #[error("no response is under way")]
    Idle,
    /// The local server does not answer.
    #[error("the local server does not answer")]
    NoServer,
    /// The head of the answer is longer than the first flight.
    #[error("the head of the answer is too long")]
    LongHead,
}

/// A connection that is not revived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Why.
    pub reason: Reason,
    /// A RST for the client.
    pub reset: Option<Vec<u8>>,
}
