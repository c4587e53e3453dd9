//! The control protocol: `serve` asks its logger, the logger answers.
//!
//! A stream begins with an [`Opening`] of each end, of a fixed layout: first the end that asks tells the versions that
//! it speaks, then the end that answers. Both use the newest version that both speak. Without such a version the end
//! that answers sends its opening, and both ends end the stream with [`ControlError::NoCommonVersion`]. An opening also
//! tells the role of its end, so that a stream connected the wrong way round is noticed.
//!
//! Then both ends write messages:
//!
//! ```text
//! u32 length (little-endian) | a Request or a Response
//! ```
//!
//! The length counts what follows it and is at most [`MAX_MESSAGE`]. A message is the encoding of its type by serde and
//! [`postcard`](https://postcard.jamesmunns.com/wire-format): the number of the variant, then the fields in order,
//! numbers in groups of seven bits. A struct in a struct and an element of a list have a length before them (`framed`).
//!
//! **How the protocol grows.** Two versions in a row understand each other. So:
//!
//! - [`VERSION`] is raised, and [`OLDEST`] becomes the version before.
//! - A variant is only ever appended to its enum. A message with the variant goes over streams of its version and of
//!   later versions: [`Message::since`] names the version, and [`encode`] and [`Decoder::pull`] refuse an earlier
//!   stream. The sender does without the message there.
//! - A field is only ever appended to its struct or variant, and has `#[serde(default)]`. The default (0, `None`,
//!   empty) means "the peer does not know the field".
//! - Tuples do not grow. But a tuple in a list becomes a struct with the same fields, and the struct grows.
//! - When [`OLDEST`] passes the version of a field, the field loses its `#[serde(default)]`.
//!
//! If both ends speak the same newest version, a message is read strictly: each value has one encoding, and a message
//! that is too short, too long or has a value out of range is [`ControlError::Malformed`]. Bytes behind the last field
//! are ignored of a newer peer alone, and fields are missing in messages of an older peer alone. A stream that had an
//! error cannot be read on.
//!
//! The logger is a process of the same host, or another machine. `serve` greets a logger process
//! with [`Request::Hello`], and the process reads frames from a ring. A service attaches to a
//! logger on another machine ([`Request::Attach`]); frames get there by [`crate::link`], and all
//! other frames by [`Request::Frames`].
//!
//! Answers come in the order of the requests. [`Response::Drained`], [`Response::Unprotected`],
//! [`Response::Unknown`], [`Response::Hosts`], [`Response::Followed`] and [`Response::Grown`] also
//! come unasked. The uploader of an image does not wait for the answers to [`Request::TellImage`]
//! and [`Request::CommitImage`]. A [`Response::Lease`] carries the number of the request. A list
//! too long for one message comes in several messages, the last of which is marked `last`;
//! [`MAX_DATA`] and [`RecordSummary::PER_MESSAGE`] are the limits of a message.

mod claim;
pub(crate) mod framed;
mod lease;
mod messages;
mod opening;
mod parts;
mod reader;
mod stream;
pub(crate) mod values;

use crate::Versions;

pub use claim::Claim;
pub use lease::{Former, LeaseAnswer, LeaseRequest, Standing, Verdict};
pub use messages::{Request, Response};
pub use opening::{Agreed, Opening, Role};
pub use parts::{
    Attach, DIGEST_LEN, Edition, ErrorCode, HEAD_OVERHEAD, KeptImage, PLACE_LEN, RecordSummary,
    Recorded, Resume, Statistics,
};
pub use stream::{Decoder, Message, encode};
pub use types::{ClientFin, ReplayMode};

/// The first version with an [`Opening`], and the version of all messages that no later version has brought.
const FIRST_NEGOTIATED: u8 = 9;

/// The version of the protocol. Version 11 has brought [`Request::StoredImage`], [`Request::ReadStoredImage`] and
/// [`Response::StoredImage`].
pub const VERSION: u8 = IMAGES_FOR_STANDBYS + cfg!(feature = "next-version") as u8;

/// The version with images for standbys.
pub(crate) const IMAGES_FOR_STANDBYS: u8 = 11;

/// The oldest version that is understood.
pub const OLDEST: u8 = VERSION - 1;

/// The versions that this program speaks.
pub const VERSIONS: Versions = match Versions::new(OLDEST, VERSION) {
    Some(versions) => versions,
    None => Versions::only(VERSION),
};

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "control stream",
    version: VERSION as u32,
    oldest: OLDEST as u32,
};

/// The most bytes of data in a [`Response::Data`]; also for all heads in a
/// [`Response::OutstreamHeads`] together, with [`HEAD_OVERHEAD`] for each head.
pub const MAX_DATA: usize = 1 << 20;

/// The longest name of a service or a host, bytes.
pub const NAME_LEN_MAX: usize = 255;

/// The largest value of the length field: [`MAX_DATA`] and space for the fields around the data.
pub const MAX_MESSAGE: usize = MAX_DATA + 64;

/// A stream that is not the control protocol, or a message that cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The stream does not begin with an opening.
    #[error(
        "the stream does not begin as a control stream of version {FIRST_NEGOTIATED} or later: the peer is an older outlive, or another program"
    )]
    NoOpening,
    /// The peer has the same role as this end.
    #[error(
        "both ends of the control stream ask, or both answer: the stream is connected the wrong way round"
    )]
    WrongWay,
    /// The peer speaks about another subject: a member of a pool has reached a logger, or `serve` a balancer.
    #[error(
        "the peer speaks {}: the address is that of another program of outlive", .0.subject()
    )]
    OtherSubject(Role),
    /// No version is common to both ends.
    #[error(
        "this program speaks {ours} of the control stream, the peer {theirs}: upgrade the older program, one version at a time"
    )]
    NoCommonVersion {
        /// Versions of this program.
        ours: Versions,
        /// Versions of the peer.
        theirs: Versions,
    },
    /// A message of a later version than that of the stream.
    #[error(
        "the message exists since version {since} of the control stream, and this stream has version {agreed}"
    )]
    NotSpoken {
        /// The version that brought the message.
        since: u8,
        /// The version of the stream.
        agreed: u8,
    },
    /// The length is above [`MAX_MESSAGE`].
    #[error("a control message of {0} bytes is too long")]
    TooLong(usize),
    /// A list of the message has more elements than a reader takes.
    #[error("a list in a control message is too long")]
    ListTooLong,
    /// No message of this direction has this number.
    #[error("no control message has the number {0}")]
    UnknownMessage(u32),
    /// The bytes are not the encoding of any message. The value names the expected content.
    #[error("a control message is malformed: {0}")]
    Malformed(String),
}

#[cfg(test)]
mod tests;
