//! Sockets that nobody waits for.

use std::{ops::Deref, os::fd::OwnedFd, thread};

use rustix::net::sockopt::socket_linger;

/// A socket of the server's. Its program may have wanted to wait, when it is closed, until the other end has all of it
/// (`SO_LINGER`): whoever has it last waits, and that is not to be the loop of the service.
#[derive(Debug)]
pub(crate) struct Quiet(Option<OwnedFd>);

impl From<OwnedFd> for Quiet {
    fn from(socket: OwnedFd) -> Self {
        Self(Some(socket))
    }
}

impl Deref for Quiet {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let lingers = |socket: &OwnedFd| {
            let time = socket_linger(socket).ok().flatten();
            time.is_some_and(|time| !time.is_zero())
        };
        if let Some(socket) = self.0.take_if(|socket| lingers(socket)) {
            let closing = thread::Builder::new().name("closing".into());
            // Where there can be no thread it is closed here.
            let _ = closing.spawn(move || drop(socket));
        }
    }
}
