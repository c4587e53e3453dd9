//! Waiting for file descriptors until a point in time.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// A point in time to wait for; a time-out too long for the clock means forever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// Whether the deadline has passed.
    pub(crate) fn passed(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// Waits until a descriptor of `fds` is ready or the deadline has passed.
    ///
    /// A signal may end the wait early: callers look again.
    pub(crate) fn poll(self, fds: &mut [PollFd<'_>]) -> io::Result<()> {
        let left = self
            .0
            .map(|at| at.saturating_duration_since(Instant::now()))
            .and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}
