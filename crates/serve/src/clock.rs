//! The clock of the kernel's events: `CLOCK_MONOTONIC`.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the host's start.
pub(crate) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// The clock of leases, `CLOCK_BOOTTIME`: it goes on while the host sleeps.
pub(crate) fn boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Seconds since 1970, for people and logs.
pub(crate) fn wall() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |elapsed| elapsed.as_secs_f64())
}
