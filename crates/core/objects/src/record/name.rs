//! Names of records in a store.
//!
//! | store | name of a record | names of members |
//! |---|---|---|
//! | Valkey, Redis | hash `o:{service}:{member}`, field `{client}>{server}` | set `m:{service}:{pool}:{period}` |
//! | memcached | `o:{service}:{member}:{client}>{server}` | value `m:{service}:{pool}:{period}` |
//!
//! The hash is the index of a member's records. memcached takes names of 250 bytes; the longest name has 165 bytes.
//!
//! A member that boots after the death of another member has not heard of that name: each member adds its name to the
//! list of members. The list is in the store: whoever reaches the records of a dead member reaches the list, too, and a
//! balancer that was started anew need not remember. A list is of a period, so that old names expire in any store. Its
//! name is hashed under the key of the pool, too: the records of a pool that was at the same address before are not
//! readable, and a look-up in these would never end well.

use alloc::string::{String, ToString as _};
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use wire::FlowKey;

use crate::key::PoolKey;

const MEMBER_LABEL: &[u8] = b"outlive store member 1";
const LIST_LABEL: &[u8] = b"outlive store members 1";
/// As long as a record lives without a renewal, seconds.
const PERIOD_SECONDS: u64 = 2 * 3600;

/// A member's name, hashed under the key of the pool: two pools with one store have different names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberHash(u64);

impl MemberHash {
    /// The hash of a name.
    #[must_use]
    pub fn of(name: &str, key: &PoolKey) -> Self {
        Self(keyed(key, MEMBER_LABEL, name.as_bytes()))
    }

    /// The hash of these digits. `None`: not written by [`fmt::Display`].
    #[must_use]
    pub fn parse(digits: &str) -> Option<Self> {
        let hash = Self(u64::from_str_radix(digits, 16).ok()?);
        (hash.to_string() == digits).then_some(hash)
    }
}

/// 16 hexadecimal digits.
impl fmt::Display for MemberHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Name of all records of a member of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashName {
    service: SocketAddr,
    member: MemberHash,
}

impl HashName {
    /// The name. `service`: the first address of the service.
    #[must_use]
    pub fn new(service: SocketAddr, member: MemberHash) -> Self {
        // Without flow label and scope.
        let service = SocketAddr::new(service.ip().to_canonical(), service.port());
        Self { service, member }
    }

    /// The member.
    #[must_use]
    pub const fn member(&self) -> MemberHash {
        self.member
    }
}

impl fmt::Display for HashName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "o:{}:{}", self.service, self.member)
    }
}

fn keyed(key: &PoolKey, label: &[u8], context: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = key.derive(label, context);
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Name of the list of members that were in the pool in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberList {
    service: SocketAddr,
    /// Of the key of the pool.
    pool: u64,
    period: u64,
}

impl MemberList {
    /// The list of now. `unix`: time since the Unix epoch.
    #[must_use]
    pub fn at(service: SocketAddr, key: &PoolKey, unix: Duration) -> Self {
        Self {
            service: SocketAddr::new(service.ip().to_canonical(), service.port()),
            pool: keyed(key, LIST_LABEL, &[]),
            period: unix.as_secs() / PERIOD_SECONDS,
        }
    }

    /// The lists with the members whose records may be in the store: clocks of hosts differ.
    #[must_use]
    pub const fn around(self) -> [Self; 3] {
        [
            Self {
                period: self.period.saturating_sub(1),
                ..self
            },
            self,
            Self {
                period: self.period + 1,
                ..self
            },
        ]
    }
}

impl fmt::Display for MemberList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m:{}:{:016x}:{}", self.service, self.pool, self.period)
    }
}

/// Name of a record: the service, the member that wrote the record, and the 4-tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreKey {
    /// Service and member.
    pub hash: HashName,
    /// The 4-tuple.
    pub flow: FlowKey,
}

impl StoreKey {
    /// The record of a connection in the hash of a member.
    #[must_use]
    pub const fn new(hash: HashName, flow: FlowKey) -> Self {
        Self { hash, flow }
    }

    /// The field in the hash.
    #[must_use]
    pub fn field(&self) -> String {
        Field(self.flow).to_string()
    }

    /// The connection of a field. `None`: the field was not written by [`StoreKey::field`].
    #[must_use]
    pub fn flow_of(field: &str) -> Option<FlowKey> {
        let (client, server) = field.split_once('>')?;
        let flow = FlowKey::new(client.parse().ok()?, server.parse().ok()?);
        // Other spellings of an address would be two names of a record.
        (Field(flow).to_string() == field).then_some(flow)
    }

    /// The name in a store without hashes.
    #[must_use]
    pub fn flat(&self) -> String {
        alloc::format!("{}:{}", self.hash, Field(self.flow))
    }
}

struct Field(FlowKey);

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.0.client(), self.0.server())
    }
}
