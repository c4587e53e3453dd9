//! Checkpoint images of a process, as opaque bytes. A torn image is never used.

use crate::len64;
use crate::stream::{CHUNK_BYTES, Stream};

/// Why an image, or a part of an image, is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// There is no memory for the image.
    #[error("there is no room for an image of the server (--limit-total, here and there)")]
    NoRoom,
    /// A part of the image is missing, or there are too many bytes.
    #[error("a part of the image is missing")]
    Torn,
    /// The image belongs to another record.
    #[error("the image is of another record")]
    OtherRecord,
    /// The image has impossible properties: no number, or a base beyond the longest stream.
    #[error("there can be no such image")]
    Impossible,
}

/// An image during the upload.
#[derive(Debug)]
pub(crate) struct Upload {
    number: u64,
    length: u64,
    bytes: Stream,
    held: u64,
}

impl Upload {
    pub(crate) fn new(number: u64, length: u64) -> Self {
        Self {
            number,
            length,
            bytes: Stream::default(),
            held: 0,
        }
    }

    /// Bytes of memory of a whole image of `length` bytes.
    pub(crate) const fn held_in_the_end(length: u64) -> u64 {
        length.saturating_add(len64(CHUNK_BYTES))
    }

    pub(crate) const fn held(&self) -> u64 {
        self.held
    }

    pub(crate) const fn is(&self, number: u64, length: u64) -> bool {
        self.number == number && self.length == length
    }

    pub(crate) const fn is_whole(&self, number: u64) -> bool {
        self.number == number && self.bytes.length() == self.length
    }

    /// Returns the number of bytes that are here.
    pub(crate) fn take(&mut self, from: u64, bytes: &[u8]) -> Result<u64, ImageError> {
        let end = from.checked_add(len64(bytes.len()));
        let fits = end.is_some_and(|end| end <= self.length);
        if from != self.bytes.length() || !fits {
            return Err(ImageError::Torn);
        }
        self.held += self.bytes.append(bytes);
        Ok(self.bytes.length())
    }

    pub(crate) fn commit(self, base: u64, processes: u32) -> Image {
        Image {
            number: self.number,
            base,
            processes,
            bytes: self.bytes,
            held: self.held,
        }
    }
}

/// An image that replaces the beginning of a record.
#[derive(Debug)]
pub struct Image {
    number: u64,
    base: u64,
    processes: u32,
    bytes: Stream,
    held: u64,
}

impl Image {
    /// The number of the image.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The size of the image, bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.bytes.length()
    }

    /// Bytes of the first process's stream that the image replaces.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The number of processes that the server had started.
    #[must_use]
    pub const fn processes(&self) -> u32 {
        self.processes
    }

    /// At most `most` bytes of the image, fewer at the end.
    #[must_use]
    pub fn read(&self, from: u64, most: usize) -> Vec<u8> {
        self.bytes.read(from, most)
    }

    pub(crate) const fn held(&self) -> u64 {
        self.held
    }

    pub(crate) const fn is(&self, number: u64, base: u64) -> bool {
        self.number == number && self.base == base
    }
}
