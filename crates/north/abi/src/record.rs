//! One determinant.
//!
//! ```text
//! u8      call | 0x40 if it failed | 0x80 if the payload's length is given
//! varint  descriptor
//! varint  outcome, or errno if it failed
//! varint  length of the payload, if given
//! bytes   payload
//! ```
//!
//! Without a length there is no payload, or, for calls that bring bytes, a payload as long as the outcome. A read of
//! a hundred bytes takes three bytes and the payload.

use crate::{Call, varint};

/// Most bytes of a record before the payload.
pub const HEADER_MAX: usize = 1 + 3 * varint::VARINT_MAX;

const TAG_FAILED: u8 = 0x40;
const TAG_HAS_LENGTH: u8 = 0x80;
const TAG_CALL_MASK: u8 = 0x3f;

/// The outcome of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Kind of the call.
    pub call: Call,
    /// Descriptor of the call; 0 for a call without descriptor.
    pub fd: u32,
    /// Return value, or `-errno`.
    pub outcome: i64,
    /// Data that the call filled in.
    pub payload: &'a [u8],
}

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The stream ends in the middle of a record.
    #[error("the stream ends in the middle of a record")]
    CutOff,
    /// No kind of call has this number.
    #[error("no kind of call has the number {0}")]
    UnknownCall(u8),
    /// A number in the record is out of range.
    #[error("a number in a record is out of its range")]
    BadNumber,
}

/// All parts of a record except the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// As [`Record::call`].
    pub call: Call,
    /// As [`Record::fd`].
    pub fd: u32,
    /// As [`Record::outcome`].
    pub outcome: i64,
    /// Length of the payload, bytes.
    pub length: usize,
}

impl Header {
    /// The program is about to write to a connection. In the place of descriptor and outcome are 21 bits of a hash of
    /// the outstream, this write included. The record takes only four bytes, because each write has a record. A
    /// replay with other output passes once in two million.
    #[must_use]
    pub fn outstream(hash: u64) -> Self {
        Self {
            call: Call::Outstream,
            fd: (hash & 0x3fff) as u32,
            outcome: (hash >> 14 & 0x7f) as i64,
            length: 0,
        }
    }

    /// Writes the header at the beginning of `out`. Returns the number of bytes. The payload follows unencoded.
    pub fn write(&self, out: &mut [u8; HEADER_MAX]) -> usize {
        let has_length = self.length as u64 != implied_length(self.call, self.outcome);
        out[0] = self.call.code()
            | if self.outcome < 0 { TAG_FAILED } else { 0 }
            | if has_length { TAG_HAS_LENGTH } else { 0 };
        let mut at = 1;
        at += varint::write(u64::from(self.fd), &mut out[at..]);
        at += varint::write(self.outcome.unsigned_abs(), &mut out[at..]);
        if has_length {
            at += varint::write(self.length as u64, &mut out[at..]);
        }
        at
    }
}

impl Header {
    /// The header at the beginning of `bytes`, and the number of bytes of the header; the payload, or a part of the
    /// payload, follows.
    ///
    /// # Errors
    /// `bytes` does not begin with a header.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), DecodeError> {
        let tag = *bytes.first().ok_or(DecodeError::CutOff)?;
        let call = Call::from_code(tag & TAG_CALL_MASK)
            .ok_or(DecodeError::UnknownCall(tag & TAG_CALL_MASK))?;
        let mut at = 1;
        let mut number = || {
            let (value, length) =
                varint::read(&bytes[at..]).ok_or_else(|| match bytes.len() - at {
                    0..varint::VARINT_MAX => DecodeError::CutOff,
                    _ => DecodeError::BadNumber,
                })?;
            at += length;
            Ok(value)
        };
        let fd = u32::try_from(number()?).map_err(|_| DecodeError::BadNumber)?;
        let outcome = i64::try_from(number()?).map_err(|_| DecodeError::BadNumber)?;
        let outcome = if tag & TAG_FAILED == 0 {
            outcome
        } else {
            -outcome
        };
        let length = match tag & TAG_HAS_LENGTH {
            0 => implied_length(call, outcome),
            _ => number()?,
        };
        let header = Self {
            call,
            fd,
            outcome,
            length: usize::try_from(length).map_err(|_| DecodeError::BadNumber)?,
        };
        Ok((header, at))
    }
}

fn implied_length(call: Call, outcome: i64) -> u64 {
    match u64::try_from(outcome) {
        Ok(length) if call.brings_bytes() => length,
        _ => 0,
    }
}

impl<'a> Record<'a> {
    /// The header that precedes the payload in the log.
    #[must_use]
    pub fn header(&self) -> Header {
        Header {
            call: self.call,
            fd: self.fd,
            outcome: self.outcome,
            length: self.payload.len(),
        }
    }

    /// The record at the beginning of `bytes`, and the number of bytes of the record.
    ///
    /// # Errors
    /// `bytes` does not begin with a record.
    pub fn read(bytes: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        let (header, at) = Header::read(bytes)?;
        let end = at
            .checked_add(header.length)
            .ok_or(DecodeError::BadNumber)?;
        let record = Self {
            call: header.call,
            fd: header.fd,
            outcome: header.outcome,
            payload: bytes.get(at..end).ok_or(DecodeError::CutOff)?,
        };
        Ok((record, end))
    }
}

/// The records of a stream in order, each with the offset. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// The records of `bytes`, from the first byte on.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(usize, Record<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let at = self.at;
        Some(match Record::read(rest) {
            Ok((record, length)) => {
                self.at += length;
                Ok((at, record))
            }
            Err(error) => {
                self.at = self.bytes.len();
                Err(error)
            }
        })
    }
}
