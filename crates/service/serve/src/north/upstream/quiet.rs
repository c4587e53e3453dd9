//! Sockets whose close must not block `serve`.

use std::{ops::Deref, os::fd::OwnedFd, thread};

use rustix::net::sockopt::socket_linger;

/// A socket of the server. The program may have asked that a close waits until the other end has all data
/// (`SO_LINGER`): the last owner of the socket waits, and the loop of the service must not wait.
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
            // If no thread can be started, the socket is closed here.
            let _ = closing.spawn(move || drop(socket));
        }
    }
}
