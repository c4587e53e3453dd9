//! Data of a service that outlive a `serve`: the number by which remote loggers know the service, the logger in use,
//! and whether an adoption is possible. The numbers are drawn at the first start of the service, stored in the
//! service's directory, and removed when the service is stopped.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::{
    error::{ServeError, SystemContext},
    rundir,
};

/// The file in a service's directory.
pub(crate) const FILE: &str = "instance.json";

/// The instance in this directory.
#[derive(Debug)]
pub(crate) struct Instance {
    directory: PathBuf,
    stored: StoredInstance,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredInstance {
    number: u64,
    holder: u64,
    begun: bool,
    session: u64,
    logger: Option<SocketAddr>,
    #[serde(default)]
    epoch: Option<u32>,
    #[serde(default, rename = "unused_lives")]
    unused_incarnations: u32,
}

impl StoredInstance {
    fn draw() -> Self {
        let number = rand::rng().random();
        Self {
            number,
            holder: number,
            begun: false,
            session: since_1970(),
            logger: None,
            epoch: None,
            unused_incarnations: 0,
        }
    }
}

/// A later session of a service has a higher number than an earlier session, even if the earlier number is lost here
/// and the logger is absent.
fn since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Instance {
    /// The instance in this directory, or a new instance.
    pub(crate) fn of(directory: &Path) -> Result<Self, ServeError> {
        let text = fs::read(directory.join(FILE));
        let directory = directory.to_owned();
        match text {
            Ok(text) => {
                let stored = serde_json::from_slice(&text)
                    .map_err(io::Error::other)
                    .doing("read what the service knows of itself")?;
                Ok(Self { directory, stored })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let instance = Self {
                    directory,
                    stored: StoredInstance::draw(),
                };
                instance.keep()?;
                Ok(instance)
            }
            Err(error) => Err(error).doing("read what the service knows of itself"),
        }
    }

    /// Whether a service in this directory has begun and may run still: `serve` takes the service over.
    pub(crate) fn is_begun_in(directory: &Path) -> bool {
        let text = fs::read(directory.join(FILE)).unwrap_or_default();
        serde_json::from_slice::<StoredInstance>(&text).is_ok_and(|stored| stored.begun)
    }

    /// Number of the instance at loggers.
    pub(crate) fn number(&self) -> u64 {
        self.stored.number
    }

    /// Number of the holder at the logger that grants leases. Equal to [`Instance::number`], unless
    /// [`Instance::disinherit`].
    pub(crate) fn holder(&self) -> u64 {
        self.stored.holder
    }

    /// Whether the server may run, or clients may reach this host. Before that there is no state here to take over, and
    /// a logger may know of an earlier incarnation.
    pub(crate) fn has_begun(&self) -> bool {
        self.stored.begun
    }

    /// Number of the service's session in which this logger was in use: [`protocol::control::Request::InUse`].
    pub(crate) fn session(&self) -> u64 {
        self.stored.session
    }

    /// The logger that was last in use: records of all other loggers are stale.
    pub(crate) fn logger(&self) -> Option<SocketAddr> {
        self.stored.logger
    }

    /// From here on the next `serve` adopts the service when this `serve` is killed.
    pub(crate) fn begin(&mut self) -> Result<(), ServeError> {
        self.stored.begun = true;
        self.keep()
    }

    /// Number of incarnations that the programs counted before the first start of the server.
    pub(crate) fn begin_after(&mut self, unused_incarnations: u32) -> Result<(), ServeError> {
        self.stored.unused_incarnations = unused_incarnations;
        self.begin()
    }

    /// See [`Instance::begin_after`].
    pub(crate) fn unused_incarnations(&self) -> u32 {
        self.stored.unused_incarnations
    }

    /// The granted epoch; 0 if the service serves by the operator's word alone. `None`: no leases.
    pub(crate) fn epoch(&self) -> Option<u32> {
        self.stored.epoch
    }

    /// The service serves in this epoch.
    pub(crate) fn serves_in(&mut self, epoch: u32) -> Result<(), ServeError> {
        if self.stored.epoch == Some(epoch) {
            return Ok(());
        }
        self.stored.epoch = Some(epoch);
        self.keep()
    }

    /// This logger is in use now.
    pub(crate) fn uses(&mut self, logger: SocketAddr, session: u64) -> Result<(), ServeError> {
        if (self.stored.logger, self.stored.session) == (Some(logger), session) {
            return Ok(());
        }
        self.stored.logger = Some(logger);
        self.stored.session = session;
        self.keep()
    }

    /// Records at loggers are of no use: draw new numbers.
    pub(crate) fn renew(&mut self) -> Result<(), ServeError> {
        let session = self.stored.session;
        self.stored = StoredInstance {
            session,
            ..StoredInstance::draw()
        };
        self.keep()
    }

    /// Loggers may have records of this number that cannot be fetched: the service is recorded under a new number, but
    /// remains the same holder.
    pub(crate) fn disinherit(&mut self) -> Result<(), ServeError> {
        self.stored.number = rand::rng().random();
        self.keep()
    }

    fn keep(&self) -> Result<(), ServeError> {
        rundir::keep(&self.directory, FILE, &self.stored)
            .doing("keep what the service knows of itself")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_different_numbers() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut one = Instance::of(a.path()).unwrap();
        let another = Instance::of(b.path()).unwrap();
        assert_ne!(one.number(), another.number());
        assert!(!one.has_begun() && one.logger().is_none());
        let logger = "10.0.0.9:7600".parse().unwrap();
        one.uses(logger, 3).unwrap();
        one.serves_in(7).unwrap();
        one.begin().unwrap();
        let again = Instance::of(a.path()).unwrap();
        assert_eq!(again.stored, one.stored);
        assert!(again.has_begun() && again.epoch() == Some(7));
        assert_eq!((again.logger(), again.session()), (Some(logger), 3));
        one.renew().unwrap();
        assert_ne!(one.number(), again.number());
        assert!(!Instance::of(a.path()).unwrap().has_begun());
        assert_eq!(fs::read_dir(a.path()).unwrap().count(), 1);
    }

    #[test]
    fn invalid_file_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "rubbish").unwrap();
        assert!(Instance::of(directory.path()).is_err());
    }
}
