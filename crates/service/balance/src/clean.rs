//! `outlive clean`: removes what a balancer has left in place.

use std::path::Path;

use dataplane::{balance_pins, remove_balancer};
use serde::Serialize;
use supervise::{host_name, mounts};

use crate::{
    error::BalanceError,
    run_directory::{self, RunDirectory},
};

/// The removed remains of a balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cleaned {
    /// The name of the pool.
    pub pool: String,
    /// The programs were still attached.
    pub programs: bool,
    /// Addresses of the service that were taken down.
    pub addresses: usize,
}

/// Names of the balancers that run or have left something.
#[must_use]
pub fn leftovers(run_dir: &Path) -> Vec<String> {
    run_directory::names(run_dir)
}

/// Detaches the programs and takes the addresses down.
///
/// # Errors
/// The balancer runs, never ran, or a part cannot be removed.
pub fn clean(run_dir: &Path, name: &str) -> Result<Cleaned, BalanceError> {
    if !run_directory::directory(run_dir, name).exists() {
        return Err(BalanceError::NotRunning(name.to_owned()));
    }
    let directory = RunDirectory::lock(run_dir, name)?;
    let addresses = service_addresses::take_down(directory.path())?;
    let bpffs = mounts::bpffs(directory.path())?;
    let pins = balance_pins(bpffs.path(), &host_name(run_dir, name));
    let programs = pins.exists();
    if let Err(error) = remove_balancer(&pins) {
        bpffs.leave();
        return Err(error.into());
    }
    drop(bpffs);
    directory.remove();
    Ok(Cleaned {
        pool: name.to_owned(),
        programs,
        addresses,
    })
}
