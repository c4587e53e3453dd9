//! System calls by number, and limits that a program sets for itself.

use core::mem::MaybeUninit;

use libc::{c_int, c_long, c_ulong};

use super::{failed, kind, other_threads::check_listener, processes::fork_by, refuse};
use crate::{
    descriptors::kind_of,
    errno::{answer, answer_int},
    sys::{self, Outcome},
    wrap::{self, Wrap},
};

// Declared with the optional arguments: a caller with fewer arguments leaves those registers undefined.

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    let arguments = [first, second, third, fourth, fifth, sixth];
    let perform = || -> Outcome {
        // SAFETY: as the program has called us.
        unsafe { sys::raw(number, arguments) }
    };
    if !wrap::is_wrapped() {
        if wrap::is_helper() {
            if number == libc::SYS_io_uring_setup {
                return answer(failed(libc::ENOSYS)) as c_long;
            }
            check_thread(number, first);
        }
        return answer(perform()) as c_long;
    }
    match number {
        // For instance in new namespaces, which the record does not need.
        libc::SYS_fork => return fork_by(perform).into(),
        libc::SYS_clone if first & CLONE_SHARED_FLAGS == 0 && second == 0 => {
            return fork_by(perform).into();
        }
        libc::SYS_clone if first & CLONE_SHARED_FLAGS == 0 => refuse_clone(),
        // SAFETY: the program's own structure, if the pointer is valid.
        libc::SYS_clone3 if unsafe { flags_of(first, second) } & CLONE_SHARED_FLAGS == 0 => {
            refuse_clone()
        }
        libc::SYS_vfork => refuse_clone(),
        libc::SYS_seccomp => refuse_sandbox(),
        libc::SYS_exit_group => drop(wrap::with(Wrap::record_exit)),
        // I/O of io_uring is invisible to the shim: libraries work without io_uring.
        libc::SYS_io_uring_setup => return answer(failed(libc::ENOSYS)) as c_long,
        _ if reads_or_writes(number)
            && c_int::try_from(first).is_ok_and(|fd| kind_of(fd).is_stream()) =>
        {
            refuse(&[b"the server reads or writes connections with syscall()"]);
        }
        _ => {}
    }
    answer(perform()) as c_long
}

fn reads_or_writes(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendfile
    )
}

/// Another thread does that to this descriptor: as by the functions.
fn check_thread(number: c_long, first: usize) {
    let Ok(fd) = c_int::try_from(first) else {
        return;
    };
    match number {
        libc::SYS_listen => check_listener(fd, "listen"),
        libc::SYS_accept | libc::SYS_accept4 => check_listener(fd, "accept"),
        _ if reads_or_writes(number) => drop(kind(fd, "syscall")),
        _ => {}
    }
}

const CLONE_SHARED_FLAGS: usize = libc::CLONE_VM as usize;

/// The first field of `struct clone_args`.
///
/// # Safety
/// The program vouches for the structure, as to the kernel.
unsafe fn flags_of(at: usize, length: usize) -> usize {
    if length < size_of::<u64>() {
        return CLONE_SHARED_FLAGS; // the kernel refuses the call
    }
    let at: *const MaybeUninit<u64> = core::ptr::with_exposed_provenance(at);
    // SAFETY: by the caller.
    unsafe { at.read_unaligned().assume_init() as usize }
}

#[cold]
fn refuse_clone() -> ! {
    refuse(&[b"the server starts processes with clone()"]);
}

/// A system call that is forbidden to the program is forbidden to the shim, too.
#[cold]
fn refuse_sandbox() -> ! {
    refuse(&[b"the server forbids system calls that the library needs (seccomp)"]);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    if option == libc::PR_SET_SECCOMP && wrap::is_wrapped() {
        refuse_sandbox();
    }
    // SAFETY: as the program has called us.
    answer_int(unsafe { sys::sys!(SYS_prctl, option, second, third, fourth, fifth) })
}
