//! A helper whose sleep is over continues while the first thread sleeps.
//!
//! Otherwise the helper would be awake at any moment of the first thread's work, and at another moment in a replay:
//! the content of a queue and the holder of Python's GIL would differ. The helper therefore waits until the first
//! thread sleeps in a call of the program (not of the shim). When the first thread wakes up, the first thread waits
//! until the helpers rest.
//!
//! A helper whose wait has timed out also continues when another thread wakes the helper. For instance, a thread that
//! computes in an interpreter asks for the GIL after a wait of 5 ms, and chance decides whether the first thread has
//! released the GIL by then.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{
    HELPER_POLL_INTERVAL_NS, HELPER_REST_TIMEOUT_NS, OWN, is_over,
    thread::{State, first},
};
use crate::{
    clock::{self, monotonic},
    shared_state_guard,
};

/// Sleeps of the first thread in the shim: the lowest byte counts the present sleeps, the upper bytes count all
/// sleeps.
static FOR_US: AtomicU32 = AtomicU32::new(0);
const ONCE: u32 = 1;
const BEGUN: u32 = 1 << 8;

/// Work of the shim in the first thread, which may sleep.
#[inline]
pub(crate) fn for_us<T>(perform: impl FnOnce() -> T) -> T {
    FOR_US.fetch_add(BEGUN + ONCE, Ordering::AcqRel);
    let outcome = perform();
    FOR_US.fetch_sub(ONCE, Ordering::AcqRel);
    outcome
}

/// A helper's sleep is over. A helper that has waited longer than [`HELPER_REST_TIMEOUT_NS`] continues in any case,
/// because the first thread may poll for the helper's work. Returns whether the helper was woken.
#[cold]
pub(crate) fn wakes_by_itself() -> bool {
    let Some(own) = OWN.get().filter(|_| first().is_there()) else {
        return false;
    };
    own.is_held();
    let mut since = monotonic();
    while !own.wait.is_woken()
        && !is_over()
        && !first_sleeps()
        && monotonic().saturating_sub(since) < HELPER_REST_TIMEOUT_NS
    {
        clock::sleep(HELPER_POLL_INTERVAL_NS);
        if shared_state_guard::is_paused() {
            since = monotonic(); // may continue much later, by another host's clock
        }
    }
    own.wait.let_go()
}

/// Whether the first thread sleeps in a call of the program.
fn first_sleeps() -> bool {
    let before = FOR_US.load(Ordering::Acquire);
    before.is_multiple_of(BEGUN)
        && first().state() == State::Sleeps
        && FOR_US.load(Ordering::Acquire) == before
}
