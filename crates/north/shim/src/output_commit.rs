//! Output commit: output leaves when the logger has all determinants on which the output may depend
//! (`ft-tcp-infocom-2001`, IV.D).
//!
//! - [`barrier`]: the program waits for the logger before the write.
//! - [`deferred`]: the shim accepts the write and sends the output after output commit.

pub(crate) mod barrier;
pub(crate) mod deferred;
