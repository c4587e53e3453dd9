//! The key-value store of a pool (TRODS 4.1): records of connections in Valkey, Redis or memcached.
//!
//! | module | |
//! |---|---|
//! | `url` | addresses of stores |
//! | `dialect` | a protocol: requests of operations, outcomes of replies |
//! | `resp`, `valkey` | Valkey and Redis |
//! | `meta`, `memcached` | memcached |
//! | `session` | pure: one connection, pipelined, with time limits and attempts to connect |
//! | `client` | the thread of a store, and its socket |
//! | `statistics` | counts and times for metrics |
//!
//! Operations, outcomes and failures are in [`objects::store`], with the decisions of two stores. A [`StoreClient`] is
//! a store.

#![forbid(unsafe_code)]

mod client;
mod dialect;
mod memcached;
mod meta;
mod probe;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
mod resp;
mod session;
mod statistics;
mod url;
mod valkey;

pub use client::StoreClient;
pub use objects::store::{
    Completion, Cursor, Failure, Lookup, Nonces, Operation, OperationKind, Outcome, Page, Probe,
    Product, QueueFull, Report, ScanPage, ScanPosition, Store, StoreAcks, StoredValue, Stores,
    StoresCompletion, StoresEvent, StoresOutcome, StoresTicket, Ticket,
};
pub use probe::probe;
pub use session::Settings;
pub use statistics::Statistics;
pub use url::{StoreUrl, UrlError};
