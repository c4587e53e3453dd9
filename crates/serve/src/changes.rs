//! What was changed on the host's interfaces, kept in the run directory: who cleans up behind a
//! killed `serve` puts it back.

use std::{fs, io, path::Path};

use dataplane::{Change, Dataplane, netns_cookie};

use crate::{
    error::{ServeError, SystemContext},
    rundir,
};

/// The file in a service's directory.
pub(crate) const FILE: &str = "changes.json";

/// The list, and the network namespace that it is about.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Kept {
    network_namespace: u64,
    changes: Vec<Change>,
}

/// Keep the list of all changes.
pub(crate) fn keep(directory: &Path, plane: &Dataplane) -> Result<(), ServeError> {
    let kept = Kept {
        network_namespace: netns_cookie()?,
        changes: plane.changes(),
    };
    rundir::keep(directory, FILE, &kept).doing("note what is changed on the interfaces")
}

/// Put back what a killed `serve` changed in this network namespace. Tells how many settings.
pub(crate) fn put_back(directory: &Path) -> Result<usize, ServeError> {
    let changes = list(directory)?;
    for change in &changes {
        // Its interface may be gone.
        if let Err(error) = change.put_back() {
            tracing::warn!(?change, %error, "a setting was not put back");
        }
    }
    Ok(changes.len())
}

/// What a killed `serve` changed in this network namespace.
pub(crate) fn list(directory: &Path) -> Result<Vec<Change>, ServeError> {
    let path = directory.join(FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).doing("read what was changed on the interfaces"),
    };
    let kept: Kept = serde_json::from_slice(&text)
        .map_err(io::Error::other)
        .doing("read what was changed on the interfaces")?;
    if kept.network_namespace != netns_cookie()? {
        // That of a container or a lab, and its settings went with it, or are to be cleaned there.
        return Ok(Vec::new());
    }
    Ok(kept.changes)
}
