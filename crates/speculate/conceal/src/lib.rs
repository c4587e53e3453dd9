//! Encapsulations of real programs: concealed by a file system of their own until they are committed.
//!
//! [`encapsulation`] says what is changed and what was read; here that is a file system in user space
//! (of which [`concealment`] is what others see) over the real trees ([`base_tree`]), with files that have no name yet
//! ([`store`]). When it is committed, they are given their names in the order in which they were made ([`reveal`]), and
//! what is asked of the file system from then on is done to the real tree.

pub mod activity;
mod attributes;
pub mod base_tree;
pub mod concealment;
mod copy;
mod effect_dates;
mod filesystem;
mod fuse_descriptors;
mod invalidation;
mod kernel_cache;
pub mod members;
mod mounts;
mod nodes;
pub mod preflight;
mod processes;
pub mod reveal;
mod socket_address;
mod state;
pub mod store;
mod sync;
pub mod syscall_gate;
mod tree;
pub mod world;
