//! Parts of the messages.

use core::{fmt, net::SocketAddr, num::NonZeroU16};

use serde::{Deserialize, Serialize};
use types::{Encapsulation, TableKind, VersionCheck};

use super::{MemberAddress, MemberName};
use crate::control::{framed, values};

/// A member joins, or continues after a lost stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The name of the member.
    pub name: MemberName,
    /// Drawn at random when the member joins, and kept as long as the member keeps the state of its connections. A
    /// membership that was declared dead does not come back.
    pub membership: u64,
    /// Whether the membership is new.
    pub state: MembershipState,
    /// Where packets for the pool reach the member.
    pub address: MemberAddress,
    /// The UDP port for claims of other members.
    pub claim_port: NonZeroU16,
    /// The newest epoch that the member knows; 0: none.
    pub epoch: u64,
    /// Of the next version, for tests.
    #[cfg(feature = "next-version")]
    #[serde(default)]
    pub next: u32,
}

/// State of a membership at the sending of [`Hello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MembershipState {
    /// The member has no state of connections.
    New,
    /// The member was admitted before, and its lease is over.
    Silent,
    /// The member was admitted before, and may send at this moment. No balancer has declared the membership dead.
    Speaks,
}

/// The secret of a pool, for the hash of connections and all keys of the members.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolKey(
    /// Known to the members and the balancers.
    pub [u8; 16],
);

/// Without the secret: a secret must not get into a log.
impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey")
    }
}

/// The settings of a pool: equal for all members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The addresses of the service, at least one.
    #[serde(with = "values::addresses")]
    pub addresses: Vec<SocketAddr>,
    /// The longest lease, µs.
    pub term_us: u32,
    /// The shortest lease, µs.
    pub least_term_us: u32,
    /// The bound of the drift of clocks, in millionths.
    pub drift_ppm: u32,
    /// For how long a packet that has passed the data plane may wait in the member's host, µs.
    pub queue_us: u32,
    /// After a change of the pool, the time in which weakly authenticated packets may revive a connection, ms.
    pub quiescence_ms: u32,
    /// The pool's key.
    pub key: PoolKey,
    /// Which validators must be equal before a download continues on another member.
    pub version_check: VersionCheck,
    /// The store of the pool, if the pool has a store.
    #[serde(default, with = "framed")]
    pub store: Option<StoreSettings>,
    /// How packets go between balancer and members, and from member to member. `None`: as frames, on a common link.
    #[serde(default)]
    pub encapsulation: Option<Encapsulation>,
}

/// The store with the records of a pool's connections: one or two key-value stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSettings {
    /// The URLs, one or two.
    #[serde(with = "framed::list")]
    pub urls: Vec<StoreUrlText>,
    /// A record counts as stored when every store has confirmed; otherwise when the first store has.
    pub needs_all: bool,
    /// A response that lives longer is stored, µs.
    pub after_us: u32,
}

/// The URL of a store, as the operator has written the URL: with the password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreUrlText {
    /// The text.
    pub text: String,
}

/// Without the secret.
impl fmt::Debug for StoreUrlText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreUrlText")
    }
}

/// The members of a pool in an epoch. Equal members make equal tables of owners, in any order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Grows from table to table.
    pub epoch: u64,
    /// How connections are spread over the members.
    pub kind: TableKind,
    /// The members.
    #[serde(with = "framed::list")]
    pub members: Vec<TableMember>,
    /// The balancers that grant leases: a member sends by the leases of all. Empty: the pool has one balancer, and no
    /// common register.
    #[serde(with = "framed::list")]
    pub granters: Vec<Granter>,
}

/// A balancer among the balancers of a pool, drawn at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BalancerId(
    /// Kept over restarts of the balancer, and never used by another balancer.
    pub u64,
);

/// A balancer whose leases all members need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Granter {
    /// The balancer.
    pub balancer: BalancerId,
    /// No member of the table sends by an older table, in which this balancer is missing.
    pub settled: bool,
}

/// A member of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableMember {
    /// The name.
    pub name: MemberName,
    /// The membership: see [`Hello::membership`].
    pub membership: u64,
    /// Where packets for the pool reach the member.
    pub address: MemberAddress,
    /// The UDP port for claims.
    pub claim_port: NonZeroU16,
    /// The member gets no new connections, and keeps the old connections.
    pub draining: bool,
}

/// Why the balancer does not admit a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Refused {
    /// The first message of the stream is no `Hello`, or a second `Hello` came.
    #[error("the member broke the order of messages: both programs may be of different versions")]
    OutOfOrder,
    /// Another membership has the name, and may still be in use.
    #[error("another member has this name: wait until its lease is over, or choose another --name")]
    NameTaken,
    /// The membership is that of a member with another name.
    #[error(
        "a member with another name has the same identity: remove the run directory, which is a copy"
    )]
    MembershipTaken,
    /// Another membership has the address, and may still be in use.
    #[error(
        "another member has this address: wait until its lease is over, or choose another --member-address"
    )]
    AddressTaken,
    /// The membership was declared dead: other members have its connections.
    #[error("the member was declared dead: it drops its connections and joins anew")]
    Dead,
    /// The service has an IPv6 address, and the member has none.
    #[error(
        "the service has an IPv6 address, which no IPv4 neighbour is given packets for: choose an IPv6 --member-address"
    )]
    NeedsIpv6,
    /// The balancer reaches the address through a router, or not at all.
    #[error(
        "the address is on no network of the balancer: choose a --member-address on a common network"
    )]
    NotOnLink,
    /// The pool has as many members as a pool may have.
    #[error("the pool has {most} members, which is the limit", most = super::MEMBER_COUNT_MAX)]
    Full,
    /// Packets for the member would be lost.
    #[error(
        "the balancer has no route to the address: choose a --member-address that the balancer reaches"
    )]
    NoRoute,
    /// A member sends from its address to all others.
    #[error(
        "the other members have addresses of another family: choose a --member-address of that family"
    )]
    OtherFamily,
}
