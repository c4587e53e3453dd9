//! The server's process: start, death, start after a death.

use std::{net::SocketAddr, time::Duration};

use supervise::{
    Backoff, BackoffConfig, Cgroup, Command, Exit, Server, StopError, destroy_sockets,
    is_listened_on, reap_orphans,
};

use crate::error::{MemberError, SystemContext};

/// Time in which a server that is asked to end may finish its responses.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Longest wait for the end of a killed main process.
const END_TIMEOUT: Duration = Duration::from_millis(500);
/// A server that dies, and does not listen again for so long, leaves its clients to other members.
const ABSENCE_MAX: Duration = Duration::from_secs(2);
/// After so long a start, the operator hears that the server does not listen.
const START_PATIENCE: Duration = Duration::from_secs(5);

const LOOKING: &str = "look for the server's listening socket";

/// The server, in its cgroup.
pub(crate) struct ServerProcess {
    command: Command,
    cgroup: Cgroup,
    server: Option<Server>,
    backoff: Backoff,
    start_at: Option<Duration>,
    /// The server listens since then.
    listens_since: Option<Duration>,
    /// The first death since the server last listened for [`ABSENCE_MAX`].
    unsteady_since: Option<Duration>,
    /// When the operator hears that the server does not listen; `None`: the operator has heard.
    complain_at: Option<Duration>,
}

impl ServerProcess {
    pub(crate) fn new(command: Command, cgroup: Cgroup) -> Self {
        Self {
            command,
            cgroup,
            server: None,
            backoff: Backoff::new(BackoffConfig::default()),
            start_at: Some(Duration::ZERO),
            listens_since: None,
            unsteady_since: None,
            complain_at: None,
        }
    }

    /// When the server is started next; `None` while it runs.
    pub(crate) fn start_at(&self) -> Option<Duration> {
        self.start_at
    }

    /// Starts the server if the time has come.
    pub(crate) fn start_if_due(&mut self, now: Duration) -> Result<(), MemberError> {
        if self.start_at.is_some_and(|at| at <= now) {
            self.start_at = None;
            self.complain_at = Some(now + START_PATIENCE);
            self.server = Some(self.command.start(&self.cgroup)?);
            self.backoff.started(now);
        }
        Ok(())
    }

    /// Whether the server listens on all addresses.
    pub(crate) const fn listens(&self) -> bool {
        self.listens_since.is_some()
    }

    /// Whether the server has died, and has not come back for too long, or dies again and again.
    pub(crate) fn is_absent(&self, now: Duration) -> bool {
        let is_over = |since: Duration| now.saturating_sub(since) >= ABSENCE_MAX;
        !self.listens() && self.unsteady_since.is_some_and(is_over)
    }

    /// Whether the server listens, and has not died a short time ago.
    pub(crate) fn is_steady(&mut self, now: Duration) -> bool {
        let Some(since) = self.listens_since else {
            return false;
        };
        if now.saturating_sub(since) >= ABSENCE_MAX {
            self.unsteady_since = None;
        }
        self.unsteady_since.is_none()
    }

    /// The addresses on which a server does not listen that was started some seconds ago. Told once.
    pub(crate) fn missing_listeners(
        &mut self,
        addresses: &[SocketAddr],
        now: Duration,
    ) -> Result<Vec<SocketAddr>, MemberError> {
        if self.listens() || self.complain_at.is_none_or(|at| now < at) {
            return Ok(Vec::new());
        }
        self.complain_at = None;
        let mut missing = Vec::new();
        for address in addresses {
            if !is_listened_on(*address).doing(LOOKING)? {
                missing.push(*address);
            }
        }
        Ok(missing)
    }

    /// Process id of the main process; 0 if there is none.
    pub(crate) fn main_pid(&self) -> u32 {
        let pid = self
            .server
            .as_ref()
            .map(|server| server.pid().as_raw_nonzero().get());
        pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0)
    }

    /// How the main process ended, if that has ended since the last call.
    pub(crate) fn poll(&mut self) -> Result<Option<Exit>, MemberError> {
        let Some(server) = &mut self.server else {
            return Ok(None);
        };
        server.try_wait().doing("wait for the server")
    }

    /// Removes the processes and sockets that a dead server has left, and plans the next start.
    pub(crate) fn clear(
        &mut self,
        addresses: &[SocketAddr],
        now: Duration,
    ) -> Result<(), MemberError> {
        self.cgroup.kill()?;
        self.listens_since = None;
        self.unsteady_since.get_or_insert(now);
        destroy_sockets(addresses, |_, _, _| true)?;
        // A process that is not reaped keeps the process ID. Apache finds the ID in the PidFile, and refuses to start.
        if let Some(mut server) = self.server.take() {
            server.wait(END_TIMEOUT).doing("wait for the server")?;
        }
        self.start_at = Some(now + self.backoff.died(now));
        Ok(())
    }

    /// Reaps descendants of the server whose parents have ended.
    pub(crate) fn reap(&self) {
        let keep: Vec<_> = self.server.iter().map(Server::pid).collect();
        if let Err(error) = reap_orphans(&self.cgroup, &keep) {
            tracing::debug!(%error, "cannot reap");
        }
    }

    /// Whether the server listens on all addresses now, and did not at the last call.
    pub(crate) fn listens_anew(
        &mut self,
        addresses: &[SocketAddr],
        now: Duration,
    ) -> Result<bool, MemberError> {
        if self.listens() || self.server.is_none() {
            return Ok(false);
        }
        for address in addresses {
            if !is_listened_on(*address).doing(LOOKING)? {
                return Ok(false);
            }
        }
        self.listens_since = Some(now);
        self.complain_at = None;
        Ok(true)
    }

    /// Ends the server, which may finish responses first.
    pub(crate) fn stop(&mut self) -> Result<(), StopError> {
        if let Some(mut server) = self.server.take() {
            server.stop(&self.cgroup, STOP_GRACE)?;
        }
        Ok(())
    }

    /// Removes the cgroup.
    pub(crate) fn remove(self) -> Result<(), MemberError> {
        self.cgroup.kill()?;
        Ok(self.cgroup.remove()?)
    }
}
