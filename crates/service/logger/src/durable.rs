//! The durable log: what is recorded is written to files before it is acknowledged, so that it
//! outlives the logger, and its host's power.
//!
//! What changes a record becomes an *entry* (`entry`): the log tells how the records came about, and
//! to read it is to let them come about again (`restore`). An ACK waits until the entries before it
//! are durable: one commit for all that arrived while the last one was under way.
//!
//! ```text
//!   datagrams -> Sessions -> records in memory
//!                    |  entries               ACKs, held
//!                    v                            v
//!                 Ledger  --- Order::Write --> a thread with the files (writer)
//!                    ^                            |
//!                    +------- Report::Written ----+   ACKs go out
//! ```
//!
//! **Bounds.** Each connection has a *base*: the segment where its record begins. Segments before
//! the oldest base are removed. When the log is more than twice what is recorded, and some segments,
//! connections with the oldest bases are copied forward, piece by piece: the copy becomes the base
//! when it is whole, and until then what arrives is added to both, here and in a later reading.
//!
//! **When the storage fails**, is full, or does not answer in time, records go on in memory: ACKs
//! are not held any more, and the log, which is behind what was acknowledged from then on, is
//! removed rather than left to be believed. Every [`RETRY`] a new one is begun; when all records
//! have been copied into it, ACKs wait for it again.

pub(crate) mod entry;
mod ledger;
mod restore;

pub use ledger::{Change, Job, Ledger, LogState, Order, RETRY, SLOW};
pub use restore::{Restored, restore, write};
