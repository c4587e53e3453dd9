//! IPC replay: pipes and socket pairs between the processes of one session, made by a process of the session.
//!
//! The record of a process has the bytes that the process read. In a replay the writer writes the bytes again, and the
//! reader takes the bytes out, after a wait, and compares. After the last replay only unread bytes are left in a
//! channel.

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, POLLERR, POLLHUP, POLLIN, POLLOUT, c_int, iovec};
use north_abi::{Call, layout::Failure};

use crate::{
    calls::reading::{becomes_ready, is_at, is_ready},
    clock,
    descriptors::{hidden, inode},
    messages::say,
    sys::{Outcome, bytes, bytes_mut, sys},
    wrap::Wrap,
};

/// Full channels at once.
const PENDING_CHANNELS_MAX: usize = 16;
/// Bytes of one read or write; a writable pipe takes this many bytes (PIPE_BUF).
const IPC_BLOCK_BYTES: usize = 4096;
/// Longest wait for siblings that replay.
pub(crate) const SIBLING_REPLAY_TIMEOUT_NS: u64 = 30_000_000_000;
/// Interval of polls for the replays of siblings.
const SIBLING_POLL_INTERVAL_NS: u64 = 1_000_000;

/// Reads without a wait, although other processes may read from the channel.
fn read_now(fd: c_int, into: &mut [u8]) -> Outcome {
    // SAFETY: into our own block.
    unsafe {
        let (at, length) = (into.as_mut_ptr(), into.len());
        match sys!(SYS_recvfrom, fd, at, length, MSG_DONTWAIT, 0, 0) {
            outcome if outcome == -Outcome::from(libc::ENOTSOCK) => sys!(SYS_read, fd, at, length),
            outcome => outcome,
        }
    }
}

/// Writes as much as the channel takes.
fn write_now(fd: c_int, said: &[u8]) -> Outcome {
    // SAFETY: from our own slice.
    unsafe {
        let (at, length) = (said.as_ptr(), said.len());
        let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        match sys!(SYS_sendto, fd, at, length, flags, 0, 0) {
            outcome if outcome != -Outcome::from(libc::ENOTSOCK) => outcome,
            _ if is_ready(fd, POLLERR) => -Outcome::from(libc::EPIPE),
            _ if !is_ready(fd, POLLOUT) => -Outcome::from(libc::EAGAIN),
            _ => sys!(SYS_write, fd, at, length.min(IPC_BLOCK_BYTES)),
        }
    }
}

/// Output of a replay that a full channel did not take. The reader had read more before the crash than the reader's
/// determinants show.
#[derive(Clone, Copy)]
struct PendingIpcWrite {
    /// A descriptor of our own for the channel, because the program may close its descriptors; -1: free entry.
    fd: c_int,
    /// Inode of the channel.
    inode: u64,
    at: *mut libc::c_void,
    budget: usize,
    start: usize,
    end: usize,
}

impl PendingIpcWrite {
    const EMPTY: Self = Self {
        fd: -1,
        inode: 0,
        at: core::ptr::null_mut(),
        budget: 0,
        start: 0,
        end: 0,
    };

    /// Appends bytes. `false`: no memory.
    fn add(&mut self, said: &[u8]) -> bool {
        let end = self.end + said.len();
        if end > self.budget {
            let room = end.next_power_of_two().max(1 << 16);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping, or our own at another place.
            let at = unsafe {
                match self.budget {
                    0 => sys!(SYS_mmap, 0, room, access, flags, u32::MAX, 0),
                    old => sys!(SYS_mremap, self.at, old, room, libc::MREMAP_MAYMOVE),
                }
            };
            let Ok(at) = usize::try_from(at) else {
                return false;
            };
            (self.at, self.budget) = (core::ptr::with_exposed_provenance_mut(at), room);
        }
        // SAFETY: within the mapping.
        unsafe { bytes_mut(self.at.byte_add(self.end), said.len()) }.copy_from_slice(said);
        self.end = end;
        true
    }

    /// Writes as much as the channel takes. Answers whether all bytes are written. Bytes without a reader are dropped.
    fn say(&mut self) -> bool {
        while self.start < self.end {
            // SAFETY: within the mapping, and filled in.
            let rest = unsafe { bytes(self.at.byte_add(self.start), self.end - self.start) };
            let outcome = write_now(self.fd, rest);
            match usize::try_from(outcome) {
                Ok(written) => self.start += written,
                Err(_) if outcome == -Outcome::from(libc::EAGAIN) => return false,
                Err(_) if is_retry(outcome) => {}
                Err(_) => self.start = self.end,
            }
        }
        self.let_go();
        true
    }

    fn is_for(&self, inode: u64) -> bool {
        self.fd >= 0 && self.inode == inode
    }

    fn let_go(&mut self) {
        // SAFETY: descriptor and memory are ours, and all references have ended.
        unsafe {
            sys!(SYS_munmap, self.at, self.budget);
            sys!(SYS_close, self.fd);
        }
        *self = Self::EMPTY;
    }
}

/// All pending output of a replay.
pub(crate) struct PendingIpcWrites([PendingIpcWrite; PENDING_CHANNELS_MAX]);

impl Default for PendingIpcWrites {
    fn default() -> Self {
        Self([PendingIpcWrite::EMPTY; PENDING_CHANNELS_MAX])
    }
}

/// Whether the call is to be repeated.
fn is_retry(outcome: Outcome) -> bool {
    [libc::EAGAIN, libc::EINTR].contains(&c_int::try_from(-outcome).unwrap_or(0))
}

impl Wrap {
    /// The process has made these two ends of a channel.
    pub(crate) fn begin_ipc(&mut self, ends: [c_int; 2]) {
        for fd in ends {
            if let Some(entry) = self.descriptors.entry(fd) {
                entry.maker = self.process;
            }
        }
    }

    /// The process that made the channel between this process and its session; `None`: not such a channel.
    pub(crate) fn channel_maker(&self, fd: c_int) -> Option<u32> {
        let descriptor = self.descriptors.get(fd);
        let leads = descriptor.is_channel && !descriptor.is_paired() && descriptor.maker != 0;
        leads.then_some(descriptor.maker)
    }

    /// Whether another process writes to this channel in its replay.
    pub(crate) fn is_ipc(&self, fd: c_int) -> bool {
        self.channel_maker(fd)
            .is_some_and(|maker| self.is_ipc_replayed(maker))
    }

    /// Before a write to another process. A sibling records the bytes, and no host may have that determinant without
    /// its causes.
    pub(crate) fn commit_ipc(&mut self, fd: c_int) {
        match self.channel_maker(fd) {
            Some(_) => self.commit(),
            None => self.commit_effect(),
        }
    }

    /// Waits until the replay of a sibling makes this descriptor ready. `false`: no sibling replays any more.
    pub(crate) fn await_siblings(&self, fd: c_int, events: i16) -> bool {
        let until = clock::monotonic().saturating_add(SIBLING_REPLAY_TIMEOUT_NS);
        loop {
            // In this order: a sibling may make the descriptor ready just before the end of its replay.
            let is_last = !self.siblings_replay() || clock::monotonic() > until;
            let within = if is_last { 0 } else { SIBLING_POLL_INTERVAL_NS };
            let is_ready = becomes_ready(fd, events | POLLHUP | POLLERR, within);
            if is_ready || is_last {
                return is_ready;
            }
        }
    }

    /// Takes the replayed bytes out of the channel, and compares.
    pub(crate) fn replay_ipc_read(&mut self, fd: c_int, pieces: &[iovec], length: Outcome) {
        let mut block = [0u8; IPC_BLOCK_BYTES];
        let length = usize::try_from(length).unwrap_or(0);
        let mut done = 0;
        while done < length {
            let part = (length - done).min(IPC_BLOCK_BYTES);
            if !self.await_siblings(fd, POLLIN) {
                self.fail_ipc_read();
            }
            let read = read_now(fd, &mut block[..part]);
            if is_retry(read) {
                continue;
            }
            let read = usize::try_from(read).unwrap_or(0);
            // SAFETY: the pieces are the program's, and the program asked for this read.
            if read == 0 || !unsafe { is_at(pieces, done, &block[..read]) } {
                self.fail_ipc_read();
            }
            done += read;
        }
    }

    #[cold]
    pub(crate) fn fail_ipc_read(&mut self) -> ! {
        say(&[b"another process has not repeated bytes that this process has read"]);
        self.fail(Failure::OtherOutput, Call::Input, None);
    }

    /// Writes the bytes of a replay again, for siblings. Bytes without a reader are dropped.
    pub(crate) fn replay_ipc_write(&mut self, fd: c_int, pieces: &[iovec], length: Outcome) {
        let mut left = usize::try_from(length).unwrap_or(0);
        for piece in pieces {
            let length = piece.iov_len.min(left);
            left -= length;
            // SAFETY: the program passed the pieces for writing.
            let mut rest = unsafe { bytes(piece.iov_base, length) };
            while !rest.is_empty() {
                if self.has_pending_ipc(fd) || !self.await_siblings(fd, POLLOUT) {
                    self.defer_ipc_write(fd, rest);
                    break;
                }
                let outcome = write_now(fd, rest);
                match usize::try_from(outcome) {
                    Ok(written) => rest = &rest[written..],
                    Err(_) if is_retry(outcome) => {}
                    Err(_) => return,
                }
            }
        }
    }

    fn has_pending_ipc(&self, fd: c_int) -> bool {
        let mut all = self.pending_ipc.0.iter().filter(|rest| rest.fd >= 0);
        all.next().is_some() && {
            let inode = inode(fd);
            self.pending_ipc.0.iter().any(|rest| rest.is_for(inode))
        }
    }

    fn defer_ipc_write(&mut self, fd: c_int, said: &[u8]) {
        let inode = inode(fd);
        let all = &mut self.pending_ipc.0;
        let place = all.iter().position(|rest| rest.is_for(inode));
        let place = place.or_else(|| all.iter().position(|rest| rest.fd < 0));
        let is_kept = place.is_some_and(|place| {
            let rest = &mut all[place];
            if rest.fd < 0 {
                (rest.fd, rest.inode) = (hidden(fd).unwrap_or(-1), inode);
            }
            rest.fd >= 0 && rest.add(said)
        });
        if !is_kept {
            say(&[b"no room for the bytes from this process to another process"]);
            self.fail(Failure::OtherOutput, Call::Write, None);
        }
    }

    /// After all replays: writes the pending output.
    pub(crate) fn flush_pending_ipc(&mut self) {
        let until = clock::monotonic().saturating_add(SIBLING_REPLAY_TIMEOUT_NS);
        for place in 0..PENDING_CHANNELS_MAX {
            let fd = self.pending_ipc.0[place].fd;
            while fd >= 0 && !self.pending_ipc.0[place].say() {
                let left = until.saturating_sub(clock::monotonic());
                if !becomes_ready(fd, POLLOUT | POLLERR | POLLHUP, left) {
                    say(&[b"no process reads the bytes from this process to another process"]);
                    self.fail(Failure::OtherOutput, Call::Write, None);
                }
            }
        }
    }

    /// The process ends in its replay: pending output would be lost.
    pub(crate) fn require_ipc_flushed(&mut self) {
        if self.pending_ipc.0.iter().any(|rest| rest.fd >= 0) {
            say(&[b"a process has ended before another process had read all bytes"]);
            self.fail(Failure::OtherOutput, Call::Write, None);
        }
    }

    /// In a child: the pending output is the parent's.
    pub(crate) fn forget_pending_ipc(&mut self) {
        for rest in self.pending_ipc.0.iter_mut().filter(|rest| rest.fd >= 0) {
            rest.let_go();
        }
    }
}
