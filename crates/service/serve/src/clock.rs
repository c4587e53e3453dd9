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

/// Microseconds since 1970, for people and logs.
pub(crate) fn wall() -> u64 {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| {
        u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
    })
}

/// The unit of events.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
