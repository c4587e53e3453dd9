//! Waiting without sleeping: a server that is about to speak waits for us, and to be woken takes longer than what we have to do.

use std::{os::fd::AsFd as _, time::Instant};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::sched_yield,
};

use super::Service;

impl Service {
    /// Has another datagram come, soon after the last one? Whoever else wants the processor has it meanwhile.
    pub(super) fn comes_another(&self) -> bool {
        if self.busy_poll.is_zero() {
            return false;
        }
        let since = Instant::now();
        let sockets = self.sockets.iter();
        let mut fds: Vec<PollFd<'_>> = sockets
            .map(|sockets| PollFd::from_borrowed_fd(sockets.datagrams().as_fd(), PollFlags::IN))
            .collect();
        loop {
            if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                return true;
            }
            if since.elapsed() >= self.busy_poll {
                return false;
            }
            sched_yield();
        }
    }
}
