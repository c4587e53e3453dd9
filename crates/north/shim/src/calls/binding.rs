//! Addresses that a server listens on. On a replica the addresses belong to another host as long as that host serves.

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

/// Steps that fail if another socket has the address.
#[derive(Clone, Copy)]
enum Step {
    Bind = 0,
    Listen = 1,
}

impl Wrap {
    /// Whether this is a replica: another host still makes the record.
    fn follows(&self) -> bool {
        self.is_replay && self.page.follow.load(Ordering::Relaxed) != 0
    }

    /// A name for a socket of this host. In a replay the socket with the name belonged to the dead incarnation, and
    /// has no listener any more.
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
    /// The kernel chooses the port of a stream socket. Clients may know the port, so the replay takes the same port.
    /// If another program has the port by then, another port is as good for a socket that never listens.
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

    /// Binds or listens where other processes may have the address, which replay at another pace. A recorded failure
    /// fails again; after a recorded success the replay waits for the other processes. `None`: recorded success, and
    /// the wait was in vain.
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

    /// Replays a failure of this step, if the record has one here.
    fn was_not_had(&mut self, fd: c_int, step: Step) -> Option<Outcome> {
        let Ok((record, length)) = self.stream.peek()? else {
            return None; // a later read of the record reports the error
        };
        let is_this = (record.call, record.fd) == (Call::Bind, fd.cast_unsigned());
        if !is_this || record.payload != [step as u8] {
            return None;
        }
        let outcome = record.outcome;
        self.advance(length);
        Some(outcome)
    }

    /// Binds the given port. In a replay a listening server had this port.
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

    /// The socket is about to listen. A socket without a port gets a port by that.
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
            outcome = bind(); // the closed listener had a wider or a narrower address
        }
        if outcome == failed(EADDRNOTAVAIL) && self.follows() {
            allow_absent(fd);
            return bind();
        }
        outcome
    }
}

/// The IP address for a socket; `None`: another family.
unsafe fn internet(address: *const sockaddr, length: socklen_t) -> Option<Address> {
    let mut copy = Address::NONE;
    // SAFETY: by the caller.
    copy.fill(unsafe { bytes(address.cast(), length as usize) });
    copy.port().is_some().then_some(copy)
}

impl Wrap {
    /// The kernel identifies a netlink socket by a number, and chooses the number if the program does not. Programs
    /// compare the number, so the replay takes the same number.
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
                perform(); // another socket has the number
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
    // SAFETY: memory on our stack, and its size.
    unsafe { sys!(SYS_getsockname, fd, &raw mut address, &raw mut length) };
    address.nl_pid
}

/// The address of a netlink socket; `None`: another family.
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

/// The name in the file system of an `AF_UNIX` address.
///
/// # Safety
/// As `bind(2)`; `path` has room for the name.
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

/// Allows an address that the host does not have yet: a replica starts its server before the address arrives.
fn allow_absent(fd: c_int) {
    let yes: c_int = 1;
    // The family of the socket decides which option the socket has.
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
