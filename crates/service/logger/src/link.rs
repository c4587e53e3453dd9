//! The logger of a log link, without sockets and clocks: datagrams and requests in, datagrams and
//! answers out.
//!
//! A *session* ([`Session`]) is the record of one service instance, with what belongs to its link:
//! the keys, the connections as the link names them, and what is still to be acknowledged.
//! [`Sessions`] are all that a logger keeps: they outlive the control streams of their services for
//! a while, so that a `serve` that is started again finds its records.
//!
//! **What is promised.** An ACK says what is in the record, never more (FT-TCP, section IV.C). What
//! a datagram says is taken if its tag was made with a key of the session whose address it came
//! from, and a segment's payload if its checksum is right for that flow's addresses. Everything
//! else changes nothing but a counter.
//!
//! **When it is acknowledged** ([`AckPolicy`]). Normally once for each flow and batch of datagrams
//! that were read together. At once if there was a hole in the record or there is one now: the
//! client's TCP needs each of these as a duplicate acknowledgement (RFC 5681, 4.2), and learns
//! from the ranges what to send again.

mod acks;
mod flows;
mod outbox;
pub(crate) mod progress;
mod replication;
mod session;
mod sessions;
mod unknown_flows;

pub use outbox::{Outbox, Outgoing, Peer};
pub use replication::Replication;
pub use session::{AckPolicy, LinkStatistics, Session};
pub(crate) use sessions::Attachment;
pub use sessions::{Forgotten, Greeting, Inherited, NotYet, SILENCE, Sessions};

/// The most connections of a session that have been opened and from which nothing has come.
pub const MAX_HALF_OPEN: usize = 65_536;
