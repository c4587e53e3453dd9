//! Bulk transfers between hosts: the core `blast` with sockets, ciphers and data.
//!
//! | module | |
//! |---|---|
//! | `cipher` | seals and opens datagrams (AES-128-GCM) |
//! | `socket` | UDP with segmentation offload |
//! | `sending`, `receiving` | the loop of each end |
//! | `source`, `sink` | where the bytes come from, and where they go |
//!
//! The keys, and the agreement on a transfer, belong to the caller: both ends have a control stream. Each end of a
//! transfer runs in a thread, and returns when the transfer is over, or when the caller says stop.

#![forbid(unsafe_code)]

mod cipher;
mod error;
mod receiving;
mod sending;
mod sink;
mod socket;
mod source;

pub use cipher::{KEY_LEN, TAG_LEN};
pub use error::BulkError;
pub use receiving::{Incoming, Reception, receive};
pub use sending::{Outgoing, Target, Transmitted, send};
pub use sink::{FileSink, MemorySink, Sink};
pub use socket::DataSocket;
pub use source::{FileSource, MemorySource, Source};
