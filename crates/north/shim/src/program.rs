//! Identity of the program of this process: a record is valid for a single program.

use core::ffi::CStr;

use libc::{AT_FDCWD, O_CLOEXEC, O_RDONLY, SEEK_END, c_int};
use north_abi::layout::VERSION;

use crate::{calls::writing::hash, sys::sys};

/// Compared bytes of a program's file: the start of an ELF file has the build id and the offset of the section
/// headers.
const ELF_PREFIX_BYTES: usize = 64 << 10;

/// The record's [`VERSION`], the file's size, a hash of the file's start, and a hash of the command line. The record
/// of a process's start has these 32 bytes. All parts are valid on other hosts.
pub(crate) struct Program([u8; 32]);

/// The record is of another program, or another version of the shim made the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Other {
    Version,
    Program,
}

impl Program {
    /// The running program. `None`: there is no `/proc`.
    pub(crate) fn running() -> Option<Self> {
        let file = open(c"/proc/self/exe")?;
        let beginning = contents(file, ELF_PREFIX_BYTES);
        // SAFETY: no memory is involved; the descriptor is ours.
        let size = unsafe {
            let size = sys!(SYS_lseek, file, 0, SEEK_END);
            sys!(SYS_close, file);
            size
        };
        let command = open(c"/proc/self/cmdline")?;
        let line = contents(command, usize::MAX);
        // SAFETY: the descriptor is ours.
        unsafe { sys!(SYS_close, command) };
        let words = [VERSION.into(), size.cast_unsigned(), beginning?, line?];
        let mut bytes = [0; 32];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = u64::to_le_bytes(word);
        }
        Some(Self(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Compares this program with the recorded program.
    pub(crate) fn compare(&self, recorded: &[u8]) -> Result<(), Other> {
        let version = |bytes: &[u8]| bytes.first_chunk().copied().map(u64::from_le_bytes);
        if recorded == self.0 {
            Ok(())
        } else if recorded.len() == self.0.len() && version(recorded) == version(&self.0) {
            Err(Other::Program)
        } else {
            Err(Other::Version)
        }
    }
}

fn open(path: &CStr) -> Option<c_int> {
    // SAFETY: a string.
    let fd = unsafe { sys!(SYS_openat, AT_FDCWD, path.as_ptr(), O_RDONLY | O_CLOEXEC) };
    c_int::try_from(fd).ok().filter(|fd| *fd >= 0)
}

/// A hash of at most `most` bytes.
fn contents(fd: c_int, most: usize) -> Option<u64> {
    let (mut state, mut left) = (0, most);
    let mut block = [0u8; 4096];
    while left > 0 {
        let room = block.len().min(left);
        // SAFETY: into our own block.
        let read = unsafe { sys!(SYS_read, fd, block.as_mut_ptr(), room) };
        let length = usize::try_from(read).ok()?;
        if length == 0 {
            break;
        }
        state = hash(state, block.get(..length)?);
        left -= length;
    }
    Some(state)
}
