//! Ingress (`ingress.h`): from the clients to the server's TCP.
//!
//! | packet | |
//! |---|---|
//! | not for an address:port of the pool | passes |
//! | made by user space, for the server | passes |
//! | while the gate is shut, or after the lease | dropped: the client sends again |
//! | SYN, while other members do not know this member | dropped |
//! | SYN | remembered, without options that bind a connection to one host |
//! | first ACK of the SYN-ACK | the handshake becomes a flow |
//! | RST of a handshake | passes, if the number is exact |
//! | of a flow, first bytes of a request | a turn begins |
//! | of a flow, bytes behind the request under way | copied for user space, until the turn is over |
//! | of a flow, part of a request, with a store | copied for user space, until the rest has come |
//! | of a flow, acknowledgement of the whole response | the turn ends: the client hears that the request has arrived |
//! | of a flow | translated |
//! | of a flow that is being revived, or whose server has died | copied for user space |
//! | of a connection that is over | translated |
//! | of a connection that another member serves | to that member |
//! | RST of an unknown connection | dropped |
//! | of an unknown connection, with an echo that a member has written | copied for user space |
//! | without timestamps, with a store, in quiescence | the same |
//! | any other of an unknown connection | passes; in quiescence dropped |

use core::time::Duration;

use wire::{Flags, FlowKey, SeqNumber};

use super::handshake::{agreed_state, bare_state, ingress_reset, ingress_syn, promote};
use super::packet::{
    ACK_OFFSET, Network, Options, Packet, SEQ_OFFSET, Segment, find_options, read32, write32,
};
use super::request::{is_overdue, last_ack, on_client_payload, on_repeated_request};
use super::turned::make_ack;
use super::{
    CopyKind, Counter, Event, MARK_COUNT, MARK_QUEUED, MARK_SERVER_SPACE, Plane, STRAYS_MAX,
    Shared, StoreKind, Verdict, advance,
};
use crate::flow::{Flow, Mode, Phase, RELEASED_MAX, ResponseEnd, Unprotected};
use crate::key::PoolKey;
use crate::timestamp::index::Index;
use crate::timestamp::{State, StateBits, Timestamp};

/// Whether a member of this pool wrote an echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Echo {
    Forged,
    /// Written by a member; or by nobody, with a probability of 2⁻¹⁶.
    Known,
    /// Of a kind with a short tag.
    Weak,
}

/// Verdict on a packet that comes in.
pub(super) fn ingress(plane: &mut Plane, packet: &mut Packet, now: Duration) -> Verdict {
    let network = Network::parse(&packet.bytes);
    let segment = network.and_then(|network| Segment::parse(&packet.bytes, network));
    let ends = network.and_then(|network| network.ends(&packet.bytes));
    let (Some(segment), Some((client, server))) = (segment, ends) else {
        return Verdict::Next;
    };
    let key = FlowKey::new(client, server);
    if !plane.shared.is_endpoint(server) {
        return Verdict::Next;
    }
    let ours = packet.mark.wrapping_sub(plane.shared.settings.mark);
    if ours < MARK_COUNT {
        packet.mark = 0;
    }
    if ours == MARK_SERVER_SPACE {
        return Verdict::Next;
    }
    if plane.shared.life.is_gated || plane.shared.is_fenced(now) {
        plane.shared.count(Counter::Gated);
        return Verdict::Drop;
    }
    let stands_still = plane.flows.get(&key).is_some_and(|flow| {
        flow.mode == Mode::Reviving || flow.incarnation != plane.shared.life.incarnation
    });
    if segment.is(Flags::SYN) && !stands_still {
        if !plane.shared.life.accepts {
            return Verdict::Drop;
        }
        return ingress_syn(plane, packet, key, &segment, now);
    }
    if !plane.flows.contains_key(&key) {
        promote(plane, key, &segment);
    }
    if plane.flows.contains_key(&key) {
        return ingress_flow(plane, packet, key, &segment, (ours == MARK_QUEUED, now));
    }
    if segment.has(Flags::RST)
        && let Some(verdict) = ingress_reset(plane, packet, key, &segment)
    {
        return verdict;
    }
    if let Some(verdict) = ingress_tombstone(plane, packet, &key, &segment) {
        return verdict;
    }
    if plane.forwards.contains_key(&key) {
        if !packet.age() {
            return Verdict::Drop;
        }
        plane.shared.count(Counter::Forwarded);
        return Verdict::RedirectNeighbour;
    }
    ingress_unknown(&mut plane.shared, packet, key, &segment, now)
}

fn ingress_flow(
    plane: &mut Plane,
    packet: &mut Packet,
    key: FlowKey,
    segment: &Segment,
    (is_queued, now): (bool, Duration),
) -> Verdict {
    let Some(flow) = plane.flows.get_mut(&key) else {
        return Verdict::Next;
    };
    if flow.mode == Mode::Foreign {
        return Verdict::Next;
    }
    flow.interface = packet.interface;
    if flow.mode == Mode::Reviving || flow.incarnation != plane.shared.life.incarnation {
        // Without an echo the numbers alone show that the segment is the client's.
        let is_of_client = flow.client.has_timestamps
            || flow.mode == Mode::Reviving
            || (is_acceptable(flow, segment) && !segment.ack.before(flow.client.ack));
        if !segment.has(Flags::RST) && is_of_client {
            plane.shared.copy(key, CopyKind::Client, packet, segment);
        }
        return Verdict::Drop;
    }
    let options = find_options(&segment.header);
    let has_old_ack = segment.ack.before(flow.client.ack);
    if !is_acceptable(flow, segment) {
        // The server's TCP answers with an ACK (RFC 9293, 3.10.7.4).
        flow.server.owes_ack = true;
        let echo = translated_echo(flow, segment, &options, true);
        return translate_in(&mut plane.shared, packet, flow, segment, &options, echo);
    }
    note_client(flow, segment, &options);
    // Not only when the client repeats its request, which may be two minutes later.
    let is_guarded = flow.turn.phase == Phase::Body && flow.turn.is_guarded;
    if is_guarded && is_overdue(&plane.shared, flow, now) {
        plane
            .shared
            .lose_protection(key, flow, Unprotected::WithheldTooLong);
    }
    // Before anything leaves: the echo may be needed for the next index.
    let echo = translated_echo(flow, segment, &options, has_old_ack);
    let is_stored = flow.is_stored();
    let has_index = plane.shared.life.store == StoreKind::Indexed;
    if is_stored && has_index && !has_old_ack && has_stored_echo(flow, segment, &options) {
        flow.storage.released = flow.storage.stored;
    }
    // The acknowledgement first: the next request may be in the same segment.
    let was_guarded = flow.turn.is_guarded;
    let end = segment.payload_end();
    let has_ended = flow
        .turn
        .on_client_ack(&mut flow.client, &flow.server, segment.ack, end);
    if has_ended {
        let (start, end) = (flow.turn.request_start, flow.turn.request_end);
        flow.states.agreed = flow.states.agreed.moved(start, end);
        if flow.client.has_queue {
            plane.shared.events.push_back(Event::TurnOver { key });
        }
    }
    if segment.payload_len > 0 && end.after(flow.client.nxt) {
        let payload = (segment, segment.payload(&packet.bytes));
        if on_client_payload(&mut plane.shared, key, flow, payload, is_queued, now) {
            if !has_fitting_numbers(flow, segment, &options) {
                return Verdict::Drop;
            }
            keep_waiting(&mut plane.shared, packet, key, flow, segment, now);
            return Verdict::Drop;
        }
        if flow.turn.request_start == segment.seq && flow.turn.is_guarded {
            let shared = &mut plane.shared;
            shared.copy_beginning(key, CopyKind::Request, packet, segment);
        }
    } else if segment.payload_len > 0 && flow.turn.is_guarded && end.after(flow.turn.request_start)
    {
        on_repeated_request(&mut plane.shared, key, flow, now);
    }
    // A pure ACK or a FIN behind a lost request tells nothing of the request.
    if segment.payload_len > 0 || segment.seq == flow.client.nxt {
        advance(&mut flow.client.nxt, segment.seq + segment.sequence_len());
    }
    // An idle client shall be told that nothing is under way: then no member needs the store for the client, and no
    // member takes the next request for the request of the last response.
    let is_news = if was_guarded {
        is_stored || flow.server.told.before(flow.server.received)
    } else {
        flow.unprotected.is_none()
    };
    if has_ended && is_news {
        make_ack(plane, packet, &key, segment, now);
    }
    let Some(flow) = plane.flows.get(&key) else {
        return Verdict::Next;
    };
    translate_in(&mut plane.shared, packet, flow, segment, &options, echo)
}

/// Would the server's TCP take the bytes? User space gives the bytes to the server's TCP with the client's newest
/// acknowledgement and timestamp. A sender that guesses must not gain by that: the acknowledgement is not older than
/// the largest window (RFC 5961, 5.2), nor the timestamp than the newest (RFC 7323, 5.2).
fn has_fitting_numbers(flow: &Flow, segment: &Segment, options: &Options) -> bool {
    let client = &flow.client;
    let window_max = u32::from(u16::MAX) << client.window_scale;
    let tsval = options.tsval(&segment.header);
    let is_new = |tsval| !SeqNumber(tsval).before(SeqNumber(client.tsval));
    let has_fitting_ack = !segment.ack.before(client.ack - window_max);
    has_fitting_ack && (!client.has_timestamps || tsval.is_some_and(is_new))
}

/// The bytes wait for their turn, unacknowledged. A repetition of the request under way may come in the same segment.
fn keep_waiting(
    shared: &mut Shared,
    packet: &Packet,
    key: FlowKey,
    flow: &mut Flow,
    segment: &Segment,
    now: Duration,
) {
    flow.client.has_queue = true;
    shared.count(Counter::Queued);
    if shared.has_queue_budget(&mut flow.client, segment) {
        shared.copy(key, CopyKind::Queued, packet, segment);
    }
    if flow.turn.is_guarded && segment.seq.before(flow.turn.request_end) {
        on_repeated_request(shared, key, flow, now);
    }
}

/// A connection whose server's socket is gone, or waits for late segments (TIME_WAIT).
fn ingress_tombstone(
    plane: &Plane,
    packet: &mut Packet,
    key: &FlowKey,
    segment: &Segment,
) -> Option<Verdict> {
    let tombstone = plane.tombstones.get(key)?;
    if segment.has(Flags::ACK) {
        let mut header = segment.header.clone();
        let ack = segment.ack - tombstone.delta;
        write32(&mut header, ACK_OFFSET, ack.0);
        find_options(&segment.header).set_tsecr(&mut header, tombstone.tsval);
        segment.commit(packet, header);
    }
    Some(Verdict::Next)
}

/// Would the server's TCP believe the segment (RFC 9293, 3.10.7.4)?
fn is_acceptable(flow: &Flow, segment: &Segment) -> bool {
    let end = segment.seq + segment.sequence_len();
    let is_in_window = !end.before(flow.server.told) && !segment.seq.after(flow.server.window_edge);
    let is_sent = !segment.ack.after(flow.server.nxt) || !segment.ack.after(last_ack(flow));
    is_in_window && segment.is(Flags::ACK) && is_sent
}

/// The timestamp is the newest that the server's TCP can echo (RFC 7323, 4.3), also while the client was told of less
/// than has arrived: PAWS refuses an older acknowledgement in the client's name.
fn note_client(flow: &mut Flow, segment: &Segment, options: &Options) {
    if let Some(tsval) = options.tsval(&segment.header)
        && !segment.seq.after(flow.server.received)
        && SeqNumber(tsval).after(SeqNumber(flow.client.tsval))
    {
        flow.client.tsval = tsval;
    }
    flow.client.window = segment.window;
}

/// The echo that the server's TCP must read.
fn translated_echo(
    flow: &mut Flow,
    segment: &Segment,
    options: &Options,
    has_old_ack: bool,
) -> Option<u32> {
    let echo = options.tsecr(&segment.header)?;
    if !flow.client.has_timestamps || !segment.has(Flags::ACK) {
        return None;
    }
    if echo == 0 {
        return Some(0);
    }
    Some(flow.echoes.on_echo(Index::of_wire(echo), has_old_ack))
}

/// The client knows that the record of the response is in the store.
fn has_stored_echo(flow: &Flow, segment: &Segment, options: &Options) -> bool {
    let echo = options.tsecr(&segment.header);
    flow.client.has_timestamps
        && echo.is_some_and(|echo| StateBits::of_wire(echo) == flow.states.stored)
}

/// Numbers of the server's socket in the place of the numbers that the client sees. A client that knows of no
/// connection resets at the number that the client was told; the server's TCP believes a RST at its own number only
/// (RFC 5961, 3.2).
fn translate_in(
    shared: &mut Shared,
    packet: &mut Packet,
    flow: &Flow,
    segment: &Segment,
    options: &Options,
    echo: Option<u32>,
) -> Verdict {
    let mut header = segment.header.clone();
    if segment.has(Flags::RST) && segment.seq == flow.server.told {
        write32(&mut header, SEQ_OFFSET, flow.server.received.0);
    }
    if segment.has(Flags::ACK) {
        // The server's TCP refuses acknowledgements of bytes that it has not sent, though the client has these bytes.
        let is_ahead = segment.ack.after(flow.server.nxt) && !segment.ack.after(flow.client.ack);
        let mut ack = if is_ahead {
            flow.server.nxt
        } else {
            segment.ack
        };
        // The server sends chunks that were not read again, though the client has these: from another server.
        if let ResponseEnd::AtLastChunk(body) = flow.turn.end
            && flow.turn.phase == Phase::Body
            && !segment.ack.after(flow.client.ack)
            && shared.flaws.reads_all_chunks()
        {
            ack = ack.min_seq(body.next);
        }
        write32(&mut header, ACK_OFFSET, (ack - flow.server.delta).0);
    }
    if let Some(echo) = echo {
        options.set_tsecr(&mut header, echo);
    }
    for at in options.sack_edges() {
        let edge = read32(&header, at).wrapping_sub(flow.server.delta);
        write32(&mut header, at, edge);
    }
    segment.commit(packet, header);
    shared.count(Counter::TranslatedIn);
    Verdict::Next
}

fn ingress_unknown(
    shared: &mut Shared,
    packet: &Packet,
    key: FlowKey,
    segment: &Segment,
    now: Duration,
) -> Verdict {
    if segment.has(Flags::RST) {
        return Verdict::Drop;
    }
    let is_quiescent = shared.is_quiescent(now);
    let echo = find_options(&segment.header).tsecr(&segment.header);
    // The numbers in the record of the store tell whether a client without timestamps is right.
    let has_index = shared.life.store == StoreKind::Indexed;
    let mut is_unproven = echo.is_none() && has_index && segment.has(Flags::ACK);
    if let Some(echo) = echo.filter(|_| segment.has(Flags::ACK)) {
        match judge_echo(shared, &key, echo, segment.seq) {
            Echo::Known => return copy_unknown(shared, key, packet, segment),
            Echo::Weak => is_unproven = true,
            Echo::Forged => shared.count(Counter::Forged),
        }
    }
    if is_quiescent && is_unproven {
        return copy_unknown(shared, key, packet, segment);
    }
    if is_quiescent || !take_place(shared) {
        return Verdict::Drop;
    }
    shared.count(Counter::Stray);
    Verdict::Next
}

fn copy_unknown(shared: &mut Shared, key: FlowKey, packet: &Packet, segment: &Segment) -> Verdict {
    shared.count(Counter::Unknown);
    shared.copy(key, CopyKind::Unknown, packet, segment);
    Verdict::Drop
}

/// Whether the kernel may get one more. The client of a segment that is dropped sends again.
fn take_place(shared: &mut Shared) -> bool {
    let has_room = shared.life.strays < STRAYS_MAX;
    shared.life.strays += u16::from(has_room);
    if !has_room {
        shared.count(Counter::StraysDropped);
    }
    has_room
}

/// An agreed state is of the number at which the next request begins. Before that number a keep-alive lies, and behind,
/// with some bytes released, the rest of that request.
fn judge_echo(shared: &Shared, flow: &FlowKey, echo: u32, seq: SeqNumber) -> Echo {
    let state = Timestamp::from_wire(echo).state;
    let is_of = |key: &PoolKey| match state {
        State::Agreed { slot, options, .. } => {
            let at = |told| state.bits() == agreed_state(key, flow, slot, options, told);
            (0..=1 + u32::from(RELEASED_MAX)).any(|back| at(seq + 1 - back))
                || state.bits() == bare_state(key, flow, slot, options)
        }
        State::Stored {
            slot,
            options,
            turn,
            ..
        } => state == State::stored(key, flow, slot, options, turn.into()),
        State::First { .. } | State::Later { .. } => false,
    };
    if matches!(state, State::First { .. } | State::Later { .. }) {
        return Echo::Weak;
    }
    let keys = shared.settings.keys.iter().take(2);
    if { keys }.any(is_of) {
        Echo::Known
    } else {
        Echo::Forged
    }
}
