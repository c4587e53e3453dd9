//! Words between the engine of optimistic make and the programs that run in the place of make's commands.
//!
//! The engine is in the crate `make`, the programs are in `make-shim`. Both sides use these types.

pub mod command;
pub mod environment;
pub mod jobserver;
pub mod link;
pub mod runner;
pub mod trailer;
