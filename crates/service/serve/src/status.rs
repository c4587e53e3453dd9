//! The status for `outlive status`.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use recovery::Count;

use crate::{counters::EventCounters, size::Size};

/// The stage of a service that another host serves.
pub(crate) const STANDBY: &str = "standby";
/// Stage of a service whose server has never listened.
pub(crate) const FIRST_START: &str = "first_start";

/// Present state of a service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Version of the schema of the status and of events.
    pub version: u32,
    /// Name of the service.
    pub service: String,
    /// The protected addresses.
    pub addresses: Vec<String>,
    /// `serving`, `clearing`, `starting`, `listing` or `recovering`; `first_start`: the server has not listened yet;
    /// `not_started`; `standby`: another host serves.
    pub stage: String,
    /// Main process of the server. If that process has left (a daemon), the first running process.
    pub server_pid: Option<u32>,
    /// Main process of `serve`.
    pub serve_pid: u32,
    /// The logger process, if the logger runs on this host.
    pub logger_pid: Option<u32>,
    /// Where the record is kept, and the state of the record there.
    pub logger: String,
    /// The server's present incarnation; the first is 1.
    pub incarnation: u32,
    /// Milliseconds since `serve` was started.
    pub uptime_ms: f64,
    /// Where replays begin: `connection` or `last unanswered request`.
    pub replay: String,
    /// Interfaces that carry the programs, each with the mechanism.
    pub interfaces: Vec<String>,
    /// Open connections.
    pub connections: usize,
    /// Connections that would not survive a crash.
    pub unprotected: usize,
    /// Open connections of the server that no program sees, and that have no place in the numbers before.
    #[serde(default)]
    pub unseen: usize,
    /// Unprotected connections that are recorded again from the next request on.
    pub waiting_for_request: usize,
    /// Connections that were carried over at least one crash.
    pub spliced: usize,
    /// Instream bytes recorded since the logger was started.
    pub recorded_bytes: u64,
    /// Bytes of memory that the record holds now.
    #[serde(default)]
    pub held_bytes: u64,
    /// Limit of the record for all connections together (`--limit-total`), bytes; a shared logger may have less memory.
    #[serde(default)]
    pub limit_bytes: u64,
    /// Limit of the record of each connection (`--limit-per-connection`), bytes.
    #[serde(default)]
    pub connection_limit_bytes: u64,
    /// Bytes of the determinant log, if the server has state (`--stateful`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub determinant_log_bytes: Option<u64>,
    /// Cost of output commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_commit: Option<CommitStatus>,
    /// Why the input of the server is not recorded any more; `None`: recording goes on, or never began.
    #[serde(default)]
    pub record_ended: Option<String>,
    /// The server that follows while this host stands by (`--hot`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaStatus>,
    /// Last checkpoint of a server with state.
    #[serde(default)]
    pub checkpoint: Option<CheckpointStatus>,
    /// Failures that the record survives.
    pub survives: String,
    /// Connections by connection mode: `observed`, `splicing`, `spliced`, `diverged`.
    #[serde(default)]
    pub modes: BTreeMap<String, usize>,
    /// Connections that would not survive a crash, by the reason.
    #[serde(default)]
    pub unprotected_by: BTreeMap<String, usize>,
    /// The lease in words, if other hosts could serve: the epoch and the end of the lease, or the active host of a
    /// standby.
    #[serde(default)]
    pub lease: Option<String>,
    /// Whether a standby is present, if this host serves and another host could serve. A present standby takes over as
    /// soon as this host is silent.
    #[serde(default)]
    pub standby_present: Option<bool>,
    /// At a standby the active host, at the active host a standby: name, and address at the logger.
    #[serde(default)]
    pub other_host: Option<String>,
    /// Epoch in which this host serves.
    #[serde(default)]
    pub epoch: Option<u32>,
    /// A logger answers.
    #[serde(default)]
    pub logger_up: bool,
    /// Counters of the logger; `None`: the logger has never answered.
    #[serde(default)]
    pub record: Option<RecordStatus>,
    /// Numbers of events since `serve` was started.
    #[serde(default)]
    pub totals: EventCounters,
    /// Counters of the data plane.
    pub counters: BTreeMap<String, u64>,
    /// Every connection, if asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<ConnectionStatus>,
}

/// The server of a hot standby.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Main process of the replica.
    pub pid: u32,
    /// Bytes of the record that are here.
    pub record_bytes: u64,
    /// Bytes that the replica has not replayed.
    pub lag_bytes: u64,
    /// Addresses on which the replica does not listen after replaying everything.
    #[serde(default)]
    pub not_listening: Vec<String>,
}

impl ReplicaStatus {
    fn in_words(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  replica      process {}, {} of record from the host that serves, {} left to replay",
            self.pid,
            Size(self.record_bytes),
            Size(self.lag_bytes)
        )?;
        match &self.not_listening[..] {
            [] => Ok(()),
            missing => writeln!(
                f,
                "               does not listen on {}",
                missing.join(", ")
            ),
        }
    }
}

/// Cost of output commit for a server with state whose output waits for a logger on another host.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CommitStatus {
    /// Iterations of the event loops of all processes: calls of epoll, poll or select.
    pub iterations: u64,
    /// Number of waits for the logger.
    pub waits: u64,
    /// Total wait, milliseconds.
    pub waited_ms: f64,
}

/// The last image of a server with state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStatus {
    /// Bytes of the record that the image replaces.
    pub record_bytes: u64,
    /// Size of the image, bytes.
    pub image_bytes: u64,
}

/// Counters of the logger since the start of the logger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordStatus {
    /// Connections that the logger knows now.
    pub connections: u64,
    /// Known connections without a record.
    pub unprotected: u64,
    /// Recorded bytes of clients.
    pub instream_bytes: u64,
    /// Recorded bytes of the server.
    pub outstream_bytes: u64,
    /// Mirror frames that the logger received.
    pub frames: u64,
    /// Frames that were unreadable or forged.
    pub malformed_frames: u64,
    /// Frames of unknown connections.
    pub unknown_frames: u64,
}

/// Status of a connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Both ends of the connection.
    pub connection: String,
    /// `observed`, `splicing`, `spliced` or `diverged`.
    pub mode: String,
    /// Why the connection is unprotected; `None`: the connection is protected.
    pub unprotected: Option<String>,
    /// Bytes that the client has sent.
    pub instream_bytes: u32,
    /// Bytes that the client has acknowledged.
    pub outstream_bytes: u32,
    /// Bytes of the client in the record, without response heads; `None`: the connection has no record, or the logger
    /// does not answer.
    #[serde(default)]
    pub recorded_bytes: Option<u64>,
}

/// Rounded up: a nearly full record is not shown as less full.
fn percent(of: u64, limit: u64) -> u64 {
    of.saturating_mul(100).div_ceil(limit.max(1))
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self
            .server_pid
            .map_or("not running".to_owned(), |pid| format!("process {pid}"));
        match self.not_ready() {
            None => writeln!(
                f,
                "{}: {} on {}",
                self.service,
                self.stage,
                self.addresses.join(", ")
            )?,
            Some(why) => writeln!(f, "{}: not ready: {why}", self.service)?,
        }
        writeln!(
            f,
            "  server       {server}, incarnation {}",
            self.incarnation
        )?;
        if self.stage == STANDBY {
            return self.of_a_standby(f);
        }
        writeln!(
            f,
            "  connections  {} open{}",
            self.connections,
            self.protection_in_words()
        )?;
        if self.unseen > 0 {
            writeln!(
                f,
                "  not seen     {} of the server, NOT PROTECTED: packets do not pass outlive with this address (outlive events says more)",
                Count(self.unseen, "open connection")
            )?;
        }
        writeln!(
            f,
            "  record       {} now, {} in total; {}",
            Size(self.held_bytes),
            Size(self.recorded_bytes),
            self.survives
        )?;
        self.limits_in_words(f)?;
        writeln!(
            f,
            "  replay       from the beginning of the {}",
            self.replay
        )?;
        match (self.determinant_log_bytes, &self.record_ended) {
            (Some(bytes), None) => writeln!(
                f,
                "  state        {} of record ({} % of {}), which a restart of the server replays",
                Size(bytes),
                percent(bytes, self.limit_bytes),
                Size(self.limit_bytes)
            )?,
            (Some(_), Some(why)) => writeln!(
                f,
                "  state        UNPROTECTED: recording has stopped: {why}"
            )?,
            (None, _) => {}
        }
        if let Some(commits) = self.output_commit.filter(|commits| commits.waits > 0) {
            writeln!(
                f,
                "  commits      {} waits for the logger in {} iterations, {:.3} s",
                commits.waits,
                commits.iterations,
                commits.waited_ms / 1e3
            )?;
        }
        if let Some(replica) = &self.replica {
            replica.in_words(f)?;
        }
        self.checkpoint_in_words(f)?;
        writeln!(f, "  logger       {}", self.logger)?;
        if let Some(lease) = &self.lease {
            writeln!(f, "  lease        {lease}")?;
        }
        match self.standby_present {
            Some(true) => {
                let host = self.other_host.as_ref();
                let host = host.map_or_else(String::new, |host| format!(", {host}"));
                writeln!(f, "  standby      present{host}: this host may die")?;
            }
            Some(false) => writeln!(
                f,
                "  standby      none: nobody takes over when this host dies (`outlive standby` on another host)"
            )?,
            None => {}
        }
        writeln!(f, "  interfaces   {}", self.interfaces.join(", "))?;
        write!(
            f,
            "  processes    serve {}{}; up {:.0} s",
            self.serve_pid,
            self.logger_pid
                .map_or(String::new(), |pid| format!(", logger {pid}")),
            self.uptime_ms / 1e3
        )?;
        for connection in &self.list {
            let state = connection
                .unprotected
                .as_ref()
                .map_or("protected".to_owned(), |why| format!("UNPROTECTED: {why}"));
            write!(
                f,
                "\n  {}  {}, {} in, {} out, {}{state}",
                connection.connection,
                connection.mode,
                Size(connection.instream_bytes.into()),
                Size(connection.outstream_bytes.into()),
                self.recorded_in_words(connection)
            )?;
        }
        Ok(())
    }
}

impl Status {
    /// How full the record is, and the consequence of a full record.
    fn limits_in_words(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = match self.determinant_log_bytes {
            Some(_) => {
                "at either limit recording stops (recording_stopped), and nothing outlives the server"
            }
            None => "a connection without room for its record goes on unprotected",
        };
        writeln!(
            f,
            "  limits       {} % of {} used (--limit-total), {} for a connection (--limit-per-connection): {full}",
            percent(self.held_bytes, self.limit_bytes),
            Size(self.limit_bytes),
            Size(self.connection_limit_bytes)
        )
    }

    /// Lines of a standby, which has no connections and records no input.
    fn of_a_standby(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(replica) = &self.replica {
            replica.in_words(f)?;
        }
        writeln!(f, "  logger       {}", self.logger)?;
        if let Some(lease) = &self.lease {
            writeln!(f, "  lease        {lease}")?;
        }
        if let Some(host) = &self.other_host {
            writeln!(f, "  serves       {host}")?;
        }
        writeln!(f, "  interfaces   {}", self.interfaces.join(", "))?;
        write!(
            f,
            "  processes    serve {}; up {:.0} s",
            self.serve_pid,
            self.uptime_ms / 1e3
        )
    }

    /// Why clients wait; `None`: clients do not wait.
    pub(crate) fn not_ready(&self) -> Option<String> {
        let addresses = self.addresses.join(", ");
        let seconds = self.uptime_ms / 1e3;
        Some(match self.stage.as_str() {
            "serving" | STANDBY => return None,
            FIRST_START => {
                format!("the server is not listening on {addresses} yet ({seconds:.0} s)")
            }
            "clearing" => "what is left of the dead server is removed".into(),
            "starting" => format!("the new server is not listening on {addresses} yet"),
            "listing" => "connections are listed".into(),
            "recovering" => "connections are given to the new server".into(),
            stage => stage.to_owned(),
        })
    }

    /// `, all protected`, or the exceptions.
    fn protection_in_words(&self) -> String {
        let mut words = match self.unprotected {
            _ if self.connections == 0 => String::new(),
            0 => ", all protected".to_owned(),
            n if n == self.connections => ", all UNPROTECTED".to_owned(),
            n => format!(", {} protected, {n} UNPROTECTED", self.connections - n),
        };
        if self.waiting_for_request > 0 {
            let n = self.waiting_for_request;
            words += &format!(" ({n} of these only until the client's next request)");
        }
        if self.spliced > 0 {
            words += &format!("; {} carried over a crash", self.spliced);
        }
        words
    }

    fn recorded_in_words(&self, connection: &ConnectionStatus) -> String {
        let recorded = connection.recorded_bytes.map(|bytes| {
            let limit = self.connection_limit_bytes;
            format!("{} recorded ({} %), ", Size(bytes), percent(bytes, limit))
        });
        recorded.unwrap_or_default()
    }

    fn checkpoint_in_words(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |kind: &str| self.totals.events.get(kind).copied().unwrap_or_default();
        let (made, failed) = (count("checkpointed"), count("checkpoint_failed"));
        match self.checkpoint {
            Some(last) => write!(
                f,
                "  checkpoint   an image of {}, in the place of the first {} of that",
                Size(last.image_bytes),
                Size(last.record_bytes)
            )?,
            None if made + failed > 0 => write!(f, "  checkpoint   there is none")?,
            None => return Ok(()),
        }
        writeln!(
            f,
            "; {made} were made by this serve, {failed} could not be (outlive events says why)"
        )
    }
}
