//! The cgroup of one service: a box that no process leaves by forking.
//!
//! It is `<cgroup2>/outlive/<name>`, with no controller enabled: it limits nothing, it
//! only says who belongs to the service. The kernel side asks for that with
//! `bpf_get_current_ancestor_cgroup_id(level)`, hence [`Cgroup::id`] and
//! [`Cgroup::level`]; sub-cgroups that the server makes for itself belong to it too.
//!
//! A zombie is no longer in any box: a cgroup of zombies is empty.

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

/// How long the fallback of [`Cgroup::kill`] goes on; a process that survives SIGKILL
/// for that long is stuck in the kernel.
const KILL_LOOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why something with a cgroup failed, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The name cannot be that of a cgroup.
    #[error(
        "{name:?} cannot name a cgroup; use 1 to 200 bytes, no '/' and no newline, \
         not beginning with a dot or \"cgroup.\""
    )]
    InvalidName {
        /// The name.
        name: String,
    },
    /// Processes of an earlier server are still in it.
    #[error(
        "an earlier server still runs in {path} (pids {pids}); \
         stop it, or kill it with `outlive clean --kill`",
        pids = list(pids)
    )]
    Occupied {
        /// The cgroup's directory.
        path: PathBuf,
        /// Its processes.
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
        /// Its processes.
        pids: Vec<Pid>,
    },
    /// The file system said no.
    #[error("cannot {action} {path}: {source}; cgroups need root and a writable cgroup2 mount")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
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

/// For `map_err`: what was tried, on what.
fn failed<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::Io {
        action,
        path,
        source: source.into(),
    }
}

/// Names of the sub-cgroups of the server's lives begin so.
const SUB_CGROUP_PREFIX: &str = "life-";

/// The cgroup of one service. Dropping it removes nothing.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// Its name in `/proc/<pid>/cgroup`.
    hierarchy_path: String,
    id: u64,
    /// `cgroup.events`: says "populated 0|1", and polls as POLLPRI when that changed
    /// since the last read.
    events: File,
}

impl Cgroup {
    /// Makes the cgroup `outlive/<name>`. An empty one that was left behind is replaced.
    ///
    /// Two callers must not do this for one name at the same time: the later one would
    /// replace the cgroup of the other as long as no process is in it.
    ///
    /// # Errors
    ///
    /// [`CgroupError::Occupied`] when an earlier server still runs in it.
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
        // The end of another service removes the parent when it was the last in it,
        // perhaps between our two steps; then once more.
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

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's 64-bit id of this cgroup: its directory's inode number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Depth below the root of the tree, which is 0, as
    /// `bpf_get_current_ancestor_cgroup_id` counts.
    #[must_use]
    pub fn level(&self) -> u32 {
        // `mounts::cgroup2` hands out only mounts that show the real root.
        2
    }

    /// The processes in it and in its sub-cgroups, ascending. It may be out of date
    /// when it returns.
    ///
    /// # Errors
    ///
    /// When cgroupfs cannot be read.
    pub fn procs(&self) -> Result<Vec<Pid>, CgroupError> {
        match tree::procs(&self.path) {
            // Removed by somebody, which needs it empty. But if it was only unmounted
            // under us, "no processes" would be a lie.
            Err(e) if tree::has_gone(&e) && !self.populated()? => Ok(Vec::new()),
            result => result.map_err(failed("read the processes of", &self.path)),
        }
    }

    /// Whether a living process is in it or in a sub-cgroup. Also arms
    /// [`Cgroup::events_fd`] for the next change.
    ///
    /// # Errors
    ///
    /// When cgroupfs cannot be read.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        let mut text = [0; 256];
        match self.events.read_at(&mut text, 0) {
            Ok(n) => Ok(is_populated(&text[..n])),
            // Somebody removed it, which is possible only while it is empty.
            Err(e) if e.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(false),
            Err(e) => Err(failed("read the events of", &self.path)(e)),
        }
    }

    /// A descriptor for an event loop: it is ready for priority events (POLLPRI,
    /// EPOLLPRI) when [`Cgroup::populated`] changed since that was last called. Do not
    /// wait for it to be readable: it always is.
    #[must_use]
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits until no process is left in it; `false` when `timeout` passed before.
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

    /// Sends SIGKILL to every process in it, also to those that are just being forked.
    /// They are gone when [`Cgroup::wait_empty`] says so.
    ///
    /// # Errors
    ///
    /// When cgroupfs cannot be written; before Linux 5.14, where the processes are killed
    /// one by one, also [`CgroupError::Unkillable`].
    pub fn kill(&self) -> Result<(), CgroupError> {
        match self.write("cgroup.kill", b"1") {
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.kill_each(),
            result => result.map_err(failed("kill the processes of", &self.path)),
        }
    }

    /// What [`Cgroup::kill`] does on kernels without `cgroup.kill`.
    fn kill_each(&self) -> Result<(), CgroupError> {
        // Frozen, nobody forks while we go through the list. Kernels before 5.2 cannot:
        // the repetition alone is then what catches the newly forked.
        let frozen = self.write("cgroup.freeze", b"1").is_ok();
        let result = self.kill_each_until_empty();
        if frozen {
            // A server that is started here later must not be born frozen.
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

    /// Removes it with its sub-cgroups, and `outlive` if that was the last one in it.
    /// It is fine if it is gone already.
    ///
    /// # Errors
    ///
    /// [`CgroupError::Occupied`] when processes are in it.
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
            // Refused while other services are in it, as it should be.
            let _ = fs::remove_dir(parent);
        }
        Ok(())
    }

    /// Processes that were born elsewhere are of this service from now on. That takes the kernel a while.
    ///
    /// # Errors
    ///
    /// When one has ended, or cgroupfs cannot be written.
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

    /// A new sub-cgroup for one life of the server, opened for [`crate::birth`]; those of earlier
    /// lives are removed if nothing is left in them.
    ///
    /// Each life needs its own: Linux 6.18 kills a process that is born by `CLONE_INTO_CGROUP`
    /// into a cgroup on which `cgroup.kill` was ever used, because it compares the kill count of
    /// that cgroup with the one of its parent's.
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
                // Refused while processes are in it, as it should be.
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
