//! Segments of a revival: for the local server in the client's name, for the client in the server's name, and the bytes
//! of the server that came before the verdict.

use alloc::vec::Vec;

use wire::{
    ChecksumMode, Flags, FlowKey, Options, OptionsBuffer, SackBlock, Segment, SegmentSpec,
    SeqNumber, SynOptions, TcpOption, Timestamps,
};

use super::{ClientView, Connected, Question};
use crate::flow::{Flow, POOL_WINDOW_SCALE};
use crate::record::StoredOptions;
use crate::timestamp::Timestamp;

/// Bytes of the server that are kept before a verdict.
const RECEIVED_MAX: usize = 64 << 10;
/// Window that the server sees before the verdict, bytes: enough for the head of the answer, also if the client has no
/// room now, and small enough for the answer to stay small.
const WINDOW_LEN: u16 = 65_535;

/// Bytes of the server in order, from the first byte of the answer on.
#[derive(Debug, Clone)]
pub(super) struct Received {
    start: SeqNumber,
    bytes: Vec<u8>,
    has_fin: bool,
}

impl Received {
    pub(super) const fn new(start: SeqNumber) -> Self {
        Self {
            start,
            bytes: Vec::new(),
            has_fin: false,
        }
    }

    /// Adds the part of a segment that continues the bytes. A segment out of order comes a second time.
    pub(super) fn add(&mut self, segment: &Segment<'_>) {
        let Some(known) = self.end().distance_from(segment.seq()) else {
            return;
        };
        let Some(new) = usize::try_from(known)
            .ok()
            .and_then(|known| segment.payload().get(known..))
        else {
            return;
        };
        // Of a longer segment the copy has the beginning.
        let is_whole = segment.payload().len() == segment.payload_len();
        let room = RECEIVED_MAX.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&new[..new.len().min(room)]);
        self.has_fin |= is_whole && new.len() <= room && segment.flags().contains(Flags::FIN);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) const fn is_full(&self) -> bool {
        self.bytes.len() >= RECEIVED_MAX
    }

    /// The server has closed behind the bytes.
    pub(super) const fn has_fin(&self) -> bool {
        self.has_fin
    }

    fn end(&self) -> SeqNumber {
        self.start + u32::try_from(self.bytes.len()).unwrap_or(0)
    }
}

fn timestamps(value: u32, echo: u32) -> OptionsBuffer {
    let mut options = OptionsBuffer::new();
    for option in [
        TcpOption::NoOperation,
        TcpOption::NoOperation,
        TcpOption::Timestamps { value, echo },
    ] {
        // Twelve of forty bytes.
        let _ = options.push(&option);
    }
    options
}

pub(crate) fn timestamps_if(has_timestamps: bool, value: u32, echo: u32) -> OptionsBuffer {
    if has_timestamps {
        timestamps(value, echo)
    } else {
        OptionsBuffer::new()
    }
}

pub(crate) fn emit(spec: &SegmentSpec<'_>, mode: ChecksumMode) -> Option<Vec<u8>> {
    let mut packet = Vec::new();
    spec.emit(&mut packet, mode).ok()?;
    Some(packet)
}

/// The SYN in the client's name.
pub(super) fn syn(
    key: FlowKey,
    client: &ClientView,
    question: &Question,
    options: StoredOptions,
) -> Option<Vec<u8>> {
    let syn_options = SynOptions {
        mss: Some(options.segment_size),
        window_scale: options.window_scale,
        sack_permitted: options.has_sack,
        timestamps: options.has_timestamps.then_some(Timestamps {
            value: client.tsval,
            echo: 0,
        }),
    };
    let emitted = syn_options.emit();
    let spec = SegmentSpec {
        source: key.client(),
        destination: key.server(),
        seq: question.syn(),
        ack: SeqNumber(0),
        flags: Flags::SYN,
        window: WINDOW_LEN,
        options: emitted.as_slice(),
        payload: &[],
    };
    emit(&spec, ChecksumMode::Partial)
}

/// The third ACK of the handshake, with the request.
pub(super) fn request(
    key: FlowKey,
    client: &ClientView,
    question: &Question,
    connected: &Connected,
    options: StoredOptions,
) -> Option<Vec<u8>> {
    let scale = options.window_scale.unwrap_or(0);
    let options = timestamps_if(options.has_timestamps, client.tsval, connected.tsval);
    let spec = SegmentSpec {
        source: key.client(),
        destination: key.server(),
        seq: question.first(),
        ack: connected.isn + 1,
        flags: Flags::ACK.union(Flags::PSH),
        window: WINDOW_LEN >> scale,
        options: options.as_slice(),
        payload: &question.bytes,
    };
    emit(&spec, ChecksumMode::Partial)
}

/// The client's acknowledgement of the bytes of the server's socket before `ack`, with this window.
pub(super) fn acknowledgement(
    key: FlowKey,
    client: &ClientView,
    end: SeqNumber,
    (ack, window): (SeqNumber, u16),
    tsval: Option<u32>,
) -> Option<Vec<u8>> {
    let options = timestamps_if(tsval.is_some(), client.tsval, tsval.unwrap_or(0));
    let spec = SegmentSpec {
        source: key.client(),
        destination: key.server(),
        seq: end,
        ack,
        flags: Flags::ACK,
        window,
        options: options.as_slice(),
        payload: &[],
    };
    emit(&spec, ChecksumMode::Partial)
}

/// A segment for the client, as the programs would send it.
pub(super) fn to_client(
    key: FlowKey,
    flow: &Flow,
    seq: SeqNumber,
    flags: Flags,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let value = Timestamp::value(flow.echoes.parts().newest, flow.states.newest);
    let room = flow.server.window_edge.distance_from(flow.server.told);
    let scale = flow.server.window_scale.map_or(0, |_| POOL_WINDOW_SCALE);
    let scaled = room.unwrap_or(0) >> scale;
    let options = timestamps_if(flow.client.has_timestamps, value, flow.client.tsval);
    let spec = SegmentSpec {
        source: key.server(),
        destination: key.client(),
        seq,
        ack: flow.server.told,
        flags,
        window: u16::try_from(scaled).unwrap_or(u16::MAX),
        options: options.as_slice(),
        payload,
    };
    emit(&spec, ChecksumMode::Full)
}

/// Whether the client has bytes behind a hole (RFC 2018).
pub(crate) fn has_bytes_behind_hole(segment: &Segment<'_>) -> bool {
    let is_behind = |block: &SackBlock| block.right.after(segment.ack());
    Options::new(segment.option_bytes()).any(
        |option| matches!(option, Ok(TcpOption::Sack(blocks)) if blocks.as_slice().iter().any(is_behind)),
    )
}

/// Acknowledges the client's FIN, and closes. The client's own echo is not older than the client's newest timestamp.
pub(crate) fn close(key: FlowKey, fin: &Segment<'_>) -> Option<Vec<u8>> {
    let stamps = fin.timestamps();
    let Timestamps { value, echo } = stamps.unwrap_or(Timestamps { value: 0, echo: 0 });
    let options = timestamps_if(stamps.is_some(), echo, value);
    let spec = SegmentSpec {
        source: key.server(),
        destination: key.client(),
        seq: fin.ack(),
        ack: fin.end_seq(),
        flags: Flags::FIN.union(Flags::ACK),
        window: WINDOW_LEN >> POOL_WINDOW_SCALE,
        options: options.as_slice(),
        payload: &[],
    };
    emit(&spec, ChecksumMode::Full)
}

/// Ends the connection of the local server: a RST that its TCP believes if `seq` is the number that it expects.
pub(super) fn reset_of_client(key: FlowKey, seq: SeqNumber) -> Option<Vec<u8>> {
    let spec = SegmentSpec {
        source: key.client(),
        destination: key.server(),
        seq,
        ack: SeqNumber(0),
        flags: Flags::RST,
        window: 0,
        options: &[],
        payload: &[],
    };
    emit(&spec, ChecksumMode::Partial)
}

/// Resets the client's connection: at exactly the number that the client expects (RFC 5961, 3.2).
pub(crate) fn reset(key: FlowKey, seq: SeqNumber, ack: SeqNumber) -> Option<Vec<u8>> {
    let spec = SegmentSpec {
        source: key.server(),
        destination: key.client(),
        seq,
        ack,
        flags: Flags::RST.union(Flags::ACK),
        window: 0,
        options: &[],
        payload: &[],
    };
    emit(&spec, ChecksumMode::Full)
}
