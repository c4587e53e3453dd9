//! The preloaded library, as a file that only exists while somebody has it open.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use wrap_abi::layout::{LIBRARY_FD, VARIABLE, VERSION};

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

    /// The environment in which a program takes it, which inherits it as [`LIBRARY_FD`].
    #[must_use]
    pub fn variables() -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", format!("/proc/self/fd/{LIBRARY_FD}")),
            (VARIABLE, VERSION.to_string()),
        ]
    }
}

impl AsFd for Library {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
