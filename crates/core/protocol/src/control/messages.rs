//! What the messages of the control protocol say.

use serde::{Deserialize, Serialize};
use wire::{FlowId, SeqNumber};

use super::{
    Attach, Claim, Edition, ErrorCode, KeptImage, LeaseAnswer, LeaseRequest, Message,
    RecordSummary, Recorded, Resume, Role, Statistics, framed,
    values::{bytes, link_keys, name, runs},
};
use crate::link::LinkKeys;
use crate::{Digest, DigestSeed, UnprotectedReason, Versions};

/// What `serve` asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Who is asking. The first message on a stream; answered by [`Response::Hello`].
    Hello {
        /// The name of the service whose record this is.
        #[serde(with = "name")]
        service: String,
        /// The versions of the mirror frame in which the ring may be written. The logger chooses one.
        #[serde(with = "framed")]
        frames: Versions,
    },
    /// What is recorded of each connection? Answered by [`Response::Summaries`].
    Summaries,
    /// Recorded instream bytes of a connection. Answered by [`Response::Data`].
    Read {
        /// The connection.
        flow: FlowId,
        /// The first byte wanted.
        from: SeqNumber,
        /// The most bytes wanted. The answer may be shorter, and never exceeds [`super::MAX_DATA`].
        max_len: u32,
    },
    /// The recorded heads of the outstream's turns. Answered by [`Response::OutstreamHeads`].
    OutstreamHeads {
        /// The connection.
        flow: FlowId,
    },
    /// Where a client spoke after it had heard all that its server had said. Answered by
    /// [`Response::Beginnings`].
    Beginnings {
        /// The connection.
        flow: FlowId,
    },
    /// Digests of what the server had said, where not all of that is recorded. Answered by [`Response::Digests`].
    Digests {
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
    /// The key of this service's digests is made of that. If the logger has records whose digests have another key,
    /// they stay of that one. Answered by [`Response::DigestSeed`].
    DigestSeed(DigestSeed),
    /// The keys of the link have been in use for long enough. Answered by [`Response::Keys`].
    Rekey,
    /// Mirror frames of the agreed version, one behind the other:
    /// what the datagrams of the link do not tell (heads of the outstream, ends of connections).
    /// Not answered.
    Frames {
        /// At most [`super::MAX_DATA`].
        #[serde(with = "bytes")]
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
    /// The operator says that the host which was granted a service is gone for good: it holds the service no more.
    /// Answered by [`Response::GivenUp`], or by an error if that host was heard a moment ago.
    GiveUp {
        /// The name of the service.
        #[serde(with = "name")]
        service: String,
    },
    /// These addresses are those of a service: before [`Request::Attach`] and [`Request::Lease`]. Answered by
    /// [`Response::Claimed`]; by [`ErrorCode::Taken`] if another service has one of them, and then the stream ends.
    Claim(Claim),
    /// What there is of the record that the processes of a server with state make
    /// ([`crate::link::Determinants`]). Answered by [`Response::Determinants`].
    Determinants {
        /// The record's number. If it is another one than that of what is kept, that is dropped. `None`: whichever
        /// is there.
        record: Option<u64>,
        /// So much of its streams (number of the process, length in bytes) was with a logger before, so that things
        /// may have been said on its account. What is less is not the record.
        #[serde(with = "framed::list")]
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
        /// At most [`super::MAX_DATA`].
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// A part of such a record. Answered by [`Response::DeterminantBytes`].
    ReadDeterminants {
        /// The number of the process.
        process: u32,
        /// Bytes of its stream before what is wanted.
        from: u64,
        /// The most bytes wanted. The answer may be shorter, and never exceeds [`super::MAX_DATA`].
        max_len: u32,
    },
    /// What is before there is needed no more, whether it was recorded or not: a place may lie beyond the record, and
    /// what is missing before it is waited for no longer. Not answered.
    Release {
        /// Connections, and the first bytes of their instreams that are to be kept. At most [`super::MAX_DATA`] bytes.
        #[serde(with = "framed::list")]
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
        #[serde(with = "name")]
        service: String,
        /// What it has.
        #[serde(with = "framed")]
        edition: Option<Edition>,
        /// Of that: number of the process and length in bytes. What is behind these comes next, if that is what is
        /// kept.
        #[serde(with = "framed::list")]
        streams: Vec<(u32, u64)>,
    },
    /// The next bytes of an image of the server's first process; the first of them begin another one. Answered by
    /// [`Response::ImageTaken`], or by [`Response::ImageRefused`], and then nothing of it is left.
    TellImage {
        /// The record that it is of.
        record: u64,
        /// Its number.
        image: u64,
        /// How large it is, bytes.
        length: u64,
        /// Bytes of it before these.
        from: u64,
        /// At most [`super::MAX_DATA`].
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// From now on the record is this image, which was told as a whole, and what comes behind `base`. Answered by
    /// [`Response::ImageKept`] when it is so, or by [`Response::ImageRefused`], and then all is as it was.
    CommitImage {
        /// The record's number.
        record: u64,
        /// The image's.
        image: u64,
        /// So much of the first process's stream it has the place of, bytes.
        base: u64,
        /// So many processes had been begun.
        processes: u32,
    },
    /// What was told of an image that was not committed is not wanted. Not answered.
    DropImage,
    /// A part of the image that the record begins with. Answered by [`Response::ImageBytes`].
    ReadImage {
        /// Its number.
        image: u64,
        /// Bytes of it before what is wanted.
        from: u64,
        /// The most bytes wanted. The answer may be shorter, and never exceeds [`super::MAX_DATA`]; it is empty if
        /// that image is not there.
        max_len: u32,
    },
    /// Of the next version, for tests: refused as out of place.
    #[cfg(feature = "next-version")]
    Next {
        /// Any number.
        token: u64,
    },
}

impl Message for Request {
    const FROM: Role = Role::Asks;

    fn since(&self) -> u8 {
        match self {
            #[cfg(feature = "next-version")]
            Self::Next { .. } => super::VERSION,
            _ => super::FIRST_NEGOTIATED,
        }
    }
}

/// What the logger answers, or tells unasked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// To [`Request::Hello`].
    Hello {
        /// The logger's process number.
        pid: u32,
        /// The version of the mirror frame that the logger has chosen.
        frames: u8,
    },
    /// All mirror frames before the barrier with this token are recorded, and written if the logger has a log.
    Drained {
        /// The token of the barrier.
        token: u64,
    },
    /// To [`Request::Summaries`].
    Summaries {
        /// At most [`RecordSummary::PER_MESSAGE`].
        #[serde(with = "framed::list")]
        summaries: Vec<RecordSummary>,
        /// Whether the list is complete with these.
        last: bool,
    },
    /// To [`Request::Read`].
    Data {
        /// The connection.
        flow: FlowId,
        /// The sequence number of the first of these bytes.
        from: SeqNumber,
        /// At most [`super::MAX_DATA`]; empty if nothing is recorded from there on.
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// To [`Request::OutstreamHeads`].
    OutstreamHeads {
        /// The connection.
        flow: FlowId,
        /// Recorded runs of the outstream, in the client's sequence space.
        #[serde(with = "runs")]
        ranges: Vec<(SeqNumber, Vec<u8>)>,
        /// Whether the list is complete with these.
        last: bool,
    },
    /// To [`Request::Beginnings`].
    Beginnings {
        /// The connection.
        flow: FlowId,
        /// The first byte of what the client said, and the one after the last of what the server had said
        /// before that, in order. At most [`super::MAX_DATA`] bytes.
        #[serde(with = "framed::list")]
        places: Vec<(SeqNumber, SeqNumber)>,
        /// Whether the list is complete with these.
        last: bool,
    },
    /// To [`Request::DigestSeed`]: what the key of the digests in the records of the service is made of.
    DigestSeed(DigestSeed),
    /// To [`Request::Digests`].
    Digests {
        /// The connection.
        flow: FlowId,
        /// In order. At most [`super::MAX_DATA`] bytes.
        #[serde(with = "framed::list")]
        digests: Vec<Digest>,
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
        /// The keys of the link, and the version that the logger has chosen from [`Attach::link`]. Those of an earlier
        /// session of this instance stay valid in the other slot.
        #[serde(with = "link_keys")]
        keys: LinkKeys,
        /// The version of the mirror frame that the logger has chosen from [`Attach::frames`].
        frames: u8,
    },
    /// To [`Request::Rekey`]: they are accepted from now on, and those in the other slot, too. The
    /// logger uses them when it has seen a datagram with a tag of theirs.
    Keys(#[serde(with = "link_keys")] LinkKeys),
    /// Segments arrive that belong to no record. Unasked, at most once a second for each number.
    Unknown {
        /// The low 32 bits of the flow's number, which is all that a segment tells.
        flow_low: u32,
    },
    /// To [`Request::Connections`]: those that have a whole record.
    Connections {
        /// At most [`Recorded::PER_MESSAGE`].
        #[serde(with = "framed::list")]
        connections: Vec<Recorded>,
        /// Whether the list is complete with these.
        last: bool,
    },
    /// To [`Request::GiveUp`]: nobody holds the service.
    GivenUp {
        /// The newest epoch, which is over.
        epoch: u32,
    },
    /// To [`Request::Claim`]: as long as the service is heard of, no other gets them.
    Claimed {
        /// Who has one of them besides, for the operator, if the claimant serves already or again; empty: nobody.
        beside: String,
    },
    /// To [`Request::Lease`].
    Lease(LeaseAnswer),
    /// Which hosts the service of this stream has, for people: before the first [`Response::Lease`], and again when
    /// that has changed. Only to who has made a [`Request::Claim`].
    Hosts {
        /// The host that serves; empty: none is known.
        #[serde(with = "name")]
        serves: String,
        /// A host that stands by; empty: none does.
        #[serde(with = "name")]
        stands_by: String,
        /// [`Claim::determinants`] of the host that serves.
        #[serde(default)]
        determinants: u32,
    },
    /// To [`Request::Determinants`].
    Determinants {
        /// `None`: there is none.
        #[serde(with = "framed")]
        edition: Option<Edition>,
        /// Nothing of it is missing on whose account things may have been said.
        is_whole: bool,
        /// What the stream of its first process begins behind.
        #[serde(with = "framed")]
        image: Option<KeptImage>,
        /// Its streams: number of the process and length in bytes.
        #[serde(with = "framed::list")]
        streams: Vec<(u32, u64)>,
    },
    /// To [`Request::ReadDeterminants`].
    DeterminantBytes {
        /// At most [`super::MAX_DATA`]; empty at the end of the stream.
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// To [`Request::TellImage`]: so much of it is there.
    ImageTaken {
        /// The record that it is of.
        record: u64,
        /// Its number.
        image: u64,
        /// Bytes.
        there: u64,
    },
    /// To [`Request::CommitImage`]: it is so.
    ImageKept {
        /// The record that it is of.
        record: u64,
        /// Its number.
        image: u64,
    },
    /// It is not taken, or is not what the record begins with.
    ImageRefused {
        /// The record that it is said to be of.
        record: u64,
        /// Its number.
        image: u64,
        /// Why, for the operator.
        why: String,
    },
    /// To [`Request::ReadImage`].
    ImageBytes {
        /// At most [`super::MAX_DATA`].
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// To who follows: what comes is of this edition, from its beginning on.
    Followed {
        /// `None`: there is none.
        #[serde(with = "framed")]
        edition: Option<Edition>,
    },
    /// To who follows: more of a stream.
    Grown {
        /// The number of the process.
        process: u32,
        /// Bytes of its stream before these.
        from: u64,
        /// At most [`super::MAX_DATA`].
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
}

impl Message for Response {
    const FROM: Role = Role::Answers;

    fn since(&self) -> u8 {
        super::FIRST_NEGOTIATED
    }
}
