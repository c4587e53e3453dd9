//! Helper threads come to rest before the first thread looks at what they have done.
//!
//! How far a helper is, the first thread can see in many ways: a counter under a mutex, a queue that is empty. That depends on the
//! machine, and in a replay it would be another thing. So whenever the first thread has begun a helper, or has woken some by a
//! condition or a semaphore, it waits until all of them sleep, before it can look: when it holds no mutex any more, and before it
//! takes one. Then they have done all that there was to do, in each life.
//!
//! Whether a thread sleeps its state says, in `/proc`: that file is open for each of them, and made anew whenever it is read. One
//! that waits for a disk does not sleep: it is waited for.

use core::{
    cell::Cell,
    ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering},
};

use libc::{FUTEX_WAIT, FUTEX_WAKE, O_CLOEXEC, O_RDONLY, c_int, c_void};
use wrap_abi::layout::LIBRARY_FD;

use crate::{
    calls::reading::becomes_ready,
    clock::monotonic,
    say::{Decimal, say},
    sys::sys,
};

/// Helpers that are waited for; what others do is not looked at.
const MOST: usize = 16;
/// Their files are opened there, if nothing is in the way.
const FIRST_FD: c_int = LIBRARY_FD + 1;
/// How long they may run after they were woken, nanoseconds; the first thread does nothing meanwhile.
const LONGEST: u64 = 5_000_000_000;
/// How long a replay waits for what one has said, nanoseconds: it may have slept before.
const LATEST: u64 = 2_000_000_000;
/// How often the first thread gives way before it sleeps, and for how long, nanoseconds.
const YIELDS: u32 = 16;
const PAUSE: i64 = 50_000;

/// A thread, and its open file; 0 where there is none.
struct Helper {
    thread: AtomicI32,
    file: AtomicI32,
    /// It waits for a condition or a semaphore: nobody need look.
    waits: AtomicBool,
}

static HELPERS: [Helper; MOST] = [const { Helper::none() }; MOST];
/// One has run for too long: it may never rest.
static IS_OVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The first thread has woken somebody since they rested.
    static HAS_WOKEN: Cell<bool> = const { Cell::new(false) };
    /// How many mutexes it holds.
    static LOCKS: Cell<u32> = const { Cell::new(0) };
    /// Which of them this thread is.
    static OWN: Cell<Option<&'static Helper>> = const { Cell::new(None) };
}

/// A helper waits for others by `perform`.
pub(crate) fn waits(perform: impl FnOnce() -> c_int) -> c_int {
    let Some(own) = OWN.get() else {
        return perform();
    };
    own.waits.store(true, Ordering::Release);
    let outcome = perform();
    own.waits.store(false, Ordering::Release);
    outcome
}

/// The first thread has slept: meanwhile they may have gone on by themselves.
#[inline]
pub(crate) fn slept() {
    if HELPERS.iter().any(Helper::may_run) {
        woke();
    }
}

/// The first thread has woken somebody, maybe.
pub(crate) fn woke() {
    HAS_WOKEN.set(true);
    settle();
}

/// The first thread is about to look at something, or to go on without a mutex.
#[inline]
pub(crate) fn settle() {
    if HAS_WOKEN.get() && LOCKS.get() == 0 {
        rest();
    }
}

/// The first thread has taken a mutex.
#[inline]
pub(crate) fn locked() {
    LOCKS.set(LOCKS.get().saturating_add(1));
}

/// The first thread has given a mutex back.
#[inline]
pub(crate) fn unlocked() {
    LOCKS.set(LOCKS.get().saturating_sub(1));
}

/// In a replay: is one of them about to write what can be read here? It has done so in the dead life.
#[cold]
pub(crate) fn will_write(fd: c_int) -> bool {
    if !HELPERS.iter().any(Helper::is_there) || IS_OVER.load(Ordering::Relaxed) {
        return false;
    }
    let writes = becomes_ready(fd, libc::POLLIN, LATEST);
    if writes {
        woke();
    } else {
        IS_OVER.store(true, Ordering::Relaxed);
        say(&[b"no thread of the server says again what one has said: they are not waited for any more"]);
    }
    writes
}

#[cold]
fn rest() {
    HAS_WOKEN.set(false);
    if IS_OVER.load(Ordering::Relaxed) {
        return;
    }
    let since = monotonic();
    let mut rounds = 0;
    let mut passes = 0;
    // Twice in a row: the one that was looked at first may have been woken by the last.
    while passes < 2 {
        passes = match HELPERS.iter().all(Helper::sleeps) {
            true => passes + 1,
            false => 0,
        };
        if passes == 0 {
            give_way(rounds);
            rounds += 1;
        }
        if monotonic().saturating_sub(since) > LONGEST {
            IS_OVER.store(true, Ordering::Relaxed);
            say(&[b"a thread of the server does not come to rest: it is not waited for any more"]);
            return;
        }
    }
}

fn give_way(rounds: u32) {
    let pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: PAUSE,
    };
    // SAFETY: a structure on our stack.
    unsafe {
        match rounds < YIELDS {
            true => sys!(SYS_sched_yield),
            false => sys!(SYS_nanosleep, &raw const pause, 0),
        };
    }
}

impl Helper {
    const fn none() -> Self {
        Self {
            thread: AtomicI32::new(0),
            file: AtomicI32::new(0),
            waits: AtomicBool::new(false),
        }
    }

    fn is_there(&self) -> bool {
        self.file.load(Ordering::Relaxed) != 0
    }

    fn may_run(&self) -> bool {
        self.is_there() && !self.waits.load(Ordering::Acquire)
    }

    /// Does it sleep, or is there none any more?
    fn sleeps(&self) -> bool {
        let file = self.file.load(Ordering::Acquire);
        if file == 0 {
            return true;
        }
        let mut room = [0_u8; 64];
        // SAFETY: room on our stack.
        let length = unsafe { sys!(SYS_pread64, file, room.as_mut_ptr(), room.len(), 0) };
        let bytes = &room[..usize::try_from(length).unwrap_or(0)];
        // The name, which is in parentheses, and may have some itself; numbers follow.
        let letter = bytes
            .iter()
            .rposition(|byte| *byte == b')')
            .and_then(|end| bytes.get(end + 2));
        if letter.is_none() {
            self.forget(); // it has ended
        }
        !matches!(letter, Some(b'R' | b'D'))
    }

    fn forget(&self) {
        self.close();
        self.thread.store(0, Ordering::Release);
    }

    fn open(&self) {
        let thread = self.thread.load(Ordering::Relaxed);
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
            let there = sys!(SYS_fcntl, file, libc::F_DUPFD_CLOEXEC, FIRST_FD);
            if file >= 0 {
                sys!(SYS_close, file);
            }
            let there = c_int::try_from(there).unwrap_or(0).max(0);
            self.file.store(there, Ordering::Release);
            if there == 0 {
                self.thread.store(0, Ordering::Release); // it has ended, or cannot be looked at
            }
        }
    }

    fn close(&self) {
        let file = self.file.swap(0, Ordering::AcqRel);
        if file != 0 {
            // SAFETY: it is ours.
            unsafe { sys!(SYS_close, file) };
        }
    }
}

/// This thread is one of them from here on.
fn begin() {
    let is_free = |helper: &&Helper| helper.thread.load(Ordering::Acquire) == 0;
    if let Some(helper) = HELPERS.iter().find(is_free) {
        // SAFETY: no memory is involved.
        let thread = unsafe { sys!(SYS_gettid) };
        let thread = c_int::try_from(thread).unwrap_or(0);
        helper.thread.store(thread, Ordering::Release);
        helper.waits.store(false, Ordering::Relaxed);
        helper.open();
        OWN.set(Some(helper));
    }
}

/// No image can have these files.
pub(crate) fn close_files() {
    for helper in &HELPERS {
        helper.close();
    }
}

/// What was made again of an image has the same threads.
pub(crate) fn open_files() {
    for helper in &HELPERS {
        if helper.thread.load(Ordering::Acquire) != 0 {
            helper.open();
        }
    }
}

/// This process is a child: they are its parent's.
pub(crate) fn forget() {
    for helper in &HELPERS {
        helper.forget();
    }
    HAS_WOKEN.set(false);
}

/// Is this one of our files?
pub(crate) fn is_ours(fd: c_int) -> bool {
    let is_it = |helper: &Helper| helper.file.load(Ordering::Relaxed) == fd;
    fd >= FIRST_FD && HELPERS.iter().any(is_it)
}

/// Behind the last of them; 0: there is none.
pub(crate) fn end_of_files() -> c_int {
    let files = HELPERS
        .iter()
        .map(|helper| helper.file.load(Ordering::Relaxed));
    files
        .filter(|file| *file != 0)
        .max()
        .map_or(0, |last| last + 1)
}

/// How a thread begins.
pub(crate) type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// What a thread that is begun now is to do; only the first thread begins them like this, one after the other.
static START: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static ARGUMENT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// 0 until it has begun.
static HAS_BEGUN: AtomicU32 = AtomicU32::new(0);

/// Begins a helper by `perform`, and returns when it rests.
pub(crate) fn create(
    start: Start,
    argument: *mut c_void,
    perform: impl FnOnce(Start, *mut c_void) -> c_int,
) -> c_int {
    START.store(start as *mut c_void, Ordering::Relaxed);
    ARGUMENT.store(argument, Ordering::Relaxed);
    HAS_BEGUN.store(0, Ordering::Release);
    let outcome = perform(begun, ptr::null_mut());
    if outcome == 0 {
        while HAS_BEGUN.load(Ordering::Acquire) == 0 {
            // SAFETY: an address that stays.
            unsafe { sys!(SYS_futex, HAS_BEGUN.as_ptr(), FUTEX_WAIT, 0, 0) };
        }
        woke();
    }
    outcome
}

extern "C" fn begun(_: *mut c_void) -> *mut c_void {
    let start = START.load(Ordering::Relaxed);
    let argument = ARGUMENT.load(Ordering::Relaxed);
    // SAFETY: it is what the program has given.
    let start = unsafe { core::mem::transmute::<*mut c_void, Start>(start) };
    begin();
    HAS_BEGUN.store(1, Ordering::Release);
    // SAFETY: an address that stays.
    unsafe { sys!(SYS_futex, HAS_BEGUN.as_ptr(), FUTEX_WAKE, 1) };
    start(argument)
}
