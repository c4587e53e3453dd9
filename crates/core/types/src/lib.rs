//! Ideas that several crates share, each as a single type. The logger, `serve`, the model of the BPF programs and the
//! simulator mean the same by a word.

#![forbid(unsafe_code)]

mod format;
mod pool;
mod replay;
mod unprotected;

/// The version of the JSON of events and status: the version is raised when a field changes or goes.
pub const JSON_VERSION: u32 = 1;

pub use format::{Format, Reads};
pub use pool::{Encapsulation, TableKind, VersionCheck};
pub use replay::{ClientFin, ReplayMode};
pub use unprotected::UnprotectedReason;
