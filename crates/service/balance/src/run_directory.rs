//! Where lock, socket and mounts of a balancer are: `<run directory>/.balance/<name>/`. No service's name begins with a
//! dot.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use protocol::pool::BalancerId;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::error::BalanceError;

const BALANCERS_DIRECTORY: &str = ".balance";
const LOCK_FILE: &str = "lock";
/// The number of the balancer among the balancers of the pool.
const ID_FILE: &str = "id";

/// The directory of a balancer, locked.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Makes and locks the directory.
    pub(crate) fn lock(run_dir: &Path, name: &str) -> Result<Self, BalanceError> {
        let path = directory(run_dir, name);
        let failed = |source: io::Error| BalanceError::RunDirectory {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(&path).map_err(failed)?;
        fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(failed)?;
        let lock = File::create(path.join(LOCK_FILE)).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(Errno::WOULDBLOCK) => Err(BalanceError::AlreadyRuns(name.to_owned())),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// The number of this balancer, the same after a restart: a process of the same number is dead, because the
    /// directory is locked.
    pub(crate) fn id(&self) -> Result<BalancerId, BalanceError> {
        let path = self.path.join(ID_FILE);
        let failed = |source: io::Error| BalanceError::RunDirectory {
            path: path.clone(),
            source,
        };
        match fs::read_to_string(&path) {
            Ok(text) if text.ends_with('\n') => {
                let id = text.trim_end().parse().map_err(io::Error::other);
                Ok(BalancerId(id.map_err(failed)?))
            }
            Ok(_) => self.new_id(&path).map_err(failed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.new_id(&path).map_err(failed)
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn new_id(&self, path: &Path) -> io::Result<BalancerId> {
        let mut bytes = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let id = u64::from_ne_bytes(bytes);
        fs::write(path, format!("{id}\n"))?;
        Ok(BalancerId(id))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory, if nothing is mounted there.
    pub(crate) fn remove(self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The directory of a balancer. Nothing is created.
pub(crate) fn directory(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(BALANCERS_DIRECTORY).join(name)
}

/// The socket on which a running balancer answers.
pub(crate) fn socket(run_dir: &Path, name: &str) -> PathBuf {
    directory(run_dir, name).join("control.sock")
}

/// Names of the balancers that have a directory.
pub(crate) fn names(run_dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(run_dir.join(BALANCERS_DIRECTORY));
    let entries = entries.into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_balancer_of_a_name_is_refused() {
        let run_dir = tempfile::tempdir().expect("a directory");
        let first = RunDirectory::lock(run_dir.path(), "pool").expect("locked");
        let second = RunDirectory::lock(run_dir.path(), "pool");
        assert!(matches!(second, Err(BalanceError::AlreadyRuns(_))));
        RunDirectory::lock(run_dir.path(), "other").expect("locked");
        assert_eq!(names(run_dir.path()), ["other", "pool"]);
        let id = first.id().expect("a number");
        assert_eq!(first.id().expect("a number"), id);
        first.remove();
        assert_eq!(names(run_dir.path()), ["other"]);
    }
}
