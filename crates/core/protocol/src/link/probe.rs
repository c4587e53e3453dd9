//! PROBE and PROBED: is the logger there, and do datagrams of this size get to it?
//!
//! Behind the head stand options, if the version has any, and the tag of both; a PROBE is padded with zeros to the size
//! in question, the answer is not. The tag does not cover the padding.

use wire::FlowId;

use super::head::{HEAD_LEN, Head, TAG_LEN, kind, options, sign};
use super::{KeySet, KeySlot, Kind, LinkError, LinkKey};

/// The length without options and padding, in bytes.
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
    /// The number that the asker chose, in the question and in the answer.
    pub counter: u64,
}

impl Probe {
    /// The datagram without padding, with a tag made with `key`, the key in [`Probe::slot`].
    #[must_use]
    pub fn encode(&self, key: &LinkKey) -> Vec<u8> {
        let options = self.options();
        let mut datagram = vec![0; PROBE_LEN + options.len()];
        let head = Head {
            version: self.version,
            slot: self.slot,
            count: 0,
            flow: FlowId(0),
            counter: self.counter,
        };
        head.write(self.kind.kind(), &mut datagram);
        datagram[HEAD_LEN..HEAD_LEN + options.len()].copy_from_slice(&options);
        sign(&mut datagram, key);
        datagram
    }

    /// Parses a datagram of this kind, and checks the tag with `keys`.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if `datagram` is not of this kind, has no valid tag, or has padding in a
    /// PROBED, or padding other than zeros.
    pub fn decode(kind: ProbeKind, datagram: &[u8], keys: &KeySet) -> Result<Self, LinkError> {
        let len = Self::len(datagram);
        let Some((probe, padding)) = datagram.split_at_checked(len) else {
            return Err(LinkError::BadLength(datagram.len()));
        };
        let head = Head::read_any(kind.kind(), probe, keys)?;
        if head.count != 0 || head.flow != FlowId(0) {
            return Err(LinkError::BadField("count or flow_id"));
        }
        if kind == ProbeKind::Probed && !padding.is_empty() {
            return Err(LinkError::BadLength(datagram.len()));
        }
        if padding.iter().any(|byte| *byte != 0) {
            return Err(LinkError::BadField("padding"));
        }
        let read = Self {
            kind,
            version: head.version,
            slot: head.slot,
            counter: head.counter,
        };
        match probe[HEAD_LEN..len - TAG_LEN] == read.options() {
            true => Ok(read),
            false => Err(LinkError::BadField("options")),
        }
    }

    /// The length without padding, in bytes, of a datagram with this beginning.
    pub(crate) fn len(datagram: &[u8]) -> usize {
        let version = datagram.get(4).copied().unwrap_or_default();
        let options = kind(datagram).map_or(0, |kind| options(kind, version));
        PROBE_LEN + 8 * usize::from(options)
    }

    /// The additional field of the next version, for tests.
    fn options(&self) -> Vec<u8> {
        match options(self.kind.kind(), self.version) {
            0 => Vec::new(),
            _ => (!self.counter).to_le_bytes().to_vec(),
        }
    }
}
