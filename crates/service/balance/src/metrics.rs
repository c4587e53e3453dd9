//! The metrics of the balancer. Once a second, and only with an endpoint, the loop leaves a snapshot for the endpoint's
//! thread: an old snapshot shows that the loop hangs.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ::metrics::{Endpoint, Families, Health, Label, Numbers, Unit};

use crate::{
    error::{BalanceError, SystemContext},
    event::Event,
    status::{PacketCounts, Status},
};

/// The loop makes a snapshot once a second. The loop hangs if the snapshot is older than this.
const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(5);

/// Kinds of events.
const EVENT_KINDS: [&str; 19] = [
    "listening",
    "table",
    "joined",
    "left",
    "draining",
    "drained",
    "declared_dead",
    "stream_lost",
    "refused",
    "keys_changed",
    "keys_not_read",
    "address_taken",
    "address_not_held",
    "interface_not_attached",
    "member_not_on_link",
    "register_lost",
    "register_back",
    "on_change_failed",
    "stopping",
];

/// All numbers at one moment.
#[derive(Debug, Clone)]
struct Snapshot {
    taken: Instant,
    uptime: Duration,
    status: Status,
    events: BTreeMap<&'static str, u64>,
}

/// The snapshot, shared with the endpoint, and the counts of events.
pub(crate) struct Shown {
    latest: Arc<Mutex<Option<Snapshot>>>,
    events: BTreeMap<&'static str, u64>,
    started: Instant,
    _running: ::metrics::Running,
}

impl Shown {
    /// Metrics at this address, if any.
    pub(crate) fn at(address: Option<SocketAddr>) -> Result<Option<Self>, BalanceError> {
        let Some(address) = address else {
            return Ok(None);
        };
        let endpoint =
            Endpoint::bind(address).map_err(|error| BalanceError::Metrics { address, error })?;
        let latest: Arc<Mutex<Option<Snapshot>>> = Arc::default();
        let theirs = Arc::clone(&latest);
        let running = endpoint.run(move || {
            let snapshot = lock(&theirs).clone();
            snapshot.ok_or_else(|| "the balancer is about to begin".to_owned())
        });
        Ok(Some(Self {
            latest,
            events: BTreeMap::new(),
            started: Instant::now(),
            _running: running.doing("serve the metrics")?,
        }))
    }

    pub(crate) fn count(&mut self, event: &Event) {
        *self.events.entry(event.kind()).or_default() += 1;
    }

    pub(crate) fn show(&self, status: Status) {
        *lock(&self.latest) = Some(Snapshot {
            taken: Instant::now(),
            uptime: self.started.elapsed(),
            status,
            events: self.events.clone(),
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data are valid after a panic of another thread, too.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Numbers for Snapshot {
    fn labels(&self) -> Vec<Label> {
        vec![("pool", self.status.pool.clone().into())]
    }

    fn families(&self, to: &mut Families<'_>) -> fmt::Result {
        let version = vec![("version", env!("CARGO_PKG_VERSION").into())];
        to.info("outlive_build", "The program", version)?;
        let uptime = self.uptime.as_secs_f64();
        let help = "Time since the balancer was started";
        to.gauge("outlive_balance_uptime", Unit::Seconds, help, uptime)?;
        let status = &self.status;
        let count = |draining: bool| {
            let members = status.members.iter();
            let members = members.filter(|member| member.in_table && member.draining == draining);
            members.count()
        };
        let help = "Members in the table, by state; draining members get no new connections";
        let members = [("serving", count(false)), ("draining", count(true))]
            .map(|(state, count)| (vec![("state", state.into())], count));
        to.gauges("outlive_balance_members", Unit::None, help, members)?;
        let help = "Epoch of the table of members";
        to.gauge("outlive_balance_epoch", Unit::None, help, status.epoch)?;
        let help = "Balancers whose leases the members need; 0: the pool has no register";
        to.gauge(
            "outlive_balance_granters",
            Unit::None,
            help,
            status.balancers,
        )?;
        let help = "Packets handed to a member since the member is in the table";
        let packets = status.members.iter();
        let packets = packets.map(|member| {
            let name = member.name.clone().into();
            (vec![("member", name)], member.packets)
        });
        to.counters("outlive_balance_packets", Unit::None, help, packets)?;
        let help = "Packets handed to members, by program";
        let PacketCounts {
            packets,
            xdp_packets,
            ..
        } = status.counts;
        let forwarded = [
            ("tc", packets.saturating_sub(xdp_packets)),
            ("xdp", xdp_packets),
        ]
        .map(|(by, count)| (vec![("program", by.into())], count));
        let name = "outlive_balance_forwarded_packets";
        to.counters(name, Unit::None, help, forwarded)?;
        let help = "Network devices with the program at XDP; 0: tc alone";
        let devices = status.xdp_devices.len();
        to.gauge("outlive_balance_xdp_devices", Unit::None, help, devices)?;
        let help = "Packets of clients that reached no member, by reason";
        let dropped = [
            ("fragment", status.counts.dropped_fragments),
            ("no_member", status.counts.dropped_without_member),
            ("not_wrapped", status.counts.dropped_not_wrapped),
        ];
        let dropped = dropped.map(|(reason, count)| (vec![("reason", reason.into())], count));
        to.counters("outlive_balance_dropped_packets", Unit::None, help, dropped)?;
        let help = "Events of the balancer, by kind; warnings by code";
        let count = |kind| self.events.get(kind).copied().unwrap_or_default();
        let events = EVENT_KINDS.map(|kind| (vec![("kind", kind.into())], count(kind)));
        to.counters("outlive_balance_events", Unit::None, help, events)
    }

    fn health(&self) -> Health {
        let age = self.taken.elapsed();
        if age > SNAPSHOT_AGE_MAX {
            let age = age.as_secs();
            return Health::Ill(format!("the balancer has not answered for {age} s"));
        }
        if let Some(reason) = &self.status.register_failure {
            return Health::Ill(format!("the register does not answer: {reason}"));
        }
        let members = self.status.members.iter().filter(|member| member.in_table);
        match members.count() {
            0 => Health::Ill("the pool has no members: packets of clients are dropped".into()),
            count => Health::Well(format!("{count} members in epoch {}", self.status.epoch)),
        }
    }
}

#[cfg(test)]
mod tests;
