//! The state of one service (`state.h`), and the questions that all programs ask.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use protocol::DigestSeed;
use types::UnprotectedReason;
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    digest::Digests,
    flow::{Flow, Mode},
    latch::CrashOn,
    link::{Copy, Link},
    mirror::MirrorFrame,
    packet::Packet,
    read_cursors::ReadCursors,
    ring::{LruMap, Ring},
    tolerance::Expect,
};

/// Marks of packets that we made ourselves, as offsets from [`Settings::mark`]: for the server, to
/// be translated like the client's own.
pub const MARK_CLIENT_SPACE: u32 = 0;
/// For the server, unchanged.
pub const MARK_SERVER_SPACE: u32 = 1;
/// For the client, unchanged.
pub const MARK_TO_CLIENT: u32 = 2;
/// A copy of a client's segment for the logger, still to be wrapped.
pub(crate) const MARK_SEGMENT: u32 = 3;
/// For the logger, unchanged.
pub(crate) const MARK_TO_LOGGER: u32 = 4;
/// For the client, unchanged; the link address of the neighbour is still unknown.
pub const MARK_TO_NEIGHBOUR: u32 = 5;
/// For the client, to be translated like the server's own; the link address of the neighbour is still unknown.
pub const MARK_FROM_SERVER: u32 = 6;
/// In a pool: for the server, a request that has waited for its turn.
pub const MARK_QUEUED: u32 = 7;
pub(crate) const MARKS: u32 = 8;

/// Size of the event ring and of a record in the ring (`struct event`), bytes.
const EVENT_RING: usize = 1 << 20;
const EVENT_RECORD: usize = 80;

/// Settings that are fixed before a program is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Silence of the supervisor, in ns, after which all gates open.
    pub heartbeat_timeout_ns: u64,
    /// Which ends of processes are crashes.
    pub crash_on: CrashOn,
    /// First of the eight marks of the service's packets.
    pub mark: u32,
    /// Outstream bytes recorded at the beginning of each turn.
    pub verify_head: u32,
    /// Key and rate of digests of output beyond the recorded heads; `None`: no digests are taken.
    pub digests: Option<Digests>,
    /// Size of the ring to the logger, bytes.
    pub mirror_capacity: usize,
    /// Most connections protected at a time.
    pub max_flows: usize,
    /// Most handshakes remembered at a time; more evict the least recently used.
    pub max_half_open: usize,
    /// The protected addresses.
    pub endpoints: Vec<SocketAddr>,
    /// The record is kept at the other end of a log link, not behind the ring.
    pub link: bool,
    /// The server has state, and advances read cursors ([`SouthSide::advance_read_cursor`]). All segments are mirrored
    /// if no more than this number come in a tenth of a second.
    pub read_cursors: Option<u32>,
}

/// The life of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// No packet of the service leaves or enters.
    pub gated: bool,
    /// When the gate was shut, ns.
    pub gated_ns: u64,
    /// Segments of unknown connections are dropped, not reset.
    pub recovering: bool,
    /// Asked to end: deaths are not crashes.
    pub stopping: bool,
    /// There is a logger at the other end of the log link.
    pub link_up: bool,
    /// The number of the server's present life; the first is 1.
    pub incarnation: u32,
    /// Process id of the server's main process; 0: not known.
    pub main_pid: u32,
    /// When the supervisor was heard last, ns.
    pub heartbeat_ns: u64,
    /// After this time no packet leaves; `None`: no lease is needed.
    pub lease_until_ns: Option<u64>,
    /// The number of the next connection; the first is 1.
    pub next_flow_id: u64,
}

/// How often things happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Instream segments recorded.
    pub mirrored: u64,
    /// Instream segments that found no room in the ring.
    pub mirror_full: u64,
    /// Outstream heads recorded.
    pub heads: u64,
    /// Outstream heads that found no room in the ring.
    pub heads_lost: u64,
    /// Packets of the service dropped by the gate.
    pub gated_out: u64,
    /// Client packets dropped by the gate.
    pub gated_in: u64,
    /// Replayed segments acknowledged for the client.
    pub self_acks: u64,
    /// Segments translated on the way to the client.
    pub translated_out: u64,
    /// Segments translated on the way to the server.
    pub translated_in: u64,
    /// Segments of connections that are not protected.
    pub untracked: u64,
    /// SYNs from which options were removed.
    pub stripped: u64,
    /// Connections that found no room in the table.
    pub table_full: u64,
    /// Events that found no room in the ring.
    pub events_lost: u64,
    /// Acknowledgements of the logger, each counted once.
    pub link_acks: u64,
    /// Packets that pretended to be an acknowledgement of the logger.
    pub link_forged: u64,
    /// Beginnings of answers that went to the logger at once.
    pub link_heads: u64,
    /// SYN-ACKs that went to the logger first.
    pub link_opens: u64,
    /// Segments that told the client less than the server's TCP had.
    pub acks_clamped: u64,
    /// Pure ACKs without news for the client.
    pub acks_withheld: u64,
    /// ACKs made from acknowledgements of the logger.
    pub acks_made: u64,
    /// Packets dropped because the lease was over.
    pub fenced: u64,
    /// Segments that no copy was made of.
    pub mirror_skipped: u64,
    /// Replayed segments that waited for a comparison of later output.
    pub replay_held: u64,
    /// Connections of which only samples are digested from then on.
    pub sampled: u64,
}

/// Verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// On to the next program, and then to the receiver.
    Next,
    /// Dropped.
    Drop,
    /// Dropped, while the kernel's TCP takes the packet for sent.
    Withheld,
    /// Redirected: the packet enters through this interface's [`SouthSide::ingress`].
    RedirectIngress,
    /// Leaves through another interface, or this interface: for the client or the logger, according
    /// to the mark.
    Redirect,
}

/// An event for user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Time of `CLOCK_MONOTONIC`.
    pub at: Duration,
    /// The incarnation of the server at that time.
    pub incarnation: u32,
    /// The kind, with the fields of the kind.
    pub kind: EventKind,
}

/// Kinds of events: `enum event_kind` of `bpf/intf/event.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A process of the service crashed, and the gate is shut.
    Death {
        /// The process.
        pid: u32,
        /// Exit status, as in `wait(2)`.
        status: u32,
    },
    /// The server listens on a protected port.
    Listening,
    /// A connection has no complete record any more.
    Unprotected {
        /// The connection.
        key: FlowKey,
        /// Number of the connection; 0 before the first number.
        flow: FlowId,
        /// The reason.
        reason: UnprotectedReason,
    },
    /// A replayed outstream differs from the record: no segment of the connection leaves any more.
    Diverged {
        /// The connection.
        key: FlowKey,
        /// Number of the connection.
        flow: FlowId,
        /// The first byte that differs, client space.
        at: SeqNumber,
    },
    /// A connection that had lost the logger begins a request, and is recorded again.
    Reprotected {
        /// The connection.
        key: FlowKey,
        /// Number of the connection.
        flow: FlowId,
        /// The first byte of the new record.
        instream: SeqNumber,
        /// End of the outstream that the client had been sent.
        outstream: SeqNumber,
    },
    /// A handshake with an earlier incarnation was completed: the connection waits for a splice.
    Late {
        /// The connection.
        key: FlowKey,
        /// Number of the connection.
        flow: FlowId,
    },
}

/// The south side wrap of one service: the maps, and (in the other modules) the programs.
#[derive(Debug, Clone)]
pub struct SouthSide {
    /// Connections whose handshake is complete.
    pub(crate) flows: BTreeMap<FlowKey, Flow>,
    /// Handshakes under way. A flood of SYNs evicts only other handshakes.
    pub(crate) half_open: LruMap<FlowKey, Flow>,
    /// TCP headers of SYN-ACKs that wait for the logger.
    pub(crate) synacks: LruMap<FlowKey, Vec<u8>>,
    /// Expected replayed output, by flow and chunk number.
    pub(crate) expected: BTreeMap<(FlowId, u32), Expect>,
    pub(crate) shared: Shared,
}

/// State that all programs share, apart from the flows.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) endpoints: BTreeSet<SocketAddr>,
    pub(crate) service: Service,
    pub(crate) mirror: Ring<MirrorFrame>,
    pub(crate) events: Ring<Event>,
    pub(crate) counters: Counters,
    pub(crate) link: Option<Link>,
    /// The interface by which probes leave for the logger.
    pub(crate) path: Option<u32>,
    pub(crate) copies: VecDeque<Copy>,
    pub(crate) read_cursors: ReadCursors,
    /// Packets that left for clients, besides the packets that calls returned.
    pub(crate) sent: VecDeque<Packet>,
}

impl SouthSide {
    /// A service in the first incarnation, with a heartbeat at `now_ns`.
    #[must_use]
    pub fn new(settings: Settings, now_ns: u64) -> Self {
        let endpoints = settings
            .endpoints
            .iter()
            .map(|end| canonical(*end))
            .collect();
        Self {
            flows: BTreeMap::new(),
            half_open: LruMap::new(settings.max_half_open),
            synacks: LruMap::new(settings.max_half_open),
            expected: BTreeMap::new(),
            shared: Shared {
                endpoints,
                service: Service {
                    gated: false,
                    gated_ns: 0,
                    recovering: false,
                    stopping: false,
                    link_up: false,
                    incarnation: 1,
                    main_pid: 0,
                    heartbeat_ns: now_ns,
                    lease_until_ns: None,
                    next_flow_id: 1,
                },
                mirror: Ring::new(settings.mirror_capacity),
                events: Ring::new(EVENT_RING),
                counters: Counters::default(),
                link: None,
                path: None,
                copies: VecDeque::new(),
                read_cursors: ReadCursors::default(),
                sent: VecDeque::new(),
                settings,
            },
        }
    }

    /// Seed of the key of digests; `None`: no digests are taken.
    #[must_use]
    pub fn digest_seed(&self) -> Option<DigestSeed> {
        let digests = self.shared.settings.digests.as_ref();
        digests.map(|digests| digests.key.seed)
    }

    /// All connections.
    pub fn flows(&self) -> impl Iterator<Item = (&FlowKey, &Flow)> {
        self.flows.iter()
    }

    /// One connection.
    #[must_use]
    pub fn flow(&self, key: &FlowKey) -> Option<&Flow> {
        self.flows.get(key)
    }

    /// How many handshakes are under way.
    #[must_use]
    pub fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// The life of the service.
    #[must_use]
    pub const fn service(&self) -> &Service {
        &self.shared.service
    }

    /// How often things happened.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The next frame for the logger.
    pub fn take_mirror(&mut self) -> Option<MirrorFrame> {
        self.shared.mirror.pop()
    }

    /// The next event.
    pub fn take_event(&mut self) -> Option<Event> {
        self.shared.events.pop()
    }
}

impl Shared {
    /// Without a supervisor no process would ever open the gate again: silence of the supervisor
    /// opens the gate.
    pub(crate) fn abandoned(&self, now_ns: u64) -> bool {
        // A heartbeat may be newer than a time that was read just before the heartbeat.
        now_ns.saturating_sub(self.service.heartbeat_ns) > self.settings.heartbeat_timeout_ns
    }

    pub(crate) fn service_gated(&self, now_ns: u64) -> bool {
        self.service.gated && !self.abandoned(now_ns)
    }

    pub(crate) fn strays_dropped(&self, now_ns: u64) -> bool {
        self.service.recovering && !self.abandoned(now_ns)
    }

    /// Is the record of this flow kept at the other end of a log link? Then the client is told of no
    /// more than is known to be there.
    pub(crate) fn linked(&self, flow: &Flow) -> bool {
        self.settings.link && flow.unprotected.is_none() && !flow.log.ended
    }

    /// Whether this flow's server socket may neither send nor receive. A flow of an earlier
    /// incarnation stays gated until the splice. The kernel finishes a connection that a living
    /// server closed.
    pub(crate) fn flow_gated(&self, flow: &Flow, now_ns: u64) -> bool {
        if flow.server_closing {
            false
        } else if flow.incarnation == self.service.incarnation {
            self.service_gated(now_ns)
        } else {
            !self.abandoned(now_ns)
        }
    }

    /// Without a logger there is no lease, either. A host that needs a lease falls silent soon:
    /// until then the host lets clients wait rather than serve clients without a record.
    pub(crate) fn waits_for_logger(&self, now_ns: u64) -> bool {
        self.service.lease_until_ns.is_some() && !self.abandoned(now_ns)
    }

    /// Whether no packet reaches the flow's server socket now.
    pub(crate) fn flow_stands_still(&self, flow: &Flow, now_ns: u64) -> bool {
        self.flow_gated(flow, now_ns) || matches!(flow.mode, Mode::Splicing | Mode::Diverged)
    }

    pub(crate) fn is_endpoint(&self, address: SocketAddr) -> bool {
        self.endpoints.contains(&canonical(address))
    }

    pub(crate) fn emit(&mut self, kind: EventKind, now_ns: u64) {
        let event = Event {
            at: Duration::from_nanos(now_ns),
            incarnation: self.service.incarnation,
            kind,
        };
        if !self.events.push(EVENT_RECORD, event) {
            self.counters.events_lost += 1;
        }
    }

    pub(crate) fn lose_protection(
        &mut self,
        key: FlowKey,
        flow: &mut Flow,
        reason: UnprotectedReason,
        now_ns: u64,
    ) {
        if flow.unprotected.is_none() {
            flow.unprotected = Some(reason);
            let flow_id = flow.id;
            self.emit(
                EventKind::Unprotected {
                    key,
                    flow: flow_id,
                    reason,
                },
                now_ns,
            );
        }
    }
}

/// The address in the form of packets.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The number of the mark; `None`: no mark of the service.
pub(crate) fn our_mark(mark: u32, base: u32) -> Option<u32> {
    let offset = mark.wrapping_sub(base);
    (offset < MARKS).then_some(offset)
}

#[cfg(test)]
mod tests;
