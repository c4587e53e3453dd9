//! Options of a running service, stored in the service's directory: an adopting `serve` must have the same values of
//! options that cannot change while connections are open.

use std::{fs, io, net::SocketAddr, path::Path};

use recovery::ReplayMode;
use serde::{Deserialize, Serialize};
use south_model::CrashOn;

use crate::{
    config::ServeConfig,
    error::{ServeError, SystemContext},
    rundir, standby_eligibility,
};

/// The file in a service's directory.
pub(crate) const FILE: &str = "options.json";

/// Whether the server's input is recorded.
pub(crate) const NORTH: &str = "--stateful";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Options {
    addresses: Vec<SocketAddr>,
    #[serde(default)]
    wrapped: bool,
    replay_turn: bool,
    verify_head: u32,
    #[serde(default)]
    digests: bool,
    ring: u32,
    max_connections: u32,
    link: bool,
    /// Logger that grants leases.
    granted_by: Option<SocketAddr>,
    crash_on_any_failure: bool,
    #[serde(default)]
    crash_on_main_alone: bool,
    /// Server with state: segments in a tenth of a second below which every segment is mirrored.
    #[serde(default)]
    copies: Option<u32>,
}

impl Options {
    fn of(config: &ServeConfig) -> Self {
        let mut addresses = config.addresses.clone();
        addresses.sort();
        addresses.dedup();
        Self {
            addresses,
            wrapped: config.wrapped,
            replay_turn: config.replay == ReplayMode::Request,
            verify_head: config.verify_head(),
            digests: config.digests(),
            ring: config.limits.ring,
            max_connections: config.max_connections,
            link: config.link.is_some(),
            granted_by: standby_eligibility::granter(config),
            crash_on_any_failure: config.crash_on == CrashOn::AnyFailure,
            crash_on_main_alone: config.crash_on == CrashOn::Main,
            copies: config.spare_copies(),
        }
    }

    /// Name of a differing option on the command line.
    fn differs(&self, other: &Self) -> Option<&'static str> {
        let differences = [
            ("--address", self.addresses != other.addresses),
            (
                NORTH,
                self.wrapped != other.wrapped
                    || self.wrapped && self.verify_head != other.verify_head,
            ),
            ("--replay", self.replay_turn != other.replay_turn),
            (
                "--verify",
                self.verify_head != other.verify_head || self.digests != other.digests,
            ),
            ("--ring-size", self.ring != other.ring),
            ("--mirror-skip-above", self.copies != other.copies),
            (
                "--max-connections",
                self.max_connections != other.max_connections,
            ),
            (
                "--logger, or --address-device",
                self.link != other.link || self.granted_by != other.granted_by,
            ),
            (
                "--crash-on",
                self.crash_on_any_failure != other.crash_on_any_failure
                    || self.crash_on_main_alone != other.crash_on_main_alone,
            ),
        ];
        let (name, _) = differences.into_iter().find(|(_, differs)| *differs)?;
        Some(name)
    }
}

/// Keep the options of a service that begins.
pub(crate) fn keep(directory: &Path, config: &ServeConfig) -> Result<(), ServeError> {
    rundir::keep(directory, FILE, &Options::of(config)).doing("note the options of the service")
}

/// The addresses of the service that began in this directory, if a service began.
pub(crate) fn addresses(directory: &Path) -> Vec<SocketAddr> {
    let text = fs::read(directory.join(FILE)).unwrap_or_default();
    let kept = serde_json::from_slice::<Options>(&text);
    kept.map_or_else(|_| Vec::new(), |options| options.addresses)
}

/// Are these the options of the service that runs?
pub(crate) fn check(directory: &Path, config: &ServeConfig) -> Result<(), ServeError> {
    let doing = "read the options of the service that is to be taken over";
    let text = fs::read(directory.join(FILE)).doing(doing)?;
    let kept: Options = serde_json::from_slice(&text)
        .map_err(io::Error::other)
        .doing(doing)?;
    match kept.differs(&Options::of(config)) {
        None => Ok(()),
        Some(option) => Err(ServeError::OtherOptions {
            name: config.name.clone(),
            option,
        }),
    }
}
