//! Helper threads come to rest before the first thread looks at what they have done.
//!
//! How far a helper is, the first thread can see in many ways: a counter under a mutex, a queue that is empty. That depends on the
//! machine, and in a replay it would be another thing. So whenever the first thread has begun a helper, or has woken some by a
//! condition or a semaphore, it waits until all of them sleep, before it can look: at once, or, if it holds a mutex that they may
//! want first, when it gives one back, and before it takes one. Then they have done all that there was to do, in each life. One
//! that sleeps may wait for a mutex that the first thread holds ([`mutexes`]): when it gives that back, they rest once more.
//!
//! Whether a thread sleeps its state says, in `/proc`: that file is open for each of them, and made anew whenever it is read. One
//! that waits for a disk does not sleep: it is waited for.

use core::{
    cell::Cell,
    ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

use libc::{FUTEX_WAIT, FUTEX_WAKE, O_CLOEXEC, O_RDONLY, c_int, c_void};
use wrap_abi::{
    Call, Record,
    layout::{FILE_FD, Failure, HELPERS, HELPERS_FD, Restless},
};

use crate::{
    calls::reading::becomes_ready,
    clock::{monotonic, time_of_day},
    mutexes,
    say::{Decimal, say},
    sys::sys,
    wrap::{Wrap, with},
};

/// How long they may run after they were woken, nanoseconds; the first thread does nothing meanwhile.
const LONGEST: u64 = 5_000_000_000;
/// How long a replay waits for what they have done: they may have slept before.
const LONGEST_AGAIN: u64 = 30_000_000_000;
/// How often the first thread gives way before it sleeps, and for how long, nanoseconds.
const YIELDS: u32 = 16;
const PAUSE: i64 = 50_000;
/// One waits for ever.
const FOREVER: u64 = u64::MAX;
/// A deadline by the time of day.
const WALL: u64 = 1 << 63;

/// A thread, and what it waits for.
struct Helper {
    /// 0: there is none.
    thread: AtomicI32,
    /// It waits for a condition or a semaphore until then, nanoseconds; 0: it does not.
    until: AtomicU64,
}

static ALL: [Helper; HELPERS] = [const { Helper::none() }; HELPERS];
/// They are not waited for any more: a [`Restless`], or 0.
static IS_OVER: AtomicU32 = AtomicU32::new(0);
/// One of them may have woken another one that waits for ever.
static HAVE_WOKEN: AtomicBool = AtomicBool::new(false);
/// Why the one that begins now cannot be waited for.
static UNKNOWN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The first thread has woken somebody since they rested.
    static HAS_WOKEN: Cell<bool> = const { Cell::new(false) };
    /// Which of them this thread is.
    static OWN: Cell<Option<&'static Helper>> = const { Cell::new(None) };
}

/// A helper waits for others by `perform`, not longer than until then: null is for ever.
pub(crate) fn waits(until: *const libc::timespec, perform: impl FnOnce() -> c_int) -> c_int {
    let Some(own) = OWN.get() else {
        return perform();
    };
    // SAFETY: as the program has called us.
    let until = unsafe { until.as_ref() }.map_or(FOREVER, deadline);
    own.until.store(until, Ordering::Release);
    let outcome = perform();
    own.until.store(0, Ordering::Release);
    outcome
}

/// By the kernel's clocks, of which one is far ahead of the other.
fn deadline(until: &libc::timespec) -> u64 {
    /// Seconds. No host is up for so long, and the time of day was this in 2001.
    const SINCE_1970: i64 = 1_000_000_000;
    let seconds = u64::try_from(until.tv_sec).unwrap_or(0);
    let at = seconds.saturating_mul(1_000_000_000) + u64::try_from(until.tv_nsec).unwrap_or(0);
    match until.tv_sec {
        _ if at >= WALL => FOREVER,
        0..SINCE_1970 => at.max(1),
        _ => at | WALL,
    }
}

/// A helper may have woken another one.
#[inline]
pub(crate) fn helper_woke() {
    if OWN.get().is_some() {
        HAVE_WOKEN.store(true, Ordering::Release);
    }
}

/// The first thread has woken somebody, maybe.
pub(crate) fn woke() {
    HAS_WOKEN.set(true);
    if !mutexes::any_is_new() {
        settle();
    }
}

/// A helper has woken the first thread, maybe, and goes on.
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
    /// The first thread has slept: meanwhile they may have gone on by themselves.
    #[inline]
    pub(crate) fn has_slept(&mut self) {
        if ALL.iter().any(Helper::may_run) || HAVE_WOKEN.load(Ordering::Relaxed) {
            HAVE_WOKEN.store(false, Ordering::Relaxed);
            self.has_heard_helpers();
        }
    }

    /// The first thread knows that one of them has done something.
    pub(crate) fn has_heard_helpers(&mut self) {
        self.await_rest();
    }

    /// In a replay: is one of them about to write what can be read here? It has done so in the dead life.
    #[cold]
    pub(crate) fn awaits_helper(&mut self, fd: c_int) -> bool {
        if is_over() || !ALL.iter().any(Helper::is_there) {
            return false;
        }
        if !becomes_ready(fd, libc::POLLIN, LONGEST_AGAIN) {
            self.fail(Failure::HelperIsSilent, Call::Input, None);
        }
        self.has_heard_helpers();
        true
    }

    #[cold]
    fn await_rest(&mut self) {
        HAS_WOKEN.set(false);
        if is_over() || self.gives_up_again() {
            return;
        }
        // Where the record goes on, they did rest.
        let did_rest = self.is_replay && self.stream.peek().is_some();
        let longest = if did_rest { LONGEST_AGAIN } else { LONGEST };
        if !all_sleep(longest) {
            self.give_up_helpers(Restless::Runs);
        }
        mutexes::all_are_old();
        self.rests.add(self.stream.position());
    }

    /// The dead life has not waited for them any more from here on.
    fn gives_up_again(&mut self) -> bool {
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

    /// They are not waited for any more, which the next lives are to know.
    #[cold]
    fn give_up_helpers(&mut self, reason: Restless) {
        if is_over() || self.gives_up_again() {
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

/// Within so many nanoseconds.
fn all_sleep(longest: u64) -> bool {
    let since = monotonic();
    let mut rounds = 0;
    let mut passes = 0;
    // Twice in a row: the one that was looked at first may have been woken by the last.
    while passes < 2 {
        passes = match ALL.iter().all(Helper::sleeps) {
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
            until: AtomicU64::new(0),
        }
    }

    fn is_there(&self) -> bool {
        self.thread.load(Ordering::Relaxed) != 0
    }

    /// One that waits for ever and was woken by the first thread has come to rest since then.
    fn may_run(&self) -> bool {
        self.is_there()
            && match self.until.load(Ordering::Acquire) {
                0 => true,
                FOREVER => false,
                at if at & WALL != 0 => time_of_day() >= at & !WALL,
                at => monotonic() >= at,
            }
    }

    /// The number of its file.
    fn file(&self) -> c_int {
        let place = ptr::from_ref(self).addr() - ALL.as_ptr().addr();
        HELPERS_FD + (place / size_of::<Self>()) as c_int
    }

    /// Does it sleep, or is there none any more?
    fn sleeps(&self) -> bool {
        if !self.is_there() {
            return true;
        }
        let mut room = [0_u8; 64];
        // SAFETY: room on our stack.
        let length = unsafe { sys!(SYS_pread64, self.file(), room.as_mut_ptr(), room.len(), 0) };
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
        if self.is_there() {
            self.keep_number();
            self.thread.store(0, Ordering::Release);
        }
    }

    /// Its number is nobody else's while it has no file.
    fn keep_number(&self) {
        // SAFETY: both numbers are ours.
        unsafe { sys!(SYS_dup3, FILE_FD, self.file(), O_CLOEXEC) };
    }

    /// `false`: the thread cannot be looked at.
    fn open(&self) -> bool {
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
            if file < 0 {
                return false;
            }
            let there = sys!(SYS_dup3, file, self.file(), O_CLOEXEC);
            sys!(SYS_close, file);
            there >= 0
        }
    }
}

/// This thread is one of them from here on.
fn begin() {
    let is_free = |helper: &&Helper| !helper.is_there();
    let Some(helper) = ALL.iter().find(is_free) else {
        UNKNOWN.store(Restless::TooMany as u32, Ordering::Release);
        return;
    };
    // SAFETY: no memory is involved.
    let thread = unsafe { sys!(SYS_gettid) };
    helper.until.store(0, Ordering::Relaxed);
    helper.thread.store(thread as c_int, Ordering::Release);
    if helper.open() {
        OWN.set(Some(helper));
    } else {
        helper.thread.store(0, Ordering::Release);
        UNKNOWN.store(Restless::Unseen as u32, Ordering::Release);
    }
}

/// The numbers of their files are taken before the program begins: it finds the same ones free in each life.
pub(crate) fn keep_numbers() {
    for (number, _) in (HELPERS_FD..).zip(&ALL) {
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
    for helper in &ALL {
        // SAFETY: no memory is involved; it is ours.
        unsafe { sys!(SYS_close, helper.file()) };
    }
}

/// What was made again of an image has the same threads.
pub(crate) fn open_files(wrap: &Wrap) {
    keep_numbers();
    for helper in ALL.iter().filter(|helper| helper.is_there()) {
        helper.open();
    }
    wrap.are_over(IS_OVER.load(Ordering::Relaxed));
}

/// This process is a child: they are its parent's.
pub(crate) fn forget() {
    for helper in &ALL {
        helper.forget();
    }
    IS_OVER.store(0, Ordering::Relaxed);
    HAS_WOKEN.set(false);
}

/// These descriptors are for their files.
pub(crate) const FILES: core::ops::Range<c_int> = HELPERS_FD..HELPERS_FD + HELPERS as c_int;

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
    // SAFETY: it is what the program has given.
    let start = unsafe { core::mem::transmute::<*mut c_void, Start>(start) };
    begin();
    HAS_BEGUN.store(1, Ordering::Release);
    // SAFETY: an address that stays.
    unsafe { sys!(SYS_futex, HAS_BEGUN.as_ptr(), FUTEX_WAKE, 1) };
    start(argument)
}
