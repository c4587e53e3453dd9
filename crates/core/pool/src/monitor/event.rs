//! Results of the monitor.

use core::time::Duration;

use protocol::pool::{BalancerMessage, MemberAddress, MemberName, Refused, Table, TableMember};

use super::StreamId;

/// For the caller to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Give the table to the data plane, which keeps the table for the next life of the balancer.
    Table(Table),
    /// Send the message.
    Send {
        /// To this member.
        stream: StreamId,
        /// The message.
        message: BalancerMessage,
    },
    /// Close the stream when all messages have left.
    Close {
        /// This stream.
        stream: StreamId,
    },
    /// Tell the operator.
    Event(Event),
}

/// A change of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member is in the table.
    Joined {
        /// The member.
        name: MemberName,
        /// Where packets reach the member.
        address: MemberAddress,
    },
    /// A member has left the pool.
    Left {
        /// The member.
        name: MemberName,
    },
    /// A member gets no new connections from now on.
    Draining {
        /// The member.
        name: MemberName,
    },
    /// A draining member has left the pool.
    Drained {
        /// The member.
        name: MemberName,
    },
    /// The lease of a member is over.
    DeclaredDead {
        /// The member.
        name: MemberName,
        /// The time since the member's newest message.
        silent: Duration,
    },
    /// The stream of a living member has ended.
    StreamLost {
        /// The member.
        name: MemberName,
    },
    /// A member was not admitted, or is no member any more.
    Refused {
        /// The member's name, if known.
        name: Option<MemberName>,
        /// The reason.
        reason: Refused,
    },
}

/// A living member, for the operator.
#[derive(Debug, Clone, Copy)]
pub struct MemberState<'a> {
    /// Name and addresses.
    pub entry: &'a TableMember,
    /// The member has a stream.
    pub is_connected: bool,
    /// The member was granted a lease.
    pub is_leased: bool,
    /// No lease of this balancer is in use, and no balancer may declare the member dead.
    pub is_unknown: bool,
    /// When the newest message of the member arrived.
    pub heard: Duration,
}

/// Why a member is not drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DrainError {
    /// No member has the name.
    #[error("the pool has no member of this name")]
    Unknown,
    /// No other member would get connections.
    #[error("no other member of the pool gets new connections: start another member first")]
    LastMember,
}

/// Why the death of a member is not confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfirmError {
    /// No member has the name.
    #[error("the pool has no member of this name")]
    Unknown,
    /// The member has a lease of this balancer.
    #[error("the member has a lease: this balancer hears the member")]
    Alive,
}
