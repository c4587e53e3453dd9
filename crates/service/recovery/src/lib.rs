//! How a service and its connections are brought back: the decisions, without any I/O.
//!
//! [`Recovery`] is told what happened (a process died, the cgroup is empty, the server listens, a
//! flow's state in the data plane) and what time it is; it answers with [`Action`]s for others to
//! carry out. `serve` does so with processes and kernel maps, the simulator with models of them.
//!
//! The way of a failure (FT-TCP IV.E), with the stage in which each step happens:
//!
//! | stage | waits for | then |
//! |---|---|---|
//! | `Serving` | a death | the gate is shut, what is left of the server is killed |
//! | `Clearing` | no process of the service is left | orphaned sockets are removed, the record is flushed, a new
//! incarnation begins, the server is started |
//! | `Starting` | the server listens, the record is flushed | the connections are listed |
//! | `Listing` | flows and their records | each is judged: kept, or lost with a reason |
//! | `Recovering` | every kept connection is spliced and replayed | the lost ones are reset, strangers get their RST
//! again |
//!
//! A death in any stage leads back to `Clearing`. A connection is never recovered on a guess: if
//! its record has a hole, if its replay differs from what the client was sent, if it seems to kill
//! the server again and again, it is reset, and an event says why. A client that waits for longer than a
//! second is told meanwhile that there is no room now.

#![forbid(unsafe_code)]

mod action;
mod client_probe;
mod config;
mod connection;
mod event;
mod expectation;
mod graft;
mod pace;
mod progress;
mod replay;
mod service;
mod serving_report;
mod suspicion;
mod waiting_client;

pub use action::{Action, SplicePoint};
pub use config::{Config, Stage};
pub use connection::{Candidate, ReplayPosition};
pub use event::{Cause, Count, Event, GaveUp, LostReason, Replayed, Timings};
pub use expectation::OutputBefore;
pub use pace::{HEARTBEAT_INTERVAL, MORE_RECORD_BYTES, SWEEP_AGE, SWEEP_INTERVAL};
pub use protocol::control::RecordSummary;
pub use replay::{Beginning, Segment};
pub use service::Recovery;
pub use types::{ClientFin, ReplayMode};

#[cfg(test)]
mod tests;
