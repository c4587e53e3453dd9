//! Connections of a member, between the form of the programs and the form of the crate `objects`.

use std::time::Duration;

use http1::{Method, chunks::Chunks};
use objects::{
    flow::{
        ChunkedBody, Client, Flow, Mode, Phase, Queued, ResponseEnd, Server, States, Storage, Turn,
        Unprotected,
    },
    isn::Slot,
    timestamp::{
        ClientOptions, StateBits,
        index::{EchoParts, EchoTable, Index},
    },
};
use wire::SeqNumber;

use super::abi;

/// Length of a response that ends with the connection.
const NO_LENGTH: u64 = u64::MAX;
/// In place of the scale of a window that is not scaled.
const WINDOW_SCALE_ABSENT: u8 = u8::MAX;

impl From<&Flow> for abi::object_flow {
    fn from(flow: &Flow) -> Self {
        let Flow { client, server, .. } = flow;
        Self {
            turn: (&flow.turn).into(),
            echoes: (&flow.echoes).into(),
            incarnation: flow.incarnation,
            ifindex: flow.interface,
            client_isn: client.isn.0,
            client_nxt: client.nxt.0,
            client_ack: client.ack.0,
            client_tsval: client.tsval,
            isn: server.isn.0,
            nxt: server.nxt.0,
            delta: server.delta,
            floor: server.floor.0,
            told: server.told.0,
            received: server.received.0,
            wnd_edge: server.window_edge.0,
            state: flow.states.newest.bits(),
            body_state: flow.states.body.bits(),
            agreed: flow.states.agreed.bits(),
            bare: flow.states.bare.bits(),
            stored: flow.states.stored.bits(),
            exposed_turn: flow.storage.exposed,
            stored_turn: flow.storage.stored,
            released_turn: flow.storage.released,
            client_window: client.window,
            client_window_scale: client.window_scale,
            server_window_scale: server.window_scale.unwrap_or(WINDOW_SCALE_ABSENT),
            slot: flow.slot.number(),
            options: client.options.number(),
            mode: mode_code(flow.mode),
            unprotected: flow.unprotected.map_or(0, Unprotected::code),
            has_timestamps: client.has_timestamps.into(),
            owes_ack: server.owes_ack.into(),
            has_sack: client.has_sack.into(),
            has_queue: client.has_queue.into(),
            queue_round: client.queued.round,
            queued: client.queued.copies,
            segment_size: client.segment_size,
        }
    }
}

/// `None` if the programs have written a code that this version does not know.
pub(super) fn flow_of(raw: &abi::object_flow) -> Option<Flow> {
    Some(Flow {
        client: Client {
            isn: SeqNumber(raw.client_isn),
            nxt: SeqNumber(raw.client_nxt),
            ack: SeqNumber(raw.client_ack),
            tsval: raw.client_tsval,
            window: raw.client_window,
            window_scale: raw.client_window_scale,
            has_timestamps: raw.has_timestamps != 0,
            has_sack: raw.has_sack != 0,
            has_queue: raw.has_queue != 0,
            queued: Queued {
                round: raw.queue_round,
                copies: raw.queued,
            },
            segment_size: raw.segment_size,
            options: ClientOptions::of_number(raw.options),
        },
        server: Server {
            isn: SeqNumber(raw.isn),
            nxt: SeqNumber(raw.nxt),
            delta: raw.delta,
            floor: SeqNumber(raw.floor),
            told: SeqNumber(raw.told),
            received: SeqNumber(raw.received),
            window_edge: SeqNumber(raw.wnd_edge),
            owes_ack: raw.owes_ack != 0,
            window_scale: (raw.server_window_scale != WINDOW_SCALE_ABSENT)
                .then_some(raw.server_window_scale),
        },
        turn: decoded_exchange(&raw.turn)?,
        echoes: echoes_of(&raw.echoes),
        states: States {
            newest: StateBits::of_wire(raw.state),
            body: StateBits::of_wire(raw.body_state),
            agreed: StateBits::of_wire(raw.agreed),
            bare: StateBits::of_wire(raw.bare),
            stored: StateBits::of_wire(raw.stored),
        },
        slot: Slot::new(raw.slot),
        mode: match abi::object_mode(raw.mode.into()) {
            abi::object_mode::OBJECT_SERVED => Mode::Served,
            abi::object_mode::OBJECT_REVIVING => Mode::Reviving,
            abi::object_mode::OBJECT_FOREIGN => Mode::Foreign,
            _ => return None,
        },
        unprotected: match raw.unprotected {
            0 => None,
            code => Some(Unprotected::from_code(code)?),
        },
        storage: Storage {
            exposed: raw.exposed_turn,
            stored: raw.stored_turn,
            released: raw.released_turn,
        },
        incarnation: raw.incarnation,
        interface: raw.ifindex,
    })
}

const fn mode_code(mode: Mode) -> u8 {
    match mode {
        Mode::Served => 0,
        Mode::Reviving => 1,
        Mode::Foreign => 2,
    }
}

impl From<&Turn> for abi::object_turn {
    fn from(turn: &Turn) -> Self {
        let (chunk_place, chunk_left, chunk_next) = match turn.end {
            ResponseEnd::AtLastChunk(body) => {
                let (place, left) = body.chunks.parts();
                (place, left, body.next.0)
            }
            ResponseEnd::After(_) | ResponseEnd::AtClose => (0, 0, 0),
        };
        Self {
            response_len: turn.response_len().unwrap_or(NO_LENGTH),
            chunk_place,
            chunk_left,
            chunk_next,
            acked: turn.acked,
            sent: turn.sent,
            asked_ns: u64::try_from(turn.asked_at.as_nanos()).unwrap_or(u64::MAX),
            request_start: turn.request_start.0,
            request_end: turn.request_end.0,
            response_start: turn.response_start.0,
            number: turn.number,
            ended: turn.number,
            turn_pad: 0,
            phase: match turn.phase {
                Phase::Idle => 0,
                Phase::Asked => 1,
                Phase::Body => 2,
            },
            method: match turn.method {
                Method::Get => 0,
                Method::Head => 1,
                Method::Other => 2,
            },
            is_guarded: turn.is_guarded.into(),
            has_inputs: turn.inputs_end.is_some().into(),
            head_end: turn.inputs_end.map_or(0, |end| end.0),
            has_range: turn.has_range.into(),
            repeats: turn.repeats,
            released: turn.released,
        }
    }
}

fn decoded_exchange(raw: &abi::object_turn) -> Option<Turn> {
    Some(Turn {
        phase: match raw.phase {
            0 => Phase::Idle,
            1 => Phase::Asked,
            2 => Phase::Body,
            _ => return None,
        },
        number: raw.number,
        request_start: SeqNumber(raw.request_start),
        request_end: SeqNumber(raw.request_end),
        response_start: SeqNumber(raw.response_start),
        end: match (raw.response_len, raw.chunk_place) {
            (NO_LENGTH, 0) => ResponseEnd::AtClose,
            (NO_LENGTH, place) => ResponseEnd::AtLastChunk(ChunkedBody {
                chunks: Chunks::of_parts(place, raw.chunk_left)?,
                next: SeqNumber(raw.chunk_next),
            }),
            (len, _) => ResponseEnd::After(len),
        },
        acked: raw.acked,
        sent: raw.sent,
        asked_at: Duration::from_nanos(raw.asked_ns),
        method: match raw.method {
            0 => Method::Get,
            1 => Method::Head,
            _ => Method::Other,
        },
        is_guarded: raw.is_guarded != 0,
        inputs_end: (raw.has_inputs != 0).then_some(SeqNumber(raw.head_end)),
        has_range: raw.has_range != 0,
        repeats: raw.repeats,
        released: raw.released,
    })
}

impl From<&EchoTable> for abi::echo_table {
    fn from(table: &EchoTable) -> Self {
        let parts = table.parts();
        Self {
            tsvals: parts.tsvals,
            newest_tsval: parts.newest_tsval,
            scaled_round_trip: parts.scaled_round_trip,
            has_echo: parts.has_echo.into(),
            newest: parts.newest.number(),
            echoed: parts.echoed.number(),
            ..Default::default()
        }
    }
}

fn echoes_of(raw: &abi::echo_table) -> EchoTable {
    EchoTable::of_parts(EchoParts {
        tsvals: raw.tsvals,
        newest: Index::new(raw.newest),
        echoed: Index::new(raw.echoed),
        newest_tsval: raw.newest_tsval,
        scaled_round_trip: raw.scaled_round_trip,
        has_echo: raw.has_echo != 0,
    })
}
