//! A durable log: records in append-only files, on any storage.
//!
//! A log is a row of *segments*, numbered files. Records are appended to the last segment, in batches ([`Batch`]);
//! [`Log::commit`] makes all appended records durable at once. A full segment is sealed, and the next segment
//! begins. Segments are removed as a whole ([`Log::remove_before`]). The content of records is the writer's
//! business. Segments of the versions from [`OLDEST`] to [`VERSION`] are read: each record comes with the version
//! of the segment.
//!
//! ```text
//! segment:  magic "OUTLSEGM" | u32 version | u32 0 | u64 number | u32 0 | u32 checksum of these
//!           record ...
//!           seal, if there is a later segment of the same run
//! record:   u32 length | u32 checksum | bytes
//! seal:     u32 0xffff_ffff | u32 checksum | u64 where it stands
//! ```
//!
//! All numbers are little-endian. A checksum is the CRC-32 (IEEE 802.3) of the segment's number, the record's place
//! in the segment, the length and the bytes: old content of a disk block is never taken for a record.
//!
//! **Assumptions about the storage** ([`Storage`]). After a crash all bytes are there that were appended before a
//! successful `sync`. Of bytes appended later any part may be there, in any order; the rest may read as zeros or be
//! missing. After a failed `sync` the bytes are lost: the failure leaves open which bytes are durable, and `sync`
//! is not tried again.
//!
//! **Guarantees.** Records are read in the order of writing. After a crash all committed records are there, and
//! possibly some later records, without a gap: a segment is read up to the first incomplete record, and the rest (a
//! *torn tail*) is cut off, never guessed. A later run writes into new segments. Removed segments may be there
//! again after a crash, each independently: segments before a missing number are not read, and the reader gets the
//! numbers ([`Piece::Removed`]). A damaged sealed segment, which no crash causes, is reported ([`Piece::Damaged`]):
//! committed records are missing there.
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
