//! What messages of the control protocol are made of.

use types::{ClientFin, ReplayMode, UnprotectedReason};
use wire::{FlowId, FlowKey, SeqNumber};

use super::MAX_DATA;
use crate::link::Handshake;

/// An image of a server's first process, which a record begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeptImage {
    /// Its number.
    pub number: u64,
    /// How large it is, bytes.
    pub length: u64,
    /// So much of that process's stream it has the place of, bytes.
    pub base: u64,
    /// So many processes had been begun.
    pub processes: u32,
}

/// What is kept of what a server's processes were told. As long as this is the same, what is there was there before,
/// and is only added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Edition {
    /// The record's number.
    pub record: u64,
    /// Another one whenever something of it was dropped.
    pub history: u64,
}

impl Edition {
    /// The number for "no record": the service goes on without a record of the server (`--stateful=prefer`). A host
    /// that takes over does the same. Any other number without a record means that the record was lost.
    pub const WITHOUT: u64 = 0;
}

/// Who attaches, and what it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// Drawn at random when the service was first started, the same for as long as its connections
    /// may live: who attaches again with it finds its records.
    pub instance: u64,
    /// How much of a connection is kept.
    pub replay: ReplayMode,
    /// Most bytes that the record of a connection may hold.
    pub per_connection: u64,
    /// Most bytes that all records of the service may hold.
    pub total: u64,
    /// Most connections that are protected at a time.
    pub connections: u32,
    /// The UDP port from which the datagrams of the link will come.
    pub udp_port: u16,
    /// Its host has begun a new life, and knows nothing of connections of an earlier one: if the
    /// records of the service with this name on the host with this address are here, they are those
    /// of this instance from now on.
    pub inherit: bool,
    /// The name of the service.
    pub service: String,
}

/// A connection whose record was lost, or never was, gets one from here on: everything before this
/// place is answered and needed no more (the beginning of a turn). Also of a connection that is
/// known: what it had is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// The connection.
    pub flow: FlowId,
    /// Its addresses and ports.
    pub key: FlowKey,
    /// The client's initial sequence number.
    pub client_isn: SeqNumber,
    /// The server's initial sequence number, as the client knows it.
    pub server_isn: SeqNumber,
    /// The first byte from the client that is to be recorded.
    pub instream: SeqNumber,
    /// The first byte from the server that belongs to this turn.
    pub outstream: SeqNumber,
    /// What the two agreed on.
    pub handshake: Handshake,
}

/// A connection that has a record: all that another host has to know of it, besides the record, to
/// take it over. What was not seen of it, its client is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Who it is, and where its record begins.
    pub beginning: Resume,
    /// How many bytes of the outstream the client has acknowledged at least, of the whole connection.
    pub acknowledged: u64,
    /// Its newest TSval that was seen; 0 without timestamps.
    pub tsval: u32,
    /// Its newest echo of the server's TSval that was seen; 0 without timestamps.
    pub tsecr: u32,
}

impl Recorded {
    /// The most bytes that one takes in a message.
    pub(super) const MAX_ENCODED: usize = 8 + 36 + 4 * 4 + 52 + 8 + 4 + 4;

    /// How many fit into one message.
    pub const PER_MESSAGE: usize = MAX_DATA / Self::MAX_ENCODED;
}

/// What is recorded of one connection. Sequence numbers are those of the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordSummary {
    /// The connection.
    pub flow: FlowId,
    /// The client's initial sequence number.
    pub client_isn: SeqNumber,
    /// The server's initial sequence number, as the client knows it.
    pub server_isn: SeqNumber,
    /// The first instream byte that is still kept.
    pub start: SeqNumber,
    /// The lowest instream byte that is not in the record: all from `start` up to it are (the
    /// paper's `stable_seq`).
    pub stable_seq: SeqNumber,
    /// The client's FIN, if all before it is recorded.
    pub client_fin: Option<ClientFin>,
    /// Where the last unanswered turn begins in the instream.
    pub turn_instream: SeqNumber,
    /// Where the last unanswered turn begins in the outstream.
    pub turn_outstream: SeqNumber,
    /// Where answers began in the outstream whose heads may not be recorded: the oldest, and the one
    /// after it (not after its beginning). Both are one if there is only one.
    pub answers: [SeqNumber; 2],
    /// The end of the last recorded head of the outstream.
    pub outstream_end: Option<SeqNumber>,
    /// What the client says from there on is not recorded, and may have been answered by nobody knows what: it had not
    /// said that when the answer began of which the newest head is.
    pub doubt: SeqNumber,
    /// Why the connection is not protected, if it is not.
    pub unprotected: Option<UnprotectedReason>,
}

impl RecordSummary {
    /// The summary of a connection of which nothing has arrived.
    #[must_use]
    pub fn fresh(flow: FlowId, client_isn: SeqNumber, server_isn: SeqNumber) -> Self {
        let (instream, outstream) = (client_isn + 1, server_isn + 1);
        Self {
            flow,
            client_isn,
            server_isn,
            start: instream,
            stable_seq: instream,
            client_fin: None,
            turn_instream: instream,
            turn_outstream: outstream,
            answers: [outstream; 2],
            outstream_end: None,
            doubt: instream,
            unprotected: None,
        }
    }

    /// The most bytes that a summary takes in a message.
    pub(super) const MAX_ENCODED: usize = 8 + 9 * 4 + 9 + 5 + 1;

    /// How many summaries fit into one message, whatever they say.
    pub const PER_MESSAGE: usize = MAX_DATA / Self::MAX_ENCODED;
}

/// Counters of the logger since it was started, and sizes as they are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Connections that are known now.
    pub flows: u64,
    /// Those of them that are not protected.
    pub unprotected_flows: u64,
    /// Instream bytes that were recorded.
    pub instream_bytes: u64,
    /// Outstream bytes (heads of turns) that were recorded.
    pub outstream_bytes: u64,
    /// Bytes of memory that the records hold now.
    pub held: u64,
    /// Mirror frames that were received.
    pub frames: u64,
    /// Those of them that could not be read.
    pub malformed_frames: u64,
    /// Those of them that belong to no known connection.
    pub unknown_flow_frames: u64,
}

/// Why a request cannot be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The logger does not know the connection, or the service that is to be given up.
    UnknownFlow,
    /// The connection is not protected, so there is no record to read.
    Unprotected,
    /// The record does not reach back to the byte that was asked for.
    NotKept,
    /// The request makes no sense here: a second `Hello` or `Attach`, or none at the beginning.
    BadRequest,
    /// Something failed in the logger.
    Internal,
    /// The records are somebody's who was heard of a moment ago.
    StillServed,
    /// The records are still being written: a moment later they can be had.
    StillWritten,
    /// Another service has one of the addresses.
    Taken,
}

impl ErrorCode {
    const ALL: [Self; 8] = [
        Self::UnknownFlow,
        Self::Unprotected,
        Self::NotKept,
        Self::BadRequest,
        Self::Internal,
        Self::StillServed,
        Self::StillWritten,
        Self::Taken,
    ];

    /// The stable code, 1 to 8.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::UnknownFlow => 1,
            Self::Unprotected => 2,
            Self::NotKept => 3,
            Self::BadRequest => 4,
            Self::Internal => 5,
            Self::StillServed => 6,
            Self::StillWritten => 7,
            Self::Taken => 8,
        }
    }

    /// The error with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|error| error.code() == code)
    }
}
