//! Decisions of the recovery of a service and its connections, without any I/O.
//!
//! [`Recovery`] receives events (a process died, the cgroup is empty, the server listens, a flow's state in the data
//! plane) with the time, and answers with [`Action`]s for the caller to carry out. `serve` carries out actions with
//! processes and kernel maps, the simulator with models of processes and maps.
//!
//! The steps after a failure (FT-TCP IV.E), with the stage of each step:
//!
//! | stage | waits for | then |
//! |---|---|---|
//! | `Serving` | a death | the gate is shut, the rest of the server is killed |
//! | `Clearing` | no process is left | orphaned sockets go, the record is flushed, a new incarnation is started |
//! | `Starting` | the server listens, the record is flushed | the connections are listed |
//! | `Listing` | flows and their records | each is judged: kept, or lost with a reason |
//! | `Recovering` | kept connections are spliced and replayed | lost connections and unknown segments get RST |
//!
//! A death in any stage leads back to `Clearing`. A connection is never recovered on a guess. A connection is reset,
//! with an event that gives the reason, if the record has a gap, if the replay differs from the output that the client
//! was sent, or if the replay seems to kill the server each time. A client that waits for longer than a second gets
//! zero-window ACKs meanwhile.

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
