//! Which processes are dead.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::layout::PROCESSES;

/// The processes, by their numbers.
#[derive(Debug)]
#[repr(C)]
pub struct Lives(pub [Life; PROCESSES]);

impl Default for Lives {
    fn default() -> Self {
        Self([const { Life::new() }; PROCESSES])
    }
}

/// A process, as a mutex of it that is robust: when its first thread is over, the kernel says so in the word.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Life {
    word: AtomicU32,
    /// Its number, in the namespace that it is in; 0: it has not begun.
    pid: AtomicU32,
    _as_in_a_mutex: [u32; 4],
    /// Of the list that the kernel walks, in the process's own memory.
    previous: AtomicU64,
    next: AtomicU64,
}

/// `FUTEX_OWNER_DIED`.
const DIED: u32 = 1 << 30;
/// No thread has this number: the kernel lets a word alone that has.
const UNBORN: u32 = 1 << 29;

impl Life {
    /// From `next` to the word, bytes: as the C library has it.
    pub const OFFSET: i64 = -32;

    const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            _as_in_a_mutex: [0; 4],
            previous: AtomicU64::new(0),
            next: AtomicU64::new(0),
        }
    }

    /// It is about to be begun: from here on it is not known whether it is dead, until it says that it lives.
    pub fn conceive(&self) {
        self.pid.store(0, Ordering::Release);
        self.word.store(UNBORN, Ordering::Release);
    }

    /// Its place in the list of a thread, which begins and ends there.
    pub fn link(&self, head: u64) -> *const AtomicU64 {
        self.previous.store(head, Ordering::Release);
        self.next.store(head, Ordering::Release);
        &raw const self.next
    }

    /// It is this process's, in the list of whose thread it is.
    pub fn begin(&self, pid: u32, thread: u32) {
        self.pid.store(pid, Ordering::Release);
        self.word.store(thread, Ordering::Release);
    }

    /// Nobody has begun.
    pub fn forget(&self) {
        self.word.store(0, Ordering::Release);
    }

    /// What became of it is known, and nobody's concern. One that is alive stays so.
    pub fn settle(&self) {
        let settled = |word| (word == UNBORN || word & DIED != 0).then_some(0);
        let (made, known) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.word.fetch_update(made, known, settled);
    }

    /// Its number; 0: it has not begun.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Acquire)
    }

    /// It has begun, and is dead.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.word.load(Ordering::Acquire) & DIED != 0
    }

    /// It was about to be begun, and has not said that it lives.
    #[must_use]
    pub fn is_unborn(&self) -> bool {
        self.word.load(Ordering::Acquire) == UNBORN
    }
}
