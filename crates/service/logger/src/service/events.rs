//! What the logger tells.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use serde::Serialize;

/// What did not work, and does not stop us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Clients of a service that no host serves are told nothing: no raw sockets.
    ClientsNotTold,
    /// The key file has changed, and cannot be read.
    KeysNotRead,
    /// Datagrams cannot be read.
    DatagramsNotRead,
    /// No host is granted a service, for that cannot be noted.
    GrantsNotNoted,
}

impl Code {
    /// As JSON and metrics have it.
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

/// Something worth a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// It takes services.
    Listening {
        /// Where.
        addresses: Vec<SocketAddr>,
    },
    /// Records were found in the directory of the log.
    Restored {
        /// Services.
        services: usize,
        /// Connections with a record.
        connections: usize,
        /// Connections whose records are lost, because files are damaged.
        damaged: usize,
        /// Files of the directory that were removed unread, for one behind them is missing: their numbers, as in their
        /// names. After a crash of the host these are of before the last clearing away; otherwise somebody has taken
        /// files away, and what was in these is lost.
        removed: Vec<String>,
    },
    /// The log cannot be written: records are only in memory from now on.
    LogFailed {
        /// Why.
        reason: String,
    },
    /// All acknowledged records are in the log again.
    LogRecovered,
    /// A service has its record kept from now on.
    Attached {
        /// Its name.
        service: String,
        /// The number of its instance, in hexadecimal digits.
        instance: String,
        /// From where its control stream comes.
        from: SocketAddr,
        /// The name of the key that it proved to have.
        key: String,
        /// Whether it found records of before.
        kept: bool,
    },
    /// The operator has said that the host which was granted a service is gone for good (`outlive logger release`).
    HolderReleased {
        /// Its name.
        service: String,
        /// The epoch that is over.
        epoch: u32,
        /// Who has said so.
        from: SocketAddr,
    },
    /// A host may speak for a service, and no other, from now on.
    Granted {
        /// Its name.
        service: String,
        /// The epoch that begins.
        epoch: u32,
        /// The number of the instance, in hexadecimal digits.
        instance: String,
        /// From where it has asked.
        to: SocketAddr,
    },
    /// Two services that are served have one address: under two names two hosts answer its clients, unless it is
    /// another address behind NAT.
    TwoServices {
        /// The name of the one that has come now.
        service: String,
        /// The address.
        address: SocketAddr,
        /// The name of the other one.
        other: String,
        /// The addresses of their hosts.
        hosts: [IpAddr; 2],
    },
    /// No host may speak for a service: its clients were told that there is no room now, and are told so
    /// until a host may.
    Unserved {
        /// Its name.
        service: String,
        /// How many were told.
        connections: usize,
    },
    /// The host of a service has begun a new life: the records of the one before are those of the
    /// instance that attaches now.
    Inherited {
        /// Its name.
        service: String,
        /// The number of its instance.
        instance: String,
        /// The number of the instance of before.
        earlier: String,
        /// Connections with a record.
        connections: usize,
    },
    /// The control stream of a service has ended; its records are kept for a while.
    Detached {
        /// Its name.
        service: String,
        /// The number of its instance.
        instance: String,
        /// Why.
        reason: String,
        /// Datagrams that were recorded until now.
        segments: u64,
        /// Datagrams that were not taken: not ours, with a wrong tag, damaged, or of no known
        /// connection.
        refused: u64,
    },
    /// The records of a service that has ended, or been away for too long, are gone.
    Forgotten {
        /// Its name.
        service: String,
        /// The number of its instance.
        instance: String,
    },
    /// Who connected is no service of ours, or does not behave.
    Refused {
        /// From where.
        from: SocketAddr,
        /// Why.
        reason: String,
    },
    /// So many were refused besides, too many to name each.
    RefusedMore {
        /// How many.
        count: u64,
    },
    /// The key file was read again.
    KeysChanged,
    /// A failure that does not end the logger.
    Warning {
        /// What, in a word.
        code: Code,
        /// And in more.
        reason: String,
    },
    /// It ends.
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

/// Refusals, which anybody can bring about: so many a second are named.
const NAMED: u64 = 5;
const SECOND: Duration = Duration::from_secs(1);

/// Holds refusals back that come too fast.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    since: Option<Instant>,
    count: u64,
}

impl Refusals {
    /// The event, if it is to be told.
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

    /// What was held back, once a second.
    pub(super) fn rest(&mut self, now: Instant) -> Option<Event> {
        self.since
            .filter(|since| now.duration_since(*since) >= SECOND)?;
        let count = self.count.saturating_sub(NAMED);
        *self = Self::default();
        (count > 0).then_some(Event::RefusedMore { count })
    }
}
