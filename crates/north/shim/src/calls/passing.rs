//! Connections that one process of a session passes to another (`SCM_RIGHTS`).
//!
//! The receiver records the identity of the connection, together with the bytes of the message. A replay passes the
//! placeholder over the same channel. Meanwhile the page has the identity of the connection under the socket's inode.

use core::mem::MaybeUninit;

use libc::{
    MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT, c_int, cmsghdr, iovec, msghdr,
};
use north_abi::{
    Call, Header, Record, Which,
    layout::{Failure, Fate},
    passed_connections::{PACKED_ADDRESS_BYTES, Passed},
};

use super::{
    opening::take_place,
    reading::{gather, is_at, scatter, total},
    refuse,
};
use crate::{
    clock::{self, monotonic},
    descriptors::{Address, hidden, inode},
    ipc_replay::SIBLING_REPLAY_TIMEOUT_NS,
    messages::say,
    process_group::REPLAY_POLL_INTERVAL_NS,
    sys::{Outcome, sys},
    wrap::Wrap,
};

/// Most bytes beside a connection.
const BLOCK: usize = 512;

/// The descriptor of a message. A replay could not tell several descriptors apart.
///
/// # Safety
/// The program vouches for the message.
pub(super) unsafe fn beside(message: &msghdr) -> Option<c_int> {
    // SAFETY: by the caller; each is within the message.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(message);
        let is_given = |one: *mut cmsghdr| {
            ((*one).cmsg_level, (*one).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
        };
        if first.is_null() || (*first).cmsg_len == 0 || !is_given(first) {
            return None;
        }
        let is_one = (*first).cmsg_len == libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
        if !is_one {
            refuse(&[b"the server passes several descriptors at once"]);
        }
        Some(libc::CMSG_DATA(first).cast::<c_int>().read_unaligned())
    }
}

/// Tell the program of this descriptor, as the kernel would.
///
/// # Safety
/// As [`beside`].
unsafe fn put_beside(message: &mut msghdr, fd: c_int) {
    // SAFETY: by the caller.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(message);
        let length = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
        if first.is_null() || message.msg_controllen < length {
            return;
        }
        (*first).cmsg_len = length;
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        libc::CMSG_DATA(first).cast::<c_int>().write_unaligned(fd);
        let space = libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize;
        message.msg_controllen = message.msg_controllen.min(space);
    }
}

impl Wrap {
    /// The process is about to pass this connection: the receiver must find out the identity.
    fn is_to_pass(&mut self, fd: c_int) {
        let process = self.process;
        let connection = self.descriptors.connection(fd);
        let Some(connection) = connection.filter(|one| {
            // A joined upstream connection is served, and cannot be passed.
            !one.is_touched() && !one.is_local && !matches!(one.which, Which::Flow(_))
        }) else {
            refuse(&[b"the server passes a descriptor that is no connection, or a connection with traffic"]);
        };
        let passed = Passed {
            number: connection.number,
            sender: process,
            serial: connection.serial,
            is_held: connection.is_held,
            which: connection.which,
            ends: [connection.peer.to_bytes(), connection.local.to_bytes()],
        };
        if !self.page.passing.send(inode(fd), &passed) {
            refuse(&[b"too many connections are passed at once"]);
        }
        // The receiver may serve the connection at once.
        self.lets_go_of(fd);
        if let Some(connection) = self.descriptors.connection(fd) {
            connection.is_shared = true;
        }
    }

    /// The connection was passed, or the call has failed.
    fn has_passed(&mut self, fd: c_int, outcome: Outcome) {
        if outcome <= 0 {
            let _ = self.page.passing.take(inode(fd));
            return;
        }
        if let Some(connection) = self.descriptors.connection(fd) {
            connection.is_passed = true;
        }
    }

    /// The program sends a message with this connection.
    pub(super) fn pass(
        &mut self,
        fd: c_int,
        message: &msghdr,
        whole: usize,
        given: c_int,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        self.use_channel(fd);
        let Some(outcome) = self.replayed_write(fd, whole) else {
            self.before_writing(fd);
            self.commit_ipc(fd);
            self.is_to_pass(given);
            let outcome = perform();
            self.has_passed(given, outcome);
            self.poll_crash_after(fd, outcome);
            self.record_write(fd, whole, outcome);
            return outcome;
        };
        if outcome > 0 {
            self.is_to_pass(given);
            self.replay_pass(fd, message, outcome);
            self.has_passed(given, outcome);
        }
        outcome
    }

    fn replay_pass(&mut self, fd: c_int, message: &msghdr, whole: Outcome) {
        loop {
            let is_ready = self.await_siblings(fd, POLLOUT);
            let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
            // SAFETY: the program's own message.
            let sent = unsafe { sys!(SYS_sendmsg, fd, &raw const *message, flags) };
            if sent == whole {
                return;
            }
            if !is_ready || sent != super::failed(libc::EAGAIN) {
                self.fail_ipc_read();
            }
        }
    }

    /// A connection has arrived: returns the identity.
    fn arrives(&mut self, fd: c_int) -> Passed {
        let Some(passed) = self.page.passing.take(inode(fd)) else {
            refuse(&[b"the server receives a descriptor that is no connection"]);
        };
        let [peer, local] = passed.ends.map(|end| Address::from_bytes(&end));
        let has_room = match passed.serial {
            0 => self
                .descriptors
                .accept(fd, passed.number, peer, local, passed.which),
            serial => self
                .descriptors
                .take_over(fd, passed.number, serial, passed.is_held),
        };
        if !has_room {
            refuse(&[b"the server has too many connections"]);
        }
        let received = self.positions.of(peer.as_bytes(), local.as_bytes());
        let is_replay = self.is_replay;
        if let Some(connection) = self.descriptors.connection(fd) {
            connection.is_shared = true;
            connection.is_taken = true;
            if is_replay && !connection.is_outgoing() {
                connection.received = received;
            }
        }
        passed
    }

    /// The program receives a message, beside which a connection may be.
    pub(super) fn receive_message(
        &mut self,
        fd: c_int,
        pieces: &[iovec],
        message: &mut msghdr,
        flags: c_int,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        self.use_channel(fd);
        if self.is_replay() {
            let is_passed =
                matches!(self.stream.peek(), Some(Ok((record, _))) if record.call == Call::Passed);
            if is_passed {
                return self.replay_receive(fd, pieces, message, flags);
            }
            (message.msg_controllen, message.msg_flags) = (0, 0);
            return self.receive(Call::Input, fd, pieces, flags, perform);
        }
        self.before_reading(fd, flags);
        let outcome = perform();
        if total(pieces) > 0 {
            self.poll_crash_after(fd, outcome);
        }
        // SAFETY: the kernel has filled the message in.
        let given = (outcome >= 0).then(|| unsafe { beside(message) }).flatten();
        let Some(given) = given else {
            self.record_received(Call::Input, fd, pieces, flags, outcome);
            return outcome;
        };
        let late = self.arrives_late(given);
        let [peer, local] = late.unwrap_or_else(|| self.arrives(given).ends);
        let length = usize::try_from(outcome).unwrap_or(0);
        if length > BLOCK || flags & (libc::MSG_PEEK | libc::MSG_TRUNC) != 0 {
            refuse(&[
                b"the server receives a connection in a way that the library does not follow",
            ]);
        }
        let header = Header {
            call: Call::Passed,
            fd: fd.cast_unsigned(),
            outcome: given.into(),
            length: peer.len() + local.len() + length,
        };
        self.append(header, |room| {
            room[..peer.len()].copy_from_slice(&peer);
            room[peer.len()..2 * peer.len()].copy_from_slice(&local);
            // SAFETY: the kernel has filled the pieces to this length.
            unsafe { gather(pieces, &mut room[2 * peer.len()..]) };
        });
        self.holds_one();
        outcome
    }

    /// Receives a message of the record again.
    fn replay_receive(
        &mut self,
        fd: c_int,
        pieces: &[iovec],
        message: &mut msghdr,
        flags: c_int,
    ) -> Outcome {
        let mut ends = [[0; PACKED_ADDRESS_BYTES]; 2];
        let replayed = self.replayed(Call::Passed, fd, |record: &Record<'_>| {
            let mut rest = record.payload;
            for end in &mut ends {
                if let Some((front, back)) = rest.split_first_chunk() {
                    (*end, rest) = (*front, back);
                }
            }
            // SAFETY: the program's pieces, which has asked for this.
            unsafe { scatter(pieces, rest) };
            (record.outcome, rest.len())
        });
        let Some((outcome, length)) = replayed else {
            self.fail(Failure::BadRecord, Call::Passed, None);
        };
        let taken = self.replay_take(fd, pieces, length, flags);
        if !take_place(taken.into(), outcome) {
            self.fail(Failure::DescriptorTaken, Call::Passed, Some(Call::Passed));
        }
        let given = c_int::try_from(outcome).unwrap_or(-1);
        if self.arrives(given).ends != ends {
            self.fail_ipc_read();
        }
        // SAFETY: the program's message.
        unsafe { put_beside(message, given) };
        (message.msg_flags, message.msg_namelen) = (flags & MSG_CMSG_CLOEXEC, 0);
        self.holds_one();
        length as Outcome
    }

    /// Receives the placeholder, and the bytes before the placeholder, which are the same. The bytes may arrive one
    /// by one.
    fn replay_take(&mut self, fd: c_int, pieces: &[iovec], length: usize, flags: c_int) -> c_int {
        let mut done = 0;
        while self.await_siblings(fd, POLLIN) {
            let mut beside = Beside::default();
            let flags = MSG_DONTWAIT | flags & MSG_CMSG_CLOEXEC;
            let got = beside.receive(fd, length - done, flags);
            if got == super::failed(libc::EAGAIN) {
                continue;
            }
            let got = usize::try_from(got).unwrap_or(0);
            // SAFETY: the program's pieces.
            let is_same = unsafe { is_at(pieces, done, &beside.block[..got]) };
            done += got;
            match beside.given {
                Some(given) if is_same && done == length => return given,
                None if is_same && got > 0 && done < length => {}
                _ => break,
            }
        }
        self.fail_ipc_read()
    }

    /// This process may have a client from here on.
    fn holds_one(&mut self) {
        if !self.group.holds && self.process != 0 {
            self.group.holds = true;
            self.record_fate(Fate::Holds, &[]);
        }
    }

    /// The replay is about to end. A connection under way belongs to the receiver already: when the program receives
    /// the connection, the receiver continues with the socket of the handover.
    pub(crate) fn settle_passed(&mut self) {
        let (page, process) = (self.page, self.process);
        page.processes.0[process as usize].unset(Fate::Replays);
        let until = monotonic().saturating_add(SIBLING_REPLAY_TIMEOUT_NS);
        if self.group.uses_session_ipc {
            while self.siblings_replay() && monotonic() < until {
                clock::sleep(REPLAY_POLL_INTERVAL_NS);
            }
            for fd in self.descriptors.ways() {
                self.look_for_passed(fd);
            }
        }
        self.await_receivers();
    }

    /// Waits until the receivers have the passed connections.
    pub(crate) fn await_receivers(&mut self) {
        let (page, process) = (self.page, self.process);
        let until = monotonic().saturating_add(SIBLING_REPLAY_TIMEOUT_NS);
        while page.passing.is_under_way(process) {
            if monotonic() > until {
                say(&[b"no process receives a connection that a process has passed on"]);
                self.fail(Failure::NotSupported, Call::Passed, None);
            }
            clock::sleep(REPLAY_POLL_INTERVAL_NS);
        }
    }

    /// This process ends, and leaves connections under way behind.
    pub(crate) fn leaves_passed(&mut self) {
        if !self.group.uses_session_ipc || !self.page.passing.is_any() {
            return;
        }
        for fd in self.descriptors.ways() {
            if let Some(given) = peeked(fd) {
                let _ = self.page.passing.take(inode(given));
                // SAFETY: the descriptor is ours.
                unsafe { sys!(SYS_close, given) };
            }
        }
    }

    /// Looks for the first connection under way on this channel.
    fn look_for_passed(&mut self, fd: c_int) {
        let Some(given) = peeked(fd) else {
            return;
        };
        let found = hidden(given);
        // SAFETY: the descriptor is ours.
        unsafe { sys!(SYS_close, given) };
        let Some(hidden) = found else {
            self.fail(Failure::DescriptorTaken, Call::Passed, None);
        };
        let pending = inode(hidden);
        self.arrives(hidden);
        if let Some(connection) = self.descriptors.connection(hidden) {
            connection.pending = pending;
        }
    }

    /// A placeholder under way has arrived, and the connection of the handover replaces the placeholder.
    fn arrives_late(&mut self, fd: c_int) -> Option<[[u8; PACKED_ADDRESS_BYTES]; 2]> {
        let pending = inode(fd);
        let connection = self
            .descriptors
            .connections_mut()
            .find(|one| one.pending == pending)?;
        connection.pending = 0;
        let (hidden, ends) = (connection.fd(), [connection.peer, connection.local]);
        // SAFETY: both descriptors are ours, and the program's from here on.
        let replaced = unsafe {
            let closes = sys!(SYS_fcntl, fd, libc::F_GETFD) & i64::from(libc::FD_CLOEXEC) != 0;
            let replaced = sys!(
                SYS_dup3,
                hidden,
                fd,
                if closes { libc::O_CLOEXEC } else { 0 }
            );
            sys!(SYS_close, hidden);
            replaced
        };
        if replaced < 0 {
            self.fail(Failure::DescriptorTaken, Call::Passed, None);
        }
        self.descriptors.moves(hidden, fd);
        Some(ends.map(Address::to_bytes))
    }
}

/// A message, and its descriptor.
struct Beside {
    block: [u8; BLOCK],
    given: Option<c_int>,
}

impl Default for Beside {
    fn default() -> Self {
        Self {
            block: [0; BLOCK],
            given: None,
        }
    }
}

impl Beside {
    /// Receives at most `length` bytes.
    fn receive(&mut self, fd: c_int, length: usize, flags: c_int) -> Outcome {
        let mut control = [0u64; 8];
        let mut piece = iovec {
            iov_base: self.block.as_mut_ptr().cast(),
            iov_len: length.min(BLOCK),
        };
        // SAFETY: all zeros is an empty message.
        let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the message and its buffers are on our stack, and filled in by then.
        unsafe {
            let got = sys!(SYS_recvmsg, fd, &raw mut message, flags);
            self.given = (got > 0).then(|| beside(&message)).flatten();
            got
        }
    }
}

/// The first descriptor under way on this channel.
fn peeked(fd: c_int) -> Option<c_int> {
    let mut beside = Beside::default();
    let flags = libc::MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC;
    beside.receive(fd, BLOCK, flags);
    beside.given
}
