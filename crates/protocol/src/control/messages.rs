//! What the messages of the control protocol say.

use wire::{FlowId, FlowKey, SeqNumber};

use super::{LeaseAnswer, LeaseRequest, MAX_DATA};
use crate::UnprotectedReason;
use crate::link::{Handshake, LinkKeys};

/// What `serve` asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Who is asking. The first message on a stream; answered by [`Response::Hello`].
    Hello {
        /// The name of the service whose record this is.
        service: String,
    },
    /// What is recorded of each connection? Answered by [`Response::Summaries`].
    Summaries,
    /// Recorded instream bytes of a connection. Answered by [`Response::Data`].
    Read {
        /// The connection.
        flow: FlowId,
        /// The first byte wanted.
        from: SeqNumber,
        /// The most bytes wanted. The answer may be shorter, and never exceeds [`MAX_DATA`].
        max_len: u32,
    },
    /// The recorded heads of the outstream's turns. Answered by [`Response::OutstreamHeads`].
    OutstreamHeads {
        /// The connection.
        flow: FlowId,
    },
    /// Stop recording a connection and drop its record. Not answered.
    Unprotect {
        /// The connection.
        flow: FlowId,
    },
    /// Counters of the logger. Answered by [`Response::Statistics`].
    Statistics,
    /// Stop. Answered by the end of the stream.
    Shutdown,
    /// The records are about to be replayed: while this holds, no turn begins and nothing of a
    /// record is dropped. Not answered; what is asked afterwards is answered from such records.
    HoldTurns {
        /// Whether it holds from now on.
        hold: bool,
    },
    /// A service wants its record kept by a logger on another machine. The first message on such a
    /// stream, in the place of [`Request::Hello`]; answered by [`Response::Attached`].
    Attach(Attach),
    /// The keys of the link have been in use for long enough. Answered by [`Response::Keys`].
    Rekey,
    /// Mirror frames, as the ring of a logger on this host would hold them, one behind the other:
    /// what the datagrams of the link do not tell (heads of the outstream, ends of connections).
    /// Not answered.
    Frames {
        /// At most [`MAX_DATA`].
        bytes: Vec<u8>,
    },
    /// Has everything before this been recorded? Answered by [`Response::Drained`].
    Barrier {
        /// The number that the asker chose.
        token: u64,
    },
    /// A connection gets a record that begins in its middle: see [`Resume`]. Not answered.
    Resume(Resume),
    /// The service has this logger in use, and it is the `session`th time that it has taken another one
    /// in use, whichever. Who finds records at several loggers takes those with the highest number: the
    /// others are the past. Not answered.
    InUse {
        /// The number.
        session: u64,
    },
    /// Which connections have a record? Asked by a service whose host knows nothing of them any more.
    /// Answered by [`Response::Connections`].
    Connections,
    /// May this host speak for the service? Answered by [`Response::Lease`]. A standby says nothing
    /// else on this stream: it has no record.
    Lease(LeaseRequest),
    /// What there is of the record that the processes of a server with state make
    /// ([`crate::link::Determinants`]). Answered by [`Response::Determinants`].
    Determinants {
        /// The record's number. If it is another one than that of what is kept, that is dropped. `None`: whichever
        /// is there.
        record: Option<u64>,
        /// So much of its streams (number of the process, length in bytes) was with a logger before, so that things may have been
        /// said on its account. What is less is not the record.
        said: Vec<(u32, u64)>,
    },
    /// More of such a record, from who serves: a logger that has begun anew has to be told all of it. Not answered.
    TellDeterminants {
        /// The record's number.
        record: u64,
        /// The number of the process.
        process: u32,
        /// Bytes of its stream before these.
        from: u64,
        /// At most [`MAX_DATA`].
        bytes: Vec<u8>,
    },
    /// A part of such a record. Answered by [`Response::DeterminantBytes`].
    ReadDeterminants {
        /// The number of the process.
        process: u32,
        /// Bytes of its stream before what is wanted.
        from: u64,
        /// The most bytes wanted. The answer may be shorter, and never exceeds [`MAX_DATA`].
        max_len: u32,
    },
    /// What is before there is needed no more. Not answered.
    Release {
        /// Connections, and the first bytes of their instreams that are to be kept. At most [`MAX_DATA`] bytes.
        places: Vec<(FlowId, SeqNumber)>,
    },
    /// What is behind there was never said whole, and is dropped. Not answered.
    CutDeterminants {
        /// The number of the process.
        process: u32,
        /// How long its stream is from now on, bytes.
        length: u64,
    },
    /// Somebody who stands by wants to hear what the processes of a service are told, as it comes: by
    /// [`Response::Followed`] and [`Response::Grown`]. Instead of [`Request::Attach`]; on such a stream
    /// [`Request::Connections`] is answered, too, and nothing else.
    Follow {
        /// The name of the service.
        service: String,
        /// What it has.
        edition: Option<Edition>,
        /// Of that: number of the process and length in bytes. What is behind these comes next, if that is what is kept.
        streams: Vec<(u32, u64)>,
    },
}

/// What is kept of what a server's processes were told. As long as this is the same, what is there was there before, and is
/// only added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Edition {
    /// The record's number.
    pub record: u64,
    /// Another one whenever something of it was dropped.
    pub history: u64,
}

/// Who attaches, and what it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// Drawn at random when the service was first started, the same for as long as its connections
    /// may live: who attaches again with it finds its records.
    pub instance: u64,
    /// How much of a connection is kept.
    pub replay: Replay,
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

/// How much of a connection is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Replay {
    /// Everything from its beginning on.
    Connection,
    /// What belongs to its last turn.
    Turn,
}

impl Replay {
    /// The stable code, 0 or 1.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Connection => 0,
            Self::Turn => 1,
        }
    }

    /// What this code means.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Connection),
            1 => Some(Self::Turn),
            _ => None,
        }
    }
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

/// What the logger answers, or tells unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// To [`Request::Hello`].
    Hello {
        /// The logger's process number.
        pid: u32,
    },
    /// All mirror frames before the barrier with this token have been recorded.
    Drained {
        /// The token of the barrier.
        token: u64,
    },
    /// To [`Request::Summaries`].
    Summaries {
        /// At most [`FlowSummary::PER_MESSAGE`].
        summaries: Vec<FlowSummary>,
        /// Whether the list is complete with these.
        last: bool,
    },
    /// To [`Request::Read`].
    Data {
        /// The connection.
        flow: FlowId,
        /// The sequence number of the first of these bytes.
        from: SeqNumber,
        /// At most [`MAX_DATA`]; empty if nothing is recorded from there on.
        bytes: Vec<u8>,
    },
    /// To [`Request::OutstreamHeads`].
    OutstreamHeads {
        /// The connection.
        flow: FlowId,
        /// Recorded runs of the outstream, in the client's sequence space.
        ranges: Vec<(SeqNumber, Vec<u8>)>,
        /// Whether the list is complete with these.
        last: bool,
    },
    /// The connection is no longer recorded.
    Unprotected {
        /// The connection.
        flow: FlowId,
        /// Why.
        reason: UnprotectedReason,
    },
    /// To [`Request::Statistics`].
    Statistics(Statistics),
    /// The request cannot be answered.
    Error {
        /// For the program.
        code: ErrorCode,
        /// For the operator.
        message: String,
    },
    /// To [`Request::Attach`].
    Attached {
        /// The logger's process number.
        pid: u32,
        /// Whether the records of this instance are still here, or those of an earlier one are its
        /// own now: if not, each connection needs an OPEN or a [`Request::Resume`].
        kept: bool,
        /// What [`Request::InUse`] has said of these records; 0 if nothing did.
        session: u64,
        /// The keys of the link. Those of an earlier session of this instance stay valid in the
        /// other slot.
        keys: LinkKeys,
    },
    /// To [`Request::Rekey`]: they are accepted from now on, and those in the other slot, too. The
    /// logger uses them when it has seen a datagram with a tag of theirs.
    Keys(LinkKeys),
    /// Segments arrive that belong to no record. Unasked, at most once a second for each number.
    Unknown {
        /// The low 32 bits of the flow's number, which is all that a segment tells.
        flow_low: u32,
    },
    /// To [`Request::Connections`]: those that have a whole record.
    Connections {
        /// At most [`Recorded::PER_MESSAGE`].
        connections: Vec<Recorded>,
        /// Whether the list is complete with these.
        last: bool,
    },
    /// To [`Request::Lease`].
    Lease(LeaseAnswer),
    /// To [`Request::Determinants`].
    Determinants {
        /// `None`: there is none.
        edition: Option<Edition>,
        /// Nothing of it is missing on whose account things may have been said.
        is_whole: bool,
        /// Its streams: number of the process and length in bytes.
        streams: Vec<(u32, u64)>,
    },
    /// To [`Request::ReadDeterminants`].
    DeterminantBytes {
        /// At most [`MAX_DATA`]; empty at the end of the stream.
        bytes: Vec<u8>,
    },
    /// To who follows: what comes is of this edition, from its beginning on.
    Followed {
        /// `None`: there is none.
        edition: Option<Edition>,
    },
    /// To who follows: more of a stream.
    Grown {
        /// The number of the process.
        process: u32,
        /// Bytes of its stream before these.
        from: u64,
        /// At most [`MAX_DATA`].
        bytes: Vec<u8>,
    },
}

/// The end of an instream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientFin {
    /// Its sequence number.
    pub seq: SeqNumber,
    /// What the client had acknowledged when it sent it.
    pub heard: SeqNumber,
}

/// What is recorded of one connection. Sequence numbers are those of the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowSummary {
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
    /// Why the connection is not protected, if it is not.
    pub unprotected: Option<UnprotectedReason>,
}

impl FlowSummary {
    /// The most bytes that a summary takes in a message.
    pub(super) const MAX_ENCODED: usize = 8 + 8 * 4 + 9 + 5 + 1;

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
    /// The logger does not know the connection.
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
}

impl ErrorCode {
    const ALL: [Self; 7] = [
        Self::UnknownFlow,
        Self::Unprotected,
        Self::NotKept,
        Self::BadRequest,
        Self::Internal,
        Self::StillServed,
        Self::StillWritten,
    ];

    /// The stable code, 1 to 7.
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
        }
    }

    /// The error with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|error| error.code() == code)
    }
}
