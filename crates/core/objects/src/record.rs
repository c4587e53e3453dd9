//! Records of connections: a member writes a record into the store of the pool, and another member goes on with the
//! connection without the client's echo (TRODS 4.1).
//!
//! | bytes of a sealed record | |
//! |---|---|
//! | 0 | version of the format: 1, 2 of a response with inputs, or 3 of a response in chunks |
//! | 1..25 | nonce |
//! | 25.. | [`Record`], encrypted, and a tag of 16 bytes |
//!
//! Behind the fields of version 1, a record of version 2 has the inputs, and a record of version 3 the inputs, if any,
//! and the [`Beginning`].
//!
//! The operator of the store can delete a record, and can put an older record of the same connection in its place. The
//! operator can neither read nor forge a record, nor move a record to another connection: the name of the record
//! ([`StoreKey`]) is authenticated, too. The cipher is XChaCha20-Poly1305: random nonces of 24 bytes do not repeat,
//! however many records a pool writes.
//!
//! A record of an earlier connection with the same addresses is harmless: the numbers of both sides are in the record,
//! and [`Record::is_of`] compares the numbers.

mod name;
mod parts;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
mod seal;

use alloc::vec::Vec;

use blake2::{Blake2s256, Digest as _};
use http1::range::RangeRequest;
use http1::version::ObjectVersion;
use serde::{Deserialize, Serialize};
use wire::SeqNumber;

pub use self::name::{HashName, MemberHash, MemberList, StoreKey};
pub use self::seal::{NONCE_LEN, RecordError, RecordKey, SEALED_LEN_MAX};
use crate::flow::Flow;
use crate::isn::Slot;
use crate::queue::FLOW_LEN_MAX;
use crate::timestamp::ClientOptions;

/// Most turns of a record: a client has at most this many requests under way.
pub const TURNS_MAX: usize = 16;
/// Longest request of a record, bytes.
pub const REQUEST_LEN_MAX: usize = 8 << 10;
/// Longest inputs of a response, bytes.
pub const INPUTS_LEN_MAX: usize = 1 << 10;
/// Largest shift of a window (RFC 7323, 2.3).
const WINDOW_SCALE_MAX: u8 = 14;

/// The state of a connection, as far as another member needs the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Grows with each record of the connection, also from member to member.
    pub generation: u32,
    /// Membership of the member that wrote the record.
    pub owner: u64,
    /// The client's initial sequence number.
    pub client_isn: SeqNumber,
    /// The server's initial sequence number, as the client sees the number.
    pub server_isn: SeqNumber,
    /// When the connection began.
    #[serde(with = "parts::slot")]
    pub slot: Slot,
    /// Options of the client's SYN.
    pub options: StoredOptions,
    /// The turns that are not complete, or the last turn: oldest first, at most [`TURNS_MAX`].
    pub turns: Vec<StoredTurn>,
    /// Inputs of the response of the last turn, at most [`INPUTS_LEN_MAX`] bytes.
    #[serde(skip)]
    pub inputs: Option<Vec<u8>>,
    /// The response of the last turn is in chunks.
    #[serde(skip)]
    pub chunks: Option<Beginning>,
}

/// The first bytes of a body in chunks, as many as its first segment has. The chunks of another server may have other
/// lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    len: u16,
    digest: [u8; 32],
}

impl Beginning {
    /// Of a body that begins with these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        Self {
            len,
            digest: Blake2s256::digest(&bytes[..usize::from(len)]).into(),
        }
    }

    /// Whether the first segment had no byte of the body.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a body begins with the same bytes. `None`: `bytes` are too few.
    #[must_use]
    pub fn compare(&self, bytes: &[u8]) -> Option<bool> {
        let same_len = bytes.get(..usize::from(self.len))?;
        Some(Self::of(same_len) == *self)
    }
}

/// The options that client and server have agreed on: exact, other than [`crate::timestamp::ClientOptions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredOptions {
    /// Shift of the client's window. `None`: neither side scales its window.
    pub window_scale: Option<u8>,
    /// The client's maximum segment size, bytes.
    pub segment_size: u16,
    /// Both sides take selective acknowledgements.
    pub has_sack: bool,
    /// Both sides use timestamps.
    pub has_timestamps: bool,
}

/// A request, and the response as far as it has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTurn {
    /// Number of the turn on the connection, from 0.
    pub number: u32,
    /// First byte of the request.
    pub request_start: SeqNumber,
    /// The request as the client sent it, at most [`REQUEST_LEN_MAX`] bytes.
    pub request: Vec<u8>,
    /// The client asked for a part.
    pub has_range: bool,
    /// `None`: no byte of the response has left.
    pub answer: Option<StoredAnswer>,
}

/// A response that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredAnswer {
    /// First byte of the response, as the client sees the number.
    pub start: SeqNumber,
    /// Length of the head, bytes.
    pub header_len: u32,
    /// Bytes of head and body. `None`: the response ends with the connection, or is in chunks.
    pub response_len: Option<u64>,
    /// First byte of the object that the response has.
    pub first_byte: u64,
    /// Bytes of the response that the client had acknowledged when the record was written: a later acknowledgement
    /// counts from here, so a response may be longer than the sequence space. The record is written anew before the
    /// client has 2 GiB more.
    pub acked: u64,
    /// Version of the object.
    #[serde(with = "parts::VersionParts")]
    pub version: ObjectVersion,
}

impl Record {
    /// Whether the record is of the connection with these initial sequence numbers, and not of an earlier connection
    /// with the same addresses. A member knows the server's number ([`crate::isn`]), and the client's number from a SYN
    /// only.
    #[must_use]
    pub fn is_of(&self, server_isn: SeqNumber, client_isn: Option<SeqNumber>) -> bool {
        self.server_isn == server_isn && client_isn.is_none_or(|isn| isn == self.client_isn)
    }

    /// Whether the client can have sent a segment with this number around the last turn: from the request before, which
    /// a record has, too, to the bytes that wait behind. A connection on the same port 256 s before has the same
    /// server's number, and another client's.
    #[must_use]
    pub(crate) fn is_near(&self, seq: SeqNumber) -> bool {
        let near = |turn: &StoredTurn| {
            let first = turn.request_start - u32::try_from(REQUEST_LEN_MAX).unwrap_or(0);
            let distance = usize::try_from(seq.distance_from(first)?).ok()?;
            Some(distance <= REQUEST_LEN_MAX + turn.request.len() + FLOW_LEN_MAX)
        };
        self.turns.last().and_then(near).unwrap_or(false)
    }

    /// The newest turn whose response has begun at or before the client's acknowledgement, and the bytes of that
    /// response that the client has. `None`: the acknowledgement is within no response of the record, and the client's
    /// position is unknown.
    #[must_use]
    pub fn response_at(&self, ack: SeqNumber) -> Option<(&StoredTurn, u64)> {
        let mut newest_first = self.turns.iter().rev();
        newest_first.find_map(|turn| Some((turn, turn.answer.as_ref()?.offset(ack)?)))
    }

    /// Limits of the format, and of TCP.
    fn is_valid(&self) -> bool {
        let are_short = |turn: &StoredTurn| turn.request.len() <= REQUEST_LEN_MAX;
        let inputs_len = self.inputs.as_ref().map_or(0, Vec::len);
        self.turns.len() <= TURNS_MAX
            && inputs_len <= INPUTS_LEN_MAX
            && self.turns.iter().all(are_short)
            && self
                .options
                .window_scale
                .is_none_or(|scale| scale <= WINDOW_SCALE_MAX)
            && self
                .turns
                .iter()
                .filter_map(|turn| turn.answer.as_ref())
                .all(StoredAnswer::is_valid)
    }
}

impl StoredOptions {
    /// Of a connection under way.
    #[must_use]
    pub const fn of(flow: &Flow) -> Self {
        let client = &flow.client;
        Self {
            window_scale: match flow.server.window_scale {
                Some(_) => Some(client.window_scale),
                None => None,
            },
            segment_size: client.segment_size,
            has_sack: client.has_sack,
            has_timestamps: client.has_timestamps,
        }
    }

    /// As a timestamp tells the options.
    #[must_use]
    pub const fn of_rounded(options: ClientOptions) -> Self {
        Self {
            window_scale: Some(options.window_scale()),
            segment_size: options.segment_size(),
            has_sack: true,
            has_timestamps: true,
        }
    }

    /// As a timestamp has the options. `None`: a client without timestamps, or with short segments.
    #[must_use]
    pub fn rounded(&self) -> Option<ClientOptions> {
        let scale = self.window_scale.unwrap_or(0);
        let rounded = ClientOptions::new(scale, self.segment_size)?;
        (self.has_timestamps && self.has_sack).then_some(rounded)
    }
}

impl StoredTurn {
    /// Number behind the request.
    #[must_use]
    pub fn request_end(&self) -> SeqNumber {
        self.request_start + u32::try_from(self.request.len()).unwrap_or(0)
    }
}

impl StoredAnswer {
    /// Bytes of the response that a client with this acknowledgement has. `None`: the acknowledgement is before the
    /// response or behind it.
    #[must_use]
    pub fn offset(&self, ack: SeqNumber) -> Option<u64> {
        let [a, b, c, d, ..] = self.acked.to_le_bytes();
        let reference = self.start + u32::from_le_bytes([a, b, c, d]);
        let offset = match (ack.distance_from(reference), reference.distance_from(ack)) {
            (Some(more), _) => self.acked.checked_add(more.into())?,
            (None, Some(less)) => self.acked.checked_sub(less.into())?,
            (None, None) => return None,
        };
        self.response_len
            .is_none_or(|len| offset <= len)
            .then_some(offset)
    }

    /// The part of the object that the response has. `None`: the response ends with the connection, or is empty.
    #[must_use]
    pub fn range(&self) -> Option<RangeRequest> {
        let len = self.response_len?.checked_sub(self.header_len.into())?;
        let last = self.first_byte.checked_add(len)?.checked_sub(1)?;
        let first = self.first_byte;
        (first <= last).then_some(RangeRequest::Closed { first, last })
    }

    fn is_valid(&self) -> bool {
        let len = self.response_len.unwrap_or(u64::MAX);
        u64::from(self.header_len) <= len && self.acked <= len
    }
}

#[cfg(test)]
mod tests;
