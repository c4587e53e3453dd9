//! Encapsulations of real programs: concealed by a file system of their own until they are mandated.
//!
//! [`encapsulation`] says what is changed and what was read; here that is a file system in user space
//! (of which [`concealing`] is what others see) over the real trees ([`real`]), with files that have no name yet
//! ([`store`]). When it is mandated, they are given their names in the order in which they were made ([`reveal`]), and
//! what is asked of the file system from then on is done to the real tree.

mod attributes;
pub mod concealing;
mod connecting;
mod connections;
mod copying;
mod dating;
mod filesystem;
pub mod members;
mod mounts;
pub mod needs;
mod nodes;
pub mod outside;
mod processes;
pub mod real;
pub mod reveal;
mod state;
pub mod store;
mod syncing;
mod telling;
mod tree;
mod unopened;
pub mod working;
pub mod world;
