//! Bytes that leave.

use libc::{c_int, c_void, iovec, msghdr, off_t, sockaddr, socklen_t, ssize_t};
use north_abi::{Call, Header, Record, layout::Failure};

use super::{
    kind,
    opening::identity,
    reading::{is_ready, total},
};
use crate::{
    descriptors::{Kind, kind_of},
    errno::answer,
    live,
    shared_state_guard::refuse_helper_in_shadow_replay,
    signals::blocking,
    sys::{self, Outcome, bytes, sys},
    wrap::{Wrap, is_wrapped, restarting, with},
};

/// Most bytes, and most pieces, of one write to a connection.
const WRITE_BYTES_MAX: usize = 256 << 10;
const WRITE_PIECES_MAX: usize = 64;

const EMPTY_PIECE: iovec = iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// Number of events without a record since the last record, such as complete writes: identifies the event of a later
/// record among several in a row.
#[derive(Default)]
pub(crate) struct Unrecorded {
    /// Position of the last record.
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

    /// The number as a payload: empty for 0.
    fn payload(count: u32, room: &mut [u8; 4]) -> &[u8] {
        *room = count.to_le_bytes();
        if count == 0 { &[] } else { room }
    }
}

impl Wrap {
    /// The program writes to a connection, or sends a datagram. A large write is made in parts, because a program
    /// with much output may offer the whole rest again and again.
    fn send(
        &mut self,
        fd: c_int,
        pieces: &[iovec],
        flags: c_int,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let whole = total(pieces);
        self.serves(fd);
        if whole <= WRITE_BYTES_MAX || self.is_of_datagrams(fd) {
            return self.send_part(fd, pieces, flags, perform);
        }
        let mut sent = 0;
        while sent < whole {
            let mut room = [EMPTY_PIECE; WRITE_PIECES_MAX];
            let part = part_of(pieces, sent, &mut room);
            let outcome = self.send_part(fd, part, flags, || send_now(fd, part, flags));
            let Ok(length) = usize::try_from(outcome) else {
                return if sent == 0 { outcome } else { sent as Outcome };
            };
            sent += length;
            if length < total(part) {
                break;
            }
        }
        sent as Outcome
    }

    /// A record of the output hash comes before the write; an incomplete write leaves another record.
    fn send_part(
        &mut self,
        fd: c_int,
        pieces: &[iovec],
        flags: c_int,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let whole = total(pieces);
        // SAFETY: the program passed the pieces for writing.
        self.outstream = unsafe { hash_of(self.outstream, fd, pieces) };
        let outcome = if self.is_output_replayed() && !self.is_last_datagram(fd) {
            self.may_be_new(fd);
            self.replay_write(fd, whole)
        } else {
            self.record_output_hash();
            if self.defer(fd, pieces, flags) {
                self.wrote_whole(whole as Outcome)
            } else {
                self.commit();
                let outcome = perform();
                self.record_write(fd, whole, outcome);
                outcome
            }
        };
        let mut left = usize::try_from(outcome).unwrap_or(0);
        for piece in pieces {
            let length = piece.iov_len.min(left);
            // SAFETY: the program passed the pieces for writing.
            self.said(fd, unsafe { bytes(piece.iov_base, length) });
            left -= length;
        }
        outcome
    }

    /// Records the output hash before the write. From here on the earlier reads count as answered.
    pub(super) fn record_output_hash(&mut self) {
        self.append(Header::outstream(self.outstream), |_| {});
        self.stream.record_output();
    }

    fn is_of_datagrams(&self, fd: c_int) -> bool {
        self.descriptors.get(fd).kind == Kind::Datagrams
    }

    /// The last datagram before the death is sent again, because no other process would send the datagram.
    fn is_last_datagram(&mut self, fd: c_int) -> bool {
        self.is_of_datagrams(fd) && !self.is_replay()
    }

    /// Whether the dead incarnation came to this write. The record of the hash was made before the write: at the end
    /// of the record the peer does not have the output.
    pub(super) fn is_output_replayed(&mut self) -> bool {
        if !self.is_replay() {
            return false;
        }
        let note = Header::outstream(self.outstream);
        let length = match self.stream.peek() {
            None => return false,
            Some(Err(_)) => self.fail(Failure::BadRecord, Call::Outstream, None),
            Some(Ok((record, _))) if record.call != Call::Outstream => {
                let found = record.call;
                self.fail(Failure::OtherCall, Call::Outstream, Some(found))
            }
            Some(Ok((record, length))) if record.header() == note => length,
            Some(Ok(_)) => self.fail(Failure::OtherOutput, Call::Outstream, Some(Call::Outstream)),
        };
        self.advance(length);
        true
    }

    /// The outcome of a replayed write. Without a record the write was complete, or the crash came first: then the
    /// output that the client lacks is kept for the client.
    fn replay_write(&mut self, fd: c_int, whole: usize) -> Outcome {
        let replayed = self.replayed_write(fd, whole);
        replayed.unwrap_or_else(|| self.wrote_whole(whole as Outcome))
    }

    /// The program writes to a descriptor without a client: a log, a pipe. Earlier incarnations have made these
    /// writes.
    fn write_elsewhere(
        &mut self,
        fd: c_int,
        pieces: &[iovec],
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let whole = total(pieces);
        self.use_channel(fd);
        let Some(outcome) = self.replayed_write(fd, whole) else {
            self.before_writing(fd);
            self.commit_ipc(fd);
            let outcome = perform();
            if whole > 0 {
                self.poll_crash_after(fd, outcome);
            }
            self.record_write(fd, whole, outcome);
            return outcome;
        };
        if self.is_ipc(fd) {
            self.replay_ipc_write(fd, pieces, outcome);
        } else if outcome > 0 && self.is_shared_channel(fd) {
            if self.await_service_replay(|_| is_ready(fd, libc::POLLOUT))
                && !is_ready(fd, libc::POLLERR)
            {
                perform();
            }
        } else if outcome > 0 && self.descriptors.get(fd).is_paired() {
            // Bytes that are unread at the end of the record must be in the channel.
            if is_ready(fd, libc::POLLOUT) {
                perform();
            }
        } else if outcome > 0 && is_of_the_kernel(fd) {
            perform(); // each incarnation makes its own settings in the kernel
        } else if outcome > 0 {
            // Has an effect only on a file that another program has opened, before the end of the file.
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_lseek, fd, outcome, libc::SEEK_CUR) };
        }
        outcome
    }

    /// In a replay the other server has the output. At the end of the record the other server may lack a part, and
    /// later output is kept.
    pub(super) fn may_be_new(&mut self, fd: c_int) {
        let has_ended = self.is_replay && self.stream.peek().is_none();
        if has_ended
            && let Some(connection) = self.descriptors.connection(fd)
            && connection.is_outgoing()
        {
            connection.received = connection.received.min(connection.outstream);
        }
    }

    /// The recorded outcome of this write; `None`: the write is to be made. Without a record, or at the end of the
    /// record, the write was complete: if the crash lost the record of an incomplete write, the rest is kept for the
    /// client.
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

    /// Records the outcome of a write.
    pub(super) fn record_outcome(&mut self, fd: c_int, outcome: Outcome) {
        let before = self.unrecorded.before(self.stream.position());
        self.record(&Record {
            call: Call::Write,
            fd: fd.cast_unsigned(),
            outcome,
            payload: Unrecorded::payload(before, &mut [0; 4]),
        });
    }

    /// The program has written these bytes.
    fn said(&mut self, fd: c_int, written: &[u8]) {
        let is_replay = self.is_replay;
        let Some(connection) = self.descriptors.connection(fd) else {
            return;
        };
        if is_replay {
            live::said(connection, written);
        }
        connection.outstream += written.len() as u64;
    }
}

/// Hash of the outstream, with the next write and its descriptor.
///
/// # Safety
/// The pieces are readable.
unsafe fn hash_of(before: u64, fd: c_int, pieces: &[iovec]) -> u64 {
    let to = hash(before, &fd.to_le_bytes());
    pieces.iter().fold(to, |state, piece| {
        // SAFETY: by the caller.
        hash(state, unsafe { bytes(piece.iov_base, piece.iov_len) })
    })
}

/// The pieces of the next part, after `behind` bytes.
fn part_of<'a>(
    pieces: &[iovec],
    mut behind: usize,
    room: &'a mut [iovec; WRITE_PIECES_MAX],
) -> &'a [iovec] {
    let (mut count, mut left) = (0, WRITE_BYTES_MAX);
    for piece in pieces {
        let skipped = behind.min(piece.iov_len);
        behind -= skipped;
        let length = (piece.iov_len - skipped).min(left);
        if length == 0 {
            continue;
        }
        room[count] = iovec {
            // SAFETY: within the piece.
            iov_base: unsafe { piece.iov_base.byte_add(skipped) },
            iov_len: length,
        };
        (count, left) = (count + 1, left - length);
        if count == WRITE_PIECES_MAX || left == 0 {
            break;
        }
    }
    &room[..count]
}

fn send_now(fd: c_int, pieces: &[iovec], flags: c_int) -> Outcome {
    // SAFETY: all zeros is an empty message.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len();
    let at = (&raw const message).addr();
    // SAFETY: the message is on our stack, and the program passed the pieces for writing.
    unsafe {
        blocking(
            libc::SYS_sendmsg,
            [fd as usize, at, flags as usize, 0, 0, 0],
        )
    }
}

/// Whether the descriptor is a file below `/proc` or `/sys`.
fn is_of_the_kernel(fd: c_int) -> bool {
    kind_of(fd) == Kind::Input && identity(fd).is_some()
}

/// A fast hash, eight bytes at a time. No adversary gains by a collision.
pub(crate) fn hash(state: u64, bytes: &[u8]) -> u64 {
    const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |state: u64, word: u64| (state ^ word).wrapping_mul(HASH_FACTOR).rotate_left(29);
    let (words, rest) = bytes.as_chunks();
    let state = words
        .iter()
        .fold(state, |state, word| mix(state, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(state, u64::from_le_bytes(last) ^ bytes.len() as u64)
}

/// Writes to a regular file.
pub(super) fn with_file_written(
    fd: c_int,
    pieces: &[iovec],
    offset: Option<off_t>,
    perform: impl Fn() -> Outcome,
) -> ssize_t {
    refuse_helper_in_shadow_replay();
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
        let outcome = with(|wrap| wrap.write_elsewhere(fd, pieces, perform));
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

/// Whether the write opens the connection (TCP Fast Open): the shim answers like a kernel without this feature.
fn connects(flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0 && is_wrapped()
}

/// Sends a message with a connection, within a session; `None`: another message.
///
/// # Safety
/// As `sendmsg(2)`.
unsafe fn send_beside(
    fd: c_int,
    message: &msghdr,
    pieces: &[iovec],
    flags: c_int,
) -> Option<ssize_t> {
    if with(|wrap| wrap.channel_maker(fd).is_some()) != Some(true) {
        return None;
    }
    // SAFETY: by the caller.
    let given = unsafe { super::passing::beside(message) }?;
    let at = (&raw const *message).addr();
    // SAFETY: by the caller.
    let perform = || unsafe {
        sys::raw(
            libc::SYS_sendmsg,
            [fd as usize, at, flags as usize, 0, 0, 0],
        )
    };
    let outcome = with(|wrap| wrap.pass(fd, message, total(pieces), given, perform));
    Some(answer(outcome.unwrap_or_else(perform)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if connects(flags) {
        return answer(super::failed(libc::EOPNOTSUPP));
    }
    // SAFETY: as the program has called us.
    let pieces = unsafe { core::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen) };
    // SAFETY: as the program has called us.
    if let Some(outcome) = unsafe { send_beside(fd, &*message, pieces, flags) } {
        return outcome;
    }
    send_pieces(
        "sendmsg",
        fd,
        pieces,
        flags,
        libc::SYS_sendmsg,
        [fd as usize, message.addr(), flags as usize, 0, 0, 0],
    )
}
