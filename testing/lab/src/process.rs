//! A process of a host. The process ends with the guard.

use std::fs::{self, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    waitid,
};

use crate::Error;
use crate::error::Doing;

/// How long a stop may take, at most: a thread that sleeps in the kernel without an end to that does not obey.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Where a process's standard output and standard error go.
#[derive(Clone, Debug)]
pub enum Output {
    /// Nowhere.
    Null,
    /// Where ours go.
    Inherit,
    /// Both to the end of a single file, which is made if missing.
    File(PathBuf),
    /// Each to the end of a separate file.
    Files {
        /// For standard output.
        stdout: PathBuf,
        /// For standard error.
        stderr: PathBuf,
    },
}

impl Output {
    fn apply(&self, command: &mut Command) -> Result<(), Error> {
        let (stdout, stderr) = match self {
            Self::Null => (Stdio::null(), Stdio::null()),
            Self::Inherit => (Stdio::inherit(), Stdio::inherit()),
            Self::File(path) => (append(path)?, append(path)?),
            Self::Files { stdout, stderr } => (append(stdout)?, append(stderr)?),
        };
        command.stdout(stdout).stderr(stderr);
        Ok(())
    }
}

fn append(path: &Path) -> Result<Stdio, Error> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map(Stdio::from)
        .doing(|| format!("open {}", path.display()))
}

/// A running process that leads a new process group.
///
/// A drop of the guard kills the whole group. The process is reaped only then, so the process number is never reused
/// while the guard lives.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
}

impl Process {
    /// Starts a command that is already bound to a namespace.
    pub(crate) fn start(command: &mut Command, output: &Output) -> Result<Self, Error> {
        output.apply(command)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .process_group(0)
            .spawn()
            .doing(|| format!("start `{program}`"))?;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())
            .doing(|| format!("open process {pid} (`{program}`)"))?;
        Ok(Self { child, pid, pidfd })
    }

    /// The number of the process, and of the process group.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the process alone, as [`signal`] does. No error if the process has ended.
    ///
    /// # Errors
    /// [`Error::Io`] when the system refuses.
    pub fn kill(&self, signal: Signal) -> Result<(), Error> {
        allow_gone(send(self.pid, signal))
            .doing(|| format!("send {signal:?} to process {}", self.pid))
    }

    /// Sends a signal to the whole process group.
    ///
    /// # Errors
    /// [`Error::Io`] when the system refuses.
    pub fn kill_group(&self, signal: Signal) -> Result<(), Error> {
        allow_gone(kill_process_group(self.pid, signal))
            .doing(|| format!("send {signal:?} to process group {}", self.pid))
    }

    /// Waits for the end of the process and returns the status, or `None` when the process still runs after `timeout`.
    /// May be called again, before and after the end.
    ///
    /// # Errors
    /// [`Error::Io`] when the system refuses.
    pub fn wait_with_timeout(&self, timeout: Duration) -> Result<Option<ExitStatus>, Error> {
        if !wait_readable(self.pidfd.as_fd(), timeout)? {
            return Ok(None);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid), options)
            .doing(|| format!("wait for process {}", self.pid))?;
        Ok(status.map(|status| {
            let core = if status.dumped() { 0x80 } else { 0 };
            let raw = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => code << 8,
                (None, signal) => signal.unwrap_or(0) | core,
            };
            ExitStatus::from_raw(raw)
        }))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill_group(Signal::KILL) {
            tracing::warn!(%error, "a process group was left");
        }
        if let Err(error) = self.child.wait() {
            tracing::warn!(pid = %self.pid, %error, "a process was not reaped");
        }
    }
}

/// Sends a signal to a process. After SIGSTOP no thread of the process runs: a single thread takes the signal, and on
/// a busy machine the other threads would run until that thread is scheduled.
///
/// # Errors
/// [`Error::Io`] when the system refuses, or there is no such process.
pub fn signal(pid: Pid, signal: Signal) -> Result<(), Error> {
    send(pid, signal).doing(|| format!("send {signal:?} to process {pid}"))
}

fn send(pid: Pid, signal: Signal) -> Result<(), Errno> {
    kill_process(pid, signal)?;
    if signal == Signal::STOP {
        await_stopped(pid);
    }
    Ok(())
}

/// Waits until a process stands still, or has ended.
pub(crate) fn await_stopped(pid: Pid) {
    let deadline = Instant::now() + STOP_LIMIT;
    while !has_stopped(pid) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the stop has reached all threads: a thread has stopped, and no other thread runs, or sleeps interruptibly.
fn has_stopped(pid: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let states: Vec<u8> = tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| fs::read(task.path().join("stat")).ok())
        .filter_map(|stat| {
            // The state follows the name, which may have any character.
            let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
            stat.get(name_ends + 2).copied()
        })
        .collect();
    let stands = |state: &u8| !matches!(state, b'R' | b'S');
    let is_over = |state: &u8| matches!(state, b'Z' | b'X');
    let is_stopped = |state: &u8| matches!(state, b'T' | b't');
    states.iter().all(stands) && (states.iter().any(is_stopped) || states.iter().all(is_over))
}

fn allow_gone(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::SRCH) => Ok(()),
        other => other,
    }
}

/// Waits until a descriptor is readable; for a pidfd that is when the process has ended.
/// Returns whether that was within `timeout`.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> Result<bool, Error> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A time beyond the system's range means for ever.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing(|| "wait for a process".to_owned()),
        }
    }
}
