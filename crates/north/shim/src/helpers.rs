//! Helper threads come to rest before the first thread looks at their work.
//!
//! The first thread can see the progress of a helper in many ways: a counter under a mutex, an empty queue. The
//! progress depends on the machine, and would differ in a replay. When the first thread has started a helper, or has
//! woken helpers by a condition or a semaphore, the first thread therefore waits until all helpers sleep. The wait is
//! at once; if the first thread holds a mutex that the helpers may need, the wait is at the unlock, and before the
//! next lock. The helpers have then done all available work, in each incarnation. A sleeping helper may wait for a
//! mutex of the first thread ([`mutexes`]): after the unlock the helpers rest once more.
//!
//! A helper that waits for a disk does not sleep: the first thread waits for the helper.

mod thread;
mod wait;
mod waking;

use core::{
    array,
    cell::Cell,
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering},
};

use libc::{FUTEX_WAIT, FUTEX_WAKE, c_int, c_void};
use north_abi::{
    Call, Record,
    layout::{Failure, Restless, THREADS},
};

use self::thread::{Thread, first, helpers};
pub(crate) use self::{
    thread::{THREAD_FILE_FDS, close_files, keep_numbers},
    waking::{for_us, wakes_by_itself},
};
use crate::{
    calls::reading::becomes_ready,
    clock::{self, monotonic},
    messages::say,
    mutexes,
    sys::sys,
    wrap::{Wrap, with},
};

/// Longest time in which woken helpers come to rest. The first thread waits.
const HELPER_REST_TIMEOUT_NS: u64 = 5_000_000_000;
/// Longest wait of a replay for helpers, which may have slept before.
const HELPER_REPLAY_TIMEOUT_NS: u64 = 30_000_000_000;
/// Yields of the first thread before it sleeps, and length of each sleep.
const YIELDS_BEFORE_SLEEP: u32 = 16;
const HELPER_POLL_INTERVAL_NS: i64 = 50_000;

/// Why helpers are not waited for any more: a [`Restless`], or 0.
static IS_OVER: AtomicU32 = AtomicU32::new(0);
/// A helper may have woken another helper that waits without a deadline.
static HAVE_WOKEN: AtomicBool = AtomicBool::new(false);
/// Why the helper that begins now cannot be waited for.
static UNKNOWN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The first thread may have woken a thread since the helpers rested.
    static HAS_WOKEN: Cell<bool> = const { Cell::new(false) };
    /// The helper of this thread.
    static OWN: Cell<Option<&'static Thread>> = const { Cell::new(None) };
}

/// A helper waits by `perform` for this object, which other threads signal. `until` is the deadline; null: none.
pub(crate) fn waits(
    thing: usize,
    until: *const libc::timespec,
    perform: impl FnOnce() -> c_int,
) -> c_int {
    match OWN.get() {
        Some(own) => own.waits(thing, until, perform),
        None => perform(),
    }
}

/// A thread wakes the waiters of this object by `perform`, and also a held helper whose wait has timed out.
#[inline]
pub(crate) fn wakes(thing: usize, perform: impl FnOnce() -> c_int) -> c_int {
    // A woken helper may wait again at once: a wait with another number.
    let waits: [_; THREADS - 1] = array::from_fn(|place| helpers()[place].wait.of(thing));
    let outcome = perform();
    for (helper, wait) in helpers().iter().zip(waits) {
        if let Some(wait) = wait {
            helper.wait.wake(wait);
        }
    }
    outcome
}

/// A helper may have woken another helper.
#[inline]
pub(crate) fn helper_woke() {
    if OWN.get().is_some() {
        HAVE_WOKEN.store(true, Ordering::Release);
    }
}

/// The first thread may have woken a thread.
pub(crate) fn woke() {
    HAS_WOKEN.set(true);
    if !mutexes::any_is_new() {
        settle();
    }
}

/// A helper may have woken the first thread, and continues.
pub(crate) fn was_woken() {
    HAS_WOKEN.set(true);
    settle();
}

/// The first thread is about to look at something.
#[inline]
pub(crate) fn settle() {
    if HAS_WOKEN.get() {
        with(Wrap::await_rest);
    }
}

/// The first thread has given this mutex back.
#[inline]
pub(crate) fn unlocked(mutex: usize) {
    if mutexes::given_back(mutex) {
        HAS_WOKEN.set(true);
    }
    settle();
}

fn is_over() -> bool {
    IS_OVER.load(Ordering::Relaxed) != 0
}

impl Wrap {
    /// The first thread has slept: helpers may have continued by themselves meanwhile.
    #[inline]
    pub(crate) fn has_slept(&mut self) {
        if helpers().iter().any(Thread::may_run) || HAVE_WOKEN.load(Ordering::Relaxed) {
            HAVE_WOKEN.store(false, Ordering::Relaxed);
            self.await_helper_effects();
        }
    }

    /// The first thread knows of the work of a helper.
    pub(crate) fn await_helper_effects(&mut self) {
        self.await_rest();
    }

    /// In a replay: waits for a helper to write to this descriptor, as in the dead incarnation.
    #[cold]
    pub(crate) fn awaits_helper(&mut self, fd: c_int) -> bool {
        if is_over() || !helpers().iter().any(Thread::is_there) {
            return false;
        }
        if !becomes_ready(fd, libc::POLLIN, HELPER_REPLAY_TIMEOUT_NS) {
            self.fail(Failure::HelperIsSilent, Call::Input, None);
        }
        self.await_helper_effects();
        true
    }

    #[cold]
    fn await_rest(&mut self) {
        HAS_WOKEN.set(false);
        if is_over() || self.replays_giving_up() {
            return;
        }
        // If the record continues, the helpers did rest.
        let did_rest = self.is_replay && self.stream.peek().is_some();
        let longest = if did_rest {
            HELPER_REPLAY_TIMEOUT_NS
        } else {
            HELPER_REST_TIMEOUT_NS
        };
        if !for_us(|| all_rest(longest)) {
            self.give_up_helpers(Restless::Runs);
        }
        mutexes::all_are_old();
        self.rests.add(self.stream.position());
    }

    /// The dead incarnation stopped waiting for helpers here.
    fn replays_giving_up(&mut self) -> bool {
        if !self.is_replay {
            return false;
        }
        let before = self.rests.before(self.stream.position());
        let (reason, length) = match self.stream.peek() {
            Some(Ok((record, length))) if (record.call, record.fd) == (Call::Helpers, before) => {
                (u32::try_from(record.outcome).unwrap_or(0), length)
            }
            _ => return false,
        };
        self.advance(length);
        self.are_over(reason);
        true
    }

    /// Helpers are not waited for any more. The record tells the next incarnations.
    #[cold]
    fn give_up_helpers(&mut self, reason: Restless) {
        if is_over() || self.replays_giving_up() {
            return;
        }
        let before = self.rests.before(self.stream.position());
        if self.is_replay() {
            self.fail(Failure::HelperRuns, Call::Helpers, None);
        }
        self.record(&Record {
            call: Call::Helpers,
            fd: before,
            outcome: reason as i64,
            payload: &[],
        });
        self.are_over(reason as u32);
        say(&[b"the server's threads are not waited for any more"]);
    }

    fn are_over(&self, reason: u32) {
        IS_OVER.store(reason, Ordering::Relaxed);
        self.page.restless.store(reason, Ordering::Release);
    }
}

/// Waits at most `longest` nanoseconds until all helpers rest.
fn all_rest(longest: u64) -> bool {
    let since = monotonic();
    let mut rounds = 0;
    let mut passes = 0;
    // Twice in a row: the last helper may have woken the first after the check of the first.
    while passes < 2 {
        passes = match helpers().iter().all(Thread::rests) {
            true => passes + 1,
            false => 0,
        };
        if passes == 0 {
            give_way(rounds);
            rounds += 1;
        }
        if monotonic().saturating_sub(since) > longest {
            return false;
        }
    }
    true
}

fn give_way(rounds: u32) {
    match rounds < YIELDS_BEFORE_SLEEP {
        // SAFETY: no memory is involved.
        true => drop(unsafe { sys!(SYS_sched_yield) }),
        false => clock::sleep(HELPER_POLL_INTERVAL_NS),
    }
}

/// Registers this thread as a helper.
fn begin() {
    let is_free = |helper: &&Thread| !helper.is_there();
    let Some(helper) = helpers().iter().find(is_free) else {
        UNKNOWN.store(Restless::TooMany as u32, Ordering::Release);
        return;
    };
    if helper.becomes_me() {
        OWN.set(Some(helper));
    } else {
        UNKNOWN.store(Restless::Unseen as u32, Ordering::Release);
    }
}

/// A process restored from an image has the same threads.
pub(crate) fn open_files(wrap: &Wrap) {
    thread::open_files();
    wrap.are_over(IS_OVER.load(Ordering::Relaxed));
}

/// This process is a child: the helpers are the parent's.
pub(crate) fn forget() {
    thread::forget_all();
    IS_OVER.store(0, Ordering::Relaxed);
    HAS_WOKEN.set(false);
}

/// Start function of a thread.
pub(crate) type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// Start function and argument of the next thread. Only the first thread starts helpers like this, one after another.
static START: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static ARGUMENT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// 0 until the thread has begun.
static HAS_BEGUN: AtomicU32 = AtomicU32::new(0);

/// Starts a helper by `perform`, and returns when the helper rests.
pub(crate) fn create(
    start: Start,
    argument: *mut c_void,
    perform: impl FnOnce(Start, *mut c_void) -> c_int,
) -> c_int {
    START.store(start as *mut c_void, Ordering::Relaxed);
    ARGUMENT.store(argument, Ordering::Relaxed);
    HAS_BEGUN.store(0, Ordering::Release);
    if !first().is_there() {
        first().becomes_me(); // after a failure no helper waits for its sleep
    }
    let outcome = perform(begun, ptr::null_mut());
    if outcome == 0 {
        while HAS_BEGUN.load(Ordering::Acquire) == 0 {
            // SAFETY: an address that stays.
            unsafe { sys!(SYS_futex, HAS_BEGUN.as_ptr(), FUTEX_WAIT, 0, 0) };
        }
        let unknown = Restless::from_code(UNKNOWN.swap(0, Ordering::AcqRel));
        if let Some(reason) = unknown {
            with(|wrap| wrap.give_up_helpers(reason));
        }
        woke();
    }
    outcome
}

extern "C" fn begun(_: *mut c_void) -> *mut c_void {
    let start = START.load(Ordering::Relaxed);
    let argument = ARGUMENT.load(Ordering::Relaxed);
    // SAFETY: the program's own start function.
    let start = unsafe { core::mem::transmute::<*mut c_void, Start>(start) };
    begin();
    HAS_BEGUN.store(1, Ordering::Release);
    // SAFETY: an address that stays.
    unsafe { sys!(SYS_futex, HAS_BEGUN.as_ptr(), FUTEX_WAKE, 1) };
    start(argument)
}
