//! Names of records in a store.
//!
//! | store | name |
//! |---|---|
//! | Valkey, Redis | hash `o:{service}:{member}`, field `{client}>{server}` |
//! | memcached | `o:{service}:{member}:{client}>{server}` |
//!
//! The hash is the index of a member's records. memcached takes names of 250 bytes; the longest name has 165 bytes.

use alloc::string::{String, ToString as _};
use core::fmt;
use core::net::SocketAddr;

use wire::FlowKey;

use crate::key::PoolKey;

const MEMBER_LABEL: &[u8] = b"outlive store member 1";

/// A member's name, hashed under the key of the pool: two pools with one store have different names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberHash(u64);

impl MemberHash {
    /// The hash of a name.
    #[must_use]
    pub fn of(name: &str, key: &PoolKey) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = key.derive(MEMBER_LABEL, name.as_bytes());
        Self(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
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
