//! Formats between the processes of `outlive`: frames, versions, encoding.
//!
//! Six formats, all versioned, all without alignment:
//!
//! - [`mirror`]: from the programs in the kernel to the logger. One frame for each observed packet:
//!   a fixed header and the packet. Written by C, read here.
//! - [`control`]: questions of `serve` to the logger, and the answers. Messages on a byte stream.
//! - [`link`]: from the programs in the kernel to a logger on another machine, and the
//!   acknowledgements. Datagrams with keyed tags, written and read by C, too.
//! - [`blast`]: packets of a bulk transfer, and the acknowledgements. Datagrams.
//! - [`bulk`]: between the sender and a receiver of a bulk transfer, on a stream as that of [`control`].
//! - [`pool`]: between the members of a pool and the balancer, on a stream as that of [`control`].
//!
//! And [`awake`]: how an end of the log link waits for the other end.
//!
//! No code here does I/O. Each value has exactly one encoding, and any other bytes are an error. A
//! change of a layout changes the version of the format. [`mirror`], [`link`] and [`blast`] are little-endian,
//! and a reader never guesses the meaning of a newer version. The ends of a [`control`], [`pool`] or [`bulk`]
//! stream agree on a version, and messages grow by fixed rules.
//!
//! **Panics.** No function of this crate panics on any byte string.

#![forbid(unsafe_code)]

pub mod awake;
pub mod blast;
pub mod bulk;
pub mod control;
mod digest;
pub mod link;
pub mod mirror;
pub mod pool;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
mod versions;

pub use digest::{Digest, DigestSeed};
pub use types::UnprotectedReason;
pub use versions::Versions;
