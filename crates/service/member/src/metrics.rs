//! The status as metrics. A scrape gets the status from the loop of the member, over the socket of `outlive status`.

use std::{
    fmt,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use ::metrics::{Endpoint, Families, Health, Label, Numbers, Running, Unit};
use objects::{flow::Unprotected, revive::Reason};
use operator_socket::status_within;

use crate::{
    engine::UNGUARDED,
    error::{MemberError, SystemContext},
    event::KINDS,
    status::{FlowPhase, HeldBy, Status, StoreStatus},
};

/// Time in which the loop answers a request for the status.
const STATUS_REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Age at which an answer is replaced.
const STATUS_MAX_AGE: Duration = Duration::from_secs(1);

const STAGES: [&str; 4] = ["starting", "joining", "silent", "serving"];

/// Serves the metrics at this address, if any.
pub(crate) fn show(
    address: Option<SocketAddr>,
    socket: PathBuf,
) -> Result<Option<Running>, MemberError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let endpoint =
        Endpoint::bind(address).map_err(|error| MemberError::Metrics { address, error })?;
    let mut known: Option<(Instant, Status)> = None;
    let ask = move || {
        if let Some((at, status)) = &known
            && at.elapsed() < STATUS_MAX_AGE
        {
            return Ok(status.clone());
        }
        let status: Status = status_within(&socket, STATUS_REPLY_TIMEOUT)
            .map_err(|error| format!("the member does not answer: {error}"))?;
        known = Some((Instant::now(), status.clone()));
        Ok(status)
    };
    let running = endpoint.run(ask).doing("start the thread of the metrics")?;
    Ok(Some(running))
}

fn label(name: &'static str, value: &'static str) -> Vec<Label> {
    vec![(name, value.into())]
}

impl Numbers for Status {
    fn labels(&self) -> Vec<Label> {
        vec![("member", self.member.clone().into())]
    }

    fn families(&self, to: &mut Families<'_>) -> fmt::Result {
        let version = vec![("version", env!("CARGO_PKG_VERSION").into())];
        to.info("outlive_build", "The program", version)?;
        self.of_the_member(to)?;
        self.of_connections(to)?;
        self.of_revivals(to)?;
        self.of_stores(to)?;
        self.of_the_programs(to)?;
        let help = "Events of the member, by kind";
        let count = |kind: &str| self.totals.events.get(kind).copied().unwrap_or_default();
        let events = KINDS.map(|kind| (label("kind", kind), count(kind)));
        to.counters("outlive_objects_events", Unit::None, help, events)
    }

    fn health(&self) -> Health {
        match self.stage.as_str() {
            "serving" => Health::Well(format!("open connections: {}", self.connections)),
            "starting" => Health::Ill("the server does not listen".into()),
            "joining" => Health::Ill("the balancer has not admitted the member".into()),
            stage => Health::Ill(format!("{stage}: the member has no lease")),
        }
    }
}

impl Status {
    fn of_the_member(&self, to: &mut Families<'_>) -> fmt::Result {
        let help = "Stage of the member; clients are served in the stage serving";
        to.state("outlive_objects_stage", help, &STAGES, &self.stage)?;
        let uptime = Duration::from_millis(self.uptime_ms).as_secs_f64();
        let help = "Time since the member was started";
        to.gauge("outlive_objects_uptime", Unit::Seconds, help, uptime)?;
        let help = "Incarnation of the server; the first is 1";
        let incarnation = self.server.incarnation;
        to.gauge(
            "outlive_objects_server_incarnation",
            Unit::None,
            help,
            incarnation,
        )?;
        let help = "Epoch of the newest table of members; 0: not in the pool";
        let epoch = self.pool.epoch.unwrap_or_default();
        to.gauge("outlive_objects_epoch", Unit::None, help, epoch)?;
        let help = "Members in the newest table";
        let members = u64::try_from(self.pool.members).unwrap_or(u64::MAX);
        to.gauge("outlive_objects_members", Unit::None, help, members)?;
        let help = "1: the member has a stream to the balancer";
        let is_up = self.pool.epoch.is_some() && self.pool.balancer_lost.is_none();
        let is_up = u32::from(is_up);
        to.gauge("outlive_objects_balancer_up", Unit::None, help, is_up)
    }

    fn of_connections(&self, to: &mut Families<'_>) -> fmt::Result {
        let all = FlowPhase::ALL
            .into_iter()
            .flat_map(|phase| HeldBy::ALL.map(|held_by| (phase, held_by)));
        let flows = all.map(|(phase, held_by)| {
            let labels = vec![
                ("phase", phase.word().into()),
                ("held_by", held_by.word().into()),
            ];
            let count = self.count(|flow| flow.phase == phase && flow.held_by == held_by);
            (labels, count)
        });
        let help = "Open connections, by phase and by the place of the state with which another member would go on";
        to.gauges("outlive_objects_flows", Unit::None, help, flows)?;
        let reasons = Unprotected::ALL.map(Unprotected::label).into_iter();
        let unprotected = reasons.chain([UNGUARDED]).map(|reason| {
            let count = self.unprotected_by.get(reason).copied();
            (label("reason", reason), count.unwrap_or_default())
        });
        let help = "Open connections that no other member could go on with, by reason";
        to.gauges("outlive_objects_unprotected", Unit::None, help, unprotected)
    }

    fn of_revivals(&self, to: &mut Families<'_>) -> fmt::Result {
        let totals = &self.totals;
        let outcomes = [("revived", totals.revived), ("refused", totals.refused())];
        let outcomes = outcomes.map(|(outcome, count)| (label("outcome", outcome), count));
        let help =
            "Connections of dead servers, by outcome: continued (revived), or reset (refused)";
        to.counters("outlive_objects_revivals", Unit::None, help, outcomes)?;
        let refused = Reason::LABELS.map(|reason| {
            let count = totals.refused_by.get(reason).copied();
            (label("reason", reason), count.unwrap_or_default())
        });
        let help = "Connections of dead servers that were reset, by reason";
        to.counters("outlive_objects_refused", Unit::None, help, refused)?;
        let help =
            "Duration of a revival, from the answers of the other members and of the store on";
        to.histogram("outlive_objects_revival", help, &totals.revivals_s)?;
        let help = "Connections whose segments went to the member that serves the connection";
        let forwarded = totals.forwarded;
        to.counter("outlive_objects_forwarded", Unit::None, help, forwarded)?;
        let help = "Segments of unknown connections that were dropped: more than a member looks at";
        let over = totals.over_budget;
        to.counter("outlive_objects_over_budget", Unit::None, help, over)
    }

    fn of_stores(&self, to: &mut Families<'_>) -> fmt::Result {
        let of_store = |store: &StoreStatus| vec![("store", store.store.clone().into())];
        let up = { self.stores.iter() }.map(|store| (of_store(store), u32::from(store.answers)));
        let help = "1: the store answers";
        to.gauges("outlive_objects_store_up", Unit::None, help, up)?;
        let operations = self.stores.iter().flat_map(|store| {
            let operations = store.operations.iter();
            operations.map(move |operation| {
                let of_operation = ("operation", operation.operation.clone().into());
                ([of_store(store), vec![of_operation]].concat(), operation)
            })
        });
        let outcomes = operations.clone().flat_map(|(labels, operation)| {
            let outcomes = operation.outcomes.iter();
            outcomes.map(move |(outcome, count)| {
                let of_outcome = ("outcome", outcome.clone().into());
                ([labels.clone(), vec![of_outcome]].concat(), *count)
            })
        });
        let help = "Operations of a store, by outcome: ok, missing, or the kind of failure";
        let name = "outlive_objects_store_operations";
        to.counters(name, Unit::None, help, outcomes)?;
        let help = "Time from an operation to the answer of the store";
        let answered = operations.filter(|(_, operation)| operation.answers_s.count() > 0);
        let times = answered.map(|(labels, operation)| (labels, &operation.answers_s));
        to.histograms("outlive_objects_store", help, times)
    }

    fn of_the_programs(&self, to: &mut Families<'_>) -> fmt::Result {
        for (counter, help) in COUNTERS {
            let value = self.counters.get(counter).copied().unwrap_or_default();
            let name = match counter {
                "forged" | "parked" => format!("outlive_objects_{counter}"),
                _ => format!("outlive_objects_dataplane_{counter}"),
            };
            to.counter(&name, Unit::None, help, value)?;
        }
        Ok(())
    }
}

/// Counters of the programs, with help texts.
const COUNTERS: [(&str, &str); 23] = [
    (
        "forged",
        "Segments of unknown connections whose timestamps no member has written",
    ),
    (
        "parked",
        "Segments of a server that wait for the end of a revival",
    ),
    (
        "translated_in",
        "Segments translated on their way to the server",
    ),
    (
        "translated_out",
        "Segments translated on their way to clients",
    ),
    (
        "withheld",
        "ACKs withheld, so that the client keeps its request",
    ),
    ("acks_made", "ACKs made at the end of a response"),
    ("fenced", "Packets dropped because the lease was over"),
    ("gated", "Packets of a dead server that the gate dropped"),
    (
        "unknown",
        "Segments of unknown connections that went to user space",
    ),
    (
        "stray",
        "Segments of unknown connections that were left to the kernel",
    ),
    (
        "copies_lost",
        "Segments that user space did not see, because the ring was full, or a client let too many segments wait",
    ),
    (
        "self_acks",
        "Segments of a server before the client's position, acknowledged in the client's name",
    ),
    (
        "exhausted",
        "Segments that waited for an index of timestamps",
    ),
    (
        "edit_failed",
        "Packets dropped because they could not be rewritten",
    ),
    (
        "table_full",
        "Connections for which there was no room in the table",
    ),
    ("events_lost", "Events lost because the ring was full"),
    ("forwarded", "Segments forwarded to other members"),
    (
        "deferred",
        "Segments of the server that waited for the store",
    ),
    (
        "queued",
        "Segments of clients that waited for the end of the response before",
    ),
    (
        "unwrapped",
        "Packets that came from the balancer or a member in UDP (--encapsulate)",
    ),
    (
        "miswrapped",
        "Datagrams to the port of such packets that no host of the pool has sent, dropped",
    ),
    (
        "not_wrapped",
        "Segments of other members' connections that were not forwarded: forwarded once before, or too long in UDP",
    ),
    (
        "strays_dropped",
        "Segments of unknown connections that were dropped: more than the kernel resets",
    ),
];

#[cfg(test)]
mod tests;
