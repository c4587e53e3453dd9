//! Connections that the program opens itself: to a database, to the server that it stands before, to its own master.
//!
//! No south side records what comes from there, so the bytes are in the record. In a replay nobody is connected to and
//! nothing is said: the program's own socket is a placeholder, as a client's is ([`crate::live`]).

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

/// What a socket's other end may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A server, by a stream of bytes.
    Stream { is_local: bool },
    /// Anybody on a network, or the kernel, by datagrams.
    Datagrams,
    /// What is left to the program: the system's log.
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

/// The same of this level; -1: the socket has no such option.
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

/// Has it begun?
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
    /// A new socket, with the number that it had: one that a helper thread has not closed yet may have that now.
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

    /// To be connected is to say something.
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
        // Asked about again, one has the port that the kernel chose. Only of TCP the kernel says how much has gone
        // through.
        let is_first = self.descriptors.get(fd).kind != Kind::Outgoing;
        let is_opened = !is_local && !ends && is_first;
        let is_bound = is_opened && self.prepare_to_join(fd);
        let is_there = is_opened && self.has_been_opened(fd, to);
        // Before there is anything that a death could end. One that is watched, and could not be opened, would be
        // watched for as long as the supervisor has it.
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

    /// The supervisor is to have it, too, so that it does not end with this life.
    fn have_it_held(&self, fd: c_int) -> bool {
        let process = self.process;
        let serial = self.descriptors.next_serial(process);
        live::tell(&Message::Opened { process, serial }, Some(fd))
    }

    /// It was not opened after all, and another one will be known by that.
    fn is_held_in_vain(&self) {
        let process = self.process;
        let serial = self.descriptors.next_serial(process);
        live::tell(&Message::Closed { process, serial }, None);
    }

    /// Has the life before opened it, and died before it has noted that? Its other end knows nothing of a death, and
    /// would take the end of that one for the end of all. Then it is there, in the place of the new one.
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
            disconnect(there); // nobody has accepted it yet, or it leads elsewhere
            // SAFETY: it is ours.
            unsafe { sys!(SYS_close, there) };
            return false;
        }
        live::put_in_place(self, fd, there);
        // SAFETY: it is ours; the program has it under its own number.
        unsafe { sys!(SYS_close, there) };
        true
    }

    /// The program closes it, and with it goes what the supervisor has. Where that one does not listen, the other
    /// server is to hear of the end all the same.
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

    /// The process ends, and with it what it has opened.
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

    /// Looks at what has arrived, and takes it when it is recorded: whatever this life dies of, the supervisor's
    /// socket has what the record has not.
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
            // SAFETY: TCP copies nothing then (tcp(7)).
            let taken = unsafe { sys!(SYS_recvfrom, fd, 0, outcome, take, 0, 0) };
            if taken != outcome {
                refuse(&[b"bytes that another server sent are no longer available"]);
            }
        }
        outcome
    }

    /// A socket of datagrams says nothing by that: in a replay it is connected, too, and can be used when the
    /// replay is over.
    fn aim(&mut self, fd: c_int, perform: impl Fn() -> Outcome) -> Outcome {
        if self.is_replay {
            perform();
        }
        self.value(Call::Connect, fd, perform)
    }

    /// One of the socket's addresses, as the kernel has said it.
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
            // SAFETY: as the program has called us; there is room for so many.
            unsafe { bytes_mut(address.cast(), filled) }.copy_from_slice(&record.payload[..filled]);
            record.outcome
        });
        let outcome = replayed.unwrap_or_else(|| {
            let mut outcome = perform();
            if outcome == 0 {
                // SAFETY: as the program has called us, and the kernel has found it there.
                outcome = Outcome::from(unsafe { *length });
            }
            self.record(&Record {
                call: Call::Filled,
                fd: fd.cast_unsigned(),
                outcome,
                // SAFETY: the kernel has just filled in so many.
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

/// The address of one end of a socket that is no client's, which the kernel may have chosen.
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
    // Where the program has given none the kernel says so.
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
