//! The logger: keeps the record of a service and answers for it.
//!
//! Frames arrive through the ring that the data plane fills ([`Intake`] puts them into the
//! [`journal::Journal`]); `serve` asks over a stream socket what is known and reads it back in a
//! recovery ([`Desk`]). [`run`] binds the two to descriptors and is all that the process does: it
//! keeps no other state, and what it has not read yet is safe in the ring.
//!
//! In this version the logger is a process on the server's host: the record survives every death
//! of the server and of `serve`, not the host's.

#![forbid(unsafe_code)]

mod desk;
mod intake;
mod process;

pub use desk::Desk;
pub use intake::{Intake, Notice};
pub use process::{LoggerConfig, LoggerError, run};
