//! Who crashes is seen to be dead before any of its descriptors is closed, and before anybody hears of its end: the
//! kernel says so in a word of the page that all share (`robust_list`, futex(2)).

use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicPtr, Ordering},
};

use libc::{c_int, c_void};
use north_abi::layout::{Fate, Life, Process};

use crate::{
    clock,
    process_group::PACE,
    sys::{Outcome, sys},
    wrap::{self, Wrap},
};

/// So long after it was begun a process says at the latest that it lives, nanoseconds.
const BIRTH: u64 = 10_000_000_000;
/// Dead ones that are remembered while others are waited for.
const FEW: usize = 64;
/// How long a process that has seen another one crash waits for its own end, nanoseconds: `serve` ends all of them.
/// Where it does not, because that was none to it (`SIGPIPE`), or it is ending the service anyway, they go on.
const PATIENCE: u64 = 10_000_000_000;
/// The same where the other one is no relative: who has one that ended by itself so may never be heard of.
const SHORT_PATIENCE: u64 = 250_000_000;

/// Has a process that ended like this crashed, so that the service has?
pub(crate) fn is_crash(status: c_int) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) != libc::SIGPIPE
}

/// The service has crashed, and this process is to end with it: nothing that it finds out now is to be in its record,
/// whatever signals tell it meanwhile (others end, too).
#[cold]
pub(crate) fn await_end() {
    await_end_while(PATIENCE, || true);
}

/// The same, as long as it looks like that. Has nothing come of it for so long that nothing will?
pub(crate) fn await_end_while(patience: u64, is_so: impl Fn() -> bool) -> bool {
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
struct Head {
    next: *mut c_void,
    offset: i64,
    pending: *mut c_void,
}

/// The one that the C library has given to the kernel, for the first thread: raw system calls begin processes without
/// it.
static HEAD: AtomicPtr<Head> = AtomicPtr::new(core::ptr::null_mut());

impl Wrap {
    /// This process is at work from here on, and if it crashes that is seen.
    pub(crate) fn lives(&self) {
        let life = &self.page.lives.0[self.process as usize];
        link(life);
        // SAFETY: no memory is involved.
        let (process, thread) = unsafe { (sys!(SYS_getpid), sys!(SYS_gettid)) };
        // Not before the kernel knows where to say it.
        life.begin(number(process), number(thread));
    }

    /// The process with this number is about to be begun, or was not after all.
    pub(crate) fn expects(&self, number: u32, is_begun: bool) {
        let life = &self.page.lives.0[number as usize];
        match is_begun {
            true => life.conceive(),
            false => life.forget(),
        }
    }

    /// The first process, and those from that number on, each with its own.
    fn all_from(
        &self,
        first: u32,
    ) -> impl Iterator<Item = (u32, &'static Process, &'static Life)> + use<> {
        let (page, all) = (self.page, self.all_processes());
        let all = all.filter(move |(number, _)| *number == 0 || *number >= first);
        all.map(|(number, process)| (number, process, &page.lives.0[number as usize]))
    }

    /// Has one of them died, and not ended by itself? Then the service is over.
    fn is_crashing(&self, first: u32) -> bool {
        self.all_from(first)
            .any(|(_, process, life)| is_dead(process, life))
    }

    fn expects_any(&self, first: u32) -> bool {
        self.all_from(first).any(|(_, _, life)| life.is_unborn())
    }

    /// The same as [`Self::is_crashing`]. Whoever was just begun is waited for until it says that it lives: whether it
    /// does is not seen before.
    fn comes_to_crash(&self, first: u32) -> bool {
        let until = clock::monotonic().saturating_add(BIRTH);
        loop {
            if self.is_crashing(first) {
                return true;
            }
            if !self.expects_any(first) {
                return false;
            }
            if clock::monotonic() > until {
                return true;
            }
            self.look_at_children(first);
            clock::sleep(PACE);
        }
    }

    /// Those of them of which it is known otherwise that they have not crashed.
    fn look_at_children(&self, first: u32) {
        for (known, end) in self.children.ends() {
            let number = self.children.number(known).unwrap_or(0);
            if end.is_broken() {
                self.is_orphaned(known);
            } else if !end.is_kill() {
                self.page.lives.0[number as usize].settle();
            }
        }
        for (_, process, life) in self.all_from(first) {
            if is_dead(process, life) && is_other_program(life.pid()) {
                life.settle();
            }
        }
    }

    /// Something was heard that may be due to that: this process is to end with the others, and not to find out.
    #[cold]
    pub(crate) fn look_for_crashes(&self) {
        self.look_for_crashes_from(self.session(self.process), PATIENCE);
    }

    /// The same where it may be due to any process of the service.
    pub(crate) fn look_for_any_crash(&self) {
        if self.page.next_process.load(Ordering::Acquire) > 1 {
            self.look_for_crashes();
            self.look_for_crashes_from(0, SHORT_PATIENCE);
        }
    }

    /// This process's relatives have higher numbers than the first one of them.
    fn look_for_crashes_from(&self, first: u32, patience: u64) {
        if self.is_replay || !self.comes_to_crash(first) {
            return;
        }
        let mut seen = [0; FEW];
        let dead = self
            .all_from(first)
            .filter(|(_, process, life)| is_dead(process, life) || life.is_unborn());
        for (place, (number, _, _)) in seen.iter_mut().zip(dead) {
            *place = number + 1;
        }
        let is_in_vain = await_end_while(patience, || {
            self.look_at_children(first);
            self.is_crashing(first) || self.expects_any(first)
        });
        // We are alive: nobody minds.
        for number in seen.into_iter().filter(|number| is_in_vain && *number > 0) {
            self.page.lives.0[number as usize - 1].settle();
        }
    }

    /// The same, if this is what became of a call.
    pub(crate) fn look_at_end(&self, fd: c_int, outcome: Outcome) {
        let signs = [
            0,
            -Outcome::from(libc::ECONNRESET),
            -Outcome::from(libc::EPIPE),
        ];
        if signs.contains(&outcome) && self.descriptors.get(fd).crosses {
            self.look_for_crashes();
        }
    }

    /// The same, if the process is about to be told what is ready.
    pub(crate) fn look_at_relatives(&self) {
        if self.kinship.has_ways {
            self.look_for_crashes();
        }
    }
}

fn is_dead(process: &Process, life: &Life) -> bool {
    let has_left = process.has(Fate::Ends) || process.has(Fate::Executes);
    life.is_over() && !has_left
}

fn number(outcome: Outcome) -> u32 {
    u32::try_from(outcome).unwrap_or(0)
}

/// Has the process with this number become another program, in a way that was not seen? The kernel takes that for its
/// thread's end, too. One that has ended runs none.
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
        // SAFETY: a string, and room on our stack, which is read if it was filled in.
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

/// What the C library keeps there of its own (mutexes that are robust) goes before.
fn link(life: &Life) {
    let mut head: *mut Head = core::ptr::null_mut();
    let mut length = 0usize;
    // SAFETY: room on our stack.
    unsafe { sys!(SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
    if head.is_null() {
        head = HEAD.load(Ordering::Relaxed);
    }
    // SAFETY: the C library's own, which stays where it is; only this thread changes it.
    let Some(known) = (unsafe { head.as_mut() }) else {
        return;
    };
    if known.offset != Life::OFFSET {
        return; // another C library's: its crashes are not seen
    }
    HEAD.store(head, Ordering::Relaxed);
    known.next = life.link(head.addr() as u64).cast_mut().cast();
    // SAFETY: it is the C library's, and has been given to the kernel before, or was its parent's.
    unsafe { sys!(SYS_set_robust_list, head, size_of::<Head>()) };
}
