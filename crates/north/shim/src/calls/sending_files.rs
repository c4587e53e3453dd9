//! Files that are sent without being read.

use libc::{c_int, off_t, ssize_t};
use north_abi::{Call, layout::Failure};

use super::{kind, writing::hash};
use crate::{
    descriptors::Backing,
    errno::answer,
    live,
    signals::blocking,
    sys::{Outcome, sys},
    wrap::{Wrap, restarting, with},
};

/// Bytes of a file that a replay reads at a time.
const BLOCK: usize = 64 << 10;

/// Most bytes of one send: the last send may be unrecorded, and the client may have any part of the piece.
const PIECE: usize = 1 << 20;

impl Wrap {
    /// Sends bytes of a file, which the program never reads. The number of bytes is always recorded. A replay reads
    /// the bytes that the client may lack from the file.
    fn send_file(&mut self, fd: c_int, file: c_int, offset: *mut off_t, count: usize) -> Outcome {
        self.serves(fd);
        let mut sent = 0;
        loop {
            let piece = PIECE.min(count - sent);
            let outcome = self.send_piece(fd, file, offset, piece);
            let Ok(length) = usize::try_from(outcome) else {
                return if sent == 0 { outcome } else { sent as Outcome };
            };
            sent += length;
            if length < piece || sent == count {
                return sent as Outcome;
            }
        }
    }

    fn send_piece(&mut self, fd: c_int, file: c_int, offset: *mut off_t, count: usize) -> Outcome {
        // SAFETY: as the program has called us.
        let from = unsafe { offset.as_ref() }.copied().unwrap_or(-1);
        let what = [i64::from(fd), i64::from(file), from, count as i64].map(i64::to_le_bytes);
        self.outstream = hash(self.outstream, what.as_flattened());
        if !self.is_output_replayed() {
            self.record_output_hash();
            self.commit();
            let arguments = [fd as usize, file as usize, offset.addr(), count, 0, 0];
            // SAFETY: as the program has called us.
            let outcome = unsafe { blocking(libc::SYS_sendfile, arguments) };
            self.record_outcome(fd, outcome);
            if let (Ok(length), Some(connection)) =
                (u64::try_from(outcome), self.descriptors.connection(fd))
            {
                connection.outstream += length;
            }
            return outcome;
        }
        self.may_be_new(fd);
        if self.stream.peek().is_none() {
            return self.send_last(fd, file, offset, count);
        }
        let outcome = self.replayed(Call::Write, fd, |record| record.outcome);
        let outcome = outcome.unwrap_or(0); // there is a record
        let length = usize::try_from(outcome).unwrap_or(0);
        if length > count {
            self.fail(Failure::OtherLength, Call::Write, Some(Call::Write));
        }
        // SAFETY: as the program has called us.
        let from = unsafe { advance(file, offset, length) };
        if self.replay_sent_file(fd, file, from, length) != length {
            self.fail(Failure::OtherOutput, Call::Write, Some(Call::Write));
        }
        outcome
    }

    /// The record has ended, and the dead incarnation may have been in this call. The client may have a part of the
    /// output, and the rest is sent as well. The next call is new.
    #[cold]
    fn send_last(&mut self, fd: c_int, file: c_int, offset: *mut off_t, count: usize) -> Outcome {
        // SAFETY: as the program has called us.
        let from = unsafe { advance(file, offset, 0) };
        let length = self.replay_sent_file(fd, file, from, count);
        // SAFETY: as the program has called us.
        unsafe { advance(file, offset, length) };
        self.is_replay(); // no more
        self.record_outcome(fd, length as Outcome);
        length as Outcome
    }

    /// Counts these bytes of the file as output, and returns their number.
    fn replay_sent_file(&mut self, fd: c_int, file: c_int, from: off_t, length: usize) -> usize {
        let has_changed = self.descriptors.get(file).backing == Backing::Changed;
        let Some(connection) = self.descriptors.connection(fd) else {
            return length;
        };
        let mut block = [0u8; BLOCK];
        let mut done = 0;
        while done < length {
            let part = (length - done).min(BLOCK);
            let is_known = connection.outstream + part as u64 <= connection.received;
            let mut read = part;
            if !is_known {
                if has_changed {
                    self.fail(Failure::OtherFile, Call::Write, None);
                }
                let at = from + done as off_t;
                // SAFETY: into our own block.
                let outcome = unsafe { sys!(SYS_pread64, file, block.as_mut_ptr(), part, at) };
                read = usize::try_from(outcome).unwrap_or(0);
                live::said(connection, &block[..read]);
            }
            connection.outstream += read as u64;
            done += read;
            if read < part {
                break;
            }
        }
        done
    }
}

/// Advances the program's position in the file by `length`, and returns the position before.
///
/// # Safety
/// As `sendfile(2)`.
unsafe fn advance(file: c_int, offset: *mut off_t, length: usize) -> off_t {
    let length = length as off_t;
    // SAFETY: by the caller.
    unsafe {
        match offset.as_mut() {
            Some(offset) => core::mem::replace(offset, *offset + length),
            None => sys!(SYS_lseek, file, length, libc::SEEK_CUR) - length,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(fd: c_int, file: c_int, offset: *mut off_t, count: usize) -> ssize_t {
    let perform = || {
        // SAFETY: as the program has called us.
        unsafe { sys!(SYS_sendfile, fd, file, offset, count) }
    };
    if !kind(fd, "sendfile").is_stream() {
        return answer(perform());
    }
    // The file may change before the client has the bytes: the program must read the bytes instead.
    if with(|wrap| wrap.descriptors.get(file).is_in_place) == Some(true) {
        return answer(super::failed(libc::EINVAL));
    }
    let outcome = restarting(|wrap| wrap.send_file(fd, file, offset, count));
    answer(outcome.unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(
    fd: c_int,
    file: c_int,
    offset: *mut off_t,
    count: usize,
) -> ssize_t {
    // SAFETY: as the program has called us.
    unsafe { sendfile(fd, file, offset, count) }
}
