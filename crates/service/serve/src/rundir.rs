//! Where our sockets, locks and private mounts live: `/run/outlive/<service>/`.

use std::{
    fmt,
    fs::{self, File, Metadata, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, fcntl_lock, flock},
    io::Errno,
    process::{Flock, FlockOffsetType, FlockType, Pid, fcntl_getlk},
};
use serde::Serialize;

use crate::{error::ServeError, images, instance, logger_client, options, sysctl_backup};

const DEFAULT_DIRECTORY: &str = "/run/outlive";

/// Name of a file before the file is complete.
const TEMPORARY_FILE: &str = "kept.new";

/// Time from fork to exec in a child of a `serve` that was killed meanwhile, on a busy host.
const CHILD_EXEC_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two attempts to take the lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Keep a value for the next `serve`, in this file of a service's directory. After a kill at any time, the old file or
/// the new file is there: half a file would stop every start.
pub(crate) fn keep(directory: &Path, file: &str, what: &impl Serialize) -> io::Result<()> {
    let new = directory.join(TEMPORARY_FILE);
    let text = serde_json::to_vec(what).map_err(io::Error::other)?;
    let mut writing = File::create(&new)?;
    writing.write_all(&text)?;
    writing.sync_all()?;
    fs::rename(&new, directory.join(file))
}

/// The directory of all services.
#[derive(Debug, Clone)]
pub struct RunDir(PathBuf);

impl Default for RunDir {
    fn default() -> Self {
        Self(PathBuf::from(DEFAULT_DIRECTORY))
    }
}

impl RunDir {
    /// Another place than `/run/outlive`.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The directory of a service.
    #[must_use]
    pub fn service(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The socket on which a running `serve` answers.
    #[must_use]
    pub fn socket(&self, name: &str) -> PathBuf {
        self.service(name).join("control.sock")
    }

    /// The service's name in places that all run directories of a host share (the cgroup hierarchy, the host's bpffs).
    /// Services of the same name in two run directories are two services.
    #[must_use]
    pub fn host_name(&self, name: &str) -> String {
        supervise::host_name(&self.0, name)
    }

    /// Names of the services that have a directory.
    #[must_use]
    pub fn services(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            // A directory of `outlive balance`: no service's name begins with a dot.
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }

    /// The process that has a service's lock, if another process has the lock. The owner of the lock must not call
    /// this: the lock is gone when the owner closes any descriptor of the file (fcntl(2)).
    #[must_use]
    pub fn holder(&self, name: &str) -> Option<Holder> {
        Holder::of(&self.service(name).join("lock"))
    }

    /// Make the service's directory and take the directory's lock, to keep a second `serve` or `clean` away.
    ///
    /// # Errors
    /// Another process holds the lock, or the directory cannot be made.
    pub fn lock(&self, name: &str) -> Result<Lock, ServeError> {
        let directory = self.service(name);
        let failed = |source: io::Error| ServeError::RunDir {
            path: directory.clone(),
            source,
        };
        let made_above = self.0 == Path::new(DEFAULT_DIRECTORY) || !self.0.exists();
        let path = directory.join("lock");
        let file = loop {
            fs::create_dir_all(&directory).map_err(failed)?;
            fs::set_permissions(&directory, Permissions::from_mode(0o700)).map_err(failed)?;
            let file = File::create(&path).map_err(failed)?;
            if !take(&file, name).map_err(failed)? {
                return Err(ServeError::AlreadyServed {
                    name: name.to_owned(),
                });
            }
            // A holder that ends removes the file: a lock on a file without a name excludes no other process.
            if is_at(&file, &path) {
                break file;
            }
        };
        Ok(Lock {
            directory,
            made_above,
            _file: file,
        })
    }
}

/// The process that runs a service, or begins to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Process number; `None`: the process has no known number here.
    pub pid: Option<Pid>,
}

impl Holder {
    /// The process that has the record lock of the file at this path, if another process has it.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let all = Flock {
            start: 0,
            length: 0,
            pid: None,
            typ: FlockType::WriteLock,
            offset_type: FlockOffsetType::Set,
        };
        let held = fcntl_getlk(&file, &all).ok()??;
        // A process of another process namespace has no number here.
        Some(Self { pid: held.pid })
    }

    /// Has the holder the same network as this process, as far as visible?
    pub(crate) fn is_of_our_network(self) -> bool {
        let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
        let pid = self.pid.map(|pid| pid.as_raw_pid().to_string());
        let its = pid.and_then(|pid| network(&pid));
        its.is_some() && its == network("self")
    }
}

/// Takes the lock for this process; returns whether the lock was free.
///
/// The record lock (fcntl(2)) decides: that lock belongs to a process and ends with the process. The lock of the open
/// file (flock(2)) excludes older versions, which have no other lock, and the threads of this process. A child that a
/// killed `serve` had just forked holds the open file's lock until the child executes another program: hence the
/// patience.
fn take(file: &File, name: &str) -> io::Result<bool> {
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    match fcntl_lock(file, exclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN | Errno::ACCESS) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let until = Instant::now() + CHILD_EXEC_TIMEOUT;
    let mut waits = false;
    loop {
        match flock(file, exclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::AGAIN) if Instant::now() < until => {
                if !std::mem::replace(&mut waits, true) {
                    tracing::info!(
                        service = name,
                        "waiting for the lock of a serve that was killed"
                    );
                }
                thread::sleep(LOCK_RETRY_INTERVAL);
            }
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let same =
        |one: Metadata, other: Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    let both = file
        .metadata()
        .and_then(|one| Ok((one, fs::metadata(path)?)));
    both.is_ok_and(|(one, other)| same(one, other))
}

impl fmt::Display for RunDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Reserves a service's directory for this process.
#[derive(Debug)]
pub struct Lock {
    directory: PathBuf,
    /// The directory above is ours, too.
    made_above: bool,
    _file: File,
}

impl Lock {
    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Remove the directory, and the parent if `serve` made the parent and no other service is in the parent.
    pub fn remove(self) {
        if let Err(error) = images::remove(&self.directory) {
            tracing::warn!(%error, "checkpoints of the server stay");
        }
        for file in [
            "control.sock",
            logger_client::SOCKET,
            logger_client::READER_LOCK,
            sysctl_backup::FILE,
            instance::FILE,
            TEMPORARY_FILE,
            service_addresses::FILE,
            options::FILE,
            "lock",
        ] {
            let _ = fs::remove_file(self.directory.join(file));
        }
        // Fails, as intended, if the directory has an unknown file.
        let removed = fs::remove_dir(&self.directory).is_ok();
        if let (true, Some(parent)) = (removed && self.made_above, self.directory.parent()) {
            let _ = fs::remove_dir(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::io::{FdFlags, fcntl_setfd};

    use super::*;

    #[test]
    fn held_lock_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let directory = RunDir::new(above.path().to_owned());
        let held = directory.lock("web").unwrap();
        // Another process: this process holds the record lock.
        let path = directory.service("web").join("lock");
        let python = "import fcntl, sys\nfcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)";
        let takes = || {
            let mut other = Command::new("/usr/bin/python3");
            other.args(["-c", python]).arg(&path).stderr(Stdio::null());
            other.status().unwrap().success()
        };
        assert!(!takes());
        drop(held);
        assert!(takes());
    }

    #[test]
    fn lock_on_unlinked_file_is_ignored() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("lock");
        let file = File::create(&path).unwrap();
        assert!(is_at(&file, &path));
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&file, &path));
        File::create(&path).unwrap();
        assert!(!is_at(&file, &path), "another file");
    }

    /// A child of the killed `serve` before exec: the child has inherited the descriptor with the lock of the open
    /// file, and ends at the end of standard input.
    #[test]
    fn lock_inherited_by_child_is_awaited() {
        let above = tempfile::tempdir().unwrap();
        let directory = RunDir::new(above.path().to_owned());
        let dead = directory.lock("web").unwrap();
        fcntl_setfd(&dead._file, FdFlags::empty()).unwrap();
        let mut child = Command::new("cat");
        let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
        drop(dead);
        let another = File::open(directory.service("web").join("lock")).unwrap();
        let inherited = flock(&another, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(
            inherited,
            Err(Errno::AGAIN),
            "the child does not hold the lock"
        );
        drop(another);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| directory.lock("web"));
            drop(child.stdin.take());
            waiting.join().unwrap().expect("the lock is free then");
        });
        child.wait().unwrap();
    }
}
