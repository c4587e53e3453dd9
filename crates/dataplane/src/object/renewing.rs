//! Sockets of recovered connections are to be fast again (`bpf/renew.h`).

use std::io::Read;

use libbpf_rs::{Iter, IterOpts};

use super::Dataplane;
use crate::{
    attach,
    error::{DataplaneError, MapContext, SocketContext},
    link,
};

impl Dataplane {
    /// Have the congestion control of recovered connections begin anew, where it is time for that. Returns how many
    /// connections are to be looked at again.
    ///
    /// # Errors
    /// The kernel does not list its sockets.
    pub fn renew_sockets(&self) -> Result<usize, DataplaneError> {
        let what = "look at the sockets";
        link::forget_short_trips();
        let link = attach::program(&self.object, "renew")?
            .attach_iter_with_opts(IterOpts::None)
            .doing(what)?;
        let mut each = Vec::new();
        let mut sockets = Iter::new(&link).doing(what)?;
        sockets.read_to_end(&mut each).doing(what)?;
        Ok(each.len())
    }
}
