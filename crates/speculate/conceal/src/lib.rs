//! Encapsulations of real programs: a separate file system conceals the effects of a program until the commit.
//!
//! The crate [`encapsulation`] keeps changes and inputs. Here an encapsulation is a FUSE file system ([`concealment`])
//! above the real trees ([`base_tree`]). New files have no name yet ([`store`]). A commit gives names to these files in
//! the order of their creation ([`reveal`]), and the file system then passes all calls to the real tree.

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
