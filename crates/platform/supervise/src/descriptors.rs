//! Descriptors that we have inherited, and that what we start inherits.

use std::{
    fs, io,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
};

/// Each descriptor that a program started by us would inherit, but for the standard streams, leads where `to` does
/// from now on: where they led is not of the namespaces that we are in.
///
/// # Errors
/// They cannot be listed, or replaced.
pub fn redirect_inherited(to: BorrowedFd<'_>) -> io::Result<()> {
    let listed: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in listed.into_iter().filter(|fd| *fd > libc::STDERR_FILENO) {
        // SAFETY: no memory is involved. One that is closed by now, such as the list's, has no flags.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
            continue;
        }
        // SAFETY: no memory is involved. Nobody in this process refers to it: all that Rust opens is closed on exec.
        if unsafe { libc::dup2(to.as_raw_fd(), fd) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
