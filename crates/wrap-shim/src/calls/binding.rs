//! Addresses that a server listens on, and that are another host's as long as that one serves.

use core::{ffi::CStr, sync::atomic::Ordering};

use libc::{
    EADDRNOTAVAIL, IP_FREEBIND, IPPROTO_IP, IPPROTO_IPV6, IPV6_FREEBIND, c_int, sockaddr,
    sockaddr_nl, socklen_t,
};

use wrap_abi::{Call, Record, layout::Failure};

use super::{effects::Made, failed, opening::named};
use crate::{
    beside::not_in_a_rehearsal,
    errno::answer_int,
    sys::{Outcome, bytes, sys},
    wrap::{Wrap, with},
};

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
            not_in_a_rehearsal(Failure::NamedSocket);
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
    /// The kernel tells answers to a netlink socket by a number, which it chooses if the program does not; programs compare
    /// it, so it stays.
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
    let mut outcome = perform();
    if outcome == failed(EADDRNOTAVAIL) && with(|wrap| wrap.follows()) == Some(true) {
        allow_absent(fd);
        outcome = perform();
    }
    answer_int(outcome)
}
