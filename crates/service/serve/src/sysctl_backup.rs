//! What was changed on the host's interfaces, backup in the run directory: who cleans up behind a
//! killed `serve` puts it back. What another service in the same run directory needs, too, stays as it is: that one
//! puts it back.

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

/// Wait for the change of another service. A service that was stopped in the middle of its change blocks no other.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two attempts to take the lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The file in a service's directory.
pub(crate) const FILE: &str = "changes.json";

/// The list, and the network namespace that it is about.
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

/// What other services of this run directory have changed in this network namespace.
pub(crate) fn of_other_services(directory: &Path) -> Vec<Change> {
    let above = directory
        .parent()
        .and_then(|above| fs::read_dir(above).ok());
    let others = above.into_iter().flatten().flatten();
    let others = others.map(|other| other.path());
    let others = others.filter(|other| other != directory);
    // What cannot be read is of a service that can be neither taken over nor cleaned up.
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

/// Take the programs down, and put back what no other service needs.
pub(crate) fn end(directory: &Path, mut plane: Dataplane) -> Result<(), ServeError> {
    let _lock = lock(directory);
    plane.shares_with(of_other_services(directory));
    let removed = plane.remove();
    forget(directory);
    Ok(removed?)
}

/// Put back what a killed `serve` changed in this network namespace, and no other service needs. Tells how many
/// settings.
pub(crate) fn put_back(directory: &Path) -> Result<usize, ServeError> {
    let _lock = lock(directory);
    let count = dataplane::put_back(list(directory)?, &of_other_services(directory));
    forget(directory);
    Ok(count)
}

/// Nothing is changed any more: the last one of several services has nobody to leave it to.
fn forget(directory: &Path) {
    match fs::remove_file(directory.join(FILE)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(%error, "the list of changed settings stays"),
    }
}

/// What a killed `serve` changed in this network namespace.
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
        // That of a container or a lab, and its settings went with it, or are to be cleaned there.
        return Ok(Vec::new());
    }
    Ok(backup.changes)
}
