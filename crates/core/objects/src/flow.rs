//! A connection that a member serves: the numbers of both sides, and the turn under way.

use core::time::Duration;

use http1::chunks::Chunks;
use wire::SeqNumber;

use crate::isn::Slot;
use crate::timestamp::index::EchoTable;
use crate::timestamp::{ClientOptions, StateBits};

/// Scale of each window that a member offers. A member that revives a connection cannot ask for the scale.
pub const POOL_WINDOW_SCALE: u8 = 7;

/// Most bytes of a guarded request that are acknowledged: `GET `. The path behind begins with a slash, so a member sees
/// how many bytes are missing.
pub const RELEASED_MAX: u8 = 4;

/// Bytes of a guarded request that are acknowledged with its response: an odd number in an even turn, an even number in
/// an odd turn ([`Turn::number`]). The request that a client repeats after a death is of the response that the
/// client's echo tells of if both are odd or both are even. Without this, a member would take the next request for that
/// request: of a client that has the whole response and has not heard of the acknowledgement.
#[must_use]
pub const fn released_with_response(turn_number: u32) -> u8 {
    if turn_number.is_multiple_of(2) { 1 } else { 2 }
}

/// With a store: so many bytes, or more, of the request of a later response are acknowledged when the response is
/// further than its timestamps tell. The client takes the acknowledgement from any segment, and the timestamp only from
/// the segment that fills the first hole: the echo may be of an earlier segment than the acknowledgement.
pub const RELEASED_BEYOND: u8 = 3;

/// The smallest segment size that Linux believes a peer (`TCP_MIN_SND_MSS`), bytes.
const SEGMENT_SIZE_MIN: u16 = 48;
/// Segments on Ethernet (RFC 9293, 3.7.1), bytes.
const ETHERNET_SEGMENT_SIZE: u16 = 1460;
/// Options of a segment with timestamps, bytes.
const TIMESTAMPS_LEN: u16 = 12;

/// Bytes that are acknowledged after several repetitions, on top.
pub const RELEASE_STEP: u8 = 2;

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The client's side.
    pub client: Client,
    /// The server's side, in the numbers that the client sees.
    pub server: Server,
    /// The request under way, or the last request.
    pub turn: Turn,
    /// The server's timestamps behind the indexes.
    pub echoes: EchoTable,
    /// Kinds and states of timestamps.
    pub states: States,
    /// When the connection began.
    pub slot: Slot,
    /// Who talks to the client.
    pub mode: Mode,
    /// Why the connection cannot be revived.
    pub unprotected: Option<Unprotected>,
    /// Which turns are in the store of the pool.
    pub storage: Storage,
    /// Life of the server that owns the socket.
    pub incarnation: u32,
    /// Interface on which the client's packets arrive.
    pub interface: u32,
}

impl Flow {
    /// Whether the record of the turn under way is in the store.
    #[must_use]
    pub const fn is_stored(&self) -> bool {
        self.storage.stored == self.turn.number.wrapping_add(1)
    }

    /// Whether the client knows that the record of the turn under way is in the store.
    #[must_use]
    pub const fn is_released(&self) -> bool {
        self.storage.released == self.turn.number.wrapping_add(1)
    }

    /// Whether the response is further than its timestamps can tell, and not stored.
    #[must_use]
    pub const fn is_exposed(&self) -> bool {
        self.storage.exposed == self.turn.number.wrapping_add(1) && !self.is_stored()
    }
}

impl Flow {
    /// Whether the record alone would tell another member the client's position or the response, and the record is not
    /// stored: no byte of the response leaves.
    #[must_use]
    pub fn awaits_store(&self) -> bool {
        let is_guarded = self.turn.is_guarded && self.turn.phase == Phase::Body;
        let needs_record = !self.client.has_timestamps || self.turn.inputs_end.is_some();
        needs_record && self.unprotected.is_none() && is_guarded && !self.is_stored()
    }
}

impl Turn {
    /// Whether the whole response has left.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.phase == Phase::Body && self.response_len().is_some_and(|len| self.sent >= len)
    }

    /// Bytes of head and body. `None`: the end of the response has not come yet.
    #[must_use]
    pub const fn response_len(&self) -> Option<u64> {
        match self.end {
            ResponseEnd::After(len) => Some(len),
            ResponseEnd::AtClose | ResponseEnd::AtLastChunk(_) => None,
        }
    }
}

impl Client {
    /// Most bytes of payload that a segment to the client has.
    #[must_use]
    pub fn payload_len_max(&self) -> usize {
        let size = self
            .segment_size
            .clamp(SEGMENT_SIZE_MIN, ETHERNET_SEGMENT_SIZE);
        usize::from(size - self.options_len())
    }

    /// Longest request that the client repeats in one segment, bytes. A longer request comes in several segments, and
    /// no member joins the segments.
    #[must_use]
    pub fn repetition_len_max(&self) -> usize {
        let size = self.segment_size.min(ETHERNET_SEGMENT_SIZE);
        usize::from(size.saturating_sub(self.options_len()))
    }

    const fn options_len(&self) -> u16 {
        if self.has_timestamps {
            TIMESTAMPS_LEN
        } else {
            0
        }
    }

    /// Window of an acknowledgement that lies `missing` bytes before the client's: the right edge is the client's. The
    /// client has these bytes, and needs no room for them: a client without room must not keep the server from sending
    /// them, since no acknowledgement of the client is valid before the server has.
    pub(crate) fn window_before(&self, missing: u32) -> u16 {
        let units = (missing >> self.window_scale)
            + u32::from(missing.trailing_zeros() < u32::from(self.window_scale));
        u16::try_from(units.saturating_add(self.window.into())).unwrap_or(u16::MAX)
    }
}

/// The client's side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Initial sequence number.
    pub isn: SeqNumber,
    /// End of the client's highest segment.
    pub nxt: SeqNumber,
    /// Acknowledgement, as the client sees the numbers.
    pub ack: SeqNumber,
    /// Newest timestamp.
    pub tsval: u32,
    /// Newest window, not scaled.
    pub window: u16,
    /// Scale of the client's window.
    pub window_scale: u8,
    /// Both sides use timestamps.
    pub has_timestamps: bool,
    /// Both sides take selective acknowledgements.
    pub has_sack: bool,
    /// Bytes of the client have waited for their turn ([`crate::queue`]): user space hears of each turn.
    pub has_queue: bool,
    /// Copies of such bytes that user space has got.
    pub queued: Queued,
    /// Largest segment that the client takes, bytes.
    pub segment_size: u16,
    /// Scale and segment size, rounded down.
    pub options: ClientOptions,
}

/// Copies for user space, of bytes of a client that wait for their turn: limited in each round of user space, so that
/// one client does not fill the ring. The client sends bytes beyond again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queued {
    /// The round.
    pub round: u8,
    /// Small copies in this round. A large one counts as several.
    pub copies: u8,
}

/// The server's side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// Initial sequence number, as the client sees the number.
    pub isn: SeqNumber,
    /// End of the bytes that the client was sent.
    pub nxt: SeqNumber,
    /// Number that the client sees less the number of the server's socket.
    pub delta: u32,
    /// No byte before this number leaves: another server has sent the bytes before.
    pub floor: SeqNumber,
    /// Acknowledgement that the client has.
    pub told: SeqNumber,
    /// Acknowledgement of the server's TCP.
    pub received: SeqNumber,
    /// Right edge of the window that the client has.
    pub window_edge: SeqNumber,
    /// The next pure ACK leaves: a segment of the client needs an answer.
    pub owes_ack: bool,
    /// Scale of the window of the server's TCP; `None`: the two sides do not scale windows.
    pub window_scale: Option<u8>,
}

/// A request and its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// How far the turn is.
    pub phase: Phase,
    /// Number of the turn on the connection, from 0.
    pub number: u32,
    /// First byte of the request.
    pub request_start: SeqNumber,
    /// End of the request.
    pub request_end: SeqNumber,
    /// First byte of the response, as the client sees the number.
    pub response_start: SeqNumber,
    /// Where the response ends.
    pub end: ResponseEnd,
    /// Bytes of the response that the client has acknowledged.
    pub acked: u64,
    /// Bytes of the response that have left.
    pub sent: u64,
    /// When the request came, `CLOCK_MONOTONIC`.
    pub asked_at: Duration,
    /// Method of the request.
    pub method: http1::Method,
    /// The request stays unacknowledged until the client has the response.
    pub is_guarded: bool,
    /// End of the head of a response with inputs, which no byte of the head may tell the client.
    pub inputs_end: Option<SeqNumber>,
    /// The client asked for a part.
    pub has_range: bool,
    /// How often the client has sent the request again since the newest acknowledgement.
    pub repeats: u8,
    /// Bytes of the guarded request that the client was told to have arrived, at most [`RELEASED_MAX`].
    pub released: u8,
}

/// Where a response ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseEnd {
    /// After this many bytes of head and body.
    After(u64),
    /// With the connection.
    AtClose,
    /// With the last chunk, which has not come yet.
    AtLastChunk(ChunkedBody),
}

/// A body in chunks, as far as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkedBody {
    /// The reader.
    pub chunks: Chunks,
    /// First byte that was not read, as the client sees the number.
    pub next: SeqNumber,
}

/// How far a turn is (TRODS 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No request is under way.
    Idle,
    /// The server has a request, and has sent nothing yet.
    Asked,
    /// The head of the response has left.
    Body,
}

/// The lower 26 bits of timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// Of the newest segment.
    pub newest: StateBits,
    /// While the response under way is not complete.
    pub body: StateBits,
    /// While no response is under way.
    pub agreed: StateBits,
    /// Without protection.
    pub bare: StateBits,
    /// While the turn of [`Storage::stored`] is under way.
    pub stored: StateBits,
}

/// Turns and the store of the pool. Each turn is told by the number of the next turn; 0: none. So the end of a turn
/// ends all of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Storage {
    /// The timestamps cannot tell the position in the response (too far, in chunks, behind a long head), and the
    /// response is not stored yet: for the time being without protection.
    pub exposed: u32,
    /// The record is in the store.
    pub stored: u32,
    /// The client has echoed that the record is in the store: the request is acknowledged.
    pub released: u32,
}

/// Where the segments of a connection go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The server's socket and the client talk.
    Served,
    /// The member asks the server for the rest in the client's name; no segment passes.
    Reviving,
    /// The two sides have keys of their own (TCP-MD5, TCP-AO): segments pass untouched.
    Foreign,
}

/// Why a connection is not protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unprotected {
    /// The client does not use timestamps, and no store had an answer at the handshake. Or the client uses timestamps,
    /// and no SACK, or segments of fewer than 1,300 bytes.
    #[error(
        "the client has no timestamps (without a store) or no SACK, or its segments are shorter than 1300 bytes"
    )]
    NoTimestamps,
    /// The client's bytes are no request of HTTP/1.1, or the meaning is in doubt: TLS, HTTP/2, malformed.
    #[error(
        "the client does not speak plain HTTP/1.1 without doubt (TLS, HTTP/2 or a malformed request)"
    )]
    NotHttp,
    /// A request with a body of unknown length.
    #[error("a request with a body of unknown length")]
    Method,
    /// A request that asks for another protocol, or waits for an interim response.
    #[error("a request with Upgrade or Expect")]
    Upgraded,
    /// A request in several segments.
    #[error("a request in several segments")]
    SplitRequest,
    /// A request came before the response to the request before was complete, and could not wait.
    #[error("pipelined requests")]
    Pipelined,
    /// The response header is in several segments, or longer than 2,047 bytes (with a store, 3,976 bytes).
    #[error("a response header in several segments, or of 2048 bytes (with a store, 3977) or more")]
    Header,
    /// A response in chunks, and the operator does not say that every server sends the same chunks. Or the chunks are
    /// in doubt.
    #[error("a chunked response")]
    Chunked,
    /// A later response on a connection, longer than a timestamp can tell.
    #[error("a later response on a connection, longer than a timestamp can tell")]
    LaterResponse,
    /// The request was unacknowledged for too long.
    #[error("the request was unacknowledged for too long")]
    WithheldTooLong,
    /// The server said more than the response, or spoke without a request.
    #[error("the server sent bytes that belong to no response")]
    Server,
    /// A response with several ranges.
    #[error("a request or a response with several ranges")]
    Multipart,
    /// The server ignores the client's range, or answers with a part that the client has not asked for.
    #[error("the server ignores the client's range")]
    OwnRange,
    /// A response of more than 3 GiB, without a store.
    #[error("a response of more than 3 GiB")]
    TooLong,
}

impl Unprotected {
    /// All reasons, in the order of the codes from 1 on (`enum unprotected_object` of the programs).
    pub const ALL: [Self; 14] = [
        Self::NoTimestamps,
        Self::NotHttp,
        Self::Method,
        Self::Upgraded,
        Self::SplitRequest,
        Self::Pipelined,
        Self::Header,
        Self::Chunked,
        Self::LaterResponse,
        Self::WithheldTooLong,
        Self::Server,
        Self::Multipart,
        Self::OwnRange,
        Self::TooLong,
    ];

    /// The code that programs and user space share, from 1 on.
    #[must_use]
    pub fn code(self) -> u8 {
        let position = Self::ALL.iter().position(|reason| *reason == self);
        position.map_or(0, |index| u8::try_from(index + 1).unwrap_or(0))
    }

    /// The reason with this code; `None` for 0 and for unknown codes.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}
