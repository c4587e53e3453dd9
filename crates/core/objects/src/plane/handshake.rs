//! Connections that begin: the SYN, the SYN-ACK with a keyed ISN, the third segment.

use core::time::Duration;

use wire::{Flags, FlowKey, SeqNumber};

use super::packet::{ACK_OFFSET, Options, Packet, SEQ_OFFSET, Segment, find_options, write32};
use super::{Counter, Event, Life, Plane, StoreKind, Verdict};
use crate::flow::{
    Client, Flow, Mode, POOL_WINDOW_SCALE, Phase, Queued, ResponseEnd, Server, States, Storage,
    Turn, Unprotected,
};
use crate::isn::{self, Slot};
use crate::key::PoolKey;
use crate::timestamp::index::{EchoTable, Index};
use crate::timestamp::{ClientOptions, State, StateBits, Timestamp};

/// Segments must be as long for a protected connection, bytes.
const SEGMENT_SIZE_MIN: u16 = 1300;
/// What the path from the balancer to each member carries, and the headers before an IPv6 or IPv4 packet on that path,
/// bytes.
const PATH_MTU: u16 = 1500;
const OUTER_HEADERS_LEN_MAX: u16 = 60;
/// Segments of a client that does not tell (RFC 9293, 3.7.1), bytes.
const SEGMENT_SIZE_DEFAULT: u16 = 536;

/// A handshake under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HalfOpen {
    client_isn: SeqNumber,
    client_tsval: u32,
    /// The server's, as the client sees the number.
    isn: SeqNumber,
    delta: u32,
    /// Of the server's newest SYN-ACK.
    tsval: u32,
    window_edge: SeqNumber,
    syn: Syn,
    segment_size: u16,
    client_window_scale: u8,
    server_window_scale: Option<u8>,
    has_timestamps: bool,
    has_sack: bool,
    is_answered: bool,
    is_foreign: bool,
}

/// When the SYN came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Syn {
    slot: Slot,
    at: Duration,
    /// Of the member at that time.
    life: Life,
}

/// The lower 26 bits while no response is under way, of a client whose next request begins at `told`.
pub(super) fn agreed_state(
    key: &PoolKey,
    flow: &FlowKey,
    slot: Slot,
    options: ClientOptions,
    told: SeqNumber,
) -> StateBits {
    let tag = State::agreed_tag(key, flow, slot, options, told);
    State::Agreed { slot, options, tag }.bits()
}

/// The same without protection.
pub(super) fn bare_state(
    key: &PoolKey,
    flow: &FlowKey,
    slot: Slot,
    options: ClientOptions,
) -> StateBits {
    let tag = State::unprotected_tag(key, flow, slot, options);
    State::Agreed { slot, options, tag }.bits()
}

impl HalfOpen {
    fn of_syn(segment: &Segment, options: &Options, syn: Syn) -> Self {
        Self {
            client_isn: segment.seq,
            client_tsval: options.tsval(&segment.header).unwrap_or(0),
            isn: SeqNumber(0),
            delta: 0,
            tsval: 0,
            window_edge: SeqNumber(0),
            syn,
            segment_size: options.segment_size.unwrap_or(SEGMENT_SIZE_DEFAULT),
            client_window_scale: options.window_scale.unwrap_or(0),
            server_window_scale: None,
            has_timestamps: options.has_timestamps(),
            has_sack: options.sack_permitted,
            is_answered: false,
            is_foreign: options.is_authenticated,
        }
    }

    /// Whether timestamps can tell another member the client's position.
    fn has_usable_timestamps(&self) -> bool {
        self.has_timestamps
            && self.has_sack
            && !self.is_foreign
            && self.segment_size >= SEGMENT_SIZE_MIN
    }

    /// Without timestamps the record alone tells the position.
    fn can_be_stored(&self, store: StoreKind) -> bool {
        !self.has_timestamps && !self.is_foreign && store == StoreKind::Indexed
    }

    fn options(&self) -> ClientOptions {
        let size = self.segment_size.max(SEGMENT_SIZE_MIN);
        ClientOptions::new(self.client_window_scale, size).unwrap_or(ClientOptions::of_number(0))
    }

    /// Whether the segment is the last step of this handshake.
    fn is_completed_by(&self, segment: &Segment) -> bool {
        self.is_answered
            && segment.is(Flags::ACK)
            && segment.ack == self.isn + 1
            && !segment.seq.before(self.client_isn + 1)
            && !segment.seq.after(self.window_edge)
    }

    /// The flow of a handshake that is complete.
    fn flow(&self, key: &FlowKey, pool_key: &PoolKey, store: StoreKind) -> Flow {
        let options = self.options();
        let agreed = agreed_state(pool_key, key, self.syn.slot, options, self.client_isn + 1);
        let bare = bare_state(pool_key, key, self.syn.slot, options);
        let is_protected = self.has_usable_timestamps() || self.can_be_stored(store);
        let unprotected = (!is_protected).then_some(Unprotected::NoTimestamps);
        let first = self.client_isn + 1;
        Flow {
            client: Client {
                isn: self.client_isn,
                nxt: first,
                ack: self.isn + 1,
                tsval: self.client_tsval,
                window: 0,
                window_scale: self.client_window_scale,
                has_timestamps: self.has_timestamps,
                has_sack: self.has_sack,
                has_queue: false,
                queued: Queued::default(),
                segment_size: self.segment_size,
                options,
            },
            server: Server {
                isn: self.isn,
                nxt: self.isn + 1,
                delta: self.delta,
                floor: self.isn,
                told: first,
                received: first,
                window_edge: self.window_edge,
                owes_ack: false,
                window_scale: self.server_window_scale,
            },
            turn: before_first_request(first, self.syn.at),
            echoes: EchoTable::new(Index::new(0), self.tsval),
            states: States {
                newest: if unprotected.is_some() { bare } else { agreed },
                body: StateBits::of_wire(0),
                agreed,
                bare,
                stored: StateBits::of_wire(0),
            },
            slot: self.syn.slot,
            mode: if self.is_foreign {
                Mode::Foreign
            } else {
                Mode::Served
            },
            unprotected,
            storage: Storage::default(),
            incarnation: self.syn.life.incarnation,
            interface: 0,
        }
    }
}

/// Before the first request. The time of the first response counts from the handshake: the slot tells no other.
const fn before_first_request(request_end: SeqNumber, began: Duration) -> Turn {
    Turn {
        phase: Phase::Idle,
        number: 0,
        request_start: SeqNumber(0),
        request_end,
        response_start: SeqNumber(0),
        end: ResponseEnd::After(0),
        acked: 0,
        sent: 0,
        asked_at: began,
        method: http1::Method::Get,
        is_guarded: false,
        inputs_end: None,
        has_range: false,
        repeats: 0,
        released: 0,
    }
}

/// A SYN: the member begins to know a connection. If the server's TCP has a connection with these ends, it answers with
/// a challenge ACK (RFC 5961, 4): a client that has begun anew learns of the old connection, and resets the connection.
pub(super) fn ingress_syn(
    plane: &mut Plane,
    packet: &mut Packet,
    key: FlowKey,
    segment: &Segment,
    now: Duration,
) -> Verdict {
    let options = find_options(&segment.header);
    let mut header = segment.header.clone();
    for place in &options.unsupported {
        header[place.clone()].fill(wire::kind::NO_OPERATION);
    }
    segment.commit(packet, header);
    if let Some(flow) = plane.flows.get_mut(&key) {
        flow.server.owes_ack = true;
    }
    let incarnation = plane.shared.life.incarnation;
    let is_known = plane.half_open.get(&key).is_some_and(|known| {
        // The server's TCP answers one SYN at a time, and another SYN with a challenge at most (RFC 5961, 4).
        let is_kept = known.client_isn == segment.seq || known.is_answered;
        is_kept && known.syn.life.incarnation == incarnation
    });
    if !is_known {
        let slot = plane.shared.slot(now);
        let live = plane.flows.get(&key).map(|flow| flow.slot);
        let last = live.or_else(|| plane.tombstones.get(&key).map(|over| over.slot));
        // In quiescence another member may have served a connection of this port, and may still send.
        let unknown = || plane.shared.is_quiescent(now).then(|| slot.behind(slot));
        let slot = last.or_else(unknown).map_or(slot, |last| slot.behind(last));
        let syn = Syn {
            slot,
            at: now,
            life: plane.shared.life,
        };
        let half_open = HalfOpen::of_syn(segment, &options, syn);
        plane.half_open.insert(key, half_open);
    }
    Verdict::Next
}

/// Whether the segment answers the SYN that was noted for these ends.
pub(super) fn is_answer_to_noted_syn(plane: &Plane, key: &FlowKey, segment: &Segment) -> bool {
    let noted = plane.half_open.get(key);
    segment.has(Flags::SYN.union(Flags::ACK))
        && noted.is_some_and(|noted| segment.ack == noted.client_isn + 1)
}

/// A SYN-ACK. The client cannot be asked for its options again after a death: the window scale is the pool's, and
/// the rest travels in the timestamp. `None`: no handshake is under way.
pub(super) fn egress_synack(
    plane: &mut Plane,
    packet: &mut Packet,
    key: FlowKey,
    segment: &Segment,
) -> Option<Verdict> {
    let half_open = plane.half_open.get_mut(&key)?;
    if segment.ack != half_open.client_isn + 1 {
        // The options of the SYN that is answered are not known. The client sends its SYN again.
        plane.half_open.remove(&key);
        plane.shared.count(Counter::Gated);
        return Some(Verdict::Drop);
    }
    let options = find_options(&segment.header);
    half_open.is_answered = true;
    half_open.window_edge = segment.ack + u32::from(segment.window);
    if half_open.is_foreign {
        half_open.isn = segment.seq;
        half_open.delta = 0;
        return Some(Verdict::Next);
    }
    let pool_key = plane.shared.key();
    half_open.isn = isn::initial(&pool_key, &key, half_open.syn.slot);
    half_open.delta = half_open.isn.0.wrapping_sub(segment.seq.0);
    half_open.server_window_scale = options.window_scale;
    half_open.has_sack &= options.sack_permitted;
    half_open.has_timestamps &= options.has_timestamps();
    let mut header = segment.header.clone();
    write32(&mut header, SEQ_OFFSET, half_open.isn.0);
    if plane.shared.settings.encapsulates {
        lower_segment_size(&mut header, &options, segment);
    }
    match options.window_scale_at {
        Some(at) => header[at] = POOL_WINDOW_SCALE,
        // Without the option of both sides no window is scaled.
        None => half_open.client_window_scale = 0,
    }
    if let Some(tsval) = options.tsval(&segment.header) {
        half_open.tsval = tsval;
        let client = half_open.options();
        let state = if half_open.has_usable_timestamps() {
            agreed_state(
                &pool_key,
                &key,
                half_open.syn.slot,
                client,
                half_open.client_isn + 1,
            )
        } else {
            bare_state(&pool_key, &key, half_open.syn.slot, client)
        };
        options.set_tsval(&mut header, Timestamp::value(Index::new(0), state));
    }
    segment.commit(packet, header);
    Some(Verdict::Next)
}

/// The longest segment that the client may send: on the way from the balancer, the segment has the outer headers, too.
/// The client's own link may carry less than the links of the members, so the latter do not decide.
fn lower_segment_size(header: &mut [u8], options: &Options, segment: &Segment) {
    let headers = if segment.network.source.is_ipv6() {
        60
    } else {
        40
    };
    let (Some(at), Some(size)) = (options.segment_size_at, options.segment_size) else {
        return;
    };
    let size = size.min(PATH_MTU - headers);
    if size > 2 * OUTER_HEADERS_LEN_MAX
        && let Some(field) = header.get_mut(at..at + 2)
    {
        field.copy_from_slice(&(size - OUTER_HEADERS_LEN_MAX).to_be_bytes());
    }
}

/// The client resets a handshake: the client has begun another handshake from the same port, or does not want this one.
/// `None`: no handshake is under way.
pub(super) fn ingress_reset(
    plane: &mut Plane,
    packet: &mut Packet,
    key: FlowKey,
    segment: &Segment,
) -> Option<Verdict> {
    let half_open = plane.half_open.get(&key)?;
    if !half_open.is_answered && plane.tombstones.contains_key(&key) {
        // The server's TCP waits for late segments (TIME_WAIT) and has answered the SYN with an acknowledgement.
        return None;
    }
    if !half_open.is_answered || segment.seq != half_open.client_isn + 1 {
        return Some(Verdict::Drop);
    }
    let mut header = segment.header.clone();
    if segment.has(Flags::ACK) {
        write32(
            &mut header,
            ACK_OFFSET,
            segment.ack.0.wrapping_sub(half_open.delta),
        );
    }
    segment.commit(packet, header);
    plane.half_open.remove(&key);
    Some(Verdict::Next)
}

/// A segment of no flow: the last step of a handshake becomes a flow.
pub(super) fn promote(plane: &mut Plane, key: FlowKey, segment: &Segment) {
    let changes = plane.shared.life.changes;
    // Since two changes of the pool, another member may have served the connection, and may have died.
    let is_old = |half_open: &HalfOpen| changes.wrapping_sub(half_open.syn.life.changes) > 1;
    if plane.half_open.get(&key).is_some_and(is_old) {
        plane.half_open.remove(&key);
    }
    let half_open = plane.half_open.get(&key);
    if let Some(half_open) = half_open.filter(|half_open| half_open.is_completed_by(segment)) {
        let flow = half_open.flow(&key, &plane.shared.key(), plane.shared.life.store);
        if let Some(reason) = flow.unprotected {
            let event = Event::Unprotected { key, reason };
            plane.shared.events.push_back(event);
        }
        plane.flows.insert(key, flow);
        plane.half_open.remove(&key);
    }
}
