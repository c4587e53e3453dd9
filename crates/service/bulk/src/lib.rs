//! Bulk transfers between hosts: `outlive send` and `outlive receive`.
//!
//! | module | |
//! |---|---|
//! | [`carrier`] | the two ends of a transfer, by datagrams (the core `blast` with sockets and ciphers) or by TCP |
//! | `stream` | the control stream between a sender and a receiver |
//! | `directory` | where files of a receiver lie until they are whole, and get their names |
//! | `hashes`, `holes` | bytes that a receiver has already, and that need not be sent |
//! | [`sender`] | offers files to receivers, and sends them |
//! | [`receiver`] | takes offers, and stores files |

#![deny(unsafe_code)]

pub mod carrier;
mod directory;
mod error;
mod hashes;
mod holes;
mod keys;
mod locks;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
pub mod receiver;
pub mod sender;
mod stream;

pub use error::{BulkError, Fault};
