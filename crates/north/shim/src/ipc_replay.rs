//! What processes of a session say to each other, by pipes and pairs of sockets that one of them has made, which is
//! not the first.
//!
//! What one has read there is in its record. In a replay it is said again all the same, and taken out by who had read
//! it: behind the last replay nothing is left there but what nobody had read. Who reads waits until it has been said
//! again, and compares it.

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

/// Ways at once on which there was no room.
const MOST: usize = 16;
/// Bytes at once; a pipe that is ready takes so many.
const BLOCK: usize = 4096;
/// So long others are waited for that are replaying still, nanoseconds.
pub(crate) const PATIENCE: u64 = 30_000_000_000;
/// Between two looks at whether they are, nanoseconds.
const PACE: u64 = 1_000_000;

/// Without waiting, though others may read there, too.
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

/// So much of it as there is room for.
fn write_now(fd: c_int, said: &[u8]) -> Outcome {
    // SAFETY: from our own slice.
    unsafe {
        let (at, length) = (said.as_ptr(), said.len());
        let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        match sys!(SYS_sendto, fd, at, length, flags, 0, 0) {
            outcome if outcome != -Outcome::from(libc::ENOTSOCK) => outcome,
            _ if is_ready(fd, POLLERR) => -Outcome::from(libc::EPIPE),
            _ if !is_ready(fd, POLLOUT) => -Outcome::from(libc::EAGAIN),
            _ => sys!(SYS_write, fd, at, length.min(BLOCK)),
        }
    }
}

/// What a replay has written and there was no room for: who had read it had come further when the service died than
/// its notes say.
#[derive(Clone, Copy)]
struct Unsaid {
    /// Where it is to be written to, under a number of our own: the program may close its own, or has several; -1:
    /// this place is free.
    fd: c_int,
    /// The number of the file.
    inode: u64,
    at: *mut libc::c_void,
    budget: usize,
    start: usize,
    end: usize,
}

impl Unsaid {
    const NOTHING: Self = Self {
        fd: -1,
        inode: 0,
        at: core::ptr::null_mut(),
        budget: 0,
        start: 0,
        end: 0,
    };

    /// Keep this, too. `false`: there is no memory for it.
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

    /// Say what there is room for. Where nobody listens any more nobody has. Is that all?
    fn say(&mut self) -> bool {
        while self.start < self.end {
            // SAFETY: within the mapping, and filled in.
            let rest = unsafe { bytes(self.at.byte_add(self.start), self.end - self.start) };
            let outcome = write_now(self.fd, rest);
            match usize::try_from(outcome) {
                Ok(written) => self.start += written,
                Err(_) if outcome == -Outcome::from(libc::EAGAIN) => return false,
                Err(_) if is_later(outcome) => {}
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
        // SAFETY: both are ours, and nothing refers to them.
        unsafe {
            sys!(SYS_munmap, self.at, self.budget);
            sys!(SYS_close, self.fd);
        }
        *self = Self::NOTHING;
    }
}

/// All of that.
pub(crate) struct Rest([Unsaid; MOST]);

impl Default for Rest {
    fn default() -> Self {
        Self([Unsaid::NOTHING; MOST])
    }
}

/// Is there nothing wrong, but that it is to be tried again?
fn is_later(outcome: Outcome) -> bool {
    [libc::EAGAIN, libc::EINTR].contains(&c_int::try_from(-outcome).unwrap_or(0))
}

impl Wrap {
    /// These two were made, which are each other's ends.
    pub(crate) fn begin_talk(&mut self, ends: [c_int; 2]) {
        for fd in ends {
            if let Some(entry) = self.descriptors.entry(fd) {
                entry.maker = self.process;
            }
        }
    }

    /// The process that has made the way between this one and others of its session; `None`: it leads nowhere, or
    /// elsewhere.
    pub(crate) fn maker(&self, fd: c_int) -> Option<u32> {
        let descriptor = self.descriptors.get(fd);
        let leads = descriptor.crosses && !descriptor.is_paired() && descriptor.maker != 0;
        leads.then_some(descriptor.maker)
    }

    /// Is what was said there said again, by others who replay?
    pub(crate) fn is_talk(&self, fd: c_int) -> bool {
        self.maker(fd)
            .is_some_and(|maker| self.is_said_again(maker))
    }

    /// Something is about to be said to others. What those of its session hear they note, and no host is to have that
    /// without what it is due to.
    pub(crate) fn commit_word(&mut self, fd: c_int) {
        match self.maker(fd) {
            Some(_) => self.commit(),
            None => self.commit_effect(),
        }
    }

    /// Others of the session are at work on what makes this ready, in their replays. `false`: they are not, or not any
    /// more.
    pub(crate) fn await_relatives(&self, fd: c_int, events: i16) -> bool {
        let until = clock::monotonic().saturating_add(PATIENCE);
        loop {
            // In this order.
            let is_last = !self.relatives_replay() || clock::monotonic() > until;
            let within = if is_last { 0 } else { PACE };
            let is_ready = becomes_ready(fd, events | POLLHUP | POLLERR, within);
            if is_ready || is_last {
                return is_ready;
            }
        }
    }

    /// The program has read this in a replay: it is said again, or was.
    pub(crate) fn hear_again(&mut self, fd: c_int, pieces: &[iovec], length: Outcome) {
        let mut block = [0u8; BLOCK];
        let length = usize::try_from(length).unwrap_or(0);
        let mut done = 0;
        while done < length {
            let part = (length - done).min(BLOCK);
            if !self.await_relatives(fd, POLLIN) {
                self.is_contradicted();
            }
            let read = read_now(fd, &mut block[..part]);
            if is_later(read) {
                continue;
            }
            let read = usize::try_from(read).unwrap_or(0);
            // SAFETY: they are the program's, which has asked for this.
            if read == 0 || !unsafe { is_at(pieces, done, &block[..read]) } {
                self.is_contradicted();
            }
            done += read;
        }
    }

    #[cold]
    pub(crate) fn is_contradicted(&mut self) -> ! {
        say(&[b"another process has not repeated bytes that this process has read"]);
        self.fail(Failure::OtherOutput, Call::Input, None);
    }

    /// It writes this in a replay, and others are to find it. Where nobody listens any more nobody has.
    pub(crate) fn say_again(&mut self, fd: c_int, pieces: &[iovec], length: Outcome) {
        let mut left = usize::try_from(length).unwrap_or(0);
        for piece in pieces {
            let length = piece.iov_len.min(left);
            left -= length;
            // SAFETY: the program has given them to be written.
            let mut rest = unsafe { bytes(piece.iov_base, length) };
            while !rest.is_empty() {
                if self.has_rest(fd) || !self.await_relatives(fd, POLLOUT) {
                    self.say_later(fd, rest);
                    break;
                }
                let outcome = write_now(fd, rest);
                match usize::try_from(outcome) {
                    Ok(written) => rest = &rest[written..],
                    Err(_) if is_later(outcome) => {}
                    Err(_) => return,
                }
            }
        }
    }

    fn has_rest(&self, fd: c_int) -> bool {
        let mut all = self.rest.0.iter().filter(|rest| rest.fd >= 0);
        all.next().is_some() && {
            let inode = inode(fd);
            self.rest.0.iter().any(|rest| rest.is_for(inode))
        }
    }

    fn say_later(&mut self, fd: c_int, said: &[u8]) {
        let inode = inode(fd);
        let all = &mut self.rest.0;
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

    /// All replays are over: whoever is to hear the rest listens.
    pub(crate) fn say_rest(&mut self) {
        let until = clock::monotonic().saturating_add(PATIENCE);
        for place in 0..MOST {
            let fd = self.rest.0[place].fd;
            while fd >= 0 && !self.rest.0[place].say() {
                let left = until.saturating_sub(clock::monotonic());
                if !becomes_ready(fd, POLLOUT | POLLERR | POLLHUP, left) {
                    say(&[b"no process reads the bytes from this process to another process"]);
                    self.fail(Failure::OtherOutput, Call::Write, None);
                }
            }
        }
    }

    /// It ends in its replay, and would take that with it.
    pub(crate) fn has_said_all(&mut self) {
        if self.rest.0.iter().any(|rest| rest.fd >= 0) {
            say(&[b"a process has ended before another process had read all bytes"]);
            self.fail(Failure::OtherOutput, Call::Write, None);
        }
    }

    /// What its parent has not said yet the parent says.
    pub(crate) fn forget_rest(&mut self) {
        for rest in self.rest.0.iter_mut().filter(|rest| rest.fd >= 0) {
            rest.let_go();
        }
    }
}
