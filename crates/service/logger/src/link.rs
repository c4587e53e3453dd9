//! The logger of a log link, without sockets and clocks: datagrams and requests in, datagrams and responses out.
//!
//! A *session* ([`Session`]) is the record of one service instance and the state of the instance's link: keys,
//! connections as the link names connections, and delayed acknowledgements. [`Sessions`] holds all sessions of a
//! logger. A session outlives the service's control stream for the retention time, so that a restarted `serve`
//! finds the records.
//!
//! **Guarantee.** An ACK covers recorded bytes, never more (FT-TCP, section IV.C). A datagram is accepted if a key
//! of the session at the source address made the tag, and a segment's payload if the checksum fits the addresses of
//! the flow. All other input changes only a counter.
//!
//! **Time of the acknowledgement** ([`AckPolicy`]). Normally once per flow and batch of datagrams that were read
//! together. At once if the record had a hole or has a hole now: the client's TCP needs each of these ACKs as a
//! duplicate acknowledgement (RFC 5681, 4.2), and learns from the ranges which bytes to retransmit.

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
pub(crate) use session::answer_standby;
pub use session::{AckPolicy, LinkStatistics, Session};
pub(crate) use sessions::Attachment;
pub use sessions::{Forgotten, Greeting, Inherited, NotYet, SILENCE, Sessions};

/// Limit of half-open connections per session: opened, without a segment from the client.
pub const MAX_HALF_OPEN: usize = 65_536;
