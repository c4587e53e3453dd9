//! Encapsulations of real programs: concealed by a file system of their own until they are mandated.
//!
//! [`encapsulation`] says what is changed and what was read; here that is a file system in user space
//! ([`filesystem`]) over the real tree ([`real`]), with files that have no name yet ([`store`]). When it is
//! mandated, they are given their names in the order in which they were made ([`reveal`]), and what is asked of
//! the file system from then on is done to the real tree.

pub mod filesystem;
mod nodes;
pub mod real;
pub mod reveal;
pub mod store;
mod tree;
