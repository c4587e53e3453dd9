//! Encapsulations: computations whose outputs are concealed until they are *committed*
//! (Bubenik and Zwaenepoel, *Optimistic Make*, section 2).
//!
//! An encapsulation sees a tree of files, its *base*: the real one, or what other encapsulations make of
//! it (its *input encapsulations*). What it does to files goes into a layer above that, which nobody
//! else sees, and is kept as a list of [`Effect`]s in the order in which they were produced. What it has read of the
//! base goes into its [`Inputs`], names that it looked for in vain included. It is committed by showing that all of
//! its inputs are as they were ([`Inputs::check`]), and carrying out its effects, in that order.
//!
//! This crate is the pure part: it touches no file. Contents are elsewhere, under numbers ([`HiddenId`]); the
//! base is asked through a trait ([`Base`]). **Panics:** none.

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
