//! Events: lines of `serve` on its standard error, and for `outlive events`.

mod codes;
mod kinds;
mod records;
mod requester;

use std::fmt;

use protocol::control::Former;
use recovery::{Count, Event as RecoveryEvent};
use serde::Serialize;

pub use codes::Code;
pub(crate) use kinds::counted;
pub use kinds::{COMMON, FORMAT, JSON_VERSION, KINDS, Kind};
pub(crate) use records::EventBuffer;
pub use records::{EventRecord, begins};
pub use requester::{Request, Requester};

use crate::size::Size;

/// Something worth a line.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// The server was started the first time.
    Started {
        /// Main process of the server.
        pid: u32,
    },
    /// The server of a `serve` that has died was taken over.
    Adopted {
        /// Main process of the server, if alive.
        pid: Option<u32>,
        /// Open connections of the server.
        connections: usize,
    },
    /// The host of the service was down and runs again, or another host has served: a logger knows the connections that
    /// were open.
    Restored {
        /// Fate of the earlier incarnation.
        former: FormerInstance,
        /// Name of the other host, if another host has served and the name is known.
        host: Option<String>,
        /// Connections that are taken up.
        connections: usize,
        /// Connections that cannot be taken up: their addresses are not of this service any more, or the number exceeds
        /// the limit.
        lost: usize,
    },
    /// The server listens for the first time: connections are protected from now on, or as soon as a logger answers.
    Protecting {
        /// Addresses of the server.
        addresses: Vec<String>,
        /// Missing part; `None`: everything is present.
        awaits: Option<Awaits>,
    },
    /// The server runs, and does not listen on the addresses of the service.
    NotListening {
        /// Addresses without a listener.
        addresses: Vec<String>,
        /// Where the processes of the server listen; empty: nowhere.
        elsewhere: Vec<String>,
        /// Time since the start of the server, milliseconds.
        waited_ms: u64,
        /// The server is the replica of a standby: after a takeover, clients would be refused.
        standby: bool,
    },
    /// A connection lost the protection; the connection goes on, but would not survive a crash.
    Unprotected {
        /// Both ends of the connection, or the connection's number if the ends are not known any more.
        connection: String,
        /// Reason of the loss of protection.
        reason: String,
    },
    /// The server has open connections that no program sees.
    Unseen {
        /// Number of unseen connections.
        connections: usize,
        /// An example of such a connection.
        example: String,
    },
    /// No server is started yet: loggers that do not answer may have a record of the service.
    WaitingForLogger {
        /// Milliseconds; `None`: until a logger answers.
        at_most_ms: Option<u64>,
    },
    /// A logger on another machine is in use: connections are recorded there.
    LoggerInUse {
        /// Address of the logger.
        logger: String,
    },
    /// No logger answers.
    LoggerLost {
        /// The logger that was in use, or the first.
        logger: String,
        /// The observed failure.
        reason: String,
        /// Connections that lost the protection; `None`: all wait for the logger.
        connections: Option<usize>,
    },
    /// A logger answers again: new connections are protected.
    LoggerBack {
        /// Address of the logger.
        logger: String,
        /// Open connections that are recorded again from the next request on.
        waiting: usize,
        /// Open connections that stay unprotected.
        unprotected: usize,
    },
    /// A connection that had lost the record is recorded again, from this request on.
    ProtectionResumed {
        /// Both ends of the connection.
        connection: String,
    },
    /// The logger was started again without the records.
    LoggerRestarted {
        /// Connections that lost the protection.
        connections: usize,
    },
    /// Another host serves; this host takes over when the other host fails.
    StandbyStarted {
        /// The other's epoch.
        epoch: u32,
        /// Name of the other host, if known.
        host: Option<String>,
    },
    /// The last checkpoint of the server has come here: a takeover does not wait for the transfer.
    ImagePrefetched {
        /// Size of the image, bytes.
        image_bytes: u64,
        /// Time of the transfer, milliseconds.
        took_ms: u64,
    },
    /// The server is started on this host, too, and replays the input of the server on the other host.
    ReplicaStarted {
        /// Main process of the replica.
        pid: u32,
    },
    /// The replica has replayed the whole record: a takeover would take no replay.
    CaughtUp {
        /// Bytes of the record up to now.
        bytes: u64,
    },
    /// The replica is of no use: this host would take over with a replay from the beginning.
    ReplicaDropped {
        /// Reason of the drop.
        reason: String,
        /// Time until the next start of a replica, milliseconds; `None`: no start while this host is a standby.
        retry_ms: Option<u64>,
    },
    /// The replica is the server of the service now.
    ReplicaPromoted {
        /// Main process of the replica.
        pid: u32,
        /// Bytes of the record that the replica had not replayed when the service was granted to this host.
        lag_bytes: u64,
    },
    /// The logger has granted that this host serves, and no other.
    Granted {
        /// The epoch that begins.
        epoch: u32,
    },
    /// A standby has registered, or no standby is left: this host needs a lease to serve, or none.
    LeaseRequired {
        /// This host needs a lease to serve.
        required: bool,
        /// The standby, if that is known.
        host: Option<String>,
    },
    /// Another host serves now: the fence of this host is shut, and everything of the service here is ended.
    Superseded {
        /// The other's epoch.
        epoch: u32,
        /// Name of the other host, if known.
        host: Option<String>,
    },
    /// The service is handed over to the standby, with the connections.
    HandedOver,
    /// An image of the server has replaced the record before the image.
    Checkpointed {
        /// Bytes of the record that the image replaces, all in all.
        record_bytes: u64,
        /// Size of the image, bytes.
        image_bytes: u64,
        /// Bytes of the record that were present and are not needed any more.
        released_bytes: u64,
        /// Bytes recorded meanwhile.
        left_bytes: u64,
        /// Time to make and try the image while the server went on, milliseconds.
        took_ms: u64,
    },
    /// No image of the server could be made. The record remains unchanged.
    CheckpointFailed {
        /// Reason of the failure.
        reason: String,
    },
    /// The input of a server with state is no longer recorded. The server goes on, and would not be rebuilt.
    RecordingStopped {
        /// Reason of the stop.
        reason: String,
        /// Size of the record, which is of no use now, bytes.
        record_bytes: u64,
    },
    /// No client is connected: a server that keeps no state across connections is restarted with an empty record.
    RecordReset {
        /// Size of the record before the reset, bytes.
        record_bytes: u64,
    },
    /// The server could not be started.
    StartFailed {
        /// Reason of the failure.
        reason: String,
        /// Time until the next try, milliseconds.
        retry_ms: u64,
    },
    /// A user has requested a switchover or a restart.
    OperatorRequest {
        /// The request.
        request: Request,
        /// The user who ran the command.
        by: Requester,
    },
    /// The rest of a service whose `serve` was killed was removed.
    Cleaned {
        /// Processes of the server that were killed.
        killed: usize,
        /// Addresses that were taken down.
        addresses: usize,
        /// Settings that were put back.
        settings: usize,
        /// The user who ran the command.
        by: Requester,
    },
    /// `outlive restart`: the server is ended and started again.
    Restarting,
    /// The server ended by itself, successfully.
    ServerExited,
    /// The server is being stopped.
    Stopping {
        /// Number of the signal to `serve`.
        signal: i32,
    },
    /// The server has the state back, and some of the upstream connections.
    UpstreamConnections {
        /// Connections that go on.
        recovered: usize,
        /// Connections that have ended: the server finds a reset.
        reset: usize,
    },
    /// A failure that does not end the service.
    Warning {
        /// Code of the warning.
        code: Code,
        /// The reason in words.
        reason: String,
    },
    /// A step of a recovery.
    #[serde(untagged)]
    Recovery(RecoveryEvent),
}

/// Urgency, as in syslog(3) and in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Clients are not protected, not served, or were reset.
    Error,
    /// Something has failed, and is being mended.
    Warning,
    /// A change that was asked for, or has to be known.
    Notice,
    /// The usual course.
    Info,
    /// Details for the search of a fault in `outlive`.
    Debug,
}

impl Priority {
    /// The number in syslog(3).
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warning => 4,
            Self::Notice => 5,
            Self::Info => 6,
            Self::Debug => 7,
        }
    }
}

impl Event {
    /// Urgency of the event.
    #[must_use]
    pub const fn priority(&self) -> Priority {
        match self {
            Self::NotListening { .. }
            | Self::LoggerLost { .. }
            | Self::LoggerRestarted { .. }
            | Self::RecordingStopped { .. }
            | Self::StartFailed { .. }
            | Self::Recovery(RecoveryEvent::ConnectionReset { .. }) => Priority::Error,
            Self::Unprotected { .. }
            | Self::WaitingForLogger { .. }
            | Self::ReplicaDropped { .. }
            | Self::Superseded { .. }
            | Self::CheckpointFailed { .. }
            | Self::Warning { .. }
            | Self::Recovery(RecoveryEvent::Died { .. }) => Priority::Warning,
            Self::ProtectionResumed { .. }
            | Self::CaughtUp { .. }
            | Self::ImagePrefetched { .. }
            | Self::Checkpointed { .. }
            | Self::RecordReset { .. }
            | Self::Recovery(
                RecoveryEvent::Restarted { .. }
                | RecoveryEvent::Listening { .. }
                | RecoveryEvent::Spliced { .. }
                | RecoveryEvent::ClientReset { .. }
                | RecoveryEvent::Verified { .. },
            ) => Priority::Info,
            _ => Priority::Notice,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { pid } => write!(f, "started as process {pid}"),
            Self::Adopted {
                pid: Some(pid),
                connections,
            } => {
                write!(
                    f,
                    "adopted the server as process {pid}, with {}",
                    Count(*connections, "open connection")
                )
            }
            Self::Adopted {
                pid: None,
                connections,
            } => {
                write!(
                    f,
                    "adopted the server without its main process, with {}",
                    Count(*connections, "open connection")
                )
            }
            Self::Restored {
                former,
                host,
                connections,
                lost,
            } => {
                let taken_up = Count(*connections, "connection");
                let former = former.of(host.as_deref());
                write!(f, "{former}: {taken_up} restored")?;
                match lost {
                    0 => Ok(()),
                    _ => write!(f, "; {lost} not restored (other addresses, or too many)"),
                }
            }
            Self::Protecting { addresses, awaits } => {
                let addresses = addresses.join(", ");
                match awaits {
                    None => write!(f, "protecting connections to {addresses}"),
                    Some(Awaits::Protection) => write!(
                        f,
                        "serving connections to {addresses}; no connection is protected until a logger answers"
                    ),
                    Some(Awaits::Service) => write!(
                        f,
                        "the server listens on {addresses}; clients wait until a logger answers"
                    ),
                }
            }
            Self::NotListening {
                addresses,
                elsewhere,
                waited_ms,
                standby,
            } => {
                let which = if *standby {
                    "the replica on this host"
                } else {
                    "the server"
                };
                let addresses = addresses.join(", ");
                write!(f, "{which} does not listen on {addresses}, ")?;
                match &elsewhere[..] {
                    [] => write!(
                        f,
                        "nor on another address, {} s after the start",
                        waited_ms / 1000
                    )?,
                    _ => write!(f, "but on {}", elsewhere.join(", "))?,
                }
                write!(f, ". Change --address or the server's configuration")?;
                f.write_str(if *standby { " on this host." } else { "." })
            }
            Self::Unprotected { connection, reason } => {
                write!(f, "unprotected: {connection}: {reason}")
            }
            Self::Unseen {
                connections,
                example,
            } => write!(
                f,
                "not protected: {} of the server, such as {example}. Their packets do not pass outlive with this address: does this host translate addresses (a published port, nftables redirect), or do clients come through a device without Ethernet (tun, WireGuard)? Give each address that clients connect to as --address, too",
                Count(*connections, "open connection")
            ),
            Self::LoggerRestarted { connections } => write!(
                f,
                "the logger was restarted without records: {} unprotected; new connections are protected",
                Count(*connections, "open connection")
            ),
            Self::WaitingForLogger { at_most_ms } => {
                write!(
                    f,
                    "not started: waiting for loggers that may have a record of this service, "
                )?;
                match at_most_ms {
                    Some(ms) => write!(f, "for {} s at most", ms / 1000),
                    None => write!(f, "until one of these answers"),
                }
            }
            Self::LoggerInUse { logger } => {
                write!(f, "the logger at {logger} keeps the record")
            }
            Self::LoggerLost {
                logger,
                reason,
                connections,
            } => {
                write!(f, "the logger at {logger} is lost ({reason}): ")?;
                match connections {
                    Some(n) => write!(
                        f,
                        "{} and new connections are unprotected until a logger answers",
                        Count(*n, "open connection")
                    ),
                    None => write!(f, "clients wait until this logger answers again"),
                }
            }
            Self::LoggerBack {
                logger,
                waiting,
                unprotected,
            } => {
                write!(
                    f,
                    "the logger at {logger} answers: new connections are protected"
                )?;
                if *waiting > 0 {
                    let open = Count(*waiting, "open connection");
                    write!(f, ", {open} from the next request on")?;
                }
                if *unprotected > 0 {
                    let open = Count(*unprotected, "open connection");
                    write!(f, "; {open} stay unprotected")?;
                }
                Ok(())
            }
            Self::ProtectionResumed { connection } => {
                write!(f, "protected again from this request on: {connection}")
            }
            Self::StandbyStarted { epoch, host } => {
                let host = host.as_deref().unwrap_or("another host");
                write!(
                    f,
                    "standby: {host} serves (epoch {epoch}); ready to take over"
                )
            }
            Self::ImagePrefetched {
                image_bytes,
                took_ms,
            } => write!(
                f,
                "standby: the server's last checkpoint is here ({}, in {took_ms} ms)",
                Size(*image_bytes)
            ),
            Self::ReplicaStarted { pid } => write!(f, "replica started as process {pid}"),
            Self::CaughtUp { bytes } => write!(f, "replica caught up ({})", Size(*bytes)),
            Self::ReplicaDropped { reason, retry_ms } => {
                write!(f, "replica dropped: {reason}; ")?;
                match retry_ms {
                    Some(retry_ms) => write!(f, "next try in {retry_ms} ms"),
                    None => write!(f, "a takeover replays the whole record"),
                }
            }
            Self::ReplicaPromoted { pid, lag_bytes } => write!(
                f,
                "replica promoted: process {pid} serves, with {} left to replay",
                Size(*lag_bytes)
            ),
            Self::Granted { epoch } => write!(f, "this host serves, in epoch {epoch}"),
            Self::LeaseRequired {
                required: true,
                host,
            } => {
                match host {
                    Some(host) => write!(f, "{host} stands by")?,
                    None => write!(f, "a standby has registered")?,
                }
                write!(
                    f,
                    ": from now on this host serves only while the logger renews the lease"
                )
            }
            Self::LeaseRequired {
                required: false, ..
            } => {
                write!(f, "no standby is left: this host needs no lease")
            }
            Self::Superseded { epoch, host } => {
                let host = host.as_deref().unwrap_or("another host");
                write!(
                    f,
                    "{host} serves (epoch {epoch}): the server on this host is ended, and the connections go on at {host}"
                )
            }
            Self::HandedOver => write!(f, "handed over to the standby"),
            Self::StartFailed { reason, retry_ms } => {
                write!(f, "cannot be started ({reason}); next try in {retry_ms} ms")
            }
            Self::Checkpointed {
                record_bytes,
                image_bytes,
                released_bytes,
                left_bytes,
                took_ms,
            } => write!(
                f,
                "checkpoint: an image of {} replaces {} of the record ({} freed, {} left to replay); {took_ms} ms beside the server",
                Size(*image_bytes),
                Size(*record_bytes),
                Size(*released_bytes),
                Size(*left_bytes)
            ),
            Self::CheckpointFailed { reason } => {
                write!(f, "no checkpoint ({reason}); the record is kept")
            }
            Self::RecordingStopped {
                reason,
                record_bytes,
            } => write!(
                f,
                "unprotected: recording stopped at {}: {reason}. The server goes on; a crash now loses the state and the connections",
                Size(*record_bytes)
            ),
            Self::RecordReset { record_bytes } => write!(
                f,
                "no client is connected: the server is restarted with an empty record (before: {})",
                Size(*record_bytes)
            ),
            Self::OperatorRequest { request, by } => write!(f, "{request} requested by {by}"),
            Self::Cleaned {
                killed,
                addresses,
                settings,
                by,
            } => write!(
                f,
                "cleaned: {} killed, {} taken down, {} put back; by {by}",
                Count(*killed, "process"),
                Count(*addresses, "address"),
                Count(*settings, "setting")
            ),
            Self::Restarting => write!(f, "restarting the server, as requested"),
            Self::ServerExited => write!(f, "the server exited with status 0"),
            Self::Stopping { signal } => write!(f, "stopping on signal {signal}"),
            Self::UpstreamConnections { recovered, reset } => write!(
                f,
                "connections of the server to other servers: {recovered} recovered, {reset} reset"
            ),
            Self::Warning { code, reason } => write!(f, "warning: {reason} [{}]", code.word()),
            Self::Recovery(event) => event.fmt(f),
        }
    }
}

/// Consequence of the missing logger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Awaits {
    /// The protection of connections, which are served.
    Protection,
    /// Everything: clients wait.
    Service,
}

/// Fate of the earlier incarnation of a service whose connections are taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FormerInstance {
    /// This host has stopped, and was started again.
    Restarted,
    /// Another host has served, and is silent: dead, hung or cut off.
    Silent,
    /// Another host has served, and has handed the service over: in a switchover or at a stop.
    HandedOver,
}

impl From<Former> for FormerInstance {
    fn from(former: Former) -> Self {
        match former {
            Former::GivenUp => Self::HandedOver,
            Former::Other => Self::Silent,
            Former::Same | Former::Unknown => Self::Restarted,
        }
    }
}

impl FormerInstance {
    /// In words; `host` is the name of the other host, if that is known.
    fn of(self, host: Option<&str>) -> String {
        let host = host.unwrap_or("the host that served");
        match self {
            Self::Restarted => "this host was restarted".to_owned(),
            Self::Silent => format!("took over from {host}, whose lease has expired"),
            Self::HandedOver => format!("took over from {host}, which has handed over"),
        }
    }
}
