//! The key-value store of a pool: operations, and the decisions of one or two stores (TRODS 4.1).
//!
//! | module | |
//! |---|---|
//! | `operation` | operations, outcomes and failures |
//! | `stores` | one or two stores with sealed records: the interface of a member |
//!
//! A store is a queue: [`Store::submit`] returns a [`Ticket`], and [`Store::poll`] returns the outcome. Every operation
//! has exactly one outcome, at the latest at its time limit. Operations of a connection are performed in the order of
//! submission.
//!
//! A put that is confirmed was written by the store. A put with another outcome may have been written. An error is
//! never taken for a missing record.

mod operation;
mod stores;

pub use self::operation::{
    Completion, Cursor, Failure, Operation, OperationKind, Outcome, Page, Probe, Product,
    QueueFull, Report, Store, StoredValue, Ticket,
};
pub use self::stores::{
    Lookup, MembersFound, Nonces, ScanPage, ScanPosition, StoreAcks, Stores, StoresCompletion,
    StoresEvent, StoresOutcome, StoresTicket,
};
