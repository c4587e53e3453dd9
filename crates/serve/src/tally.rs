//! What has happened, in numbers.

use std::{collections::BTreeMap, time::Duration};

use metrics::Histogram;
use protocol::UnprotectedReason;
use recovery::{Cause, Event, LostReason, Timings};
use serde::{Deserialize, Serialize};

use crate::events::Happening;

/// Counts since `serve` was started. Maps have no entry for what has not happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Events by their kinds, warnings by their codes.
    pub events: BTreeMap<String, u64>,
    /// Deaths by what the server died of: `signal`, `status`, `not_serving`, `host`, `renewal` or
    /// `not_replayable`.
    pub deaths: BTreeMap<String, u64>,
    /// Recoveries that came to their end.
    pub recoveries: u64,
    /// Connections that went on in them.
    pub kept: u64,
    /// Connections that were reset, by the reason.
    pub lost: BTreeMap<String, u64>,
    /// How often clients had begun to speak, in what restarted servers were given from the record.
    #[serde(default)]
    pub replayed_turns: u64,
    /// Bytes of clients that restarted servers were given from the record.
    pub replayed_bytes: u64,
    /// Bytes that restarted servers said again, equal to what clients had been sent.
    pub equal_bytes: u64,
    /// Bytes that they said again and of which samples were compared.
    #[serde(default)]
    pub sampled_bytes: u64,
    /// Bytes that clients had been sent before and that were not compared.
    pub unverified_bytes: u64,
    /// Pieces of what they said again that differed where they may.
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
            Event::Lost { reason, .. } => one_more(&mut self.lost, lost_name(reason)),
            Event::Kept { connections } => {
                self.kept += u64::try_from(*connections).unwrap_or(u64::MAX);
            }
            Event::Serving {
                kept,
                replayed_turns,
                replayed_bytes,
                timings,
                ..
            } => {
                self.recoveries += 1;
                self.kept += u64::try_from(*kept).unwrap_or(u64::MAX);
                self.replayed_turns += replayed_turns;
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
        Happening::AwaitsLoggers { .. } => "awaits_loggers",
        Happening::LoggerInUse { .. } => "logger_in_use",
        Happening::LoggerLost { .. } => "logger_lost",
        Happening::LoggerBack { .. } => "logger_back",
        Happening::Reprotected { .. } => "reprotected",
        Happening::LoggerRestarted { .. } => "logger_restarted",
        Happening::StandsBy { .. } => "stands_by",
        Happening::Follows { .. } => "follows",
        Happening::CaughtUp { .. } => "caught_up",
        Happening::ReplicaDropped { .. } => "replica_dropped",
        Happening::GoesOn { .. } => "goes_on",
        Happening::Granted { .. } => "granted",
        Happening::Leased { .. } => "leased",
        Happening::Superseded { .. } => "superseded",
        Happening::HandedOver => "handed_over",
        Happening::Checkpointed { .. } => "checkpointed",
        Happening::CheckpointFailed { .. } => "checkpoint_failed",
        Happening::RecordEnded { .. } => "record_ended",
        Happening::Renewed { .. } => "renewed",
        Happening::StartFailed { .. } => "start_failed",
        Happening::Asked { .. } => "asked",
        Happening::Cleaned { .. } => "cleaned",
        Happening::Restarting => "restarting",
        Happening::Ended => "ended",
        Happening::Stopping { .. } => "stopping",
        Happening::Outgoing { .. } => "outgoing",
        Happening::Trouble { code, .. } => code.word(),
        Happening::Recovery(Event::Died { .. }) => "died",
        Happening::Recovery(Event::Restarted { .. }) => "restarted",
        Happening::Recovery(Event::Listening { .. }) => "listening",
        Happening::Recovery(Event::Spliced { .. }) => "spliced",
        Happening::Recovery(Event::Serving { .. }) => "serving",
        Happening::Recovery(Event::Kept { .. }) => "kept",
        Happening::Recovery(Event::Lost { .. }) => "lost",
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
    "renewal",
    "not_replayable",
];

const fn cause_name(cause: &Cause) -> &'static str {
    match cause {
        Cause::Signal { .. } => "signal",
        Cause::Status { .. } => "status",
        Cause::NotServing => "not_serving",
        // Of what was asked for no death is told.
        Cause::Host | Cause::Moved | Cause::Restart => "host",
        Cause::Renewal => "renewal",
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
    "poison",
    "not_accepted",
    "replay_stalled",
    "not_said_again",
    "server_down",
    "stopped",
    "service_failed",
    "not_replayable",
    "not_comparable",
    "client_silent",
    "forgotten",
    "hole_unknown",
];

const fn lost_name(reason: &LostReason) -> &'static str {
    match reason {
        LostReason::Unprotected { .. } => "unprotected",
        LostReason::NoRecord => "no_record",
        LostReason::RecordIncomplete { .. } => "record_incomplete",
        LostReason::Diverged { .. } | LostReason::DivergedBefore { .. } => "diverged",
        LostReason::EndedEarly { .. } => "ended_early",
        LostReason::OutstreamTooLong { .. } => "outstream_too_long",
        LostReason::Poison { .. } => "poison",
        LostReason::NotAccepted => "not_accepted",
        LostReason::ReplayStalled { .. } => "replay_stalled",
        LostReason::NotSaidAgain { .. } => "not_said_again",
        LostReason::ServerDown => "server_down",
        LostReason::Stopped => "stopped",
        LostReason::ServiceFailed => "service_failed",
        LostReason::NotReplayable => "not_replayable",
        LostReason::NotComparable { .. } => "not_comparable",
        LostReason::ClientSilent => "client_silent",
        LostReason::Forgotten => "forgotten",
        LostReason::HoleUnknown => "hole_unknown",
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
        UnprotectedReason::AwaitsTurn => "awaits_turn",
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
