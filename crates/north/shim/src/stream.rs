//! The stream of this process: read in a replay, then appended to.
//!
//! Only a piece of the memory file is mapped at a time, and the server's own limits on memory stay valid.

use core::{ptr, sync::atomic::Ordering};

use libc::{FUTEX_WAIT, MAP_POPULATE, MAP_SHARED, PROT_READ, PROT_WRITE};
use north_abi::{
    DecodeError, HEADER_MAX, Header, Record,
    layout::{FILE_FD, Page, Process, STREAM_MAX, stream_offset},
};

use crate::{
    places,
    sys::{bytes, bytes_mut, sys},
};

/// Bytes of the first mapping, and of later ones. A child may record little.
const FIRST_MAPPING_BYTES: u64 = 64 << 10;
const MAPPING_BYTES: u64 = 512 << 10;
const PAGE_SIZE: u64 = 4096;

/// Why recording stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamError {
    /// The file cannot be mapped.
    NoMemory,
    /// The stream has its largest length, or no memory is left.
    Full,
}

/// The stream of a process.
pub(crate) struct Stream {
    page: &'static Page,
    entry: &'static Process,
    number: u32,
    window: *mut libc::c_void,
    /// Which part of the stream is mapped.
    start: u64,
    length: u64,
    /// Position of the next record to read or write.
    at: u64,
    /// The replay ends here.
    replay_end: u64,
    /// The process stops after the record that ends here; 0: nowhere.
    pause_at: u64,
}

impl Stream {
    /// The stream of the process with this number.
    pub(crate) fn new(page: &'static Page, entry: &'static Process, number: u32) -> Self {
        Self {
            page,
            entry,
            number,
            window: ptr::null_mut(),
            start: 0,
            length: 0,
            at: 0,
            replay_end: entry.replay_end.load(Ordering::Acquire),
            pause_at: page.pause_at.load(Ordering::Acquire),
        }
    }

    /// The process was restored from an image, and the page is another page.
    pub(crate) fn resume(&mut self) {
        self.replay_end = self.entry.replay_end.load(Ordering::Acquire);
        self.pause_at = self.page.pause_at.load(Ordering::Acquire);
    }

    /// Unmaps the memory file until the next access.
    pub(crate) fn unmap(&mut self) {
        if self.length > 0 {
            // SAFETY: our mapping, and all references have ended.
            unsafe { sys!(SYS_munmap, self.window, self.length) };
        }
        (self.start, self.length) = (0, 0);
    }

    /// Whether records are left to replay. While another host still makes the record, this function waits for the
    /// answer.
    #[inline]
    pub(crate) fn is_replay(&mut self) -> bool {
        self.at < self.replay_end || self.await_more()
    }

    #[cold]
    fn await_more(&mut self) -> bool {
        loop {
            // In this order: the supervisor appends the last records before the end of the replica.
            let turn = self.page.follow.load(Ordering::Acquire);
            self.replay_end = self.entry.replay_end.load(Ordering::Acquire);
            if self.at < self.replay_end || turn == 0 {
                return self.at < self.replay_end;
            }
            // SAFETY: an address that stays; a signal, or another number by now, only makes us look again.
            unsafe { sys!(SYS_futex, self.page.follow.as_ptr(), FUTEX_WAIT, turn, 0) };
        }
    }

    /// Position of the next record.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// Output is about to leave that depends on the records up to here.
    #[inline]
    pub(crate) fn record_output(&self) {
        self.entry.said.store(self.at, Ordering::Relaxed);
    }

    /// Output has left that depends on the records up to `at`.
    #[inline]
    pub(crate) fn record_ack(&self, at: u64) {
        self.entry.said.fetch_max(at, Ordering::Relaxed);
    }

    /// Maps `length` bytes from `at` on.
    fn map(&mut self, at: u64, length: u64) -> Result<*mut libc::c_void, StreamError> {
        let end = at.checked_add(length).ok_or(StreamError::Full)?;
        if at < self.start || end > self.start + self.length {
            self.map_anew(at, end)?;
        }
        let offset = usize::try_from(at - self.start).map_err(|_| StreamError::Full)?;
        // SAFETY: within the window, as was just made sure.
        Ok(unsafe { self.window.byte_add(offset) })
    }

    #[cold]
    fn map_anew(&mut self, at: u64, end: u64) -> Result<(), StreamError> {
        if end > STREAM_MAX {
            return Err(StreamError::Full);
        }
        let start = at / PAGE_SIZE * PAGE_SIZE;
        let least = (2 * self.length).clamp(FIRST_MAPPING_BYTES, MAPPING_BYTES);
        let length = (end - start).next_multiple_of(PAGE_SIZE).max(least);
        self.unmap();
        let offset = stream_offset(self.number) + start;
        // A write to a page without memory would kill the server.
        // SAFETY: no memory is involved.
        if unsafe { sys!(SYS_fallocate, FILE_FD, 0, offset, length) } < 0 {
            return Err(StreamError::Full);
        }
        // A mapping of the usual size will be used: a single fault instead of a fault for each page.
        let all_at_once = if length <= MAPPING_BYTES {
            MAP_POPULATE
        } else {
            0
        };
        // SAFETY: a new mapping of our own file.
        let window = unsafe {
            let access = PROT_READ | PROT_WRITE;
            let how = MAP_SHARED | all_at_once;
            sys!(
                SYS_mmap,
                places::STREAM,
                length,
                access,
                how,
                FILE_FD,
                offset
            )
        };
        if window < 0 {
            return Err(StreamError::NoMemory);
        }
        self.window =
            ptr::with_exposed_provenance_mut(window.cast_unsigned().try_into().unwrap_or(0));
        self.start = start;
        self.length = length;
        Ok(())
    }

    /// Appends a record. `fill` gets memory of exactly the payload's length.
    #[inline]
    pub(crate) fn append(
        &mut self,
        header: Header,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), StreamError> {
        let mut front = [0; HEADER_MAX];
        let length = header.write(&mut front);
        let whole = length + header.length;
        let room = self.map(self.at, whole as u64)?;
        // SAFETY: mapped, and no other thread or process writes there.
        let room = unsafe { bytes_mut(room, whole) };
        let (head, payload) = room.split_at_mut(length);
        head.copy_from_slice(&front[..length]);
        fill(payload);
        self.at += whole as u64;
        self.replay_end = self.at;
        // After a death from here on the stream still ends with a whole record.
        self.entry.head.store(self.at, Ordering::Release);
        Ok(())
    }

    /// The next record of the replay, without moving on; `None` at the end.
    pub(crate) fn peek(&mut self) -> Option<Result<(Record<'_>, u64), DecodeError>> {
        if !self.is_replay() {
            return None;
        }
        let rest = self.replay_end - self.at;
        let mut seen = rest.min(64 << 10);
        loop {
            let Ok(from) = self.map(self.at, seen) else {
                return Some(Err(DecodeError::CutOff));
            };
            let Ok(length) = usize::try_from(seen) else {
                return Some(Err(DecodeError::BadNumber));
            };
            // SAFETY: mapped; an earlier incarnation wrote the bytes, and has ended.
            match Record::read(unsafe { bytes(from, length) }) {
                Err(DecodeError::CutOff) if seen < rest => seen = rest.min(seen * 8),
                Err(error) => return Some(Err(error)),
                Ok((record, length)) => return Some(Ok((record, length as u64))),
            }
        }
    }

    /// Passes the record of this length. Returns whether the process must stop here.
    #[must_use]
    pub(crate) fn advance(&mut self, length: u64) -> bool {
        self.at += length;
        self.entry.replayed.store(self.at, Ordering::Relaxed);
        self.at == self.pause_at
    }
}
