//! Images of a server's process. With an image the record need not reach back to the start of the server
//! (`ft-tcp-infocom-2001`, VI.C: checkpoints bound the log).
//!
//! The server itself is not imaged. A *shadow replay* beside the server replays the record up to a snapshot point and
//! stops there, and CRIU makes an image of the stopped process: the server does not pause, and the image contains no
//! network state. In the next incarnation the image becomes a process again, and replays the rest of the record.
//!
//! - [`Criu`]: the program, and its options.
//! - [`sandbox`]: namespaces in which a shadow replay is alone, and in which a restored process has its process
//!   numbers again. The first process of a sandbox runs our binary.
//! - [`Sandbox`]: the supervisor's end of the namespaces.
//! - [`Store`]: images on disk. An incomplete image never replaces a complete image.
//! - [`Pack`], [`Unpack`]: images during a transfer to another host.

#![forbid(unsafe_code)]

mod criu;
mod handle;
mod manifest;
mod pack;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
pub mod sandbox;
mod store;

pub use criu::{Criu, CriuError};
pub use handle::{ProcessSource, Sandbox, SandboxError, SandboxReport};
pub use pack::{Pack, Unpack};
pub use store::{Image, Store};
