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

use crate::{clock::monotonic, say::say, sys::sys};

/// Helpers that are waited for; what others do is not looked at.
const MOST: usize = 16;
/// Their files are opened there, if nothing is in the way.
const FIRST_FD: c_int = LIBRARY_FD + 1;
/// How long they may run after they were woken, nanoseconds; the first thread does nothing meanwhile.
const LONGEST: u64 = 5_000_000_000;
/// How often the first thread gives way before it sleeps, and for how long, nanoseconds.
const YIELDS: u32 = 16;
const PAUSE: i64 = 50_000;

/// The open files, 0 where there is none.
static STATES: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];
/// One has run for too long: it may never rest.
static IS_OVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The first thread has woken somebody since they rested.
    static HAS_WOKEN: Cell<bool> = const { Cell::new(false) };
    /// How many mutexes it holds.
    static LOCKS: Cell<u32> = const { Cell::new(0) };
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
        passes = match STATES.iter().all(sleeps) {
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

/// Does this helper sleep, or is there none any more?
fn sleeps(state: &AtomicI32) -> bool {
    let file = state.load(Ordering::Acquire);
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
    match letter {
        Some(b'R' | b'D') => false,
        Some(_) => true,
        None => {
            // It has ended.
            state.store(0, Ordering::Release);
            if length >= 0 || length == -i64::from(libc::ESRCH) {
                // SAFETY: it is ours.
                unsafe { sys!(SYS_close, file) };
            }
            true
        }
    }
}

/// This thread is one of them from here on.
fn begin() {
    let Some(place) = STATES
        .iter()
        .find(|state| state.load(Ordering::Acquire) == 0)
    else {
        return;
    };
    // SAFETY: a string; the numbers are ours.
    unsafe {
        let name = c"/proc/thread-self/stat".as_ptr();
        let file = sys!(SYS_openat, libc::AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
        let file_there = sys!(SYS_fcntl, file, libc::F_DUPFD_CLOEXEC, FIRST_FD);
        if file >= 0 {
            sys!(SYS_close, file);
        }
        place.store(
            c_int::try_from(file_there).unwrap_or(0).max(0),
            Ordering::Release,
        );
    }
}

/// This process is a child: they are its parent's.
pub(crate) fn forget() {
    for state in &STATES {
        let file = state.swap(0, Ordering::Relaxed);
        if file != 0 {
            // SAFETY: it is ours.
            unsafe { sys!(SYS_close, file) };
        }
    }
    HAS_WOKEN.set(false);
}

/// Is this one of our files?
pub(crate) fn is_ours(fd: c_int) -> bool {
    fd >= FIRST_FD
        && STATES
            .iter()
            .any(|state| state.load(Ordering::Relaxed) == fd)
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
