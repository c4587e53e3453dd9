//! The wait between two passes of the loop.

use std::os::fd::AsFd;

use dataplane::Ring;
use recovery::Stage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{CHECKPOINT_POLL_INTERVAL, REPLAY_POLL_INTERVAL, Service, VERIFICATION_POLL_INTERVAL};
use crate::{
    clock,
    error::{ServeError, SystemContext},
    logger::Logger,
    logger_client::LoggerClient,
    north::North,
};

impl Service {
    /// Wait for something to happen; not at all if something was just `acted` upon, because that
    /// usually has consequences.
    pub(super) fn wait(&mut self, ring: &Ring<'_>, acted: bool) -> Result<(), ServeError> {
        let now = clock::now();
        let awaits_logger = self.listing_pending || self.recovery.awaits_logger();
        let working = match self.recovery.stage() {
            Stage::Recovering | Stage::Listing if !awaits_logger => true,
            _ => self.recovery.is_busy(now),
        };
        let pace = match working || self.recovery.is_serving_pending() {
            true => REPLAY_POLL_INTERVAL,
            false => VERIFICATION_POLL_INTERVAL,
        };
        let mut until = self.next_heartbeat.min(self.next_sweep);
        for due in [self.recovery.deadline(), self.start_at]
            .into_iter()
            .flatten()
        {
            until = until.min(due.max(now + pace));
        }
        if working {
            until = until.min(now + REPLAY_POLL_INTERVAL);
        }
        if let Some(link) = self.resources.logger.link() {
            until = until.min(link.due_at());
        }
        if self.north.as_ref().is_some_and(North::is_busy) {
            until = until.min(now + CHECKPOINT_POLL_INTERVAL);
        }
        if let Some(own) = &self.vip {
            until = until.min(own.due());
        }
        let said = self
            .resources
            .logger
            .client()
            .is_some_and(|client| client.has_message());
        if acted || said || std::mem::take(&mut self.skips_wait) {
            until = now;
        }
        let timeout = Timespec::try_from(until.saturating_sub(now)).unwrap_or_default();
        let ring = ring.as_fd();
        let mut fds = vec![
            PollFd::from_borrowed_fd(ring, PollFlags::IN),
            self.signals.watch(),
            PollFd::from_borrowed_fd(self.resources.cgroup.events_fd(), PollFlags::PRI),
        ];
        let logger_at = fds.len();
        match &self.resources.logger {
            Logger::Local(client) => {
                fds.push(PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN));
            }
            Logger::Remote(link) => link.watch(&mut fds), // and looked at in any case
        }
        if let Some(north) = &self.north {
            fds.push(PollFd::from_borrowed_fd(north.watch(), PollFlags::IN));
        }
        if let Some(server) = &self.server {
            fds.push(PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN));
        }
        let lease = self.resources.lease.as_ref();
        fds.extend(lease.map(|lease| PollFd::from_borrowed_fd(lease.as_fd(), PollFlags::IN)));
        self.control.watch(&mut fds);
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).doing("wait for something to happen"),
        }
        let local = matches!(self.resources.logger, Logger::Local(_));
        let logger_speaks = local && !fds[logger_at].revents().is_empty();
        let cgroup_changed = !fds[2].revents().is_empty();
        drop(fds);
        self.signals.seen();
        if logger_speaks {
            let _ = self.ask_logger(LoggerClient::listen)?;
        }
        if cgroup_changed {
            // The state is read again where needed; this read makes the next poll wait.
            self.resources.cgroup.populated()?;
        }
        Ok(())
    }
}
