//! Listeners that the program has closed in a replay, and their successors.
//!
//! In a replay the program listens from its start on, and clients connect meanwhile. A server that has closed a
//! listener and opened another listener at the address (redis' `CONFIG SET bind`) repeats this in the replay, and the
//! kernel would reset all clients that wait in the first listener. The shim therefore keeps the closed listener open
//! under another number, and the next listener at the address gets this socket. This works for a server of one
//! process, if no other descriptor has the listener, and if the successor has equal options. In other cases the
//! waiting clients are reset.

use libc::{
    EPOLL_CTL_DEL, IPPROTO_IPV6, IPV6_V6ONLY, RLIMIT_NOFILE, SO_PROTOCOL, SO_REUSEPORT, SO_TYPE,
    SOCK_STREAM, SOL_SOCKET, c_int,
};

use super::{
    accepting::local,
    connecting::{number, number_at},
};
use crate::{
    descriptors::{Address, Kind, hidden_from, inode},
    live,
    sys::sys,
    wrap::Wrap,
};

/// Closed listeners that are retained.
const CLOSED_LISTENERS_MAX: usize = 16;

/// Closed listeners without a successor.
#[derive(Default)]
pub(crate) struct ClosedListeners([Option<Listener>; CLOSED_LISTENERS_MAX]);

#[derive(Clone, Copy)]
struct Listener {
    /// A number that the program does not use.
    fd: c_int,
    address: Address,
}

impl Wrap {
    /// The program closes this.
    pub(super) fn closes_listener(&mut self, fd: c_int) {
        let descriptor = self.descriptors.get(fd);
        if !self.is_replay || descriptor.kind != Kind::Listener || !self.is_alone() {
            return;
        }
        let is_shared = number(fd, SO_REUSEPORT) != 0;
        if is_shared || self.has_another_of(fd) {
            return;
        }
        let mut places = self.closed_listeners.0.iter_mut();
        let Some(place) = places.find(|place| place.is_none()) else {
            return;
        };
        let Some(kept) = out_of_the_way(fd) else {
            return;
        };
        *place = Some(Listener {
            fd: kept,
            address: local(fd),
        });
        // A watched listener would cause events as long as the socket lives.
        if let Some(epoll) = descriptor.epoll.checked_sub(1) {
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_epoll_ctl, epoll, EPOLL_CTL_DEL, fd, 0) };
        }
    }

    /// Whether no other process can have the listener, or want the address.
    fn is_alone(&self) -> bool {
        self.process == 0 && !self.service_replays()
    }

    fn has_another_of(&self, fd: c_int) -> bool {
        let own = inode(fd);
        let mut others = self.descriptors.listeners().filter(|other| *other != fd);
        others.any(|other| inode(other) == own)
    }

    /// The program's new socket needs this address. `true`: the socket now is the earlier listener.
    pub(super) fn replay_listen(&mut self, fd: c_int, wanted: &Address) -> bool {
        if self.descriptors.get(fd).epoll != 0 {
            return false;
        }
        let mut places = self.closed_listeners.0.iter_mut();
        let is_it = |one: &mut Listener| one.address.is_exactly(wanted) && is_alike(fd, one.fd);
        let Some(listener) = places.find_map(|place| place.take_if(is_it)) else {
            return false;
        };
        live::put_in_place(self, fd, listener.fd);
        // SAFETY: no memory is involved; the descriptor is ours.
        unsafe { sys!(SYS_close, listener.fd) };
        true
    }

    /// Another socket needs this port: the waiting clients are reset. `true`: there was such a listener.
    pub(super) fn let_go_of_port(&mut self, port: Option<[u8; 2]>) -> bool {
        self.let_go_of(|listener| listener.address.port() == port)
    }

    /// No successor comes any more.
    pub(crate) fn let_go_of_listeners(&mut self) {
        self.let_go_of(|_| true);
    }

    fn let_go_of(&mut self, which: impl Fn(&Listener) -> bool) -> bool {
        let mut any = false;
        for place in &mut self.closed_listeners.0 {
            let Some(listener) = place.take_if(|listener| which(listener)) else {
                continue;
            };
            // SAFETY: no memory is involved; the descriptor is ours.
            unsafe { sys!(SYS_close, listener.fd) };
            any = true;
        }
        any
    }

    /// Whether this is a descriptor of a closed listener.
    pub(super) fn keeps_listener(&self, fd: c_int) -> bool {
        let mut all = self.closed_listeners.0.iter().flatten();
        all.any(|listener| listener.fd == fd)
    }
}

/// Duplicates the descriptor to a number that the record hardly gives to a file: a number near the limit.
fn out_of_the_way(fd: c_int) -> Option<c_int> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room on our stack.
    unsafe { sys!(SYS_getrlimit, RLIMIT_NOFILE, &raw mut limit) };
    let limit = c_int::try_from(limit.rlim_cur).unwrap_or(c_int::MAX);
    hidden_from(fd, limit.saturating_sub(CLOSED_LISTENERS_MAX as c_int))
}

/// Whether the options that the program sets before bind(2) are equal.
fn is_alike(one: c_int, other: c_int) -> bool {
    let options = [
        (SOL_SOCKET, SO_TYPE),
        (SOL_SOCKET, SO_PROTOCOL),
        (SOL_SOCKET, SO_REUSEPORT),
        (IPPROTO_IPV6, IPV6_V6ONLY),
    ];
    let same = |(level, name)| number_at(one, level, name) == number_at(other, level, name);
    number(one, SO_TYPE) == SOCK_STREAM && options.into_iter().all(same)
}
