//! The supervisor's side of the north side wrap: descriptors and environment for the processes of a server, and
//! readers of their data.
//!
//! - [`Library`]: the preloaded library, which is part of this crate.
//! - [`Memory`]: the memory file in which the processes record determinants.
//! - [`LogFeed`]: a record that comes from the logger.
//! - [`Handover`]: connections that a process reports after a replay, and the sockets with which the process
//!   continues.
//! - [`SnapshotTail`]: the data beside the image of a process that has stopped in its replay.
//! - [`Suspect`]: the client whose request has killed the server.
//! - [`program`]: whether a program can take the library.
//! - [`counts`]: bytes that have gone through an upstream connection.
//! - [`repair`]: a socket made at exact sequence numbers (`TCP_REPAIR`).

mod children;
pub mod counts;
mod framing;
mod handover;
mod handover_report;
mod library;
mod log_feed;
mod memory;
pub mod program;
pub mod repair;
mod snapshot_tail;
mod suspect;

pub use handover::{Handover, HandoverError};
pub use handover_report::{ConnectionReport, ServiceReport};
pub use library::Library;
pub use log_feed::LogFeed;
pub use memory::{Divergence, LogSection, Memory, OtherVersion};
pub use north_abi::{
    Call, Which,
    handover::{ClientPosition, Ends, JOIN_ANSWER, Message, Position, UpstreamPosition},
    layout,
};
pub use snapshot_tail::SnapshotTail;
pub use suspect::Suspect;
