//! A pool of servers behind an address.
//!
//! - [`Monitor`] knows which members are alive, and writes the table of members.
//! - A [`Register`] keeps the newest table. Each table has an epoch; a table replaces the table of the epoch before.
//! - [`Leases`] says until when a member may send: by the leases of all balancers that grant.
//! - [`OwnerTable`] says which member owns which connection. Balancers and members make the owners from the table
//!   alone: equal tables make equal owners, in any order and on any machine.
//! - [`flow_hash`] is the hash of a connection, also in the programs of the kernel.
//!
//! The crate does no I/O and reads no clock.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod claiming;
pub mod claims;
mod flow_hash;
mod leases;
mod monitor;
mod own_connections;
mod owner_table;
mod register;

pub use claiming::{Claiming, Decided, Reception};
pub use flow_hash::{FLOW_HASH_LEN, flow_hash, flow_hash_input};
pub use leases::{Leases, Link};
pub use monitor::{
    ConfirmError, DrainError, Event, MemberState, Monitor, Output, Settings, StreamId,
};
pub use own_connections::OwnConnections;
pub use owner_table::{MAGLEV_ENTRY_COUNT, MemberIndex, OwnerTable, TableError, TableKind};
pub use register::{CasRegister, MemoryRegister, Register, Reply, Request, Written};
