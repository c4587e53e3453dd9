//! Bytes that leave.

use libc::{c_int, c_void, iovec, msghdr, off_t, sockaddr, socklen_t, ssize_t};
use wrap_abi::{Call, Record, layout::Failure};

use super::{
    kind,
    opening::identity,
    reading::{is_ready, total},
};
use crate::{
    beside::no_helper_in_a_rehearsal,
    descriptors::{Kind, kind_of},
    errno::answer,
    live,
    signals::blocking,
    sys::{self, Outcome, bytes, sys},
    wrap::{Wrap, is_wrapped, restarting, with},
};

/// A hash of the outstream is recorded after so many writes. What is said between the last one and the end of the record is compared
/// with nothing, and may be what a client gets: a replay that says something longer would go on in the middle of it.
const HASH_EVERY: u32 = 1;

/// What has left no record since the last one, whatever that was: how many writes, say, which tells which of several in a row a
/// record is about.
#[derive(Default)]
pub(crate) struct Unrecorded {
    /// Where the record stood.
    at: u64,
    count: u32,
}

impl Unrecorded {
    pub(crate) fn before(&self, position: u64) -> u32 {
        if self.at == position { self.count } else { 0 }
    }

    pub(crate) fn add(&mut self, position: u64) {
        self.count = self.before(position).saturating_add(1);
        self.at = position;
    }

    /// How many, as a record says it: nothing if there are none.
    fn payload(count: u32, room: &mut [u8; 4]) -> &[u8] {
        *room = count.to_le_bytes();
        if count == 0 { &[] } else { room }
    }
}

impl Wrap {
    /// The program writes to a connection, or sends a datagram. What was not taken whole leaves a record.
    fn send(
        &mut self,
        fd: c_int,
        pieces: &[iovec],
        flags: c_int,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let whole = total(pieces);
        self.may_be_new(fd);
        self.serves(fd);
        let outcome = match self.replayed_write(fd, whole) {
            Some(outcome) => outcome,
            None if self.hold(fd, pieces, flags) => self.wrote_whole(whole as Outcome),
            None => {
                self.commit();
                let outcome = perform();
                self.record_write(fd, whole, outcome);
                outcome
            }
        };
        let mut left = usize::try_from(outcome).unwrap_or(0);
        for piece in pieces {
            let length = piece.iov_len.min(left);
            // SAFETY: the program has given them to be written.
            self.said(fd, unsafe { bytes(piece.iov_base, length) });
            left -= length;
        }
        self.hash_outstream();
        outcome
    }

    /// The program writes to what is no client's: a log, a pipe. What an earlier life has written there is written.
    fn write_elsewhere(
        &mut self,
        fd: c_int,
        whole: usize,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        self.crosses(fd);
        let Some(outcome) = self.replayed_write(fd, whole) else {
            self.commit_effect();
            let outcome = perform();
            if outcome == super::failed(libc::EPIPE) {
                self.is_left_alone(fd);
            }
            self.record_write(fd, whole, outcome);
            return outcome;
        };
        if outcome > 0 && self.leads_to_kin(fd) {
            if self.await_kin(|| is_ready(fd, libc::POLLOUT)) && !is_ready(fd, libc::POLLERR) {
                perform();
            }
        } else if outcome > 0 && self.descriptors.get(fd).is_paired() {
            // What was not read when the record ends is to be there.
            if is_ready(fd, libc::POLLOUT) {
                perform();
            }
        } else if outcome > 0 && is_of_the_kernel(fd) {
            perform(); // what it tells the kernel of itself, it tells it in each life
        } else if outcome > 0 {
            // Of no effect but on a file that somebody else has opened, and that is not at its end.
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_lseek, fd, outcome, libc::SEEK_CUR) };
        }
        outcome
    }

    /// What the program says to another server in a replay, that one has: but if the record has ended, it may not have all, and
    /// what follows is kept.
    pub(super) fn may_be_new(&mut self, fd: c_int) {
        let has_ended = self.is_replay && self.stream.peek().is_none();
        if has_ended
            && let Some(connection) = self.descriptors.connection(fd)
            && connection.is_outgoing()
        {
            connection.received = connection.received.min(connection.outstream);
        }
    }

    /// What became of this write; `None`: it is to be made. Where the record says nothing, or has ended, it was
    /// taken whole: of one that was not, whose record was lost in the crash, the rest is kept for the client.
    pub(super) fn replayed_write(&mut self, fd: c_int, whole: usize) -> Option<Outcome> {
        if !self.is_replay {
            return None;
        }
        let whole = whole as i64;
        let before = self.unrecorded.before(self.stream.position());
        let (is_this, outcome) = match self.stream.peek() {
            None => return Some(self.wrote_whole(whole)),
            Some(Ok((record, _))) => (
                record.call == Call::Write
                    && record.fd == fd.cast_unsigned()
                    && record.payload == Unrecorded::payload(before, &mut [0; 4]),
                record.outcome,
            ),
            Some(Err(_)) => self.fail(Failure::BadRecord, Call::Write, None),
        };
        if !is_this {
            return Some(self.wrote_whole(whole));
        }
        if outcome > whole {
            self.fail(Failure::OtherLength, Call::Write, Some(Call::Write));
        }
        self.replayed(Call::Write, fd, |record| record.outcome)
    }

    pub(super) fn record_write(&mut self, fd: c_int, whole: usize, outcome: Outcome) {
        if outcome == whole as i64 {
            self.wrote_whole(outcome);
        } else {
            self.record_outcome(fd, outcome);
        }
    }

    /// A write that leaves no record.
    fn wrote_whole(&mut self, whole: Outcome) -> Outcome {
        self.unrecorded.add(self.stream.position());
        whole
    }

    /// One that does.
    pub(super) fn record_outcome(&mut self, fd: c_int, outcome: Outcome) {
        let before = self.unrecorded.before(self.stream.position());
        self.record(&Record {
            call: Call::Write,
            fd: fd.cast_unsigned(),
            outcome,
            payload: Unrecorded::payload(before, &mut [0; 4]),
        });
    }

    /// It has written this.
    pub(super) fn said(&mut self, fd: c_int, written: &[u8]) {
        self.outstream = hash(self.outstream, written);
        let is_replay = self.is_replay;
        let Some(connection) = self.descriptors.connection(fd) else {
            return;
        };
        if is_replay {
            live::said(connection, written);
        }
        connection.outstream += written.len() as u64;
    }

    /// What was said is recorded, as a hash, and compared with what is said again. Writes leave no
    /// records, so how many there were since the last hash says which one this is.
    fn hash_outstream(&mut self) {
        let hash = self.outstream.to_le_bytes();
        self.unhashed += 1;
        if self.is_replay {
            let agrees = match self.stream.peek() {
                Some(Ok((record, _))) if record.call == Call::Outstream => {
                    if record.outcome > self.unhashed.into() {
                        return;
                    }
                    record.outcome == self.unhashed.into() && record.payload == hash
                }
                _ => return,
            };
            if !agrees {
                self.fail(Failure::OtherOutput, Call::Outstream, Some(Call::Outstream));
            }
            self.replayed(Call::Outstream, 0, |_| ());
            self.unhashed = 0;
        } else if self.unhashed >= HASH_EVERY {
            self.record(&Record {
                call: Call::Outstream,
                fd: 0,
                outcome: self.unhashed.into(),
                payload: &hash,
            });
            self.unhashed = 0;
        }
    }
}

/// Is it a file below `/proc` or `/sys`?
fn is_of_the_kernel(fd: c_int) -> bool {
    kind_of(fd) == Kind::Input && identity(fd).is_some()
}

/// Eight bytes at a time; nobody who could choose the bytes gains anything.
pub(crate) fn hash(state: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |state: u64, word: u64| (state ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let (words, rest) = bytes.as_chunks();
    let state = words
        .iter()
        .fold(state, |state, word| mix(state, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(state, u64::from_le_bytes(last) ^ bytes.len() as u64)
}

/// To a regular file.
pub(super) fn with_file_written(
    fd: c_int,
    pieces: &[iovec],
    offset: Option<off_t>,
    perform: impl Fn() -> Outcome,
) -> ssize_t {
    no_helper_in_a_rehearsal();
    let outcome = with(|wrap| wrap.write_file(fd, pieces, offset, &perform));
    answer(outcome.unwrap_or_else(perform))
}

fn send_pieces(
    name: &'static str,
    fd: c_int,
    pieces: &[iovec],
    flags: c_int,
    number: i64,
    arguments: [usize; 6],
) -> ssize_t {
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys::raw(number, arguments) };
    let kind = kind(fd, name);
    if kind == Kind::File {
        return with_file_written(fd, pieces, None, perform);
    }
    if matches!(kind, Kind::Other | Kind::Listener | Kind::Input) {
        let outcome = with(|wrap| wrap.write_elsewhere(fd, total(pieces), perform));
        return answer(outcome.unwrap_or_else(perform));
    }
    // SAFETY: as the program has called us.
    let may_sleep = || unsafe { blocking(number, arguments) };
    let outcome = restarting(|wrap| wrap.send(fd, pieces, flags, may_sleep));
    answer(outcome.unwrap_or_else(perform))
}

fn piece(buffer: *const c_void, length: usize) -> [iovec; 1] {
    [iovec {
        iov_base: buffer.cast_mut(),
        iov_len: length,
    }]
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, length: usize) -> ssize_t {
    send_pieces(
        "write",
        fd,
        &piece(buffer, length),
        0,
        libc::SYS_write,
        [fd as usize, buffer.addr(), length, 0, 0, 0],
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as the program has called us.
    let all = unsafe { core::slice::from_raw_parts(pieces, usize::try_from(count).unwrap_or(0)) };
    send_pieces(
        "writev",
        fd,
        all,
        0,
        libc::SYS_writev,
        [fd as usize, pieces.addr(), count as usize, 0, 0, 0],
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn send(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as the program has called us.
    unsafe { sendto(fd, buffer, length, flags, core::ptr::null(), 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    to: *const sockaddr,
    size: socklen_t,
) -> ssize_t {
    if connects(flags) {
        return answer(super::failed(libc::EOPNOTSUPP));
    }
    let arguments = [
        fd as usize,
        buffer.addr(),
        length,
        flags as usize,
        to.addr(),
        size as usize,
    ];
    send_pieces(
        "sendto",
        fd,
        &piece(buffer, length),
        flags,
        libc::SYS_sendto,
        arguments,
    )
}

/// A word that opens its connection (TCP Fast Open): kernels may be told not to know it.
fn connects(flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0 && is_wrapped()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if connects(flags) {
        return answer(super::failed(libc::EOPNOTSUPP));
    }
    // SAFETY: as the program has called us.
    let pieces = unsafe { core::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen) };
    send_pieces(
        "sendmsg",
        fd,
        pieces,
        flags,
        libc::SYS_sendmsg,
        [fd as usize, message.addr(), flags as usize, 0, 0, 0],
    )
}
