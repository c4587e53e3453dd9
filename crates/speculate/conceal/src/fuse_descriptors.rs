//! Connections of file systems (`/dev/fuse`) in a child that has not executed the program yet.
//!
//! A fork copies the descriptors of the parent, and here the parent is the server of file systems. The kernel ends a
//! connection when the last copy of the descriptor is closed. Between fork and exec the child looks into these file
//! systems (chdir, and the file of the program). If the server dies meanwhile, the child's own copy keeps the
//! connection open, and the child waits for an answer for ever.

use std::{
    ffi::CStr,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd},
};

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw};

/// The kernel's name for a connection. (Asking for the file's type would be a question to the server of the file system
/// that contains the file.)
const FUSE_LINK_TARGET: &[u8] = b"/dev/fuse";

/// Names that are read at a time.
const NAME_BUFFER_BYTES: usize = 4096;

/// Closes the copies. The child calls this function between fork and exec, and the function allocates nothing.
///
/// # Errors
/// If `/proc` cannot be read.
pub(crate) fn close_copies() -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, c"/proc/self/fd", flags, Mode::empty())?;
    let mut names = [MaybeUninit::uninit(); NAME_BUFFER_BYTES];
    let mut entries = RawDir::new(directory.as_fd(), &mut names);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(number) = number(name).filter(|_| is_connection(directory.as_fd(), name)) {
            // SAFETY: the owner in this process's memory, a copy of the parent's, is never used or dropped: an exec or
            // an exit follows.
            unsafe { rustix::io::close(number) };
        }
    }
    Ok(())
}

/// `.` and `..` are no numbers.
fn number(name: &CStr) -> Option<i32> {
    name.to_str().ok()?.parse().ok()
}

fn is_connection(directory: BorrowedFd<'_>, name: &CStr) -> bool {
    let mut target = [MaybeUninit::uninit(); FUSE_LINK_TARGET.len() + 1];
    readlinkat_raw(directory, name, &mut target).is_ok_and(|(target, _)| target == FUSE_LINK_TARGET)
}
