//! A wait of a helper, as the waking thread sees the wait.
//!
//! A helper whose wait has timed out is held until the first thread sleeps ([`super::waking`]). A slightly earlier
//! wakeup would have let the helper continue: the order is chance, and differs in each incarnation. The wait
//! therefore lasts until the helper continues, and a wakeup of the object's waiters also wakes a held helper.

use core::sync::atomic::{AtomicU64, Ordering};

/// The waiter was woken.
const WAIT_WOKEN: u64 = 1;
/// The wait has failed, and the waiter is held.
const WAIT_HELD: u64 = 1 << 1;
/// The number of the wait is above these bits: the next wait for the same object has another number. The address is
/// above the number, and is below 2^48.
const WAIT_NUMBER_STEP: u64 = 1 << 2;
const WAIT_ADDRESS_SHIFT: u32 = 16;
const WAIT_NUMBER_MASK: u64 = (1 << WAIT_ADDRESS_SHIFT) - WAIT_NUMBER_STEP;

pub(super) struct Wait(AtomicU64);

impl Wait {
    pub(super) const fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Begins a wait for this condition or semaphore.
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

    /// The wait for this object, if there is one.
    pub(super) fn of(&self, thing: usize) -> Option<u64> {
        let wait = self.0.load(Ordering::Acquire);
        (wait >> WAIT_ADDRESS_SHIFT == thing as u64).then_some(wait & !(WAIT_WOKEN | WAIT_HELD))
    }

    /// Marks the waiter as woken, if this wait has not ended.
    pub(super) fn wake(&self, wait: u64) {
        let woken =
            |now: u64| (now & !(WAIT_WOKEN | WAIT_HELD) == wait).then_some(now | WAIT_WOKEN);
        // A wait that has ended needs no wakeup.
        let _ = (self.0).fetch_update(Ordering::AcqRel, Ordering::Acquire, woken);
    }

    pub(super) fn defer(&self) {
        self.0.fetch_or(WAIT_HELD, Ordering::AcqRel);
    }

    /// Ends the hold. Returns whether the waiter was woken meanwhile.
    pub(super) fn let_go(&self) -> bool {
        self.0.fetch_and(!WAIT_HELD, Ordering::AcqRel) & WAIT_WOKEN != 0
    }

    pub(super) fn is_woken(&self) -> bool {
        self.0.load(Ordering::Acquire) & WAIT_WOKEN != 0
    }

    /// Whether the helper is released, and has not noticed yet.
    pub(super) fn is_to_go_on(&self) -> bool {
        self.0.load(Ordering::Acquire) & (WAIT_WOKEN | WAIT_HELD) == WAIT_WOKEN | WAIT_HELD
    }
}
