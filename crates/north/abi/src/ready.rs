//! Ready descriptors. The outcome of such a record is the length of the payload; the payload ends after the last
//! descriptor.
//!
//! ```text
//! for each:  varint  descriptor * 2, + 1 if the events follow
//!            varint  events; without, they are EPOLLIN (= POLLIN) alone
//! ```

use crate::{VARINT_MAX, varint};

/// `EPOLLIN`, `POLLIN`: data to read, the ordinary case.
const IN: u32 = 1;

/// One ready descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The descriptor, or the place in the caller's array.
    pub fd: u32,
    /// Events as the kernel's bits.
    pub events: u32,
}

/// Writes a list of ready descriptors.
#[derive(Debug)]
pub struct ReadyWriter<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> ReadyWriter<'a> {
    /// Most bytes of one ready descriptor.
    pub const MAX_EACH: usize = 2 * VARINT_MAX;

    /// An empty list at the beginning of `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    /// Adds one ready descriptor. `false`: `out` may be too short.
    #[must_use]
    pub fn push(&mut self, ready: Ready) -> bool {
        if self.out.len() - self.at < Self::MAX_EACH {
            return false;
        }
        let plain = ready.events == IN;
        let number = u64::from(ready.fd) << 1 | u64::from(!plain);
        self.at += varint::write(number, &mut self.out[self.at..]);
        if !plain {
            self.at += varint::write(u64::from(ready.events), &mut self.out[self.at..]);
        }
        true
    }

    /// The list.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        &self.out[..self.at]
    }
}

/// Reads a list. Ends at the first malformed entry.
#[derive(Debug, Clone)]
pub struct ReadyReader<'a>(&'a [u8]);

impl<'a> ReadyReader<'a> {
    /// Reads the payload of the record of an `epoll_wait`.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    fn number(&mut self) -> Option<u64> {
        let (value, length) = varint::read(self.0)?;
        self.0 = &self.0[length..];
        Some(value)
    }
}

impl Iterator for ReadyReader<'_> {
    type Item = Ready;

    fn next(&mut self) -> Option<Ready> {
        let number = self.number()?;
        let fd = u32::try_from(number >> 1).ok()?;
        let events = match number & 1 {
            0 => IN,
            _ => u32::try_from(self.number()?).ok()?,
        };
        Some(Ready { fd, events })
    }
}
