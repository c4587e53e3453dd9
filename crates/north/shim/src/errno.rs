//! Outcomes as the C library gives them.

use libc::{c_int, ssize_t};

use crate::sys::Outcome;

/// A result, or `-1` and `errno`.
pub(crate) fn answer(outcome: Outcome) -> ssize_t {
    if outcome < 0 {
        set(outcome);
        return -1;
    }
    outcome as ssize_t
}

/// As [`answer`], for calls that return an `int`.
#[allow(clippy::cast_possible_truncation)] // these calls return an `int`
pub(crate) fn answer_int(outcome: Outcome) -> c_int {
    answer(outcome) as c_int
}

#[allow(clippy::cast_possible_truncation)] // the kernel's are below 4096
fn set(outcome: Outcome) {
    put(-outcome as c_int);
}

pub(crate) fn put(error: c_int) {
    // SAFETY: the address of this thread's own `errno`.
    unsafe { *libc::__errno_location() = error };
}

pub(crate) fn get() -> c_int {
    // SAFETY: the address of this thread's own `errno`.
    unsafe { *libc::__errno_location() }
}
