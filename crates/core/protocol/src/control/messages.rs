//! Messages of the control protocol.

use serde::{Deserialize, Serialize};
use wire::{FlowId, SeqNumber};

use super::{
    Attach, Claim, Edition, ErrorCode, KeptImage, LeaseAnswer, LeaseRequest, Message,
    RecordSummary, Recorded, Resume, Role, Statistics, framed,
    values::{bytes, link_keys, name, runs},
};
use crate::link::LinkKeys;
use crate::{Digest, DigestSeed, UnprotectedReason, Versions};

/// Message from `serve` to the logger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Who is asking. The first message on a stream; answered by [`Response::Hello`].
    Hello {
        /// The name of the service whose record this is.
        #[serde(with = "name")]
        service: String,
        /// The versions of the mirror frame that the ring may hold. The logger chooses a version.
        #[serde(with = "framed")]
        frames: Versions,
    },
    /// Asks for the summary of each record. Answered by [`Response::Summaries`].
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
    /// Asks for the places where the client sent after the whole outstream was acknowledged.
    /// Answered by [`Response::Beginnings`].
    Beginnings {
        /// The connection.
        flow: FlowId,
    },
    /// Asks for digests of outstreams that are not recorded as a whole. Answered by
    /// [`Response::Digests`].
    Digests {
        /// The connection.
        flow: FlowId,
    },
    /// Stop recording a connection and drop the record. Not answered.
    Unprotect {
        /// The connection.
        flow: FlowId,
    },
    /// Counters of the logger. Answered by [`Response::Statistics`].
    Statistics,
    /// Stop. Answered by the end of the stream.
    Shutdown,
    /// A replay is about to begin: as long as `hold` is true, no request begins and no part of a
    /// record is dropped. Not answered. Later questions are answered from such records.
    HoldTurns {
        /// Whether to hold from now on.
        hold: bool,
    },
    /// A service asks a logger on another machine to keep the record. The first message on such a
    /// stream, instead of [`Request::Hello`]; answered by [`Response::Attached`].
    Attach(Attach),
    /// Seed for the key of this service's digests. Records at the logger whose digests have another
    /// key keep that key. Answered by [`Response::DigestSeed`].
    DigestSeed(DigestSeed),
    /// The keys of the link have been in use for long enough. Answered by [`Response::Keys`].
    Rekey,
    /// Mirror frames of the agreed version, back to back, with data that the datagrams of the link
    /// do not carry (heads of the outstream, ends of connections). Not answered.
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
    /// A connection gets a record that begins in the middle of the connection: see [`Resume`]. Not
    /// answered.
    Resume(Resume),
    /// The service has this logger in use. `session` counts how often the service has taken another
    /// logger in use. A service that finds records at several loggers uses the records with the
    /// highest number: the other records are outdated. Not answered.
    InUse {
        /// The number.
        session: u64,
    },
    /// Asks which connections have a record, for a service whose host has lost all state of
    /// connections. Answered by [`Response::Connections`].
    Connections,
    /// Asks for a lease. Answered by [`Response::Lease`]. A standby sends no other message on this
    /// stream: a standby has no record.
    Lease(LeaseRequest),
    /// The operator vouches that the host which was granted a service is gone for good: the host no
    /// longer holds the service. Answered by [`Response::GivenUp`], or by an error if that host was
    /// heard a moment ago.
    GiveUp {
        /// The name of the service.
        #[serde(with = "name")]
        service: String,
    },
    /// Claims the addresses of a service: before [`Request::Attach`] and [`Request::Lease`].
    /// Answered by [`Response::Claimed`]; by [`ErrorCode::Taken`] if another service has an address
    /// of the list, and then the stream ends.
    Claim(Claim),
    /// Asks how much of the determinant log ([`crate::link::Determinants`]) the logger has.
    /// Answered by [`Response::Determinants`].
    Determinants {
        /// Number of the record. The logger drops a kept record with another number. `None`: any
        /// record.
        record: Option<u64>,
        /// Lengths of the streams that a logger had before (number of the process, length in
        /// bytes): output may depend on all these bytes. A shorter stream is not the record.
        #[serde(with = "framed::list")]
        said: Vec<(u32, u64)>,
    },
    /// More determinants, from the serving host: a logger that was restarted needs the whole log.
    /// Not answered.
    TellDeterminants {
        /// The record's number.
        record: u64,
        /// The number of the process.
        process: u32,
        /// Offset of these bytes in the stream.
        from: u64,
        /// At most [`super::MAX_DATA`].
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// A part of such a record. Answered by [`Response::DeterminantBytes`].
    ReadDeterminants {
        /// The number of the process.
        process: u32,
        /// Offset of the wanted bytes in the stream.
        from: u64,
        /// The most bytes wanted. The answer may be shorter, and never exceeds [`super::MAX_DATA`].
        max_len: u32,
    },
    /// Input before these places is no longer needed, recorded or not. A place may lie beyond the
    /// record: the logger no longer waits for missing bytes before the place. Not answered.
    Release {
        /// Connections, and the first instream bytes to keep. At most [`super::MAX_DATA`] bytes.
        #[serde(with = "framed::list")]
        places: Vec<(FlowId, SeqNumber)>,
    },
    /// The rest of the stream was never logged as a whole, and is dropped. Not answered.
    CutDeterminants {
        /// The number of the process.
        process: u32,
        /// New length of the stream, bytes.
        length: u64,
    },
    /// A standby asks for the determinants of a service as the determinants arrive, by
    /// [`Response::Followed`] and [`Response::Grown`]. Instead of [`Request::Attach`]; besides,
    /// such a stream answers only [`Request::Connections`].
    Follow {
        /// The name of the service.
        #[serde(with = "name")]
        service: String,
        /// The edition that the standby has.
        #[serde(with = "framed")]
        edition: Option<Edition>,
        /// Streams of that edition: number of the process and length in bytes. If the logger keeps
        /// the same edition, the bytes behind these lengths come next.
        #[serde(with = "framed::list")]
        streams: Vec<(u32, u64)>,
    },
    /// The next bytes of an image of the server's first process. The first bytes of an image begin
    /// a new image. Answered by [`Response::ImageTaken`], or by [`Response::ImageRefused`] after
    /// the logger has dropped the image.
    TellImage {
        /// Number of the record.
        record: u64,
        /// Number of the image.
        image: u64,
        /// Length of the image, bytes.
        length: u64,
        /// Offset of these bytes in the image.
        from: u64,
        /// At most [`super::MAX_DATA`].
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// From now on the record is this image, which was sent as a whole, and the stream behind
    /// `base`. Answered by [`Response::ImageKept`] after the change, or by
    /// [`Response::ImageRefused`], and then no record has changed.
    CommitImage {
        /// The record's number.
        record: u64,
        /// The image's.
        image: u64,
        /// Bytes of the first process's stream that the image replaces.
        base: u64,
        /// Number of processes that had been started.
        processes: u32,
    },
    /// Drops an image that was not committed. Not answered.
    DropImage,
    /// A part of the image that the record begins with. Answered by [`Response::ImageBytes`].
    ReadImage {
        /// Number of the image.
        image: u64,
        /// Offset of the wanted bytes in the image.
        from: u64,
        /// The most bytes wanted. The answer may be shorter, and never exceeds [`super::MAX_DATA`];
        /// the answer is empty if the logger does not have that image.
        max_len: u32,
    },
    /// A standby asks for the image at the beginning of a service's record. Answered by [`Response::StoredImage`]. The
    /// stream is attached to no service.
    StoredImage {
        /// The name of the service.
        #[serde(with = "name")]
        service: String,
    },
    /// As [`Request::ReadImage`], by a standby.
    ReadStoredImage {
        /// The name of the service.
        #[serde(with = "name")]
        service: String,
        /// As in [`Request::ReadImage`].
        image: u64,
        /// As in [`Request::ReadImage`].
        from: u64,
        /// As in [`Request::ReadImage`].
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
            Self::StoredImage { .. } | Self::ReadStoredImage { .. } => super::IMAGES_FOR_STANDBYS,
            _ => super::FIRST_NEGOTIATED,
        }
    }
}

/// Message from the logger to `serve`, asked or unasked.
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
        /// At most [`super::MAX_DATA`]; empty if no byte is recorded from there on.
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
        /// For each request: the first byte of the client's data, and the end of the outstream
        /// before the request, in order. At most [`super::MAX_DATA`] bytes.
        #[serde(with = "framed::list")]
        places: Vec<(SeqNumber, SeqNumber)>,
        /// Whether the list is complete with these.
        last: bool,
    },
    /// To [`Request::DigestSeed`]: seed for the key of the digests in the records of the service.
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
        /// Whether the records of this instance are still here, or the instance has inherited the
        /// records of an earlier instance. If not, each connection needs an OPEN or a
        /// [`Request::Resume`].
        kept: bool,
        /// The `session` of the last [`Request::InUse`] for these records; 0 without such a
        /// request.
        session: u64,
        /// The keys of the link, and the version that the logger has chosen from [`Attach::link`].
        /// Keys of an earlier session of this instance stay valid in the other slot.
        #[serde(with = "link_keys")]
        keys: LinkKeys,
        /// The version of the mirror frame that the logger has chosen from [`Attach::frames`].
        frames: u8,
    },
    /// To [`Request::Rekey`]: the logger accepts the new keys from now on, and the keys in the
    /// other slot, too. The logger uses the new keys after a datagram with a tag of these keys.
    Keys(#[serde(with = "link_keys")] LinkKeys),
    /// Segments arrive that belong to no record. Unasked, at most once a second for each number.
    Unknown {
        /// The low 32 bits of the flow's number, which is all that a segment tells.
        flow_low: u32,
    },
    /// To [`Request::Connections`]: connections with a whole record.
    Connections {
        /// At most [`Recorded::PER_MESSAGE`].
        #[serde(with = "framed::list")]
        connections: Vec<Recorded>,
        /// Whether the list is complete with these.
        last: bool,
    },
    /// To [`Request::GiveUp`]: no host holds the service.
    GivenUp {
        /// The newest epoch, which is over.
        epoch: u32,
    },
    /// To [`Request::Claim`]: as long as the logger hears of the service, no other service gets
    /// these addresses.
    Claimed {
        /// Another service with an address of the claim, for the operator, if the claimant serves
        /// already or again; empty: no such service.
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
        determinants: u32,
    },
    /// To [`Request::Determinants`].
    Determinants {
        /// `None`: there is none.
        #[serde(with = "framed")]
        edition: Option<Edition>,
        /// No determinant on which output may depend is missing.
        is_whole: bool,
        /// The image that replaces the beginning of the first process's stream.
        #[serde(with = "framed")]
        image: Option<KeptImage>,
        /// Streams of the record: number of the process and length in bytes.
        #[serde(with = "framed::list")]
        streams: Vec<(u32, u64)>,
    },
    /// To [`Request::ReadDeterminants`].
    DeterminantBytes {
        /// At most [`super::MAX_DATA`]; empty at the end of the stream.
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// To [`Request::TellImage`]: length of the image at the logger so far.
    ImageTaken {
        /// Number of the record.
        record: u64,
        /// Number of the image.
        image: u64,
        /// Bytes.
        there: u64,
    },
    /// To [`Request::CommitImage`]: the record begins with the image.
    ImageKept {
        /// Number of the record.
        record: u64,
        /// Number of the image.
        image: u64,
    },
    /// The logger does not take the image, or the record does not begin with the image.
    ImageRefused {
        /// Number of the record in the request.
        record: u64,
        /// Number of the image.
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
    /// To a standby that follows: the next bytes are of this edition, from the beginning on.
    Followed {
        /// `None`: there is none.
        #[serde(with = "framed")]
        edition: Option<Edition>,
    },
    /// To a standby that follows: more of a stream.
    Grown {
        /// The number of the process.
        process: u32,
        /// Offset of these bytes in the stream.
        from: u64,
        /// At most [`super::MAX_DATA`].
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// To [`Request::StoredImage`].
    StoredImage {
        /// `None`: the record begins with no image, or there is no record.
        #[serde(with = "framed")]
        image: Option<KeptImage>,
    },
}

impl Message for Response {
    const FROM: Role = Role::Answers;

    fn since(&self) -> u8 {
        match self {
            Self::StoredImage { .. } => super::IMAGES_FOR_STANDBYS,
            _ => super::FIRST_NEGOTIATED,
        }
    }
}
