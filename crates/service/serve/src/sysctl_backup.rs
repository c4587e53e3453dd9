//! Backup of changed settings of the host's interfaces, in the run directory. After a kill of `serve`, `outlive clean`
//! or the next `serve` restores the settings. A setting that another service of the same run directory needs remains
//! changed: that service restores the setting.

use std::{
    fs::{self, File},
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use dataplane::{Change, Dataplane, netns_cookie};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    error::{ServeError, SystemContext},
    rundir,
};

/// Wait for the change of another service. A service that was stopped in the middle of a change blocks no other
/// service.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two attempts to take the lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The file in a service's directory.
pub(crate) const FILE: &str = "changes.json";

/// The changes, and their network namespace.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Backup {
    network_namespace: u64,
    changes: Vec<Change>,
}

/// Keep the list of all changes.
pub(crate) fn keep(directory: &Path, plane: &Dataplane) -> Result<(), ServeError> {
    let backup = Backup {
        network_namespace: netns_cookie()?,
        changes: plane.changes(),
    };
    rundir::keep(directory, FILE, &backup).doing("note what is changed on the interfaces")
}

/// Changes by other services of this run directory in this network namespace.
pub(crate) fn of_other_services(directory: &Path) -> Vec<Change> {
    let above = directory
        .parent()
        .and_then(|above| fs::read_dir(above).ok());
    let others = above.into_iter().flatten().flatten();
    let others = others.map(|other| other.path());
    let others = others.filter(|other| other != directory);
    // An unreadable list belongs to a service that can be neither adopted nor cleaned up.
    others
        .filter_map(|other| list(&other).ok())
        .flatten()
        .collect()
}

/// While this is held no other service of this run directory changes anything, or puts anything back.
pub(crate) fn lock(directory: &Path) -> Option<File> {
    let above = File::open(directory.parent()?).ok()?;
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&above, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(above),
            Err(Errno::AGAIN) if Instant::now() < until => thread::sleep(LOCK_RETRY_INTERVAL),
            Err(error) => {
                tracing::warn!(%error, "another service may change the same settings now");
                return None;
            }
        }
    }
}

/// Remove the programs, and restore settings that no other service needs.
pub(crate) fn end(directory: &Path, mut plane: Dataplane) -> Result<(), ServeError> {
    let _lock = lock(directory);
    plane.shares_with(of_other_services(directory));
    let removed = plane.remove();
    forget(directory);
    Ok(removed?)
}

/// Restore settings that a killed `serve` changed in this network namespace, and no other service needs. Returns the
/// number of settings.
pub(crate) fn put_back(directory: &Path) -> Result<usize, ServeError> {
    let _lock = lock(directory);
    let count = dataplane::put_back(list(directory)?, &of_other_services(directory));
    forget(directory);
    Ok(count)
}

/// All changes are undone: the last of several services has no successor for the list.
fn forget(directory: &Path) {
    match fs::remove_file(directory.join(FILE)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(%error, "the list of changed settings stays"),
    }
}

/// Changes by a killed `serve` in this network namespace.
pub(crate) fn list(directory: &Path) -> Result<Vec<Change>, ServeError> {
    let path = directory.join(FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).doing("read what was changed on the interfaces"),
    };
    let backup: Backup = serde_json::from_slice(&text)
        .map_err(io::Error::other)
        .doing("read what was changed on the interfaces")?;
    if backup.network_namespace != netns_cookie()? {
        // A list of a container or a lab, whose settings are gone with the namespace, or must be restored there.
        return Ok(Vec::new());
    }
    Ok(backup.changes)
}
