//! A network namespace: creation, execution, removal.
//!
//! `ip netns` makes and removes namespaces: each namespace has a name under `/run/netns`, for people, too (`ip netns
//! exec <name> bash`). Entering a namespace is a plain `setns(2)`: unlike `ip netns exec`, nothing is mounted, and
//! `/sys` with its tracepoints and BPF pins stays the same.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::panic;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Error;
use crate::error::Doing;
use crate::process::wait_readable;
use crate::tools::{run, run_with_input};

/// The longest time until a process is gone after SIGKILL.
const DEATH_LIMIT: Duration = Duration::from_secs(5);

/// Where `ip netns` keeps the names.
pub(crate) const NETNS_DIRECTORY: &str = "/run/netns";

/// A named network namespace. A drop only closes the descriptor.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    file: File,
    identity: (u64, u64),
}

impl Namespace {
    /// Makes a new namespace with the given name.
    pub(crate) fn create(name: &str) -> Result<Arc<Self>, Error> {
        run(Command::new("ip").args(["netns", "add", name]))?;
        Self::open(name).map(Arc::new)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The namespace of that name.
    pub(crate) fn open(name: &str) -> Result<Self, Error> {
        let path = format!("{NETNS_DIRECTORY}/{name}");
        let file = File::open(&path).doing(|| format!("open {path}"))?;
        let metadata = file.metadata().doing(|| format!("stat {path}"))?;
        Ok(Self {
            name: name.to_owned(),
            file,
            identity: (metadata.dev(), metadata.ino()),
        })
    }

    /// Removes the name. The kernel ends the namespace when the last reference is gone.
    pub(crate) fn delete(&self) -> Result<(), Error> {
        run(Command::new("ip").args(["netns", "delete", &self.name]))
    }

    /// Moves the calling thread into the namespace.
    pub(crate) fn join(&self) -> io::Result<()> {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }

    /// Runs `work` on a fresh thread inside the namespace and returns the result; a panic of `work` continues here.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let joined = thread::scope(|scope| {
            let thread = scope.spawn(|| self.join().map(|()| work()));
            thread
                .join()
                .unwrap_or_else(|payload| panic::resume_unwind(payload))
        });
        joined.doing(|| format!("enter namespace {}", self.name))
    }

    /// Makes `command` run in this namespace.
    pub(crate) fn confine(self: &Arc<Self>, command: &mut Command) {
        let namespace = Arc::clone(self);
        // SAFETY: between fork and exec the closure makes a single system call on a descriptor that the closure keeps
        // open, without an allocation or a lock.
        unsafe { command.pre_exec(move || namespace.join()) };
    }

    /// A command that runs in this namespace, with an empty standard input.
    pub(crate) fn command(self: &Arc<Self>, program: &str) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        self.confine(&mut command);
        command
    }

    /// Carries out lines of `ip` commands in this namespace.
    pub(crate) fn ip(self: &Arc<Self>, script: &str) -> Result<(), Error> {
        let mut command = self.command("ip");
        run_with_input(command.args(["-batch", "-"]), script)
    }

    /// Carries out lines of `tc` commands in this namespace.
    pub(crate) fn tc(self: &Arc<Self>, script: &str) -> Result<(), Error> {
        let mut command = self.command("tc");
        run_with_input(command.args(["-batch", "-"]), script)
    }

    /// Writes a kernel setting of this namespace; `key` is `net.ipv4.tcp_syncookies` or, for a name with a dot inside,
    /// `net/ipv4/conf/eth0.5/rp_filter`.
    pub(crate) fn sysctl(&self, key: &str, value: &str) -> Result<(), Error> {
        let relative = if key.contains('/') {
            key.to_owned()
        } else {
            key.replace('.', "/")
        };
        if relative
            .split('/')
            .any(|part| part.is_empty() || part == "..")
        {
            return Err(Error::Invalid(format!("`{key}` is no kernel setting")));
        }
        let path = format!("/proc/sys/{relative}");
        self.enter(|| fs::write(&path, value))?
            .doing(|| format!("write `{value}` to {path} in {}", self.name))
    }

    /// The processes whose main thread is in this namespace, without our own.
    pub(crate) fn pids(&self) -> Result<Vec<Pid>, Error> {
        self.pids_that(|pid| self.contains(pid))
    }

    /// The same, and all processes that these processes have started.
    fn pids_begun_here(&self) -> Result<Vec<Pid>, Error> {
        self.pids_that(|pid| self.contains(pid) || self.has_begun(pid))
    }

    fn pids_that(&self, is_wanted: impl Fn(Pid) -> bool) -> Result<Vec<Pid>, Error> {
        let own = rustix::process::getpid();
        let entries = fs::read_dir("/proc").doing(|| "list /proc".to_owned())?;
        Ok(entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(Pid::from_raw)
            .filter(|pid| *pid != own && is_wanted(*pid))
            .collect())
    }

    /// Whether the process lives in this namespace. A process that is gone, or a zombie, has no namespace.
    fn contains(&self, pid: Pid) -> bool {
        fs::metadata(format!("/proc/{pid}/ns/net"))
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity)
    }

    /// Whether a process here has started the process, directly or through others: the process may have entered a new
    /// namespace.
    fn has_begun(&self, pid: Pid) -> bool {
        let parent = |pid: Pid| {
            let about = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (_, rest) = about.rsplit_once(") ")?;
            let parent: i32 = rest.split(' ').nth(1)?.parse().ok()?;
            Pid::from_raw(parent.max(0)) // -1: reaped by now
        };
        std::iter::successors(parent(pid), |pid| parent(*pid))
            .take_while(|pid| *pid != rustix::process::getpid())
            .any(|pid| self.contains(pid))
    }

    /// Sends SIGKILL to the members of `pids` that belong to this namespace, all at once, and returns when the
    /// processes are gone.
    pub(crate) fn kill(&self, pids: &[Pid]) -> Result<(), Error> {
        let victims = self.signal(pids, Signal::KILL);
        let deadline = Instant::now() + DEATH_LIMIT;
        let mut survivors = Vec::new();
        for (pid, pidfd) in &victims {
            let left = deadline.saturating_duration_since(Instant::now());
            if !wait_readable(pidfd.as_fd(), left)? {
                survivors.push(*pid);
            }
        }
        if survivors.is_empty() {
            return Ok(());
        }
        Err(Error::Survivors {
            namespace: self.name.clone(),
            pids: survivors,
        })
    }

    /// Sends a signal to the members of `pids` that belong to this namespace, and returns these members.
    pub(crate) fn signal(&self, pids: &[Pid], signal: Signal) -> Vec<(Pid, OwnedFd)> {
        let here: Vec<(Pid, OwnedFd)> = pids
            .iter()
            .filter_map(|pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?)))
            // Checked after the descriptor is open, so that a reused process number does not hit a foreign process.
            .filter(|(pid, _)| self.contains(*pid) || self.has_begun(*pid))
            .collect();
        for (_, pidfd) in &here {
            // The only remaining failure is a process that has just ended.
            let _ = pidfd_send_signal(pidfd, signal);
        }
        here
    }

    /// Kills every process here, including children that are forked meanwhile.
    pub(crate) fn kill_all(&self) -> Result<(), Error> {
        let deadline = Instant::now() + DEATH_LIMIT;
        loop {
            let pids = self.pids_begun_here()?;
            if pids.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Survivors {
                    namespace: self.name.clone(),
                    pids,
                });
            }
            self.kill(&pids)?;
        }
    }
}
