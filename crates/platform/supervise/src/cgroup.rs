//! The cgroup of a service, which no process leaves by a fork.
//!
//! The path is `<cgroup2>/outlive/<name>`, without any controller: the cgroup sets no limit, and only marks the
//! processes of the service. The BPF programs ask for the mark by `bpf_get_current_ancestor_cgroup_id(level)`, hence
//! [`Cgroup::id`] and [`Cgroup::level`]. Sub-cgroups that the server makes belong to the service, too.
//!
//! A zombie is no longer in any cgroup: a cgroup of zombies is empty.

#[cfg(test)]
mod tests;
mod tree;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::deadline::Deadline;
use crate::mounts::Mount;

/// Directory under the root of the tree that holds the cgroups of all services.
const PARENT_DIRECTORY: &str = "outlive";

/// How long killed processes may take to end; a process that survives SIGKILL for that long is stuck in the kernel.
const KILL_LOOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A failed operation on a cgroup, with advice.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The name cannot name a cgroup.
    #[error(
        "{name:?} cannot name a cgroup; use 1 to 200 bytes, no '/' and no newline, \
         not beginning with a dot or \"cgroup.\""
    )]
    InvalidName {
        /// The name.
        name: String,
    },
    /// Processes of an earlier server are still in the cgroup.
    #[error(
        "an earlier server still runs in {path} (pids {pids}); \
         stop it, or kill it with `outlive clean --kill`",
        pids = list(pids)
    )]
    Occupied {
        /// The cgroup's directory.
        path: PathBuf,
        /// Processes in the cgroup.
        pids: Vec<Pid>,
    },
    /// Processes were killed and do not go away.
    #[error(
        "processes in {path} do not die (pids {pids}); \
         they hang in the kernel: look at /proc/<pid>/stack",
        pids = list(pids)
    )]
    Unkillable {
        /// The cgroup's directory.
        path: PathBuf,
        /// Processes in the cgroup.
        pids: Vec<Pid>,
    },
    /// The file system returned an error.
    #[error("cannot {action} {path}: {source}; cgroups need root and a writable cgroup2 mount")]
    Io {
        /// The attempted action.
        action: &'static str,
        /// Path of the action.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

fn list(pids: &[Pid]) -> String {
    let mut out = String::new();
    for (i, pid) in pids.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(out, "{comma}{pid}");
    }
    out
}

/// For `map_err`: the attempted action, and its path.
fn failed<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::Io {
        action,
        path,
        source: source.into(),
    }
}

/// Prefix of the names of sub-cgroups, of which each incarnation of the server has a new sub-cgroup.
const SUB_CGROUP_PREFIX: &str = "life-";

/// The cgroup of a service. A drop removes no cgroup.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// Name of the cgroup in `/proc/<pid>/cgroup`.
    hierarchy_path: String,
    id: u64,
    /// `cgroup.events`: contains "populated 0|1", and polls as POLLPRI when the value has changed since the last read.
    events: File,
}

impl Cgroup {
    /// Makes the cgroup `outlive/<name>`. An empty cgroup of an earlier service is replaced.
    ///
    /// Two callers must not do this for the same name at the same time: the second caller would replace the cgroup of
    /// the first while the cgroup is empty.
    ///
    /// # Errors
    ///
    /// [`CgroupError::Occupied`] when an earlier server still runs in the cgroup.
    pub fn create(mount: &Mount, name: &str) -> Result<Self, CgroupError> {
        let path = path_of(mount, name)?;
        if path.exists() {
            let old = Self::open(mount, name)?;
            if old.populated()? {
                let pids = old.procs()?;
                return Err(CgroupError::Occupied { path, pids });
            }
            old.remove()?;
        }
        // The end of another service removes an empty parent, perhaps between the two steps: then the loop tries again.
        let mut tries = 0;
        while let Err(source) = fs::create_dir_all(&path) {
            tries += 1;
            if source.kind() != io::ErrorKind::NotFound || tries == 10 {
                return Err(failed("create", &path)(source));
            }
        }
        Self::open(mount, name)
    }

    /// The existing cgroup `outlive/<name>`: to adopt a running server or to clean up.
    ///
    /// # Errors
    ///
    /// [`CgroupError::Io`] with kind `NotFound` when there is none.
    pub fn open(mount: &Mount, name: &str) -> Result<Self, CgroupError> {
        let path = path_of(mount, name)?;
        let id = fs::metadata(&path).map_err(failed("open", &path))?.ino();
        let events_path = path.join("cgroup.events");
        let events = File::open(&events_path).map_err(failed("open", &events_path))?;
        Ok(Self {
            hierarchy_path: format!("/{PARENT_DIRECTORY}/{name}"),
            path,
            id,
            events,
        })
    }

    /// Directory of the cgroup.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's 64-bit id of this cgroup: the inode number of the directory.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Depth below the root of the tree, which is 0, in the counting of `bpf_get_current_ancestor_cgroup_id`.
    #[must_use]
    pub fn level(&self) -> u32 {
        // `mounts::cgroup2` hands out only mounts that show the real root.
        2
    }

    /// The processes in the cgroup and in its sub-cgroups, ascending. The list may be out of date at the return.
    ///
    /// # Errors
    ///
    /// When cgroupfs cannot be read.
    pub fn procs(&self) -> Result<Vec<Pid>, CgroupError> {
        match tree::procs(&self.path) {
            // A removed cgroup was empty. But an unmounted cgroup may have processes: then an empty list would be
            // wrong.
            Err(e) if tree::has_gone(&e) && !self.populated()? => Ok(Vec::new()),
            result => result.map_err(failed("read the processes of", &self.path)),
        }
    }

    /// Whether a living process is in the cgroup or in a sub-cgroup. The call also arms [`Cgroup::events_fd`] for the
    /// next change.
    ///
    /// # Errors
    ///
    /// When cgroupfs cannot be read.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        let mut text = [0; 256];
        match self.events.read_at(&mut text, 0) {
            Ok(n) => Ok(is_populated(&text[..n])),
            // The cgroup was removed, which is possible only while the cgroup is empty.
            Err(e) if e.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(false),
            Err(e) => Err(failed("read the events of", &self.path)(e)),
        }
    }

    /// A descriptor for an event loop: ready for priority events (POLLPRI, EPOLLPRI) when [`Cgroup::populated`] has
    /// changed since the last call. Do not wait for readability: the descriptor is always readable.
    #[must_use]
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits until the cgroup has no process; returns `false` after `timeout`.
    ///
    /// # Errors
    ///
    /// When cgroupfs cannot be read.
    pub fn wait_empty(&self, timeout: Duration) -> Result<bool, CgroupError> {
        let deadline = Deadline::after(timeout);
        while self.populated()? {
            if deadline.passed() {
                return Ok(false);
            }
            deadline
                .poll(&mut [PollFd::new(&self.events, PollFlags::PRI)])
                .map_err(failed("wait for", &self.path))?;
        }
        Ok(true)
    }

    /// Sends SIGKILL to every process in the cgroup, also to processes of a fork under way. [`Cgroup::wait_empty`]
    /// waits for the end of the processes.
    ///
    /// # Errors
    ///
    /// When cgroupfs cannot be written; before Linux 5.14, where each process is killed singly, also
    /// [`CgroupError::Unkillable`].
    pub fn kill(&self) -> Result<(), CgroupError> {
        match self.write("cgroup.kill", b"1") {
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.kill_each(),
            result => result.map_err(failed("kill the processes of", &self.path)),
        }
    }

    /// [`Cgroup::kill`] on kernels without `cgroup.kill`.
    fn kill_each(&self) -> Result<(), CgroupError> {
        // In a frozen cgroup no process forks during the walk through the list. Kernels before 5.2 cannot freeze: then
        // only the repetition catches new processes.
        let frozen = self.write("cgroup.freeze", b"1").is_ok();
        let result = self.kill_each_until_empty();
        if frozen {
            // A later server in this cgroup must not start frozen.
            self.write("cgroup.freeze", b"0")
                .map_err(failed("thaw", &self.path))?;
        }
        result
    }

    fn kill_each_until_empty(&self) -> Result<(), CgroupError> {
        let deadline = Deadline::after(KILL_LOOP_TIMEOUT);
        loop {
            let pids = self.procs()?;
            if pids.is_empty() {
                return Ok(());
            }
            if deadline.passed() {
                let path = self.path.clone();
                return Err(CgroupError::Unkillable { path, pids });
            }
            for pid in pids {
                match kill_process(pid, Signal::KILL) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(e) => return Err(failed("kill the processes of", &self.path)(e)),
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes the cgroup with its sub-cgroups, and also `outlive` if no other service is left. A missing cgroup is no
    /// error.
    ///
    /// # Errors
    ///
    /// [`CgroupError::Occupied`] when processes are in the cgroup.
    pub fn remove(self) -> Result<(), CgroupError> {
        if let Err(source) = tree::remove(&self.path) {
            let pids = self.procs()?;
            return Err(if pids.is_empty() {
                failed("remove", &self.path)(source)
            } else {
                let path = self.path;
                CgroupError::Occupied { path, pids }
            });
        }
        if let Some(parent) = self.path.parent() {
            // The kernel refuses while other services are in the parent, which is right.
            let _ = fs::remove_dir(parent);
        }
        Ok(())
    }

    /// Removes the cgroup of a server that nobody supervises any more. Returns how many processes were killed.
    ///
    /// # Errors
    /// Processes live and must not be killed ([`CgroupError::Occupied`]), or do not end.
    pub fn remove_with_processes(self, kill: bool) -> Result<usize, CgroupError> {
        let pids = self.procs()?;
        let killed = pids.len();
        if killed > 0 {
            if !kill {
                let path = self.path().to_owned();
                return Err(CgroupError::Occupied { path, pids });
            }
            self.kill()?;
            self.wait_empty(KILL_LOOP_TIMEOUT)?;
        }
        self.remove()?;
        Ok(killed)
    }

    /// Moves processes into this service. The move waits for an RCU grace period.
    ///
    /// # Errors
    ///
    /// When a process has ended, or cgroupfs cannot be written.
    pub fn take_in(&self, pids: &[Pid]) -> Result<(), CgroupError> {
        let (home, _) = self
            .new_home()
            .map_err(failed("make a cgroup in", &self.path))?;
        let list = home.join("cgroup.procs");
        for pid in pids {
            let number = pid.as_raw_pid().to_string();
            fs::write(&list, number).map_err(failed("move a process to", &home))?;
        }
        Ok(())
    }

    /// A new sub-cgroup for an incarnation of the server, opened for [`crate::birth`]. Empty sub-cgroups of earlier
    /// incarnations are removed.
    ///
    /// Each incarnation needs a new sub-cgroup: Linux 6.18 kills a process that is born by `CLONE_INTO_CGROUP` into a
    /// cgroup on which `cgroup.kill` was ever used, because the kernel compares the kill count of that cgroup with the
    /// count of the parent's cgroup.
    pub(crate) fn new_life(&self) -> io::Result<File> {
        self.new_home().map(|(_, home)| home)
    }

    fn new_home(&self) -> io::Result<(PathBuf, File)> {
        let mut highest = 0;
        for entry in fs::read_dir(&self.path)?.flatten() {
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_prefix(SUB_CGROUP_PREFIX));
            if let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) {
                highest = highest.max(number);
                // The kernel refuses while processes are in the sub-cgroup, which is right.
                let _ = fs::remove_dir(entry.path());
            }
        }
        let path = self
            .path
            .join(format!("{SUB_CGROUP_PREFIX}{}", highest + 1));
        fs::create_dir(&path)?;
        let home = File::open(&path)?;
        Ok((path, home))
    }

    /// The name that `/proc/<pid>/cgroup` shows for processes in this very cgroup.
    pub(crate) fn hierarchy_path(&self) -> &str {
        &self.hierarchy_path
    }

    fn write(&self, file: &str, value: &[u8]) -> io::Result<()> {
        // Not fs::write: that would try to create the file.
        let file = File::options().write(true).open(self.path.join(file))?;
        file.write_at(value, 0).map(|_| ())
    }
}

fn path_of(mount: &Mount, name: &str) -> Result<PathBuf, CgroupError> {
    let valid = (1..=200).contains(&name.len())
        && !name.contains(['/', '\n', '\0'])
        && !name.starts_with('.')
        && !name.starts_with("cgroup.");
    if !valid {
        let name = name.to_owned();
        return Err(CgroupError::InvalidName { name });
    }
    Ok(mount.path().join(PARENT_DIRECTORY).join(name))
}

fn is_populated(events: &[u8]) -> bool {
    events
        .split(|&b| b == b'\n')
        .any(|line| line == b"populated 1")
}
