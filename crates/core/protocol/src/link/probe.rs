//! PROBE and PROBED: is the logger there, and do datagrams of this size get to it?
//!
//! Behind the head stands the tag of the head; a PROBE is padded with zeros to the size that is in
//! question, its answer is not. The padding is not covered by the tag.

use wire::FlowId;

use super::head::{HEAD_LEN, Head, TAG_LEN, sign};
use super::{KeySet, KeySlot, Kind, LinkError, LinkKey};

/// The length without padding, in bytes.
pub const PROBE_LEN: usize = HEAD_LEN + TAG_LEN;

/// Question or answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// PROBE, from the serving host.
    Probe,
    /// PROBED, from the logger.
    Probed,
}

impl ProbeKind {
    const fn kind(self) -> Kind {
        match self {
            Self::Probe => Kind::Probe,
            Self::Probed => Kind::Probed,
        }
    }
}

/// A PROBE or a PROBED.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Which of the two.
    pub kind: ProbeKind,
    /// The agreed version of the link.
    pub version: u8,
    /// The slot of the key that the tag was made with.
    pub slot: KeySlot,
    /// The number that the asker chose, in the question and in its answer.
    pub counter: u64,
}

impl Probe {
    /// The datagram without padding, with a tag made with `key`, which is the one in
    /// [`Probe::slot`].
    #[must_use]
    pub fn encode(&self, key: &LinkKey) -> [u8; PROBE_LEN] {
        let mut datagram = [0; PROBE_LEN];
        let head = Head {
            version: self.version,
            slot: self.slot,
            count: 0,
            flow: FlowId(0),
            counter: self.counter,
        };
        head.write(self.kind.kind(), &mut datagram);
        sign(&mut datagram, key);
        datagram
    }

    /// Reads a datagram of this kind from who knows one of `keys`.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if it is none, or one with padding that is not of zeros or in a PROBED.
    pub fn decode(kind: ProbeKind, datagram: &[u8], keys: &KeySet) -> Result<Self, LinkError> {
        let Some((probe, padding)) = datagram.split_first_chunk::<PROBE_LEN>() else {
            return Err(LinkError::BadLength(datagram.len()));
        };
        let head = Head::read(kind.kind(), probe, keys)?;
        if head.count != 0 || head.flow != FlowId(0) {
            return Err(LinkError::BadField("count or flow_id"));
        }
        if kind == ProbeKind::Probed && !padding.is_empty() {
            return Err(LinkError::BadLength(datagram.len()));
        }
        if padding.iter().any(|byte| *byte != 0) {
            return Err(LinkError::BadField("padding"));
        }
        Ok(Self {
            kind,
            version: head.version,
            slot: head.slot,
            counter: head.counter,
        })
    }
}
