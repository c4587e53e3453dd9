//! The main process of a service, watched by a pidfd.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::signal;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, pidfd_open,
    pidfd_send_signal, waitid,
};

use crate::birth::Born;
use crate::cgroup::{Cgroup, CgroupError};
use crate::deadline::Deadline;
use crate::orphans::{reap_last_orphans, reap_orphans};

/// How long killed processes may take to go away. They need no time of their own, only
/// the kernel's for tearing down their memory and files.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for the zombies of a cgroup that is empty; one whose parent lives
/// elsewhere is that parent's affair.
const ORPHAN_TIMEOUT: Duration = Duration::from_millis(500);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It left by itself.
    Status(i32),
    /// A signal killed it.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// Whether it left a core dump.
        core_dumped: bool,
    },
    /// It was not our child, and its status went to somebody else.
    Unseen,
}

impl Exit {
    /// Whether it is known to have died rather than finished: by a signal, or with a non-zero
    /// status, as a Go or Rust program does that panics.
    #[must_use]
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Status(0) | Self::Unseen)
    }

    fn from_wait(status: &WaitIdStatus) -> Option<Self> {
        if let Some(signal) = status.terminating_signal() {
            let core_dumped = status.dumped();
            return Some(Self::Signal {
                signal,
                core_dumped,
            });
        }
        status.exit_status().map(Self::Status)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Status(status) => write!(f, "exited with status {status}"),
            Self::Unseen => f.write_str("ended"),
            Self::Signal {
                signal,
                core_dumped,
            } => {
                match signal::Signal::try_from(signal) {
                    Ok(named) => write!(f, "killed by {named}")?,
                    Err(_) => write!(f, "killed by signal {signal}")?,
                }
                f.write_str(if core_dumped { " (core dumped)" } else { "" })
            }
        }
    }
}

/// Why a server could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// A system call about the main process failed.
    #[error("cannot stop the server: {0}")]
    Io(#[from] io::Error),
    /// Something with its cgroup failed, or its processes do not die.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// A started server: its main process. Dropping it does not end the process.
///
/// As a file descriptor it is readable when the main process has ended.
#[derive(Debug)]
pub struct Server {
    pid: Pid,
    pidfd: OwnedFd,
    /// We started it, so its status is for us.
    is_child: bool,
    exit: Option<Exit>,
}

impl Server {
    /// Takes over a child that was just started.
    pub(crate) fn watch(born: Born) -> Self {
        Self {
            pid: born.pid,
            pidfd: born.pidfd,
            is_child: true,
            exit: None,
        }
    }

    /// Takes over the main process of a service whose supervisor has died; `None` if it is not
    /// there any more, or `pid` is the number of somebody outside `cgroup` by now.
    ///
    /// # Errors
    ///
    /// When the process cannot be watched.
    pub fn adopt(pid: Pid, cgroup: &Cgroup) -> io::Result<Option<Self>> {
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        // Only now: the number cannot be given to another process unnoticed. A zombie is in
        // no cgroup's list.
        if !cgroup.procs().map_err(io::Error::other)?.contains(&pid) {
            return Ok(None);
        }
        Ok(Some(Self {
            pid,
            pidfd,
            is_child: false,
            exit: None,
        }))
    }

    /// Its process id. Meaningful to others only until its end was seen.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How it ended, or `None` while it runs. Never blocks.
    ///
    /// # Errors
    ///
    /// When somebody else in this process has taken the status of our child.
    pub fn try_wait(&mut self) -> io::Result<Option<Exit>> {
        if self.exit.is_none() && !self.is_child {
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            let ended = Deadline::after(Duration::ZERO).poll(&mut fds).is_ok()
                && !fds[0].revents().is_empty();
            self.exit = ended.then_some(Exit::Unseen);
        } else if self.exit.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), options)?;
            self.exit = status.as_ref().and_then(Exit::from_wait);
        }
        Ok(self.exit)
    }

    /// How it ended, or `None` if it still ran when `timeout` had passed.
    ///
    /// # Errors
    ///
    /// As [`Server::try_wait`].
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Option<Exit>> {
        let deadline = Deadline::after(timeout);
        loop {
            let exit = self.try_wait()?;
            if exit.is_some() || deadline.passed() {
                return Ok(exit);
            }
            deadline.poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)])?;
        }
    }

    /// Asks the main process to end (SIGTERM). Nothing happens if it has ended already.
    ///
    /// # Errors
    ///
    /// When we may not.
    pub fn terminate(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Ends it (SIGKILL) and waits for that.
    ///
    /// # Errors
    ///
    /// When we may not.
    pub fn end(&mut self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(e) => return Err(e.into()),
        }
        self.wait(EXIT_TIMEOUT).map(drop)
    }

    /// Stops the whole service: SIGTERM to the main process, up to `grace` for all of
    /// `cgroup` to end, then SIGKILL to what is left. Where the main process has ended
    /// before (a daemon), SIGTERM goes to every process of the cgroup. Blocks until all
    /// are gone and reaped; returns how the main process ended.
    ///
    /// # Errors
    ///
    /// [`CgroupError::Unkillable`] when killed processes are still there after 10 s.
    pub fn stop(&mut self, cgroup: &Cgroup, grace: Duration) -> Result<Exit, StopError> {
        if self.try_wait()?.is_none() {
            self.terminate()?;
        } else {
            terminate_all(cgroup)?;
        }
        if let Some(exit) = self.wait_all(cgroup, grace)? {
            return Ok(exit);
        }
        cgroup.kill()?;
        if let Some(exit) = self.wait_all(cgroup, EXIT_TIMEOUT)? {
            return Ok(exit);
        }
        let path = cgroup.path().to_owned();
        let pids = cgroup.procs()?;
        Err(CgroupError::Unkillable { path, pids }.into())
    }

    /// Waits until the main process has ended and `cgroup` is empty; `None` after
    /// `timeout`.
    fn wait_all(&mut self, cgroup: &Cgroup, timeout: Duration) -> Result<Option<Exit>, StopError> {
        let deadline = Deadline::after(timeout);
        loop {
            let exit = self.try_wait()?;
            let populated = cgroup.populated()?;
            reap_orphans(cgroup, &[self.pid])?;
            if exit.is_some() && !populated {
                reap_last_orphans(cgroup, &[self.pid], Deadline::after(ORPHAN_TIMEOUT))?;
                return Ok(exit);
            }
            if deadline.passed() {
                return Ok(None);
            }
            let cgroup_events = PollFd::from_borrowed_fd(cgroup.events_fd(), PollFlags::PRI);
            let main_ended = PollFd::new(&self.pidfd, PollFlags::IN);
            // The pidfd of an ended process stays readable: only poll it before.
            if exit.is_some() {
                deadline.poll(&mut [cgroup_events])?;
            } else {
                deadline.poll(&mut [cgroup_events, main_ended])?;
            }
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Stops a service whose main process has ended and is reaped (a daemon): as [`Server::stop`] does.
///
/// # Errors
///
/// [`CgroupError::Unkillable`] when killed processes are still there after 10 s.
pub fn stop_daemon(cgroup: &Cgroup, grace: Duration) -> Result<(), StopError> {
    terminate_all(cgroup)?;
    if !cgroup.wait_empty(grace)? {
        cgroup.kill()?;
        if !cgroup.wait_empty(EXIT_TIMEOUT)? {
            let path = cgroup.path().to_owned();
            let pids = cgroup.procs()?;
            return Err(CgroupError::Unkillable { path, pids }.into());
        }
    }
    reap_last_orphans(cgroup, &[], Deadline::after(ORPHAN_TIMEOUT))?;
    Ok(())
}

fn terminate_all(cgroup: &Cgroup) -> Result<(), StopError> {
    for pid in cgroup.procs()? {
        match kill_process(pid, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
    }
    Ok(())
}
