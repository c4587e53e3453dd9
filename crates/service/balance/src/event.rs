//! Events of the balancer.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use serde::Serialize;

/// A failure that does not end the balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The key file has changed and cannot be read.
    KeysNotRead,
    /// Another program took an address of the service off this host; the address is up again.
    AddressTaken,
    /// An address of the service cannot be held.
    AddressNotHeld,
    /// Packets that arrive on an interface are not balanced.
    InterfaceNotAttached,
    /// A member of the table is on no link of this host.
    MemberNotOnLink,
    /// The register does not answer: the table stays as it is.
    RegisterLost,
    /// The program of `--on-change` has failed.
    OnChangeFailed,
}

impl Code {
    /// The label in JSON and in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::KeysNotRead => "keys_not_read",
            Self::AddressTaken => "address_taken",
            Self::AddressNotHeld => "address_not_held",
            Self::InterfaceNotAttached => "interface_not_attached",
            Self::MemberNotOnLink => "member_not_on_link",
            Self::RegisterLost => "register_lost",
            Self::OnChangeFailed => "on_change_failed",
        }
    }
}

/// An event of the balancer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// The balancer accepts members, and balances packets.
    Listening {
        /// The addresses for members.
        addresses: Vec<SocketAddr>,
        /// The addresses of the service.
        service: Vec<SocketAddr>,
        /// The epoch of the table of a former balancer, and the number of its members.
        epoch: u64,
        /// See there.
        members: usize,
    },
    /// The table has changed.
    Table {
        /// The epoch of the new table.
        epoch: u64,
        /// The names of the members.
        members: Vec<String>,
        /// Number of the balancers whose leases the members need; 0: the pool has no register.
        balancers: usize,
    },
    /// The register answers again.
    RegisterBack,
    /// A member gets connections from now on.
    Joined {
        /// The name of the member.
        member: String,
        /// The address of the member.
        address: IpAddr,
    },
    /// A member has left the pool.
    Left {
        /// The name of the member.
        member: String,
    },
    /// A member gets no new connections from now on.
    Draining {
        /// The name of the member.
        member: String,
    },
    /// A draining member has left the pool.
    Drained {
        /// The name of the member.
        member: String,
    },
    /// The lease of a member is over: other members get its connections.
    DeclaredDead {
        /// The name of the member.
        member: String,
        /// The time since the newest message of the member, milliseconds.
        silent_ms: u64,
    },
    /// The control stream of a member has ended. The lease of the member goes on.
    StreamLost {
        /// The name of the member.
        member: String,
    },
    /// A connection was refused, or a member was not admitted.
    Refused {
        /// The address of the peer, if still connected.
        from: Option<SocketAddr>,
        /// The name of the member, if told.
        member: Option<String>,
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
    /// A failure that does not end the balancer.
    Warning {
        /// The kind of failure.
        code: Code,
        /// The failure in words, for people.
        reason: String,
    },
    /// The balancer ends. Packets go to the members of the last table as long as their leases run.
    Stopping,
}

impl Event {
    /// The event's name as in JSON; of a warning, the code.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Listening { .. } => "listening",
            Self::Table { .. } => "table",
            Self::RegisterBack => "register_back",
            Self::Joined { .. } => "joined",
            Self::Left { .. } => "left",
            Self::Draining { .. } => "draining",
            Self::Drained { .. } => "drained",
            Self::DeclaredDead { .. } => "declared_dead",
            Self::StreamLost { .. } => "stream_lost",
            Self::Refused { .. } | Self::RefusedMore { .. } => "refused",
            Self::KeysChanged => "keys_changed",
            Self::Warning { code, .. } => code.word(),
            Self::Stopping => "stopping",
        }
    }
}

fn joined<T: fmt::Display>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening {
                addresses,
                service,
                epoch,
                members,
            } => {
                let (addresses, service) = (joined(addresses), joined(service));
                write!(f, "balances {service}; members connect to {addresses}")?;
                match members {
                    0 => Ok(()),
                    _ => write!(f, "; goes on with the {members} members of epoch {epoch}"),
                }
            }
            Self::Table { epoch, members, .. } if members.is_empty() => {
                write!(
                    f,
                    "epoch {epoch}: no members, packets of clients are dropped"
                )
            }
            Self::Table {
                epoch,
                members,
                balancers,
            } => {
                write!(f, "epoch {epoch}: {}", members.join(", "))?;
                match balancers {
                    0 => Ok(()),
                    1 => write!(f, "; leases of one balancer"),
                    _ => write!(f, "; leases of {balancers} balancers"),
                }
            }
            Self::RegisterBack => write!(f, "the register answers again"),
            Self::Joined { member, address } => write!(f, "{member} has joined from {address}"),
            Self::Left { member } => write!(f, "{member} has left"),
            Self::Draining { member } => write!(f, "{member} gets no new connections: drain"),
            Self::Drained { member } => write!(f, "{member} is drained, and has left"),
            Self::DeclaredDead { member, silent_ms } => {
                write!(f, "{member} declared dead after {silent_ms} ms of silence")
            }
            Self::StreamLost { member } => {
                write!(
                    f,
                    "{member}: the control stream has ended, the lease goes on"
                )
            }
            Self::Refused {
                from,
                member,
                reason,
            } => {
                let from = from.map(|from| from.to_string()).unwrap_or_default();
                let member = member.as_deref().unwrap_or("a peer");
                write!(f, "refused {member}")?;
                match from.is_empty() {
                    true => write!(f, ": {reason}"),
                    false => write!(f, " at {from}: {reason}"),
                }
            }
            Self::RefusedMore { count } => write!(f, "refused {count} more"),
            Self::KeysChanged => write!(f, "the key file has changed and was read again"),
            Self::Warning { code, reason } => write!(f, "warning: {reason} [{}]", code.word()),
            Self::Stopping => write!(
                f,
                "stopping: packets go on to the last members for the length of a lease; `outlive clean` takes everything down"
            ),
        }
    }
}

/// Most refusals per second with an event each: any peer can cause refusals.
const REFUSALS_PER_SECOND: u64 = 5;
const REFUSAL_PERIOD: Duration = Duration::from_secs(1);

/// Limits the rate of events about refusals.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    since: Option<Instant>,
    count: u64,
}

impl Refusals {
    /// The event, if the rate allows one.
    pub(crate) fn limited(&mut self, event: Event, now: Instant) -> Option<Event> {
        self.since.get_or_insert(now);
        self.count += 1;
        (self.count <= REFUSALS_PER_SECOND).then_some(event)
    }

    /// The number of refusals without an event, once a second.
    pub(crate) fn rest(&mut self, now: Instant) -> Option<Event> {
        self.since
            .filter(|since| now.duration_since(*since) >= REFUSAL_PERIOD)?;
        let count = self.count.saturating_sub(REFUSALS_PER_SECOND);
        *self = Self::default();
        (count > 0).then_some(Event::RefusedMore { count })
    }
}
