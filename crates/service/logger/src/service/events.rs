//! Events of the logger.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use serde::Serialize;

/// A failure that does not end the logger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Clients of a service without a serving host get no zero-window ACKs: there are no raw sockets.
    ClientsNotTold,
    /// The key file has changed and cannot be read.
    KeysNotRead,
    /// Datagrams cannot be read.
    DatagramsNotRead,
    /// The logger grants no host a service, because grants cannot be stored.
    GrantsNotNoted,
}

impl Code {
    /// The label in JSON and in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::ClientsNotTold => "zero_window_acks_not_sent",
            Self::KeysNotRead => "keys_not_read",
            Self::DatagramsNotRead => "datagrams_not_read",
            Self::GrantsNotNoted => "grants_not_stored",
        }
    }
}

/// An event of the logger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// The logger accepts services.
    Listening {
        /// The addresses.
        addresses: Vec<SocketAddr>,
    },
    /// Records were found in the directory of the log.
    Restored {
        /// Number of services.
        services: usize,
        /// Number of connections with a record.
        connections: usize,
        /// Number of connections whose records are lost, because files are damaged.
        damaged: usize,
        /// Names of the files that were removed unread, because a later file is missing. After a crash of the host
        /// these files are older than the last removal. Otherwise files were deleted by hand, and the records in
        /// the removed files are lost.
        removed: Vec<String>,
    },
    /// The log cannot be written: records are only in memory from now on.
    LogFailed {
        /// The reason.
        reason: String,
    },
    /// All acknowledged records are in the log again.
    LogRecovered,
    /// The logger records a service from now on.
    Attached {
        /// The name of the service.
        service: String,
        /// The instance number, in hexadecimal digits.
        instance: String,
        /// The remote address of the control stream.
        from: SocketAddr,
        /// The name of the service's key.
        key: String,
        /// Whether the logger had earlier records of the instance.
        kept: bool,
    },
    /// The operator has declared the holder of a service dead (`outlive logger release`).
    HolderReleased {
        /// The name of the service.
        service: String,
        /// The epoch that has ended.
        epoch: u32,
        /// The address of the operator.
        from: SocketAddr,
    },
    /// The logger has granted a service to one host.
    Granted {
        /// The name of the service.
        service: String,
        /// The epoch that begins.
        epoch: u32,
        /// The instance number, in hexadecimal digits.
        instance: String,
        /// The address of the host.
        to: SocketAddr,
    },
    /// Two services claim the same address: two hosts under two names answer the clients, unless the addresses are
    /// behind different NATs.
    TwoServices {
        /// The name of the newer service.
        service: String,
        /// The address.
        address: SocketAddr,
        /// The name of the other service.
        other: String,
        /// The addresses of both hosts.
        hosts: [IpAddr; 2],
    },
    /// No host may serve: the clients of a service got zero-window ACKs, and get more until a host may serve.
    Unserved {
        /// The name of the service.
        service: String,
        /// Number of clients that got a zero-window ACK.
        connections: usize,
    },
    /// The host of a service has a new instance, which inherits the records of the earlier instance.
    Inherited {
        /// The name of the service.
        service: String,
        /// The instance number.
        instance: String,
        /// The number of the earlier instance.
        earlier: String,
        /// Number of connections with a record.
        connections: usize,
    },
    /// The control stream of a service has ended; the records stay for the retention time.
    Detached {
        /// The name of the service.
        service: String,
        /// The instance number.
        instance: String,
        /// The reason.
        reason: String,
        /// Number of the session's segments with payload or FIN.
        segments: u64,
        /// Number of rejected datagrams: malformed, with a wrong tag, damaged, or of no known connection.
        refused: u64,
    },
    /// The records of a service are dropped: the service has ended, or was absent for longer than the retention
    /// time.
    Forgotten {
        /// The name of the service.
        service: String,
        /// The instance number.
        instance: String,
    },
    /// A connection was refused: the peer has no accepted key, or violates the protocol.
    Refused {
        /// The address of the peer.
        from: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// Refusals beyond the number of events per second.
    RefusedMore {
        /// Number of refusals.
        count: u64,
    },
    /// The key file was read again.
    KeysChanged,
    /// A failure that does not end the logger.
    Warning {
        /// The kind of failure.
        code: Code,
        /// The failure in words, for people.
        reason: String,
    },
    /// The logger ends.
    Stopping,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening { addresses } => {
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                write!(f, "the logger listens on {}", addresses.join(", "))
            }
            Self::Restored {
                services,
                connections,
                damaged,
                removed,
            } => {
                let plural = |number: usize| if number == 1 { "" } else { "s" };
                write!(
                    f,
                    "found records of {services} service{}, {connections} connection{}",
                    plural(*services),
                    plural(*connections),
                )?;
                if *damaged > 0 {
                    write!(
                        f,
                        "; the records of {damaged} more are lost, because files are damaged"
                    )?;
                }
                if let (Some(first), Some(last)) = (removed.first(), removed.last()) {
                    write!(
                        f,
                        "; {} files, from {first} to {last}, were removed unread, because a later file is missing",
                        removed.len()
                    )?;
                }
                Ok(())
            }
            Self::LogFailed { reason } => write!(
                f,
                "the log cannot be written ({reason}): records are in memory only, and would not outlive the logger"
            ),
            Self::LogRecovered => write!(f, "the log is written again: records outlive the logger"),
            Self::Attached {
                service,
                from,
                key,
                kept,
                ..
            } => {
                let found = if *kept {
                    " with its earlier records"
                } else {
                    ""
                };
                write!(f, "{service}: attached from {from} with key {key}{found}")
            }
            Self::HolderReleased {
                service,
                epoch,
                from,
            } => write!(
                f,
                "{service}: an operator at {from} has released the host of epoch {epoch}: another host may serve"
            ),
            Self::Granted {
                service,
                epoch,
                instance,
                to,
            } => write!(
                f,
                "{service}: epoch {epoch} is granted to {to} (instance {instance})"
            ),
            Self::TwoServices {
                service,
                address,
                other,
                hosts: [host, other_host],
            } => write!(
                f,
                "{service} on {host} and {other} on {other_host} both serve {address}: end one of the two. Hosts that serve one address in turn need one --name; two sites with one private address, --shared-address"
            ),
            Self::Unserved {
                service,
                connections,
            } => write!(
                f,
                "{service}: no host serves: {connections} clients get zero-window ACKs"
            ),
            Self::Inherited {
                service,
                connections,
                earlier,
                ..
            } => write!(
                f,
                "{service}: a new instance has the records of {connections} connections of instance {earlier} now"
            ),
            Self::Detached {
                service,
                reason,
                segments,
                refused,
                ..
            } => write!(
                f,
                "{service}: detached: {reason}; {segments} segments taken, {refused} refused"
            ),
            Self::Forgotten { service, .. } => {
                write!(
                    f,
                    "{service}: ended, or absent for too long: records dropped"
                )
            }
            Self::Refused { from, reason } => write!(f, "refused {from}: {reason}"),
            Self::RefusedMore { count } => write!(f, "refused {count} more"),
            Self::KeysChanged => write!(f, "the key file has changed and was read again"),
            Self::Warning { code, reason } => write!(f, "warning: {reason} [{}]", code.word()),
            Self::Stopping => write!(f, "stopping"),
        }
    }
}

/// Most refusals per second with an event each: any peer can cause refusals.
const NAMED: u64 = 5;
const SECOND: Duration = Duration::from_secs(1);

/// Limits the rate of events about refusals.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    since: Option<Instant>,
    count: u64,
}

impl Refusals {
    /// The event, if the rate allows one.
    pub(super) fn refused(
        &mut self,
        from: SocketAddr,
        reason: String,
        now: Instant,
    ) -> Option<Event> {
        self.since.get_or_insert(now);
        self.count += 1;
        (self.count <= NAMED).then_some(Event::Refused { from, reason })
    }

    /// The number of refusals without an event, once a second.
    pub(super) fn rest(&mut self, now: Instant) -> Option<Event> {
        self.since
            .filter(|since| now.duration_since(*since) >= SECOND)?;
        let count = self.count.saturating_sub(NAMED);
        *self = Self::default();
        (count > 0).then_some(Event::RefusedMore { count })
    }
}
