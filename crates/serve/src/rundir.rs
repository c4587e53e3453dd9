//! Where our sockets, locks and private mounts live: `/run/outlive/<service>/`.

use std::{
    fmt,
    fs::{self, File, Permissions},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use crate::{changes, error::ServeError, images, instance, logger_client, options, own_addresses};

const DEFAULT: &str = "/run/outlive";

/// What a file is called until all of it is there.
const NEW: &str = "kept.new";

/// Keep something for the next `serve`, in this file of a service's directory. Whenever we are killed, the old
/// file or the new one is there: half of one would stop every start.
pub(crate) fn keep(directory: &Path, file: &str, what: &impl Serialize) -> io::Result<()> {
    let new = directory.join(NEW);
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
        Self(PathBuf::from(DEFAULT))
    }
}

impl RunDir {
    /// Another place than `/run/outlive`.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The directory of one service.
    #[must_use]
    pub fn service(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The socket on which a running `serve` answers.
    #[must_use]
    pub fn socket(&self, name: &str) -> PathBuf {
        self.service(name).join("control.sock")
    }

    /// The service's name in what all run directories of a host share (the cgroup hierarchy, the
    /// host's bpffs): two services of one name in two run directories are two services.
    #[must_use]
    pub fn host_name(&self, name: &str) -> String {
        if self.0 == Path::new(DEFAULT) {
            return name.to_owned();
        }
        let mut hasher = DefaultHasher::new(); // SipHash with fixed keys: the same in every process
        self.0.hash(&mut hasher);
        format!("{name}~{:08x}", hasher.finish() >> 32)
    }

    /// Names of the services that have a directory.
    #[must_use]
    pub fn services(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Make the service's directory and take its lock, so that no second `serve` or `clean`
    /// touches it.
    ///
    /// # Errors
    /// Another process holds the lock, or the directory cannot be made.
    pub fn lock(&self, name: &str) -> Result<Lock, ServeError> {
        let directory = self.service(name);
        let failed = |source: io::Error| ServeError::RunDir {
            path: directory.clone(),
            source,
        };
        let made_above = self.0 == Path::new(DEFAULT) || !self.0.exists();
        fs::create_dir_all(&directory).map_err(failed)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o700)).map_err(failed)?;
        let file = File::create(directory.join("lock")).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock {
                directory,
                made_above,
                _file: file,
            }),
            Err(rustix::io::Errno::AGAIN) => Err(ServeError::AlreadyServed {
                name: name.to_owned(),
            }),
            Err(error) => Err(failed(error.into())),
        }
    }
}

impl fmt::Display for RunDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Holds a service's directory for one process.
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

    /// Remove the directory, and the one above if it is ours and no other service is in it.
    pub fn remove(self) {
        if let Err(error) = images::remove(&self.directory) {
            tracing::warn!(%error, "checkpoints of the server stay");
        }
        for file in [
            "control.sock",
            logger_client::SOCKET,
            changes::FILE,
            instance::FILE,
            NEW,
            own_addresses::FILE,
            options::FILE,
            "lock",
        ] {
            let _ = fs::remove_file(self.directory.join(file));
        }
        // Fails, as it should, when something unknown is in it.
        let removed = fs::remove_dir(&self.directory).is_ok();
        if let (true, Some(parent)) = (removed && self.made_above, self.directory.parent()) {
            let _ = fs::remove_dir(parent);
        }
    }
}
