//! The metrics of the logger.
//!
//! Once a second, and only with an endpoint, the loop leaves a snapshot for the endpoint's thread: a few numbers of
//! each session, never a look at a connection. So no request for metrics delays datagrams, and an old snapshot
//! shows that the loop hangs.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ::metrics::{Endpoint, Families, Health, Histogram, Label, Numbers, Unit};

use super::{Event, Service, ServiceError};
use crate::{
    durable::{LogState, Order},
    link::LinkStatistics,
};

/// The loop makes a snapshot once a second. The loop hangs if the snapshot is older than this.
const SNAPSHOT_MAX_AGE: Duration = Duration::from_secs(5);

/// Number of events by kind.
#[derive(Debug, Clone, Default)]
pub(super) struct Events(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Events {
    pub(super) fn count(&self, event: &Event) {
        *lock(&self.0).entry(kind(event)).or_default() += 1;
    }
}

/// Counts that only the metrics need.
#[derive(Debug)]
pub(super) struct Counts {
    events: Events,
    commits: Histogram,
    ordered: Option<Instant>,
    limit_total: u64,
}

impl Counts {
    pub(super) fn new(limit_total: u64) -> Self {
        Self {
            events: Events::default(),
            commits: Histogram::default(),
            ordered: None,
            limit_total,
        }
    }

    pub(super) fn events(&self) -> Events {
        self.events.clone()
    }

    /// The writer got this order.
    pub(super) fn ordered(&mut self, order: &Order) {
        self.ordered = matches!(order, Order::Write(_)).then(Instant::now);
    }

    /// The writer has carried out the order.
    pub(super) fn committed(&mut self) {
        if let Some(ordered) = self.ordered.take() {
            self.commits.observe(ordered.elapsed().as_secs_f64());
        }
    }
}

/// A number of a session.
type Count = fn(&OfSession) -> u64;

#[derive(Debug, Clone)]
struct OfSession {
    service: String,
    instance: u64,
    half_open: usize,
    link: LinkStatistics,
    journal: journal::Statistics,
    /// Determinants of a server with state, and images of the server, bytes.
    determinants: u64,
    images: u64,
}

/// All numbers at one moment.
#[derive(Debug, Clone)]
struct Snapshot {
    taken: Instant,
    uptime: Duration,
    sessions: Vec<OfSession>,
    detached: usize,
    streams: usize,
    strangers: u64,
    closed_windows: u64,
    limit_total: u64,
    log: Option<(LogState, u64)>,
    commits: Histogram,
    events: BTreeMap<&'static str, u64>,
}

/// The snapshot, shared with the endpoint.
pub(super) struct Shown {
    latest: Arc<Mutex<Option<Snapshot>>>,
    _running: ::metrics::Running,
}

impl Shown {
    /// Metrics at this address, if any.
    pub(super) fn at(address: Option<SocketAddr>) -> Result<Option<Self>, ServiceError> {
        let Some(address) = address else {
            return Ok(None);
        };
        let endpoint =
            Endpoint::bind(address).map_err(|error| ServiceError::Metrics { address, error })?;
        let latest: Arc<Mutex<Option<Snapshot>>> = Arc::default();
        let theirs = Arc::clone(&latest);
        let _running = endpoint.run(move || {
            let snapshot = lock(&theirs).clone();
            snapshot.ok_or_else(|| "the logger is about to begin".to_owned())
        })?;
        Ok(Some(Self { latest, _running }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data are valid after a panic of another thread, too.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Makes a snapshot for the endpoint.
    pub(super) fn show(&self) {
        if let Some(shown) = &self.shown {
            *lock(&shown.latest) = Some(self.snapshot());
        }
    }

    fn snapshot(&self) -> Snapshot {
        let sessions = self.sessions.iter().map(|(attach, session)| OfSession {
            service: attach.service.clone(),
            instance: attach.instance,
            half_open: session.half_open(),
            link: session.statistics(),
            journal: session.journal().statistics(),
            determinants: session.held_by_determinants(),
            images: session.held_by_images(),
        });
        Snapshot {
            taken: Instant::now(),
            uptime: self.now(),
            sessions: sessions.collect(),
            detached: self.sessions.detached(),
            streams: self.clients.len(),
            strangers: self.sessions.strangers(),
            closed_windows: self.unserved.told(),
            limit_total: self.counts.limit_total,
            log: self.out.log(),
            commits: self.counts.commits.clone(),
            events: lock(&self.counts.events.0).clone(),
        }
    }
}

const LOG_STATES: [&str; 4] = ["none", "durable", "catching_up", "failed"];

const fn log_state(log: Option<(LogState, u64)>) -> &'static str {
    match log {
        None => "none",
        Some((LogState::Durable, _)) => "durable",
        Some((LogState::CatchingUp, _)) => "catching_up",
        Some((LogState::Failed, _)) => "failed",
    }
}

const EVENTS: [&str; 19] = [
    "listening",
    "restored",
    "log_failed",
    "log_recovered",
    "attached",
    "holder_released",
    "granted",
    "two_services",
    "unserved",
    "inherited",
    "detached",
    "forgotten",
    "refused",
    "keys_changed",
    "zero_window_acks_not_sent",
    "keys_not_read",
    "datagrams_not_read",
    "grants_not_stored",
    "stopping",
];

/// The event's name as in JSON. An event that sums up others has the name of these others.
const fn kind(event: &Event) -> &'static str {
    match event {
        Event::Listening { .. } => "listening",
        Event::Restored { .. } => "restored",
        Event::LogFailed { .. } => "log_failed",
        Event::LogRecovered => "log_recovered",
        Event::Attached { .. } => "attached",
        Event::HolderReleased { .. } => "holder_released",
        Event::Granted { .. } => "granted",
        Event::TwoServices { .. } => "two_services",
        Event::Unserved { .. } => "unserved",
        Event::Inherited { .. } => "inherited",
        Event::Detached { .. } => "detached",
        Event::Forgotten { .. } => "forgotten",
        Event::Refused { .. } | Event::RefusedMore { .. } => "refused",
        Event::KeysChanged => "keys_changed",
        Event::Warning { code, .. } => code.word(),
        Event::Stopping => "stopping",
    }
}

impl Numbers for Snapshot {
    fn labels(&self) -> Vec<Label> {
        Vec::new()
    }

    fn families(&self, to: &mut Families<'_>) -> fmt::Result {
        self.of_the_logger(to)?;
        self.of_records(to)?;
        self.of_links(to)
    }

    fn health(&self) -> Health {
        let age = self.taken.elapsed();
        if age > SNAPSHOT_MAX_AGE {
            return Health::Ill(format!(
                "the logger has not answered for {} s",
                age.as_secs()
            ));
        }
        match self.log {
            Some((LogState::Failed, _)) => {
                Health::Ill("records are in memory only: the log cannot be written".into())
            }
            Some((LogState::CatchingUp, _)) => Health::Ill(
                "records are in memory only: the log works again, but does not have all records yet"
                    .into(),
            ),
            Some((LogState::Durable, _)) | None => Health::Well(format!(
                "records of {} services; {} services attached",
                self.sessions.len(),
                self.sessions.len().saturating_sub(self.detached)
            )),
        }
    }
}

impl Snapshot {
    fn of_the_logger(&self, to: &mut Families<'_>) -> fmt::Result {
        let version = vec![("version", env!("CARGO_PKG_VERSION").into())];
        to.info("outlive_build", "The program", version)?;
        let uptime = self.uptime.as_secs_f64();
        let help = "Time since the logger was started";
        to.gauge("outlive_logger_uptime", Unit::Seconds, help, uptime)?;
        let help = "Services with records, by state";
        let here = self.sessions.len().saturating_sub(self.detached);
        let sessions = [("attached", here), ("detached", self.detached)]
            .map(|(state, count)| (vec![("state", state.into())], count));
        to.gauges("outlive_logger_sessions", Unit::None, help, sessions)?;
        let help = "Open control streams, also without authentication";
        to.gauge(
            "outlive_logger_control_streams",
            Unit::None,
            help,
            self.streams,
        )?;
        let help = "Limit of all records together (--limit-total)";
        to.gauge("outlive_logger_limit", Unit::Bytes, help, self.limit_total)?;
        let help = "Datagrams from addresses without a service";
        to.counter(
            "outlive_logger_stray_datagrams",
            Unit::None,
            help,
            self.strangers,
        )?;
        let help = "Zero-window ACKs sent to clients while no host served (--zero-window-acks)";
        to.counter(
            "outlive_logger_zero_window_acks",
            Unit::None,
            help,
            self.closed_windows,
        )?;
        let help = "State of the durable log";
        to.state("outlive_logger_log", help, &LOG_STATES, log_state(self.log))?;
        let help = "Size of the files of the durable log";
        let size = self.log.map(|(_, size)| (Vec::new(), size));
        to.gauges("outlive_logger_log_size", Unit::Bytes, help, size)?;
        let help = "Time of a commit to the durable log";
        to.histogram("outlive_logger_commit", help, &self.commits)?;
        let help = "Events of the logger, by kind";
        let count = |kind| self.events.get(kind).copied().unwrap_or_default();
        let events = EVENTS.map(|kind| (vec![("kind", kind.into())], count(kind)));
        to.counters("outlive_logger_events", Unit::None, help, events)
    }

    /// A value of each session.
    fn each<V>(&self, value: impl Fn(&OfSession) -> V) -> Vec<(Vec<Label>, V)> {
        self.by("", [("", value)])
    }

    /// Some values of each session, told apart by a label.
    fn by<V, const N: usize>(
        &self,
        label: &'static str,
        values: [(&'static str, impl Fn(&OfSession) -> V); N],
    ) -> Vec<(Vec<Label>, V)> {
        let mut all = Vec::new();
        for session in &self.sessions {
            for (kind, value) in &values {
                let mut labels = vec![
                    ("service", session.service.clone().into()),
                    ("session", format!("{:016x}", session.instance).into()),
                ];
                if !label.is_empty() {
                    labels.push((label, (*kind).into()));
                }
                all.push((labels, value(session)));
            }
        }
        all
    }

    fn of_records(&self, to: &mut Families<'_>) -> fmt::Result {
        type Size = fn(&OfSession) -> usize;
        let help = "Connections of a service, by protection";
        let connections: [(_, Size); 2] = [
            ("protected", |s| {
                s.journal.connections.saturating_sub(s.journal.unprotected)
            }),
            ("unprotected", |s| s.journal.unprotected),
        ];
        let connections = self.by("protection", connections);
        to.gauges("outlive_logger_connections", Unit::None, help, connections)?;
        let help = "Connections whose clients have sent nothing yet";
        let half_open = self.each(|s| s.half_open);
        to.gauges(
            "outlive_logger_half_open_connections",
            Unit::None,
            help,
            half_open,
        )?;
        let help = "Memory of records, by use: connections (held), free blocks (idle), determinants and checkpoint images of servers with state";
        let memory: [(_, Count); 4] = [
            ("held", |s| s.journal.held),
            ("idle", |s| s.journal.idle),
            ("determinants", |s| s.determinants),
            ("images", |s| s.images),
        ];
        let memory = self.by("use", memory);
        to.gauges("outlive_logger_memory", Unit::Bytes, help, memory)?;
        let help = "Recorded bytes: from clients (instream) and from the server (outstream)";
        let recorded: [(_, Count); 2] = [
            ("instream", |s| s.journal.instream.recorded),
            ("outstream", |s| s.journal.outstream.recorded),
        ];
        let recorded = self.by("stream", recorded);
        to.counters("outlive_logger_recorded", Unit::Bytes, help, recorded)?;
        let help = "Retransmitted bytes of clients";
        let again = self.each(|s| s.journal.instream.duplicate);
        to.counters("outlive_logger_retransmitted", Unit::Bytes, help, again)?;
        let help = "Retransmitted bytes of clients that differ from the record";
        let others = self.each(|s| s.journal.instream.conflicting);
        to.counters(
            "outlive_logger_mismatched_retransmit",
            Unit::Bytes,
            help,
            others,
        )?;
        let help = "Changes of connections";
        let changes: [(_, Count); 3] = [
            ("opened", |s| s.journal.opened),
            ("closed", |s| s.journal.closed),
            ("unprotected", |s| s.journal.became_unprotected),
        ];
        let changes = self.by("change", changes);
        to.counters(
            "outlive_logger_connection_changes",
            Unit::None,
            help,
            changes,
        )?;
        let help = "Requests after the first request of each connection";
        let turns = self.each(|s| s.journal.turns);
        to.counters("outlive_logger_requests", Unit::None, help, turns)
    }

    fn of_links(&self, to: &mut Families<'_>) -> fmt::Result {
        let help = "Datagrams from addresses of services";
        let datagrams = self.each(|s| s.link.datagrams);
        to.counters("outlive_logger_datagrams", Unit::None, help, datagrams)?;
        let help = "Bytes of these datagrams";
        let bytes = self.each(|s| s.link.bytes);
        to.counters("outlive_logger_received", Unit::Bytes, help, bytes)?;
        let help = "Segments with recorded bytes, also repeated segments";
        let segments = self.each(|s| s.link.segments);
        to.counters("outlive_logger_segments", Unit::None, help, segments)?;
        let help = "Acknowledgements sent";
        let acks = self.each(|s| s.link.acks);
        to.counters("outlive_logger_acks", Unit::None, help, acks)?;
        let help = "Refused datagrams, by reason";
        let refused: [(_, Count); 5] = [
            ("malformed", |s| s.link.malformed),
            ("bad_tag", |s| s.link.bad_tags),
            ("damaged", |s| s.link.damaged),
            ("unknown_connection", |s| s.link.unknown),
            ("conflicting_open", |s| s.link.conflicting_opens),
        ];
        let refused = self.by("reason", refused);
        to.counters(
            "outlive_logger_refused_datagrams",
            Unit::None,
            help,
            refused,
        )?;
        let help = "Half-open connections evicted, because too many were half-open";
        let forgotten = self.each(|s| s.link.evicted_half_open);
        to.counters(
            "outlive_logger_half_open_evicted",
            Unit::None,
            help,
            forgotten,
        )
    }
}

#[cfg(test)]
mod tests;
