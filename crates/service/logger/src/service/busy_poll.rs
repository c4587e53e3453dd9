//! Busy polling: a server waits for the logger before sending, and waking up takes longer than the logger's work.

use std::os::fd::AsFd as _;

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::sched_yield,
};

use super::Service;

impl Service {
    /// Whether another datagram arrives soon. Other threads get the processor meanwhile.
    pub(super) fn comes_another(&mut self) -> bool {
        let started = self.started;
        let clock = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let Some(until) = self.awake.until(clock()) else {
            return false;
        };
        let sockets = self.sockets.iter();
        let mut fds: Vec<PollFd<'_>> = sockets
            .map(|sockets| PollFd::from_borrowed_fd(sockets.datagrams().as_fd(), PollFlags::IN))
            .collect();
        loop {
            if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                return true;
            }
            let then = clock();
            if then >= until {
                self.awake.was_undisturbed();
                return false;
            }
            sched_yield();
            if !self.awake.has_offered(then, clock()) {
                return false;
            }
        }
    }
}
