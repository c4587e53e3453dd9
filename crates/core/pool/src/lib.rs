//! A pool of servers behind an address.
//!
//! [`OwnerTable`] says which member owns which connection. Balancers and members make the table from the list of
//! members alone: equal lists make equal tables, in any order and on any machine.
//!
//! The crate does no I/O and reads no clock.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod owner_table;

pub use owner_table::{MAGLEV_ENTRY_COUNT, MemberIndex, OwnerTable, TableError, TableKind};
