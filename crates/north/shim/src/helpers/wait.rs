//! A wait of a helper, as the thread sees it that ends it.
//!
//! A helper that has waited in vain is held until the first thread sleeps ([`super::waking`]). Had it been woken a
//! little earlier it would have gone on: which of the two comes first is chance, and in each life another one. So a
//! wait lasts until the helper goes on, and whoever wakes those that wait for the same thing wakes one that is held,
//! too.

use core::sync::atomic::{AtomicU64, Ordering};

/// The waiter was woken.
const WAIT_WOKEN: u64 = 1;
/// The wait has failed, and the waiter is held.
const WAIT_HELD: u64 = 1 << 1;
/// The number of the wait is above these, so that the next one for the same thing is another one; above that is an
/// address, of which there are fewer than 2^48.
const WAIT_NUMBER_STEP: u64 = 1 << 2;
const WAIT_ADDRESS_SHIFT: u32 = 16;
const WAIT_NUMBER_MASK: u64 = (1 << WAIT_ADDRESS_SHIFT) - WAIT_NUMBER_STEP;

pub(super) struct Wait(AtomicU64);

impl Wait {
    pub(super) const fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// For a condition or a semaphore, which is there.
    pub(super) fn begin(&self, thing: usize) {
        let number = self.number().wrapping_add(WAIT_NUMBER_STEP) & WAIT_NUMBER_MASK;
        let wait = (thing as u64) << WAIT_ADDRESS_SHIFT | number;
        self.0.store(wait, Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.0.store(self.number(), Ordering::Release);
    }

    fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & WAIT_NUMBER_MASK
    }

    /// The wait for this, if there is one.
    pub(super) fn of(&self, thing: usize) -> Option<u64> {
        let wait = self.0.load(Ordering::Acquire);
        (wait >> WAIT_ADDRESS_SHIFT == thing as u64).then_some(wait & !(WAIT_WOKEN | WAIT_HELD))
    }

    /// Who waits is woken, if this wait has not ended.
    pub(super) fn wake(&self, wait: u64) {
        let woken =
            |now: u64| (now & !(WAIT_WOKEN | WAIT_HELD) == wait).then_some(now | WAIT_WOKEN);
        // If it has, it needs nobody.
        let _ = (self.0).fetch_update(Ordering::AcqRel, Ordering::Acquire, woken);
    }

    pub(super) fn defer(&self) {
        self.0.fetch_or(WAIT_HELD, Ordering::AcqRel);
    }

    /// Was it woken meanwhile?
    pub(super) fn let_go(&self) -> bool {
        self.0.fetch_and(!WAIT_HELD, Ordering::AcqRel) & WAIT_WOKEN != 0
    }

    pub(super) fn is_woken(&self) -> bool {
        self.0.load(Ordering::Acquire) & WAIT_WOKEN != 0
    }

    /// It is held no longer, but does not know it yet.
    pub(super) fn is_to_go_on(&self) -> bool {
        self.0.load(Ordering::Acquire) & (WAIT_WOKEN | WAIT_HELD) == WAIT_WOKEN | WAIT_HELD
    }
}
