//! What has happened, in numbers.

use std::{collections::BTreeMap, time::Duration};

use ::metrics::Histogram;
use protocol::UnprotectedReason;
use recovery::{Cause, Event, LostReason, Timings};
use serde::{Deserialize, Serialize};

use crate::events::Happening;

/// Counts since `serve` was started. Maps have no entry for what has not happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Events by their kinds, warnings by their codes.
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
    /// How long checkpoints took that were made, seconds.
    #[serde(rename = "checkpoints_s", default)]
    pub checkpoints: Histogram,
    /// Bytes of the record before the last one, and after it.
    #[serde(default)]
    pub last_checkpoint: Option<(u64, u64)>,
}

fn one_more(of: &mut BTreeMap<String, u64>, kind: &str) {
    match of.get_mut(kind) {
        Some(count) => *count += 1,
        None => drop(of.insert(kind.to_owned(), 1)),
    }
}

impl Tally {
    pub(crate) fn add(&mut self, happening: &Happening) {
        one_more(&mut self.events, kind(happening));
        match happening {
            Happening::Recovery(event) => self.add_recovery(event),
            Happening::Checkpointed {
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

    fn add_recovery(&mut self, event: &Event) {
        match event {
            Event::Died { cause, .. } => one_more(&mut self.deaths, cause_name(cause)),
            Event::ConnectionReset { reason, .. } => one_more(&mut self.reset, lost_name(reason)),
            Event::ConnectionsRecovered { connections } => {
                self.recovered += u64::try_from(*connections).unwrap_or(u64::MAX);
            }
            Event::Serving {
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
            Event::Verified {
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
            Event::Restarted { .. }
            | Event::Listening { .. }
            | Event::Spliced { .. }
            | Event::ClientReset { .. } => {}
        }
    }
}

const fn kind(of: &Happening) -> &'static str {
    match of {
        Happening::Started { .. } => "started",
        Happening::Adopted { .. } => "adopted",
        Happening::Restored { .. } => "restored",
        Happening::Protecting { .. } => "protecting",
        Happening::NotListening { .. } => "not_listening",
        Happening::Unprotected { .. } => "unprotected",
        Happening::Unseen { .. } => "unseen",
        Happening::WaitingForLogger { .. } => "waiting_for_logger",
        Happening::LoggerInUse { .. } => "logger_in_use",
        Happening::LoggerLost { .. } => "logger_lost",
        Happening::LoggerBack { .. } => "logger_back",
        Happening::ProtectionResumed { .. } => "protection_resumed",
        Happening::LoggerRestarted { .. } => "logger_restarted",
        Happening::StandbyStarted { .. } => "standby_started",
        Happening::ReplicaStarted { .. } => "replica_started",
        Happening::CaughtUp { .. } => "caught_up",
        Happening::ReplicaDropped { .. } => "replica_dropped",
        Happening::ReplicaPromoted { .. } => "replica_promoted",
        Happening::Granted { .. } => "granted",
        Happening::LeaseRequired { .. } => "lease_required",
        Happening::Superseded { .. } => "superseded",
        Happening::HandedOver => "handed_over",
        Happening::Checkpointed { .. } => "checkpointed",
        Happening::CheckpointFailed { .. } => "checkpoint_failed",
        Happening::RecordingStopped { .. } => "recording_stopped",
        Happening::RecordReset { .. } => "record_reset",
        Happening::StartFailed { .. } => "start_failed",
        Happening::OperatorRequest { .. } => "operator_request",
        Happening::Cleaned { .. } => "cleaned",
        Happening::Restarting => "restarting",
        Happening::ServerExited => "server_exited",
        Happening::Stopping { .. } => "stopping",
        Happening::UpstreamConnections { .. } => "upstream_connections",
        Happening::Warning { code, .. } => code.word(),
        Happening::Recovery(Event::Died { .. }) => "died",
        Happening::Recovery(Event::Restarted { .. }) => "restarted",
        Happening::Recovery(Event::Listening { .. }) => "listening",
        Happening::Recovery(Event::Spliced { .. }) => "spliced",
        Happening::Recovery(Event::Serving { .. }) => "serving",
        Happening::Recovery(Event::ConnectionsRecovered { .. }) => "connections_recovered",
        Happening::Recovery(Event::ConnectionReset { .. }) => "connection_reset",
        Happening::Recovery(Event::ClientReset { .. }) => "client_reset",
        Happening::Recovery(Event::Verified { .. }) => "verified",
    }
}

/// What servers die of.
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
        // Of what was asked for no death is told.
        Cause::Host | Cause::Moved | Cause::Restart => "host",
        Cause::RecordReset => "record_reset",
        Cause::NotReplayable { .. } => "not_replayable",
    }
}

/// Why connections are reset.
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
        LostReason::Poison { .. } => "quarantined",
        LostReason::NotAccepted => "not_accepted",
        LostReason::ReplayStalled { .. } => "replay_stalled",
        LostReason::NotSaidAgain { .. } => "output_not_repeated",
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
