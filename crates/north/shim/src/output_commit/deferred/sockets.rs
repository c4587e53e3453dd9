//! Questions to the kernel about sockets with deferred output.

use libc::{
    EAGAIN, EINTR, F_GETFL, MSG_DONTWAIT, MSG_NOSIGNAL, O_NONBLOCK, POLLIN, POLLOUT, SO_MEMINFO,
    SOL_SOCKET, c_int, pollfd, timespec,
};
use north_abi::SOCKET_BUDGET_BYTES;

use crate::{
    messages::say,
    signals::blocking,
    sys::{Outcome, sys},
};

/// Sleeps until one of two descriptors (-1: none) is readable, at most this many microseconds.
pub(super) fn sleep(either: [c_int; 2], microseconds: i64, mask: usize) -> Outcome {
    let mut places = either.map(|fd| pollfd {
        fd,
        events: POLLIN,
        revents: 0,
    });
    let mut time = timespec {
        tv_sec: microseconds / 1_000_000,
        tv_nsec: microseconds % 1_000_000 * 1000,
    };
    let arguments = [
        places.as_mut_ptr().addr(),
        places.len(),
        (&raw mut time).addr(),
        mask,
        8,
        0,
    ];
    // SAFETY: all is on our stack, but the mask, which is the program's.
    unsafe { blocking(libc::SYS_ppoll, arguments) }
}

/// Whether calls on the descriptor return at once.
pub(super) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    let flags = unsafe { sys!(SYS_fcntl, fd, F_GETFL) };
    flags >= 0 && flags & Outcome::from(O_NONBLOCK) != 0
}

/// Whether the program limits the unsent bytes of the socket. A socket inherits the limit from its listener.
pub(super) fn is_limited(fd: c_int) -> bool {
    let mut most = 0u32;
    let mut length = size_of_val(&most) as u32;
    let name = libc::TCP_NOTSENT_LOWAT;
    // SAFETY: a number of ours.
    let outcome = unsafe {
        let (at, size) = (&raw mut most, &raw mut length);
        sys!(SYS_getsockopt, fd, libc::IPPROTO_TCP, name, at, size)
    };
    outcome < 0 || most != 0
}

/// Free space of a socket, as the kernel accounts memory, up to [`SOCKET_BUDGET_BYTES`].
pub(super) fn free_in(fd: c_int) -> u32 {
    /// `SK_MEMINFO_*` of the kernel.
    const SNDBUF: usize = 3;
    const QUEUED: usize = 5;
    let mut numbers = [0u32; 9];
    let mut length = size_of_val(&numbers) as u32;
    // SAFETY: room on our stack.
    let outcome = unsafe {
        let (at, size) = (numbers.as_mut_ptr(), &raw mut length);
        sys!(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, at, size)
    };
    if outcome < 0 {
        return 0;
    }
    numbers[SNDBUF]
        .min(SOCKET_BUDGET_BYTES)
        .saturating_sub(numbers[QUEUED])
}

/// Writes deferred output. A connection that has ended takes no bytes: the program finds out itself. If a socket is
/// full after all (the kernel was short of memory), the write waits for a limited time, because other output waits,
/// too.
pub(super) fn write_through(fd: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        // SAFETY: bytes of ours.
        let outcome = unsafe { sys!(SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0, 0) };
        match usize::try_from(outcome) {
            Ok(length) => bytes = bytes.get(length..).unwrap_or_default(),
            Err(_) if outcome == -Outcome::from(EINTR) => {}
            Err(_) if outcome == -Outcome::from(EAGAIN) && has_room_in_time(fd) => {}
            Err(_) if outcome == -Outcome::from(EAGAIN) => return reset(fd),
            Err(_) => return,
        }
    }
}

#[cold]
fn has_room_in_time(fd: c_int) -> bool {
    let mut place = pollfd {
        fd,
        events: POLLOUT,
        revents: 0,
    };
    let time = timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    // SAFETY: on our stack.
    unsafe { sys!(SYS_ppoll, &raw mut place, 1, &raw const time, 0, 8) != 0 }
}

/// Output that the program counts as written cannot leave: the client must see a reset.
#[cold]
fn reset(fd: c_int) {
    say(&[b"the kernel has no room for the bytes that a client was sent: connection reset"]);
    let nowhere = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as u16,
        sa_data: [0; 14],
    };
    // SAFETY: an address on our stack.
    unsafe { sys!(SYS_connect, fd, &raw const nowhere, size_of_val(&nowhere)) };
}

/// Whether this host lets sockets take as many bytes as may be deferred for each.
pub(super) fn sockets_take_enough() -> bool {
    const PLACE: &core::ffi::CStr = c"/proc/sys/net/ipv4/tcp_notsent_lowat";
    let mut text = [0u8; 16];
    // SAFETY: a string, and room on our stack.
    let length = unsafe {
        let file = sys!(SYS_openat, libc::AT_FDCWD, PLACE.as_ptr(), libc::O_RDONLY);
        let length = sys!(SYS_read, file, text.as_mut_ptr(), text.len());
        sys!(SYS_close, file);
        length
    };
    let text = usize::try_from(length)
        .ok()
        .and_then(|length| text.get(..length));
    let number = text.and_then(|text| core::str::from_utf8(text).ok()?.trim().parse::<u64>().ok());
    number.is_some_and(|number| number >= u64::from(2 * SOCKET_BUDGET_BYTES))
}
