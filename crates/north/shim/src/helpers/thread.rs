//! The state of a thread in `/proc` shows whether the thread sleeps. The shim keeps the file of each thread open; the
//! kernel makes the content at each read.

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

/// A thread, and its wait.
pub(super) struct Thread {
    /// 0: no thread.
    number: AtomicI32,
    /// Deadline of a wait for a condition or a semaphore, nanoseconds; 0: no wait.
    until: AtomicU64,
    /// The object of the wait.
    pub(super) wait: Wait,
}

/// The first thread, and the helpers.
static ALL: [Thread; THREADS] = [const { Thread::none() }; THREADS];

/// The recorded thread.
pub(super) fn first() -> &'static Thread {
    &ALL[0]
}

/// All places of helpers, also free places.
pub(super) fn helpers() -> &'static [Thread] {
    &ALL[1..]
}

/// State of a thread according to the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Sleeps,
    /// Also: waits for a disk.
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

    /// Registers the calling thread. `false`: the thread cannot be observed.
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

    /// Waits by `perform` for this object. `until` is the deadline; null: none.
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

    /// The wait has timed out.
    pub(super) fn is_held(&self) {
        self.until.store(0, Ordering::Release);
        self.wait.defer();
    }

    /// Whether the thread may run by itself. A thread that waited without a deadline, and that the first thread woke,
    /// has come to rest since then.
    pub(super) fn may_run(&self) -> bool {
        self.is_there()
            && match self.until.load(Ordering::Acquire) {
                0 => true,
                NO_DEADLINE => false,
                at if at & WALL_CLOCK_FLAG != 0 => time_of_day() >= at & !WALL_CLOCK_FLAG,
                at => monotonic() >= at,
            }
    }

    /// Whether the thread sleeps, or has ended.
    pub(super) fn rests(&self) -> bool {
        if !self.is_there() {
            return true;
        }
        // Checked before the state: a released helper runs.
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

    /// Descriptor of the thread's file.
    fn file(&self) -> c_int {
        let place = ptr::from_ref(self).addr() - ALL.as_ptr().addr();
        THREADS_FD + (place / size_of::<Self>()) as c_int
    }

    /// Keeps the descriptor number in use while the thread has no file.
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

/// The deadline by the kernel's clocks, of which the time of day is far ahead of the monotonic clock.
fn deadline(until: &libc::timespec) -> u64 {
    /// Seconds. No host is up for that long, and the time of day passed this number in 2001.
    const SINCE_1970: i64 = 1_000_000_000;
    let seconds = u64::try_from(until.tv_sec).unwrap_or(0);
    let at = seconds.saturating_mul(1_000_000_000) + u64::try_from(until.tv_nsec).unwrap_or(0);
    match until.tv_sec {
        _ if at >= WALL_CLOCK_FLAG => NO_DEADLINE,
        0..SINCE_1970 => at.max(1),
        _ => at | WALL_CLOCK_FLAG,
    }
}

/// Takes the descriptor numbers of the files before the program begins: the program finds the same free numbers in
/// each incarnation.
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
        // SAFETY: no memory is involved; the descriptor is ours.
        unsafe { sys!(SYS_close, thread.file()) };
    }
}

/// A process restored from an image has the same threads.
pub(super) fn open_files() {
    keep_numbers();
    for thread in ALL.iter().filter(|thread| thread.is_there()) {
        thread.open();
    }
}

/// This process is a child: the threads are the parent's.
pub(super) fn forget_all() {
    for thread in &ALL {
        thread.forget();
    }
}

/// Descriptors of the threads' files.
pub(crate) const THREAD_FILE_FDS: core::ops::Range<c_int> =
    THREADS_FD..THREADS_FD + THREADS as c_int;
