//! Which program this process runs: a record of one is nothing to another.

use core::mem::MaybeUninit;

use libc::{O_CLOEXEC, O_RDONLY, c_int, stat};

use crate::{calls::writing::hash, sys::sys};

/// The file (device, number, size, time of its last change), and a hash of the command line, as the record of a process's
/// beginning has them.
pub(crate) struct Program([u8; 48]);

impl Program {
    /// The one that runs. `None`: the kernel does not say (no `/proc`).
    pub(crate) fn running() -> Option<Self> {
        let mut file = MaybeUninit::<stat>::zeroed();
        // SAFETY: a string, and room on our stack.
        let outcome = unsafe { sys!(SYS_stat, c"/proc/self/exe".as_ptr(), file.as_mut_ptr()) };
        if outcome < 0 {
            return None;
        }
        // SAFETY: the kernel has filled it in.
        let file = unsafe { file.assume_init() };
        let words = [
            file.st_dev,
            file.st_ino,
            file.st_size.cast_unsigned(),
            file.st_mtime.cast_unsigned(),
            file.st_mtime_nsec.cast_unsigned(),
            command_line()?,
        ];
        let mut bytes = [0; 48];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = u64::to_le_bytes(word);
        }
        Some(Self(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn command_line() -> Option<u64> {
    let path = c"/proc/self/cmdline".as_ptr();
    // SAFETY: a string.
    let fd = unsafe { sys!(SYS_openat, libc::AT_FDCWD, path, O_RDONLY | O_CLOEXEC) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    let mut state = 0;
    let mut block = [0u8; 4096];
    let whole = loop {
        // SAFETY: into our own block.
        let read = unsafe { sys!(SYS_read, fd, block.as_mut_ptr(), block.len()) };
        match usize::try_from(read) {
            Ok(0) => break Some(state),
            Ok(length) => state = hash(state, block.get(..length)?),
            Err(_) => break None,
        }
    };
    // SAFETY: it is ours.
    unsafe { sys!(SYS_close, fd) };
    whole
}
