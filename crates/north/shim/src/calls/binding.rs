//! Addresses that a server listens on, and that are another host's as long as that one serves.

use core::{ffi::CStr, sync::atomic::Ordering};

use libc::{
    EADDRINUSE, EADDRNOTAVAIL, IP_FREEBIND, IPPROTO_IP, IPPROTO_IPV6, IPV6_FREEBIND, SO_TYPE,
    SOCK_STREAM, c_int, sockaddr, sockaddr_nl, socklen_t,
};

use north_abi::{Call, Record, layout::Failure};

use super::{accepting::local, connecting::number, effects::Made, failed, opening::named};
use crate::{
    descriptors::Address,
    errno::answer_int,
    shared_state_guard::refuse_shadow_replay,
    sys::{Outcome, bytes, sys},
    wrap::{Wrap, with},
};

/// What of an address may fail because others have it.
#[derive(Clone, Copy)]
enum Step {
    Bind = 0,
    Listen = 1,
}

impl Wrap {
    /// Is the record that is replayed still being made, on another host?
    fn follows(&self) -> bool {
        self.is_replay && self.page.follow.load(Ordering::Relaxed) != 0
    }

    /// A name for a socket of this host. In a replay it is the dead life's, to which nobody listens any more.
    fn bind_name(&mut self, path: &CStr, perform: impl Fn() -> Outcome) -> Outcome {
        let name = named(path);
        let replayed = self.replayed(Call::File, name, |record| record.outcome);
        let Some(outcome) = replayed else {
            let outcome = perform();
            self.record(&Record {
                call: Call::File,
                fd: name.cast_unsigned(),
                outcome,
                payload: &[],
            });
            return outcome;
        };
        if outcome == 0 {
            refuse_shadow_replay(Failure::NamedSocket);
            if Made::is_socket(libc::AT_FDCWD, path) {
                // SAFETY: a string.
                unsafe { sys!(SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
            }
            if perform() != 0 || !self.remade.add(Made::inode(libc::AT_FDCWD, path).number()) {
                self.fail(Failure::OtherFile, Call::File, Some(Call::File));
            }
        }
        outcome
    }
}

impl Wrap {
    /// The kernel is to choose the port of a stream. Clients may be told which it is, so it stays. Where that is
    /// another program's by now, any other one does as well, as long as nobody listens there.
    fn bind_any_port(&mut self, fd: c_int, wanted: &Address) -> Outcome {
        let replayed = self.replayed(Call::Value, fd, |record| {
            (record.outcome, record.payload.first_chunk().copied())
        });
        if let Some((outcome, port)) = replayed {
            if let Some(port) = port
                && self.bind_here(fd, &wanted.with_port(port)) != 0
            {
                self.bind_here(fd, wanted);
                if let Some(entry) = self.descriptors.entry(fd) {
                    entry.lacks_port = true;
                }
            }
            return outcome;
        }
        let outcome = self.bind_here(fd, wanted);
        let port = local(fd).port().filter(|_| outcome == 0);
        self.record(&Record {
            call: Call::Value,
            fd: fd.cast_unsigned(),
            outcome,
            payload: port.as_ref().map_or(&[], |port| port),
        });
        outcome
    }

    /// An address that others may have, whose processes replay at another pace than they lived: where it could not be
    /// had then, it cannot; where it could, they are waited for. `None`: it could, and cannot.
    fn have_or_not(
        &mut self,
        fd: c_int,
        step: Step,
        perform: impl Fn(&mut Self) -> Outcome,
    ) -> Option<Outcome> {
        if self.is_replay {
            if let Some(outcome) = self.was_not_had(fd, step) {
                return Some(outcome);
            }
            let mut outcome = perform(self);
            if outcome == failed(EADDRINUSE) {
                self.await_service_replay(|wrap| {
                    outcome = perform(wrap);
                    outcome != failed(EADDRINUSE)
                });
            }
            if outcome != failed(EADDRINUSE) {
                return Some(outcome);
            }
            if self.is_replay() {
                return None;
            }
        }
        let outcome = perform(self);
        if outcome < 0 {
            self.record(&Record {
                call: Call::Bind,
                fd: fd.cast_unsigned(),
                outcome,
                payload: &[step as u8],
            });
        }
        Some(outcome)
    }

    /// The record says here that it could not be had.
    fn was_not_had(&mut self, fd: c_int, step: Step) -> Option<Outcome> {
        let Ok((record, length)) = self.stream.peek()? else {
            return None; // whoever wants a record finds out
        };
        let is_this = (record.call, record.fd) == (Call::Bind, fd.cast_unsigned());
        if !is_this || record.payload != [step as u8] {
            return None;
        }
        let outcome = record.outcome;
        self.advance(length);
        Some(outcome)
    }

    /// One port, and no other. A server that is to listen there had it, in a replay.
    fn bind_port(&mut self, fd: c_int, wanted: &Address) -> Outcome {
        let outcome = self.have_or_not(fd, Step::Bind, |wrap| wrap.bind_here(fd, wanted));
        if outcome.is_none()
            && number(fd, SO_TYPE) == SOCK_STREAM
            && let Some(entry) = self.descriptors.entry(fd)
        {
            entry.lacks_port = true;
            return 0;
        }
        outcome.unwrap_or(failed(EADDRINUSE))
    }

    /// The program listens there.
    pub(super) fn listen_at(&mut self, fd: c_int, backlog: c_int) -> Outcome {
        self.is_to_listen(fd);
        // SAFETY: no memory is involved.
        let listen = || unsafe { sys!(SYS_listen, fd, backlog) };
        let outcome = self.have_or_not(fd, Step::Listen, |wrap| match listen() {
            taken if taken == failed(EADDRINUSE) && wrap.let_go_of_port(local(fd).port()) => {
                listen()
            }
            outcome => outcome,
        });
        outcome.unwrap_or_else(|| self.fail(Failure::PortTaken, Call::Bind, None))
    }

    /// It is to be listened on. One that has no port is given one by that.
    fn is_to_listen(&mut self, fd: c_int) {
        let own = local(fd);
        if own.port() == Some([0; 2]) {
            self.bind_any_port(fd, &own);
        }
        if self.descriptors.get(fd).lacks_port {
            self.fail(Failure::PortTaken, Call::Value, Some(Call::Value));
        }
    }

    /// An address of a network, which may be another host's as yet.
    fn bind_here(&mut self, fd: c_int, address: &Address) -> Outcome {
        let bytes = address.as_bytes();
        // SAFETY: an address that lives.
        let bind = || unsafe { sys!(SYS_bind, fd, bytes.as_ptr(), bytes.len()) };
        if self.is_replay && self.replay_listen(fd, address) {
            return 0;
        }
        let mut outcome = bind();
        if outcome == failed(EADDRINUSE) && self.let_go_of_port(address.port()) {
            outcome = bind(); // the one that was closed had more of it, or less
        }
        if outcome == failed(EADDRNOTAVAIL) && self.follows() {
            allow_absent(fd);
            return bind();
        }
        outcome
    }
}

/// The address of a network that a socket is to have; `None`: it is another one.
///
/// # Safety
/// As `bind(2)`.
unsafe fn internet(address: *const sockaddr, length: socklen_t) -> Option<Address> {
    let mut copy = Address::NONE;
    // SAFETY: by the caller.
    copy.fill(unsafe { bytes(address.cast(), length as usize) });
    copy.port().is_some().then_some(copy)
}

impl Wrap {
    /// The kernel tells answers to a netlink socket by a number, which it chooses if the program does not; programs
    /// compare it, so it stays.
    fn bind_netlink(
        &mut self,
        fd: c_int,
        wanted: sockaddr_nl,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let replayed = self.replayed(Call::Value, fd, |record| {
            let number = record.payload.try_into().map(u32::from_ne_bytes);
            (record.outcome, number.unwrap_or(0))
        });
        if let Some((outcome, number)) = replayed {
            if outcome == 0 && bind_to(fd, &with_number(wanted, number)) != 0 {
                perform(); // somebody else has it
            }
            return outcome;
        }
        let outcome = perform();
        let number = number_of(fd).to_ne_bytes();
        self.record(&Record {
            call: Call::Value,
            fd: fd.cast_unsigned(),
            outcome,
            payload: if outcome == 0 { &number } else { &[] },
        });
        outcome
    }
}

fn with_number(mut address: sockaddr_nl, number: u32) -> sockaddr_nl {
    address.nl_pid = number;
    address
}

fn bind_to(fd: c_int, address: &sockaddr_nl) -> Outcome {
    let length = size_of::<sockaddr_nl>();
    // SAFETY: an address that lives.
    unsafe { sys!(SYS_bind, fd, &raw const *address, length) }
}

/// The number that this netlink socket has.
fn number_of(fd: c_int) -> u32 {
    // SAFETY: all zeros is an address.
    let mut address: sockaddr_nl = unsafe { core::mem::zeroed() };
    let mut length = size_of::<sockaddr_nl>() as socklen_t;
    // SAFETY: room for it on our stack, and its size.
    unsafe { sys!(SYS_getsockname, fd, &raw mut address, &raw mut length) };
    address.nl_pid
}

/// A netlink socket's address; `None`: it is another one's.
///
/// # Safety
/// As `bind(2)`.
unsafe fn netlink(address: *const sockaddr, length: socklen_t) -> Option<sockaddr_nl> {
    let is_whole = length as usize >= size_of::<sockaddr_nl>() && !address.is_null();
    // SAFETY: by the caller.
    unsafe {
        let is_it = is_whole && (*address).sa_family == libc::AF_NETLINK as u16;
        is_it.then(|| address.cast::<sockaddr_nl>().read_unaligned())
    }
}

/// The name in the file system that an address is.
///
/// # Safety
/// As `bind(2)`; `path` has room for it.
unsafe fn name_of(
    address: *const sockaddr,
    length: socklen_t,
    path: &mut [u8; NAME_MAX + 1],
) -> Option<&CStr> {
    let length = (length as usize).checked_sub(size_of::<libc::sa_family_t>())?;
    // SAFETY: by the caller.
    let given = unsafe {
        if address.is_null() || (*address).sa_family != libc::AF_UNIX as u16 {
            return None;
        }
        bytes(
            address.byte_add(size_of::<libc::sa_family_t>()).cast(),
            length,
        )
    };
    path.get_mut(..length)?.copy_from_slice(given);
    CStr::from_bytes_until_nul(path)
        .ok()
        .filter(|path| !path.is_empty())
}

/// Bytes of a socket's name in the file system.
const NAME_MAX: usize = 108;

/// The address comes when this host serves, and the server with it.
fn allow_absent(fd: c_int) {
    let yes: c_int = 1;
    // Which of the two the socket knows depends on its family.
    for (level, name) in [(IPPROTO_IP, IP_FREEBIND), (IPPROTO_IPV6, IPV6_FREEBIND)] {
        // SAFETY: an `int` on our stack, and its size.
        unsafe {
            sys!(
                SYS_setsockopt,
                fd,
                level,
                name,
                &raw const yes,
                size_of::<c_int>()
            )
        };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let perform = || {
        // SAFETY: as the program has called us.
        unsafe { sys!(SYS_bind, fd, address, length) }
    };
    let mut path = [0; NAME_MAX + 1];
    // SAFETY: as the program has called us.
    if let Some(path) = unsafe { name_of(address, length, &mut path) } {
        let outcome = with(|wrap| wrap.bind_name(path, perform));
        return answer_int(outcome.unwrap_or_else(perform));
    }
    // SAFETY: as the program has called us.
    if let Some(wanted) = unsafe { netlink(address, length) } {
        let outcome = with(|wrap| wrap.bind_netlink(fd, wanted, perform));
        return answer_int(outcome.unwrap_or_else(perform));
    }
    // SAFETY: as the program has called us.
    let outcome = unsafe { internet(address, length) }.and_then(|wanted| {
        let is_any = wanted.port() == Some([0; 2]) && number(fd, SO_TYPE) == SOCK_STREAM;
        with(|wrap| match is_any {
            true => wrap.bind_any_port(fd, &wanted),
            false => wrap.bind_port(fd, &wanted),
        })
    });
    answer_int(outcome.unwrap_or_else(perform))
}
