//! Turns of a connection (`turn.h`): a request, and its response (TRODS 3.2). While the client lacks a part of the
//! response, the request stays unacknowledged: the client keeps the request for the next member.

use core::time::Duration;

use http1::chunks::Chunks;
use http1::{BodyLength, Method, parse_request, parse_response};
use wire::{FlowKey, SeqNumber};

use super::packet::{Segment, length32};
use super::{Event, LARGEST_WINDOW, Shared, StoreKind, TURN_COPY_LEN_MAX, advance};
use crate::flow::{
    ChunkedBody, Client, Flow, Phase, RELEASE_STEP, RELEASED_BEYOND, RELEASED_MAX, ResponseEnd,
    Server, Turn, Unprotected,
};
use crate::head::{RequestSummary, ResponseSummary};
use crate::isn::Slot;
use crate::key::PoolKey;
use crate::timestamp::{
    FAR_POSITIONS, LaterPosition, MAX_HEADER, NEAR_POSITIONS, State, StateBits, version_word,
};

/// IP and TCP headers, bytes.
const HEADERS_LEN_MAX: usize = 120;
/// Longest request, or head of a response, of which a record can be made, bytes.
const RECORDED_LEN_MAX: usize = TURN_COPY_LEN_MAX - HEADERS_LEN_MAX;
/// Repetitions of a request after which a byte is acknowledged.
const RELEASE_AFTER: u8 = 4;
/// Most bytes of a guarded response: a first one, a later one, a later one of a pool whose objects never change.
const FIRST_LIMIT: u64 = 3 << 30;
const NEAR_LIMIT: u64 = 24 << 10;
const FAR_LIMIT: u64 = (FAR_POSITIONS as u64) - (64 << 10);

/// A request that can be guarded, or at least understood.
fn summary(payload: &[u8]) -> Result<RequestSummary, Unprotected> {
    let head = parse_request(payload).map_err(|_| Unprotected::NotHttp)?;
    let summary = RequestSummary::of(&head.ok_or(Unprotected::SplitRequest)?);
    if summary.has_upgrade || summary.has_expect {
        return Err(Unprotected::Upgraded);
    }
    if summary.has_ranges {
        return Err(Unprotected::Multipart);
    }
    match summary.body {
        BodyLength::Bytes(len) if len <= LARGEST_WINDOW.into() => Ok(summary),
        _ => Err(Unprotected::Method),
    }
}

impl Turn {
    fn begun_by(
        summary: &RequestSummary,
        number: u32,
        start: SeqNumber,
        response_start: SeqNumber,
        asked_at: Duration,
    ) -> Self {
        let body = match summary.body {
            BodyLength::Bytes(len) => len,
            BodyLength::Chunked | BodyLength::UntilClose => 0,
        };
        let len = u64::try_from(summary.len).unwrap_or(0) + body;
        Self {
            phase: Phase::Asked,
            number,
            request_start: start,
            request_end: start + u32::try_from(len).unwrap_or(0),
            response_start,
            end: ResponseEnd::AtClose,
            acked: 0,
            sent: 0,
            asked_at,
            method: summary.method,
            is_guarded: summary.method == Method::Get && body == 0,
            inputs_end: None,
            has_range: summary.has_range,
            repeats: 0,
            released: 0,
        }
    }

    /// An acknowledgement of the client, in a segment whose payload ends at `end`. Whether the turn is over with that.
    pub(super) fn on_client_ack(
        &mut self,
        client: &mut Client,
        server: &Server,
        ack: SeqNumber,
        end: SeqNumber,
    ) -> bool {
        if ack.after(client.ack) {
            if self.phase == Phase::Body {
                self.acked += u64::from(ack.0.wrapping_sub(client.ack.0));
            }
            let sent_end = sent_end(client, server);
            if ack.after(sent_end) {
                self.sent += u64::from(ack.0.wrapping_sub(sent_end.0));
            }
            client.ack = ack;
        }
        // Also with the last bytes of a request that the server has answered before.
        let is_acked = self.response_len().is_some_and(|len| self.acked >= len);
        let is_asked = !client.nxt.before(self.request_end) || !end.before(self.request_end);
        if self.phase != Phase::Body || !is_acked || !is_asked {
            return false;
        }
        self.phase = Phase::Idle;
        self.is_guarded = false;
        self.number += 1;
        true
    }

    /// The server ends the response by closing.
    pub(super) const fn on_server_fin(&mut self) {
        if matches!(self.phase, Phase::Body) && self.response_len().is_none() {
            self.end = ResponseEnd::After(self.sent);
        }
    }
}

/// A record has the request from one copy. Without a store the client repeats a longer request in several segments, and
/// no member joins the segments.
fn longest_request(shared: &Shared, client: &Client) -> usize {
    if shared.life.store == StoreKind::None {
        client.repetition_len_max()
    } else {
        RECORDED_LEN_MAX
    }
}

/// Why the new bytes of the client are not the next request of the connection, whole and on its own.
fn misfit(shared: &Shared, flow: &Flow, segment: &Segment, payload: &[u8]) -> Option<Unprotected> {
    if flow.turn.phase != Phase::Idle {
        // The rest of a body belongs to the turn.
        let is_behind = segment.payload_end().after(flow.turn.request_end);
        return is_behind.then_some(Unprotected::Pipelined);
    }
    if segment.seq != flow.client.nxt {
        return Some(Unprotected::SplitRequest);
    }
    if segment.ack != sent_end(&flow.client, &flow.server) {
        return Some(Unprotected::Pipelined);
    }
    match summary(payload) {
        // Without a store no member can repeat a request of several segments.
        Err(Unprotected::SplitRequest) if shared.life.store != StoreKind::None => {
            Some(Unprotected::SplitRequest)
        }
        Ok(summary) if payload.len() > summary.len + body_len(&summary) => {
            Some(Unprotected::Pipelined)
        }
        Ok(_) | Err(_) => None,
    }
}

fn has_inputs(payload: &[u8]) -> bool {
    summary(payload).is_ok_and(|summary| summary.has_inputs)
}

fn body_len(summary: &RequestSummary) -> usize {
    match summary.body {
        BodyLength::Bytes(len) => usize::try_from(len).unwrap_or(usize::MAX / 2),
        BodyLength::Chunked | BodyLength::UntilClose => 0,
    }
}

/// New bytes of the client. True: the bytes wait for their turn ([`crate::queue`]). `is_queued`: the bytes have waited
/// already.
pub(super) fn on_client_payload(
    shared: &mut Shared,
    key: FlowKey,
    flow: &mut Flow,
    (segment, payload): (&Segment, &[u8]),
    is_queued: bool,
    now: Duration,
) -> bool {
    if flow.unprotected.is_some() {
        return false;
    }
    // User space blanks the field.
    let is_idle = flow.turn.phase == Phase::Idle;
    if is_idle && !is_queued && shared.settings.takes_inputs && has_inputs(payload) {
        return true;
    }
    if let Some(reason) = misfit(shared, flow, segment, payload) {
        if is_queued {
            shared.lose_protection(key, flow, reason);
        }
        return !is_queued;
    }
    if flow.turn.phase == Phase::Idle {
        begin_request(shared, key, flow, (segment, payload), now);
    }
    false
}

fn begin_request(
    shared: &mut Shared,
    key: FlowKey,
    flow: &mut Flow,
    (segment, payload): (&Segment, &[u8]),
    now: Duration,
) {
    let begun = summary(payload).and_then(|summary| {
        let number = flow.turn.number;
        let asked_at = if number == 0 { flow.turn.asked_at } else { now };
        let mut turn = Turn::begun_by(&summary, number, segment.seq, segment.ack, asked_at);
        turn.is_guarded &= flow.client.has_timestamps || shared.life.store == StoreKind::Indexed;
        if turn.is_guarded && summary.has_suffix && shared.life.store == StoreKind::None {
            // Where the last bytes begin is in the record alone.
            Err(Unprotected::OwnRange)
        } else if turn.is_guarded && payload.len() > longest_request(shared, &flow.client) {
            Err(Unprotected::SplitRequest)
        } else {
            Ok(turn)
        }
    });
    match begun {
        Ok(turn) => {
            flow.turn = turn;
        }
        Err(reason) => shared.lose_protection(key, flow, reason),
    }
}

/// Whether a guarded request without a record is unacknowledged for too long.
pub(super) fn is_overdue(shared: &Shared, flow: &Flow, now: Duration) -> bool {
    !flow.is_stored() && now.saturating_sub(flow.turn.asked_at) > shared.settings.withhold
}

/// The client has sent a guarded request again. Windows gives up after five times: after the fourth some bytes of the
/// beginning that every request has are acknowledged.
pub(super) fn on_repeated_request(
    shared: &mut Shared,
    key: FlowKey,
    flow: &mut Flow,
    now: Duration,
) {
    if is_overdue(shared, flow, now) {
        shared.lose_protection(key, flow, Unprotected::WithheldTooLong);
        return;
    }
    let turn = &mut flow.turn;
    let seq = turn.request_start + u32::from(turn.released);
    shared.events.push_back(Event::Repeated { key, seq });
    let released = match turn.released {
        0 => shared.flaws.released_with_response(turn.number),
        released => released + RELEASE_STEP,
    };
    if released > RELEASED_MAX {
        return;
    }
    turn.repeats += 1;
    if turn.repeats >= RELEASE_AFTER {
        turn.repeats = 0;
        turn.released = released;
    }
}

/// New bytes of the server, up to `end` as the client sees the numbers. Whether the bytes leave is not certain yet.
pub(super) fn on_server_payload(
    shared: &mut Shared,
    key: FlowKey,
    flow: &mut Flow,
    segment: &Segment,
    payload: &[u8],
    end: SeqNumber,
) {
    if flow.unprotected.is_some() {
        return;
    }
    let seq = segment.seq + flow.server.delta;
    let mut read = match flow.turn.phase {
        Phase::Asked if seq == flow.turn.response_start => {
            on_response_head(shared, key, flow, payload)
        }
        // Also bytes without a request.
        Phase::Asked | Phase::Idle => Err(Unprotected::Server),
        Phase::Body => Ok(()),
    };
    let turn = &flow.turn;
    let sent_end = sent_end(&flow.client, &flow.server);
    let sent = turn.sent + u64::from(end.0.wrapping_sub(sent_end.0));
    if turn.response_len().is_some_and(|len| sent > len) {
        read = read.and(Err(Unprotected::Server));
    }
    let (limit, reason) = match turn.number {
        0 => (FIRST_LIMIT, Unprotected::TooLong),
        _ if shared.settings.is_immutable => (FAR_LIMIT, Unprotected::LaterResponse),
        _ => (NEAR_LIMIT, Unprotected::LaterResponse),
    };
    if turn.is_guarded && sent > limit && read.is_ok() {
        read = on_limit(shared, flow, reason);
    }
    if let Err(reason) = read {
        shared.lose_protection(key, flow, reason);
    }
}

/// The response is further than its timestamps tell. An error: the rest is not protected.
fn on_limit(shared: &Shared, flow: &mut Flow, reason: Unprotected) -> Result<(), Unprotected> {
    let is_later = flow.turn.number > 0;
    if !flow.is_stored() {
        let has_store = shared.life.store != StoreKind::None;
        if !has_store || !is_later || flow.turn.method != Method::Get {
            return Err(reason);
        }
        flow.storage.exposed = flow.turn.number.wrapping_add(1);
    }
    if is_later && flow.turn.released < RELEASED_BEYOND {
        flow.turn.released += RELEASE_STEP;
    }
    Ok(())
}

/// Result of a look at the chunks of a segment.
pub(super) enum Followed {
    /// The bytes are read, or nobody reads these.
    Read,
    /// Bytes before the segment were not read.
    Missing,
    /// The response is another one than the client has a part of.
    Diverged,
}

/// The end of a response in chunks: also in bytes that the client has from another server.
pub(super) fn follow_chunks(
    shared: &mut Shared,
    key: FlowKey,
    flow: &mut Flow,
    (seq, payload): (SeqNumber, &[u8]),
) -> Followed {
    let ResponseEnd::AtLastChunk(body) = flow.turn.end else {
        return Followed::Read;
    };
    if flow.turn.phase != Phase::Body {
        return Followed::Read;
    }
    if seq.after(body.next) {
        return Followed::Missing;
    }
    if !(seq + length32(payload.len())).after(body.next) {
        return Followed::Read;
    }
    match flow.turn.read_chunks(body, (seq, payload), flow.client.ack) {
        Ok(()) => {}
        Err(None) => return Followed::Diverged,
        Err(Some(reason)) => shared.lose_protection(key, flow, reason),
    }
    Followed::Read
}

impl Turn {
    /// An error: the bytes are no chunks, or the server says more than the response. Or, without a reason, the body
    /// ends before the client's position, `acked`.
    fn read_chunks(
        &mut self,
        mut body: ChunkedBody,
        (seq, payload): (SeqNumber, &[u8]),
        acked: SeqNumber,
    ) -> Result<(), Option<Unprotected>> {
        let read = usize::try_from(body.next.0.wrapping_sub(seq.0)).unwrap_or(usize::MAX);
        let new = payload.get(read..).unwrap_or_default();
        let (taken, result) = body.chunks.take_some(new);
        body.next += length32(taken);
        let is_over = result.is_err() || body.chunks.is_done();
        if is_over && body.next.before(acked) {
            return Err(None);
        }
        if result.is_err() {
            return Err(Some(Unprotected::Chunked));
        }
        self.end = ResponseEnd::AtLastChunk(body);
        if body.chunks.is_done() {
            let len = body.next.0.wrapping_sub(self.response_start.0);
            let [low @ .., _, _, _, _] = self.sent.to_le_bytes();
            let ahead = len.wrapping_sub(u32::from_le_bytes(low)).cast_signed();
            self.end = ResponseEnd::After(self.sent.wrapping_add_signed(ahead.into()));
            if taken < new.len() {
                return Err(Some(Unprotected::Server));
            }
        }
        Ok(())
    }
}

/// The head of a response. An error: why the rest of the response is not protected.
fn on_response_head(
    shared: &Shared,
    key: FlowKey,
    flow: &mut Flow,
    payload: &[u8],
) -> Result<(), Unprotected> {
    let head = parse_response(payload, flow.turn.method).map_err(|_| Unprotected::Header)?;
    let head = head.ok_or(Unprotected::Header)?;
    let summary = ResponseSummary::of(&head, shared.settings.version_check);
    let summary = summary.map_err(|_| Unprotected::Header)?;
    if summary.status < 200 {
        return Err(Unprotected::Header);
    }
    let head_len = u64::try_from(summary.len).unwrap_or(0);
    if shared.settings.takes_inputs && summary.has_inputs {
        let end = flow.turn.response_start + u32::try_from(head_len).unwrap_or(0);
        flow.turn.inputs_end = Some(end);
        // Without its inputs no server repeats the response.
        flow.turn.is_guarded &= shared.life.store != StoreKind::None;
    }
    let is_repeatable = shared.settings.takes_chunks && shared.life.store != StoreKind::None;
    if summary.body == BodyLength::Chunked && (!is_repeatable || summary.status == 206) {
        return Err(Unprotected::Chunked);
    }
    if summary.has_parts {
        return Err(Unprotected::Multipart);
    }
    // Another server may do as asked: the position in the object would be another.
    if matches!(summary.status, 200 | 206) && flow.turn.has_range != summary.part.is_some() {
        return Err(Unprotected::OwnRange);
    }
    let first = summary.part.map_or(0, |part| part.first());
    let word = version_word(summary.version, shared.flaws.first_byte(first));
    let header_len = u16::try_from(head_len).unwrap_or(u16::MAX);
    flow.turn.end = match summary.body {
        BodyLength::Bytes(len) => ResponseEnd::After(head_len + len),
        BodyLength::Chunked => ResponseEnd::AtLastChunk(ChunkedBody {
            chunks: Chunks::new(),
            next: flow.turn.response_start + u32::from(header_len),
        }),
        BodyLength::UntilClose => ResponseEnd::AtClose,
    };
    let is_first = flow.turn.number == 0;
    let needs_record =
        summary.body == BodyLength::Chunked || (is_first && header_len >= MAX_HEADER);
    flow.states.body = if needs_record {
        let has_store = shared.life.store != StoreKind::None;
        if !has_store || usize::from(header_len) > RECORDED_LEN_MAX {
            return Err(Unprotected::Header);
        }
        // The record alone tells the position, and that the response is in chunks.
        flow.storage.exposed = flow.turn.number.wrapping_add(1);
        flow.states.bare
    } else if is_first {
        first_state(&shared.key(), &key, flow, header_len, word)
    } else {
        let start = flow.turn.response_start + u32::from(header_len);
        later_state(shared, &key, flow, start, word)
    };
    flow.turn.phase = Phase::Body;
    // Of other responses a part of the object is no continuation.
    let has_part = matches!(summary.status, 200 | 206) && summary.body != BodyLength::Bytes(0);
    flow.turn.is_guarded &= has_part;
    if flow.turn.is_guarded {
        let released = shared.flaws.released_with_response(flow.turn.number);
        flow.turn.released = flow.turn.released.max(released);
    }
    Ok(())
}

fn later_state(
    shared: &Shared,
    key: &FlowKey,
    flow: &Flow,
    body_start: SeqNumber,
    word: u32,
) -> StateBits {
    let pool_key = shared.key();
    let base = crate::isn::initial(&pool_key, key, Slot::new(0));
    let options = flow.client.options;
    let distance = body_start.0.wrapping_sub(base.0);
    let position = if shared.settings.is_immutable {
        LaterPosition::Far {
            distance: distance % FAR_POSITIONS,
        }
    } else {
        let distance = u16::try_from(distance % NEAR_POSITIONS).unwrap_or(0);
        let tag = State::later_tag(&pool_key, key, options, distance, word);
        LaterPosition::Near { distance, tag }
    };
    State::Later {
        options,
        is_odd: flow.turn.number % 2 == 1,
        position,
    }
    .bits()
}

fn first_state(
    pool_key: &PoolKey,
    key: &FlowKey,
    flow: &Flow,
    header_len: u16,
    word: u32,
) -> StateBits {
    let (slot, options) = (flow.slot, flow.client.options);
    let tag = State::first_tag(pool_key, key, slot, options, header_len, word);
    State::First {
        slot,
        options,
        header_len,
        tag,
    }
    .bits()
}

/// Bytes have left, up to `payload_end` and with a FIN to `end`. A pure ACK tells nothing of bytes that were withheld.
/// The floor stays as near behind the end as a segment that comes again can be: numbers that are further apart than
/// half of the sequence space are in no order (RFC 9293, 3.4).
pub(super) fn advance_nxt(flow: &mut Flow, payload_end: SeqNumber, end: SeqNumber) {
    let sent_end = sent_end(&flow.client, &flow.server);
    if payload_end.after(sent_end) {
        flow.turn.sent += u64::from(payload_end.0.wrapping_sub(sent_end.0));
    }
    let server = &mut flow.server;
    advance(&mut server.nxt, end);
    if server.nxt.0.wrapping_sub(server.floor.0) > LARGEST_WINDOW {
        server.floor = server.nxt - LARGEST_WINDOW;
    }
}

/// End of the bytes that the client was sent, by any server: a server that died may have sent more of the response than
/// this server's socket has, and the client acknowledges these bytes as soon as a hole before these is filled.
pub(super) const fn sent_end(client: &Client, server: &Server) -> SeqNumber {
    server.nxt.max_seq(client.ack)
}

/// The last number that the client may acknowledge: of a revived connection, the end of the response, and a FIN.
pub(super) fn last_ack(flow: &Flow) -> SeqNumber {
    let (turn, server) = (&flow.turn, &flow.server);
    let sent_end = sent_end(&flow.client, server);
    let left = match turn.end {
        ResponseEnd::After(len) => len.checked_sub(turn.sent),
        ResponseEnd::AtLastChunk(_) => Some(LARGEST_WINDOW.into()),
        ResponseEnd::AtClose => None,
    };
    let left = left.and_then(|left| u32::try_from(left).ok());
    let left = left.filter(|left| *left <= LARGEST_WINDOW && turn.phase == Phase::Body);
    match left {
        Some(left) if server.floor != server.isn => sent_end + left + 1,
        _ => sent_end,
    }
}
