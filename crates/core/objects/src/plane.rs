//! The model of the programs in the kernel (`bpf/objects.bpf.c` of the crate `dataplane`): from whole IP packets to
//! verdicts and changed packets.
//!
//! The crate `dataplane` compares programs and model packet by packet. A [`Plane`] reads no clock: `now` is the time
//! since the host was booted. The host of a model never sleeps, so the two clocks of the programs are one here.
//!
//! | module | |
//! |---|---|
//! | `ingress` | from the clients to the server |
//! | `egress` | from the server to the clients |
//! | `handshake` | connections that begin |
//! | `request` | requests, and their responses |
//! | `turned` | packets that go back to where they came from |
//! | `latch` | the death of the server, and the ends of connections |
//! | `fence` | packets in the name of the pool that never leave |

mod egress;
mod fence;
mod handshake;
mod ingress;
mod latch;
mod packet;
mod request;
mod turned;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use http1::version::VersionCheck;
use wire::{FlowKey, SeqNumber};

pub use self::packet::Packet;
use self::{handshake::HalfOpen, packet::Segment};
use crate::flaws::Flaws;
use crate::flow::{Client, Flow, Mode, Phase, Queued, ResponseEnd, Unprotected};
use crate::isn::Slot;
use crate::key::PoolKey;
use crate::timestamp::StateBits;

/// Offsets from [`Settings::mark`] of the marks of the member's own packets: of a client, once more.
pub const MARK_CLIENT_SPACE: u32 = 0;
/// For the server, unchanged.
pub const MARK_SERVER_SPACE: u32 = 1;
/// For the client, unchanged.
pub const MARK_TO_CLIENT: u32 = 2;
/// For the client, unchanged; the link address of the neighbour is still unknown.
pub const MARK_TO_NEIGHBOUR: u32 = 5;

/// For the client, to be translated like the server's own; the link address of the neighbour is still unknown.
pub const MARK_FROM_SERVER: u32 = 6;

/// For the server, to be translated like the client's own: a request that has waited for its turn.
pub const MARK_QUEUED: u32 = 7;

/// Marks of the member's own packets.
const MARK_COUNT: u32 = 8;
/// RFC 7323, 2.3.
const LARGEST_WINDOW: u32 = 1 << 30;
/// Bytes that a copy of a segment has at most.
const COPY_LEN_MAX: usize = 16_384;
const COPY_LEN_SMALL: usize = 1792;
/// Copies of a client's bytes that wait, in a round of user space; and the price of a large copy.
const QUEUED_MAX: u8 = 240;
const QUEUED_LARGE: u8 = 8;
/// Segments of unknown connections that the kernel gets in a round of user space, and answers with a RST. A flood costs
/// no more than these, and is reflected to nobody.
const STRAYS_MAX: u16 = 64;
/// Bytes that a copy of a segment has at most that begins a turn or a response.
const TURN_COPY_LEN_MAX: usize = 4096;

/// Settings that are fixed before a program is attached.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Addresses of the pool.
    pub addresses: Vec<SocketAddr>,
    /// The present key of the pool, and perhaps the key before.
    pub keys: Vec<PoolKey>,
    /// First of the marks of the member's packets.
    pub mark: u32,
    /// Which validators tell two versions of an object apart.
    pub version_check: VersionCheck,
    /// Objects never change under a name.
    pub is_immutable: bool,
    /// Longest time for which a request stays unacknowledged.
    pub withhold: Duration,
    /// Responses may have inputs ([`http1::edit::INPUTS_FIELD`]).
    pub takes_inputs: bool,
    /// Every server sends the same chunks of the same response.
    pub takes_chunks: bool,
    /// Packets between hosts of the pool are in UDP. The model sees the packets before, and after.
    pub encapsulates: bool,
}

/// The store of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// None, or no answer.
    None,
    /// Nobody can list the records of a dead member: a client keeps its request, and so is heard of.
    Unindexed,
    /// The clients of a dead member are called: a request whose record is stored is acknowledged.
    Indexed,
}

/// Verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// On to the receiver.
    Next,
    /// Dropped. The sender's TCP hears of the drop.
    Drop,
    /// Dropped, while the sender's TCP takes the packet for sent.
    Withheld,
    /// The packet enters through this interface's [`Plane::ingress`].
    RedirectIngress,
    /// Leaves through this interface, when the link address of the neighbour is found.
    RedirectNeighbour,
}

/// Packets that the programs count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "in enum object_counter")]
pub enum Counter {
    TranslatedIn,
    TranslatedOut,
    Withheld,
    AcksMade,
    Fenced,
    Gated,
    Unknown,
    Stray,
    Forged,
    Parked,
    SelfAcks,
    Exhausted,
    Forwarded,
    Deferred,
    Queued,
    StraysDropped,
}

impl Counter {
    /// All counters, with the names that the programs' counters have.
    pub const ALL: [(Self, &'static str); 16] = [
        (Self::TranslatedIn, "translated_in"),
        (Self::TranslatedOut, "translated_out"),
        (Self::Withheld, "withheld"),
        (Self::AcksMade, "acks_made"),
        (Self::Fenced, "fenced"),
        (Self::Gated, "gated"),
        (Self::Unknown, "unknown"),
        (Self::Stray, "stray"),
        (Self::Forged, "forged"),
        (Self::Parked, "parked"),
        (Self::SelfAcks, "self_acks"),
        (Self::Exhausted, "exhausted"),
        (Self::Forwarded, "forwarded"),
        (Self::Deferred, "deferred"),
        (Self::Queued, "queued"),
        (Self::StraysDropped, "strays_dropped"),
    ];
}

/// An event for user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The server crashed; the gate is shut.
    Death,
    /// The server listens on a port of the pool.
    Listening,
    /// A connection can no longer be revived.
    Unprotected {
        /// The connection.
        key: FlowKey,
        /// Why.
        reason: Unprotected,
    },
    /// A client has sent a guarded request again.
    Repeated {
        /// The connection.
        key: FlowKey,
        /// Number of the repeated segment.
        seq: SeqNumber,
    },
    /// The response has left, and bytes of the client may wait for their turn.
    Answered {
        /// The connection.
        key: FlowKey,
    },
    /// The turn is over, and bytes of the client may wait for their turn.
    TurnOver {
        /// The connection.
        key: FlowKey,
    },
    /// The server's response ends before the client's position: the client has a part of another response.
    Diverged {
        /// The connection.
        key: FlowKey,
    },
}

/// Whose segment a [`SegmentCopy`] is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyKind {
    /// Of a client, on a connection that the member does not know.
    Unknown,
    /// Of a client whose connection is being revived.
    Client,
    /// Of the server, on such a connection.
    Parked,
    /// Of a client: a guarded request.
    Request,
    /// Of the server: the head of the response to a guarded request.
    Response,
    /// Of the server: the record of the turn is not stored yet, or the segment has inputs of the response.
    Deferred,
    /// Of a client: bytes behind the request under way, or a part of a request.
    Queued,
}

/// A copy of a segment for user space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentCopy {
    /// The connection.
    pub key: FlowKey,
    /// Whose segment.
    pub kind: CopyKind,
    /// Interface on which the segment came, or would have left.
    pub interface: u32,
    /// The IP packet, or the beginning of a long packet.
    pub packet: Vec<u8>,
    /// Length of the whole packet, bytes.
    pub packet_len: usize,
}

/// The rest of a connection that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tombstone {
    slot: Slot,
    delta: u32,
    /// Of the server's newest segment: an echo is translated to this value.
    tsval: u32,
    /// The timestamp that the client sees.
    value: u32,
}

/// The programs and maps of a member.
#[derive(Debug, Clone)]
pub struct Plane {
    flows: BTreeMap<FlowKey, Flow>,
    /// Handshakes under way. The model has no limit.
    half_open: BTreeMap<FlowKey, HalfOpen>,
    tombstones: BTreeMap<FlowKey, Tombstone>,
    /// Connections that other members serve.
    forwards: BTreeMap<FlowKey, IpAddr>,
    shared: Shared,
}

/// State of the member, and everything that leaves besides the packets.
#[derive(Debug, Clone)]
struct Shared {
    settings: Settings,
    flaws: Flaws,
    endpoints: BTreeSet<SocketAddr>,
    /// An address of each interface that is not of the pool.
    own_addresses: BTreeMap<u32, Ipv4Addr>,
    life: Life,
    counters: BTreeMap<Counter, u64>,
    events: VecDeque<Event>,
    copies: VecDeque<SegmentCopy>,
    /// Copies of the segments that begin turns and responses.
    turns: VecDeque<SegmentCopy>,
    /// Packets that left besides the packets that calls returned.
    sent: VecDeque<Packet>,
}

/// `struct member`, without the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    lease_until: Duration,
    quiescence_until: Duration,
    unix_offset: Duration,
    is_gated: bool,
    is_stopping: bool,
    accepts: bool,
    store: StoreKind,
    incarnation: u32,
    /// Changes of the pool, counted.
    changes: u32,
    /// Grows when user space has taken the bytes that wait.
    queue_round: u8,
    /// Segments of unknown connections that the kernel got in this round.
    strays: u16,
}

/// Whether the response of this turn is under way, and protected.
fn is_in(flow: &Flow, number: u32, request_start: SeqNumber) -> bool {
    flow.turn.number == number
        && flow.turn.request_start == request_start
        && flow.turn.phase == Phase::Body
        && flow.mode == Mode::Served
        && flow.unprotected.is_none()
}

impl Plane {
    /// A member without a lease, behind the gate.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let canonical = |end: &SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Self {
            flows: BTreeMap::new(),
            half_open: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            forwards: BTreeMap::new(),
            shared: Shared {
                endpoints: settings.addresses.iter().map(canonical).collect(),
                settings,
                flaws: Flaws::default(),
                own_addresses: BTreeMap::new(),
                life: Life {
                    lease_until: Duration::ZERO,
                    quiescence_until: Duration::ZERO,
                    unix_offset: Duration::ZERO,
                    is_gated: true,
                    is_stopping: false,
                    accepts: false,
                    store: StoreKind::None,
                    incarnation: 1,
                    changes: 0,
                    queue_round: 0,
                    strays: 0,
                },
                counters: BTreeMap::new(),
                events: VecDeque::new(),
                copies: VecDeque::new(),
                turns: VecDeque::new(),
                sent: VecDeque::new(),
            },
        }
    }

    /// Plants mistakes.
    #[cfg(feature = "flaws")]
    pub const fn plant(&mut self, flaws: Flaws) {
        self.shared.flaws = flaws;
    }

    /// No packet leaves from this time on.
    pub const fn set_lease(&mut self, until: Duration) {
        self.shared.life.lease_until = until;
    }

    /// The pool counts as changed a short time ago until this time.
    pub const fn set_quiescence(&mut self, until: Duration) {
        self.shared.life.quiescence_until = until;
        self.shared.life.changes += 1;
    }

    /// Unix time less the time since the host was booted.
    pub const fn set_clock(&mut self, offset: Duration) {
        self.shared.life.unix_offset = offset;
    }

    /// Address in whose name an interface looks for its neighbours.
    pub fn set_own_address(&mut self, interface: u32, address: Ipv4Addr) {
        self.shared.own_addresses.insert(interface, address);
    }

    /// Whether connections may begin at this member.
    pub const fn accept(&mut self, does: bool) {
        self.shared.life.accepts = does;
    }

    /// User space has taken the bytes that wait: clients may wait with more.
    pub const fn next_queue_round(&mut self) {
        self.shared.life.queue_round = self.shared.life.queue_round.wrapping_add(1);
    }

    /// The kernel gets segments of unknown connections again.
    pub const fn next_stray_round(&mut self) {
        self.shared.life.strays = 0;
    }

    /// The store of the pool.
    pub const fn set_store(&mut self, kind: StoreKind) {
        self.shared.life.store = kind;
    }

    /// The store has confirmed the record of this turn. Returns whether the turn is under way.
    pub fn set_stored(
        &mut self,
        key: &FlowKey,
        number: u32,
        request_start: SeqNumber,
        state: StateBits,
    ) -> bool {
        let flow = self.flows.get_mut(key);
        let Some(flow) = flow.filter(|flow| is_in(flow, number, request_start)) else {
            return false;
        };
        flow.states.stored = state;
        flow.storage.stored = number.wrapping_add(1);
        true
    }

    /// The turn gets no record, and goes on without protection. Returns whether the turn is under way.
    pub fn give_up_record(&mut self, key: &FlowKey, number: u32, start: SeqNumber) -> bool {
        let Some(flow) = self
            .flows
            .get_mut(key)
            .filter(|it| is_in(it, number, start))
        else {
            return false;
        };
        flow.turn.is_guarded = false;
        true
    }

    /// Another member serves the connection.
    pub fn forward(&mut self, key: FlowKey, to: IpAddr) {
        self.forwards.insert(key, to);
    }

    /// The pool has changed: connections are looked for anew.
    pub fn clear_forwards(&mut self) {
        self.forwards.clear();
    }

    /// Handshakes under way are forgotten.
    pub fn forget_handshakes(&mut self) {
        self.half_open.clear();
    }

    /// The member that serves a connection in the place of this member.
    #[must_use]
    pub fn forwarded_to(&self, key: &FlowKey) -> Option<IpAddr> {
        self.forwards.get(key).copied()
    }

    /// Whether the connection, or its handshake, is known here.
    #[must_use]
    pub fn knows(&self, key: &FlowKey) -> bool {
        self.flows.contains_key(key) || self.half_open.contains_key(key)
    }

    /// No packet of the server leaves from now on.
    pub const fn gate(&mut self) {
        self.shared.life.is_gated = true;
    }

    /// A new server: the gate opens.
    pub const fn new_incarnation(&mut self, incarnation: u32) {
        self.shared.life.incarnation = incarnation;
        self.shared.life.is_stopping = false;
        self.shared.life.is_gated = false;
    }

    /// Whether the server was asked to end.
    pub const fn stopping(&mut self, is_stopping: bool) {
        self.shared.life.is_stopping = is_stopping;
    }

    /// Verdict on a packet that comes in.
    pub fn ingress(&mut self, packet: &mut Packet, now: Duration) -> Verdict {
        ingress::ingress(self, packet, now)
    }

    /// Verdict on a packet that leaves, from the server or from user space.
    pub fn egress(&mut self, packet: &mut Packet, now: Duration) -> Verdict {
        egress::egress(self, packet, now)
    }

    /// A process of the server has crashed: the gate is shut before its sockets are closed.
    pub fn on_crash(&mut self) {
        latch::on_crash(&mut self.shared);
    }

    /// A socket of the server listens.
    pub fn on_listen(&mut self) {
        self.shared.events.push_back(Event::Listening);
    }

    /// A socket of the server is gone, or waits for late segments (TIME_WAIT).
    pub fn on_close(&mut self, key: &FlowKey) {
        latch::on_close(self, key);
    }

    /// Writes a connection. Returns whether the connection was written: a connection that is known and must not be, or
    /// is unknown and must not be, is left alone.
    pub fn write_flow(&mut self, key: FlowKey, flow: Flow, is_known: bool) -> bool {
        let is_written = self.flows.contains_key(&key) == is_known;
        if is_written {
            self.flows.insert(key, flow);
        }
        is_written
    }

    /// Forgets a connection.
    pub fn forget_flow(&mut self, key: &FlowKey) {
        self.flows.remove(key);
    }

    /// All connections.
    pub fn flows(&self) -> impl Iterator<Item = (&FlowKey, &Flow)> {
        self.flows.iter()
    }

    /// A connection.
    #[must_use]
    pub fn flow(&self, key: &FlowKey) -> Option<&Flow> {
        self.flows.get(key)
    }

    /// Number of handshakes under way.
    #[must_use]
    pub fn half_open_count(&self) -> usize {
        self.half_open.len()
    }

    /// Number of connections that are over, and of which something is left.
    #[must_use]
    pub fn tombstone_count(&self) -> usize {
        self.tombstones.len()
    }

    /// How often a counter was advanced.
    #[must_use]
    pub fn counted(&self, counter: Counter) -> u64 {
        self.shared.counters.get(&counter).copied().unwrap_or(0)
    }

    /// The next event.
    pub fn take_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// The next copy of a segment.
    pub fn take_copy(&mut self) -> Option<SegmentCopy> {
        self.shared.copies.pop_front()
    }

    /// The next copy of a segment that begins a turn or a response.
    pub fn take_beginning(&mut self) -> Option<SegmentCopy> {
        self.shared.turns.pop_front()
    }

    /// The next packet that left besides the packets that calls returned.
    pub fn take_sent(&mut self) -> Option<Packet> {
        self.shared.sent.pop_front()
    }
}

impl Shared {
    fn count(&mut self, counter: Counter) {
        *self.counters.entry(counter).or_insert(0) += 1;
    }

    /// The lease is over: another member may go on with the connections.
    fn is_fenced(&self, now: Duration) -> bool {
        now >= self.life.lease_until
    }

    fn is_quiescent(&self, now: Duration) -> bool {
        now < self.life.quiescence_until
    }

    fn slot(&self, now: Duration) -> Slot {
        Slot::at(now + self.life.unix_offset)
    }

    fn key(&self) -> PoolKey {
        let first = self.settings.keys.first().copied();
        first.unwrap_or(PoolKey([0; 16]))
    }

    fn is_endpoint(&self, end: SocketAddr) -> bool {
        self.endpoints
            .contains(&SocketAddr::new(end.ip().to_canonical(), end.port()))
    }

    fn is_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.endpoints.iter().any(|end| end.ip() == address)
    }

    /// From here on an echo of the client tells every member that the connection cannot be revived.
    fn lose_protection(&mut self, key: FlowKey, flow: &mut Flow, reason: Unprotected) {
        if flow.unprotected.is_some() {
            return;
        }
        flow.unprotected = Some(reason);
        flow.turn.is_guarded = false;
        // Nobody reads the rest.
        if matches!(flow.turn.end, ResponseEnd::AtLastChunk(_)) {
            flow.turn.end = ResponseEnd::AtClose;
        }
        self.events.push_back(Event::Unprotected { key, reason });
    }

    /// Whether user space may get one more copy of the client's bytes in this round.
    fn has_queue_budget(&self, client: &mut Client, segment: &Segment) -> bool {
        let round = self.life.queue_round;
        let price = match segment.network.ip_len <= COPY_LEN_SMALL {
            true => 1,
            false => QUEUED_LARGE,
        };
        let copies = match client.queued.round == round {
            true => client.queued.copies,
            false => 0,
        };
        let sum = copies + price;
        let has_budget = sum <= QUEUED_MAX;
        let copies = if has_budget { sum } else { copies };
        client.queued = Queued { round, copies };
        has_budget
    }

    fn copy(&mut self, key: FlowKey, kind: CopyKind, packet: &Packet, segment: &Segment) {
        let copy = copy_of(key, kind, packet, segment, COPY_LEN_MAX);
        self.copies.push_back(copy);
    }

    /// For a record in the store.
    fn copy_beginning(&mut self, key: FlowKey, kind: CopyKind, packet: &Packet, segment: &Segment) {
        if self.life.store != StoreKind::None {
            let copy = copy_of(key, kind, packet, segment, TURN_COPY_LEN_MAX);
            self.turns.push_back(copy);
        }
    }
}

fn copy_of(
    key: FlowKey,
    kind: CopyKind,
    packet: &Packet,
    segment: &Segment,
    len_max: usize,
) -> SegmentCopy {
    let packet_len = segment.network.ip_len;
    let copied = packet.bytes.get(..packet_len.min(len_max));
    SegmentCopy {
        key,
        kind,
        interface: packet.interface,
        packet: copied.unwrap_or_default().to_vec(),
        packet_len,
    }
}

/// The later of two numbers.
fn advance(high: &mut SeqNumber, value: SeqNumber) {
    *high = high.max_seq(value);
}
