//! Whether a thread sleeps its state says, in `/proc`: that file is open for each of them, and made anew whenever it
//! is read.

use core::{
    ptr,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use libc::{O_CLOEXEC, O_RDONLY, c_int};
use north_abi::layout::{FILE_FD, THREADS, THREADS_FD};

use super::wait::Wait;
use crate::{
    clock::{monotonic, time_of_day},
    messages::Decimal,
    sys::sys,
};

/// A wait without deadline.
const NO_DEADLINE: u64 = u64::MAX;
/// Flag of a deadline on the wall clock.
const WALL_CLOCK_FLAG: u64 = 1 << 63;

/// A thread, and what it waits for.
pub(super) struct Thread {
    /// 0: there is none.
    number: AtomicI32,
    /// It waits for a condition or a semaphore until then, nanoseconds; 0: it does not.
    until: AtomicU64,
    /// What it waits for.
    pub(super) wait: Wait,
}

/// The first one, and its helpers.
static ALL: [Thread; THREADS] = [const { Thread::none() }; THREADS];

/// The one that is recorded.
pub(super) fn first() -> &'static Thread {
    &ALL[0]
}

/// The others, whether they are there or not.
pub(super) fn helpers() -> &'static [Thread] {
    &ALL[1..]
}

/// How a thread is, by what the kernel says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Sleeps,
    /// Or it waits for a disk.
    Runs,
    IsGone,
}

impl Thread {
    const fn none() -> Self {
        Self {
            number: AtomicI32::new(0),
            until: AtomicU64::new(0),
            wait: Wait::none(),
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.number.load(Ordering::Relaxed) != 0
    }

    /// This is the one that calls. `false`: it cannot be looked at.
    pub(super) fn becomes_me(&self) -> bool {
        // SAFETY: no memory is involved.
        let number = unsafe { sys!(SYS_gettid) };
        self.until.store(0, Ordering::Relaxed);
        self.wait.end();
        self.number.store(number as c_int, Ordering::Release);
        let is_open = self.open();
        if !is_open {
            self.number.store(0, Ordering::Release);
        }
        is_open
    }

    /// It waits for this by `perform`, not longer than until then: null is for ever.
    pub(super) fn waits(
        &self,
        thing: usize,
        until: *const libc::timespec,
        perform: impl FnOnce() -> c_int,
    ) -> c_int {
        // SAFETY: as the program has called us.
        let until = unsafe { until.as_ref() }.map_or(NO_DEADLINE, deadline);
        self.wait.begin(thing);
        self.until.store(until, Ordering::Release);
        let outcome = perform();
        self.until.store(0, Ordering::Release);
        self.wait.end();
        outcome
    }

    /// It has waited in vain.
    pub(super) fn is_held(&self) {
        self.until.store(0, Ordering::Release);
        self.wait.defer();
    }

    /// One that waits for ever and was woken by the first thread has come to rest since then.
    pub(super) fn may_run(&self) -> bool {
        self.is_there()
            && match self.until.load(Ordering::Acquire) {
                0 => true,
                NO_DEADLINE => false,
                at if at & WALL_CLOCK_FLAG != 0 => time_of_day() >= at & !WALL_CLOCK_FLAG,
                at => monotonic() >= at,
            }
    }

    /// Does it sleep, or is there none any more?
    pub(super) fn rests(&self) -> bool {
        if !self.is_there() {
            return true;
        }
        // Before its state: when it is held no longer, it runs.
        let is_to_go_on = self.wait.is_to_go_on();
        match self.state() {
            State::IsGone => {
                self.forget();
                true
            }
            State::Sleeps => !is_to_go_on,
            State::Runs => false,
        }
    }

    pub(super) fn state(&self) -> State {
        let mut room = [0_u8; 64];
        // SAFETY: room on our stack.
        let length = unsafe { sys!(SYS_pread64, self.file(), room.as_mut_ptr(), room.len(), 0) };
        let bytes = &room[..usize::try_from(length).unwrap_or(0)];
        // The name, which is in parentheses, and may have some itself; numbers follow.
        let letter = bytes
            .iter()
            .rposition(|byte| *byte == b')')
            .and_then(|end| bytes.get(end + 2));
        match letter {
            None => State::IsGone,
            Some(b'R' | b'D') => State::Runs,
            Some(_) => State::Sleeps,
        }
    }

    pub(super) fn forget(&self) {
        if self.is_there() {
            self.keep_number();
            self.number.store(0, Ordering::Release);
        }
    }

    /// The number of its file.
    fn file(&self) -> c_int {
        let place = ptr::from_ref(self).addr() - ALL.as_ptr().addr();
        THREADS_FD + (place / size_of::<Self>()) as c_int
    }

    /// Its number is nobody else's while it has no file.
    fn keep_number(&self) {
        // SAFETY: both numbers are ours.
        unsafe { sys!(SYS_dup3, FILE_FD, self.file(), O_CLOEXEC) };
    }

    /// `false`: the thread cannot be looked at.
    fn open(&self) -> bool {
        let thread = self.number.load(Ordering::Relaxed);
        let mut path = [0; 48];
        let number = Decimal::new(u64::from(thread.unsigned_abs()));
        let parts = [b"/proc/self/task/", number.as_bytes(), b"/stat"];
        for (to, from) in path.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        // SAFETY: a string, which zeros follow; the numbers are ours.
        unsafe {
            let flags = O_RDONLY | O_CLOEXEC;
            let file = sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
            if file < 0 {
                return false;
            }
            let there = sys!(SYS_dup3, file, self.file(), O_CLOEXEC);
            sys!(SYS_close, file);
            there >= 0
        }
    }
}

/// By the kernel's clocks, of which one is far ahead of the other.
fn deadline(until: &libc::timespec) -> u64 {
    /// Seconds. No host is up for so long, and the time of day was this in 2001.
    const SINCE_1970: i64 = 1_000_000_000;
    let seconds = u64::try_from(until.tv_sec).unwrap_or(0);
    let at = seconds.saturating_mul(1_000_000_000) + u64::try_from(until.tv_nsec).unwrap_or(0);
    match until.tv_sec {
        _ if at >= WALL_CLOCK_FLAG => NO_DEADLINE,
        0..SINCE_1970 => at.max(1),
        _ => at | WALL_CLOCK_FLAG,
    }
}

/// The numbers of their files are taken before the program begins: it finds the same ones free in each life.
pub(crate) fn keep_numbers() {
    for (number, _) in (THREADS_FD..).zip(&ALL) {
        // SAFETY: both numbers are ours.
        unsafe {
            let taken = sys!(SYS_fcntl, FILE_FD, libc::F_DUPFD_CLOEXEC, number);
            if taken > number.into() {
                sys!(SYS_close, taken);
            }
        }
    }
}

/// No image can have these files.
pub(crate) fn close_files() {
    for thread in &ALL {
        // SAFETY: no memory is involved; it is ours.
        unsafe { sys!(SYS_close, thread.file()) };
    }
}

/// What was made again of an image has the same threads.
pub(super) fn open_files() {
    keep_numbers();
    for thread in ALL.iter().filter(|thread| thread.is_there()) {
        thread.open();
    }
}

/// This process is a child: they are its parent's.
pub(super) fn forget_all() {
    for thread in &ALL {
        thread.forget();
    }
}

/// Descriptors of the threads' files.
pub(crate) const THREAD_FILE_FDS: core::ops::Range<c_int> =
    THREADS_FD..THREADS_FD + THREADS as c_int;
