//! Adoption of a service whose `serve` has died: by a bug, by a kill, or in order to run a new version.
//!
//! The programs in the kernel, the server in a cgroup and the logger went on without a `serve`. Their state is all
//! there is: the flows and the server's incarnation are in the maps, the records are at the logger, and meanwhile
//! events are in the event ring. If the server has died meanwhile, or a recovery was under way, this is a crash to
//! recover from, like a crash in any stage of a recovery.

use protocol::mirror;
use rustix::process::Pid;
use supervise::{
    Cgroup, CgroupError, Server, become_subreaper,
    mounts::{self, Mount},
};

use dataplane::{Adoption, Dataplane, Injector, Life, PinDirectory, ethernet_interfaces};

use crate::{
    clock,
    config::ServeConfig,
    error::{ServeError, SystemContext},
    instance::Instance,
    lease_client::LeaseClient,
    logger::Logger,
    logger_client::LoggerClient,
    north::North,
    options,
    rundir::Lock,
    setup::{self, HEARTBEAT_TIMEOUT, Resources},
    standby_eligibility, sysctl_backup,
};

/// How the service was found.
pub(crate) struct Adopted {
    pub(crate) plane_state: Life,
    /// The server with the main process, if that process is alive.
    pub(crate) server: Option<Server>,
    /// Recording was suspended for a while.
    pub(crate) record_expired: bool,
    /// The logger process of this host was restarted, and has no record.
    pub(crate) has_new_logger: bool,
    /// The determinant log of the server.
    pub(crate) north: Option<North>,
}

impl Adopted {
    /// Leave the service for the next `serve`.
    pub(crate) fn leave(self) {
        if let Some(north) = self.north {
            north.leave();
        }
    }
}

/// Adopt the pinned service. If the adoption fails, everything stays as before.
pub(crate) fn adopt(
    config: &ServeConfig,
    lock: Lock,
    bpffs: Mount,
    pins: PinDirectory,
    instance: Instance,
) -> Result<(Resources, Adopted), ServeError> {
    let cgroup2 = match mounts::cgroup2(lock.directory()) {
        Ok(cgroup2) => cgroup2,
        Err(error) => {
            bpffs.leave();
            return Err(error.into());
        }
    };
    match take_over(config, &lock, &cgroup2, pins, &instance) {
        Ok((plane, injector, (logger, lease), cgroup, adopted)) => {
            let resources = Resources {
                plane,
                injector,
                logger,
                lease,
                cgroup,
                bpffs,
                cgroup2,
                instance,
                lock,
            };
            Ok((resources, adopted))
        }
        Err(error) => {
            bpffs.leave();
            cgroup2.leave();
            Err(match error {
                error @ ServeError::OtherOptions { .. } => error,
                error => ServeError::NotAdopted {
                    name: config.name.clone(),
                    why: Box::new(error),
                },
            })
        }
    }
}

type Parts = (
    Dataplane,
    Injector,
    (Logger, Option<LeaseClient>),
    Cgroup,
    Adopted,
);

fn take_over(
    config: &ServeConfig,
    lock: &Lock,
    cgroup2: &Mount,
    pins: PinDirectory,
    instance: &Instance,
) -> Result<Parts, ServeError> {
    options::check(lock.directory(), config)?;
    // Checks come before maps of the layout before are migrated: afterwards the version that made these could not adopt
    // any more.
    let cgroup = cgroup_of(config, cgroup2)?;
    let changes = sysctl_backup::list(lock.directory())?;
    let interfaces = ethernet_interfaces()?;
    become_subreaper().doing("become the reaper of the server's orphans")?;
    let adoption = Adoption::prepare(pins)?;
    check_frames(adoption.mirror_version())?;
    let injector = Injector::new(adoption.mark())?;
    let main = i32::try_from(adoption.main_pid()).ok();
    let server = match main.and_then(Pid::from_raw) {
        Some(pid) => Server::adopt(pid, &cgroup).doing("watch the server")?,
        None => None,
    };
    let (mut plane, plane_state) = adoption.complete()?;
    let expired = clock::now().saturating_sub(plane_state.heartbeat) >= HEARTBEAT_TIMEOUT;
    // From here on the programs see every packet.
    plane.heartbeat()?;
    // An earlier request to stop came from a dead `serve`; this `serve` is to continue.
    plane.stopping(false)?;
    plane.shares_with(sysctl_backup::of_other_services(lock.directory()));
    for interface in interfaces {
        plane.adopt_interface(&interface, config.attach, &changes)?;
    }
    plane.adopt_latch()?;
    sysctl_backup::keep(lock.directory(), &plane)?;
    let (logger, kept) = match &config.link {
        Some(_) => (setup::remote_logger(config, instance, &plane)?, true), // the reply of the logger will show
        None => match LoggerClient::adopt(config) {
            Some(client) => {
                // Up to here the new programs have written the old version, and the logger has read all of the old
                // programs' frames.
                plane.set_mirror_version(client.mirror_version)?;
                (Logger::Local(client), true)
            }
            None => (setup::local_logger(config, &plane)?, false),
        },
    };
    let lease = standby_eligibility::go_on(config, instance, &plane, &plane_state)?;
    // At the end: a failure drops everything that was opened.
    let north = match config.wrapped {
        true => Some(North::adopt(config, lock.directory())?),
        false => None,
    };
    let adopted = Adopted {
        plane_state,
        server,
        record_expired: expired,
        has_new_logger: !kept,
        north,
    };
    Ok((plane, injector, (logger, lease), cgroup, adopted))
}

/// The ring may hold frames of this version, and our programs would write more.
fn check_frames(version: u8) -> Result<(), ServeError> {
    if mirror::VERSIONS.contains(version) {
        return Ok(());
    }
    Err(ServeError::Logger(format!(
        "the programs of the service write version {version} of the mirror frame, and this outlive knows {}: start the \
         outlive that served before",
        mirror::VERSIONS
    )))
}

fn cgroup_of(config: &ServeConfig, cgroup2: &Mount) -> Result<Cgroup, ServeError> {
    Ok(
        match Cgroup::open(cgroup2, &config.run_dir.host_name(&config.name)) {
            Err(CgroupError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                // A new cgroup has another id than the programs know.
                return Err(ServeError::Logger(
                    "the cgroup of its server is gone".into(),
                ));
            }
            cgroup => cgroup?,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_with_frames_of_unknown_version_is_not_adopted() {
        let (oldest, newest) = (mirror::VERSIONS.oldest(), mirror::VERSIONS.newest());
        assert!((oldest..=newest).all(|version| check_frames(version).is_ok()));
        for unknown in [oldest - 1, newest + 1] {
            let error = check_frames(unknown)
                .expect_err("it is refused")
                .to_string();
            let named = format!("version {unknown} of the mirror frame");
            assert!(error.contains(&named), "{error}");
        }
    }
}
