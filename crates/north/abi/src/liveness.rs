//! Futexes in which the kernel marks dead processes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::layout::PROCESSES;

/// One entry for each process number.
#[derive(Debug)]
#[repr(C)]
pub struct LivenessTable(pub [Liveness; PROCESSES]);

impl Default for LivenessTable {
    fn default() -> Self {
        Self([const { Liveness::new() }; PROCESSES])
    }
}

/// A robust mutex of a process. The kernel marks the word when the first thread of the process ends.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Liveness {
    word: AtomicU32,
    /// Process id in the namespace of the process; 0: not registered.
    pid: AtomicU32,
    _as_in_a_mutex: [u32; 4],
    /// Links of the robust list, in the memory of the process.
    previous: AtomicU64,
    next: AtomicU64,
}

/// `FUTEX_OWNER_DIED`.
const FUTEX_OWNER_DIED: u32 = 1 << 30;
/// Not the number of a thread. The kernel ignores a word with this value.
const FORK_PENDING: u32 = 1 << 29;

impl Liveness {
    /// From `next` to the word, bytes, as in the C library.
    pub const ROBUST_LIST_OFFSET: i64 = -32;

    const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            _as_in_a_mutex: [0; 4],
            previous: AtomicU64::new(0),
            next: AtomicU64::new(0),
        }
    }

    /// Before the fork. From here until [`Self::begin`] a death is not visible.
    pub fn prepare(&self) {
        self.pid.store(0, Ordering::Release);
        self.word.store(FORK_PENDING, Ordering::Release);
    }

    /// Links the futex into the list of a thread, with `head` as both ends.
    pub fn link(&self, head: u64) -> *const AtomicU64 {
        self.previous.store(head, Ordering::Release);
        self.next.store(head, Ordering::Release);
        &raw const self.next
    }

    /// Registers the process and its first thread.
    pub fn begin(&self, pid: u32, thread: u32) {
        self.pid.store(pid, Ordering::Release);
        self.word.store(thread, Ordering::Release);
    }

    /// The fork has failed.
    pub fn forget(&self) {
        self.word.store(0, Ordering::Release);
    }

    /// Dismisses a death, or a fork that did not register. A living process stays registered.
    pub fn settle(&self) {
        let settled = |word| (word == FORK_PENDING || word & FUTEX_OWNER_DIED != 0).then_some(0);
        let (made, known) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.word.fetch_update(made, known, settled);
    }

    /// Process id; 0: not registered.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Acquire)
    }

    /// The process was registered and is dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.word.load(Ordering::Acquire) & FUTEX_OWNER_DIED != 0
    }

    /// The process was forked and has not registered.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.word.load(Ordering::Acquire) == FORK_PENDING
    }
}
