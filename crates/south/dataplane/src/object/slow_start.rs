//! Sockets of recovered connections are to be fast again (`bpf/replay/renew.h`).

use std::io::Read;

use libbpf_rs::{Iter, IterOpts, Link};

use super::Dataplane;
use crate::{
    attach,
    error::{DataplaneError, MapContext, SocketContext},
};

/// Restarts congestion control of recovered connections. For a separate thread: the kernel locks
/// each socket of the network namespace, and waits for any holder of the lock, maybe for ever (a
/// process that sends from memory that is not there yet).
pub struct Renewer(Link);

impl Dataplane {
    /// A renewer for the sockets of this service.
    ///
    /// # Errors
    /// The kernel does not list the sockets.
    pub fn renewer(&self) -> Result<Renewer, DataplaneError> {
        let link = attach::program(&self.object, "renew")?
            .attach_iter_with_opts(IterOpts::None)
            .doing("look at the sockets")?;
        Ok(Renewer(link))
    }
}

impl Renewer {
    /// Renews sockets that are due. Returns the number of connections to look at again.
    ///
    /// # Errors
    /// The kernel does not list the sockets.
    pub fn look(&self) -> Result<usize, DataplaneError> {
        let what = "look at the sockets";
        let mut each = Vec::new();
        let mut sockets = Iter::new(&self.0).doing(what)?;
        sockets.read_to_end(&mut each).doing(what)?;
        Ok(each.len())
    }
}
