//! Parts of the messages of the control protocol.

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
    /// Number of the image.
    pub number: u64,
    /// Length of the image, bytes.
    pub length: u64,
    /// Bytes of that process's stream that the image replaces.
    pub base: u64,
    /// Number of processes that had been started.
    pub processes: u32,
}

/// Identity of a kept determinant log. As long as the edition is the same, the log only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Edition {
    /// The record's number.
    pub record: u64,
    /// Changes whenever a part of the log was dropped.
    pub history: u64,
}

impl Edition {
    /// The number for "no record": the service goes on without a record of the server (`--stateful=prefer`). A host
    /// that takes over does the same. Any other number without a record means that the record was lost.
    pub const WITHOUT: u64 = 0;
}

/// Identity and wishes of an attaching service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Drawn at random when the service was first started, and kept for as long as connections of
    /// the service may live: a service that attaches again with this number finds the old records.
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
    /// The host was booted, and has no state of earlier connections. If the logger has records of
    /// the service with this name on the host with this address, the records belong to this
    /// instance from now on.
    pub inherit: bool,
    /// The name of the service.
    #[serde(with = "name")]
    pub service: String,
    /// The versions of the log link that the host speaks. The logger chooses a version:
    /// [`super::Response::Attached`].
    #[serde(with = "framed")]
    pub link: Versions,
    /// The versions of the mirror frame that the host writes. The logger chooses a version.
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

/// A connection without a record gets a record from here on: all input before this place is
/// answered and no longer needed (the beginning of a request). If the logger knows the connection,
/// the logger drops the former record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The connection.
    pub flow: FlowId,
    /// Addresses and ports of the connection.
    #[serde(with = "flow_key")]
    pub key: FlowKey,
    /// The client's initial sequence number.
    pub client_isn: SeqNumber,
    /// The server's initial sequence number, in the client's sequence space.
    pub server_isn: SeqNumber,
    /// The first byte from the client that is to be recorded.
    pub instream: SeqNumber,
    /// The first byte from the server that belongs to this turn.
    pub outstream: SeqNumber,
    /// Options that client and server agreed on.
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

    /// Decodes the bytes of [`Resume::to_bytes`]; `None`: the handshake has an impossible value.
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

/// A connection that has a record: all facts that another host needs to take the connection over,
/// besides the record. The host asks the client for facts that were not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Identity of the connection, and begin of the record.
    #[serde(with = "framed")]
    pub beginning: Resume,
    /// How many bytes of the outstream the client has acknowledged at least, of the whole connection.
    pub acknowledged: u64,
    /// The newest TSval of the client that was seen; 0 without timestamps.
    pub tsval: u32,
    /// The client's newest echo of the server's TSval that was seen; 0 without timestamps.
    pub tsecr: u32,
}

impl Recorded {
    /// Most bytes of the encoding in a list, frame included.
    pub(super) const MAX_ENCODED: usize = FRAME_LEN + Resume::MAX_ENCODED + U64_LEN + 2 * U32_LEN;

    /// Number of recorded connections that fit into one message.
    pub const PER_MESSAGE: usize = MAX_DATA / Self::MAX_ENCODED;
}

/// Summary of the record of one connection, in the client's sequence space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordSummary {
    /// The connection.
    pub flow: FlowId,
    /// The client's initial sequence number.
    pub client_isn: SeqNumber,
    /// The server's initial sequence number, in the client's sequence space.
    pub server_isn: SeqNumber,
    /// The first instream byte that is still kept.
    pub start: SeqNumber,
    /// The lowest instream byte that is not in the record: the record has all bytes from `start` up
    /// to this byte (the paper's `stable_seq`).
    pub stable_seq: SeqNumber,
    /// The client's FIN, if the record has all input before the FIN.
    #[serde(with = "framed")]
    pub client_fin: Option<ClientFin>,
    /// Where the last unanswered turn begins in the instream.
    pub turn_instream: SeqNumber,
    /// Where the last unanswered turn begins in the outstream.
    pub turn_outstream: SeqNumber,
    /// Where responses began whose heads may not be recorded, in the outstream: the oldest such
    /// response, and the next response (the place is not after the beginning of that response).
    /// Both are equal if there is only one such response.
    pub answers: [SeqNumber; 2],
    /// The end of the last recorded head of the outstream.
    pub outstream_end: Option<SeqNumber>,
    /// Input from there on is not recorded, and a former host may have answered the input in an
    /// unknown way: the client had not sent this input when the response of the newest head began.
    pub doubt: SeqNumber,
    /// Reason why the connection is unprotected, if the connection is unprotected.
    pub unprotected: Option<UnprotectedReason>,
    /// Of the next version, for tests.
    #[cfg(feature = "next-version")]
    #[serde(default)]
    pub next: Option<SeqNumber>,
}

impl RecordSummary {
    /// The summary of a connection without any input.
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

    /// Most bytes of the encoding in a list, frame included: the flow, nine numbers, the FIN in a
    /// frame, an optional number and an optional reason.
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

    /// Number of summaries that fit into one message, for any values.
    pub const PER_MESSAGE: usize = MAX_DATA / Self::MAX_ENCODED;
}

/// Counters of the logger since the start of the logger, and current sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Statistics {
    /// Connections that are known now.
    pub flows: u64,
    /// Number of unprotected connections among these.
    pub unprotected_flows: u64,
    /// Instream bytes that were recorded.
    pub instream_bytes: u64,
    /// Outstream bytes (heads of turns) that were recorded.
    pub outstream_bytes: u64,
    /// Bytes of memory that the records hold now.
    pub held: u64,
    /// Mirror frames that were received.
    pub frames: u64,
    /// Number of frames that could not be parsed.
    pub malformed_frames: u64,
    /// Number of frames of unknown connections.
    pub unknown_flow_frames: u64,
}

/// Why a request cannot be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorCode {
    /// The logger does not know the connection, or the service that is to be given up.
    UnknownFlow,
    /// The connection is unprotected: there is no record to read.
    Unprotected,
    /// The record does not reach back to the byte that was asked for.
    NotKept,
    /// The request makes no sense here: a second `Hello` or `Attach`, or none at the beginning.
    BadRequest,
    /// Something failed in the logger.
    Internal,
    /// The records belong to an instance that the logger heard of a moment ago.
    StillServed,
    /// The records are still being written: ask again a moment later.
    StillWritten,
    /// Another service has an address of the claim.
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
