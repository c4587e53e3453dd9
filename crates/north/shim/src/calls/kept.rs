//! Content of files that the server has read and replaced.
//!
//! A replay reads the file again, and would find the replacement. The content therefore goes into the record before
//! the replacement ([`Call::Kept`]), and a replay that does not find the file reads the record.

use core::{ffi::CStr, sync::atomic::Ordering};

use libc::{O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, c_int};
use north_abi::{
    Call, Header, Identity, Record,
    handover::Message,
    layout::{FILE_FD, stream_offset},
};

use super::{effects::Made, files::fd_of, opening::identity};
use crate::{
    inodes::Inodes,
    live::{ask_for_file, tell},
    sys::sys,
    wrap::Wrap,
};

/// Read files that are tracked. With more, any removed file may have been read.
const READ_FILES_MAX: usize = 1024;
/// Copies of files in a record.
const FILE_COPIES_MAX: usize = 1024;
/// Bytes of a file in a record, and bytes of a stream that are searched at a time.
const COPY_CHUNK_BYTES: usize = 16 << 10;
const SEARCH_WINDOW_BYTES: usize = 64 << 10;

/// Place of a copy.
#[derive(Clone, Copy, Default)]
struct Copied {
    of: Identity,
    /// The stream with the copy, and the offset of the copy.
    process: u32,
    at: u64,
}

/// The files that were read, and their copies in the record.
pub(crate) struct Kept {
    read: Inodes<READ_FILES_MAX>,
    has_read_more: bool,
    copies: [Copied; FILE_COPIES_MAX],
    found: usize,
    is_searched: bool,
    /// Files that the supervisor has, by [`Identity::key`].
    given: Inodes<READ_FILES_MAX>,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            read: Inodes::default(),
            has_read_more: false,
            copies: [Copied::default(); FILE_COPIES_MAX],
            found: 0,
            is_searched: false,
            given: Inodes::default(),
        }
    }
}

impl Kept {
    /// The program reads this file.
    pub(super) fn is_read(&mut self, inode: u64) {
        self.has_read_more |= !self.read.add(inode);
    }

    /// The record has another start: copies must be searched again.
    pub(crate) fn forget_copies(&mut self) {
        (self.found, self.is_searched) = (0, false);
    }

    fn has(&self, inode: u64) -> bool {
        self.read.has(inode) || self.has_read_more && inode != 0
    }

    /// The best copy of this file: with the same identity, or else of a file that has grown since. An inode may
    /// belong to another file before and after: of the copies that are not older the first counts.
    fn best(&self, of: &Identity) -> Option<Copied> {
        let all = &self.copies[..self.found];
        let exact = all.iter().find(|one| one.of == *of);
        let later = all
            .iter()
            .filter(|one| one.of.inode == of.inode && one.of.modified >= of.modified);
        let first = later.min_by_key(|one| one.of.modified);
        let grown = first.filter(|one| one.of.size >= of.size);
        exact.or(grown).copied()
    }
}

impl Wrap {
    /// The program reads this file: the supervisor gets a descriptor, and a replay finds the file whatever happens to
    /// the name.
    pub(super) fn give(&mut self, fd: c_int, of: &Identity) {
        let file = of.key();
        if self.kept.given.has(file) || !self.kept.given.add(file) {
            return;
        }
        let process = self.process;
        tell(&Message::Reads { process, file }, Some(fd));
    }

    /// The descriptor of the file that the supervisor has.
    pub(super) fn given(&self, of: &Identity) -> Option<c_int> {
        let (process, file) = (self.process, of.key());
        let given = ask_for_file(&Message::Wants { process, file })?;
        if identity(given).as_ref() == Some(of) {
            return Some(given);
        }
        // SAFETY: the descriptor is ours.
        unsafe { sys!(SYS_close, given) };
        None
    }

    /// The name of this file is about to go, or the file is about to be emptied: if the file was read, the content
    /// goes into the record.
    pub(super) fn keep(&mut self, directory: c_int, path: &CStr) {
        while self.is_replay() {
            match self.stream.peek() {
                Some(Ok((record, length))) if record.call == Call::Kept => {
                    self.advance(length);
                }
                _ => return,
            }
        }
        if self.is_off() || !self.kept.has(Made::inode(directory, path).number()) {
            return;
        }
        let flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
        // SAFETY: a string.
        let file = unsafe { sys!(SYS_openat, directory, path.as_ptr(), flags) };
        if file < 0 {
            return; // an unreadable file was not read
        }
        if let Some(of) = identity(fd_of(file)) {
            self.copy(fd_of(file), &of);
        }
        // SAFETY: the descriptor is ours.
        unsafe { sys!(SYS_close, file) };
        // Another host may see the file disappear.
        self.commit_replayed();
    }

    fn copy(&mut self, file: c_int, of: &Identity) {
        let mut room = [0; COPY_CHUNK_BYTES];
        let mut at = 0;
        loop {
            // SAFETY: room on our stack.
            let length = unsafe { sys!(SYS_pread64, file, room.as_mut_ptr(), room.len(), at) };
            let piece = room.get(..usize::try_from(length).unwrap_or(0));
            let piece = piece.unwrap_or_default();
            if piece.is_empty() && at > 0 {
                return;
            }
            let header = Header {
                call: Call::Kept,
                fd: 0,
                outcome: at,
                length: Identity::SIZE + piece.len(),
            };
            self.append(header, |payload| {
                let (front, rest) = payload.split_at_mut(Identity::SIZE);
                front.copy_from_slice(&of.to_bytes());
                rest.copy_from_slice(piece);
            });
            if piece.is_empty() {
                return;
            }
            at += length;
        }
    }

    /// Writes the content at the time of open(2) into an empty file. `false`: the record lacks the content.
    pub(super) fn write_kept(&mut self, of: &Identity, empty: c_int) -> bool {
        if !self.kept.is_searched {
            self.kept.is_searched = true;
            self.search();
        }
        let Some(best) = self.kept.best(of) else {
            return false;
        };
        let mut copied = 0;
        self.each(best.process, best.at, |record, _| {
            let Some((of, piece)) = piece_of(record).filter(|(of, _)| *of == best.of) else {
                return false;
            };
            if record.outcome == 0 {
                copied = 0; // a copy that a death has interrupted begins again
            }
            // SAFETY: the bytes exist, and the file is ours.
            let put = unsafe { sys!(SYS_pwrite64, empty, piece.as_ptr(), piece.len(), copied) };
            let fits = record.outcome == copied && usize::try_from(put) == Ok(piece.len());
            copied += if fits { put } else { 0 };
            fits && copied.cast_unsigned() < of.size
        });
        copied.cast_unsigned() >= of.size
    }

    /// Finds the copies in the streams of all processes.
    #[cold]
    fn search(&mut self) {
        let count = self.page.next_process.load(Ordering::Acquire);
        let (mut copies, mut found) = (self.kept.copies, 0);
        for process in 0..count {
            let base = self.page.processes.0.get(process as usize);
            let base = base.map_or(0, |process| process.base.load(Ordering::Acquire));
            self.each(process, base, |record, at| {
                let piece = piece_of(record).filter(|_| record.outcome == 0);
                if let Some(((of, _), place)) = piece.zip(copies.get_mut(found)) {
                    *place = Copied { of, process, at };
                    found += 1;
                }
                true
            });
        }
        (self.kept.copies, self.kept.found) = (copies, found);
    }

    /// Calls `f` with the records of a process from this offset, until `f` returns true.
    fn each(&self, process: u32, from: u64, mut f: impl FnMut(&Record<'_>, u64) -> bool) {
        let entry = &self.page.processes.0[process as usize];
        let end = entry.replay_end.load(Ordering::Acquire);
        let mut room = [0; SEARCH_WINDOW_BYTES];
        let mut at = from;
        while at < end {
            let most = (room.len() as u64).min(end - at);
            let place = stream_offset(process) + at;
            // SAFETY: room on our stack.
            let read = unsafe { sys!(SYS_pread64, FILE_FD, room.as_mut_ptr(), most, place) };
            let bytes = &room[..usize::try_from(read).unwrap_or(0)];
            let mut passed = 0;
            while let Ok((record, length)) = Record::read(&bytes[passed..]) {
                if !f(&record, at + passed as u64) {
                    return;
                }
                passed += length;
            }
            at += match Header::read(bytes) {
                _ if passed > 0 => passed,
                Ok((header, length)) => length + header.length, // longer than the window
                Err(_) => return,
            } as u64;
        }
    }
}

/// The file that a record has a piece of, and the piece.
fn piece_of<'a>(record: &Record<'a>) -> Option<(Identity, &'a [u8])> {
    let (of, piece) = record.payload.split_at_checked(Identity::SIZE)?;
    let of = Identity::from_bytes(of).filter(|_| record.call == Call::Kept)?;
    Some((of, piece))
}
