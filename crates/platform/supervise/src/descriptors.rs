//! Inherited descriptors, which a started program inherits, too.

use std::{
    fs, io,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
};

/// Redirects to `to` each descriptor that a started program would inherit, except the standard streams. The old targets
/// do not belong to the namespaces of this process.
///
/// # Errors
/// The descriptors cannot be listed, or not be replaced.
pub fn redirect_inherited(to: BorrowedFd<'_>) -> io::Result<()> {
    let listed: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in listed.into_iter().filter(|fd| *fd > libc::STDERR_FILENO) {
        // SAFETY: no memory is involved. A descriptor that is closed by now, such as the descriptor of the list, has no
        // flags.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
            continue;
        }
        // SAFETY: no memory is involved. No code in this process refers to the descriptor: Rust opens all files with
        // close-on-exec.
        if unsafe { libc::dup2(to.as_raw_fd(), fd) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
