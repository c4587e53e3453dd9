//! The preloaded library as an anonymous file, which disappears with the last descriptor.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd, BorrowedFd},
};

use north_abi::layout::{LIBRARY_FD, VARIABLE, VERSION};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

const LIBRARY_BYTES: &[u8] = include_bytes!(env!("OUTLIVE_WRAP_LIBRARY"));

/// The library, for a server to inherit.
#[derive(Debug)]
pub struct Library(File);

impl Library {
    /// A file with the library, sealed against changes.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("outlive-wrap", flags)?);
        file.write_all(LIBRARY_BYTES)?;
        // `F_SEAL_WRITE` fails with `EBUSY` while the kernel still holds a page that was just written. No process has
        // mapped the file yet, so the seal against future writes covers all writes.
        let no_writes = SealFlags::FUTURE_WRITE;
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | no_writes;
        fcntl_add_seals(&file, seals)?;
        Ok(Self(file))
    }

    /// Environment variables with which a program loads the library, inherited as [`LIBRARY_FD`].
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use rustix::fs::{FallocateFlags, fallocate, ftruncate};
    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use super::*;

    #[test]
    fn library_file_is_sealed() {
        let Library(file) = Library::new().expect("there is memory");
        assert!(file.write_at(b"x", 0).is_err(), "a write");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(fallocate(&file, flags, 0, 4096).is_err(), "a hole");
        for length in [0, LIBRARY_BYTES.len() as u64 + 1] {
            assert!(ftruncate(&file, length).is_err(), "{length} bytes");
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a free address, which is never used.
        let mapped = unsafe {
            mmap(
                std::ptr::null_mut(),
                4096,
                access,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        assert!(mapped.is_err(), "a mapping");
        let mut bytes = vec![0; LIBRARY_BYTES.len()];
        file.read_exact_at(&mut bytes, 0).expect("it can be read");
        assert!(bytes == LIBRARY_BYTES, "it is what was built");
    }
}
