//! The preloaded library, as a file that only exists while somebody has it open.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use wrap_abi::layout::LIBRARY_FD;

const BYTES: &[u8] = include_bytes!(env!("OUTLIVE_WRAP_LIBRARY"));

/// The library, to be inherited by a server.
#[derive(Debug)]
pub struct Library(File);

impl Library {
    /// A file with the library in it, which nobody can change.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("outlive-wrap", flags)?);
        file.write_all(BYTES)?;
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&file, seals)?;
        Ok(Self(file))
    }

    /// What `LD_PRELOAD` is to be.
    #[must_use]
    pub fn path() -> String {
        format!("/proc/self/fd/{LIBRARY_FD}")
    }
}

impl AsFd for Library {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
