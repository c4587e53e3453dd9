//! Where the bytes of a transfer go.

use std::{
    fs::File,
    io::{self, IoSlice},
};

use rustix::io::pwritev;

/// Takes the payloads of packets, in any order. Nothing is written a second time.
pub trait Sink: Send {
    /// Writes payloads that lie one behind the other.
    ///
    /// # Errors
    /// The bytes cannot be written.
    fn write(&mut self, position: u64, payloads: &mut [IoSlice<'_>]) -> io::Result<()>;
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

/// Memory that grows.
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
}
