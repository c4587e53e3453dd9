//! The logger: keeps the record of a service and answers for it.
//!
//! Frames arrive through the ring that the data plane fills ([`Ingest`] puts them into the
//! [`journal::Journal`]); `serve` asks over a stream socket what is known and reads it back in a
//! recovery ([`RpcHandler`]). [`run`] binds the two to descriptors and is all that the process does: it
//! keeps no other state, and what it has not read yet is safe in the ring.
//!
//! There are two loggers. The one of `serve` itself is a process on the server's host ([`run`]): the
//! record survives every death of the server and of `serve`, not the host's. The other one is a
//! service on another machine ([`Service`]): segments come to it over a log link ([`link`]), and the
//! client's TCP is told of nothing that is not recorded there.

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
