//! Clocks of this host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Time since the host's start, `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// The clock of leases, `CLOCK_BOOTTIME`: it goes on while the host sleeps.
pub(crate) fn boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Unix time less the time since the host's start.
pub(crate) fn unix_offset() -> Duration {
    let unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    unix.saturating_sub(boot())
}
