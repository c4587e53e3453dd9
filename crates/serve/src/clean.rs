//! `outlive clean`: removing what a `serve` left that was killed itself.

use std::time::Duration;

use dataplane::{PinDirectory, detach_clsact};
use supervise::{
    Cgroup,
    mounts::{self},
};

use crate::{error::ServeError, preflight, rundir::RunDir};

/// What was removed.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Cleaned {
    /// The service.
    pub service: String,
    /// Processes of its server that were still running and were killed.
    pub killed: usize,
    /// Its programs were still attached.
    pub programs: bool,
}

/// Remove everything of `name` that no running `serve` owns. Processes of its server are killed
/// only if `kill` says so.
///
/// # Errors
/// A `serve` of that name runs; its server runs and may not be killed; something cannot be
/// removed.
pub fn clean(run_dir: &RunDir, name: &str, kill: bool) -> Result<Cleaned, ServeError> {
    preflight::privileges()?;
    preflight::name(name)?;
    let lock = run_dir.lock(name)?;
    let mut cleaned = Cleaned {
        service: name.to_owned(),
        ..Cleaned::default()
    };
    let cgroup2 = mounts::cgroup2(lock.directory())?;
    let host_name = run_dir.host_name(name);
    let cgroup = Cgroup::open(&cgroup2, &host_name)?;
    if cgroup.path().exists() {
        let pids = cgroup.procs()?;
        if !pids.is_empty() {
            if !kill {
                return Err(supervise::CgroupError::Occupied {
                    path: cgroup.path().to_owned(),
                    pids,
                }
                .into());
            }
            cleaned.killed = pids.len();
            cgroup.kill()?;
            cgroup.wait_empty(Duration::from_secs(5))?;
        }
        cgroup.remove()?;
    }
    let bpffs = mounts::bpffs(lock.directory())?;
    let pins = PinDirectory::new(bpffs.path(), &host_name);
    if pins.exists() {
        cleaned.programs = true;
        detach_clsact(&pins)?;
        pins.remove()?;
    }
    drop(bpffs);
    drop(cgroup2);
    lock.remove();
    Ok(cleaned)
}
