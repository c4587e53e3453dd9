//! The kernel's clocks.

use libc::{CLOCK_MONOTONIC, CLOCK_REALTIME, c_int, clockid_t, timespec};

use crate::{real::real, sys::sys};

/// Time of the monotonic clock, nanoseconds.
pub(crate) fn monotonic() -> u64 {
    read(CLOCK_MONOTONIC)
}

/// Time of day, nanoseconds since 1970.
pub(crate) fn time_of_day() -> u64 {
    read(CLOCK_REALTIME)
}

/// Sleeps, less than a second, in nanoseconds; a signal ends the sleep.
pub(crate) fn sleep(nanoseconds: i64) {
    let time = timespec {
        tv_sec: 0,
        tv_nsec: nanoseconds,
    };
    // SAFETY: a structure on our stack.
    unsafe { sys!(SYS_nanosleep, &raw const time, 0) };
}

fn read(clock: clockid_t) -> u64 {
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // The C library's is not a system call.
    real!(clock_gettime(clock => clockid_t, &raw mut now => *mut timespec) -> c_int);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
