//! The status as metrics.
//!
//! An HTTP client gets the status from the loop of the service, over the socket of `outlive status`, at most once a
//! second. Silence of the loop is reported, too.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use ::metrics::{Endpoint, Families, Health, Label, Numbers, Unit};
use dataplane::Counters;
use recovery::Count;

use crate::{
    CommitStatus, Status,
    config::ServeConfig,
    control::status_within,
    counters::{CAUSES, LOST},
    error::{ServeError, SystemContext},
    events::counted,
    status::STANDBY,
};

/// Time in which the loop answers a request for the status.
const STATUS_REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Age at which an answer is replaced.
const STATUS_MAX_AGE: Duration = Duration::from_secs(1);

/// Serves the metrics, if configured.
pub(crate) fn show(config: &ServeConfig) -> Result<Option<::metrics::Running>, ServeError> {
    let Some(address) = config.metrics else {
        return Ok(None);
    };
    let endpoint =
        Endpoint::bind(address).map_err(|error| ServeError::Metrics { address, error })?;
    let running = endpoint
        .run(asking(config.run_dir.socket(&config.name)))
        .doing("start the thread of the metrics")?;
    Ok(Some(running))
}

fn asking(socket: PathBuf) -> impl FnMut() -> Result<Status, String> {
    let mut known: Option<(Instant, Status)> = None;
    move || {
        known = known.take().filter(|(at, _)| at.elapsed() < STATUS_MAX_AGE);
        if known.is_none() {
            let status = status_within(&socket, STATUS_REPLY_TIMEOUT);
            let status = status.map_err(|error| format!("serve does not answer: {error}"))?;
            known = Some((Instant::now(), status));
        }
        let status = known.as_ref().map(|(_, status)| status.clone());
        status.ok_or_else(|| "serve does not answer".to_owned())
    }
}

/// Stages of a service, as in the status.
pub(crate) const STAGES: [&str; 7] = [
    "first_start",
    "serving",
    "clearing",
    "starting",
    "listing",
    "recovering",
    STANDBY,
];
const MODES: [&str; 4] = ["observed", "splicing", "spliced", "diverged"];
const STEPS: [&str; 7] = [
    "detected",
    "cleared",
    "restarted",
    "listening",
    "first_spliced",
    "spliced",
    "live",
];

fn label(name: &'static str, value: impl Into<std::borrow::Cow<'static, str>>) -> Vec<Label> {
    vec![(name, value.into())]
}

/// Known kinds, and kinds that occur.
fn each<V: Copy + Default>(
    name: &'static str,
    known: &[&'static str],
    counts: &BTreeMap<String, V>,
) -> Vec<(Vec<Label>, V)> {
    let value = |kind: &str| counts.get(kind).copied().unwrap_or_default();
    let known = known.iter().map(|kind| (label(name, *kind), value(kind)));
    known.collect()
}

impl Numbers for Status {
    fn labels(&self) -> Vec<Label> {
        label("service", self.service.clone())
    }

    fn families(&self, to: &mut Families<'_>) -> fmt::Result {
        self.of_the_service(to)?;
        self.of_connections(to)?;
        self.of_the_record(to)?;
        self.of_the_state(to)?;
        self.of_recoveries(to)?;
        for (name, help) in Counters::DESCRIBED {
            let value = self.counters.get(*name).copied().unwrap_or_default();
            let help = help.trim().trim_end_matches('.');
            to.counter(
                &format!("outlive_dataplane_{name}"),
                Unit::None,
                help,
                value,
            )?;
        }
        Ok(())
    }

    fn health(&self) -> Health {
        let protected = self.connections.saturating_sub(self.unprotected);
        let stands_by = self.stage == STANDBY;
        if let Some(why) = self.not_ready() {
            return Health::Ill(format!("not ready, clients wait: {why}"));
        }
        if !self.logger_up {
            return Health::Ill(format!("not protected: logger {}", self.logger));
        }
        if let Some(why) = &self.record_ended {
            return Health::Ill(format!("not protected: recording has stopped: {why}"));
        }
        if stands_by {
            return Health::Well("another host serves".into());
        }
        Health::Well(format!(
            "protected: {}, and new connections; {} unprotected",
            Count(protected, "connection"),
            self.unprotected
        ))
    }
}

impl Status {
    fn of_the_service(&self, to: &mut Families<'_>) -> fmt::Result {
        let version = label("version", env!("CARGO_PKG_VERSION"));
        to.info("outlive_build", "The program", version)?;
        let stage = if STAGES.contains(&self.stage.as_str()) {
            &self.stage
        } else {
            STAGES[0]
        };
        let help = "Stage of the service; clients wait in every stage but serving";
        to.state("outlive_stage", help, &STAGES, stage)?;
        let help = "Time since serve was started";
        to.gauge("outlive_uptime", Unit::Seconds, help, self.uptime_ms / 1e3)?;
        let help = "1: the main process of the server runs";
        let running = u32::from(self.server_pid.is_some());
        to.gauge("outlive_server_running", Unit::None, help, running)?;
        let help = "Incarnation of the server; the first is 1";
        to.gauge(
            "outlive_server_incarnation",
            Unit::None,
            help,
            self.incarnation,
        )?;
        let help = "Epoch in which this host serves; 0: no epoch was granted";
        let epoch = self.epoch.unwrap_or_default();
        to.gauge("outlive_epoch", Unit::None, help, epoch)?;
        let help = "1: a standby is ready to take over; only on the host that serves";
        let present = self.standby_present.map(|is| (Vec::new(), u32::from(is)));
        to.gauges("outlive_standby_present", Unit::None, help, present)?;
        let help = "1: a replica of the server runs on this standby (--hot)";
        let runs = u32::from(self.replica.is_some());
        to.gauge("outlive_replica_running", Unit::None, help, runs)?;
        let help = "Bytes of the record that the replica has not replayed";
        let lag = self
            .replica
            .as_ref()
            .map(|replica| (Vec::new(), replica.lag_bytes));
        to.gauges("outlive_replica_lag", Unit::Bytes, help, lag)?;
        let help = "1: a logger answers";
        let up = u32::from(self.logger_up);
        to.gauge("outlive_logger_up", Unit::None, help, up)?;
        let help = "Network interfaces with the BPF programs";
        to.gauge(
            "outlive_interfaces",
            Unit::None,
            help,
            self.interfaces.len(),
        )?;
        let help = "Events by kind; warnings by code";
        let events = each("kind", &counted().collect::<Vec<_>>(), &self.totals.events);
        to.counters("outlive_events", Unit::None, help, events)
    }

    fn of_connections(&self, to: &mut Families<'_>) -> fmt::Result {
        let protected = self.connections.saturating_sub(self.unprotected);
        let waiting = self.waiting_for_request;
        let connections = [
            (label("protection", "protected"), protected),
            (label("protection", "from_next_request"), waiting),
            (
                label("protection", "unprotected"),
                self.unprotected.saturating_sub(waiting),
            ),
        ];
        let help = "Open connections by protection";
        to.gauges("outlive_connections", Unit::None, help, connections)?;
        let reasons = self.unprotected_by.iter();
        let reasons = reasons.map(|(reason, count)| (label("reason", reason.clone()), *count));
        let help = "Open connections that would not survive a crash, by reason";
        to.gauges("outlive_unprotected_connections", Unit::None, help, reasons)?;
        let help = "Open connections of the server that the BPF programs do not see";
        to.gauge("outlive_unseen_connections", Unit::None, help, self.unseen)?;
        let help = "Open connections by mode; spliced: carried over a crash";
        let modes = each("mode", &MODES, &self.modes);
        to.gauges("outlive_connection_modes", Unit::None, help, modes)
    }

    fn of_the_record(&self, to: &mut Families<'_>) -> fmt::Result {
        let record = self.record;
        let value = |of: fn(&crate::RecordStatus) -> u64| record.map(|r| (Vec::new(), of(&r)));
        let help = "Recorded bytes: from clients (instream) and from the server (outstream)";
        let bytes = record.into_iter().flat_map(|record| {
            [
                (label("stream", "instream"), record.instream_bytes),
                (label("stream", "outstream"), record.outstream_bytes),
            ]
        });
        to.counters("outlive_recorded", Unit::Bytes, help, bytes)?;
        let help = "Memory of the record";
        let held = record.map(|_| (Vec::new(), self.held_bytes));
        to.gauges("outlive_record_held", Unit::Bytes, help, held)?;
        let help = "Limit of the record, and of the determinant log (--limit-total)";
        to.gauge("outlive_record_limit", Unit::Bytes, help, self.limit_bytes)?;
        let help = "Connections at the logger";
        let known = value(|record| record.connections);
        to.gauges("outlive_recorded_connections", Unit::None, help, known)?;
        let help = "Frames sent to the logger";
        let frames = value(|record| record.frames);
        to.counters("outlive_record_frames", Unit::None, help, frames)?;
        let help = "Frames that the logger refused, by reason";
        let refused = record.into_iter().flat_map(|record| {
            [
                (label("reason", "malformed"), record.malformed_frames),
                (label("reason", "unknown_connection"), record.unknown_frames),
            ]
        });
        to.counters("outlive_record_refused_frames", Unit::None, help, refused)
    }

    /// Metrics of a server with state.
    fn of_the_state(&self, to: &mut Families<'_>) -> fmt::Result {
        let help = "Size of the determinant log (--stateful)";
        let record = self.determinant_log_bytes.map(|bytes| (Vec::new(), bytes));
        to.gauges("outlive_determinant_log", Unit::Bytes, help, record)?;
        let help = "1: the input of the server is recorded (--stateful)";
        let is_recorded = u32::from(self.record_ended.is_none());
        let recorded = self
            .determinant_log_bytes
            .map(|_| (Vec::new(), is_recorded));
        to.gauges("outlive_determinant_log_active", Unit::None, help, recorded)?;
        self.of_commits(to)?;
        let totals = &self.totals;
        let help = "Time to make a checkpoint, beside the server";
        to.histogram("outlive_checkpoint", help, &totals.checkpoints)?;
        let help = "Last checkpoint: the image, and the determinant log before and after";
        let image = self
            .checkpoint
            .map(|last| (label("part", "image"), last.image_bytes));
        let record = totals.last_checkpoint.map(|(before, after)| {
            [
                (label("part", "record_before"), before),
                (label("part", "record_after"), after),
            ]
        });
        let sizes = image.into_iter().chain(record.into_iter().flatten());
        to.gauges("outlive_last_checkpoint", Unit::Bytes, help, sizes)
    }

    fn of_commits(&self, to: &mut Families<'_>) -> fmt::Result {
        let of = |count: fn(CommitStatus) -> u64| {
            let count = self.output_commit.map(count);
            count.map(|count| (Vec::new(), count))
        };
        let help = "Iterations of the event loops of the server (--stateful)";
        to.counters(
            "outlive_output_commit_iterations",
            Unit::None,
            help,
            of(|commits| commits.iterations),
        )?;
        let help = "Times that output of the server waited for the logger";
        to.counters(
            "outlive_output_commit_waits",
            Unit::None,
            help,
            of(|commits| commits.waits),
        )?;
        let help = "Time that output of the server waited for the logger";
        let waited = self
            .output_commit
            .map(|commits| (Vec::new(), commits.waited_ms / 1e3));
        to.counters("outlive_output_commit_wait", Unit::Seconds, help, waited)
    }

    fn of_recoveries(&self, to: &mut Families<'_>) -> fmt::Result {
        let totals = &self.totals;
        let help = "Deaths of the server, by cause";
        let deaths = each("cause", &CAUSES, &totals.deaths);
        to.counters("outlive_deaths", Unit::None, help, deaths)?;
        let help = "Completed recoveries";
        to.counter("outlive_recoveries", Unit::None, help, totals.recoveries)?;
        let help = "Time from the death of the server to the end of the replay";
        to.histogram("outlive_recovery", help, &totals.pauses)?;
        let help = "Steps of the last recovery: time since the death of the server";
        let known = STEPS.iter().filter_map(|step| {
            let ms = totals.last_ms.get(*step)?;
            Some((label("step", *step), *ms / 1e3))
        });
        to.gauges("outlive_last_recovery", Unit::Seconds, help, known)?;
        let help = "Connections that a recovery carried over";
        to.counter(
            "outlive_connections_recovered",
            Unit::None,
            help,
            totals.recovered,
        )?;
        let help = "Connections that a recovery reset, by reason";
        let reset = each("reason", &LOST, &totals.reset);
        to.counters("outlive_connections_reset", Unit::None, help, reset)?;
        let help = "Requests replayed to restarted servers";
        let requests = totals.replayed_requests;
        to.counter("outlive_replayed_requests", Unit::None, help, requests)?;
        let help = "Bytes replayed to restarted servers";
        let replayed = totals.replayed_bytes;
        to.counter("outlive_replayed", Unit::Bytes, help, replayed)?;
        let help = "Repeated output of restarted servers, by way of comparison";
        let verified = [
            (label("outcome", "equal"), totals.equal_bytes),
            (label("outcome", "sampled"), totals.sampled_bytes),
            (label("outcome", "not_compared"), totals.unverified_bytes),
        ];
        to.counters("outlive_verified", Unit::Bytes, help, verified)?;
        let help = "Tolerated differences in repeated output (--verify-ignore-header)";
        to.counter(
            "outlive_tolerated_differences",
            Unit::None,
            help,
            totals.tolerated,
        )
    }
}

#[cfg(test)]
mod tests;
