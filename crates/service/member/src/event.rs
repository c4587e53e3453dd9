//! Events of a member.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use serde::Serialize;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The server listens.
    Serving {
        /// Number of the server's life, from 1.
        incarnation: u32,
    },
    /// The balancer has granted the first lease.
    Joined,
    /// The member has left the pool, as asked.
    Left,
    /// The pool has other members than before.
    PoolChanged {
        /// Epoch of the table.
        epoch: u64,
        /// Number of members.
        members: usize,
    },
    /// The balancer counts the member as dead: its connections are those of other members.
    Expelled {
        /// The reason.
        reason: String,
    },
    /// The balancer does not admit the member now; the next try follows.
    NotAdmitted {
        /// The reason.
        reason: String,
    },
    /// No stream to the balancer.
    BalancerLost {
        /// The reason.
        reason: String,
    },
    /// All balancers have a stream, after [`Self::BalancerLost`].
    BalancerFound,
    /// A balancer was started anew with other settings, which hold for members that are started after it.
    OtherSettings,
    /// The member is asked to stop, and waits for the end of its connections.
    Draining {
        /// Number of connections.
        connections: usize,
    },
    /// The server has died.
    Died {
        /// How.
        exit: String,
    },
    /// The server does not listen, some seconds after its start.
    NotListening {
        /// Addresses of the pool on which the server does not listen.
        addresses: Vec<SocketAddr>,
    },
    /// The server has died and does not come back: the member leaves the pool until the server listens.
    Withdrawn,
    /// A connection goes on here.
    Revived {
        /// The client.
        client: SocketAddr,
        /// Request target.
        object: Option<String>,
        /// Bytes of the body that the client had; `None`: no response was under way.
        offset: Option<u64>,
        /// Time since the other members and the store have answered, µs.
        after_us: u64,
    },
    /// Another member serves a connection whose segments come here.
    Forwarded {
        /// The client.
        client: SocketAddr,
        /// The other member.
        to: IpAddr,
    },
    /// A connection of a dead member was reset.
    Refused {
        /// The client.
        client: SocketAddr,
        /// The kind of reason, for scripts.
        code: &'static str,
        /// The reason in words.
        reason: String,
    },
    /// More segments of unknown connections than a member looks at were dropped: a flood, or very many clients of a
    /// dead member.
    OverBudget {
        /// Number of segments, since the last event of this kind.
        dropped: u64,
    },
    /// A store of the pool does not answer.
    StoreLost {
        /// The address.
        store: String,
        /// Why.
        reason: String,
    },
    /// A store of the pool answers.
    StoreConnected {
        /// The address.
        store: String,
    },
    /// A connection can no longer be revived.
    Unprotected {
        /// The client.
        client: SocketAddr,
        /// The kind of reason, for scripts.
        code: &'static str,
        /// The reason in words.
        reason: String,
    },
}

/// All kinds of events.
pub(crate) const KINDS: [&str; 20] = [
    "serving",
    "joined",
    "left",
    "pool_changed",
    "expelled",
    "not_admitted",
    "balancer_lost",
    "balancer_found",
    "other_settings",
    "draining",
    "died",
    "not_listening",
    "withdrawn",
    "revived",
    "forwarded",
    "refused",
    "unprotected",
    "over_budget",
    "store_lost",
    "store_connected",
];

impl Event {
    /// The event's name as in JSON, one of [`KINDS`].
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Serving { .. } => "serving",
            Self::Joined => "joined",
            Self::Left => "left",
            Self::PoolChanged { .. } => "pool_changed",
            Self::Expelled { .. } => "expelled",
            Self::NotAdmitted { .. } => "not_admitted",
            Self::BalancerLost { .. } => "balancer_lost",
            Self::BalancerFound => "balancer_found",
            Self::OtherSettings => "other_settings",
            Self::Draining { .. } => "draining",
            Self::Died { .. } => "died",
            Self::NotListening { .. } => "not_listening",
            Self::Withdrawn => "withdrawn",
            Self::Revived { .. } => "revived",
            Self::Forwarded { .. } => "forwarded",
            Self::Refused { .. } => "refused",
            Self::Unprotected { .. } => "unprotected",
            Self::OverBudget { .. } => "over_budget",
            Self::StoreLost { .. } => "store_lost",
            Self::StoreConnected { .. } => "store_connected",
        }
    }

    /// Whether the operator should look.
    #[must_use]
    pub const fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::Died { .. }
                | Self::Expelled { .. }
                | Self::BalancerLost { .. }
                | Self::NotAdmitted { .. }
                | Self::OtherSettings
                | Self::NotListening { .. }
                | Self::Withdrawn
                | Self::Refused { .. }
                | Self::OverBudget { .. }
                | Self::StoreLost { .. }
        )
    }

    /// Whether the event happens so often that only a reader of `--json` wants to see each.
    #[must_use]
    pub const fn is_frequent(&self) -> bool {
        matches!(self, Self::Unprotected { .. } | Self::Forwarded { .. })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serving { incarnation: 1 } => write!(f, "the server listens"),
            Self::Serving { incarnation } => {
                write!(f, "the server listens again, incarnation {incarnation}")
            }
            Self::Joined => write!(f, "joined the pool"),
            Self::Left => write!(f, "left the pool"),
            Self::PoolChanged { epoch, members } => {
                let plural = if *members == 1 { "member" } else { "members" };
                write!(f, "the pool has {members} {plural} (epoch {epoch})")
            }
            Self::Expelled { reason } => write!(f, "{reason}"),
            Self::NotAdmitted { reason } => write!(f, "not in the pool: {reason}"),
            Self::BalancerLost { reason } => write!(f, "no stream to the balancer: {reason}"),
            Self::BalancerFound => write!(f, "the balancer answers again"),
            Self::OtherSettings => write!(
                f,
                "the balancer was started with other settings (--store, --version-check, leases …), which this member lacks: \
                 restart the members, one at a time"
            ),
            Self::Draining { connections } => {
                let have = match connections {
                    1 => "connection has",
                    _ => "connections have",
                };
                write!(f, "stops when {connections} {have} ended")
            }
            Self::Died { exit } => {
                let hint = match exit.ends_with("status 0") {
                    true => ": does the command stay in the foreground?",
                    false => "",
                };
                write!(
                    f,
                    "the server has died ({exit}), and is started again{hint}"
                )
            }
            Self::NotListening { addresses } => {
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "the server does not listen on {}: does the configuration name the address, and does the command stay in the foreground?",
                    addresses.join(" and ")
                )
            }
            Self::Withdrawn => write!(
                f,
                "the server does not come back: other members have the clients until the server listens"
            ),
            Self::Revived {
                client,
                object,
                offset,
                after_us,
            } => {
                let object = object.as_deref().unwrap_or("an object");
                let after = Duration::from_micros(*after_us);
                match offset {
                    Some(offset) => write!(
                        f,
                        "goes on with {object} for {client} at byte {offset}; the revival took {after:?}"
                    ),
                    None => write!(
                        f,
                        "goes on with {object} for {client} from the beginning; the revival took {after:?}"
                    ),
                }
            }
            Self::Forwarded { client, to } => {
                write!(f, "segments of {client} go to the member {to}")
            }
            Self::Refused { client, reason, .. } => {
                write!(f, "reset the connection of {client}: {reason}")
            }
            Self::OverBudget { dropped } => {
                let segments = if *dropped == 1 { "segment" } else { "segments" };
                write!(
                    f,
                    "dropped {dropped} {segments} of unknown connections: more than this member looks at"
                )
            }
            Self::StoreLost { store, reason } => {
                write!(f, "the store at {store} does not answer: {reason}")
            }
            Self::StoreConnected { store } => write!(f, "the store at {store} answers"),
            Self::Unprotected { client, reason, .. } => {
                write!(f, "the connection of {client} is not protected: {reason}")
            }
        }
    }
}
