//! The logger: records a service and answers requests about the records.
//!
//! Frames arrive through the ring that the data plane fills; [`Ingest`] puts frames into the [`journal::Journal`].
//! Over a stream socket `serve` lists the records, and reads the records back in a recovery ([`RpcHandler`]).
//! [`run`] binds ring and socket to descriptors and is the whole process: there is no other state, and unread
//! frames are safe in the ring.
//!
//! There are two loggers. The logger of `serve` is a process on the server's host ([`run`]): the record survives
//! each death of the server and of `serve`, but not of the host. The other logger is a service on another machine
//! ([`Service`]): segments arrive over a log link ([`link`]), and the client's TCP gets ACKs only for bytes that
//! are recorded there.

#![deny(unsafe_code)]

pub mod durable;
mod ingest;
pub mod link;
#[cfg(feature = "ring")]
mod process;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
mod rpc;
mod service;

pub use ingest::{Ingest, Notice, digest_of};
#[cfg(feature = "ring")]
pub use process::{LoggerConfig, LoggerError, run};
pub use rpc::{RpcHandler, record_summary};
pub use service::{
    Code, Event, LEASES_FORMAT, Service, ServiceConfig, ServiceError, without_checksums,
};
