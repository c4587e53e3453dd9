//! Pure model of the south side wrap: what lies between the server's TCP and its clients.
//!
//! Clients of a service see one TCP connection for as long as they like; the server's TCP behind
//! it may be another one after each crash. [`SouthSide`] is the whole of it, in five steps:
//!
//! 1. While all is well, [`SouthSide::ingress`] and [`SouthSide::egress`] watch. They remember for
//!    each connection (a [`Flow`]) what either side was told, and put copies of the client's
//!    segments into a ring for the logger *before* the server gets them. A segment that finds no
//!    room there is not delivered: the client's own TCP sends it again.
//! 2. When a process of the server dies, [`SouthSide::process_exit`] shuts the gate: nothing of the
//!    service leaves, and nothing that clients send is delivered. A connection that a *living*
//!    server closes ([`SouthSide::socket_state`]) is the kernel's to finish, gate or no gate.
//! 3. [`SouthSide::new_incarnation`] opens the gate for the restarted server alone; connections of
//!    the life before stay gated until each is given to [`SouthSide::splice`]. A fabricated SYN
//!    ([`fabricated_syn`]) then goes to the new server. Its SYN-ACK tells the differences between
//!    the sequence numbers and the timestamps of the two servers, and goes back up as the client's
//!    third ACK (FT-TCP IV.E).
//! 4. The record of the instream is replayed ([`replayed_segment`]). What the new server says again
//!    is compared with the record of what the client was sent ([`SouthSide::expect`]) and then
//!    acknowledged in the client's name. What contradicts the record ends the flow: nothing of it
//!    leaves any more.
//! 5. From then on both directions are translated, for the rest of the connection's life. The
//!    client is never told a smaller acknowledgement than it was told before.
//!
//! If the service's host holds a lease ([`SouthSide::set_lease`]), nothing leaves when that is over.
//!
//! If nobody calls [`SouthSide::heartbeat`] for the configured time, no gate holds and nothing
//! waits for the record: without recovery, protection would only do harm.
//!
//! The same algorithm, as programs for the kernel, is in the crate `dataplane`, in files with the
//! names of the modules here. This one runs in the simulator, and is what the programs are compared
//! with: the same packets in must give the same verdicts, the same packets out and the same flows.
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
    Counters, Event, EventKind, MARK_CLIENT_SPACE, MARK_SERVER_SPACE, MARK_TO_CLIENT,
    MARK_TO_NEIGHBOUR, Service, Settings, SouthSide, Verdict,
};
pub use tolerance::{DEFAULT_FIELDS, EXPECT_CHUNK, Expect, expectations};
pub use types::UnprotectedReason;
