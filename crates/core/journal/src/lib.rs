//! The record of a service's connections, kept in memory.
//!
//! FT-TCP masks the crash of a server: the restarted server receives the clients' input again, and the repeated output
//! is discarded. This crate keeps the data for both:
//!
//! * the *instream* of each connection, the bytes from client to server, in any order of arrival
//!   ([`Journal::instream`]). *stable_seq* is the lowest instream sequence number that is not in the record (FT-TCP,
//!   section III): everything before stable_seq can be replayed ([`Journal::read`]).
//! * the *heads* of the *outstream*, the first bytes of each response ([`Journal::outstream`]), for the comparison
//!   with the repeated output.
//! * the *requests*: where the client began to send after receiving a whole response. With [`ReplayMode::Request`] the
//!   bytes before the last request are dropped. Each place at which a client sent after the whole response is kept,
//!   too ([`Journal::beginnings`]): a replay waits there. Output that is not recorded in full has a hash
//!   ([`Journal::marks`]).
//!
//! A server with state has more: the determinants of the processes ([`Determinants`]).
//!
//! **Bounds.** [`Limits`] bound the memory. A connection that needs more becomes *unprotected*: the record is freed at
//! once, the connection stays known with the reason ([`Unprotected`]), and later segments are refused and counted. The
//! record of a protected connection therefore never has a gap below stable_seq. A connection with a large record costs
//! no other connection the record.
//!
//! **The way of a segment.** `journal` finds the connection and keeps the accounts. `record` is one connection:
//! `record` turns sequence numbers into 64-bit positions (`position`), notices requests (`request`, with the help of
//! `answer`) and hands the payload to `instream`. `instream` copies the payload once, into `chunks`, and keeps the
//! ranges that arrived out of order (`spans`). `heads` does the same for the outstream. Growth is charged to the
//! limits in `pool` before the allocation.
//!
//! No I/O, no clock, no randomness: the same calls give the same record, and the same order of iteration. **Panics:**
//! no function of this crate panics on any argument.

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

/// A distance inside a buffer in memory, as an index. The distance fits by construction. A distance that does not fit
/// becomes the largest index, so that slicing fails instead of going astray.
fn index(distance: u64) -> usize {
    usize::try_from(distance).unwrap_or(usize::MAX)
}
