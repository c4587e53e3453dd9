//! Addresses that a server listens on, and that are another host's as long as that one serves.

use core::sync::atomic::Ordering;

use libc::{
    EADDRNOTAVAIL, IP_FREEBIND, IPPROTO_IP, IPPROTO_IPV6, IPV6_FREEBIND, c_int, sockaddr, socklen_t,
};

use super::failed;
use crate::{
    errno::answer_int,
    sys::sys,
    wrap::{Wrap, with},
};

impl Wrap {
    /// Is the record that is replayed still being made, on another host?
    fn follows(&self) -> bool {
        self.is_replay && self.page.follow.load(Ordering::Relaxed) != 0
    }
}

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
    let mut outcome = perform();
    if outcome == failed(EADDRNOTAVAIL) && with(|wrap| wrap.follows()) == Some(true) {
        allow_absent(fd);
        outcome = perform();
    }
    answer_int(outcome)
}
