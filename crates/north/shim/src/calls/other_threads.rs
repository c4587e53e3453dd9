//! Helper threads with clients: such a server cannot be replayed, and is refused. The refusal comes before the first
//! output to a client, if the use is visible early enough.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::{c_int, pollfd};

use super::{accepting::local, kind, refuse};
use crate::{
    descriptors::{DESCRIPTORS_MAX, Kind, Watched, kind_of},
    wrap,
};

/// Remembered listeners of clients. A thread at any other listener is found when a client comes.
const LISTENERS: usize = 64;

/// The listeners of the first thread: the descriptor plus 1; 0: a free place.
static LISTENING: [AtomicI32; LISTENERS] = [const { AtomicI32::new(0) }; LISTENERS];
/// Instances of epoll in which other threads wait, or have waited: bit by bit.
static WAITED_IN: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];

/// Refuses a call on the connection of a client, or on a listener of clients.
#[cold]
pub(super) fn refuse_thread(call: &str, on: &[u8]) -> ! {
    refuse(&[
        b"a thread other than the first calls ",
        call.as_bytes(),
        on,
        b"; --stateful=require needs a server that serves its clients from one thread",
    ]);
}

/// Whether clients connect to this socket's address.
fn is_where_clients_connect(fd: c_int) -> bool {
    let at = local(fd).host_and_port();
    wrap::page()
        .zip(at)
        .is_some_and(|(page, (host, port))| page.addresses.are_at(host, port))
}

/// Whether the descriptor is a client's connection, or a listener for clients.
fn is_of_clients(fd: c_int) -> bool {
    match kind_of(fd) {
        Kind::Connection => true,
        Kind::Listener => is_where_clients_connect(fd),
        _ => false,
    }
}

/// A thread listens or accepts on this socket.
pub(super) fn check_listener(fd: c_int, call: &str) {
    if wrap::is_helper() && is_where_clients_connect(fd) {
        refuse_thread(call, b" where clients connect");
    }
}

/// A thread waits for this descriptor.
fn check_wait(fd: c_int, call: &'static str) {
    kind(fd, call);
    if kind_of(fd) == Kind::Listener {
        check_listener(fd, call);
    }
}

/// A thread waits for all of these descriptors, by poll.
pub(super) fn check_poll(all: &[pollfd]) {
    if wrap::is_helper() {
        for one in all {
            check_wait(one.fd, "poll");
        }
    }
}

/// A thread waits for all of these descriptors, by select.
pub(super) fn check_select(all: impl Iterator<Item = c_int>) {
    if wrap::is_helper() {
        for fd in all {
            check_wait(fd, "select");
        }
    }
}

/// A thread is about to wait in this instance of epoll.
pub(super) fn check_epoll_wait(epoll: c_int) {
    if !wrap::is_helper() {
        return;
    }
    if let Some((word, bit)) = place(epoll) {
        word.fetch_or(bit, Ordering::AcqRel);
    }
    let listening = LISTENING.iter().map(|one| one.load(Ordering::Acquire) - 1);
    for listener in listening.filter(|fd| *fd >= 0) {
        if Watched::of(listener).is_in(epoll) {
            check_event(listener);
        }
    }
}

/// A thread has a descriptor watched by epoll.
pub(super) fn check_epoll_control(fd: c_int) {
    if wrap::is_helper() {
        check_wait(fd, "epoll_ctl");
    }
}

/// A thread is about to get an event of this descriptor from epoll.
pub(super) fn check_event(fd: c_int) {
    check_wait(fd, "epoll_wait");
}

/// The first thread listens on this descriptor.
pub(super) fn listens(fd: c_int) {
    let is_free = |one: &&AtomicI32| {
        let known = one.load(Ordering::Relaxed);
        known == 0 || known == fd + 1 || kind_of(known - 1) != Kind::Listener
    };
    if let Some(place) = LISTENING.iter().find(is_free) {
        place.store(fd + 1, Ordering::Release);
    }
    if let Some(epoll) = Watched::of(fd).epoll() {
        check_watch(fd, epoll);
    }
}

/// The first thread has a descriptor watched in this instance.
pub(super) fn check_watch(fd: c_int, epoll: c_int) {
    let is_waited_in =
        place(epoll).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0);
    if is_waited_in && is_of_clients(fd) {
        refuse_thread("epoll_wait", b" where clients connect");
    }
}

/// A descriptor is closed: the next owner of the number is unrelated.
pub(super) fn is_closed(fd: c_int) {
    if let Some((word, bit)) = place(fd).filter(|(word, _)| word.load(Ordering::Relaxed) != 0) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// This process is a child: the threads are the parent's.
pub(crate) fn forget() {
    for word in &WAITED_IN {
        word.store(0, Ordering::Relaxed);
    }
}

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let index = usize::try_from(fd).ok()?;
    Some((WAITED_IN.get(index / 64)?, 1 << (index % 64)))
}
