//! The key-value store of a pool (TRODS 4.1): records of connections in Valkey, Redis or memcached.
//!
//! | module | |
//! |---|---|
//! | `operation` | operations, outcomes and failures |
//! | `url` | addresses of stores |
//! | `dialect` | a protocol: requests of operations, outcomes of replies |
//! | `resp`, `valkey` | Valkey and Redis |
//! | `meta`, `memcached` | memcached |
//! | `session` | pure: one connection, pipelined, with time limits and attempts to connect |
//! | `client` | the thread of a store, and its socket |
//! | `stores` | one or two stores with sealed records: the interface of a member |
//! | `statistics` | counts and times for metrics |
//!
//! A store is a queue: [`Store::submit`] returns a [`Ticket`], and [`Store::poll`] returns the outcome. Every operation
//! has exactly one outcome, at the latest at its time limit. Operations of a connection are performed in the order of
//! submission.
//!
//! A put that is confirmed was written by the store. A put with another outcome may have been written. An error is
//! never taken for a missing record.

#![forbid(unsafe_code)]

mod client;
mod dialect;
mod memcached;
mod meta;
mod operation;
mod probe;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
mod resp;
mod session;
mod statistics;
mod stores;
mod url;
mod valkey;

pub use client::StoreClient;
pub use operation::{
    Completion, Cursor, Failure, Operation, OperationKind, Outcome, Page, Probe, Product,
    QueueFull, Report, Store, StoredValue, Ticket,
};
pub use probe::probe;
pub use session::Settings;
pub use statistics::Statistics;
pub use stores::{
    Lookup, Nonces, ScanPage, ScanPosition, StoreAcks, Stores, StoresCompletion, StoresEvent,
    StoresOutcome, StoresTicket,
};
pub use url::{StoreUrl, UrlError};
