//! `outlive clean`: removes the remains of a killed `serve`.

use std::{io::ErrorKind, path::Path};

use dataplane::{PinDirectory, detach_clsact};
use supervise::{
    Cgroup, CgroupError, destroy_sockets,
    mounts::{self, Mount},
};

use crate::{
    error::ServeError,
    event_log,
    events::{Event, EventRecord, Requester},
    instance::Instance,
    logger_client, options, preflight,
    rundir::{Lock, RunDir},
    sysctl_backup,
};

/// The removed remains.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Cleaned {
    /// The service.
    pub service: String,
    /// Running processes of the server that were killed.
    pub killed: usize,
    /// The programs were still attached.
    pub programs: bool,
    /// Addresses of the service that were taken down.
    pub addresses: usize,
    /// Settings of interfaces that were put back.
    pub settings: usize,
}

impl Cleaned {
    fn is_nothing(&self) -> bool {
        self.killed == 0 && !self.programs && self.addresses == 0 && self.settings == 0
    }
}

/// Remove everything of `name` that no running `serve` owns. Processes of the server are killed only if `kill` is true.
/// The service's history, if present, gets an entry with the user.
///
/// # Errors
/// No remains have this name; a `serve` of this name runs; the server runs and must not be killed; a part cannot be
/// removed.
pub fn clean(
    run_dir: &RunDir,
    name: &str,
    kill: bool,
    history: Option<&Path>,
) -> Result<Cleaned, ServeError> {
    preflight::privileges()?;
    preflight::name(name)?;
    let is_known = run_dir.service(name).exists();
    let lock = run_dir.lock(name)?;
    let mut cleaned = Cleaned {
        service: name.to_owned(),
        ..Cleaned::default()
    };
    let bpffs = mounts::bpffs(lock.directory())?;
    let host_name = run_dir.host_name(name);
    if let Err(error) = remove_rest(&lock, &bpffs, &host_name, kill, &mut cleaned) {
        bpffs.leave(); // the pinned programs go on protecting the rest
        return Err(error);
    }
    drop(bpffs);
    lock.remove();
    if !is_known && cleaned.is_nothing() {
        return Err(ServeError::NoService {
            name: name.to_owned(),
            known: run_dir.services(),
        });
    }
    if let Some(history) = history.filter(|history| history.join(name).exists()) {
        note(history, &cleaned);
    }
    Ok(cleaned)
}

/// Add the user to the service's history.
fn note(history: &Path, cleaned: &Cleaned) {
    let event = Event::Cleaned {
        killed: cleaned.killed,
        addresses: cleaned.addresses,
        settings: cleaned.settings,
        by: Requester::ourselves(),
    };
    let report = EventRecord::now(&cleaned.service, event);
    if let Err(error) = event_log::add_to(history, &cleaned.service, &report) {
        tracing::warn!(%error, "this is not noted in the history");
    }
}

/// Remove everything of the service in this directory but the directory.
pub(crate) fn remove_rest(
    lock: &Lock,
    bpffs: &Mount,
    host_name: &str,
    kill: bool,
    cleaned: &mut Cleaned,
) -> Result<(), ServeError> {
    let cgroup2 = mounts::cgroup2(lock.directory())?;
    cleaned.killed = match Cgroup::open(&cgroup2, host_name) {
        Ok(cgroup) => cgroup.remove_with_processes(kill)?,
        Err(CgroupError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(error.into()),
    };
    logger_client::end_left_over(lock.directory());
    // While the programs are there: at the end of the lease, the kernel must not send for the service.
    if Instance::of(lock.directory()).is_ok_and(|instance| instance.epoch().is_some()) {
        destroy_sockets(&options::addresses(lock.directory()), |_, _, _| true)?;
    }
    cleaned.addresses = service_addresses::take_down(lock.directory())?;
    let pins = PinDirectory::new(bpffs.path(), host_name).all();
    for pins in pins.iter().filter(|pins| pins.exists()) {
        cleaned.programs = true;
        detach_clsact(pins)?;
        pins.remove()?;
    }
    drop(cgroup2);
    drop(mounts::memory_left(lock.directory()));
    cleaned.settings = sysctl_backup::put_back(lock.directory())?;
    Ok(())
}
