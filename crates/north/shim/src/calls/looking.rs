//! Properties of files.

use core::ffi::CStr;

use libc::{
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, SEEK_CUR, SEEK_SET, c_char, c_int, c_uint, off_t, stat, statx,
};
use north_abi::{Call, Record};

use super::opening::{named, same};
use crate::{
    descriptors::Kind,
    errno::{answer, answer_int},
    sys::{Outcome, structure, sys},
    wrap::{Wrap, with},
};

impl Wrap {
    /// Data that a call fills in, without trailing zeros.
    fn look(&mut self, name: c_int, room: &mut [u8], perform: impl FnOnce() -> Outcome) -> Outcome {
        let replayed = self.replayed(Call::File, name, |record| {
            let length = record.payload.len().min(room.len());
            if record.outcome >= 0 {
                room.fill(0);
                room[..length].copy_from_slice(&record.payload[..length]);
            }
            record.outcome
        });
        replayed.unwrap_or_else(|| {
            let outcome = perform();
            let last = room.iter().rposition(|byte| *byte != 0 && outcome >= 0);
            self.record(&Record {
                call: Call::File,
                fd: name.cast_unsigned(),
                outcome,
                payload: &room[..last.map_or(0, |last| last + 1)],
            });
            outcome
        })
    }
}

/// # Safety
/// `path` is a string; the call fills `about` in.
unsafe fn look<T>(path: *const c_char, about: *mut T, perform: impl Fn() -> Outcome) -> c_int {
    if path.is_null() {
        return answer_int(perform());
    }
    // SAFETY: by the caller.
    let (name, room) = unsafe { (named(CStr::from_ptr(path)), structure(about)) };
    answer_int(with(|wrap| wrap.look(name, room, &perform)).unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat(
    directory: c_int,
    path: *const c_char,
    about: *mut stat,
    flags: c_int,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        look(path, about, || {
            sys!(SYS_newfstatat, directory, path, about, flags)
        })
    }
}

#[unsafe(export_name = "statx")]
unsafe extern "C" fn statx_(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    about: *mut statx,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        look(path, about, || {
            sys!(SYS_statx, directory, path, flags, mask, about)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(fd: c_int, about: *mut stat) -> c_int {
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys!(SYS_fstat, fd, about) };
    // SAFETY: as the program has called us.
    let room = unsafe { structure(about) };
    answer_int(with(|wrap| wrap.look(fd, room, perform)).unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn faccessat(
    directory: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        look(path, core::ptr::null_mut::<stat>(), || match flags {
            0 => sys!(SYS_faccessat, directory, path, mode),
            flags => sys!(SYS_faccessat2, directory, path, mode, flags),
        })
    }
}

#[unsafe(export_name = "stat")]
unsafe extern "C" fn stat_(path: *const c_char, about: *mut stat) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { fstatat(AT_FDCWD, path, about, 0) }
}

same! {
    stat64(path: *const c_char, about: *mut stat) = fstatat(AT_FDCWD, path, about, 0);
    lstat(path: *const c_char, about: *mut stat) = fstatat(AT_FDCWD, path, about, AT_SYMLINK_NOFOLLOW);
    lstat64(path: *const c_char, about: *mut stat) = lstat(path, about);
    fstat64(fd: c_int, about: *mut stat) = fstat(fd, about);
    fstatat64(directory: c_int, path: *const c_char, about: *mut stat, flags: c_int) = fstatat(directory, path, about, flags);
    access(path: *const c_char, mode: c_int) = faccessat(AT_FDCWD, path, mode, 0);
    euidaccess(path: *const c_char, mode: c_int) = faccessat(AT_FDCWD, path, mode, libc::AT_EACCESS);
    eaccess(path: *const c_char, mode: c_int) = euidaccess(path, mode);
    // Names before version 2.33 of the C library.
    __xstat(_version: c_int, path: *const c_char, about: *mut stat) = fstatat(AT_FDCWD, path, about, 0);
    __xstat64(_version: c_int, path: *const c_char, about: *mut stat) = fstatat(AT_FDCWD, path, about, 0);
    __lxstat(_version: c_int, path: *const c_char, about: *mut stat) = lstat(path, about);
    __lxstat64(_version: c_int, path: *const c_char, about: *mut stat) = lstat(path, about);
    __fxstat(_version: c_int, fd: c_int, about: *mut stat) = fstat(fd, about);
    __fxstat64(_version: c_int, fd: c_int, about: *mut stat) = fstat(fd, about);
}

impl Wrap {
    /// The end of a file, or the next hole, does not come from the program.
    fn seek(&mut self, fd: c_int, perform: impl FnOnce() -> Outcome) -> Outcome {
        let replayed = self.replayed(Call::File, fd, |record| record.outcome);
        let Some(outcome) = replayed else {
            let outcome = perform();
            self.record(&Record {
                call: Call::File,
                fd: fd.cast_unsigned(),
                outcome,
                payload: &[],
            });
            return outcome;
        };
        if outcome >= 0 {
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_lseek, fd, outcome, SEEK_SET) };
        }
        outcome
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: no memory is involved.
    let perform = || unsafe { sys!(SYS_lseek, fd, offset, whence) };
    if matches!(whence, SEEK_SET | SEEK_CUR) || super::kind(fd, "lseek") != Kind::File {
        return answer(perform()) as off_t;
    }
    answer(with(|wrap| wrap.seek(fd, perform)).unwrap_or_else(perform)) as off_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: no memory is involved.
    unsafe { lseek(fd, offset, whence) }
}
