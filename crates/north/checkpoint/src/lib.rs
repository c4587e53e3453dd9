//! Images of a server's process, so that its record need not reach back to its beginning (`ft-tcp-infocom-2001`, VI.C:
//! checkpoints bound the log).
//!
//! The image is not taken of the server. A *rehearsal* beside it replays the record up to a place, stops there, and
//! CRIU makes an image of that: the server does not stand still for a moment, and nothing of the network is in it. In
//! the next life the image is made a process again, which replays what the record has since.
//!
//! - [`Criu`]: the program, and what it is asked for.
//! - [`room`]: namespaces in which a rehearsal is alone, and in which a process made from an image has its numbers
//! again: the
//!   first process in there is ours.
//! - [`Room`]: the supervisor's end of it.
//! - [`Store`]: images on disk. One that is not whole never takes the place of one that is.
//! - [`Pack`], [`Unpack`]: images on their way to another host.

#![forbid(unsafe_code)]

mod criu;
mod guest;
mod manifest;
mod pack;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
pub mod room;
mod store;

pub use criu::{Criu, CriuError};
pub use guest::{Room, RoomError, Said, Way};
pub use pack::{Pack, Unpack};
pub use store::{Image, Store};
