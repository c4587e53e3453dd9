//! Status of the service.

use std::{collections::BTreeMap, time::Duration};

use super::{ConnectionStatus, ServeError, Service, UnprotectedReason, clock};
use crate::{
    CommitStatus, JSON_VERSION, RecordStatus, Status,
    config::in_words,
    counters::reason_name,
    lease_client::LeaseClient,
    logger::Logger,
    logger_client::LoggerClient,
    north::North,
    status::{FIRST_START, STANDBY},
};
use protocol::control::Statistics;
use recovery::{ReplayMode, Stage};
use rustix::process::Pid;
use south_model::{Flow, Mode};
use wire::{FlowId, FlowKey};

/// A logger that is silent for longer is not asked.
const SILENCE_LIMIT: Duration = Duration::from_millis(500);

impl Service {
    /// The server, or the first process that a daemon has left behind.
    fn main_process(&self) -> Result<Option<Pid>, ServeError> {
        if let Some(server) = &self.server {
            return Ok(Some(server.pid()));
        }
        let is_another = self.stands_by() || self.recovery.stage() == Stage::Clearing;
        let procs = match is_another {
            true => Vec::new(),
            false => self.resources.cgroup.procs()?,
        };
        Ok(procs.first().copied())
    }

    pub(super) fn status_of(&mut self, list: bool) -> Result<Status, ServeError> {
        let flows = self.resources.plane.flows()?;
        let open: Vec<_> = flows
            .iter()
            .filter(|(_, flow)| flow.closed_ns == 0)
            .collect();
        let link = self.resources.logger.link();
        let silence = link.and_then(|link| link.silence(clock::now()));
        let answers = silence.is_none_or(|silence| silence < SILENCE_LIMIT);
        // In a recovery the logger has better things to do.
        let is_serving = self.recovery.stage() == Stage::Serving;
        if answers && (self.recorded.is_none() || is_serving) {
            let asked = self.ask_logger(|logger| logger.statistics())?;
            self.recorded = asked.or(self.recorded);
        }
        let recorded = self.recorded;
        let records = match answers && list && is_serving {
            true => self.recorded_of_each()?,
            false => BTreeMap::new(),
        };
        let logger_up = match &self.resources.logger {
            Logger::Local(_) => true,
            Logger::Remote(link) => link.is_up() || self.stands_by(),
        };
        let counters = self.resources.plane.counters()?.named();
        let record_ended = self.record_ended();
        let (logger, logger_pid, survives) = match &self.resources.logger {
            Logger::Local(client) => (
                "a process of this host".to_owned(),
                Some(client.pid()),
                "kept on this host: survives the server's death, not the host's".to_owned(),
            ),
            Logger::Remote(link) => {
                let words = match self.stands_by() {
                    true => link.granter_status_text(),
                    false => link.status_text(clock::now()),
                };
                let kept = match logger_up {
                    true => "kept by the logger: nothing is acknowledged that is not there",
                    false => "kept by the logger up to the moment when the logger was lost",
                };
                (words, None, kept.to_owned())
            }
        };
        Ok(Status {
            version: JSON_VERSION,
            service: self.config.name.clone(),
            addresses: in_words(&self.config.addresses),
            stage: self.stage_name().to_owned(),
            server_pid: self
                .main_process()?
                .map(|pid| pid.as_raw_pid().unsigned_abs()),
            serve_pid: std::process::id(),
            logger_pid,
            logger,
            incarnation: self.visible_incarnation(),
            uptime_ms: clock::now().saturating_sub(self.began).as_secs_f64() * 1e3,
            replay: match self.config.replay {
                ReplayMode::Connection => "connection".to_owned(),
                ReplayMode::Request => "last unanswered request".to_owned(),
            },
            interfaces: self.resources.plane.mechanisms(),
            connections: open.len(),
            unprotected: open
                .iter()
                .filter(|(_, flow)| record_ended.is_some() || flow.unprotected.is_some())
                .count(),
            unseen: self.unseen.connections(),
            waiting_for_request: open
                .iter()
                .filter(|(_, flow)| record_ended.is_none() && awaits_request(flow))
                .count(),
            spliced: open
                .iter()
                .filter(|(_, flow)| flow.mode == Mode::Spliced)
                .count(),
            replica: self.replica_status(),
            determinant_log_bytes: self.north.as_ref().map(North::record_bytes),
            output_commit: self.north.as_ref().map(commit_status),
            record_ended: record_ended.map(str::to_owned),
            checkpoint: self.north.as_ref().and_then(North::checkpoint),
            recorded_bytes: recorded.map_or(0, |statistics| statistics.instream_bytes),
            held_bytes: recorded.map_or(0, |statistics| statistics.held),
            limit_bytes: self.config.limits.total,
            connection_limit_bytes: self.config.limits.per_connection,
            survives,
            modes: count(open.iter().map(|(_, flow)| mode_name(flow.mode))),
            unprotected_by: count(open.iter().filter_map(|(_, flow)| {
                if record_ended.is_some() {
                    return Some("recording_stopped");
                }
                let code = flow.unprotected?.code();
                Some(UnprotectedReason::from_code(code).map_or("unknown", reason_name))
            })),
            lease: self.resources.lease.as_ref().map(LeaseClient::in_words),
            standby_present: self.standby_present(),
            other_host: self.other_host(),
            epoch: self.resources.lease.as_ref().and_then(LeaseClient::epoch),
            logger_up,
            record: recorded.map(record_status),
            totals: self.counters.clone(),
            counters: counters
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            list: if list {
                let status = |one: &&(FlowKey, Flow)| ConnectionStatus {
                    recorded_bytes: records.get(&one.1.id).copied(),
                    ..connection_status(one, record_ended)
                };
                open.iter().map(status).collect()
            } else {
                Vec::new()
            },
        })
    }
}

impl Service {
    /// Another host serves, as the logger reports.
    pub(super) fn stands_by(&self) -> bool {
        let lease = self.resources.lease.as_ref();
        lease.is_some_and(|lease| lease.stands_by())
    }

    /// The server's present incarnation, counted from 1.
    fn visible_incarnation(&self) -> u32 {
        let unused = self.resources.instance.unused_incarnations();
        self.incarnation.saturating_sub(unused).max(1)
    }

    fn standby_present(&self) -> Option<bool> {
        let position = self.resources.lease.as_ref()?.position();
        position.epoch.map(|_| position.standby)
    }

    /// Bytes of the client in the record of each connection now.
    fn recorded_of_each(&mut self) -> Result<BTreeMap<FlowId, u64>, ServeError> {
        let summaries = self.ask_logger(LoggerClient::summaries)?;
        let whole = summaries.into_iter().flatten();
        let whole = whole.filter(|one| one.unprotected.is_none());
        let bytes = whole.map(|one| {
            let bytes = one.stable_seq.distance_from(one.start);
            (one.flow, bytes.map_or(0, u64::from))
        });
        Ok(bytes.collect())
    }

    /// Name of the other host for people.
    fn other_host(&self) -> Option<String> {
        let position = self.resources.lease.as_ref()?.position();
        match (position.epoch, position.stands_by) {
            (Some(_), _) => position.hosts.stands_by.filter(|_| position.standby),
            (None, Some(_)) => position.hosts.serves,
            (None, None) => None,
        }
    }

    pub(super) fn stage_name(&self) -> &'static str {
        if self.readiness.has_begun() {
            stage_name(self.recovery.stage())
        } else if self.resources.instance.has_begun() {
            FIRST_START
        } else if self.stands_by() {
            STANDBY
        } else {
            "not_started"
        }
    }
}

fn count(names: impl Iterator<Item = &'static str>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Observed => "observed",
        Mode::Splicing => "splicing",
        Mode::Spliced => "spliced",
        Mode::Diverged => "diverged",
    }
}

fn record_status(of: Statistics) -> RecordStatus {
    RecordStatus {
        connections: of.flows,
        unprotected: of.unprotected_flows,
        instream_bytes: of.instream_bytes,
        outstream_bytes: of.outstream_bytes,
        frames: of.frames,
        malformed_frames: of.malformed_frames,
        unknown_frames: of.unknown_flow_frames,
    }
}

fn commit_status(north: &North) -> CommitStatus {
    let so_far = north.committed();
    CommitStatus {
        iterations: so_far.loop_iterations,
        waits: so_far.waits,
        waited_ms: Duration::from_nanos(so_far.wait_ns).as_secs_f64() * 1e3,
    }
}

fn awaits_request(flow: &Flow) -> bool {
    let reason = flow.unprotected.map(types::UnprotectedReason::code);
    reason == Some(UnprotectedReason::AwaitsTurn.code())
}

/// `record_ended` is why that of the server has, on which all connections depend.
fn connection_status(
    (key, flow): &(FlowKey, Flow),
    record_ended: Option<&str>,
) -> ConnectionStatus {
    let reason = flow
        .unprotected
        .and_then(|reason| UnprotectedReason::from_code(reason.code()))
        .map(|reason| reason.to_string());
    let ended = record_ended.map(|why| format!("recording has stopped: {why}"));
    ConnectionStatus {
        connection: key.to_string(),
        mode: mode_name(flow.mode).to_owned(),
        unprotected: ended.or(reason),
        instream_bytes: flow
            .client
            .nxt
            .0
            .wrapping_sub(flow.client.isn.0)
            .wrapping_sub(1),
        outstream_bytes: flow
            .client
            .ack
            .0
            .wrapping_sub(flow.server.isn.0)
            .wrapping_sub(1),
        recorded_bytes: None,
    }
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Serving => "serving",
        Stage::Clearing => "clearing",
        Stage::Starting => "starting",
        Stage::Listing => "listing",
        Stage::Recovering => "recovering",
    }
}
