//! Reads from regular files, and writes to regular files.
//!
//! A replay reads again with the recorded length, and compares a hash of the bytes. For a file that is open for
//! writing, too, the record has the bytes. A replay does not write again: the file has the writes of the dead
//! incarnation. Only the last write before the end of the record may be missing: a write at a position is repeated,
//! and an append is completed from the present end of the file.

use libc::{
    AT_FDCWD, F_DUPFD_CLOEXEC, F_GETFL, O_ACCMODE, O_CLOEXEC, O_RDONLY, O_RDWR, SEEK_CUR, SEEK_SET,
    c_int, c_void, iovec, off_t, ssize_t,
};
use north_abi::{Call, Header, Record, layout::Failure};

use super::{
    files::fd_of,
    kind,
    opening::identity,
    reading::{gather, scatter, total, with_file_read},
    writing::{hash, with_file_written},
};
use crate::{
    descriptors::{Backing, Kind},
    errno::answer,
    messages::Decimal,
    sys::{self, Outcome, bytes, sys},
    wrap::Wrap,
};

/// Bytes of a file that are compared at a time.
const BLOCK: usize = 4096;

/// A hash of the first `length` bytes.
fn sum(pieces: &[iovec], mut length: usize) -> u64 {
    let mut state = 0;
    for piece in pieces {
        let part = piece.iov_len.min(length);
        // SAFETY: the program's, and filled in.
        state = hash(state, unsafe { bytes(piece.iov_base, part) });
        length -= part;
    }
    state
}

/// A read or write, at a place or where the descriptor stands.
fn at_place(
    numbers: [i64; 2],
    fd: c_int,
    at: usize,
    length: usize,
    offset: Option<off_t>,
) -> Outcome {
    let (number, place) = match offset {
        None => (numbers[0], 0),
        Some(place) => (numbers[1], place as usize),
    };
    // SAFETY: the program's own memory, or ours.
    unsafe { sys::raw(number, [fd as usize, at, length, place, 0, 0]) }
}

const READ: [i64; 2] = [libc::SYS_read, libc::SYS_pread64];
const WRITE: [i64; 2] = [libc::SYS_write, libc::SYS_pwrite64];

/// Reads or writes bytes `from..to` of the pieces. `false`: not all of the bytes.
fn whole(
    numbers: [i64; 2],
    fd: c_int,
    pieces: &[iovec],
    offset: Option<off_t>,
    [from, to]: [usize; 2],
) -> bool {
    let mut begins = 0;
    for piece in pieces {
        let ends = begins + piece.iov_len;
        let mut at = from.max(begins);
        while at < to.min(ends) {
            let address = piece.iov_base.addr() + (at - begins);
            let place = offset.map(|offset| offset + (at - from) as off_t);
            match at_place(numbers, fd, address, to.min(ends) - at, place) {
                done if done > 0 => at += done.cast_unsigned() as usize,
                interrupted if interrupted == super::failed(libc::EINTR) => {}
                _ => return false,
            }
        }
        begins = ends;
    }
    true
}

/// Opens the file again for reading: the program's descriptor may be for writing only.
fn readable(fd: c_int) -> Outcome {
    // SAFETY: no memory is involved.
    let flags = unsafe { sys!(SYS_fcntl, fd, F_GETFL) };
    if flags >= 0 && flags & Outcome::from(O_ACCMODE) == Outcome::from(O_RDWR) {
        // SAFETY: no memory is involved.
        return unsafe { sys!(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0) };
    }
    const PREFIX: &[u8] = b"/proc/self/fd/";
    let number = Decimal::new(u64::from(fd.cast_unsigned()));
    let mut path = [0u8; PREFIX.len() + 21];
    path[..PREFIX.len()].copy_from_slice(PREFIX);
    let digits = number.as_bytes();
    path[PREFIX.len()..][..digits.len()].copy_from_slice(digits);
    // SAFETY: a string: the last byte stays zero.
    unsafe { sys!(SYS_openat, AT_FDCWD, path.as_ptr(), O_RDONLY | O_CLOEXEC) }
}

/// Whether the file has these bytes at this position.
fn is_there(fd: c_int, pieces: &[iovec], mut place: u64, mut length: usize) -> bool {
    let mut block = [0u8; BLOCK];
    for piece in pieces {
        // SAFETY: the program passed the pieces for writing.
        let part = unsafe { bytes(piece.iov_base, piece.iov_len.min(length)) };
        for wanted in part.chunks(BLOCK) {
            let (at, size) = (block.as_mut_ptr(), wanted.len());
            // SAFETY: into our own block.
            let read = unsafe { sys!(SYS_pread64, fd, at, size, place) };
            if read != size as Outcome || block[..size] != *wanted {
                return false;
            }
            place += size as u64;
        }
        length -= part.len();
    }
    true
}

impl Wrap {
    pub(super) fn read_file(
        &mut self,
        fd: c_int,
        pieces: &[iovec],
        offset: Option<off_t>,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        if self.descriptors.get(fd).is_in_place {
            return self.read_in_place(fd, pieces, offset, perform);
        }
        let replayed = self.replayed(Call::File, fd, |record| {
            let sum = record.payload.try_into().map(u64::from_le_bytes);
            (record.outcome, sum.unwrap_or(0))
        });
        let Some((outcome, then)) = replayed else {
            let outcome = perform();
            let length = usize::try_from(outcome).unwrap_or(0);
            let sum = sum(pieces, length).to_le_bytes();
            self.record(&Record {
                call: Call::File,
                fd: fd.cast_unsigned(),
                outcome,
                payload: if length == 0 { &[] } else { &sum },
            });
            return outcome;
        };
        let length = usize::try_from(outcome).unwrap_or(0);
        if length > total(pieces) {
            self.fail(Failure::OtherLength, Call::File, Some(Call::File));
        }
        if length > 0
            && !(whole(READ, fd, pieces, offset, [0, length]) && sum(pieces, length) == then)
        {
            self.fail(Failure::OtherFile, Call::File, Some(Call::File));
        }
        outcome
    }

    /// The bytes are in the record.
    fn read_in_place(
        &mut self,
        fd: c_int,
        pieces: &[iovec],
        offset: Option<off_t>,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let replayed = self.replayed(Call::File, fd, |record| {
            // SAFETY: the pieces are the program's, and the program asked for this read.
            unsafe { scatter(pieces, record.payload) };
            record.outcome
        });
        let Some(outcome) = replayed else {
            let outcome = perform();
            let header = Header {
                call: Call::File,
                fd: fd.cast_unsigned(),
                outcome,
                length: usize::try_from(outcome).unwrap_or(0),
            };
            // SAFETY: the kernel has just filled the pieces to this length.
            self.append(header, |room| unsafe { gather(pieces, room) });
            return outcome;
        };
        if outcome > total(pieces) as Outcome {
            self.fail(Failure::OtherLength, Call::File, Some(Call::File));
        }
        if outcome > 0 && offset.is_none() {
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_lseek, fd, outcome, SEEK_CUR) };
        }
        outcome
    }

    pub(super) fn write_file(
        &mut self,
        fd: c_int,
        pieces: &[iovec],
        offset: Option<off_t>,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let has_ended = self.is_replay && !self.stream.is_replay();
        let Some(outcome) = self.replayed_write(fd, total(pieces)) else {
            self.commit_effect();
            let outcome = perform();
            self.record_write(fd, total(pieces), outcome);
            self.has_appended(fd, outcome);
            return outcome;
        };
        let length = usize::try_from(outcome).unwrap_or(0);
        let file = self.descriptors.get(fd);
        let is_done = match file.backing {
            Backing::Remade => whole(WRITE, fd, pieces, offset, [0, length]),
            Backing::Written if has_ended && file.appends => self.finish(fd, pieces),
            Backing::Written if has_ended => whole(WRITE, fd, pieces, offset, [0, length]),
            _ => {
                if offset.is_none() {
                    // SAFETY: no memory is involved.
                    unsafe { sys!(SYS_lseek, fd, length, SEEK_CUR) };
                }
                true
            }
        };
        if !is_done {
            self.fail(Failure::OtherFile, Call::Write, Some(Call::Write));
        }
        self.has_replayed_append(fd, length);
        outcome
    }

    /// Completes the last append of the dead incarnation.
    fn finish(&mut self, fd: c_int, pieces: &[iovec]) -> bool {
        let end = self.descriptors.get(fd).end;
        let Some(now) = identity(fd).map(|now| now.size) else {
            return false;
        };
        let length = total(pieces);
        let has = |from: u64, length: usize| {
            let file = readable(fd);
            let is_there = length == 0 || is_there(fd_of(file), pieces, from, length);
            // SAFETY: the descriptor is ours.
            unsafe { sys!(SYS_close, file) };
            is_there
        };
        let there = match now.checked_sub(end) {
            Some(beyond) => {
                let there = usize::try_from(beyond).unwrap_or(length).min(length);
                if !has(end, there) {
                    return false;
                }
                there
            }
            // Another program has cut the file off, as in a log rotation: the file ends with these bytes, or lacks
            // all of them.
            None => match now.checked_sub(length as u64) {
                Some(from) if has(from, length) => length,
                _ => 0,
            },
        };
        whole(WRITE, fd, pieces, None, [there, length])
    }

    /// Records the end of the file after an append, if another program has appended, too.
    fn has_appended(&mut self, fd: c_int, outcome: Outcome) {
        let file = self.descriptors.get(fd);
        if !file.appends || outcome <= 0 {
            return;
        }
        // SAFETY: no memory is involved.
        let end = unsafe { sys!(SYS_lseek, fd, 0, SEEK_CUR) };
        if end != file.end.cast_signed() + outcome {
            self.record(&Record {
                call: Call::Moved,
                fd: fd.cast_unsigned(),
                outcome: end,
                payload: &[],
            });
        }
        if let Some(entry) = self.descriptors.entry(fd) {
            entry.end = end.cast_unsigned();
        }
    }

    /// The program chooses whether writes to a file append.
    pub(super) fn may_append(&mut self, fd: c_int, appends: bool) {
        let Some(entry) = self
            .descriptors
            .entry(fd)
            .filter(|entry| entry.kind == Kind::File)
        else {
            return;
        };
        if appends && !entry.appends {
            entry.end = 0; // unknown: the next write records the end
        }
        entry.appends = appends;
    }

    fn has_replayed_append(&mut self, fd: c_int, length: usize) {
        let file = self.descriptors.get(fd);
        if !file.appends || length == 0 {
            return;
        }
        let mut end = file.end + length as u64;
        let moved = match self.stream.peek() {
            Some(Ok((record, size)))
                if record.call == Call::Moved && record.fd == fd.cast_unsigned() =>
            {
                Some((record.outcome, size))
            }
            _ => None,
        };
        if let Some((to, size)) = moved {
            self.advance(size);
            end = to.cast_unsigned();
        }
        // SAFETY: no memory is involved.
        unsafe { sys!(SYS_lseek, fd, end, SEEK_SET) };
        if let Some(entry) = self.descriptors.entry(fd) {
            entry.end = end;
        }
    }

    /// Whether this replay repeats writes to the file.
    pub(super) fn replays_write(&self, fd: c_int) -> bool {
        self.descriptors.get(fd).backing == Backing::Remade
    }
}

fn piece(at: *const c_void, length: usize) -> [iovec; 1] {
    [iovec {
        iov_base: at.cast_mut(),
        iov_len: length,
    }]
}

fn read_at(fd: c_int, pieces: &[iovec], offset: off_t, perform: impl Fn() -> Outcome) -> ssize_t {
    if kind(fd, "pread") != Kind::File {
        return answer(perform());
    }
    with_file_read(fd, pieces, Some(offset), perform)
}

fn write_at(fd: c_int, pieces: &[iovec], offset: off_t, perform: impl Fn() -> Outcome) -> ssize_t {
    if kind(fd, "pwrite") != Kind::File {
        return answer(perform());
    }
    with_file_written(fd, pieces, Some(offset), perform)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    offset: off_t,
) -> ssize_t {
    read_at(fd, &piece(buffer, length), offset, || {
        at_place(READ, fd, buffer.addr(), length, Some(offset))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    offset: off_t,
) -> ssize_t {
    write_at(fd, &piece(buffer, length), offset, || {
        at_place(WRITE, fd, buffer.addr(), length, Some(offset))
    })
}

/// # Safety
/// The program vouches for the pieces.
unsafe fn pieces<'a>(all: *const iovec, count: c_int) -> &'a [iovec] {
    // SAFETY: by the caller.
    unsafe { core::slice::from_raw_parts(all, usize::try_from(count).unwrap_or(0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv(fd: c_int, all: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys!(SYS_preadv, fd, all, count, offset, 0) };
    // SAFETY: as the program has called us.
    read_at(fd, unsafe { pieces(all, count) }, offset, perform)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev(fd: c_int, all: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys!(SYS_pwritev, fd, all, count, offset, 0) };
    // SAFETY: as the program has called us.
    write_at(fd, unsafe { pieces(all, count) }, offset, perform)
}

/// Other names for the same.
macro_rules! same {
    ($($name:ident($($argument:ident: $type:ty),*) = $as:ident($($given:expr),*);)*) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> ssize_t {
            // SAFETY: as the program has called us.
            unsafe { $as($($given),*) }
        })*
    };
}

same! {
    pread64(fd: c_int, buffer: *mut c_void, length: usize, offset: off_t) = pread(fd, buffer, length, offset);
    __pread_chk(fd: c_int, buffer: *mut c_void, length: usize, offset: off_t, _room: usize) = pread(fd, buffer, length, offset);
    __pread64_chk(fd: c_int, buffer: *mut c_void, length: usize, offset: off_t, _room: usize) = pread(fd, buffer, length, offset);
    pwrite64(fd: c_int, buffer: *const c_void, length: usize, offset: off_t) = pwrite(fd, buffer, length, offset);
    preadv64(fd: c_int, all: *const iovec, count: c_int, offset: off_t) = preadv(fd, all, count, offset);
    pwritev64(fd: c_int, all: *const iovec, count: c_int, offset: off_t) = pwritev(fd, all, count, offset);
}
