//! What a program shares with others without reading or writing: locks on files, and memory that is a file's. Both are as they are
//! in each life; a rehearsal may have neither.

use libc::{MAP_ANONYMOUS, O_ACCMODE, O_RDWR, c_int, off_t};
use wrap_abi::layout::Failure;

use crate::{
    beside::not_in_a_rehearsal,
    descriptors::{Kind, kind_of},
    errno::answer_int,
    real::real,
    sys::sys,
};

/// The program is about to have this in its memory, shared with others.
pub(super) fn look_at_mapping(flags: c_int, fd: c_int) {
    if flags & MAP_ANONYMOUS != 0 || kind_of(fd) != Kind::File {
        return;
    }
    // SAFETY: no memory is involved.
    let opened = unsafe { sys!(SYS_fcntl, fd, libc::F_GETFL) };
    if opened & i64::from(O_ACCMODE) == i64::from(O_RDWR) {
        not_in_a_rehearsal(Failure::SharedMemory);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn flock(fd: c_int, operation: c_int) -> c_int {
    not_in_a_rehearsal(Failure::FileLock);
    // SAFETY: no memory is involved.
    answer_int(unsafe { sys!(SYS_flock, fd, operation) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lockf(fd: c_int, command: c_int, length: off_t) -> c_int {
    not_in_a_rehearsal(Failure::FileLock);
    real!(lockf(fd => c_int, command => c_int, length => off_t) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lockf64(fd: c_int, command: c_int, length: off_t) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { lockf(fd, command, length) }
}
