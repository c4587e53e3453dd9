//! Cost of output commit.

use core::sync::atomic::{AtomicU64, Ordering};

/// Counters of all processes of a service, for statistics only.
#[derive(Debug, Default)]
#[repr(C)]
pub struct CommitCounters {
    loop_iterations: AtomicU64,
    waits: AtomicU64,
    wait_ns: AtomicU64,
}

/// Totals of [`CommitCounters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Committed {
    /// Loop iterations of processes with output commit (`epoll_wait` and similar calls).
    pub loop_iterations: u64,
    /// Waits for the logger.
    pub waits: u64,
    /// Sum of the waits, nanoseconds.
    pub wait_ns: u64,
}

impl CommitCounters {
    /// A loop iteration begins.
    pub fn count_iteration(&self) {
        self.loop_iterations.fetch_add(1, Ordering::Relaxed);
    }

    /// A process has waited for the logger.
    pub fn waited(&self, nanoseconds: u64) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.wait_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// The totals so far.
    #[must_use]
    pub fn so_far(&self) -> Committed {
        Committed {
            loop_iterations: self.loop_iterations.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
            wait_ns: self.wait_ns.load(Ordering::Relaxed),
        }
    }
}
