//! Detection of crashed processes. The kernel marks a dead process in a futex of the shared page (`robust_list`,
//! futex(2)), before the kernel closes the descriptors of the process and before a parent learns of the death.

use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicPtr, Ordering},
};

use libc::{c_int, c_void};
use north_abi::layout::{Fate, Liveness, Process};

use crate::{
    clock,
    process_group::REPLAY_POLL_INTERVAL_NS,
    sys::{Outcome, sys},
    wrap::{self, Wrap},
};

/// A child registers its liveness within this time after the fork.
const CHILD_START_TIMEOUT_NS: u64 = 10_000_000_000;
/// Dead processes that are remembered during a wait for `serve`.
const DEAD_PROCESSES_MAX: usize = 64;
/// A process that has seen a sibling crash waits this long for `serve` to kill the service. `serve` does not kill after
/// `SIGPIPE`, or while `serve` ends the service itself; then the process continues.
const SERVICE_KILL_TIMEOUT_NS: u64 = 10_000_000_000;
/// As [`SERVICE_KILL_TIMEOUT_NS`], for a dead process of another process session, which may have ended by itself.
const UNRELATED_KILL_TIMEOUT_NS: u64 = 250_000_000;

/// Whether a process with this wait status has crashed, and the service with the process.
pub(crate) fn is_crash(status: c_int) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) != libc::SIGPIPE
}

/// The service has crashed: no later outcome may enter the record, not even a signal.
#[cold]
pub(crate) fn await_service_kill() {
    await_service_kill_while(SERVICE_KILL_TIMEOUT_NS, || true);
}

/// Waits at most `patience` nanoseconds, while `is_so`. Returns whether the time is over without a kill.
pub(crate) fn await_service_kill_while(patience: u64, is_so: impl Fn() -> bool) -> bool {
    let until = clock::monotonic().saturating_add(patience);
    let is_ending = || wrap::page().is_some_and(|page| page.is_ending.load(Ordering::Acquire) != 0);
    while !is_ending() && is_so() {
        if clock::monotonic() > until {
            return true;
        }
        clock::sleep(10_000_000);
    }
    false
}

/// `struct robust_list_head`.
#[repr(C)]
struct RobustListHead {
    next: *mut c_void,
    offset: i64,
    pending: *mut c_void,
}

/// The list of the C library for the first thread. Processes made by a raw system call have none.
static ROBUST_LIST_HEAD: AtomicPtr<RobustListHead> = AtomicPtr::new(core::ptr::null_mut());

impl Wrap {
    /// From here on a crash of this process is detected.
    pub(crate) fn register_liveness(&self) {
        let liveness = &self.page.liveness.0[self.process as usize];
        link(liveness);
        // SAFETY: no memory is involved.
        let (process, thread) = unsafe { (sys!(SYS_getpid), sys!(SYS_gettid)) };
        // Only after the kernel knows the robust list.
        liveness.begin(number(process), number(thread));
    }

    /// The process with this number is about to be forked (`is_begun`), or the fork has failed.
    pub(crate) fn expect_child(&self, number: u32, is_begun: bool) {
        let liveness = &self.page.liveness.0[number as usize];
        match is_begun {
            true => liveness.prepare(),
            false => liveness.forget(),
        }
    }

    /// The main process, and all processes from number `first` on.
    fn all_from(
        &self,
        first: u32,
    ) -> impl Iterator<Item = (u32, &'static Process, &'static Liveness)> + use<> {
        let (page, all) = (self.page, self.all_processes());
        let all = all.filter(move |(number, _)| *number == 0 || *number >= first);
        all.map(|(number, process)| (number, process, &page.liveness.0[number as usize]))
    }

    /// Whether one of these processes has crashed.
    fn is_crashing(&self, first: u32) -> bool {
        self.all_from(first)
            .any(|(_, process, liveness)| is_dead(process, liveness))
    }

    fn expects_child(&self, first: u32) -> bool {
        self.all_from(first)
            .any(|(_, _, liveness)| liveness.is_pending())
    }

    /// As [`Self::is_crashing`], after a wait for new children: the crash of a child is not visible before the child
    /// has registered.
    fn is_service_crashing(&self, first: u32) -> bool {
        let until = clock::monotonic().saturating_add(CHILD_START_TIMEOUT_NS);
        loop {
            if self.is_crashing(first) {
                return true;
            }
            if !self.expects_child(first) {
                return false;
            }
            if clock::monotonic() > until {
                return true;
            }
            self.poll_children(first);
            clock::sleep(REPLAY_POLL_INTERVAL_NS);
        }
    }

    /// Dismisses the processes that are known not to have crashed.
    fn poll_children(&self, first: u32) {
        for (known, end) in self.children.ends() {
            let number = self.children.number(known).unwrap_or(0);
            if end.is_broken() {
                self.mark_orphaned(known);
            } else if !end.is_kill() {
                self.page.liveness.0[number as usize].settle();
            }
        }
        for (_, process, liveness) in self.all_from(first) {
            if is_dead(process, liveness) && is_other_program(liveness.pid()) {
                liveness.settle();
            }
        }
    }

    /// An outcome may be the consequence of a crash: this process waits for the kill instead of recording the outcome.
    #[cold]
    pub(crate) fn poll_crashes(&self) {
        self.poll_crashes_from(self.session(self.process), SERVICE_KILL_TIMEOUT_NS);
    }

    /// As [`Self::poll_crashes`], if any process of the service may be the cause.
    pub(crate) fn poll_any_crash(&self) {
        if self.page.next_process.load(Ordering::Acquire) > 1 {
            self.poll_crashes();
            self.poll_crashes_from(0, UNRELATED_KILL_TIMEOUT_NS);
        }
    }

    /// The siblings of a process have numbers above the first process of the session.
    fn poll_crashes_from(&self, first: u32, patience: u64) {
        if self.is_replay || !self.is_service_crashing(first) {
            return;
        }
        let mut seen = [0; DEAD_PROCESSES_MAX];
        let dead = self
            .all_from(first)
            .filter(|(_, process, liveness)| is_dead(process, liveness) || liveness.is_pending());
        for (place, (number, _, _)) in seen.iter_mut().zip(dead) {
            *place = number + 1;
        }
        let is_in_vain = await_service_kill_while(patience, || {
            self.poll_children(first);
            self.is_crashing(first) || self.expects_child(first)
        });
        // No kill: the deaths were no crash of the service.
        for number in seen.into_iter().filter(|number| is_in_vain && *number > 0) {
            self.page.liveness.0[number as usize - 1].settle();
        }
    }

    /// Polls for crashes if this outcome is an end of file, or an error of a dead peer.
    pub(crate) fn poll_crash_after(&self, fd: c_int, outcome: Outcome) {
        let signs = [
            0,
            -Outcome::from(libc::ECONNRESET),
            -Outcome::from(libc::EPIPE),
        ];
        if signs.contains(&outcome) && self.descriptors.get(fd).is_channel {
            self.poll_crashes();
        }
    }

    /// Polls for crashes before readiness is recorded.
    pub(crate) fn poll_sibling_crash(&self) {
        if self.group.uses_session_ipc {
            self.poll_crashes();
        }
    }
}

fn is_dead(process: &Process, liveness: &Liveness) -> bool {
    let has_left = process.has(Fate::Ends) || process.has(Fate::Executes);
    liveness.is_dead() && !has_left
}

fn number(outcome: Outcome) -> u32 {
    u32::try_from(outcome).unwrap_or(0)
}

/// Whether this process has executed another program unseen. The kernel marks the futex on execve(2), too. A dead
/// process has no program.
fn is_other_program(pid: u32) -> bool {
    let mut path = *b"/proc/0000000000/exe\0";
    let mut rest = pid;
    for digit in path[6..16].iter_mut().rev() {
        (*digit, rest) = (b'0' + (rest % 10) as u8, rest / 10);
    }
    // The kernel knows no leading zeros.
    let zeros = path[6..16]
        .iter()
        .take_while(|digit| **digit == b'0')
        .count();
    path.copy_within(6 + zeros.., 6);
    let program = |path: *const u8| {
        let mut about = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: a string, and memory on our stack, which is read only after success.
        unsafe {
            match sys!(SYS_newfstatat, libc::AT_FDCWD, path, about.as_mut_ptr(), 0) {
                0 => Some((
                    about.assume_init_ref().st_dev,
                    about.assume_init_ref().st_ino,
                )),
                _ => None,
            }
        }
    };
    let its = program(path.as_ptr());
    pid != 0 && its.is_some() && its != program(c"/proc/self/exe".as_ptr().cast())
}

/// Robust mutexes of the C library stay in front of the list.
fn link(liveness: &Liveness) {
    let mut head: *mut RobustListHead = core::ptr::null_mut();
    let mut length = 0usize;
    // SAFETY: room on our stack.
    unsafe { sys!(SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
    if head.is_null() {
        head = ROBUST_LIST_HEAD.load(Ordering::Relaxed);
    }
    // SAFETY: the C library's own list, which stays in place; only this thread changes the list.
    let Some(known) = (unsafe { head.as_mut() }) else {
        return;
    };
    if known.offset != Liveness::ROBUST_LIST_OFFSET {
        return; // another C library: crashes are not visible
    }
    ROBUST_LIST_HEAD.store(head, Ordering::Relaxed);
    known.next = liveness.link(head.addr() as u64).cast_mut().cast();
    // SAFETY: the C library's list, which the kernel has had before, or which was the parent's.
    unsafe { sys!(SYS_set_robust_list, head, size_of::<RobustListHead>()) };
}
