//! The record of one service instance, and its link.

use std::time::Duration;

use journal::{Determinants, Limits};
use protocol::{
    DigestSeed, UnprotectedReason,
    control::{Attach, Response, Resume},
    link::{
        KeySet, KeySlot, Kind, LinkKey, LinkKeys, Open, Probe, ProbeKind, StreamPosition, VERSION,
        VERSIONS, flow_low,
    },
};
use wire::FlowId;

mod closed_window;
mod determinants;
mod renewal;
mod requests;
mod restoration;
mod segments;
mod truncation;

pub(crate) use self::determinants::answer_standby;
use super::acks::Acks;
use super::flows::{Flow, Flows};
use super::outbox::{Outbox, Peer};
use super::unknown_flows::UnknownFlows;
use super::{Greeting, MAX_HALF_OPEN};
use crate::durable::entry::{Change, Entry};
use crate::ingest::{Ingest, Notice};

/// Limit of waiting notices, above which unknown and refused numbers are not reported.
const MAX_NOTICES: usize = 4096;

/// When a segment without a hole before or after is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckPolicy {
    /// Each segment on arrival.
    EachFrame,
    /// Once per flow after each batch of datagrams.
    EachBatch,
    /// Once per flow, this long after the first waiting segment of the session.
    After(Duration),
}

/// Counts over the lifetime of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkStatistics {
    /// Datagrams from the session's address, and datagrams with determinants for the session.
    pub datagrams: u64,
    /// Bytes of these datagrams, without the headers of UDP and below.
    pub bytes: u64,
    /// Segments with payload or FIN, repeated segments included.
    pub segments: u64,
    /// Segments without payload and FIN, which report how far the client has received the outstream.
    pub progress: u64,
    /// Response heads.
    pub heads: u64,
    /// Datagrams with determinants.
    pub determinants: u64,
    /// Acknowledgements.
    pub acks: u64,
    /// Datagrams of another protocol or version, of the other direction, or without a place in a connection.
    pub malformed: u64,
    /// Datagrams with a tag that none of the session's keys makes.
    pub bad_tags: u64,
    /// Segments with a wrong checksum.
    pub damaged: u64,
    /// Segments of unknown flows.
    pub unknown: u64,
    /// OPENs that contradict the known numbers of a flow, or have the reserved number.
    pub conflicting_opens: u64,
    /// Half-open connections that were evicted because there were too many.
    pub evicted_half_open: u64,
}

impl LinkStatistics {
    /// Number of rejected datagrams.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.malformed + self.bad_tags + self.damaged + self.unknown + self.conflicting_opens
    }
}

/// The record of one service instance, and its link.
#[derive(Debug)]
pub struct Session {
    instance: u64,
    ingest: Ingest,
    flows: Flows,
    up: KeySet,
    /// The slot of the newest keys.
    newest: KeySlot,
    acks: Acks,
    /// Time of the service's last sign of life.
    active_at: Option<Duration>,
    policy: AckPolicy,
    /// Flows with delayed acknowledgements, and the time of the first.
    due: Vec<FlowId>,
    due_since: Duration,
    unknown: UnknownFlows,
    statistics: LinkStatistics,
    /// [`Outbox::recorded`] when an instream was recorded last.
    recorded: u64,
    /// Seed of the key of the output hashes in the records.
    digests: Option<DigestSeed>,
    /// Memory limit that the service asked for, bytes.
    wanted: u64,
    /// Memory limit in force, bytes.
    limit: u64,
    /// Of a server with state: the determinants of its processes.
    determinants: Determinants,
    /// First number of the histories of these determinants, distinct from the numbers of other logger processes,
    /// which may have had the same record.
    first_history: u64,
    /// Streams to acknowledge, with the address of the process.
    grown: Vec<(Peer, StreamPosition)>,
}

impl Session {
    /// A session without keys and address, which no service can reach yet.
    pub(super) fn new(attach: &Attach, policy: AckPolicy) -> Self {
        let limits = Limits {
            per_connection: attach.per_connection,
            total: attach.total,
            connections: usize::try_from(attach.connections).unwrap_or(usize::MAX),
        };
        Self {
            instance: attach.instance,
            ingest: Ingest::of_a_link(limits, attach.replay),
            flows: Flows::default(),
            up: KeySet::EMPTY,
            newest: KeySlot::Zero,
            acks: Acks {
                to: None,
                version: VERSION,
                down: KeySet::EMPTY,
                slot: KeySlot::Zero,
                counter: 0,
                count: 0,
            },
            active_at: None,
            policy,
            due: Vec::new(),
            due_since: Duration::ZERO,
            unknown: UnknownFlows::default(),
            statistics: LinkStatistics::default(),
            recorded: 0,
            digests: None,
            wanted: attach.total,
            limit: attach.total,
            determinants: Determinants::default(),
            first_history: 0,
            grown: Vec::new(),
        }
    }

    /// The service has attached. Returns the new link keys.
    pub(super) fn attached(
        &mut self,
        attach: &Attach,
        peer: Peer,
        greeting: &Greeting,
    ) -> LinkKeys {
        self.drop_upload();
        self.acks.to = Some(peer);
        // A service without a common version was refused.
        self.acks.version = VERSIONS.agree(attach.link).unwrap_or(VERSION);
        self.acks.counter = self.acks.counter.max(greeting.counter);
        self.wanted = attach.total;
        if self.first_history == 0 {
            self.first_history = greeting.counter;
        }
        if self.up == KeySet::EMPTY {
            // The first keys are in use at once.
            self.acks.slot = KeySlot::One;
            let keys = self.rekey(greeting.up, greeting.down);
            self.acks.slot = keys.slot;
            return keys;
        }
        self.rekey(greeting.up, greeting.down)
    }

    fn put(&mut self, slot: KeySlot, up: LinkKey, down: LinkKey) {
        self.up.put(slot, up);
        self.acks.down.put(slot, down);
        self.newest = slot;
    }

    /// Puts new keys into the slot that the service does not use. Acknowledgements use the new keys once the
    /// service has used the new keys.
    pub fn rekey(&mut self, up: LinkKey, down: LinkKey) -> LinkKeys {
        let slot = self.acks.slot.other();
        self.put(slot, up, down);
        LinkKeys {
            version: self.acks.version,
            slot,
            up,
            down,
        }
    }

    pub(super) const fn peer(&self) -> Option<Peer> {
        self.acks.to
    }

    /// Counts over the lifetime of the session.
    #[must_use]
    pub const fn statistics(&self) -> LinkStatistics {
        LinkStatistics {
            acks: self.acks.count,
            ..self.statistics
        }
    }

    /// Number of connections without a segment from the client.
    #[must_use]
    pub const fn half_open(&self) -> usize {
        self.flows.half_open()
    }

    /// The journal of the session.
    #[must_use]
    pub fn journal(&self) -> &journal::Journal {
        &self.ingest.journal
    }

    pub(super) const fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Sets the memory limit of the record, bytes.
    pub(super) fn limit_total(&mut self, total: u64) {
        self.limit = total;
        let left = total.saturating_sub(self.determinants.held());
        self.ingest.journal.limit_total(left);
    }

    /// Memory of the session, bytes.
    pub(super) fn held(&self) -> u64 {
        let statistics = self.ingest.journal.statistics();
        statistics.held + statistics.idle + self.determinants.held()
    }

    /// Memory of the determinants of a server with state, bytes.
    #[must_use]
    pub fn held_by_determinants(&self) -> u64 {
        self.determinants.held() - self.determinants.held_by_images()
    }

    /// Memory of images of a server with state, bytes.
    #[must_use]
    pub fn held_by_images(&self) -> u64 {
        self.determinants.held_by_images()
    }

    /// Frees unused memory. To be called about once a second.
    pub(super) fn trim(&mut self) {
        self.ingest.journal.trim();
    }

    /// The next unsolicited message for the service.
    pub fn notice(&mut self) -> Option<Response> {
        self.ingest.notices.pop_front().map(Response::from)
    }

    /// Handles a datagram from the session's address.
    pub fn take(&mut self, datagram: &[u8], now: Duration, out: &mut Outbox) {
        self.statistics.datagrams += 1;
        self.statistics.bytes += u64::try_from(datagram.len()).unwrap_or(u64::MAX);
        match Kind::of(datagram) {
            Ok(Kind::Segment) => self.segment(datagram, now, out),
            Ok(Kind::Open) => match Open::decode(datagram, &self.up) {
                Ok(open) => self.open(&open, now, out),
                Err(_) => self.statistics.bad_tags += 1,
            },
            Ok(Kind::Probe) => match Probe::decode(ProbeKind::Probe, datagram, &self.up) {
                Ok(probe) => self.probe(probe, now, out),
                Err(_) => self.statistics.bad_tags += 1,
            },
            // These kinds have other sources or the other direction.
            Ok(Kind::Determinants | Kind::Ack | Kind::Probed | Kind::Stable) | Err(_) => {
                self.statistics.malformed += 1;
            }
        }
    }

    /// Ends a batch of datagrams: sends the acknowledgements that are due.
    pub fn settle(&mut self, now: Duration, out: &mut Outbox) {
        if self.due_at().is_none_or(|at| now >= at) {
            let mut due = std::mem::take(&mut self.due);
            for id in due.drain(..) {
                if let Some(flow) = self.flows.get_mut(id).filter(|flow| flow.due) {
                    self.acks.send(flow, &self.ingest.journal, out);
                }
            }
            self.due = due;
        }
        // Last: these datagrams acknowledge all datagrams before, without an additional packet.
        self.send_stable(out);
    }

    /// Time at which delayed acknowledgements are due.
    #[must_use]
    pub fn due_at(&self) -> Option<Duration> {
        match self.policy {
            AckPolicy::After(delay) if !self.due.is_empty() => Some(self.due_since + delay),
            _ => None,
        }
    }

    /// The service has given a sign of life.
    pub const fn on_activity(&mut self, now: Duration) {
        self.active_at = Some(now);
    }

    /// Time of the service's last sign of life: a datagram with a right tag, or [`Session::on_activity`]. `None`
    /// before the first sign after the log was read.
    #[must_use]
    pub const fn active_at(&self) -> Option<Duration> {
        self.active_at
    }

    /// A datagram with a right tag, made with the keys in this slot.
    fn on_keyed_datagram(&mut self, slot: KeySlot, now: Duration) {
        self.on_activity(now);
        if slot == self.newest {
            self.acks.slot = slot;
        }
    }

    fn probe(&mut self, probe: Probe, now: Duration, out: &mut Outbox) {
        self.on_keyed_datagram(probe.slot, now);
        let (Some(to), Some(key)) = (self.acks.to, self.acks.down.get(self.acks.slot)) else {
            return;
        };
        let probed = Probe {
            version: probe.version,
            kind: ProbeKind::Probed,
            slot: self.acks.slot,
            counter: probe.counter,
        };
        out.probed(to, &probed.encode(key));
    }

    fn open(&mut self, open: &Open, now: Duration, out: &mut Outbox) {
        self.on_keyed_datagram(open.slot, now);
        if open.flow == FlowId::RESERVED {
            self.statistics.conflicting_opens += 1;
            return;
        }
        if let Some(flow) = self.flows.get_mut(open.flow) {
            // The timestamp of the SYN-ACK has advanced since, and is not compared.
            if (flow.key, flow.client_isn, flow.server_isn)
                == (open.key, open.client_isn, open.server_isn)
            {
                self.acks.send(flow, &self.ingest.journal, out);
            } else {
                self.statistics.conflicting_opens += 1;
            }
            return;
        }
        if self.flows.half_open() >= MAX_HALF_OPEN {
            self.evict_half_open(out);
        }
        let journal = &mut self.ingest.journal;
        let mut opened = journal.open(open.flow, open.client_isn, open.server_isn);
        // Half-open connections must not keep other clients out.
        if opened.is_err() && self.evict_half_open(out) {
            let journal = &mut self.ingest.journal;
            opened = journal.open(open.flow, open.client_isn, open.server_isn);
        }
        if opened.is_err() {
            // Limit the notices: for each SYN of a flood the service would search all connections and emit an
            // event.
            let few = self.ingest.notices.len() < MAX_NOTICES;
            if few && self.unknown.is_due(flow_low(open.flow), now) {
                self.too_many(open.flow);
            }
            return;
        }
        let beginning = Resume {
            flow: open.flow,
            key: open.key,
            client_isn: open.client_isn,
            server_isn: open.server_isn,
            instream: open.client_isn + 1,
            outstream: open.server_isn + 1,
            handshake: open.handshake,
        };
        out.record(self.instance, &Entry::Opened(beginning));
        let mut flow = Flow::new(&beginning);
        self.acks.send(&mut flow, &self.ingest.journal, out);
        self.flows.insert(flow);
    }

    fn too_many(&mut self, flow: FlowId) {
        let reason = UnprotectedReason::TooManyConnections;
        self.ingest
            .notices
            .push_back(Notice::Unprotected(flow, reason));
    }

    fn evict_half_open(&mut self, out: &mut Outbox) -> bool {
        let Some(id) = self.flows.remove_oldest_half_open() else {
            return false;
        };
        self.ingest.journal.close(id);
        out.record(self.instance, &Entry::Changed(id, Change::Closed));
        self.statistics.evicted_half_open += 1;
        true
    }
}
