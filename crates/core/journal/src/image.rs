//! Images of a process, as bytes that nobody here looks into. One that was torn is none.

use crate::len64;
use crate::stream::{CHUNK_BYTES, Stream};

/// Why an image, or a part of one, is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// There is no room for it.
    #[error("there is no room for an image of the server (--limit-total, here and there)")]
    NoRoom,
    /// A part of it is missing, or there is too much of it.
    #[error("a part of the image is missing")]
    Torn,
    /// It is of another record than the one that is kept.
    #[error("the image is of another record")]
    OtherRecord,
    /// It says of itself what no image has: no number, or more before it than a record can have.
    #[error("there can be no such image")]
    Impossible,
}

/// One that is on its way.
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

    /// What one of so many bytes takes when it is whole.
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

    /// Tells how much of it is there.
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

/// One that has the place of the beginning of a record.
#[derive(Debug)]
pub struct Image {
    number: u64,
    base: u64,
    processes: u32,
    bytes: Stream,
    held: u64,
}

impl Image {
    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// How large it is, bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.bytes.length()
    }

    /// So much of the first process's stream it has the place of, bytes.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// So many processes had been begun.
    #[must_use]
    pub const fn processes(&self) -> u32 {
        self.processes
    }

    /// So many bytes of it at the most, fewer at its end.
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
