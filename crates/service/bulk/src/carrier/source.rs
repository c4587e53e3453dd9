//! Where the bytes of a transfer come from.

use std::{fs::File, io, os::unix::fs::FileExt};

/// The bytes of a transfer.
pub trait Source: Send {
    /// Bytes in all.
    fn size(&self) -> u64;

    /// Reads the bytes from a position on.
    ///
    /// # Errors
    /// The source cannot be read, or has become shorter.
    fn read(&mut self, position: u64, out: &mut [u8]) -> io::Result<()>;
}

/// A file that does not change while it is sent.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    size: u64,
}

impl FileSource {
    /// A file or a device with so many bytes.
    #[must_use]
    pub const fn of_size(file: File, size: u64) -> Self {
        Self { file, size }
    }
}

impl Source for FileSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, position: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, position)
    }
}

/// Bytes in memory.
#[derive(Debug)]
pub struct MemorySource(pub Vec<u8>);

impl Source for MemorySource {
    fn size(&self) -> u64 {
        u64::try_from(self.0.len()).unwrap_or(u64::MAX)
    }

    fn read(&mut self, position: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(position).unwrap_or(usize::MAX);
        let end = start.saturating_add(out.len());
        let bytes = self.0.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}
