//! Descriptors that come and go, and files whose contents are not the program's own doing.

use libc::{c_char, c_int, c_uint, c_void, mode_t};

use crate::{
    descriptors::Kind,
    errno::answer_int,
    live,
    sys::{Outcome, sys},
    wrap::{Wrap, with},
};

/// Is what is read there different each time?
///
/// # Safety
/// The path is a string, as the program would vouch for it to the kernel.
pub(super) unsafe fn is_input(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: by the caller.
    let path = unsafe { core::ffi::CStr::from_ptr(path) }.to_bytes();
    path.starts_with(b"/proc/")
        || path.starts_with(b"/sys/")
        || [&b"/dev/urandom"[..], b"/dev/random"].contains(&path)
}

/// # Safety
/// As the system call.
unsafe fn open_at(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller.
    let outcome = unsafe { sys!(SYS_openat, directory, path, flags, mode) };
    // SAFETY: by the caller.
    if outcome >= 0 && unsafe { is_input(path) } {
        with(|wrap| wrap.descriptors.set_kind(fd_of(outcome), Kind::Input));
    }
    answer_int(outcome)
}

fn fd_of(outcome: Outcome) -> c_int {
    c_int::try_from(outcome).unwrap_or(-1)
}

// Declared with the arguments that they may have: they are where a caller with fewer has put nothing.

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { open_at(directory, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { open_at(directory, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pipe2(ends: *mut c_int, flags: c_int) -> c_int {
    // SAFETY: as the program has called us.
    let outcome = unsafe { sys!(SYS_pipe2, ends, flags) };
    if outcome == 0 {
        // SAFETY: the kernel has just filled them in.
        let (read, write) = unsafe { (ends.read(), ends.add(1).read()) };
        with(|wrap| {
            wrap.descriptors.set_kind(read, Kind::Input);
            wrap.descriptors.set_kind(write, Kind::Other);
            wrap.descriptors.pair(read, write);
        });
    }
    answer_int(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socketpair(
    family: c_int,
    kind: c_int,
    protocol: c_int,
    ends: *mut c_int,
) -> c_int {
    // SAFETY: as the program has called us.
    let outcome = unsafe { sys!(SYS_socketpair, family, kind, protocol, ends) };
    if outcome == 0 {
        // SAFETY: the kernel has just filled them in.
        let (one, other) = unsafe { (ends.read(), ends.add(1).read()) };
        with(|wrap| {
            wrap.descriptors.set_kind(one, Kind::Input);
            wrap.descriptors.set_kind(other, Kind::Input);
            wrap.descriptors.pair(one, other);
        });
    }
    answer_int(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pipe(ends: *mut c_int) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { pipe2(ends, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn eventfd(value: c_uint, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    let fd = input(unsafe { sys!(SYS_eventfd2, value, flags) });
    with(|wrap| wrap.descriptors.pair(fd, fd));
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signalfd(fd: c_int, mask: *const libc::sigset_t, flags: c_int) -> c_int {
    /// A kernel's signal set, bytes.
    const SIZE: usize = 8;
    // SAFETY: as the program has called us.
    let outcome = unsafe { sys!(SYS_signalfd4, fd, mask, SIZE, flags) };
    if fd < 0 {
        input(outcome)
    } else {
        answer_int(outcome)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn inotify_init1(flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    input(unsafe { sys!(SYS_inotify_init1, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn inotify_init() -> c_int {
    // SAFETY: no memory is involved.
    unsafe { inotify_init1(0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    input(unsafe { sys!(SYS_timerfd_create, clock, flags) })
}

/// A descriptor that was just made, from which comes what the program does not decide.
fn input(outcome: Outcome) -> c_int {
    if outcome >= 0 {
        with(|wrap| wrap.descriptors.set_kind(fd_of(outcome), Kind::Input));
    }
    answer_int(outcome)
}

impl Wrap {
    /// The program closes it. What it has said, and the client does not have, is still to be delivered.
    fn close(&mut self, fd: c_int) {
        let number = self.descriptors.get(fd).connection;
        let is_replay = self.is_replay;
        if let Some(connection) = self.descriptors.connection(fd)
            && connection.is_last()
        {
            if is_replay && connection.received <= connection.outstream {
                live::stands(number, connection, true);
            } else if !is_replay {
                self.commit();
            }
        }
        self.descriptors.close(fd);
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close(fd: c_int) -> c_int {
    with(|wrap| wrap.close(fd));
    // SAFETY: no memory is involved.
    answer_int(unsafe { sys!(SYS_close, fd) })
}

fn duplicated(from: c_int, outcome: Outcome) -> c_int {
    if outcome >= 0 && outcome != from.into() {
        with(|wrap| wrap.descriptors.duplicate(from, fd_of(outcome)));
    }
    answer_int(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: no memory is involved.
    duplicated(fd, unsafe { sys!(SYS_dup, fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: no memory is involved.
    duplicated(from, unsafe { sys!(SYS_dup2, from, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    duplicated(from, unsafe { sys!(SYS_dup3, from, to, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: as the program has called us.
    let outcome = unsafe { sys!(SYS_fcntl, fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, outcome),
        _ => answer_int(outcome),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { fcntl(fd, command, argument) }
}
