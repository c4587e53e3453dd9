//! The stream between a member of a pool and the balancer.
//!
//! A stream of [`crate::control`] with other messages: the same opening (with the roles [`Role::Member`] and
//! [`Role::Balancer`]), the same encoding, and the same rules for growth. [`STREAM_VERSION`] counts these messages
//! alone.
//!
//! ```text
//! member -> balancer    Hello                   the member joins, or continues after a lost stream
//! balancer -> member    Config, Table           or Refused; Granter first, if the pool has several balancers
//! member -> balancer    LeaseRequest            three times in a term
//! balancer -> member    Lease                   may send for a term, counted from the sending of the request
//! balancer -> member    Table                   after each change of the pool
//! member -> balancer    Enforces                after each change, if the pool has several balancers
//! member -> balancer    Drain                   the member leaves soon
//! member -> balancer    Leave                   the member is silent already
//! check -> balancer     AskMembers              in the place of Hello: `outlive check` joins no pool
//! balancer -> check     Config, Table
//! ```
//!
//! The balancer does not answer a request that is older than the newest answered request. After [`Refused`] the
//! balancer closes the stream.

mod claim;
mod names;
mod parts;

use serde::{Deserialize, Serialize};

use crate::Versions;
use crate::control::{Message, Role};

pub use claim::{Claim, ClaimError, ClaimKind};
pub use names::{AddressError, MemberAddress, MemberName, NameError};
pub use parts::{
    BalancerId, Config, Granter, Hello, MembershipState, PoolKey, Refused, StoreSettings,
    StoreUrlText, Table, TableMember,
};
pub use types::{Encapsulation, TableKind, VersionCheck};

/// The version of the messages.
pub const STREAM_VERSION: u8 = 2 + cfg!(feature = "next-version") as u8;

/// The oldest version that is understood.
pub const OLDEST_STREAM_VERSION: u8 = STREAM_VERSION - 1;

/// The first version whose members unwrap packets ([`Config::encapsulation`]).
pub const ENCAPSULATION_SINCE: u8 = 2;

/// The versions that this program speaks.
pub const STREAM_VERSIONS: Versions = match Versions::new(OLDEST_STREAM_VERSION, STREAM_VERSION) {
    Some(versions) => versions,
    None => Versions::only(STREAM_VERSION),
};

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "pool stream",
    version: STREAM_VERSION as u32,
    oldest: OLDEST_STREAM_VERSION as u32,
};

/// The most members of a pool.
pub const MEMBER_COUNT_MAX: usize = 256;

/// The most addresses of a pool's service.
pub const ADDRESS_COUNT_MAX: usize = 16;

/// The most stores of a pool.
pub const STORE_COUNT_MAX: usize = 2;

/// From a member to the balancer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberMessage {
    /// The first message of a stream.
    Hello(Hello),
    /// Asks for a lease.
    LeaseRequest {
        /// Grows from request to request of a membership: the time of sending by the member's clock, nanoseconds.
        number: u64,
        /// The number of the newest request whose answer has arrived; 0: none. The member ignores answers to older
        /// requests.
        answered: u64,
    },
    /// The member is silent, sends no more packets as this membership, and leaves the pool.
    Leave,
    /// From now on, the member sends by the leases of the granters of this table.
    Enforces {
        /// The epoch of the table.
        epoch: u64,
        /// Granters of the table whose lease the member lacks.
        lacks: Vec<BalancerId>,
    },
    /// The member wants no new connections: it leaves when its connections have ended.
    Drain,
    /// The first message of a check: the balancer answers with the settings and the table, and closes the stream.
    AskMembers,
}

impl Message for MemberMessage {
    const FROM: Role = Role::Member;

    fn since(&self) -> u8 {
        OLDEST_STREAM_VERSION
    }
}

/// From the balancer to a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BalancerMessage {
    /// To [`MemberMessage::Hello`]: the member is admitted, with these settings.
    Config(Config),
    /// To [`MemberMessage::LeaseRequest`]: the member may send for the term, counted from the sending of the request.
    Lease {
        /// The number of the request.
        number: u64,
        /// The term, µs.
        term_us: u32,
    },
    /// The newest table. Tables with a lower epoch are out of date.
    Table(Table),
    /// The member is not admitted, or no member any more.
    Refused {
        /// The reason.
        reason: Refused,
    },
    /// The leases of this stream are those of this granter.
    Granter {
        /// The balancer that sends.
        balancer: BalancerId,
    },
}

impl Message for BalancerMessage {
    const FROM: Role = Role::Balancer;

    fn since(&self) -> u8 {
        match self {
            Self::Refused {
                reason: Refused::NoRoute | Refused::OtherFamily,
            } => ENCAPSULATION_SINCE,
            _ => OLDEST_STREAM_VERSION,
        }
    }
}

#[cfg(test)]
mod tests;
