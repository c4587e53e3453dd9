//! Data that the north side wrap, which runs inside the processes of a server, exchanges with the supervisor and the
//! logger.
//!
//! - [`Record`]: one *determinant*, the outcome of one call whose result the program cannot compute itself
//!   (`ft-tcp-infocom-2001`, III.B: the lengths of reads, extended to all other questions of a server to the kernel).
//!   Records of one process are a *stream*, in the order of the calls.
//! - [`Ready`]: the descriptors that a call such as `epoll_wait` found ready, and the events.
//! - [`layout`]: the memory file with the streams and the length of each stream.
//!
//! The pure parts of the wrap are here, too: [`Clock`], [`DeferredOutput`].
//!
//! All formats share one version ([`layout::VERSION`]): a stream of another version is refused, not guessed at. No
//! I/O, no allocation. **Panics:** no function panics on any content of a stream.

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
