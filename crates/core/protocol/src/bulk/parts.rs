//! Parts of the messages.

use core::{fmt, num::NonZeroU16};

use serde::{Deserialize, Serialize};

use super::RelativePath;
use crate::control::{framed, values};

/// A file, or bytes without an end that is known, which the sender has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Where it belongs, below the receiver's directory.
    pub name: RelativePath,
    /// Bytes; `None`: the sender does not know yet.
    pub size: Option<u64>,
    /// Permission bits (`chmod`). The receiver takes the lowest nine.
    pub permissions: u16,
    /// Time of the last change, nanoseconds since 1970; 0 for earlier times.
    pub modified_ns: u64,
    /// How the data travels.
    #[serde(with = "framed")]
    pub carrier: Carrier,
    /// A file that the receiver has under this name may have parts of the new file: the receiver tells its hashes, too.
    pub compares: bool,
    /// Of the next version, for tests.
    #[cfg(feature = "next-version")]
    #[serde(default)]
    pub next: u32,
}

/// A part of a tree that fits into a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it belongs, below the receiver's directory.
    pub name: RelativePath,
    /// As in [`Offer`]; without meaning for a link.
    pub permissions: u16,
    /// As in [`Offer`].
    pub modified_ns: u64,
    /// The kind.
    #[serde(with = "framed")]
    pub kind: EntryKind,
}

/// Kinds of an [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A file with these bytes, at most [`super::ENTRY_LEN_MAX`].
    File {
        /// The bytes.
        #[serde(with = "values::bytes")]
        bytes: Vec<u8>,
    },
    /// A directory, before its contents. The receiver may write there, whatever the permissions are.
    Directory,
    /// A directory, behind its contents: permissions and time are final.
    DirectoryEnd,
    /// A symbolic link.
    Link {
        /// Relative, below the receiver's directory: `..` at the beginning alone, and not more than there are
        /// directories above the link.
        #[serde(with = "values::bytes")]
        target: Vec<u8>,
    },
}

/// How the data travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carrier {
    /// In packets of [`crate::blast`].
    Datagrams {
        /// Number of the transfer.
        transfer: u32,
        /// The sender's UDP port.
        port: NonZeroU16,
        /// Key of the packets.
        key: SecretKey,
        /// Sizes.
        #[serde(with = "framed")]
        sizes: Sizes,
        /// Blasts without data: holes of the file.
        #[serde(with = "framed::list")]
        holes: Vec<BlastRange>,
    },
    /// In [`super::SenderMessage::Piece`].
    Stream {
        /// Sizes of the blasts whose hashes the receiver tells.
        #[serde(with = "framed")]
        sizes: Sizes,
        /// Blasts without data: holes of the file.
        #[serde(with = "framed::list")]
        holes: Vec<BlastRange>,
    },
    /// In packets of [`crate::blast`], one behind the other, on connections that begin with
    /// [`super::SenderMessage::Join`]. A blast travels on one connection, from its first to its last packet.
    Connections {
        /// Key of the packets, and name of the transfer.
        key: SecretKey,
        /// Sizes.
        #[serde(with = "framed")]
        sizes: Sizes,
        /// Blasts without data: holes of the file.
        #[serde(with = "framed::list")]
        holes: Vec<BlastRange>,
    },
}

/// Sizes of packets and blasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sizes {
    /// Payload of a packet, bytes.
    pub packet_bytes: u32,
    /// Packets of a blast.
    pub packets: u16,
}

/// Blasts from `first` to `end`, which is not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlastRange {
    /// The first blast.
    pub first: u32,
    /// The first blast behind.
    pub end: u32,
}

/// BLAKE3 hash of a blast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlastHash(
    /// The hash.
    pub [u8; 32],
);

/// BLAKE3 hash of all data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContentHash(
    /// The hash.
    pub [u8; 32],
);

/// As `b3sum` prints the hash.
impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A key of AES-128.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretKey(
    /// Known to the ends of a transfer alone.
    pub [u8; 16],
);

/// Without the secret: a secret must not get into a log.
impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey")
    }
}

/// The receiver takes an offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acceptance {
    /// The receiver's UDP port; `None`: no datagrams come.
    pub port: Option<NonZeroU16>,
    /// The receiver copies parts of another file, and says [`super::ReceiverMessage::Ready`] before the data may come.
    pub prepares: bool,
    /// Key of the acknowledgements.
    pub key: SecretKey,
    /// Blasts that the receiver takes beyond the whole ones.
    pub ahead: u32,
    /// Of the next version, for tests.
    #[cfg(feature = "next-version")]
    #[serde(default)]
    pub next: u32,
}

/// Why a receiver does not take an offer, or cannot store the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Reason {
    /// The peer breaks the order of messages.
    #[error("the peer broke the order of messages: both programs may be of different versions")]
    OutOfOrder,
    /// Another transfer writes the same name.
    #[error("another transfer writes this name")]
    Busy,
    /// The receiver does not replace what has this name.
    #[error("the name is taken")]
    Taken,
    /// The name leads through a link or a file, or out of the receiver's directory.
    #[error("the name cannot be used")]
    Place,
    /// The receiver's limit.
    #[error("larger than the receiver allows")]
    TooLarge,
    /// The file system has less free space.
    #[error("the receiver lacks space")]
    NoSpace,
    /// The data cannot be written.
    #[error("the receiver cannot store the data")]
    Storage,
    /// The stored data has another hash: the source has changed, or a disk is broken.
    #[error(
        "the stored data differs from the source: the source has changed while it was sent, or a disk is broken"
    )]
    Differs,
    /// Sizes that cannot be.
    #[error("the receiver cannot take these sizes")]
    Sizes,
    /// The receiver has as many transfers as it takes.
    #[error("the receiver has as many transfers as it takes at once")]
    Full,
}
