//! Waiting without sleeping: a server that is about to speak waits for us, and to be woken takes longer than what we
//! have to do.

use std::os::fd::AsFd as _;

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::sched_yield,
};

use super::Service;

impl Service {
    /// Has another datagram come, soon after the last one? Whoever else wants the processor has it meanwhile.
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
