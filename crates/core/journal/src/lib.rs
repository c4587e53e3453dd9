//! The record of a service's connections, kept in memory.
//!
//! FT-TCP masks the crash of a server by feeding its successor what the clients had sent, and by
//! discarding what the successor says again. This crate keeps what is needed for both:
//!
//! * the *instream* of each connection, the bytes from client to server, in any order of arrival
//!   ([`Journal::instream`]). *stable_seq* is the lowest instream sequence number that is not in
//!   the record (FT-TCP, section III): everything before it can be replayed ([`Journal::read`]).
//! * the *heads* of its *outstream*, the first bytes that the server sent in each turn
//!   ([`Journal::outstream`]), against which the repeated output is compared.
//! * its *turns*: where the client began to speak after it had received a whole answer. With
//!   [`ReplayMode::Request`] the bytes before the last turn are dropped. Each place at which a client spoke
//!   after the whole answer is kept, too ([`Journal::beginnings`]): a replay waits there. Of output that is not
//!   recorded in full there is a digest ([`Journal::marks`]).
//!
//! Of a server with state there is more ([`Determinants`]): what its processes were told besides.
//!
//! **Bounds.** [`Limits`] bound what is held. A connection that wants more becomes *unprotected*:
//! its bytes are freed at once, it stays known with the reason ([`Unprotected`]), and what arrives
//! for it afterwards is refused and counted. The record of a protected connection therefore has
//! no hole below stable_seq, ever, and nobody's appetite costs another connection its record.
//!
//! **The way of a segment.** `journal` finds the connection and keeps the accounts; `record` is
//! one connection: it turns sequence numbers into 64-bit positions (`position`), notices turns
//! (`turn`, which asks `answer`) and hands the payload to `instream`, which copies it once, into `chunks`, and keeps
//! the ranges that arrived out of order (`spans`). `heads` does the same for the outstream.
//! Whatever grows is charged to the limits in `pool` before it grows.
//!
//! No I/O, no clock, no randomness: the same calls give the same record, also in the same order of
//! iteration. **Panics:** no function of this crate panics on any argument.

#![forbid(unsafe_code)]

mod answer;
mod answers;
mod beginnings;
mod chunks;
mod determinants;
mod error;
mod heads;
mod image;
mod instream;
mod journal;
mod marks;
mod pool;
mod position;
mod record;
mod request;
mod spans;
mod statistics;
mod stream;
mod summary;

pub use determinants::{Determinants, NoRoom};
pub use error::{OpenError, ReadError, Refused, Unprotected};
pub use image::{Image, ImageError};
pub use journal::{Journal, Limits, MAX_PER_CONNECTION};
pub use marks::Mark;
pub use record::{InstreamSegment, OutstreamSegment, Recorded, ServerProgress};
pub use statistics::{ByteCounts, Statistics};
pub use summary::{Position, Protected, State, Summary};
pub use types::{ClientFin, ReplayMode};

/// A length as a number of bytes.
const fn len64(length: usize) -> u64 {
    // usize has at most 64 bits on every platform that Rust supports.
    length as u64
}

/// A distance inside something that is in memory, as an index. It fits by construction; the
/// largest index stands for one that does not, so that slicing fails instead of going astray.
fn index(distance: u64) -> usize {
    usize::try_from(distance).unwrap_or(usize::MAX)
}
