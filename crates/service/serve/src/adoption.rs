//! Taking over a service whose `serve` has died: by a bug, by somebody's hand, or because a new version
//! is to run it.
//!
//! The programs in the kernel, the server in its cgroup and the logger have gone on without us. What
//! they know is all there is: the flows and the server's incarnation are in the maps, the records are the
//! logger's, and what happened meanwhile is in the ring of events. If the server has died meanwhile,
//! or was being recovered, that is a crash to recover from, like one in any stage of a recovery.

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
    /// Its main process, if that lives.
    pub(crate) server: Option<Server>,
    /// Nothing was recorded for a while.
    pub(crate) record_expired: bool,
    /// The logger process of this host was started anew, and has no record.
    pub(crate) has_new_logger: bool,
    /// Its server's own record.
    pub(crate) north: Option<North>,
}

impl Adopted {
    /// Leave it for whoever comes next.
    pub(crate) fn leave(self) {
        if let Some(north) = self.north {
            north.leave();
        }
    }
}

/// Take over what is pinned there. If that fails everything stays as it was.
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
    // From here on nothing passes unseen any more.
    plane.heartbeat()?;
    // If its end was asked for, then of somebody who is dead; we are asked to go on.
    plane.stopping(false)?;
    plane.shares_with(sysctl_backup::of_other_services(lock.directory()));
    for interface in interfaces {
        plane.adopt_interface(&interface, config.attach, &changes)?;
    }
    plane.adopt_latch()?;
    sysctl_backup::keep(lock.directory(), &plane)?;
    let (logger, kept) = match &config.link {
        Some(_) => (setup::remote_logger(config, instance, &plane)?, true), // it will say
        None => match LoggerClient::adopt(config) {
            Some(client) => {
                // Until here, our programs have written as those before, and the logger has read all of that.
                plane.set_mirror_version(client.mirror_version)?;
                (Logger::Local(client), true)
            }
            None => (setup::local_logger(config, &plane)?, false),
        },
    };
    let lease = standby_eligibility::go_on(config, instance, &plane, &plane_state)?;
    // At last: what was looked at is dropped if anything fails.
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
                // Its id is another one than the programs know.
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
