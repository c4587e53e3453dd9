//! The log link: datagrams between a serving host and a logger on another machine.
//!
//! They travel over UDP without a UDP checksum, between the port of the logger's control stream and
//! a port that the serving host holds. Towards the logger go
//!
//! - SEGMENT ([`SegmentView`]): a client's packet, whole, with those fields replaced that the
//!   connection's number implies. Written by the programs in the kernel, which can do so without
//!   copying it, and so laid out that segmentation offload may cut it on its way.
//!   One without payload tells how much the client has acknowledged, and is not answered, unless it says
//!   that what was missing is in the server's notes ([`SegmentKind::Noted`]). The beginning
//!   of what the server says goes the same way, before the client gets it, and is not answered either:
//!   if it is lost, it comes by the control stream, a moment later.
//! - OPEN ([`Open`]): a handshake: the connection's numbers, and what was agreed on. Its SYN-ACK waits
//!   for the answer (FT-TCP, section IV.B: both initial sequence numbers are logged before the client
//!   learns of them).
//! - PROBE ([`Probe`]): is the logger there, and do datagrams of this size get there?
//!
//! and from it ACK ([`Ack`]): what is recorded (FT-TCP, section IV.C: *stable_seq*), and PROBED, the
//! answer to a PROBE. From the processes of a server with state come DETERMINANTS ([`Determinants`]), which
//! are answered with STABLE ([`Stable`]).
//!
//! **What holds.** Each datagram carries a tag, SipHash-2-4 with a key that only the two ends know
//! (`keys`): nobody else can make one that is taken. The tag of a SEGMENT does not cover its
//! payload: to protect that, and to keep it secret, is the task of the network below. Datagrams may
//! be lost, doubled and reordered: the client's TCP repairs what is lost, since it is told of
//! nothing that is not recorded.
//!
//! The first four bits tell a SEGMENT, which begins as an IP packet does, from the other kinds,
//! which begin with [`MAGIC`] ([`Kind::of`]). Their fields are little-endian; those of a client's
//! packet stay as they were.

mod ack;
mod determinants;
mod flow_key;
mod handshake;
mod head;
mod keys;
mod open;
mod probe;
mod segment;

pub(crate) use flow_key::{FLOW_KEY_LEN, flow_key_from, flow_key_into};
pub(crate) use handshake::HANDSHAKE_LEN;

pub use ack::{ACK_LEN, Ack, MAX_ACKS, MAX_RANGES};
pub use determinants::{DETERMINANTS_OVERHEAD, Determinants, STABLE_LEN, Stable, StreamPosition};
pub use handshake::{Handshake, SynOptions};
pub use head::MAGIC;
pub use keys::{KeySet, KeySlot, LinkKey, LinkKeys};
pub use open::{OPEN_LEN, Open};
pub use probe::{PROBE_LEN, Probe, ProbeKind};
pub use segment::{
    Head, SegmentFlags, SegmentKind, SegmentView, Signer, flow_low, heads_digest, seal, seal_head,
    seal_said,
};

use crate::Versions;

/// The newest version of all formats of the link. The control stream agrees on a version: [`LinkKeys::version`].
pub const VERSION: u8 = 8 + cfg!(feature = "next-version") as u8;
/// The versions that this program reads and writes.
pub const VERSIONS: Versions = match Versions::new(8, VERSION) {
    Some(versions) => versions,
    None => panic!("the newest version is older than the oldest"),
};

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "log link",
    version: VERSION as u32,
    oldest: VERSIONS.oldest() as u32,
};

/// A datagram that is not one of ours, or not from who we share a key with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Not the length that this kind of datagram has.
    #[error("a datagram of {0} bytes is too short or too long for its kind")]
    BadLength(usize),
    /// Not one of our datagrams at all.
    #[error("the datagram begins with {0:#010x}, which is not that of the log link")]
    BadMagic(u32),
    /// A version that this program does not read.
    #[error("version {0} of the log link is not known")]
    UnknownVersion(u8),
    /// A kind that this version does not have, or not in this direction.
    #[error("kind {0} of datagram is not known here")]
    UnknownKind(u8),
    /// A mode that this program does not have.
    #[error("mode {0} of the log link is not known")]
    UnknownMode(u8),
    /// A field that this kind of datagram does not use is not 0, or one is out of its range.
    #[error("field {0} of the datagram has a value that it cannot have")]
    BadField(&'static str),
    /// A SEGMENT does not hold a TCP segment.
    #[error("not a TCP segment: {0}")]
    Segment(#[from] wire::WireError),
    /// The key that it names is not known, or the tag was not made with it.
    #[error("the tag of the datagram is wrong")]
    BadTag,
}

/// Which way of masking failures a datagram belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Record and replay: `outlive serve`.
    Replay = 1,
}

impl Mode {
    const fn from_number(number: u8) -> Result<Self, LinkError> {
        match number {
            1 => Ok(Self::Replay),
            _ => Err(LinkError::UnknownMode(number)),
        }
    }
}

/// The kinds of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A client's packet.
    Segment,
    /// A handshake.
    Open,
    /// What is recorded.
    Ack,
    /// A question for an echo.
    Probe,
    /// The echo.
    Probed,
    /// What a server's process was told.
    Determinants,
    /// How much of that is recorded.
    Stable,
}

impl Kind {
    /// What `datagram` says that it is. Only its beginning is looked at.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if it is too short to say so, or says something that is not known.
    pub fn of(datagram: &[u8]) -> Result<Self, LinkError> {
        match datagram.first().map(|byte| byte >> 4) {
            Some(4 | 6) => Ok(Self::Segment),
            _ => head::kind(datagram),
        }
    }
}

#[cfg(test)]
mod tests;
