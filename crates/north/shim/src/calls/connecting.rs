//! Upstream connections: connections that the program opens, to a database, to the server behind a proxy, or to a
//! replication master.
//!
//! No south side wrap records the peer's bytes, so the record has the bytes. A replay neither connects nor sends: the
//! program's socket is a placeholder, like a client's socket ([`crate::live`]).

use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, AF_UNSPEC, c_int, iovec, msghdr, sa_family_t, sockaddr,
    socklen_t,
};
use north_abi::{
    Call, Record,
    handover::{Message, UpstreamPosition},
    layout::Failure,
};

use super::{accepting, joining::disconnect, opening::take_place, refuse};
use crate::{
    descriptors::{Kind, kind_of},
    errno::answer_int,
    live,
    signals::blocking,
    sys::{Outcome, bytes, bytes_mut, sys},
    wrap::{self, Wrap, restarting, with},
};

/// Longest socket address.
const SOCKADDR_MAX_BYTES: usize = size_of::<libc::sockaddr_storage>();

/// Kind of a socket's peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A server, by a stream of bytes.
    Stream { is_local: bool },
    /// Any peer on a network, or the kernel, by datagrams.
    Datagrams,
    /// Not recorded: the socket of the system log.
    Unrecorded,
}

impl Way {
    fn of(fd: c_int) -> Self {
        let family = number(fd, libc::SO_DOMAIN);
        let is_stream =
            [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].contains(&number(fd, libc::SO_TYPE));
        match family {
            AF_INET | AF_INET6 if is_stream => Self::Stream { is_local: false },
            AF_UNIX if is_stream => Self::Stream { is_local: true },
            AF_INET | AF_INET6 | AF_NETLINK => Self::Datagrams,
            _ => Self::Unrecorded,
        }
    }
}

/// An option of a socket that is a number.
pub(super) fn number(fd: c_int, name: c_int) -> c_int {
    number_at(fd, libc::SOL_SOCKET, name)
}

/// An option of this level; -1: the socket has no such option.
pub(super) fn number_at(fd: c_int, level: c_int, name: c_int) -> c_int {
    let (mut value, mut length): (c_int, socklen_t) = (-1, 4);
    // SAFETY: an `int` and its size, on our stack.
    unsafe {
        sys!(
            SYS_getsockopt,
            fd,
            level,
            name,
            &raw mut value,
            &raw mut length
        );
    }
    value
}

/// Whether the connect has begun.
fn is_under_way(outcome: Outcome) -> bool {
    let codes = [
        libc::EINPROGRESS,
        libc::EINTR,
        libc::EALREADY,
        libc::EISCONN,
    ];
    outcome == 0 || codes.map(super::failed).contains(&outcome)
}

impl Wrap {
    /// A new socket with the recorded descriptor number. A file that a helper thread has not closed yet may still
    /// have the number.
    fn socket(&mut self, family: c_int, perform: impl Fn() -> Outcome) -> Outcome {
        let replayed = self.replayed(Call::Value, family, |record| record.outcome);
        let Some(outcome) = replayed else {
            return self.value(Call::Value, family, perform);
        };
        if outcome >= 0 && !take_place(perform(), outcome) {
            self.fail(Failure::DescriptorTaken, Call::Value, Some(Call::Value));
        }
        outcome
    }

    /// A connect is output.
    fn connect(
        &mut self,
        fd: c_int,
        to: &[u8],
        is_local: bool,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let ends = to.get(..2) == Some(&(AF_UNSPEC as sa_family_t).to_ne_bytes());
        if let Some(outcome) = self.replayed(Call::Connect, fd, |record| record.outcome) {
            self.connected(fd, is_local, ends, outcome, false);
            self.may_join(fd);
            return outcome;
        }
        self.commit();
        // A later question about the address shows the port that the kernel chose now. And only of TCP the kernel
        // counts the bytes that have gone through.
        let is_first = self.descriptors.get(fd).kind != Kind::Outgoing;
        let is_opened = !is_local && !ends && is_first;
        let is_bound = is_opened && self.prepare_to_join(fd);
        let is_there = is_opened && self.has_been_opened(fd, to);
        // The supervisor gets the socket first, before a death could end the connection. A watched socket whose
        // connect fails would stay watched as long as the supervisor has the socket.
        let is_watched = self.descriptors.get(fd).epoll != 0;
        let mut is_held = is_there || is_opened && !is_watched && self.have_it_held(fd);
        let outcome = match perform() {
            known if is_there && known == super::failed(libc::EISCONN) => 0,
            outcome => outcome,
        };
        if is_opened && is_watched && !is_there && is_under_way(outcome) {
            is_held = self.have_it_held(fd);
        }
        if is_held && !is_under_way(outcome) {
            self.is_held_in_vain();
        }
        self.connected(fd, is_local, ends, outcome, is_held);
        self.record(&Record {
            call: Call::Connect,
            fd: fd.cast_unsigned(),
            outcome,
            payload: &[],
        });
        if let Some(connection) = self.descriptors.connection(fd).filter(|_| is_bound) {
            connection.is_bound = true;
        }
        self.may_join(fd);
        outcome
    }

    fn connected(
        &mut self,
        fd: c_int,
        is_local: bool,
        ends: bool,
        outcome: Outcome,
        is_held: bool,
    ) {
        let is_known = self.descriptors.get(fd).kind == Kind::Outgoing;
        if ends && is_known && outcome == 0 {
            self.let_go(fd);
            self.descriptors.disconnect(fd);
        } else if !ends && !is_known && is_under_way(outcome) {
            let (number, process) = (self.new_connection(), self.process);
            if !self.descriptors.open(fd, number, process, is_local) {
                refuse(&[b"the server has too many connections"]);
            }
            if let Some(connection) = self.descriptors.connection(fd) {
                connection.is_held = is_held;
            }
        }
    }

    /// Gives the supervisor a descriptor, and the connection survives this incarnation.
    fn have_it_held(&self, fd: c_int) -> bool {
        let process = self.process;
        let serial = self.descriptors.next_serial(process);
        live::tell(&Message::Opened { process, serial }, Some(fd))
    }

    /// The connection was not opened, and another connection will get this serial number.
    fn is_held_in_vain(&self) {
        let process = self.process;
        let serial = self.descriptors.next_serial(process);
        live::tell(&Message::Closed { process, serial }, None);
    }

    /// Whether the incarnation before opened the connection, and died before the record had that. The peer has seen
    /// no death, and would take the end of that connection for the end of the service. If so, the earlier connection
    /// replaces the new socket.
    fn has_been_opened(&mut self, fd: c_int, to: &[u8]) -> bool {
        if !core::mem::take(&mut self.may_have_opened) {
            return false;
        }
        let process = self.process;
        let serial = self.descriptors.next_serial(process);
        let Some(there) = live::ask_for_file(&Message::Opens { process, serial }) else {
            return false;
        };
        if !accepting::peer(there).is(to) {
            disconnect(there); // the peer has not accepted yet, or the address differs
            // SAFETY: the descriptor is ours.
            unsafe { sys!(SYS_close, there) };
            return false;
        }
        live::put_in_place(self, fd, there);
        // SAFETY: the descriptor is ours; the program has its own number for the socket.
        unsafe { sys!(SYS_close, there) };
        true
    }

    /// The program closes the connection, and the supervisor closes its descriptor. If the supervisor does not
    /// listen, the peer must see the end all the same.
    pub(super) fn let_go(&mut self, fd: c_int) {
        let own = self.process;
        let Some(connection) = self.descriptors.connection(fd) else {
            return;
        };
        let serial = connection.serial;
        let process = UpstreamPosition::opener_of(serial);
        if connection.is_held
            && connection.is_last()
            && (process == own || connection.is_taken)
            && !live::tell(&Message::Closed { process, serial }, None)
        {
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_shutdown, fd, libc::SHUT_RDWR) };
        }
    }

    /// The process ends, and its upstream connections end.
    pub(crate) fn lets_opened_go(&mut self) {
        let own = self.process;
        for (_, connection) in self.descriptors.connections() {
            let (serial, process) = (
                connection.serial,
                UpstreamPosition::opener_of(connection.serial),
            );
            let is_own = process == own && !connection.is_shared && !connection.is_passed;
            if connection.is_held && (is_own || connection.is_taken) {
                live::tell(&Message::Closed { process, serial }, None);
            }
        }
    }

    /// Peeks at the arrived bytes, and takes the bytes after the record: after any death the supervisor's socket
    /// still has the unrecorded bytes.
    pub(super) fn receive_held(&mut self, fd: c_int, pieces: &[iovec], flags: c_int) -> Outcome {
        // SAFETY: all zeros is an empty message.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len();
        let at = (&raw mut message).addr();
        let look = (flags | libc::MSG_PEEK) as usize;
        // SAFETY: a message on our stack, with the program's pieces.
        let outcome = unsafe { blocking(libc::SYS_recvmsg, [fd as usize, at, look, 0, 0, 0]) };
        self.record_received(Call::Input, fd, pieces, flags, outcome);
        if outcome > 0 {
            let take = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
            // SAFETY: with `MSG_TRUNC` TCP copies nothing (tcp(7)).
            let taken = unsafe { sys!(SYS_recvfrom, fd, 0, outcome, take, 0, 0) };
            if taken != outcome {
                refuse(&[b"bytes that another server sent are no longer available"]);
            }
        }
        outcome
    }

    /// Connect of a datagram socket is no output: a replay connects, too, and the socket is usable after the replay.
    fn aim(&mut self, fd: c_int, perform: impl Fn() -> Outcome) -> Outcome {
        if self.is_replay {
            perform();
        }
        self.value(Call::Connect, fd, perform)
    }

    /// An address of the socket, as the kernel returned the address.
    fn address(
        &mut self,
        fd: c_int,
        address: *mut sockaddr,
        length: *mut socklen_t,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        // SAFETY: as the program has called us.
        let room = unsafe { length.as_ref() }.copied().unwrap_or(0) as usize;
        let given = |whole: Outcome| usize::try_from(whole).unwrap_or(0).min(room);
        let replayed = self.replayed(Call::Filled, fd, |record| {
            let filled = record.payload.len().min(given(record.outcome));
            // SAFETY: as the program has called us; the memory is long enough.
            unsafe { bytes_mut(address.cast(), filled) }.copy_from_slice(&record.payload[..filled]);
            record.outcome
        });
        let outcome = replayed.unwrap_or_else(|| {
            let mut outcome = perform();
            if outcome == 0 {
                // SAFETY: as the program has called us, and the kernel has read the length there.
                outcome = Outcome::from(unsafe { *length });
            }
            self.record(&Record {
                call: Call::Filled,
                fd: fd.cast_unsigned(),
                outcome,
                // SAFETY: the kernel has just filled in these bytes.
                payload: unsafe { bytes(address.cast(), given(outcome)) },
            });
            outcome
        });
        let Ok(whole) = socklen_t::try_from(outcome) else {
            return outcome;
        };
        // SAFETY: as the program has called us.
        unsafe { length.write(whole) };
        0
    }
}

/// The address of an end of a socket without a client. The kernel may have chosen the address.
///
/// # Safety
/// As `getsockname(2)`.
pub(super) unsafe fn address(
    number: i64,
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let perform = || {
        let arguments = [fd as usize, address.addr(), length.addr(), 0, 0, 0];
        // SAFETY: by the caller.
        unsafe { crate::sys::raw(number, arguments) }
    };
    let outcome = match kind_of(fd) {
        Kind::Outgoing | Kind::Datagrams => with(|wrap| wrap.address(fd, address, length, perform)),
        _ => None,
    };
    answer_int(outcome.unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    let perform = || {
        // SAFETY: no memory is involved.
        unsafe { sys!(SYS_socket, family, kind, protocol) }
    };
    let outcome = with(|wrap| wrap.socket(family, perform)).unwrap_or_else(perform);
    if let Some(fd) = c_int::try_from(outcome).ok().filter(|fd| *fd >= 0)
        && wrap::is_wrapped()
        && Way::of(fd) == Way::Datagrams
    {
        with(|wrap| wrap.descriptors.set_kind(fd, Kind::Datagrams));
    }
    answer_int(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    let perform = || {
        let arguments = [fd as usize, to.addr(), length as usize, 0, 0, 0];
        // SAFETY: as the program has called us.
        unsafe { crate::sys::raw(libc::SYS_connect, arguments) }
    };
    let way = match wrap::page() {
        Some(_) => Way::of(fd),
        None => Way::Unrecorded,
    };
    if matches!(way, Way::Stream { .. }) && wrap::is_helper_thread() {
        refuse(&[b"a thread other than the first connects to another server"]);
    }
    // The kernel reports a missing address.
    let given = if to.is_null() { 0 } else { length as usize };
    // SAFETY: as the program has called us.
    let address = unsafe { bytes(to.cast(), given.min(SOCKADDR_MAX_BYTES)) };
    let outcome = match way {
        Way::Stream { is_local } => restarting(|wrap| wrap.connect(fd, address, is_local, perform)),
        Way::Datagrams => with(|wrap| wrap.aim(fd, perform)),
        Way::Unrecorded => None,
    };
    answer_int(outcome.unwrap_or_else(perform))
}
