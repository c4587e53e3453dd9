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

/// Time limit for the end of killed processes. Only the kernel needs time, for tearing down memory and files.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of the wait for zombies of an empty cgroup. A zombie with another parent is the task of that parent.
const ORPHAN_TIMEOUT: Duration = Duration::from_millis(500);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The process exited by itself.
    Status(i32),
    /// A signal killed it.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// Whether the process left a core dump.
        core_dumped: bool,
    },
    /// The process was no child of this process, and another process got the status.
    Unseen,
}

impl Exit {
    /// Whether the end is known as a failure: by a signal, or with a non-zero status, as after a panic of a Go or Rust
    /// program.
    #[must_use]
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Status(0) | Self::Unseen)
    }

    /// Of a status as wait(2) gives a status.
    #[must_use]
    pub fn of_wait_status(status: u32) -> Self {
        let number = |bits: u32| i32::try_from(bits).unwrap_or_default();
        match status & 0x7f {
            0 => Self::Status(number(status >> 8 & 0xff)),
            signal => Self::Signal {
                signal: number(signal),
                core_dumped: status & 0x80 != 0,
            },
        }
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
    /// An operation on the cgroup failed, or the processes do not die.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// A started server: its main process. A drop does not end the process.
///
/// As a file descriptor, the server is readable when the main process has ended.
#[derive(Debug)]
pub struct Server {
    pid: Pid,
    pidfd: OwnedFd,
    /// This process started the server, and therefore gets the status.
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

    /// Takes over the main process of a service whose supervisor has died; `None` if the process is gone, or if `pid`
    /// is the number of a process outside of `cgroup` by now.
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
        // The check comes after the open of the pidfd, because then another process cannot get the number unnoticed. A
        // zombie is in no list of a cgroup.
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

    /// Process id. Meaningful for callers only until the end of the process was seen.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The end of the process, or `None` while the process runs. Never blocks.
    ///
    /// # Errors
    ///
    /// When other code in this process has taken the status of the child.
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

    /// The end of the process, or `None` if the process still ran after `timeout`.
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
    /// When the permission is missing.
    pub fn terminate(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Kills the process (SIGKILL) and waits for the end, at most 10 s.
    ///
    /// # Errors
    ///
    /// When the permission is missing.
    pub fn end(&mut self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(e) => return Err(e.into()),
        }
        self.wait(EXIT_TIMEOUT).map(drop)
    }

    /// Stops the whole service: SIGTERM to the main process, up to `grace` for the end of all processes in `cgroup`,
    /// then SIGKILL to the rest. If the main process has ended before (a daemon), SIGTERM goes to every process of the
    /// cgroup. Blocks until all processes are gone and reaped; returns the end of the main process.
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
            // The pidfd of an ended process stays readable: the pidfd is polled only before the end.
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
