//! The durable log: records are written to files before the acknowledgement, and outlive the logger and a power
//! failure of the host.
//!
//! Each change of a record becomes an *entry* (`entry`); reading the log repeats the changes (`restore`). An ACK
//! waits until the entries before the ACK are durable: one commit for all entries that arrived during the last
//! commit.
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
//! **Bounds.** Each connection has a *base*: the log file where the record begins. Log files before the oldest base
//! are removed. When the log is larger than twice the records and some log files more, connections with the oldest
//! bases are copied forward, piece by piece. A whole copy becomes the base. Until then new segments are added to
//! both the record and the copy, here and in a later reading.
//!
//! **When the storage fails**, is full, or does not answer in time, records continue in memory. ACKs no longer
//! wait, and the log lacks acknowledged records from then on; so the log is removed, lest a later reading trust the
//! log. Every [`RETRY`] a new log is begun. When all records have been copied into the new log, ACKs wait for the
//! log again.

pub(crate) mod entry;
mod ledger;
mod restore;

pub use ledger::{Change, Job, Ledger, LogState, Order, RETRY, SLOW};
pub use restore::{Restored, restore, write};
