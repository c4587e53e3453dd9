//! The log link: datagrams between a serving host and a logger on another machine.
//!
//! The datagrams travel over UDP without a UDP checksum, between the port of the logger's control
//! stream and a port of the serving host. Towards the logger go
//!
//! - SEGMENT ([`SegmentView`]): a client's packet, whole. Fields that the number of the connection
//!   implies are replaced. The programs in the kernel write a SEGMENT without copying the packet,
//!   and segmentation offload may cut the SEGMENT on the way. A SEGMENT without payload carries the
//!   client's acknowledgement. The logger answers such a SEGMENT only if the determinants have the
//!   missing input ([`SegmentKind::Noted`]). The head of a response goes the same way, before the
//!   client gets the response, without an answer: a lost head comes again by the control stream, a
//!   moment later.
//! - OPEN ([`Open`]): a handshake, with the connection's numbers and the agreed options. The
//!   SYN-ACK of the connection waits for the answer (FT-TCP, section IV.B: both initial sequence
//!   numbers are logged before the client learns the server's number).
//! - PROBE ([`Probe`]): is the logger there, and do datagrams of this size get there?
//!
//! and from the logger ACK ([`Ack`]) with the recorded ranges (FT-TCP, section IV.C: *stable_seq*),
//! and PROBED, the answer to a PROBE. The processes of a server with state send DETERMINANTS
//! ([`Determinants`]); the answer is STABLE ([`Stable`]).
//!
//! **Guarantees.** Each datagram carries a tag, SipHash-2-4 with a key that only the two ends know
//! (`keys`): no other host can make a datagram that is accepted. The tag of a SEGMENT does not
//! cover the payload: the network below must protect and encrypt the payload. Datagrams may be
//! lost, doubled and reordered. The client's TCP repairs losses, because no unrecorded byte is
//! acknowledged to the client.
//!
//! The first four bits tell a SEGMENT, which begins as an IP packet does, from the other kinds,
//! which begin with [`MAGIC`] ([`Kind::of`]). The fields of the other kinds are little-endian;
//! fields of a client's packet stay as sent.

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

/// A datagram that is no datagram of the link, or not from a holder of a shared key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Not the length that this kind of datagram has.
    #[error("a datagram of {0} bytes is too short or too long for its kind")]
    BadLength(usize),
    /// No datagram of the link at all.
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
    /// A field that this kind of datagram does not use is not 0, or a value is out of range.
    #[error("field {0} of the datagram has a value that it cannot have")]
    BadField(&'static str),
    /// A SEGMENT does not hold a TCP segment.
    #[error("not a TCP segment: {0}")]
    Segment(#[from] wire::WireError),
    /// The key that the datagram names is not known, or the tag was made with another key.
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
    /// Recorded ranges of an instream.
    Ack,
    /// A question for an echo.
    Probe,
    /// The echo.
    Probed,
    /// Determinants of a server's process.
    Determinants,
    /// How much of that is recorded.
    Stable,
}

impl Kind {
    /// The kind that the beginning of `datagram` claims. The rest is not examined.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if `datagram` is too short, or the magic, version or kind is unknown.
    pub fn of(datagram: &[u8]) -> Result<Self, LinkError> {
        match datagram.first().map(|byte| byte >> 4) {
            Some(4 | 6) => Ok(Self::Segment),
            _ => head::kind(datagram),
        }
    }
}

#[cfg(test)]
mod tests;
