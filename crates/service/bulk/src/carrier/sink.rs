//! Where the bytes of a transfer go.

use std::{
    fs::File,
    io::{self, IoSlice},
    ops::Range,
};

use memmap2::{Advice, MmapMut};
use rustix::io::pwritev;

/// Takes the payloads of packets, in any order. Nothing is written a second time.
pub trait Sink: Send {
    /// Writes payloads that lie one behind the other.
    ///
    /// # Errors
    /// The bytes cannot be written.
    fn write(&mut self, position: u64, payloads: &mut [IoSlice<'_>]) -> io::Result<()>;

    /// The bytes of the whole transfer, if payloads can be received at their final positions.
    fn memory(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// A file.
#[derive(Debug)]
pub struct FileSink(pub File);

impl Sink for FileSink {
    fn write(&mut self, position: u64, mut payloads: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut position = position;
        while !payloads.is_empty() {
            match pwritev(&self.0, payloads, position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    position += u64::try_from(len).unwrap_or(0);
                    IoSlice::advance_slices(&mut payloads, len);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Memory that grows. Payloads are received in their places if it has the size of the transfer from the beginning.
#[derive(Debug, Default)]
pub struct MemorySink(pub Vec<u8>);

impl Sink for MemorySink {
    fn write(&mut self, position: u64, payloads: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut start = usize::try_from(position).map_err(io::Error::other)?;
        for payload in payloads {
            let end = start + payload.len();
            if self.0.len() < end {
                self.0.resize(end, 0);
            }
            self.0[start..end].copy_from_slice(payload);
            start = end;
        }
        Ok(())
    }

    fn memory(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.0)
    }
}

/// A file of the size of the transfer, mapped into memory. No other process shortens the file meanwhile: that is for
/// the owner of the file to forbid, by its permissions.
#[derive(Debug)]
pub struct MappedSink(MmapMut);

impl MappedSink {
    /// Maps the file.
    ///
    /// # Errors
    /// The file is empty, or its file system maps no files.
    pub fn new(file: &File) -> io::Result<Self> {
        map(file).map(Self)
    }

    /// Gets the pages of these bytes now: a page that comes when a packet is received costs more.
    ///
    /// # Errors
    /// No memory, no space in the file system.
    pub fn populate(&self, bytes: Range<usize>) -> io::Result<()> {
        let end = bytes.end.min(self.0.len());
        let len = end.saturating_sub(bytes.start);
        self.0.advise_range(Advice::PopulateWrite, bytes.start, len)
    }
}

impl Sink for MappedSink {
    fn write(&mut self, position: u64, payloads: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut start = usize::try_from(position).map_err(io::Error::other)?;
        for payload in payloads {
            let place = self.0.get_mut(start..start + payload.len());
            let place = place.ok_or(io::ErrorKind::WriteZero)?;
            place.copy_from_slice(payload);
            start += payload.len();
        }
        Ok(())
    }

    fn memory(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.0)
    }
}

#[allow(
    unsafe_code,
    reason = "a mapping is only as good as the file behind it"
)]
fn map(file: &File) -> io::Result<MmapMut> {
    // SAFETY: the bytes of a mapping must not change under a reference. The receiver maps a file that it has created
    // with permissions for itself alone and has locked; no other process of this program opens the file.
    unsafe { MmapMut::map_mut(file) }
}
