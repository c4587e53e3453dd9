//! Counters of events.

use std::{collections::BTreeMap, time::Duration};

use ::metrics::Histogram;
use protocol::UnprotectedReason;
use recovery::{Cause, Event as RecoveryEvent, LostReason, Timings};
use serde::{Deserialize, Serialize};

use crate::events::Event;

/// Counts since `serve` was started. Maps have no entry for events that have not happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EventCounters {
    /// Events by kind, warnings by code.
    pub events: BTreeMap<String, u64>,
    /// Deaths by cause: `signal`, `status`, `not_serving`, `host`, `record_reset` or
    /// `not_replayable`.
    pub deaths: BTreeMap<String, u64>,
    /// Completed recoveries.
    pub recoveries: u64,
    /// Connections that recoveries carried over.
    pub recovered: u64,
    /// Connections that were reset, by the reason.
    pub reset: BTreeMap<String, u64>,
    /// Requests replayed to restarted servers.
    #[serde(default)]
    pub replayed_requests: u64,
    /// Bytes replayed to restarted servers.
    pub replayed_bytes: u64,
    /// Repeated bytes of restarted servers, compared and equal.
    pub equal_bytes: u64,
    /// Repeated bytes of which samples were compared.
    #[serde(default)]
    pub sampled_bytes: u64,
    /// Bytes that clients had been sent, and that were not compared.
    pub unverified_bytes: u64,
    /// Tolerated differences in repeated output.
    pub tolerated: u64,
    /// From deaths until every record was replayed, seconds.
    #[serde(rename = "pauses_s")]
    pub pauses: Histogram,
    /// The steps of the last recovery, each from the death, milliseconds.
    pub last_ms: BTreeMap<String, f64>,
    /// Durations of completed checkpoints, seconds.
    #[serde(rename = "checkpoints_s", default)]
    pub checkpoints: Histogram,
    /// Bytes of the record before and after the last checkpoint.
    #[serde(default)]
    pub last_checkpoint: Option<(u64, u64)>,
}

fn one_more(of: &mut BTreeMap<String, u64>, kind: &str) {
    match of.get_mut(kind) {
        Some(count) => *count += 1,
        None => drop(of.insert(kind.to_owned(), 1)),
    }
}

impl EventCounters {
    pub(crate) fn add(&mut self, event: &Event) {
        one_more(&mut self.events, kind(event));
        match event {
            Event::Recovery(event) => self.add_recovery(event),
            Event::Checkpointed {
                released_bytes,
                left_bytes,
                took_ms,
                ..
            } => {
                let took = Duration::from_millis(*took_ms);
                self.checkpoints.observe(took.as_secs_f64());
                self.last_checkpoint = Some((released_bytes + left_bytes, *left_bytes));
            }
            _ => {}
        }
    }

    fn add_recovery(&mut self, event: &RecoveryEvent) {
        match event {
            RecoveryEvent::Died { cause, .. } => one_more(&mut self.deaths, cause_name(cause)),
            RecoveryEvent::ConnectionReset { reason, .. } => {
                one_more(&mut self.reset, lost_name(reason))
            }
            RecoveryEvent::ConnectionsRecovered { connections } => {
                self.recovered += u64::try_from(*connections).unwrap_or(u64::MAX);
            }
            RecoveryEvent::Serving {
                recovered,
                replayed_requests,
                replayed_bytes,
                timings,
                ..
            } => {
                self.recoveries += 1;
                self.recovered += u64::try_from(*recovered).unwrap_or(u64::MAX);
                self.replayed_requests += replayed_requests;
                self.replayed_bytes += replayed_bytes;
                self.pauses.observe(timings.live_ms / 1e3);
                let steps = steps(timings).map(|(step, ms)| (step.to_owned(), ms));
                self.last_ms = BTreeMap::from(steps);
            }
            RecoveryEvent::Verified {
                compared,
                tolerated,
                sampled,
                unverified,
                ..
            } => {
                self.equal_bytes += compared;
                self.tolerated += tolerated;
                self.sampled_bytes += sampled;
                self.unverified_bytes += unverified;
            }
            RecoveryEvent::Restarted { .. }
            | RecoveryEvent::Listening { .. }
            | RecoveryEvent::Spliced { .. }
            | RecoveryEvent::ClientReset { .. } => {}
        }
    }
}

const fn kind(of: &Event) -> &'static str {
    match of {
        Event::Started { .. } => "started",
        Event::Adopted { .. } => "adopted",
        Event::Restored { .. } => "restored",
        Event::Protecting { .. } => "protecting",
        Event::NotListening { .. } => "not_listening",
        Event::Unprotected { .. } => "unprotected",
        Event::Unseen { .. } => "unseen",
        Event::WaitingForLogger { .. } => "waiting_for_logger",
        Event::LoggerInUse { .. } => "logger_in_use",
        Event::LoggerLost { .. } => "logger_lost",
        Event::LoggerBack { .. } => "logger_back",
        Event::ProtectionResumed { .. } => "protection_resumed",
        Event::LoggerRestarted { .. } => "logger_restarted",
        Event::StandbyStarted { .. } => "standby_started",
        Event::ImagePrefetched { .. } => "image_prefetched",
        Event::ReplicaStarted { .. } => "replica_started",
        Event::CaughtUp { .. } => "caught_up",
        Event::ReplicaDropped { .. } => "replica_dropped",
        Event::ReplicaPromoted { .. } => "replica_promoted",
        Event::Granted { .. } => "granted",
        Event::LeaseRequired { .. } => "lease_required",
        Event::Superseded { .. } => "superseded",
        Event::HandedOver => "handed_over",
        Event::Checkpointed { .. } => "checkpointed",
        Event::CheckpointFailed { .. } => "checkpoint_failed",
        Event::RecordingStopped { .. } => "recording_stopped",
        Event::RecordReset { .. } => "record_reset",
        Event::StartFailed { .. } => "start_failed",
        Event::OperatorRequest { .. } => "operator_request",
        Event::Cleaned { .. } => "cleaned",
        Event::Restarting => "restarting",
        Event::ServerExited => "server_exited",
        Event::Stopping { .. } => "stopping",
        Event::UpstreamConnections { .. } => "upstream_connections",
        Event::Warning { code, .. } => code.word(),
        Event::Recovery(RecoveryEvent::Died { .. }) => "died",
        Event::Recovery(RecoveryEvent::Restarted { .. }) => "restarted",
        Event::Recovery(RecoveryEvent::Listening { .. }) => "listening",
        Event::Recovery(RecoveryEvent::Spliced { .. }) => "spliced",
        Event::Recovery(RecoveryEvent::Serving { .. }) => "serving",
        Event::Recovery(RecoveryEvent::ConnectionsRecovered { .. }) => "connections_recovered",
        Event::Recovery(RecoveryEvent::ConnectionReset { .. }) => "connection_reset",
        Event::Recovery(RecoveryEvent::ClientReset { .. }) => "client_reset",
        Event::Recovery(RecoveryEvent::Verified { .. }) => "verified",
    }
}

/// Causes of a death.
pub(crate) const CAUSES: [&str; 6] = [
    "signal",
    "status",
    "not_serving",
    "host",
    "record_reset",
    "not_replayable",
];

const fn cause_name(cause: &Cause) -> &'static str {
    match cause {
        Cause::Signal { .. } => "signal",
        Cause::Status { .. } => "status",
        Cause::NotServing => "not_serving",
        // A death on request is not reported as a death.
        Cause::Host | Cause::Moved | Cause::Restart => "host",
        Cause::RecordReset => "record_reset",
        Cause::NotReplayable { .. } => "not_replayable",
    }
}

/// Reasons of connection resets.
pub(crate) const LOST: [&str; 18] = [
    "unprotected",
    "no_record",
    "record_incomplete",
    "diverged",
    "ended_early",
    "outstream_too_long",
    "quarantined",
    "not_accepted",
    "replay_stalled",
    "output_not_repeated",
    "server_down",
    "stopped",
    "service_failed",
    "not_replayable",
    "not_comparable",
    "client_silent",
    "state_lost",
    "gap_unknown",
];

const fn lost_name(reason: &LostReason) -> &'static str {
    match reason {
        LostReason::Unprotected { .. } => "unprotected",
        LostReason::NoRecord => "no_record",
        LostReason::RecordIncomplete { .. } => "record_incomplete",
        LostReason::Diverged { .. } | LostReason::DivergedBefore { .. } => "diverged",
        LostReason::EndedEarly { .. } => "ended_early",
        LostReason::OutstreamTooLong { .. } => "outstream_too_long",
        LostReason::Quarantined { .. } => "quarantined",
        LostReason::NotAccepted => "not_accepted",
        LostReason::ReplayStalled { .. } => "replay_stalled",
        LostReason::OutputNotRepeated { .. } => "output_not_repeated",
        LostReason::ServerDown => "server_down",
        LostReason::Stopped => "stopped",
        LostReason::ServiceFailed => "service_failed",
        LostReason::NotReplayable => "not_replayable",
        LostReason::NotComparable { .. } => "not_comparable",
        LostReason::ClientSilent => "client_silent",
        LostReason::Forgotten => "state_lost",
        LostReason::HoleUnknown => "gap_unknown",
    }
}

/// A word for why a connection is not protected.
pub(crate) const fn reason_name(reason: UnprotectedReason) -> &'static str {
    match reason {
        UnprotectedReason::ConnectionLimit => "connection_limit",
        UnprotectedReason::TotalLimit => "total_limit",
        UnprotectedReason::MirrorLost => "mirror_lost",
        UnprotectedReason::LoggerRestarted => "logger_restarted",
        UnprotectedReason::TooManyConnections => "too_many_connections",
        UnprotectedReason::HandshakeNotSeen => "handshake_not_seen",
        UnprotectedReason::UnsupportedOption => "unsupported_option",
        UnprotectedReason::LoggerLost => "logger_lost",
        UnprotectedReason::AwaitsTurn => "awaits_request",
    }
}

/// The steps of a recovery.
pub(crate) fn steps(of: &Timings) -> [(&'static str, f64); 7] {
    [
        ("detected", of.detected_ms),
        ("cleared", of.cleared_ms),
        ("restarted", of.restarted_ms),
        ("listening", of.listening_ms),
        ("first_spliced", of.first_spliced_ms),
        ("spliced", of.spliced_ms),
        ("live", of.live_ms),
    ]
}

#[cfg(test)]
mod tests;
