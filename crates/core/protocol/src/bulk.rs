//! The stream between the sender and a receiver of bulk data.
//!
//! A stream of [`crate::control`] with other messages: the same opening (with the roles [`Role::Sender`] and
//! [`Role::Receiver`]), the same encoding, and the same rules for growth. [`STREAM_VERSION`] counts these messages
//! alone.
//!
//! ```text
//! sender -> receiver    Offer                 a file: name, size, layout, key
//! receiver -> sender    Have …                hashes of the blasts that are there from an earlier attempt
//! receiver -> sender    Accept, or Rejected   the receiver's UDP port
//! sender -> receiver    Keep                  blasts that are right, and need not be sent
//! receiver -> sender    Prepares …, Ready     if parts of an older file are copied
//!                       (packets of crate::blast as datagrams or on other connections, or Piece …)
//! receiver -> sender    Arrived …
//! sender -> receiver    Finish                hash and size of the whole
//! receiver -> sender    Stored, or Rejected
//! sender -> receiver    Offer …               the next file
//!
//! sender -> receiver    Entry …               small files, directories and links, several at once
//! receiver -> sender    Stored or Rejected …  for each, in their order
//!
//! sender -> receiver    Join                  on another connection
//! receiver -> sender    Joined                packets of crate::blast follow
//! ```
//!
//! `Rejected` ends the offer, at any time, and the sender may make another offer. Either end may close the stream: the
//! receiver keeps the part that has arrived.

mod names;
mod parts;

use serde::{Deserialize, Serialize};

use crate::Versions;
use crate::control::{Message, Role, framed, values};

pub use names::{PathError, RelativePath};
pub use parts::{
    Acceptance, BlastHash, BlastRange, Carrier, ContentHash, Entry, EntryKind, Offer, Reason,
    SecretKey, Sizes,
};

/// The version of the messages. Version 2 has brought [`Carrier::Connections`], [`SenderMessage::Join`],
/// [`ReceiverMessage::Joined`] and [`ReceiverMessage::Arrived`].
pub const STREAM_VERSION: u8 = 2 + cfg!(feature = "next-version") as u8;

/// The oldest version that is understood.
pub const OLDEST_STREAM_VERSION: u8 = 1;

/// The version that brought data connections, and news of arrivals.
pub const CONNECTIONS_VERSION: u8 = 2;

/// The versions that this program speaks.
pub const STREAM_VERSIONS: Versions = match Versions::new(OLDEST_STREAM_VERSION, STREAM_VERSION) {
    Some(versions) => versions,
    None => Versions::only(STREAM_VERSION),
};

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "bulk stream",
    version: STREAM_VERSION as u32,
    oldest: OLDEST_STREAM_VERSION as u32,
};

/// Most hashes in a [`ReceiverMessage::Have`].
pub const HASHES_MAX: usize = 1024;

/// Most ranges in an [`Offer`] or a [`SenderMessage::Keep`]. Blasts of further ranges are sent.
pub const RANGES_MAX: usize = 16_384;

/// Most bytes of a [`SenderMessage::Piece`].
pub const PIECE_LEN_MAX: usize = 256 << 10;

/// Most bytes of an [`EntryKind::File`].
pub const ENTRY_LEN_MAX: usize = 128 << 10;

/// Longest text of a [`ReceiverMessage::Rejected`], bytes.
pub const DETAIL_LEN_MAX: usize = 1024;

/// From the sender to a receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SenderMessage {
    /// A file, or bytes without an end that is known.
    Offer(Offer),
    /// To [`Acceptance`]: these blasts are equal to the receiver's, or lie in holes. All others are sent.
    Keep {
        /// The blasts.
        #[serde(with = "framed::list")]
        ranges: Vec<BlastRange>,
    },
    /// The next bytes, where no datagrams pass ([`Carrier::Stream`]).
    Piece {
        /// Position of the first byte.
        position: u64,
        /// The bytes, at most [`PIECE_LEN_MAX`].
        #[serde(with = "values::bytes")]
        bytes: Vec<u8>,
    },
    /// Everything was sent.
    Finish {
        /// Size, bytes.
        size: u64,
        /// Hash of the whole.
        hash: ContentHash,
    },
    /// The offer is over: the receiver keeps the part that has arrived, and answers [`ReceiverMessage::Withdrawn`].
    Withdraw,
    /// A small part of a tree. Between two offers alone.
    Entry(Entry),
    /// This connection carries packets of the transfer with this key ([`Carrier::Connections`]): behind
    /// [`ReceiverMessage::Joined`] no message comes.
    Join {
        /// The key of the offer.
        key: SecretKey,
    },
}

impl Message for SenderMessage {
    const FROM: Role = Role::Sender;

    fn since(&self) -> u8 {
        match self {
            Self::Offer(Offer {
                carrier: Carrier::Connections { .. },
                ..
            })
            | Self::Join { .. } => CONNECTIONS_VERSION,
            _ => OLDEST_STREAM_VERSION,
        }
    }
}

/// From a receiver to the sender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReceiverMessage {
    /// Blasts that are there, in the layout of the offer.
    Have {
        /// The first blast.
        first: u32,
        /// Hashes of this blast and the blasts behind, at most [`HASHES_MAX`].
        #[serde(with = "framed::list")]
        hashes: Vec<BlastHash>,
    },
    /// The receiver takes the offer.
    Accept(Acceptance),
    /// The receiver does not take the offer, or cannot store the data.
    Rejected {
        /// Reason.
        reason: Reason,
        /// Explanation for people, at most [`DETAIL_LEN_MAX`] bytes.
        detail: String,
    },
    /// The data is there under its name.
    Stored,
    /// Behind [`SenderMessage::Keep`], if the [`Acceptance`] says so: equal parts of another file are being copied.
    Prepares,
    /// All are copied, and the data may come.
    Ready,
    /// To [`SenderMessage::Withdraw`]: no other message about the offer comes.
    Withdrawn,
    /// To [`SenderMessage::Join`].
    Joined,
    /// While data arrives, at most once a second, and when all has arrived.
    Arrived {
        /// Position below which all data is there.
        position: u64,
        /// Datagrams that were taken.
        packets: u64,
        /// Datagrams of these that followed the datagram before, as the receiver had predicted.
        predicted: u64,
    },
}

impl Message for ReceiverMessage {
    const FROM: Role = Role::Receiver;

    fn since(&self) -> u8 {
        match self {
            Self::Joined | Self::Arrived { .. } => CONNECTIONS_VERSION,
            _ => OLDEST_STREAM_VERSION,
        }
    }
}

#[cfg(test)]
mod tests;
