//! The flow that the programs translate after a verdict.

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

use http1::chunks::Chunks;
use wire::{Flags, FlowKey, SeqNumber};

use super::{
    Action, ClientView, Connected, Position, Question, Rules, segments, segments::Received,
};
use crate::flow::{
    ChunkedBody, Client, Flow, Mode, POOL_WINDOW_SCALE, Phase, Queued, ResponseEnd, Server, States,
    Storage, Turn,
};
use crate::isn::{self, Slot};
use crate::record::StoredTurn;
use crate::timestamp::State;
use crate::timestamp::index::{Departure, EchoTable};

/// A connection whose client waits for the whole answer: the request goes to the server as it is.
pub(super) fn asked(
    client: &ClientView,
    rules: &Rules,
    key: &FlowKey,
    position: &Position,
    question: &Question,
    connected: &Connected,
    now: Duration,
) -> Flow {
    let mut flow = base(client, rules, key, position, question, connected);
    flow.server.delta = client.ack.0.wrapping_sub(connected.isn.0).wrapping_sub(1);
    flow.turn.phase = Phase::Asked;
    flow.turn.response_start = client.ack;
    flow.turn.asked_at = now.saturating_sub(position.age(rules.unix_now));
    flow.turn.is_guarded = true;
    flow.turn.number = match position {
        Position::Idle { is_first: true, .. } => 0,
        _ => 1,
    };
    flow.states.newest = flow.states.agreed;
    flow
}

/// A connection of which no segment passes.
pub(super) fn placeholder(
    client: &ClientView,
    rules: &Rules,
    key: &FlowKey,
    position: &Position,
) -> Flow {
    let question = Question::none(client.nxt);
    let connected = Connected::none();
    let mut flow = base(client, rules, key, position, &question, &connected);
    flow.mode = Mode::Reviving;
    flow
}

/// The common part of every revived connection. The newest state is still open.
fn base(
    client: &ClientView,
    rules: &Rules,
    key: &FlowKey,
    position: &Position,
    question: &Question,
    connected: &Connected,
) -> Flow {
    let options = position.options();
    let slot = match position {
        Position::Idle { slot, .. }
        | Position::Body {
            state: State::First { slot, .. } | State::Stored { slot, .. },
            ..
        } => *slot,
        // The echo of a later response does not tell the slot. The tags of the states below depend on the slot, and the
        // slot of the next connection of the same port.
        Position::Body { .. } => Slot::at(rules.unix_now),
    };
    let agreed_tag = State::agreed_tag(&rules.key, key, slot, options, question.start);
    let bare_tag = State::unprotected_tag(&rules.key, key, slot, options);
    let agreed_state = |tag| State::Agreed { slot, options, tag }.bits();
    let agreed = client.options;
    let window = u32::from(connected.window);
    Flow {
        client: Client {
            isn: question.start - 1,
            nxt: question.end,
            ack: client.ack,
            tsval: client.tsval,
            window: client.window,
            window_scale: agreed.window_scale.unwrap_or(0),
            has_timestamps: agreed.has_timestamps,
            has_sack: agreed.has_sack,
            has_queue: false,
            queued: Queued::default(),
            segment_size: agreed.segment_size,
            options,
        },
        server: Server {
            isn: isn::initial(&rules.key, key, slot),
            nxt: client.ack,
            delta: 0,
            floor: client.ack,
            told: question.acknowledged(),
            received: question.end,
            window_edge: question.end + window,
            owes_ack: false,
            window_scale: agreed.window_scale.map(|_| connected.window_scale),
        },
        turn: Turn {
            phase: Phase::Idle,
            number: 1,
            request_start: question.start,
            request_end: question.end,
            response_start: client.ack,
            end: ResponseEnd::AtClose,
            acked: 0,
            sent: 0,
            asked_at: Duration::ZERO,
            method: question.method,
            is_guarded: false,
            inputs_end: None,
            has_range: question.has_own_range,
            repeats: 0,
            released: question.released,
        },
        echoes: EchoTable::revived(client.echo.index, connected.tsval),
        states: States {
            newest: agreed_state(agreed_tag),
            body: agreed_state(agreed_tag),
            agreed: agreed_state(agreed_tag),
            bare: agreed_state(bare_tag),
            stored: agreed_state(agreed_tag),
        },
        slot,
        mode: Mode::Served,
        unprotected: None,
        storage: Storage::default(),
        incarnation: rules.incarnation,
        interface: client.interface,
    }
}

/// Meaning of the answer's head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) head_len: usize,
    /// Bytes of the body that the client has, or never asked for.
    pub(super) discard: u64,
    /// The body, from the first byte on that the client asked for.
    pub(super) body: AnswerBody,
    /// The client has everything.
    pub(super) is_complete: bool,
}

/// Where the body ends that the client asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum AnswerBody {
    /// After this many bytes.
    Part(u64),
    /// Behind the bytes that have come.
    Chunks(Chunks),
}

/// A verdict that is carried out.
pub(super) struct Splice<'a> {
    pub client: &'a ClientView,
    pub rules: &'a Rules,
    pub key: &'a FlowKey,
    pub position: &'a Position,
    pub stored: Option<&'a StoredTurn>,
    pub question: &'a Question,
    pub connected: &'a Connected,
    pub now: Duration,
}

impl Splice<'_> {
    /// The flow, the acknowledgement of bytes that the client has, and the bytes that came with the head.
    pub(super) fn actions(&self, answer: &Answer, received: &Received) -> Vec<Action> {
        let Position::Body {
            state,
            offset,
            start,
            ..
        } = *self.position
        else {
            return Vec::new();
        };
        let Self {
            client,
            rules,
            key,
            position,
            stored,
            question,
            connected,
            now,
        } = *self;
        let mut flow = base(client, rules, key, position, question, connected);
        // Head and discarded bytes lie before the client's position.
        let head_len = u64::try_from(answer.head_len).unwrap_or(u64::MAX);
        let before = u32::try_from(head_len.saturating_add(answer.discard) & u64::from(u32::MAX));
        let first_needed = connected.isn + 1 + before.unwrap_or(0);
        flow.server.delta = client.ack.0.wrapping_sub(first_needed.0);
        let answer_of_record = stored.and_then(|turn| turn.answer.as_ref());
        let header_len = match state {
            State::First { header_len, .. } => u64::from(header_len),
            _ => answer_of_record.map_or(0, |answer| answer.header_len.into()),
        };
        flow.turn.number = match stored {
            Some(turn) => turn.number,
            None => self.position.request_number().unwrap_or(0),
        };
        flow.turn.response_start = start - u32::try_from(header_len).unwrap_or(0);
        flow.turn.end = match answer.body {
            AnswerBody::Part(len) => ResponseEnd::After(header_len + len),
            AnswerBody::Chunks(chunks) => ResponseEnd::AtLastChunk(ChunkedBody {
                chunks,
                next: received_end(received, connected) + flow.server.delta,
            }),
        };
        flow.turn.acked = header_len + offset;
        flow.turn.sent = flow.turn.acked;
        // The whole download counts, not only its part here: see `WITHHOLD_MAX`.
        flow.turn.asked_at = now.saturating_sub(position.age(rules.unix_now));
        if answer.is_complete {
            flow.turn.number += 1;
            flow.server.told = question.end;
            flow.states.agreed = flow.states.agreed.moved(question.start, question.end);
            flow.states.newest = flow.states.agreed;
            return self.complete(flow, received, first_needed);
        }
        flow.turn.phase = Phase::Body;
        flow.turn.is_guarded = true;
        if stored.is_some() {
            // The client knows that the record is in the store.
            flow.states.stored = state.bits();
            flow.storage.stored = flow.turn.number.wrapping_add(1);
            if question.is_acknowledged {
                flow.storage.released = flow.storage.stored;
            }
        }
        flow.states.body = state.bits();
        flow.states.newest = state.bits();
        let has_all_before = usize::try_from(head_len.saturating_add(answer.discard))
            .ok()
            .filter(|before| *before <= received.bytes().len());
        let body = has_all_before.map_or(&[][..], |before| &received.bytes()[before..]);
        self.pass_on(flow, body, received, first_needed)
    }

    /// Bytes of the body that came with the head go to the client.
    fn pass_on(
        &self,
        mut flow: Flow,
        body: &[u8],
        received: &Received,
        first_needed: SeqNumber,
    ) -> Vec<Action> {
        let key = *self.key;
        let first = flow.server.nxt;
        // The server sends the bytes again for which the client has no room.
        let window = usize::from(self.client.window) << flow.client.window_scale;
        // And the bytes of which the timestamps here would tell another position.
        let room = usize::try_from(self.position.tellable()).unwrap_or(usize::MAX);
        let window = window.min(room);
        let has_all = body.len() <= window;
        let body = &body[..body.len().min(window)];
        let sent = u32::try_from(body.len()).unwrap_or(0);
        flow.turn.sent += u64::from(sent);
        flow.server.nxt = first + sent;
        let is_closed = received.has_fin()
            && has_all
            && (!body.is_empty() || self.is_at_first_needed(received, first_needed));
        if is_closed {
            flow.server.nxt += 1;
        }
        if !body.is_empty() {
            flow.begin_index(self.connected.tsval);
        }
        let mut packets = Vec::new();
        let size = flow.client.payload_len_max();
        let mut seq = first;
        let mut pieces = body.chunks(size).peekable();
        while let Some(piece) = pieces.next() {
            let ends = is_closed && pieces.peek().is_none();
            let end = if ends { Flags::FIN } else { Flags::NONE };
            let flags = Flags::ACK.union(Flags::PSH).union(end);
            packets.extend(segments::to_client(key, &flow, seq, flags, piece));
            seq += u32::try_from(piece.len()).unwrap_or(0);
        }
        // Bytes before the client's position are acknowledged in the client's name, as far as these have come.
        let known = first_needed.min_seq(received_end(received, self.connected));
        let window = flow
            .client
            .window_before(first_needed.0.wrapping_sub(known.0));
        let (client, end) = (self.client, self.question.end);
        let ack = segments::acknowledgement(key, client, end, (known, window), self.tsval());
        let mut actions = Vec::from([Action::Splice(Box::new(flow))]);
        actions.extend(ack.map(Action::ToServer));
        actions.extend(packets.into_iter().map(Action::ToClient));
        actions
    }

    /// The server's newest timestamp, if the two sides use timestamps.
    fn tsval(&self) -> Option<u32> {
        let has_timestamps = self.client.options.has_timestamps;
        has_timestamps.then_some(self.connected.tsval)
    }

    /// Everything that came lies before the client's position.
    fn is_at_first_needed(&self, received: &Received, first_needed: SeqNumber) -> bool {
        received_end(received, self.connected) == first_needed
    }

    /// The client has the whole response: the client hears that the request has arrived.
    fn complete(
        &self,
        mut flow: Flow,
        received: &Received,
        first_needed: SeqNumber,
    ) -> Vec<Action> {
        let (key, client) = (*self.key, self.client);
        flow.begin_index(self.connected.tsval);
        let told = segments::to_client(key, &flow, flow.server.nxt, Flags::ACK, &[]);
        let known = first_needed.min_seq(received_end(received, self.connected));
        let window = flow
            .client
            .window_before(first_needed.0.wrapping_sub(known.0));
        let end = self.question.end;
        let ack = segments::acknowledgement(key, client, end, (known, window), self.tsval());
        let mut actions = Vec::from([Action::Splice(Box::new(flow))]);
        actions.extend(ack.map(Action::ToServer));
        actions.extend(told.map(Action::ToClient));
        actions
    }
}

impl Flow {
    /// The next packets for the client are no packets of the dead member.
    fn begin_index(&mut self, tsval: u32) {
        self.echoes.assign(Departure {
            tsval,
            is_retransmission: false,
            has_new_state: true,
            is_alone: false,
        });
    }
}

fn received_end(received: &Received, connected: &Connected) -> SeqNumber {
    connected.isn + 1 + u32::try_from(received.bytes().len()).unwrap_or(0)
}

/// The scale that a client applies to the windows of every member.
const _: () = assert!(POOL_WINDOW_SCALE == 7);
