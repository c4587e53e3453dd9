//! Listeners that the program has closed by its record, and those that take their place.
//!
//! In a replay the program listens from its beginning on, and clients connect meanwhile. A server that has closed a listener,
//! and opened another one at its address (redis' `CONFIG SET bind`), does so once more in the replay: the kernel would reset
//! all who wait in the first one. So it stays open behind the program's back, and is what listens there next.

use libc::{
    EPOLL_CTL_DEL, F_GETFD, F_GETFL, F_SETFL, FD_CLOEXEC, O_CLOEXEC, SO_TYPE, SOCK_STREAM, c_int,
};

use super::{accepting::local, connecting::number};
use crate::{
    descriptors::{Address, Kind, hidden},
    sys::sys,
    wrap::Wrap,
};

/// Most that are kept.
const MOST: usize = 16;

/// Those that are closed, and whose addresses nobody listens at since.
#[derive(Default)]
pub(crate) struct ClosedListeners([Option<Listener>; MOST]);

#[derive(Clone, Copy)]
struct Listener {
    /// Where the program does not find it.
    fd: c_int,
    address: Address,
}

impl Wrap {
    /// The program closes this.
    pub(super) fn closes_listener(&mut self, fd: c_int) {
        let descriptor = self.descriptors.get(fd);
        if !self.is_replay || self.process != 0 || descriptor.kind != Kind::Listener {
            return;
        }
        let epoll = descriptor.epoll.checked_sub(1);
        let mut places = self.closed_listeners.0.iter_mut();
        let Some(place) = places.find(|place| place.is_none()) else {
            return;
        };
        let (address, Some(kept)) = (local(fd), hidden(fd)) else {
            return;
        };
        *place = Some(Listener { fd: kept, address });
        // It would be told of for as long as the socket lives.
        if let Some(epoll) = epoll {
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_epoll_ctl, epoll, EPOLL_CTL_DEL, fd, 0) };
        }
    }

    /// The program's new socket is to have this address. `true`: it is the one that had it.
    pub(super) fn listens_again(&mut self, fd: c_int, wanted: &Address) -> bool {
        if number(fd, SO_TYPE) != SOCK_STREAM {
            return false;
        }
        let mut places = self.closed_listeners.0.iter_mut();
        let found = places.find_map(|place| place.take_if(|one| one.address.is(wanted.as_bytes())));
        let Some(listener) = found else {
            return false;
        };
        // SAFETY: no memory is involved; the one is the program's, the other ours.
        unsafe {
            let closes = sys!(SYS_fcntl, fd, F_GETFD) & i64::from(FD_CLOEXEC) != 0;
            let flags = sys!(SYS_fcntl, fd, F_GETFL);
            sys!(SYS_fcntl, listener.fd, F_SETFL, flags);
            let close = if closes { O_CLOEXEC } else { 0 };
            let replaced = sys!(SYS_dup3, listener.fd, fd, close);
            sys!(SYS_close, listener.fd);
            replaced >= 0
        }
    }

    /// Others want the address, or nobody will listen there again: who waits is reset.
    pub(crate) fn let_go_of_listeners(&mut self) -> bool {
        let mut any = false;
        for listener in self.closed_listeners.0.iter_mut().filter_map(Option::take) {
            // SAFETY: no memory is involved; it is ours.
            unsafe { sys!(SYS_close, listener.fd) };
            any = true;
        }
        any
    }
}
