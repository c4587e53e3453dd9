//! A helper that wakes by itself, for it has slept as long as it wanted to, goes on while the first thread sleeps.
//!
//! It may be awake at any moment of the first thread's work, and in a replay that would be another one: what is in a
//! queue, who has Python's GIL. So it waits until the first thread sleeps, for the program and not for us. When that
//! wakes up, it waits in turn until its helpers rest.
//!
//! One that has waited in vain goes on, too, when another thread wakes it after all: one that computes for an
//! interpreter asks for the GIL when it has waited for 5 ms, and whether the first thread has given it back by then is
//! chance.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{
    HELPER_POLL_INTERVAL_NS, HELPER_REST_TIMEOUT_NS, OWN, is_over,
    thread::{State, first},
};
use crate::{
    clock::{self, monotonic},
    shared_state_guard,
};

/// The first thread sleeps for us: how often at the moment, in the lowest byte, and how often it has begun to, above
/// that.
static FOR_US: AtomicU32 = AtomicU32::new(0);
const ONCE: u32 = 1;
const BEGUN: u32 = 1 << 8;

/// The first thread does what the program knows nothing of, and may sleep.
#[inline]
pub(crate) fn for_us<T>(perform: impl FnOnce() -> T) -> T {
    FOR_US.fetch_add(BEGUN + ONCE, Ordering::AcqRel);
    let outcome = perform();
    FOR_US.fetch_sub(ONCE, Ordering::AcqRel);
    outcome
}

/// A helper's sleep is over. A helper that has waited longer than [`HELPER_REST_TIMEOUT_NS`] continues in any case: the
/// first thread may poll for its work. Answers whether the helper was woken.
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
            since = monotonic(); // it may go on much later, and by another host's clock
        }
    }
    own.wait.let_go()
}

/// Does the first thread sleep for the program?
fn first_sleeps() -> bool {
    let before = FOR_US.load(Ordering::Acquire);
    before.is_multiple_of(BEGUN)
        && first().state() == State::Sleeps
        && FOR_US.load(Ordering::Acquire) == before
}
