//! The status as metrics.
//!
//! Whoever wants them asks the loop of the service what `outlive status` asks, over the same socket,
//! but not more often than once a second. That it does not answer is news as well.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use dataplane::Counters;
use metrics::{Endpoint, Families, Health, Label, Numbers, Unit};
use recovery::Count;

use crate::{
    CommitStatus, Status,
    config::ServeConfig,
    control::status_within,
    error::{ServeError, SystemContext},
    events::counted,
    status::STANDBY,
    tally::{CAUSES, LOST},
};

/// How long the loop may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);

/// Shows them, if that is wanted.
pub(crate) fn show(config: &ServeConfig) -> Result<Option<metrics::Running>, ServeError> {
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
        known = known.take().filter(|(at, _)| at.elapsed() < FRESH);
        if known.is_none() {
            let status = status_within(&socket, PATIENCE);
            let status = status.map_err(|error| format!("serve does not answer: {error}"))?;
            known = Some((Instant::now(), status));
        }
        let status = known.as_ref().map(|(_, status)| status.clone());
        status.ok_or_else(|| "serve does not answer".to_owned())
    }
}

/// What the service may be doing, as its status has it.
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

/// Those that are known, and those that there are.
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
            return Health::Ill(format!(
                "not protected: the server's record has ended: {why}"
            ));
        }
        if stands_by {
            return Health::Well("another host serves".into());
        }
        Health::Well(format!(
            "protected: {}, and those that come; {} not",
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
        let help = "What the service is doing: in all but serving clients wait";
        to.state("outlive_stage", help, &STAGES, stage)?;
        let help = "Time since serve was started";
        to.gauge("outlive_uptime", Unit::Seconds, help, self.uptime_ms / 1e3)?;
        let help = "Whether the server's main process runs";
        let running = u32::from(self.server_pid.is_some());
        to.gauge("outlive_server_running", Unit::None, help, running)?;
        let help = "The server's present life; the first is 1";
        to.gauge("outlive_server_life", Unit::None, help, self.incarnation)?;
        let help = "The epoch in which this host serves; 0: none was granted";
        let epoch = self.epoch.unwrap_or_default();
        to.gauge("outlive_epoch", Unit::None, help, epoch)?;
        let help = "Whether a standby would go on at once; of the host that serves, where another one could";
        let present = self.standby_present.map(|is| (Vec::new(), u32::from(is)));
        to.gauges("outlive_standby_present", Unit::None, help, present)?;
        let help = "Whether the server follows here while this host stands by (--hot)";
        let follows = u32::from(self.replica.is_some());
        to.gauge("outlive_following", Unit::None, help, follows)?;
        let help = "Bytes of what is followed that it has not replayed";
        let behind = self
            .replica
            .as_ref()
            .map(|replica| (Vec::new(), replica.behind_bytes));
        to.gauges("outlive_following_behind", Unit::Bytes, help, behind)?;
        let help = "Whether a logger answers";
        let up = u32::from(self.logger_up);
        to.gauge("outlive_logger_up", Unit::None, help, up)?;
        let help = "Interfaces that carry the programs";
        to.gauge(
            "outlive_interfaces",
            Unit::None,
            help,
            self.interfaces.len(),
        )?;
        let help = "What outlive events tells, by kind; warnings by their codes";
        let events = each(
            "kind",
            &counted().collect::<Vec<_>>(),
            &self.happened.events,
        );
        to.counters("outlive_events", Unit::None, help, events)
    }

    fn of_connections(&self, to: &mut Families<'_>) -> fmt::Result {
        let protected = self.connections.saturating_sub(self.unprotected);
        let waiting = self.waiting_for_turn;
        let connections = [
            (label("protection", "protected"), protected),
            (label("protection", "from_next_turn"), waiting),
            (
                label("protection", "unprotected"),
                self.unprotected.saturating_sub(waiting),
            ),
        ];
        let help = "Open connections: would they survive a crash";
        to.gauges("outlive_connections", Unit::None, help, connections)?;
        let reasons = self.unprotected_by.iter();
        let reasons = reasons.map(|(reason, count)| (label("reason", reason.clone()), *count));
        let help = "Open connections that would not survive a crash, by the reason";
        to.gauges("outlive_unprotected_connections", Unit::None, help, reasons)?;
        let help = "Open connections of the server that no program sees";
        to.gauge("outlive_unseen_connections", Unit::None, help, self.unseen)?;
        let help = "Open connections by mode: spliced ones were carried over a crash";
        let modes = each("mode", &MODES, &self.modes);
        to.gauges("outlive_connection_modes", Unit::None, help, modes)
    }

    fn of_the_record(&self, to: &mut Families<'_>) -> fmt::Result {
        let record = self.record;
        let value = |of: fn(&crate::RecordStatus) -> u64| record.map(|r| (Vec::new(), of(&r)));
        let help = "Bytes that the logger has recorded, of clients (instream) and of the server";
        let bytes = record.into_iter().flat_map(|record| {
            [
                (label("stream", "instream"), record.instream_bytes),
                (label("stream", "outstream"), record.outstream_bytes),
            ]
        });
        to.counters("outlive_recorded", Unit::Bytes, help, bytes)?;
        let help = "Bytes of memory that the record holds now";
        let held = record.map(|_| (Vec::new(), self.held_bytes));
        to.gauges("outlive_record_held", Unit::Bytes, help, held)?;
        let help = "Most that it may hold, and most that --stateful's record may (--limit-total)";
        to.gauge("outlive_record_limit", Unit::Bytes, help, self.limit_bytes)?;
        let help = "Connections that the logger knows";
        let known = value(|record| record.connections);
        to.gauges("outlive_recorded_connections", Unit::None, help, known)?;
        let help = "Frames that the logger was sent";
        let frames = value(|record| record.frames);
        to.counters("outlive_record_frames", Unit::None, help, frames)?;
        let help = "Frames that the logger did not take";
        let refused = record.into_iter().flat_map(|record| {
            [
                (label("reason", "malformed"), record.malformed_frames),
                (label("reason", "unknown_connection"), record.unknown_frames),
            ]
        });
        to.counters("outlive_record_refused_frames", Unit::None, help, refused)
    }

    /// Of a server with state.
    fn of_the_state(&self, to: &mut Families<'_>) -> fmt::Result {
        let help = "Bytes of what the server was told that its restart replays (--stateful)";
        let record = self.north_bytes.map(|bytes| (Vec::new(), bytes));
        to.gauges("outlive_north_record", Unit::Bytes, help, record)?;
        let help = "Whether what the server is told is recorded, so that its restart is what it was (--stateful)";
        let is_recorded = u32::from(self.record_ended.is_none());
        let recorded = self.north_bytes.map(|_| (Vec::new(), is_recorded));
        to.gauges("outlive_north_recorded", Unit::None, help, recorded)?;
        self.of_commits(to)?;
        let happened = &self.happened;
        let help = "How long checkpoints took that were made, beside the server";
        to.histogram("outlive_checkpoint", help, &happened.checkpoints)?;
        let help = "The last checkpoint: its image, and the record before it was made and after";
        let image = self
            .checkpoint
            .map(|last| (label("of", "image"), last.image_bytes));
        let record = happened.last_checkpoint.map(|(before, after)| {
            [
                (label("of", "record_before"), before),
                (label("of", "record_after"), after),
            ]
        });
        let sizes = image.into_iter().chain(record.into_iter().flatten());
        to.gauges("outlive_last_checkpoint", Unit::Bytes, help, sizes)
    }

    fn of_commits(&self, to: &mut Families<'_>) -> fmt::Result {
        let of = |count: fn(CommitStatus) -> u64| {
            let count = self.commits.map(count);
            count.map(|count| (Vec::new(), count))
        };
        let help = "Turns of the server's event loops in which what it says waits for the logger (--stateful)";
        to.counters(
            "outlive_commit_turns",
            Unit::None,
            help,
            of(|commits| commits.turns),
        )?;
        let help = "How often the server waited for the logger before it said something";
        to.counters(
            "outlive_commit_waits",
            Unit::None,
            help,
            of(|commits| commits.waits),
        )?;
        let help = "How long it waited for that";
        let waited = self
            .commits
            .map(|commits| (Vec::new(), commits.waited_ms / 1e3));
        to.counters("outlive_commit_waited", Unit::Seconds, help, waited)
    }

    fn of_recoveries(&self, to: &mut Families<'_>) -> fmt::Result {
        let happened = &self.happened;
        let help = "Deaths of the server, by what it died of";
        let deaths = each("cause", &CAUSES, &happened.deaths);
        to.counters("outlive_deaths", Unit::None, help, deaths)?;
        let help = "Recoveries that came to their end";
        to.counter("outlive_recoveries", Unit::None, help, happened.recoveries)?;
        let help = "From the server's death until every record was replayed";
        to.histogram("outlive_recovery", help, &happened.pauses)?;
        let help = "The steps of the last recovery, each since the server's death";
        let known = STEPS.iter().filter_map(|step| {
            let ms = happened.last_ms.get(*step)?;
            Some((label("step", *step), *ms / 1e3))
        });
        to.gauges("outlive_last_recovery", Unit::Seconds, help, known)?;
        let help = "Connections that went on in a recovery";
        to.counter("outlive_kept_connections", Unit::None, help, happened.kept)?;
        let help = "Connections that were reset in a recovery, by the reason";
        let lost = each("reason", &LOST, &happened.lost);
        to.counters("outlive_lost_connections", Unit::None, help, lost)?;
        let help = "Requests (times that clients had begun to speak) that restarted servers were given from the record";
        let requests = happened.replayed_turns;
        to.counter("outlive_replayed_requests", Unit::None, help, requests)?;
        let help = "Bytes that restarted servers were given from the record";
        let replayed = happened.replayed_bytes;
        to.counter("outlive_replayed", Unit::Bytes, help, replayed)?;
        let help = "Bytes that restarted servers said again, by how they were compared with what clients had been sent";
        let verified = [
            (label("outcome", "equal"), happened.equal_bytes),
            (label("outcome", "sampled"), happened.sampled_bytes),
            (label("outcome", "not_compared"), happened.unverified_bytes),
        ];
        to.counters("outlive_verified", Unit::Bytes, help, verified)?;
        let help = "Pieces of what they said again that differed where they may";
        to.counter(
            "outlive_tolerated_differences",
            Unit::None,
            help,
            happened.tolerated,
        )
    }
}

#[cfg(test)]
mod tests;
