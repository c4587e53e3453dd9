//! What our processes say to each other: frames, versions, encoding.
//!
//! Three formats, all versioned, all without alignment:
//!
//! - [`mirror`]: what the programs in the kernel tell the logger. One frame per observed packet:
//!   a fixed header and the packet. Written by C, read here.
//! - [`control`]: what `serve` asks its logger, and the answers. Messages on a byte stream.
//! - [`link`]: what the programs in the kernel tell a logger on another machine, and how it
//!   acknowledges that. Datagrams with keyed tags, written and read by C, too.
//!
//! And [`awake`]: how who waits for the other end of the log link does so.
//!
//! Nothing here does I/O. Each value has exactly one encoding, and what is not that encoding is an
//! error. A change of a layout changes its version. [`mirror`] and [`link`] are little-endian, and a reader never
//! guesses what a newer writer meant. The ends of a [`control`] stream agree on a version, and messages grow by fixed
//! rules.
//!
//! **Panics.** No function of this crate panics on any byte string that it is given.

#![forbid(unsafe_code)]

pub mod awake;
pub mod control;
mod digest;
pub mod link;
pub mod mirror;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
mod versions;

pub use digest::{Digest, DigestSeed};
pub use types::UnprotectedReason;
pub use versions::Versions;
