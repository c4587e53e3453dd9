//! A durable log: records in append-only files, on any storage.
//!
//! A log is a row of *segments*, numbered files. Records are appended to the last one, in batches
//! ([`Batch`]); [`Log::commit`] makes all that was appended durable at once. A segment that is full
//! is sealed and the next one begun; one that nobody needs any more is removed as a whole
//! ([`Log::remove_before`]). What the records say is the business of who writes them. Segments of the version before
//! are read, too: each record comes with the version of its segment.
//!
//! ```text
//! segment:  magic "OUTLSEGM" | u32 version | u32 0 | u64 number | u32 0 | u32 checksum of these
//!           record ...
//!           seal, if there is a later segment of the same run
//! record:   u32 length | u32 checksum | bytes
//! seal:     u32 0xffff_ffff | u32 checksum | u64 where it stands
//! ```
//!
//! All numbers are little-endian. A checksum is the CRC-32 (IEEE 802.3) of the segment's number,
//! the record's place in it, its length and its bytes: what a disk block held before it belonged to
//! this file is not taken for a record.
//!
//! **What is assumed of the storage** ([`Storage`]). What was appended before a `sync` that
//! succeeded is there after a crash; of what was appended later any part may be there, in any
//! order, and the rest may read as zeros or be missing. A `sync` that failed says nothing about
//! what it should have made durable, and is not tried again: what it was about is lost.
//!
//! **What is promised.** Records are read in the order in which they were written. After a crash
//! those that were committed are there, and possibly some of those after them, without a gap: a
//! segment is read up to the first record that is not whole, and what follows (a *torn tail*) is
//! cut off, never guessed. A later run writes into segments of its own. Segments that were removed may be there again
//! after a crash, each by itself: those before a number that is missing are not read, and the reader is told which
//! these were ([`Piece::Removed`]). Where a sealed segment is
//! damaged, which no crash does, the reader is told ([`Piece::Damaged`]): committed records are
//! missing there.
//!
//! No I/O, no clock, no randomness. **Panics:** no function panics on any content of the storage.

#![forbid(unsafe_code)]

mod batch;
mod format;
mod log;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
pub mod simulated;
mod storage;

pub use batch::{Batch, MAX_RECORD};
pub use format::{FORMAT, OLDEST, VERSION};
pub use log::{Log, OpenError, Piece};
pub use storage::Storage;
