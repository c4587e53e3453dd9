//! Sockets of recovered connections are to be fast again (`bpf/replay/renew.h`).

use std::io::Read;

use libbpf_rs::{Iter, IterOpts, Link};

use super::Dataplane;
use crate::{
    attach,
    error::{DataplaneError, MapContext, SocketContext},
};

/// Has the congestion control of recovered connections begin anew. For a thread of its own: the kernel locks each
/// socket of the network namespace for that, and waits for whoever has one locked, which may take for ever (a process
/// that sends from memory that is not there yet).
pub struct Renewer(Link);

impl Dataplane {
    /// What renews the sockets of this service.
    ///
    /// # Errors
    /// The kernel does not list its sockets.
    pub fn renewer(&self) -> Result<Renewer, DataplaneError> {
        let link = attach::program(&self.object, "renew")?
            .attach_iter_with_opts(IterOpts::None)
            .doing("look at the sockets")?;
        Ok(Renewer(link))
    }
}

impl Renewer {
    /// Renew what it is time for. Returns how many connections are to be looked at again.
    ///
    /// # Errors
    /// The kernel does not list its sockets.
    pub fn look(&self) -> Result<usize, DataplaneError> {
        let what = "look at the sockets";
        let mut each = Vec::new();
        let mut sockets = Iter::new(&self.0).doing(what)?;
        sockets.read_to_end(&mut each).doing(what)?;
        Ok(each.len())
    }
}
