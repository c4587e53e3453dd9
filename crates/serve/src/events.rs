//! What `serve` tells: on its own standard error, and to `outlive events`.

mod asker;
mod codes;
mod kinds;
mod reports;

use std::fmt;

use protocol::control::Former;
use recovery::{Count, Event};
use serde::Serialize;

pub use asker::{Asker, Request};
pub use codes::Code;
pub(crate) use kinds::counted;
pub use kinds::{COMMON, JSON_VERSION, KINDS, Kind};
pub(crate) use reports::Reports;
pub use reports::{Report, begins};

use crate::size::Size;

/// Something worth a line.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Happening {
    /// The server was started the first time.
    Started {
        /// Its main process.
        pid: u32,
    },
    /// The server of a `serve` that has died was taken over.
    Adopted {
        /// Its main process, if that lives.
        pid: Option<u32>,
        /// Its open connections.
        connections: usize,
    },
    /// Its host has stopped and runs again, or another host has served: a logger knows the connections that were open.
    Restored {
        /// What had become of its earlier life.
        former: FormerLife,
        /// The other host, if it was one and its name is known.
        host: Option<String>,
        /// Connections that are taken up.
        connections: usize,
        /// Those that cannot be: they are at other addresses, or too many.
        lost: usize,
    },
    /// The server listens for the first time: from now on its connections are protected, or from when a logger answers.
    Protecting {
        /// Where.
        addresses: Vec<String>,
        /// What is missing yet; `None`: nothing.
        awaits: Option<Awaits>,
    },
    /// The server runs, and does not listen where clients look for it.
    NotListening {
        /// Where it does not.
        addresses: Vec<String>,
        /// Where its processes listen; empty: nowhere.
        elsewhere: Vec<String>,
        /// Since its start, milliseconds.
        waited_ms: u64,
        /// It is the server of a host that stands by, and follows: should this host serve, clients would be refused.
        standby: bool,
    },
    /// A connection lost its protection; it goes on, but would not survive.
    Unprotected {
        /// Which, or its number if its ends are not known any more.
        connection: String,
        /// Why.
        reason: String,
    },
    /// The server has open connections that no program sees.
    Unseen {
        /// How many.
        connections: usize,
        /// One of them.
        example: String,
    },
    /// Nothing is started yet: loggers that do not answer may know of an earlier life.
    AwaitsLoggers {
        /// Milliseconds; `None`: until one answers.
        at_most_ms: Option<u64>,
    },
    /// A logger on another machine is in use: connections are recorded there.
    LoggerInUse {
        /// Where.
        logger: String,
    },
    /// No logger answers.
    LoggerLost {
        /// The one that did, or the first.
        logger: String,
        /// What was noticed.
        reason: String,
        /// Connections that lost their protection; `None`: all wait for it.
        connections: Option<usize>,
    },
    /// A logger answers again: new connections are protected.
    LoggerBack {
        /// Which.
        logger: String,
        /// Open connections that are recorded again from their next turn on.
        waiting: usize,
        /// Open connections that stay unprotected.
        unprotected: usize,
    },
    /// A connection that had lost its record has one again, from this turn on.
    Reprotected {
        /// Which.
        connection: String,
    },
    /// The logger was started again without its records.
    LoggerRestarted {
        /// Connections that lost their protection.
        connections: usize,
    },
    /// Another host serves; this one does when that one does not any more.
    StandsBy {
        /// The other's epoch.
        epoch: u32,
        /// Which, if that is known.
        host: Option<String>,
    },
    /// The server is started on this host, too, and follows what it is told where it serves.
    Follows {
        /// Its main process.
        pid: u32,
    },
    /// It has replayed all that there was: it could take over at once.
    CaughtUp {
        /// Bytes of the record so far.
        bytes: u64,
    },
    /// The server that followed is of no use: this host would take over with a replay from the beginning.
    ReplicaDropped {
        /// Why.
        reason: String,
        /// When it is started again; `None`: not any more, as long as this host stands by.
        retry_ms: Option<u64>,
    },
    /// The server that followed goes on as the one that serves.
    GoesOn {
        /// Its main process.
        pid: u32,
        /// Bytes of the record that it had not replayed when this host was granted the service.
        behind: u64,
    },
    /// The logger has granted that this host serves, and no other.
    Granted {
        /// The epoch that begins.
        epoch: u32,
    },
    /// A standby has registered, or none is left: this host serves by leases, or without.
    Leased {
        /// By leases.
        leased: bool,
        /// The standby, if that is known.
        host: Option<String>,
    },
    /// Another host serves now: this one has fallen silent, and everything of the service here is ended.
    Superseded {
        /// The other's epoch.
        epoch: u32,
        /// Which, if that is known.
        host: Option<String>,
    },
    /// The service is given to the standby, with its connections.
    HandedOver,
    /// An image of the server has taken the place of the record before it.
    Checkpointed {
        /// How much of the record it has the place of, all in all, bytes.
        record_bytes: u64,
        /// How large it is, bytes.
        image_bytes: u64,
        /// How much of the record was there and is not needed any more, bytes.
        released_bytes: u64,
        /// How much there is that was recorded meanwhile, bytes.
        left_bytes: u64,
        /// How long it took to make and to try it, while the server went on.
        took_ms: u64,
    },
    /// No image of the server could be made. The record stays as it is.
    CheckpointFailed {
        /// Why.
        reason: String,
    },
    /// What a server with state is told is not recorded any more. It goes on, and would not be rebuilt.
    RecordEnded {
        /// Why.
        reason: String,
        /// How large the record is that is of no use now, bytes.
        record_bytes: u64,
    },
    /// Nobody is connected: a server that keeps nothing across connections is started anew, and its record with it.
    Renewed {
        /// How large the record has become, bytes.
        record_bytes: u64,
    },
    /// The server could not be started.
    StartFailed {
        /// Why.
        reason: String,
        /// When it is tried again.
        retry_ms: u64,
    },
    /// Somebody has asked for something by the control socket.
    Asked {
        /// For what.
        request: Request,
        /// Who.
        by: Asker,
    },
    /// The rest of a service whose `serve` was killed was removed.
    Cleaned {
        /// Processes of the server that were killed.
        killed: usize,
        /// Addresses that were taken down.
        addresses: usize,
        /// Settings that were put back.
        settings: usize,
        /// Who has done it.
        by: Asker,
    },
    /// Somebody has asked for it (`outlive restart`): the server is ended and started again.
    Restarting,
    /// The server ended by itself, successfully.
    Ended,
    /// The server is being stopped.
    Stopping {
        /// By which signal to us.
        signal: i32,
    },
    /// The server has its state again, and connections that it had opened itself to others.
    Outgoing {
        /// Those that go on.
        kept: usize,
        /// Those that have ended: the server finds them reset.
        reset: usize,
    },
    /// Something did not work that does not stop us.
    Trouble {
        /// What, in a word.
        code: Code,
        /// And in more.
        reason: String,
    },
    /// A step of a recovery.
    #[serde(untagged)]
    Recovery(Event),
}

/// How much somebody has to look at it: as syslog(3) has it, and the journal.
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
    /// For who looks for a fault in `outlive`.
    Debug,
}

impl Priority {
    /// The number that it has there.
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

impl Happening {
    /// How much somebody has to look at it.
    #[must_use]
    pub const fn priority(&self) -> Priority {
        match self {
            Self::NotListening { .. }
            | Self::LoggerLost { .. }
            | Self::LoggerRestarted { .. }
            | Self::RecordEnded { .. }
            | Self::StartFailed { .. }
            | Self::Recovery(Event::Lost { .. }) => Priority::Error,
            Self::Unprotected { .. }
            | Self::AwaitsLoggers { .. }
            | Self::ReplicaDropped { .. }
            | Self::Superseded { .. }
            | Self::CheckpointFailed { .. }
            | Self::Trouble { .. }
            | Self::Recovery(Event::Died { .. }) => Priority::Warning,
            Self::Reprotected { .. }
            | Self::CaughtUp { .. }
            | Self::Checkpointed { .. }
            | Self::Renewed { .. }
            | Self::Recovery(
                Event::Restarted { .. }
                | Event::Listening { .. }
                | Event::Spliced { .. }
                | Event::ClientReset { .. }
                | Event::Verified { .. },
            ) => Priority::Info,
            _ => Priority::Notice,
        }
    }
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { pid } => write!(f, "started as process {pid}"),
            Self::Adopted {
                pid: Some(pid),
                connections,
            } => {
                write!(
                    f,
                    "taken over as process {pid}, with {}",
                    Count(*connections, "open connection")
                )
            }
            Self::Adopted {
                pid: None,
                connections,
            } => {
                write!(
                    f,
                    "taken over without its main process, with {}",
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
                write!(f, "{former}: {taken_up} taken up")?;
                match lost {
                    0 => Ok(()),
                    _ => write!(f, "; {lost} more at other addresses, or too many"),
                }
            }
            Self::Protecting { addresses, awaits } => {
                let addresses = addresses.join(", ");
                match awaits {
                    None => write!(f, "protecting connections to {addresses}"),
                    Some(Awaits::Protection) => write!(
                        f,
                        "serving connections to {addresses}, which are unprotected until a logger answers"
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
                    "the server of this host, which stands by,"
                } else {
                    "the server"
                };
                let addresses = addresses.join(", ");
                write!(f, "{which} does not listen on {addresses}; ")?;
                match &elsewhere[..] {
                    [] => write!(
                        f,
                        "it listens nowhere, {} s after its start",
                        waited_ms / 1000
                    )?,
                    _ => write!(f, "it listens on {}", elsewhere.join(", "))?,
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
                "the logger was started again without its records: {} unprotected, new ones are protected",
                Count(*connections, "open connection")
            ),
            Self::AwaitsLoggers { at_most_ms } => {
                write!(
                    f,
                    "not started yet: loggers do not answer that may have the record of an earlier life; they are asked "
                )?;
                match at_most_ms {
                    Some(ms) => write!(f, "for {} s at the most", ms / 1000),
                    None => write!(f, "until one does"),
                }
            }
            Self::LoggerInUse { logger } => {
                write!(f, "the record is kept by the logger at {logger}")
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
                        "{} and new ones are unprotected until one answers",
                        Count(*n, "open connection")
                    ),
                    None => write!(f, "clients wait until it answers again"),
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
                    write!(f, ", {open} from the next turn on")?;
                }
                if *unprotected > 0 {
                    let open = Count(*unprotected, "open connection");
                    write!(f, "; without protection until the end: {open}")?;
                }
                Ok(())
            }
            Self::Reprotected { connection } => {
                write!(f, "protected again from this turn on: {connection}")
            }
            Self::StandsBy { epoch, host } => {
                let host = host.as_deref().unwrap_or("another host");
                write!(
                    f,
                    "standby: {host} serves (epoch {epoch}); ready to take over"
                )
            }
            Self::Follows { pid } => write!(
                f,
                "the server is started here, too, as process {pid}, and follows"
            ),
            Self::CaughtUp { bytes } => write!(
                f,
                "the server here has followed as far as there is anything to follow: {}",
                Size(*bytes)
            ),
            Self::ReplicaDropped { reason, retry_ms } => {
                write!(f, "the server here does not follow any more: {reason}; ")?;
                match retry_ms {
                    Some(retry_ms) => write!(f, "next try in {retry_ms} ms"),
                    None => write!(f, "a takeover has it replay everything"),
                }
            }
            Self::GoesOn { pid, behind } => write!(
                f,
                "the server that has followed, process {pid}, goes on; it had {} still to follow",
                Size(*behind)
            ),
            Self::Granted { epoch } => write!(f, "this host serves, in epoch {epoch}"),
            Self::Leased { leased: true, host } => {
                match host {
                    Some(host) => write!(f, "{host} stands by")?,
                    None => write!(f, "a standby is there")?,
                }
                write!(
                    f,
                    ": from now on this host serves only while the logger renews its lease"
                )
            }
            Self::Leased { leased: false, .. } => {
                write!(f, "no standby is left: this host needs no leases")
            }
            Self::Superseded { epoch, host } => {
                let host = host.as_deref().unwrap_or("another host");
                write!(
                    f,
                    "{host} serves, in epoch {epoch}: the server here is ended, its connections go on there"
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
                "checkpoint: an image of {} has the place of the first {} of the record, of which {} were left; {} have come since; it took {took_ms} ms beside the server",
                Size(*image_bytes),
                Size(*record_bytes),
                Size(*released_bytes),
                Size(*left_bytes)
            ),
            Self::CheckpointFailed { reason } => write!(
                f,
                "no checkpoint could be made, and the record is kept: {reason}"
            ),
            Self::RecordEnded {
                reason,
                record_bytes,
            } => write!(
                f,
                "unprotected: the record of what the server is told has ended after {}: {reason}. The server goes on, but its state and its connections do not outlive it",
                Size(*record_bytes)
            ),
            Self::Renewed { record_bytes } => write!(
                f,
                "nobody is connected: the server is started anew, and with it its record of {}",
                Size(*record_bytes)
            ),
            Self::Asked { request, by } => write!(f, "{request} asked for by {by}"),
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
            Self::Restarting => write!(
                f,
                "restarting, as asked for: the server is ended and started again"
            ),
            Self::Ended => write!(f, "ended by itself"),
            Self::Stopping { signal } => write!(f, "stopping on signal {signal}"),
            Self::Outgoing { kept, reset } => write!(
                f,
                "connections that the server had opened to others: {kept} kept, {reset} reset, as it finds out"
            ),
            Self::Trouble { code, reason } => write!(f, "warning: {reason} [{}]", code.word()),
            Self::Recovery(event) => event.fmt(f),
        }
    }
}

/// What a logger that does not answer is waited for with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Awaits {
    /// The protection of connections, which are served.
    Protection,
    /// Everything: clients wait.
    Service,
}

/// What had become of the earlier life of a service whose connections are taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FormerLife {
    /// This host has stopped, and was started again.
    Restarted,
    /// Another host has served, and is silent: it has died, hangs or is cut off.
    Silent,
    /// Another host has served, and has handed it over: it was moved or stopped there.
    HandedOver,
}

impl From<Former> for FormerLife {
    fn from(former: Former) -> Self {
        match former {
            Former::GivenUp => Self::HandedOver,
            Former::Other => Self::Silent,
            Former::Same | Former::Unknown => Self::Restarted,
        }
    }
}

impl FormerLife {
    /// In words; `host` is the name of the other host, if that is known.
    fn of(self, host: Option<&str>) -> String {
        let host = host.unwrap_or("the host that served");
        match self {
            Self::Restarted => "this host was restarted".to_owned(),
            Self::Silent => format!("took over from {host}, whose lease is over"),
            Self::HandedOver => format!("took over from {host}, which has handed over"),
        }
    }
}
