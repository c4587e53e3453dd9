//! DETERMINANTS and STABLE: determinants of a server's processes (`ft-tcp-infocom-2001`, III.B), on
//! the way to the logger before output that depends on the determinants leaves (*output commit*,
//! IV.D).
//!
//! Each process of the server sends from a port of the process, so the datagram must name the
//! session: `flow_id` in the head is the number of the service's instance. Behind the head stands
//!
//! | offset | field | |
//! |---|---|---|
//! | 32 | record `u64` | number of the record, drawn at random when the record begins |
//! | 40 | process `u32` | whose stream |
//! | 44 | bytes | DETERMINANTS only: of the stream, from `counter` on |
//! | end | tag `u64` | of all that is before it |
//!
//! In a STABLE, `counter` is the stable position of the stream: the logger has all bytes before. A
//! `count` of 1 means that the record is over: the logger is to keep none of the record, or keeps
//! none.

use core::ops::Range;

use wire::FlowId;

use super::head::{AT_FLOW, HEAD_LEN, Head, TAG_LEN, sign, u32_at, u64_at};
use super::{KeySet, KeySlot, Kind, LinkError, LinkKey};

const AT_RECORD: Range<usize> = HEAD_LEN..HEAD_LEN + 8;
const AT_PROCESS: Range<usize> = AT_RECORD.end..AT_RECORD.end + 4;

/// Bytes of a DETERMINANTS besides the bytes of the stream.
pub const DETERMINANTS_OVERHEAD: usize = AT_PROCESS.end + TAG_LEN;

/// The length of a STABLE, in bytes.
pub const STABLE_LEN: usize = DETERMINANTS_OVERHEAD;

/// A stream, and a position in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPosition {
    /// The agreed version of the link.
    pub version: u8,
    /// The slot of the key that the tag was made with.
    pub slot: KeySlot,
    /// The instance of the service.
    pub instance: u64,
    /// The number of the record.
    pub record: u64,
    /// The number of the process.
    pub process: u32,
    /// Offset in the stream, in bytes.
    pub offset: u64,
    /// The record is over.
    pub is_over: bool,
}

impl StreamPosition {
    fn write(&self, kind: Kind, datagram: &mut [u8]) {
        let head = Head {
            version: self.version,
            slot: self.slot,
            count: self.is_over.into(),
            flow: FlowId(self.instance),
            counter: self.offset,
        };
        head.write(kind, datagram);
        datagram[AT_RECORD].copy_from_slice(&self.record.to_le_bytes());
        datagram[AT_PROCESS].copy_from_slice(&self.process.to_le_bytes());
    }

    fn read(kind: Kind, datagram: &[u8], keys: &KeySet) -> Result<Self, LinkError> {
        if datagram.len() < DETERMINANTS_OVERHEAD {
            return Err(LinkError::BadLength(datagram.len()));
        }
        let head = Head::read_any(kind, datagram, keys)?;
        if head.count > 1 {
            return Err(LinkError::BadField("count"));
        }
        Ok(Self {
            version: head.version,
            slot: head.slot,
            instance: head.flow.0,
            record: u64_at(datagram, AT_RECORD.start),
            process: u32_at(datagram, AT_PROCESS.start),
            offset: head.counter,
            is_over: head.count == 1,
        })
    }
}

/// A DETERMINANTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Determinants<'a> {
    /// Where the bytes belong.
    pub at: StreamPosition,
    /// The next bytes of the stream, for the logger.
    pub bytes: &'a [u8],
}

impl<'a> Determinants<'a> {
    /// Completes a datagram whose [`Self::room`] has the bytes of the stream. `key` is the key in
    /// `at.slot`.
    ///
    /// # Panics
    /// If `datagram` is shorter than [`DETERMINANTS_OVERHEAD`].
    pub fn seal(at: &StreamPosition, key: &LinkKey, datagram: &mut [u8]) {
        at.write(Kind::Determinants, datagram);
        sign(datagram, key);
    }

    /// The part of a datagram for the bytes of the stream.
    ///
    /// # Panics
    /// If `datagram` is shorter than [`DETERMINANTS_OVERHEAD`].
    #[must_use]
    pub fn room(datagram: &mut [u8]) -> &mut [u8] {
        let end = datagram.len() - TAG_LEN;
        &mut datagram[AT_PROCESS.end..end]
    }

    /// The instance that a datagram of this kind claims; no field is verified.
    #[must_use]
    pub fn instance(datagram: &[u8]) -> Option<u64> {
        let is_whole = datagram.len() >= DETERMINANTS_OVERHEAD;
        is_whole.then(|| u64_at(datagram, AT_FLOW))
    }

    /// Parses a datagram, and checks the tag with `keys`.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if `datagram` is no DETERMINANTS with a valid tag.
    pub fn decode(datagram: &'a [u8], keys: &KeySet) -> Result<Self, LinkError> {
        let at = StreamPosition::read(Kind::Determinants, datagram, keys)?;
        let bytes = &datagram[AT_PROCESS.end..datagram.len() - TAG_LEN];
        if at.is_over && !bytes.is_empty() {
            return Err(LinkError::BadLength(datagram.len()));
        }
        Ok(Self { at, bytes })
    }
}

/// A STABLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stable(
    /// The logger has all bytes before this position.
    pub StreamPosition,
);

impl Stable {
    /// The datagram, with a tag made with `key`, the key in [`StreamPosition::slot`].
    #[must_use]
    pub fn encode(&self, key: &LinkKey) -> [u8; STABLE_LEN] {
        let mut datagram = [0; STABLE_LEN];
        self.0.write(Kind::Stable, &mut datagram);
        sign(&mut datagram, key);
        datagram
    }

    /// Parses a datagram, and checks the tag with `keys`.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if `datagram` is no STABLE with a valid tag.
    pub fn decode(datagram: &[u8], keys: &KeySet) -> Result<Self, LinkError> {
        if datagram.len() != STABLE_LEN {
            return Err(LinkError::BadLength(datagram.len()));
        }
        StreamPosition::read(Kind::Stable, datagram, keys).map(Self)
    }
}
