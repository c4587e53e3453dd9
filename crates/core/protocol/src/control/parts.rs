//! What messages of the control protocol are made of.

use serde::{Deserialize, Serialize};
use types::{ClientFin, ReplayMode, UnprotectedReason};
use wire::{FlowId, FlowKey, SeqNumber};

use super::{
    MAX_DATA, framed,
    values::{flow_key, handshake, name},
};
use crate::link::{self, FLOW_KEY_LEN, HANDSHAKE_LEN, Handshake, flow_key_from, flow_key_into};
use crate::{Versions, mirror};

/// Most bytes of a number of 64 bits, and of 32 bits.
const U64_LEN: usize = 10;
const U32_LEN: usize = 5;
/// Bytes of the length of a frame of at most 127 bytes, and of a longer frame below 16 KiB.
const SHORT_FRAME_LEN: usize = 1;
const FRAME_LEN: usize = 2;

/// An image of a server's first process, which a record begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(with = "name")]
    pub service: String,
    /// The versions of the log link that the host speaks. The logger chooses one: [`super::Response::Attached`].
    #[serde(with = "framed")]
    pub link: Versions,
    /// The versions of the mirror frame that the host writes. The logger chooses one, too.
    #[serde(with = "framed")]
    pub frames: Versions,
    /// Of the next version, for tests.
    #[cfg(feature = "next-version")]
    #[serde(default)]
    pub next: u32,
}

impl Attach {
    /// A service without a name and without room, which speaks the versions of link and frame that this program speaks.
    pub const PLAIN: Self = Self {
        instance: 0,
        replay: ReplayMode::Connection,
        per_connection: 0,
        total: 0,
        connections: 0,
        udp_port: 0,
        inherit: false,
        service: String::new(),
        link: link::VERSIONS,
        frames: mirror::VERSIONS,
        #[cfg(feature = "next-version")]
        next: 0,
    };
}

/// A connection whose record was lost, or never was, gets one from here on: everything before this
/// place is answered and needed no more (the beginning of a turn). Also of a connection that is
/// known: what it had is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The connection.
    pub flow: FlowId,
    /// Its addresses and ports.
    #[serde(with = "flow_key")]
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
    #[serde(with = "handshake")]
    pub handshake: Handshake,
}

impl Resume {
    /// Length of the fixed layout, bytes.
    pub const LEN: usize = 8 + FLOW_KEY_LEN + 4 * 4 + HANDSHAKE_LEN;

    /// The fixed layout of files: flow, addresses and ports, the four numbers, handshake; little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut key = [0; FLOW_KEY_LEN];
        flow_key_into(&self.key, &mut key);
        let numbers = [
            self.client_isn,
            self.server_isn,
            self.instream,
            self.outstream,
        ];
        let numbers = numbers.map(|number| number.0.to_le_bytes());
        let mut bytes = [0; Self::LEN];
        let parts: [&[u8]; 4] = [
            &self.flow.0.to_le_bytes(),
            &key,
            numbers.as_flattened(),
            &self.handshake.encode(),
        ];
        for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    /// Reads what [`Resume::to_bytes`] writes; `None`: the handshake has a value that no handshake has.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let (flow, rest) = bytes.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (numbers, rest) = rest.split_first_chunk::<16>()?;
        let (handshake, _) = rest.split_first_chunk()?;
        let number = |at: usize| {
            let bytes = [
                numbers[at],
                numbers[at + 1],
                numbers[at + 2],
                numbers[at + 3],
            ];
            SeqNumber(u32::from_le_bytes(bytes))
        };
        Some(Self {
            flow: FlowId(u64::from_le_bytes(*flow)),
            key: flow_key_from(key),
            client_isn: number(0),
            server_isn: number(4),
            instream: number(8),
            outstream: number(12),
            handshake: Handshake::decode(handshake).ok()?,
        })
    }

    /// Most bytes of the encoding, frame included.
    const MAX_ENCODED: usize =
        SHORT_FRAME_LEN + U64_LEN + flow_key::MAX_ENCODED + 4 * U32_LEN + handshake::MAX_ENCODED;
}

/// A connection that has a record: all that another host has to know of it, besides the record, to
/// take it over. What was not seen of it, its client is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Who it is, and where its record begins.
    #[serde(with = "framed")]
    pub beginning: Resume,
    /// How many bytes of the outstream the client has acknowledged at least, of the whole connection.
    pub acknowledged: u64,
    /// Its newest TSval that was seen; 0 without timestamps.
    pub tsval: u32,
    /// Its newest echo of the server's TSval that was seen; 0 without timestamps.
    pub tsecr: u32,
}

impl Recorded {
    /// Most bytes of the encoding in a list, frame included.
    pub(super) const MAX_ENCODED: usize = FRAME_LEN + Resume::MAX_ENCODED + U64_LEN + 2 * U32_LEN;

    /// How many fit into one message.
    pub const PER_MESSAGE: usize = MAX_DATA / Self::MAX_ENCODED;
}

/// What is recorded of one connection. Sequence numbers are those of the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(with = "framed")]
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
    /// Of the next version, for tests.
    #[cfg(feature = "next-version")]
    #[serde(default)]
    pub next: Option<SeqNumber>,
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
            #[cfg(feature = "next-version")]
            next: None,
        }
    }

    /// Most bytes of the encoding in a list, frame included: the flow, nine numbers, the FIN in its frame, an optional
    /// number and an optional reason.
    pub(super) const MAX_ENCODED: usize = SHORT_FRAME_LEN
        + U64_LEN
        + 9 * U32_LEN
        + (2 + 2 * U32_LEN)
        + (1 + U32_LEN)
        + 2
        + if cfg!(feature = "next-version") {
            1 + U32_LEN
        } else {
            0
        };

    /// How many summaries fit into one message, whatever they say.
    pub const PER_MESSAGE: usize = MAX_DATA / Self::MAX_ENCODED;
}

/// Counters of the logger since it was started, and sizes as they are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// Host and logger have no version of the log link, or of the mirror frame, in common.
    NoCommonVersion,
}

/// Most bytes of an element of [`super::Response::Beginnings`], frame included.
pub const PLACE_LEN: usize = 1 + 2 * U32_LEN;

/// Most bytes of an element of [`super::Response::Digests`], frame included.
pub const DIGEST_LEN: usize = 1 + 2 * U64_LEN + 2 * U32_LEN;

/// Most bytes that surround a head in [`super::Response::OutstreamHeads`]: frame, place, and length.
pub const HEAD_OVERHEAD: usize = 3 + U32_LEN + 3;
