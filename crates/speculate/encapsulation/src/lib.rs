//! Encapsulations: computations whose outputs are concealed until they are *committed*
//! (Bubenik and Zwaenepoel, *Optimistic Make*, section 2).
//!
//! An encapsulation sees a tree of files, its *base*: the real tree, or the output of other encapsulations (its *input
//! encapsulations*). Changes of files go into a layer above the base. No other program sees the layer. The changes are
//! kept as a list of [`Effect`]s in the order of production. Reads of the base go into [`Inputs`], lookups of
//! missing names included. A commit checks that all inputs are unchanged ([`Inputs::check`]), and carries out the
//! effects in order.
//!
//! This crate is the pure part, and touches no file. Contents are elsewhere, under numbers ([`HiddenId`]); a trait
//! ([`Base`]) gives access to the base. **Panics:** none.

#![forbid(unsafe_code)]

mod base;
mod effect;
mod encapsulation;
mod inputs;
mod layer;
mod path;
mod snapshot;

pub use base::{Base, Identity, Kind, Listing, Seen, Stat, Store, Time};
pub use effect::{Attributes, Effect, HiddenId, New};
pub use encapsulation::{Conflict, Encapsulation, Refused, Writing};
pub use inputs::{Inputs, Stale};
pub use layer::{Content, Found};
pub use path::{Name, TreePath};
pub use snapshot::Snapshot;
