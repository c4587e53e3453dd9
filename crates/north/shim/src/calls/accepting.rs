//! Connections that arrive.

use core::{mem::MaybeUninit, sync::atomic::Ordering};

use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};
use north_abi::{AcceptedConnection, Call, Header, Record, Which, layout::Failure};

use super::{connecting, failed, kind, opening::take_place, other_threads, refuse};
use crate::{
    descriptors::{Address, Connection, Kind},
    errno::answer_int,
    live,
    signals::blocking,
    sys::{Outcome, sys},
    wrap::{self, Wrap, restarting, with},
};

/// The system call of `accept` and its variants.
fn perform(listener: c_int, flags: c_int) -> (Outcome, Address) {
    let mut peer = MaybeUninit::<sockaddr_storage>::uninit();
    let mut length = u32::try_from(size_of::<sockaddr_storage>()).unwrap_or(0);
    let arguments = [
        listener as usize,
        peer.as_mut_ptr().addr(),
        (&raw mut length).addr(),
        flags as usize,
        0,
        0,
    ];
    // SAFETY: room on our stack.
    let fd = unsafe { blocking(libc::SYS_accept4, arguments) };
    let peer = if fd < 0 {
        Address::NONE
    } else {
        Address::new(&peer, length)
    };
    (fd, peer)
}

/// A socket's own end.
pub(super) fn local(fd: c_int) -> Address {
    end_of(fd, libc::SYS_getsockname)
}

/// The other end; none of a socket that is not connected.
pub(super) fn peer(fd: c_int) -> Address {
    end_of(fd, libc::SYS_getpeername)
}

fn end_of(fd: c_int, number: i64) -> Address {
    let mut end = MaybeUninit::<sockaddr_storage>::uninit();
    let mut length = u32::try_from(size_of::<sockaddr_storage>()).unwrap_or(0);
    let (at, room) = (end.as_mut_ptr().addr(), (&raw mut length).addr());
    // SAFETY: room on our stack.
    let outcome = unsafe { crate::sys::raw(number, [fd as usize, at, room, 0, 0, 0]) };
    if outcome < 0 {
        Address::NONE
    } else {
        Address::new(&end, length)
    }
}

impl Wrap {
    fn accept(&mut self, listener: c_int, flags: c_int) -> (Outcome, Address) {
        let replayed = self.replayed(Call::Accept, listener, arrived);
        if let Some((outcome, arrived)) = replayed {
            return self.replay_accept(outcome, arrived, flags);
        }
        self.before_reading(listener, 0);
        let (outcome, peer) = perform(listener, flags);
        let Ok(fd) = c_int::try_from(outcome) else {
            return (outcome, peer);
        };
        if fd < 0 {
            self.record(&Record {
                call: Call::Accept,
                fd: listener.cast_unsigned(),
                outcome,
                payload: &[],
            });
            return (outcome, peer);
        }
        let arrived = Arrived {
            which: which(fd),
            peer,
            local: local(fd),
        };
        self.record_accept(Call::Accept, listener, outcome, &arrived);
        self.add(fd, arrived);
        self.serves(fd);
        (outcome, peer)
    }

    pub(super) fn record_accept(
        &mut self,
        call: Call,
        fd: c_int,
        outcome: Outcome,
        arrived: &Arrived,
    ) {
        let accepted = AcceptedConnection {
            which: arrived.which,
            peer: arrived.peer.as_bytes(),
            local: arrived.local.as_bytes(),
        };
        let header = Header {
            call,
            fd: fd.cast_unsigned(),
            outcome,
            length: accepted.length(),
        };
        self.append(header, |room| accepted.write(room));
    }

    /// A connection that an earlier incarnation accepted.
    fn replay_accept(
        &mut self,
        outcome: Outcome,
        arrived: Arrived,
        flags: c_int,
    ) -> (Outcome, Address) {
        let Arrived { peer, local, .. } = arrived;
        let Ok(fd) = c_int::try_from(outcome) else {
            return (outcome, peer);
        };
        if fd >= 0 {
            if !take_place(live::placeholder(peer.as_bytes(), flags), outcome) {
                self.fail(Failure::DescriptorTaken, Call::Accept, Some(Call::Accept));
            }
            self.add(fd, arrived);
            self.serves(fd);
            let received = self.positions.of(peer.as_bytes(), local.as_bytes());
            if let Some(connection) = self.descriptors.connection(fd) {
                connection.received = received;
            }
            live::began(self, fd);
        }
        (outcome, peer)
    }

    fn add(&mut self, fd: c_int, arrived: Arrived) {
        let number = self.new_connection();
        let Arrived { which, peer, local } = arrived;
        if !self.descriptors.accept(fd, number, peer, local, which) {
            refuse(&[b"the server has too many connections"]);
        }
    }
}

/// A connection that was accepted, or has joined the accepted connections.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    pub(super) which: Which,
    pub(super) peer: Address,
    pub(super) local: Address,
}

/// The outcome and the connection of a record.
pub(super) fn arrived(record: &Record<'_>) -> (Outcome, Arrived) {
    let mut arrived = Arrived {
        which: Which::Unknown,
        peer: Address::NONE,
        local: Address::NONE,
    };
    if let Some(accepted) = AcceptedConnection::read(record.payload) {
        arrived.which = accepted.which;
        arrived.peer.fill(accepted.peer);
        arrived.local.fill(accepted.local);
    }
    (record.outcome, arrived)
}

/// Longest headers of a SYN: IPv4 or IPv6, and TCP.
const SYN_HEADERS_MAX_BYTES: usize = 120;

/// Identity of the connection by the SYN, if the kernel has kept the SYN.
fn which(fd: c_int) -> Which {
    let mut syn = [0; SYN_HEADERS_MAX_BYTES];
    let mut length: socklen_t = SYN_HEADERS_MAX_BYTES as socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_SAVED_SYN);
    // SAFETY: memory on our stack, and its size.
    let outcome = unsafe {
        let (at, length) = (syn.as_mut_ptr(), &raw mut length);
        sys!(SYS_getsockopt, fd, level, name, at, length)
    };
    let kept = syn.get(..length as usize).filter(|_| outcome == 0);
    kept.map_or(Which::Unknown, Which::of_syn)
}

/// Asks the kernel to keep the SYN of each connection until accept ([`which`]). A socket that is not TCP has no SYN.
pub(crate) fn keep_syns(listener: c_int) {
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN);
    let on: c_int = 1;
    // SAFETY: a number on our stack, and its size.
    unsafe {
        let length = size_of::<c_int>();
        sys!(SYS_setsockopt, listener, level, name, &raw const on, length);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(
    listener: c_int,
    peer: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    other_threads::check_listener(listener, "accept");
    let mut address = Address::NONE;
    let accepted = match kind(listener, "accept4") {
        Kind::Listener => restarting(|wrap| {
            let (outcome, peer) = wrap.accept(listener, flags);
            address = peer;
            outcome
        }),
        _ => None,
    };
    let Some(outcome) = accepted else {
        let arguments = [
            listener as usize,
            peer.addr(),
            length.addr(),
            flags as usize,
            0,
            0,
        ];
        // SAFETY: as the program has called us.
        return answer_int(unsafe { blocking(libc::SYS_accept4, arguments) });
    };
    if outcome >= 0 {
        // SAFETY: as the program has called us.
        unsafe { address.give(peer, length) };
    }
    answer_int(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(listener: c_int, peer: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { accept4(listener, peer, length, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    other_threads::check_listener(fd, "listen");
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys!(SYS_listen, fd, backlog) };
    if let Some(page) = wrap::page() {
        page.listens.store(1, Ordering::Release);
        keep_syns(fd);
    }
    let outcome = with(|wrap| wrap.listen_at(fd, backlog)).unwrap_or_else(perform);
    if outcome == 0 && local(fd).port().is_some() {
        // The listener may already be watched.
        with(|wrap| {
            if let Some(descriptor) = wrap.descriptors.entry(fd) {
                descriptor.kind = Kind::Listener;
            }
            other_threads::listens(fd);
        });
    }
    answer_int(outcome)
}

/// An end of a client's connection; `None`: the descriptor has no client.
fn end(fd: c_int, which: impl FnOnce(&Connection) -> Address) -> Option<Address> {
    let known = |wrap: &mut Wrap| {
        let known = wrap.descriptors.connection(fd)?;
        (!known.is_outgoing()).then(|| which(known))
    };
    with(known).flatten()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        match end(fd, |connection| connection.peer) {
            Some(peer) => peer.give(address, length),
            None => return connecting::address(libc::SYS_getpeername, fd, address, length),
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        match end(fd, |connection| connection.local) {
            Some(local) => local.give(address, length),
            None => return connecting::address(libc::SYS_getsockname, fd, address, length),
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let perform = || {
        // SAFETY: no memory is involved.
        unsafe { sys!(SYS_shutdown, fd, how) }
    };
    if !kind(fd, "shutdown").is_stream() {
        return answer_int(perform());
    }
    let outcome = with(|wrap| wrap.shut(fd, how, perform));
    answer_int(outcome.unwrap_or_else(perform))
}

impl Wrap {
    /// As a write of nothing: a failure leaves a record, because the client was gone.
    fn shut(&mut self, fd: c_int, how: c_int, perform: impl FnOnce() -> Outcome) -> Outcome {
        self.serves(fd);
        self.may_be_new(fd);
        let outcome = self.replayed_write(fd, 0).unwrap_or_else(|| {
            self.commit();
            let outcome = perform();
            self.record_write(fd, 0, outcome);
            outcome
        });
        if let Some(connection) = self.descriptors.connection(fd)
            && matches!(how, libc::SHUT_WR | libc::SHUT_RDWR)
        {
            connection.is_shut = true;
        }
        outcome
    }
}

/// Options whose values come from the network and not from the program.
fn is_measured(level: c_int, name: c_int) -> bool {
    match level {
        libc::IPPROTO_TCP => matches!(name, libc::TCP_INFO | libc::TCP_CC_INFO),
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_ERROR | libc::SO_MEMINFO | libc::SO_INCOMING_CPU
        ),
        _ => false,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut libc::c_void,
    length: *mut socklen_t,
) -> c_int {
    let perform = || {
        // SAFETY: as the program has called us.
        unsafe { sys!(SYS_getsockopt, fd, level, name, value, length) }
    };
    let is_recorded = match kind(fd, "getsockopt") {
        Kind::Connection => is_measured(level, name),
        Kind::Outgoing | Kind::Datagrams => true,
        _ => false,
    };
    if !is_recorded {
        return answer_int(perform());
    }
    // SAFETY: as the program has called us.
    let outcome = with(|wrap| unsafe {
        let Some(room) = length.as_mut() else {
            return failed(libc::EFAULT);
        };
        let replayed = wrap.replayed(Call::Filled, fd, |record| {
            let filled = record.payload.len().min(*room as usize);
            crate::sys::bytes_mut(value, filled).copy_from_slice(&record.payload[..filled]);
            *room = u32::try_from(filled).unwrap_or(0);
            record.outcome
        });
        replayed.unwrap_or_else(|| {
            let outcome = perform();
            let filled = if outcome < 0 { 0 } else { *room as usize };
            wrap.record(&Record {
                call: Call::Filled,
                fd: fd.cast_unsigned(),
                outcome,
                payload: crate::sys::bytes(value, filled),
            });
            outcome
        })
    });
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        with(|wrap| wrap.may_join(fd)); // programs find out here that the connection is established
    }
    answer_int(outcome.unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const libc::c_void,
    length: socklen_t,
) -> c_int {
    // The kernel's TLS state could not be carried to another socket: libraries work without kernel TLS. And the shim
    // reads the saved SYN, which can be read once only.
    let is_ours = name == libc::TCP_ULP && kind(fd, "setsockopt").is_stream()
        || name == libc::TCP_SAVE_SYN && wrap::is_wrapped();
    if level == libc::IPPROTO_TCP && is_ours {
        return answer_int(failed(libc::ENOPROTOOPT));
    }
    let limits = level == libc::IPPROTO_TCP && name == libc::TCP_NOTSENT_LOWAT;
    let resizes =
        level == libc::SOL_SOCKET && [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE].contains(&name);
    if limits || resizes {
        with(|wrap| {
            if let Some(connection) = wrap.descriptors.connection(fd) {
                connection.is_limited |= limits;
                connection.budget.forget();
            }
        });
    }
    // SAFETY: as the program has called us.
    answer_int(unsafe { sys!(SYS_setsockopt, fd, level, name, value, length) })
}
