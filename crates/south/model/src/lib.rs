//! Pure model of the south side wrap: the layer between the server's TCP and the clients.
//!
//! Clients of a service see one TCP connection for any time; the server's TCP behind may be a new
//! TCP after each crash. [`SouthSide`] is the whole layer, in five steps:
//!
//! 1. While all is well, [`SouthSide::ingress`] and [`SouthSide::egress`] watch. The programs
//!    remember for each connection (a [`Flow`]) the data that either side has, and put copies of
//!    the client's segments into a ring for the logger *before* the server gets the segments. A
//!    segment that finds no space there is not delivered: the client's own TCP retransmits.
//! 2. When a process of the server dies, [`SouthSide::process_exit`] shuts the gate: no packet of
//!    the service leaves, and no packet of a client is delivered. The kernel finishes a connection
//!    that a *living* server closes ([`SouthSide::socket_state`]), gate or no gate.
//! 3. [`SouthSide::new_incarnation`] opens the gate for the restarted server alone; connections of
//!    the earlier incarnation stay gated until [`SouthSide::splice`] is called for each. A
//!    fabricated SYN ([`fabricated_syn`]) then goes to the new server. The SYN-ACK tells the
//!    differences between the sequence numbers and the timestamps of the two servers, and goes back
//!    up as the client's third ACK (FT-TCP IV.E).
//! 4. The record of the instream is replayed ([`replayed_segment`]). Repeated output of the new
//!    server is compared with the record of the outstream ([`SouthSide::expect`]) and then
//!    acknowledged in the client's name. Output that contradicts the record ends the flow: no
//!    segment of the flow leaves any more.
//! 5. From then on both directions are translated, for the rest of the connection. The client never
//!    gets a smaller acknowledgement than before.
//!
//! If the service's host holds a lease ([`SouthSide::set_lease`]), no packet leaves after the end
//! of the lease.
//!
//! Without [`SouthSide::heartbeat`] for the configured time, no gate holds and no segment waits for
//! the record: without recovery, protection would only do harm.
//!
//! The crate `dataplane` has the same algorithm, as programs for the kernel, in files with the
//! names of the modules here. The model runs in the simulator, and the programs are compared with
//! the model: the same packets in must give the same verdicts, the same packets out and the same
//! flows.
//!
//! Time is an argument (`now_ns`, `CLOCK_MONOTONIC`). **Panics:** none, on any packet bytes.

#![forbid(unsafe_code)]

mod clamp;
mod closed_window;
mod control;
mod digest;
mod egress;
mod fabricate;
mod fence;
mod flow;
mod ingress;
mod latch;
mod link;
mod mirror;
mod packet;
mod read_cursors;
mod restored;
mod ring;
#[cfg(test)]
mod scenario;
mod south;
#[cfg(test)]
mod testing;
mod tolerance;
mod verify;
mod zero_window;

pub use closed_window::closed_window_ack;
pub use control::{NoSuchFlow, RingFull};
pub use digest::{Comparison, DigestHalf, DigestKey, Digests};
pub use fabricate::{
    fabricated_syn, keepalive_probe, released_ack, replayed_segment, resets_to_client,
    window_update, window_update_ack, zero_window_ack,
};
pub use flow::{
    ClientHalf, Flow, LogHalf, Mode, Range, Response, Restored, ServerHalf, SpliceHalf, VerifyHalf,
};
pub use latch::{CrashOn, Exit, SocketChange, SocketState};
pub use link::{AckStrategy, Copy, LinkSettings};
pub use mirror::MirrorFrame;
pub use packet::Packet;
pub use protocol::{Digest, DigestSeed};
pub use restored::{newest_records, restored_flow};
pub use south::{
    Counters, Event, EventKind, MARK_CLIENT_SPACE, MARK_FROM_SERVER, MARK_QUEUED,
    MARK_SERVER_SPACE, MARK_TO_CLIENT, MARK_TO_NEIGHBOUR, Service, Settings, SouthSide, Verdict,
};
pub use tolerance::{DEFAULT_FIELDS, EXPECT_CHUNK, Expect, expectations};
pub use types::UnprotectedReason;
