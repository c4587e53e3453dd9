//! The control protocol: `serve` asks its logger, the logger answers.
//!
//! Both ends write messages on a byte stream:
//!
//! ```text
//! u32 length | u8 version | u8 type | body
//! ```
//!
//! The version is the one in which messages of this type became what they are. So a program understands all that one
//! of the version before says, and is understood in all but the messages that are new; a stream on which one of those
//! is said to a program that does not know it ends there.
//!
//! All numbers are little-endian; the length counts what follows it and is at most
//! [`MAX_MESSAGE`]. Types of requests are below `0x80`, types of responses above, so that a stream
//! connected the wrong way round is noticed at its first message.
//!
//! The logger is a process of the same host, or another machine. The first is greeted with
//! [`Request::Hello`] and reads its frames from a ring; to the second a service attaches
//! ([`Request::Attach`]), frames get there by [`crate::link`], and what is left of them with
//! [`Request::Frames`].
//!
//! Answers come in the order of the requests. [`Response::Drained`], [`Response::Unprotected`],
//! [`Response::Unknown`], [`Response::Hosts`], [`Response::Followed`] and [`Response::Grown`] also come unasked, and
//! nobody waits for what is said of an image that is uploaded ([`Request::TellImage`], [`Request::CommitImage`]); a
//! [`Response::Lease`] says itself which request it answers. A list too long for one message comes in several, the
//! final one marked `last`; [`MAX_DATA`] and [`RecordSummary::PER_MESSAGE`] are the limits of a message.
//!
//! Encoding is deterministic, and decoding accepts nothing but the encoding: a body that is too
//! short, too long or has a value out of range is [`ControlError::Malformed`]. A stream that had
//! an error cannot be read on, since nothing says where the next message begins.

mod body;
mod claim;
mod cursor;
mod lease;
mod messages;
mod parts;
mod stream;

pub use claim::Claim;
pub use lease::{Former, LeaseAnswer, LeaseRequest, Standing, Verdict};
pub use messages::{Request, Response};
pub use parts::{
    Attach, Edition, ErrorCode, KeptImage, RecordSummary, Recorded, Resume, Statistics,
};
pub use stream::{Decoder, Message, encode};
pub use types::{ClientFin, ReplayMode};

/// The version of the protocol.
pub const VERSION: u8 = 8;

/// The version before, which is understood, too.
const OLDEST: u8 = 7;

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "control stream",
    version: VERSION as u32,
    oldest: OLDEST as u32,
};

/// The most bytes of data that one [`Response::Data`] can carry; also for the heads in one
/// [`Response::OutstreamHeads`] together, eight bytes for each head included.
pub const MAX_DATA: usize = 1 << 20;

/// The largest value of the length field: [`MAX_DATA`] and room for what surrounds the data.
pub const MAX_MESSAGE: usize = MAX_DATA + 64;

/// A stream that is not the control protocol, or a message that cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The length is above [`MAX_MESSAGE`].
    #[error("a control message of {0} bytes is too long")]
    TooLong(usize),
    /// The length leaves no room for version and type.
    #[error("a control message of {0} bytes has no room for its header")]
    TooShort(usize),
    /// A version that this program does not speak.
    #[error("version {0} of the control protocol is not known")]
    UnknownVersion(u8),
    /// A type that this version does not have, or not in this direction.
    #[error("type {0:#04x} of control message is not known")]
    UnknownType(u8),
    /// The body is not the encoding of any message of its type. The value says what was expected.
    #[error("the body of a control message is malformed: {0}")]
    Malformed(&'static str),
}

#[cfg(test)]
mod tests;
