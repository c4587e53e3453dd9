//! Egress (`egress.h`): from the server's TCP to the clients.
//!
//! | packet | |
//! |---|---|
//! | made by user space, for the server | turned round, into this interface's ingress |
//! | made by user space, for a client | to the neighbour |
//! | in the name of an address of the pool: ARP | dropped, or in the interface's own name |
//! | after the lease, or while the gate is shut | withheld, or dropped |
//! | SYN-ACK | keyed ISN, the pool's window scale, the first index |
//! | SYN-ACK of another SYN than the noted one | dropped: the client's options are not known |
//! | of a flow of a server that has died | dropped: the FIN and RST of the dying |
//! | of a flow that is being revived | copied for user space, and withheld |
//! | payload that another server has sent | acknowledged in the client's name |
//! | chunks behind a hole | withheld: the programs read all chunks, to the last |
//! | the end of a response before the client's position, FIN or RST | withheld; user space resets the client |
//! | first payload of a response | the head is read: from here on timestamps say where the body began |
//! | pure ACK of a guarded request | withheld |
//! | response to a client without timestamps | copied for user space, and withheld, until the record is stored |
//! | response with inputs | the same; the head leaves from user space alone, without the inputs |
//! | any other of a flow | sequence number, window and timestamp as the client shall see these; a guarded request |
//! | | unacknowledged |
//! | of a connection that is over | translated |

use core::time::Duration;

use wire::{Flags, FlowKey, SeqNumber};

use super::fence::egress_other;
use super::handshake::{egress_synack, is_answer_to_noted_syn};
use super::packet::{
    ACK_OFFSET, Network, Options, Packet, SEQ_OFFSET, Segment, WINDOW_OFFSET, find_options,
    length32, overwrite, write32,
};
use super::request::{Followed, advance_nxt, follow_chunks, on_server_payload, sent_end};
use super::turned::self_ack;
use super::{
    CopyKind, Counter, Event, MARK_CLIENT_SPACE, MARK_FROM_SERVER, MARK_QUEUED, MARK_SERVER_SPACE,
    MARK_TO_CLIENT, MARK_TO_NEIGHBOUR, Plane, Shared, Verdict, advance,
};
use crate::flow::{Flow, Mode, POOL_WINDOW_SCALE, Phase, Server};
use crate::timestamp::Timestamp;
use crate::timestamp::index::{Assigned, Departure};

/// Verdict on a packet that leaves, from the server or from user space.
pub(super) fn egress(plane: &mut Plane, packet: &mut Packet, now: Duration) -> Verdict {
    let base = plane.shared.settings.mark;
    let mark = packet.mark.wrapping_sub(base);
    match mark {
        MARK_CLIENT_SPACE | MARK_SERVER_SPACE | MARK_QUEUED => return Verdict::RedirectIngress,
        MARK_TO_CLIENT | MARK_TO_NEIGHBOUR if plane.shared.is_fenced(now) => {
            plane.shared.count(Counter::Fenced);
            return Verdict::Drop;
        }
        MARK_TO_CLIENT => return Verdict::Next,
        MARK_TO_NEIGHBOUR => {
            packet.mark = base.wrapping_add(MARK_TO_CLIENT);
            return Verdict::RedirectNeighbour;
        }
        _ => {}
    }
    let network = Network::parse(&packet.bytes);
    let ends = network.and_then(|network| Some((network, network.ends(&packet.bytes)?)));
    let ours = ends.filter(|(_, (server, _))| plane.shared.is_endpoint(*server));
    let Some((network, (server, client))) = ours else {
        return egress_other(&mut plane.shared, packet, now);
    };
    let key = FlowKey::new(client, server);
    let Some(segment) = Segment::parse(&packet.bytes, network) else {
        return Verdict::Drop;
    };
    // The server's answers to user space stay on this host.
    let flow = plane.flows.get(&key);
    if flow.is_none_or(|flow| flow.mode != Mode::Reviving) {
        if plane.shared.is_fenced(now) {
            plane.shared.count(Counter::Fenced);
            return Verdict::Withheld;
        }
        if plane.shared.life.is_gated {
            plane.shared.count(Counter::Gated);
            return Verdict::Drop;
        }
    }
    // The server's TCP has no socket of the flow any more, or has no socket yet, and never told (TCP_DEFER_ACCEPT).
    let is_over = |flow: &Flow| flow.mode != Mode::Reviving && segment.ack != flow.client.isn + 1;
    if is_answer_to_noted_syn(plane, &key, &segment) && plane.flows.get(&key).is_some_and(is_over) {
        plane.flows.remove(&key);
    }
    if let Some(flow) = plane.flows.get_mut(&key) {
        let is_own = mark == MARK_FROM_SERVER;
        let verdict = egress_flow(&mut plane.shared, packet, key, flow, (&segment, is_own));
        if mark != MARK_FROM_SERVER || verdict != Verdict::Next {
            return verdict;
        }
        packet.mark = base.wrapping_add(MARK_TO_CLIENT);
        return Verdict::RedirectNeighbour;
    }
    egress_stray(plane, packet, key, &segment)
}

fn egress_stray(
    plane: &mut Plane,
    packet: &mut Packet,
    key: FlowKey,
    segment: &Segment,
) -> Verdict {
    if segment.has(Flags::SYN.union(Flags::ACK))
        && let Some(verdict) = egress_synack(plane, packet, key, segment)
    {
        return verdict;
    }
    if let Some(tombstone) = plane.tombstones.get_mut(&key) {
        let options = find_options(&segment.header);
        let mut header = segment.header.clone();
        let seq = segment.seq + tombstone.delta;
        write32(&mut header, SEQ_OFFSET, seq.0);
        if let Some(tsval) = options.tsval(&segment.header) {
            tombstone.tsval = tsval;
            options.set_tsval(&mut header, tombstone.value);
        }
        segment.commit(packet, header);
        return Verdict::Next;
    }
    // The kernel's answer to a stray passes. Numbers of an unknown socket have no meaning for a client.
    if segment.has(Flags::RST) {
        return Verdict::Next;
    }
    plane.shared.count(Counter::Gated);
    Verdict::Drop
}

fn egress_flow(
    shared: &mut Shared,
    packet: &mut Packet,
    key: FlowKey,
    flow: &mut Flow,
    (segment, is_own): (&Segment, bool),
) -> Verdict {
    let len = segment.sequence_len();
    let seq = segment.seq + flow.server.delta;
    match flow.mode {
        Mode::Foreign => return Verdict::Next,
        Mode::Reviving => {
            shared.count(Counter::Parked);
            shared.copy(key, CopyKind::Parked, packet, segment);
            return Verdict::Withheld;
        }
        Mode::Served if flow.incarnation != shared.life.incarnation => {
            shared.count(Counter::Gated);
            return Verdict::Drop;
        }
        Mode::Served => {}
    }
    let options = find_options(&segment.header);
    let mut header = segment.header.clone();
    write32(&mut header, SEQ_OFFSET, seq.0);
    if segment.has(Flags::RST) {
        if is_short(flow, seq) {
            return diverged(shared, key);
        }
        segment.commit(packet, header);
        return Verdict::Next;
    }
    let is_before = len > 0 && seq.before(flow.server.floor);
    let payload_end = seq + length32(segment.payload_len);
    let payload = segment.payload(&packet.bytes);
    let is_new = payload_end.after(sent_end(&flow.client, &flow.server));
    if segment.payload_len > 0 && is_new && !is_before {
        let had_answer = flow.turn.phase == Phase::Body;
        on_server_payload(shared, key, flow, segment, payload, payload_end);
        if !had_answer && flow.turn.phase == Phase::Body && flow.turn.is_guarded {
            shared.copy_beginning(key, CopyKind::Response, packet, segment);
        }
    }
    if len > 0 {
        match follow_chunks(shared, key, flow, (seq, payload)) {
            Followed::Read => {}
            // As if lost: the server's TCP sends the missing bytes, and these, again.
            Followed::Missing => return Verdict::Withheld,
            Followed::Diverged => return diverged(shared, key),
        }
    }
    if segment.has(Flags::FIN) && is_short(flow, payload_end) {
        return diverged(shared, key);
    }
    if is_before {
        let ack = (seq + len).min_seq(flow.server.floor) - flow.server.delta;
        return self_ack(shared, packet, flow, segment, ack);
    }
    let has_inputs = { flow.turn.inputs_end }.is_some_and(|end| seq.before(end) && !is_own);
    if len > 0 && (flow.awaits_store() || has_inputs) {
        shared.count(Counter::Deferred);
        shared.copy(key, CopyKind::Deferred, packet, segment);
        return Verdict::Withheld;
    }
    if !clamp_ack(&mut header, flow, segment, &options) {
        shared.count(Counter::Withheld);
        return Verdict::Withheld;
    }
    let is_retransmission = len > 0 && seq.before(flow.server.nxt);
    if !stamp(&mut header, flow, segment, &options, is_retransmission) {
        shared.count(Counter::Exhausted);
        return Verdict::Withheld;
    }
    if let Some(at) = options.window_scale_at
        && segment.has(Flags::SYN)
    {
        header[at] = POOL_WINDOW_SCALE;
    }
    let was_answered = flow.turn.is_answered();
    if len > 0 {
        advance_nxt(flow, payload_end, seq + len);
    }
    // The client's TCP may delay its acknowledgement, for which the client's next request waits.
    if flow.client.has_queue && !was_answered && flow.turn.is_answered() {
        shared.events.push_back(Event::Answered { key });
    }
    if segment.has(Flags::FIN) {
        flow.turn.on_server_fin();
    }
    segment.commit(packet, header);
    shared.count(Counter::TranslatedOut);
    Verdict::Next
}

/// Whether a response that ends here ends before the client's position. The client would take no FIN and no RST there.
const fn is_short(flow: &Flow, end: SeqNumber) -> bool {
    let is_new = !end.before(flow.server.nxt);
    end.before(flow.server.floor) || (is_new && end.before(flow.client.ack))
}

/// User space resets the client.
fn diverged(shared: &mut Shared, key: FlowKey) -> Verdict {
    shared.events.push_back(Event::Diverged { key });
    Verdict::Withheld
}

/// The shift that the client applies to a window of this flow.
fn offered_scale(server: &Server) -> u8 {
    server.window_scale.map_or(0, |_| POOL_WINDOW_SCALE)
}

/// Acknowledgement and window, as the client shall see these. False: the segment would bring no news. A pure ACK before
/// the end of the bytes that were sent is a probe of a window or of a connection: without an answer, the server's TCP
/// would give up.
fn clamp_ack(header: &mut [u8], flow: &mut Flow, segment: &Segment, options: &Options) -> bool {
    // A client without timestamps gets nothing of a response before the record is stored.
    let is_released = if flow.client.has_timestamps {
        flow.is_released()
    } else {
        flow.is_stored()
    };
    let (server, turn) = (&mut flow.server, &flow.turn);
    let mut told = segment.ack;
    if turn.is_guarded && !is_released {
        told = told.min_seq(turn.request_start + u32::from(turn.released));
    }
    told = told.max_seq(server.told);
    let is_clamped = told.before(segment.ack);
    advance(&mut server.received, segment.ack);
    let edge = segment.ack + segment.window_bytes(server.window_scale.unwrap_or(0));
    advance(&mut server.window_edge, edge);
    let is_probe = (segment.seq + server.delta).before(server.nxt);
    let brings_news = segment.sequence_len() > 0 || told.after(server.told);
    if is_clamped && !brings_news && !is_probe && !server.owes_ack {
        return false;
    }
    let window = server.window_edge.0.wrapping_sub(told.0) >> offered_scale(server);
    write32(header, ACK_OFFSET, told.0);
    let window = u16::try_from(window).unwrap_or(u16::MAX);
    overwrite(header, WINDOW_OFFSET, &window.to_be_bytes());
    server.told = told;
    server.owes_ack = false;
    // Blocks would tell the client that its request has arrived.
    if let Some(place) = options.sack.clone()
        && is_clamped
    {
        header[place].fill(wire::kind::NO_OPERATION);
    }
    true
}

/// The timestamp. False: the segment needs a new index, and has to wait until the client has echoed a newer one. A
/// retransmission never waits: the segment may fill the hole behind which the client's echo stands still. The client
/// has the same bytes with the old state, or would have.
fn stamp(
    header: &mut [u8],
    flow: &mut Flow,
    segment: &Segment,
    options: &Options,
    is_retransmission: bool,
) -> bool {
    let Some(tsval) = options.tsval(&segment.header) else {
        return true;
    };
    if !flow.client.has_timestamps {
        return true;
    }
    let (is_stored, is_exposed) = (flow.is_stored(), flow.is_exposed());
    let (turn, states) = (&flow.turn, &mut flow.states);
    let mut state = match turn.phase {
        _ if flow.unprotected.is_some() => states.bare,
        Phase::Asked | Phase::Body if !turn.is_guarded => states.bare,
        Phase::Body if is_stored => states.stored,
        Phase::Body if is_exposed => states.bare,
        Phase::Body => states.body,
        Phase::Asked | Phase::Idle => states.agreed,
    };
    let has_new_state = state != states.newest;
    let assigned = flow.echoes.assign(Departure {
        tsval,
        is_retransmission,
        has_new_state,
        is_alone: segment.sequence_len() > 0 && !flow.server.nxt.after(flow.client.ack),
    });
    if has_new_state && matches!(assigned, Assigned::Exhausted(_)) {
        if !is_retransmission {
            return false;
        }
        state = states.newest;
    }
    states.newest = state;
    options.set_tsval(header, Timestamp::value(assigned.index(), state));
    true
}
