//! Connections of file systems (`/dev/fuse`) in a child that has not executed its program yet.
//!
//! A fork copies the descriptors of its parent, and here the parent is the server of file systems. The kernel ends a
//! connection when the last copy of its descriptor is closed. Between fork and exec the child looks into these file
//! systems (chdir, and the file of the program); if the server died meanwhile, the child would wait for ever for an
//! answer, on a connection that its own copy keeps open.

use std::{
    ffi::CStr,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd},
};

use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, fstat, major, minor, openat};

/// The device's numbers (Documentation/admin-guide/devices.txt of the kernel).
const FUSE: (u32, u32) = (10, 229);

/// Names that are read at a time.
const NAMES: usize = 4096;

/// Closes the copies. It is called between fork and exec, and allocates nothing.
///
/// # Errors
/// If `/proc` cannot be read.
pub(crate) fn close_copies() -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, c"/proc/self/fd", flags, Mode::empty())?;
    let mut names = [MaybeUninit::uninit(); NAMES];
    let mut entries = RawDir::new(directory.as_fd(), &mut names);
    while let Some(entry) = entries.next() {
        let number = number(entry?.file_name()).filter(|fd| *fd != directory.as_raw_fd());
        if let Some(number) = number.filter(|fd| is_connection(*fd)) {
            // SAFETY: its owner in this process's memory, a copy of the parent's, is never used or dropped: what follows is an
            // exec or an exit.
            unsafe { rustix::io::close(number) };
        }
    }
    Ok(())
}

/// `.` and `..` are no numbers.
fn number(name: &CStr) -> Option<RawFd> {
    name.to_str().ok()?.parse().ok()
}

fn is_connection(number: RawFd) -> bool {
    // SAFETY: it is looked at only; if it were closed, that is an error.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    fstat(file).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && (major(found.st_rdev), minor(found.st_rdev)) == FUSE
    })
}
