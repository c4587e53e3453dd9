//! Output that leaves later: where the logger is far, the program is not made to wait for it (*output commit*;
//! `ft-tcp-infocom-2001`, IV.D).
//!
//! What it writes is taken for written and kept ([`Held`]). What it has recorded is sent to the logger when its event loop
//! comes to wait, and while it does, we listen to the logger, too: what is safe by then leaves. If the
//! process dies first, what was not said is said by its next life: the record has the write's causes.
//!
//! That is for writes that the kernel would have taken whole and at once. For any other, for the end of a connection, and before
//! the program sleeps anywhere but in its event loop, all that is held is waited for.

use core::cell::UnsafeCell;

use libc::{
    EAGAIN, EINTR, F_GETFL, MSG_DONTWAIT, MSG_NOSIGNAL, O_NONBLOCK, POLLIN, POLLOUT, SO_MEMINFO,
    SOL_SOCKET, c_int, iovec, pollfd, timespec,
};
use wrap_abi::{Held, layout::SHIPPING_FD};

use crate::{
    calls::reading::{gather, is_ready, total},
    clock,
    commit::{FIRST_PATIENCE, LONGEST_PATIENCE, is_stable},
    shipping::Heard,
    signals::blocking,
    sys::{Outcome, sys},
    wrap::Wrap,
};

/// From this round trip to the logger on the program does not wait for it, nanoseconds; below half of it, it does again.
const FAR: u64 = 100_000;
/// No more is held of a connection, or is in its socket when more is held, bytes. Below it is any limit that the system may have
/// set to what a socket takes (`tcp_notsent_lowat`).
const MOST_OF_EACH: usize = 64 << 10;
/// What a write may take up in a socket besides its bytes.
const OVERHEAD: usize = 4 << 10;

struct Static(UnsafeCell<Held>);
// SAFETY: only the process's first thread refers to it (`crate::wrap::with`).
unsafe impl Sync for Static {}

static HELD: Static = Static(UnsafeCell::new(Held::EMPTY));

/// What is held.
///
/// # Safety
/// Once, by the process's first thread.
pub(crate) unsafe fn held() -> &'static mut Held {
    // SAFETY: by the caller.
    unsafe { &mut *HELD.0.get() }
}

/// How long the logger takes to answer.
#[derive(Default)]
pub(crate) struct RoundTrip {
    /// Smoothed, nanoseconds; 0: it was never measured.
    time: u64,
    pub(crate) is_long: bool,
}

impl RoundTrip {
    /// It has taken so long, nanoseconds.
    pub(crate) fn took(&mut self, time: u64) {
        self.time = match self.time {
            0 => time,
            before => before - before / 8 + time / 8,
        };
        self.is_long = match self.is_long {
            true => self.time >= FAR / 2,
            false => self.time >= FAR,
        };
    }
}

/// What is waited for, while something is held.
pub(crate) struct Waiting {
    /// Since when nothing new was heard, nanoseconds.
    since: u64,
    /// For how long before all is sent again, microseconds.
    patience: i64,
    /// The round trip is measured by when the logger has so much, which was sent then; 0: it is not.
    probe: u64,
    probed_at: u64,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            since: 0,
            patience: FIRST_PATIENCE,
            probe: 0,
            probed_at: 0,
        }
    }
}

impl Wrap {
    /// Take this write for made, and have it leave later. `false`: it is to be made now.
    pub(crate) fn hold(&mut self, fd: c_int, pieces: &[iovec], flags: c_int) -> bool {
        let length = total(pieces);
        let plain = flags & !(MSG_DONTWAIT | MSG_NOSIGNAL) == 0;
        if !self.round_trip.is_long || !plain || length == 0 || !self.has_to_hold() {
            return false;
        }
        if self.held.is_empty() && self.processes().all(is_stable) {
            return false;
        }
        if !self.others_are_stable() || !self.has_room(fd, length, flags) {
            return false;
        }
        let Some(room) = self.held.push(fd, self.stream.position(), length) else {
            return false;
        };
        // SAFETY: the program has given them to be written.
        unsafe { gather(pieces, room) };
        if let Some(connection) = self.descriptors.connection(fd) {
            connection.held += (2 * length + OVERHEAD) as u32;
        }
        self.stream.speaks();
        true
    }

    /// What another process has recorded may have to do with it: only this one's record is followed here.
    fn others_are_stable(&self) -> bool {
        let mut all = (0..).zip(self.processes());
        all.all(|(number, process)| number == self.process || is_stable(process))
    }

    /// Is it certain that the kernel takes so much of this connection, now and later?
    fn has_room(&mut self, fd: c_int, length: usize, flags: c_int) -> bool {
        let Some(connection) = self.descriptors.connection(fd) else {
            return false;
        };
        if flags & MSG_DONTWAIT == 0 && !connection.is_nonblocking {
            connection.is_nonblocking = is_nonblocking(fd);
            if !connection.is_nonblocking {
                return false;
            }
        }
        // What has gone to another server is counted by the kernel, so it has to be there before more is recorded.
        if connection.is_outgoing() {
            return false;
        }
        let wanted = connection.held as usize + 2 * length + OVERHEAD;
        !connection.is_limited && wanted <= MOST_OF_EACH && free_in(fd) >= wanted
    }

    /// The program has said whether it does.
    pub(crate) fn may_block(&mut self, fd: c_int) {
        if let Some(connection) = self.descriptors.connection(fd) {
            connection.is_nonblocking = false; // it is asked for again
        }
    }

    /// Write what may leave by now.
    pub(crate) fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let stable = if self.has_to_hold() {
            self.stable()
        } else {
            u64::MAX
        };
        while let Some((fd, bytes)) = self.held.first(stable) {
            write_through(fd, bytes);
            let length = bytes.len();
            self.held.pop();
            if let Some(connection) = self.descriptors.connection(fd) {
                connection.held -= (2 * length + OVERHEAD) as u32;
            }
        }
    }

    /// The program is about to sleep where we do not listen to the logger.
    #[inline]
    pub(crate) fn before_sleep(&mut self) {
        if !self.held.is_empty() {
            self.await_stable();
        }
    }

    /// The same if it sleeps for lack of what this descriptor brings.
    #[inline]
    pub(crate) fn before_reading(&mut self, fd: c_int) {
        if self.held.is_empty() {
            return;
        }
        let known = self.descriptors.connection(fd);
        let is_nonblocking = known.is_some_and(|connection| connection.is_nonblocking);
        if !is_nonblocking && !is_ready(fd, POLLIN) && !self::is_nonblocking(fd) {
            self.await_stable();
        }
    }

    /// `epoll_pwait` with these arguments while something is held.
    pub(crate) fn wait_and_release(&mut self, arguments: [usize; 6]) -> Outcome {
        let [epoll, events, most, timeout, mask, size] = arguments;
        let at_once = [epoll, events, most, 0, mask, size];
        let timeout = timeout as c_int;
        let began = clock::monotonic();
        loop {
            self.tell_and_hear(clock::monotonic());
            // SAFETY: as the program has called us.
            let outcome = unsafe { blocking(libc::SYS_epoll_pwait, at_once) };
            let passed = clock::monotonic().saturating_sub(began) / 1000;
            let left = match timeout {
                ..0 => i64::MAX,
                _ => i64::from(timeout) * 1000 - passed.cast_signed(),
            };
            if outcome != 0 || left <= 0 {
                return outcome;
            }
            if self.held.is_empty() {
                let left = c_int::try_from((left + 999) / 1000).unwrap_or(-1);
                let arguments = [epoll, events, most, left as usize, mask, size];
                // SAFETY: as the program has called us.
                return unsafe { blocking(libc::SYS_epoll_pwait, arguments) };
            }
            let interrupted = -Outcome::from(EINTR);
            if sleep(epoll as c_int, left.min(self.waiting.patience), mask) == interrupted {
                return interrupted;
            }
        }
    }

    /// Send what was recorded, and let go what the logger says is safe.
    fn tell_and_hear(&mut self, now: u64) {
        if self.find_the_way() {
            let before = self.shipped();
            if self.ship_news() {
                self.sent(before, now);
            }
            self.hear_news(now);
            self.send_again(now);
        }
        self.release();
    }

    /// More than was sent before is under way.
    fn sent(&mut self, before: u64, now: u64) {
        let (stable, shipped) = (self.stable(), self.shipped());
        let waiting = &mut self.waiting;
        if before <= stable {
            (waiting.since, waiting.patience) = (now, FIRST_PATIENCE);
        }
        if waiting.probe == 0 {
            (waiting.probe, waiting.probed_at) = (shipped, now);
        }
    }

    /// What has not arrived for so long was lost.
    fn send_again(&mut self, now: u64) {
        let passed = now.saturating_sub(self.waiting.since) / 1000;
        if passed <= self.waiting.patience.unsigned_abs() {
            return;
        }
        self.ship();
        self.waiting = Waiting {
            since: now,
            patience: (self.waiting.patience * 2).min(LONGEST_PATIENCE),
            ..Waiting::default()
        };
    }

    fn hear_news(&mut self, now: u64) {
        loop {
            match self.hear_now() {
                Heard::News => {
                    (self.waiting.since, self.waiting.patience) = (now, FIRST_PATIENCE);
                }
                Heard::Over => self.is_over(),
                Heard::Nothing => {}
                Heard::Silence | Heard::Nobody => break,
            }
        }
        if self.waiting.probe != 0 && self.stable() >= self.waiting.probe {
            let took = now.saturating_sub(self.waiting.probed_at);
            self.round_trip.took(took);
            self.waiting.probe = 0;
        }
    }
}

/// Until the program's events, the logger's answer, or so many microseconds later.
fn sleep(epoll: c_int, microseconds: i64, mask: usize) -> Outcome {
    let mut places = [epoll, SHIPPING_FD].map(|fd| pollfd {
        fd,
        events: POLLIN,
        revents: 0,
    });
    let mut time = timespec {
        tv_sec: microseconds / 1_000_000,
        tv_nsec: microseconds % 1_000_000 * 1000,
    };
    let arguments = [
        places.as_mut_ptr().addr(),
        places.len(),
        (&raw mut time).addr(),
        mask,
        8,
        0,
    ];
    // SAFETY: all is on our stack, but the mask, which is the program's.
    unsafe { blocking(libc::SYS_ppoll, arguments) }
}

/// Does what is asked of it return at once?
fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    let flags = unsafe { sys!(SYS_fcntl, fd, F_GETFL) };
    flags >= 0 && flags & Outcome::from(O_NONBLOCK) != 0
}

/// How much a socket takes, as the kernel counts it.
fn free_in(fd: c_int) -> usize {
    /// `SK_MEMINFO_*` of the kernel.
    const SNDBUF: usize = 3;
    const QUEUED: usize = 5;
    let mut numbers = [0u32; 9];
    let mut length = size_of_val(&numbers) as u32;
    // SAFETY: room on our stack.
    let outcome = unsafe {
        let (at, size) = (numbers.as_mut_ptr(), &raw mut length);
        sys!(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, at, size)
    };
    if outcome < 0 {
        return 0;
    }
    (numbers[SNDBUF] as usize)
        .min(MOST_OF_EACH)
        .saturating_sub(numbers[QUEUED] as usize)
}

/// A connection that has ended takes nothing: the program finds that out by itself. One that has no room after all
/// (the kernel has no memory) is waited for.
fn write_through(fd: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        // SAFETY: bytes of ours.
        let outcome = unsafe { sys!(SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0, 0) };
        match usize::try_from(outcome) {
            Ok(length) => bytes = bytes.get(length..).unwrap_or_default(),
            Err(_) if outcome == -Outcome::from(EAGAIN) => await_room(fd),
            Err(_) if outcome == -Outcome::from(EINTR) => {}
            Err(_) => return,
        }
    }
}

#[cold]
fn await_room(fd: c_int) {
    let mut place = pollfd {
        fd,
        events: POLLOUT,
        revents: 0,
    };
    // SAFETY: on our stack.
    unsafe { sys!(SYS_ppoll, &raw mut place, 1, 0, 0, 8) };
}
