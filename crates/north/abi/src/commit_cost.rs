//! What output commit costs a service.

use core::sync::atomic::{AtomicU64, Ordering};

/// Counted by all processes of the service, for who asks what it costs: nothing depends on it.
#[derive(Debug, Default)]
#[repr(C)]
pub struct CommitCounters {
    loop_iterations: AtomicU64,
    waits: AtomicU64,
    wait_ns: AtomicU64,
}

/// As [`CommitCounters`] counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Committed {
    /// How often a process with something to commit looked what is ready (`epoll_wait` and its kin).
    pub loop_iterations: u64,
    /// How often one waited for the logger.
    pub waits: u64,
    /// How long they waited, nanoseconds, all together.
    pub wait_ns: u64,
}

impl CommitCounters {
    /// A turn of an event loop begins.
    pub fn count_iteration(&self) {
        self.loop_iterations.fetch_add(1, Ordering::Relaxed);
    }

    /// A process has waited for the logger for so many nanoseconds.
    pub fn waited(&self, nanoseconds: u64) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.wait_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// What it was until now.
    #[must_use]
    pub fn so_far(&self) -> Committed {
        Committed {
            loop_iterations: self.loop_iterations.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
            wait_ns: self.wait_ns.load(Ordering::Relaxed),
        }
    }
}
