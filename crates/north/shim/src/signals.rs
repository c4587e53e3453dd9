//! Signals arrive at the end of a call, not in the middle of a computation.
//!
//! The kernel's signal only sets a mark. The program's handler runs after the next call that leaves a record, and the
//! signal is recorded; a replay runs the handler after the same call. A mark interrupts a call that blocks, or keeps
//! such a call from starting: [`blocking`] leaves no gap between the check and the sleep.

use core::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    sync::atomic::{AtomicU64, Ordering},
};

use libc::{SA_NODEFER, SA_RESETHAND, SA_SIGINFO, c_int, c_void, sigaction, siginfo_t};
use north_abi::{Call, Record};

use crate::{
    children::End,
    liveness::await_service_kill,
    sys::{Outcome, sys},
    wrap::Wrap,
};

/// Offset of `si_pid` in `siginfo_t`, bytes.
const SIGINFO_PID_OFFSET: usize = 16;

/// `si_code` of a signal from the kernel itself.
const SI_KERNEL: c_int = 0x80;

/// Highest signal number.
const SIGNAL_MAX: usize = 64;

/// Arrived signals that are not delivered yet: bit n - 1 is signal n.
static PENDING: AtomicU64 = AtomicU64::new(0);

/// State of a signal.
struct Slot {
    /// The program's action.
    wanted: sigaction,
    /// The kernel's information at the arrival.
    information: siginfo_t,
}

struct Slots(UnsafeCell<[MaybeUninit<Slot>; SIGNAL_MAX + 1]>);
// SAFETY: `wanted` is written before the signal is caught, or by the reading thread. The thread that sets the mark
// writes `information`, and the thread that takes the mark reads `information`.
unsafe impl Sync for Slots {}
static SLOTS: Slots = Slots(UnsafeCell::new(
    [const { MaybeUninit::zeroed() }; SIGNAL_MAX + 1],
));

fn slot(signal: c_int) -> Option<*mut Slot> {
    let index = usize::try_from(signal)
        .ok()
        .filter(|index| (1..=SIGNAL_MAX).contains(index))?;
    // SAFETY: in bounds.
    Some(unsafe { SLOTS.0.get().cast::<Slot>().add(index) })
}

/// Signals that an instruction of the program raises, which cannot wait.
fn is_synchronous(signal: c_int) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    matches!(
        signal,
        SIGABRT | SIGBUS | SIGFPE | SIGILL | SIGSEGV | SIGSYS | SIGTRAP
    )
}

/// The program sets this action for the signal. Returns the action for the kernel instead.
pub(crate) fn wanted(signal: c_int, action: &sigaction) -> Option<sigaction> {
    let place = slot(signal).filter(|_| !is_synchronous(signal))?;
    let handler = action.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return None;
    }
    // SAFETY: see `Slots`.
    unsafe { (*place).wanted = *action };
    let mut ours = *action;
    ours.sa_sigaction = arrived as *const () as usize;
    // Blocking calls must end, whatever flags the program sets: the record needs the interruption.
    ours.sa_flags = (action.sa_flags | SA_SIGINFO) & !(SA_RESETHAND | libc::SA_RESTART);
    Some(ours)
}

/// The last action of the program for this signal.
pub(crate) fn last_wanted(signal: c_int) -> Option<sigaction> {
    // SAFETY: see `Slots`.
    slot(signal).map(|place| unsafe { (*place).wanted })
}

/// Whether an action of the kernel is the shim's.
pub(crate) fn is_ours(action: &sigaction) -> bool {
    action.sa_sigaction == arrived as *const () as usize
}

extern "C" fn arrived(signal: c_int, information: *mut siginfo_t, context: *mut c_void) {
    let Some(place) = slot(signal) else { return };
    // SAFETY: the kernel gives both; the context is of the interrupted thread.
    unsafe {
        (*place).information = *information;
        leave_gap(context.cast());
    }
    PENDING.fetch_or(1 << (signal - 1), Ordering::Release);
}

/// This process is a child: the marks are the parent's.
pub(crate) fn forget() {
    PENDING.store(0, Ordering::Release);
}

/// Whether there is a mark.
#[inline]
pub(crate) fn are_pending() -> bool {
    PENDING.load(Ordering::Relaxed) != 0
}

/// Takes a mark and records the signal, which is to be delivered now.
#[cold]
pub(crate) fn take(wrap: &mut Wrap) -> Option<c_int> {
    let pending = PENDING.load(Ordering::Acquire);
    if pending == 0 {
        return None;
    }
    let signal = c_int::try_from(pending.trailing_zeros()).ok()? + 1;
    PENDING.fetch_and(!(1 << (signal - 1)), Ordering::AcqRel);
    let place = slot(signal)?;
    if signal == libc::SIGCHLD {
        // SAFETY: see `Slots`; the kernel has filled in a child's.
        unsafe {
            let child = (&raw mut (*place).information)
                .byte_add(SIGINFO_PID_OFFSET)
                .cast::<libc::pid_t>();
            child.write(wrap.children.known(child.read()));
            let information = &(*place).information;
            let end = End(*information);
            if end.is_broken() {
                wrap.mark_orphaned(information.si_pid());
            } else if end.is_kill() {
                await_service_kill();
            }
        }
    }
    if wrap.process != 0 {
        wrap.poll_crashes(); // may be the signal of its parent's death (`PR_SET_PDEATHSIG`)
    }
    // SAFETY: see `Slots`; a plain structure's bytes.
    let payload = unsafe {
        let at = &raw const (*place).information;
        core::slice::from_raw_parts(at.cast::<u8>(), size_of::<siginfo_t>())
    };
    wrap.record(&Record {
        call: Call::Signal,
        fd: 0,
        outcome: signal.into(),
        payload,
    });
    Some(signal)
}

/// Takes the information about an ended child for which the program has not waited. An end that the program already
/// knows from the record does not count. Returns whether there is such a child.
fn is_news(wrap: &Wrap, place: *mut Slot) -> bool {
    let other = wrap.children.ended();
    if let Some(other) = other {
        // SAFETY: see `Slots`.
        unsafe { (*place).information = other };
    }
    other.is_some()
}

/// Removes a SIGCHLD mark without news after a replay, or where the record had a child's end.
pub(crate) fn forget_received(wrap: &Wrap) {
    let bit = 1 << (libc::SIGCHLD - 1);
    let is_marked = PENDING.load(Ordering::Acquire) & bit != 0;
    let place = slot(libc::SIGCHLD).filter(|_| is_marked);
    if place.is_some_and(|place| !is_news(wrap, place)) {
        PENDING.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// The next record, if that record is a signal.
pub(crate) fn replayed(wrap: &mut Wrap) -> Option<c_int> {
    let Ok((record, length)) = wrap.stream.peek()? else {
        return None; // a later read of the record reports the error
    };
    if record.call != Call::Signal {
        return None;
    }
    let signal = c_int::try_from(record.outcome).ok()?;
    let place = slot(signal)?;
    if record.payload.len() == size_of::<siginfo_t>() {
        // SAFETY: see `Slots`; any bytes are such a structure.
        unsafe {
            let to = &raw mut (*place).information;
            to.cast::<u8>()
                .copy_from_nonoverlapping(record.payload.as_ptr(), record.payload.len());
        }
    }
    wrap.advance(length);
    // SAFETY: see `Slots`; any bytes are such a structure.
    let (code, child) = unsafe { ((*place).information.si_code, (*place).information.si_pid()) };
    // A stopped or continued child has not ended.
    let tells_of_end = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&code);
    if signal == libc::SIGCHLD && tells_of_end {
        wrap.children.hear(child);
    }
    if code == SI_KERNEL {
        has_come(signal);
    }
    Some(signal)
}

/// A timer of the program also runs in a replay: after the recorded expiry the timer must not expire again.
fn has_come(signal: c_int) {
    let timer = match signal {
        libc::SIGALRM => libc::ITIMER_REAL,
        libc::SIGVTALRM => libc::ITIMER_VIRTUAL,
        libc::SIGPROF => libc::ITIMER_PROF,
        _ => return,
    };
    let never = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut left = libc::itimerval {
        it_interval: never,
        it_value: never,
    };
    let is_set = |time: &libc::timeval| (time.tv_sec, time.tv_usec) != (0, 0);
    // SAFETY: structures on our stack.
    unsafe {
        sys!(SYS_getitimer, timer, &raw mut left);
        if !is_set(&left.it_interval) && is_set(&left.it_value) {
            left.it_value = never;
            sys!(SYS_setitimer, timer, &raw const left, 0);
        }
    }
    PENDING.fetch_and(!(1 << (signal - 1)), Ordering::AcqRel);
}

/// Runs the program's handler. Returns whether an interrupted call starts again.
#[cold]
pub(crate) fn deliver(signal: c_int) -> bool {
    let Some(place) = slot(signal) else {
        return true;
    };
    // SAFETY: see `Slots`.
    let (wanted, mut information) = unsafe { ((*place).wanted, (*place).information) };
    let handler = wanted.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return true;
    }
    let mut before = MaybeUninit::uninit();
    let mut blocked = wanted.sa_mask;
    // SAFETY: the masks are on our stack; the program gave the handler for this signal.
    unsafe {
        if wanted.sa_flags & SA_NODEFER == 0 {
            libc::sigaddset(&raw mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, before.as_mut_ptr());
        if wanted.sa_flags & SA_SIGINFO == 0 {
            let handler: extern "C" fn(c_int) = core::mem::transmute(handler);
            handler(signal);
        } else {
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                core::mem::transmute(handler);
            let mut context = MaybeUninit::<libc::ucontext_t>::zeroed();
            handler(signal, &raw mut information, context.as_mut_ptr().cast());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
    }
    wanted.sa_flags & libc::SA_RESTART != 0
}

/// A system call that may sleep: a mark interrupts the call, or keeps the call from starting.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn blocking(number: i64, arguments: [usize; 6]) -> Outcome {
    // SAFETY: by the caller.
    unsafe { outlive_blocking_call(PENDING.as_ptr(), number, arguments.as_ptr()) }
}

core::arch::global_asm!(
    ".hidden outlive_blocking_call",
    ".hidden outlive_blocking_gap",
    ".hidden outlive_blocking_interrupted",
    ".globl outlive_blocking_call, outlive_blocking_gap, outlive_blocking_interrupted",
    ".type outlive_blocking_call, @function",
    "outlive_blocking_call:",
    "    .cfi_startproc",
    "    mov rax, rsi",
    "    mov r11, rdi",
    "    mov rcx, rdx",
    "    mov rdi, [rcx]",
    "    mov rsi, [rcx + 8]",
    "    mov rdx, [rcx + 16]",
    "    mov r10, [rcx + 24]",
    "    mov r8, [rcx + 32]",
    "    mov r9, [rcx + 40]",
    // A signal that arrives from here on ...
    "outlive_blocking_gap:",
    "    cmp qword ptr [r11], 0",
    "    jne outlive_blocking_interrupted",
    "    syscall",
    // ... to here, after the start of the call if there was no mark, ...
    "    ret",
    // ... moves the thread to this label.
    "outlive_blocking_interrupted:",
    "    mov rax, -4",
    "    ret",
    "    .cfi_endproc",
);

unsafe extern "C" {
    fn outlive_blocking_call(pending: *const u64, number: i64, arguments: *const usize) -> Outcome;
    static outlive_blocking_gap: [u8; 0];
    static outlive_blocking_interrupted: [u8; 0];
}

/// Keeps a thread that was about to sleep from the sleep.
///
/// # Safety
/// The context is the kernel's context of a signal.
unsafe fn leave_gap(context: *mut libc::ucontext_t) {
    let from = (&raw const outlive_blocking_gap).addr();
    let interrupted = (&raw const outlive_blocking_interrupted).addr();
    // SAFETY: by the caller.
    let register = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
    let at = usize::try_from(*register).unwrap_or(0);
    // `ret` is the single byte between the end of `syscall` and the other label.
    let end = interrupted - 1;
    if (from..end).contains(&at) {
        *register = i64::try_from(interrupted).unwrap_or(*register);
    }
}
