//! Bytes that arrive.

use libc::{MSG_PEEK, c_int, c_void, iovec, msghdr, off_t, sockaddr, socklen_t, ssize_t};
use north_abi::{Call, Header};

use super::{datagrams, kind, refuse};
use crate::{
    clock::monotonic,
    descriptors::Kind,
    errno::answer,
    signals::blocking,
    sys::{self, Outcome, bytes, bytes_mut, sys},
    wrap::{Wrap, restarting, with},
};

/// Memory for the bytes of a read.
type Pieces<'a> = &'a [iovec];

/// Copies bytes into the pieces, from the first piece on.
///
/// # Safety
/// The program vouches for the pieces.
pub(super) unsafe fn scatter(pieces: Pieces<'_>, mut from: &[u8]) {
    for piece in pieces {
        let length = piece.iov_len.min(from.len());
        // SAFETY: by the caller.
        unsafe { bytes_mut(piece.iov_base, length) }.copy_from_slice(&from[..length]);
        from = &from[length..];
    }
}

/// The opposite, until `to` is full.
///
/// # Safety
/// As [`scatter`].
pub(crate) unsafe fn gather(pieces: Pieces<'_>, mut to: &mut [u8]) {
    for piece in pieces {
        let length = piece.iov_len.min(to.len());
        let (front, back) = to.split_at_mut(length);
        // SAFETY: by the caller.
        front.copy_from_slice(unsafe { bytes(piece.iov_base, length) });
        to = back;
    }
}

pub(crate) fn total(pieces: Pieces<'_>) -> usize {
    let lengths = pieces.iter().map(|piece| piece.iov_len);
    lengths.fold(0, usize::saturating_add)
}

/// Takes replayed bytes out of a pipe of the process to itself, where the program has written the bytes again. A
/// helper may not have written yet.
fn drain(wrap: &mut Wrap, fd: c_int, length: usize, helpers_write: bool) {
    let mut block = [0u8; 512];
    let mut left = length;
    while left > 0 && (is_ready(fd, libc::POLLIN) || helpers_write && wrap.awaits_helper(fd)) {
        let part = left.min(block.len());
        // SAFETY: into our own block.
        let read = unsafe { sys!(SYS_read, fd, block.as_mut_ptr(), part) };
        match usize::try_from(read) {
            Ok(read) if read > 0 => left = left.saturating_sub(read),
            _ => return,
        }
    }
}

/// Whether the pieces have these bytes at this offset.
///
/// # Safety
/// As [`scatter`].
pub(crate) unsafe fn is_at(pieces: Pieces<'_>, mut place: usize, mut wanted: &[u8]) -> bool {
    for piece in pieces {
        let from = place.min(piece.iov_len);
        let length = wanted.len().min(piece.iov_len - from);
        // SAFETY: by the caller.
        let there = &unsafe { bytes(piece.iov_base, from + length) }[from..];
        let (part, rest) = wanted.split_at(length);
        if there != part {
            return false;
        }
        (wanted, place) = (rest, place - from);
    }
    wanted.is_empty()
}

/// As [`drain`], for a counter (`eventfd`) whose count the program has read at once.
fn drain_counter(wrap: &mut Wrap, fd: c_int, count: u64, helpers_write: bool) {
    let mut left = count;
    while left > 0 && (is_ready(fd, libc::POLLIN) || helpers_write && wrap.awaits_helper(fd)) {
        let mut part = 0_u64;
        // SAFETY: a number of ours.
        let read = unsafe { sys!(SYS_read, fd, &raw mut part, size_of::<u64>()) };
        if read <= 0 {
            return;
        }
        if let Some(beyond) = part.checked_sub(left).filter(|beyond| *beyond > 0) {
            // Helpers have counted further by now than in the dead incarnation: a later read gets the difference.
            // SAFETY: a number of ours.
            unsafe { sys!(SYS_write, fd, &raw const beyond, size_of::<u64>()) };
        }
        left = left.saturating_sub(part);
    }
}

/// Whether a read or a write would not wait.
pub(crate) fn is_ready(fd: c_int, events: i16) -> bool {
    poll(fd, events, 0) == Ok(true)
}

/// As [`is_ready`], after a wait of at most `within` nanoseconds, through any signals.
pub(crate) fn becomes_ready(fd: c_int, events: i16, within: u64) -> bool {
    let until = monotonic().saturating_add(within);
    loop {
        let left = until.saturating_sub(monotonic());
        match poll(fd, events, left) {
            Err(libc::EINTR) if left > 0 => {}
            outcome => return outcome == Ok(true),
        }
    }
}

fn poll(fd: c_int, events: i16, within: u64) -> Result<bool, c_int> {
    let mut place = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let within = libc::timespec {
        tv_sec: (within / 1_000_000_000).cast_signed(),
        tv_nsec: (within % 1_000_000_000).cast_signed(),
    };
    // SAFETY: both are on our stack.
    let count = unsafe { sys!(SYS_ppoll, &raw mut place, 1, &raw const within, 0, 8) };
    match c_int::try_from(-count) {
        Ok(errno) if errno > 0 => Err(errno),
        _ => Ok(count > 0 && place.revents & events != 0),
    }
}

impl Wrap {
    /// Bytes from a connection (`Call::Read`) or from elsewhere (`Call::Input`).
    pub(super) fn receive(
        &mut self,
        call: Call,
        fd: c_int,
        pieces: Pieces<'_>,
        flags: c_int,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        match call {
            Call::Read => self.serves(fd),
            _ => self.use_channel(fd),
        }
        // SAFETY: the pieces are the program's, and the program asked for this read.
        let replayed = self.replayed(call, fd, |record| unsafe {
            scatter(pieces, record.payload);
            (record.outcome, record.payload.first_chunk().copied())
        });
        let is_paired = self.descriptors.get(fd).is_paired() && flags & MSG_PEEK == 0;
        let is_taken = flags & MSG_PEEK == 0;
        if let Some((outcome, _)) = replayed
            && self.is_ipc(fd)
        {
            if is_taken {
                self.replay_ipc_read(fd, pieces, outcome);
            }
        } else if let Some((outcome, _)) = replayed
            && is_taken
            && self.is_shared_channel(fd)
        {
            self.drain_kin(fd, pieces, usize::try_from(outcome).unwrap_or(0));
        } else if let (true, Some((outcome, first))) = (is_paired, replayed)
            && let Ok(length) = usize::try_from(outcome)
        {
            let descriptor = self.descriptors.get(fd);
            let helpers_write = !descriptor.is_channel;
            match first.map(u64::from_le_bytes) {
                Some(count) if descriptor.is_counter(fd) => {
                    drain_counter(self, fd, count, helpers_write);
                }
                _ => drain(self, fd, length, helpers_write),
            }
        }
        let outcome = replayed.map(|(outcome, _)| outcome);
        let outcome = outcome.unwrap_or_else(|| {
            if flags & libc::MSG_WAITALL != 0 {
                self.before_sleep();
            } else {
                self.before_reading(fd, flags);
            }
            let connection = self.descriptors.connection(fd);
            if flags & (MSG_PEEK | libc::MSG_TRUNC) == 0
                && connection.is_some_and(|one| one.is_held)
            {
                return self.receive_held(fd, pieces, flags);
            }
            let outcome = perform();
            if call == Call::Input && total(pieces) > 0 {
                self.poll_crash_after(fd, outcome);
            }
            self.record_received(call, fd, pieces, flags, outcome);
            outcome
        });
        if is_paired && outcome > 0 {
            self.await_helper_effects(); // a helper may have written the bytes, and be at work still
        }
        if let (Ok(length), true) = (u64::try_from(outcome), flags & MSG_PEEK == 0)
            && let Some(connection) = self.descriptors.connection(fd)
        {
            connection.instream += length;
            if call == Call::Read {
                self.record_read(fd);
            }
        }
        outcome
    }

    /// As [`drain`], for bytes that other processes of the service write again.
    #[cold]
    fn drain_kin(&mut self, fd: c_int, pieces: Pieces<'_>, length: usize) {
        let mut block = [0u8; 512];
        let mut done = 0;
        while done < length && self.await_service_replay(|_| is_ready(fd, libc::POLLIN)) {
            let part = (length - done).min(block.len());
            // SAFETY: into our own block.
            let read = unsafe { sys!(SYS_read, fd, block.as_mut_ptr(), part) };
            let read = block.get(..usize::try_from(read).unwrap_or(0));
            let Some(read) = read.filter(|read| !read.is_empty()) else {
                return; // the writers have ended
            };
            // SAFETY: the pieces are the program's, and the program asked for this read.
            if !unsafe { is_at(pieces, done, read) } {
                self.fail_sibling_output();
            }
            done += read.len();
        }
    }

    pub(super) fn record_received(
        &mut self,
        call: Call,
        fd: c_int,
        pieces: Pieces<'_>,
        flags: c_int,
        outcome: Outcome,
    ) {
        // Bytes that were thrown away are nowhere to be found.
        let is_thrown = flags & libc::MSG_TRUNC != 0;
        let length = if is_thrown {
            0
        } else {
            usize::try_from(outcome).unwrap_or(0)
        };
        let header = Header {
            call,
            fd: fd.cast_unsigned(),
            outcome,
            length: length.min(total(pieces)),
        };
        // SAFETY: the kernel has just filled the pieces to this length.
        self.append(header, |room| unsafe { gather(pieces, room) });
    }
}

/// Reads from a regular file.
pub(super) fn with_file_read(
    fd: c_int,
    pieces: Pieces<'_>,
    offset: Option<off_t>,
    perform: impl Fn() -> Outcome,
) -> ssize_t {
    let outcome = with(|wrap| wrap.read_file(fd, pieces, offset, &perform));
    answer(outcome.unwrap_or_else(perform))
}

/// The common path of all receiving calls.
fn receive(
    name: &'static str,
    fd: c_int,
    pieces: Pieces<'_>,
    flags: c_int,
    number: i64,
    arguments: [usize; 6],
) -> ssize_t {
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys::raw(number, arguments) };
    let call = match kind(fd, name) {
        Kind::Connection => Call::Read,
        Kind::Input | Kind::Outgoing => Call::Input,
        Kind::Datagrams => return datagrams::receive(fd, pieces, flags, NO_SENDER, perform),
        Kind::File => return with_file_read(fd, pieces, None, perform),
        Kind::Other | Kind::Listener => {
            with(|wrap| wrap.before_reading(fd, flags));
            return answer(perform());
        }
    };
    // SAFETY: as the program has called us.
    let may_sleep = || unsafe { blocking(number, arguments) };
    let outcome = restarting(|wrap| wrap.receive(call, fd, pieces, flags, may_sleep));
    answer(outcome.unwrap_or_else(perform))
}

/// No sender address wanted.
const NO_SENDER: (*mut c_void, *mut socklen_t) = (core::ptr::null_mut(), core::ptr::null_mut());

fn piece(buffer: *mut c_void, length: usize) -> [iovec; 1] {
    [iovec {
        iov_base: buffer,
        iov_len: length,
    }]
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, length: usize) -> ssize_t {
    receive(
        "read",
        fd,
        &piece(buffer, length),
        0,
        libc::SYS_read,
        [fd as usize, buffer.addr(), length, 0, 0, 0],
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    _: usize,
) -> ssize_t {
    // SAFETY: as the program has called us.
    unsafe { read(fd, buffer, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as the program has called us.
    let all = unsafe { core::slice::from_raw_parts(pieces, usize::try_from(count).unwrap_or(0)) };
    receive(
        "readv",
        fd,
        all,
        0,
        libc::SYS_readv,
        [fd as usize, pieces.addr(), count as usize, 0, 0, 0],
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> ssize_t {
    // SAFETY: as the program has called us.
    unsafe {
        recvfrom(
            fd,
            buffer,
            length,
            flags,
            core::ptr::null_mut(),
            core::ptr::null_mut(),
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    _: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as the program has called us.
    unsafe { recv(fd, buffer, length, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    // A connection's address is not filled in.
    let arguments = [
        fd as usize,
        buffer.addr(),
        length,
        flags as usize,
        from.addr(),
        size.addr(),
    ];
    let pieces = piece(buffer, length);
    if kind(fd, "recvfrom") == Kind::Datagrams {
        // SAFETY: as the program has called us.
        let perform = || unsafe { sys::raw(libc::SYS_recvfrom, arguments) };
        return datagrams::receive(fd, &pieces, flags, (from.cast(), size), perform);
    }
    receive(
        "recvfrom",
        fd,
        &pieces,
        flags,
        libc::SYS_recvfrom,
        arguments,
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    _: usize,
    flags: c_int,
    from: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as the program has called us.
    unsafe { recvfrom(fd, buffer, length, flags, from, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let arguments = [fd as usize, message.addr(), flags as usize, 0, 0, 0];
    let kind = kind(fd, "recvmsg");
    if kind == Kind::Datagrams {
        // SAFETY: as the program has called us.
        let perform = || unsafe { sys::raw(libc::SYS_recvmsg, arguments) };
        // SAFETY: as the program has called us.
        return datagrams::receive_message(fd, unsafe { &mut *message }, flags, perform);
    }
    // SAFETY: as the program has called us.
    let pieces = unsafe { core::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen) };
    if !kind.is_stream() {
        return receive_beside(fd, pieces, message, flags);
    }
    // A connection has no control data: the kernel reports none, and a replay reports none.
    // SAFETY: as the program has called us.
    unsafe {
        if kind == Kind::Connection {
            (*message).msg_controllen = 0;
        } else {
            forget_beside(&*message);
        }
        (*message).msg_namelen = 0;
        (*message).msg_flags = 0;
        let outcome = receive("recvmsg", fd, pieces, flags, libc::SYS_recvmsg, arguments);
        if has_descriptors(&*message) {
            refuse(&[b"the server receives descriptors from another process"]);
        }
        (*message).msg_controllen = 0;
        outcome
    }
}

/// A message from a descriptor without a connection. Descriptors in the message are replayed within a session.
fn receive_beside(fd: c_int, pieces: Pieces<'_>, message: *mut msghdr, flags: c_int) -> ssize_t {
    let arguments = [fd as usize, message.addr(), flags as usize, 0, 0, 0];
    if with(|wrap| wrap.channel_maker(fd).is_some()) != Some(true) {
        return receive("recvmsg", fd, pieces, flags, libc::SYS_recvmsg, arguments);
    }
    // SAFETY: as the program has called us.
    let perform = || unsafe { blocking(libc::SYS_recvmsg, arguments) };
    let outcome = restarting(|wrap| {
        // SAFETY: as the program has called us; the kernel changes the message only during the call.
        let message = unsafe { &mut *message };
        wrap.receive_message(fd, pieces, message, flags, perform)
    });
    answer(outcome.unwrap_or_else(perform))
}

/// Clears the control data of a message before the kernel fills the data in.
///
/// # Safety
/// The program vouches for the message.
unsafe fn forget_beside(message: &msghdr) {
    // SAFETY: by the caller.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(message);
        if !first.is_null() {
            first.write(core::mem::zeroed());
        }
    }
}

/// Whether the message has descriptors, which no replay could give to the program.
///
/// # Safety
/// The program vouches for the message.
unsafe fn has_descriptors(message: &msghdr) -> bool {
    // SAFETY: by the caller; each is within the message.
    unsafe {
        let mut one = libc::CMSG_FIRSTHDR(message);
        while !one.is_null() {
            if ((*one).cmsg_level, (*one).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                return true;
            }
            one = libc::CMSG_NXTHDR(message, one);
        }
    }
    false
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int {
    let perform = || {
        // SAFETY: as the program has called us.
        unsafe { sys!(SYS_ioctl, fd, request, argument) }
    };
    if request == libc::FIONBIO {
        with(|wrap| wrap.may_block(fd));
    }
    let is_recorded = request == libc::FIONREAD
        && !matches!(kind(fd, "ioctl"), Kind::Other | Kind::Listener | Kind::File);
    if !is_recorded {
        return crate::errno::answer_int(perform());
    }
    // SAFETY: this request fills in an `int`.
    let count = unsafe { bytes_mut(argument, size_of::<c_int>()) };
    let outcome = with(|wrap| wrap.filled(Call::Filled, fd, count, |_| perform()));
    crate::errno::answer_int(outcome.unwrap_or_else(perform))
}
