//! What crosses the boundary between the north side wrap, which runs inside a server's processes,
//! and those who keep its record.
//!
//! - [`Record`]: one *determinant*, the outcome of one call whose result the program cannot compute by
//!   itself (`ft-tcp-infocom-2001`, III.B: the lengths of reads, extended to everything else that a server asks
//!   its kernel). Records of one process are a *stream*, in the order of its calls.
//! - [`Ready`]: which descriptors a call such as `epoll_wait` found ready, and when.
//! - [`layout`]: the memory file in which the streams are, and how far they reach.
//!
//! What of the wrap is pure is here, too: [`Clock`], [`DeferredOutput`].
//!
//! All of it is versioned together ([`layout::VERSION`]): a stream of another version is refused, not guessed
//! at. No I/O, no allocation. **Panics:** no function panics on any content of a stream.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod accepted;
pub mod addresses;
mod call;
mod clock;
mod commit_cost;
mod connection_owner;
mod deferred_output;
mod file;
pub mod handover;
pub mod layout;
mod liveness;
pub mod locks;
pub mod passed_connections;
pub mod read_cursors;
mod ready;
mod reason;
mod record;
mod recreated_files;
mod socket_budget;
mod varint;

#[cfg(test)]
mod tests;

pub use accepted::{AcceptedConnection, Which};
pub use call::Call;
pub use clock::{Clock, Tick};
pub use deferred_output::DeferredOutput;
pub use file::Identity;
pub use ready::{Ready, ReadyReader, ReadyWriter};
pub use reason::Reason;
pub use record::{DecodeError, HEADER_MAX, Header, Record, Records};
pub use socket_budget::{SOCKET_BUDGET_BYTES, SocketBudget};
pub use varint::VARINT_MAX;
