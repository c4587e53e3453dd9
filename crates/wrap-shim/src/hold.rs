//! Output leaves when all that it may depend on is safe (*output commit*).

use core::sync::atomic::Ordering;

use libc::{FUTEX_WAIT, timespec};
use wrap_abi::layout::Hold;

use crate::{sys::sys, wrap::Wrap};

impl Wrap {
    /// Wait until everything that was recorded is safe. There is nothing to wait for in a replay.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if self.page.hold.load(Ordering::Relaxed) != Hold::Never as u32 && !self.is_replay {
            self.await_stable();
        }
    }

    #[cold]
    fn await_stable(&mut self) {
        /// Somebody who was to wake us may have died: look again, nanoseconds.
        const LOOK_AGAIN: i64 = 10_000_000;
        let page = self.page;
        loop {
            let count = page.stable_count.load(Ordering::Acquire);
            let is_held = page.hold.load(Ordering::Relaxed) != Hold::Never as u32;
            if !is_held || self.is_all_stable() {
                return;
            }
            page.sleepers.fetch_add(1, Ordering::SeqCst);
            let at_most = timespec {
                tv_sec: 0,
                tv_nsec: LOOK_AGAIN,
            };
            let count_at = page.stable_count.as_ptr();
            // SAFETY: a futex in memory that is shared, and a structure on our stack.
            unsafe { sys!(SYS_futex, count_at, FUTEX_WAIT, count, &raw const at_most) };
            page.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Is everything that any process of the service has recorded?
    fn is_all_stable(&self) -> bool {
        let processes = self.page.next_process.load(Ordering::Acquire) as usize;
        let mut all = self.page.processes.0.iter().take(processes);
        self.stream.is_stable()
            && all.all(|process| {
                process.stable.load(Ordering::Acquire) >= process.head.load(Ordering::Acquire)
            })
    }
}
