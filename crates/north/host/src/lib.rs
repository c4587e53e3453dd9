//! The supervisor's side of the north side wrap: what a server's processes are given, and what is read from them.
//!
//! - [`Library`]: the preloaded library itself, which is part of this crate.
//! - [`Memory`]: the memory file in which the processes record what they are told.
//! - [`LogFeed`]: a record that comes from the logger.
//! - [`Handover`]: what a process whose record was replayed says of its connections, and how it is given the
//!   sockets that go on with them.
//! - [`SnapshotTail`]: what belongs to an image of a process that has stopped in its replay.
//! - [`Suspect`]: who said last what a server has died of.
//! - [`program`]: whether a program can take the library.
//! - [`counts`]: what has gone through a connection that the process had opened.
//! - [`repair`]: such a socket, made at exact sequence numbers (`TCP_REPAIR`).

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
