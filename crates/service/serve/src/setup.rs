//! Everything that must be in place before the start of the server, in order; when a step fails, the earlier steps are
//! undone.

use std::time::Duration;

use dataplane::{
    Dataplane, DataplaneError, Injector, PinDirectory, Settings, ethernet_interfaces, netns_cookie,
};
use protocol::{control::Attach, mirror};
use rand::Rng;
use south_model::{DigestKey, Digests, Flow};
use supervise::{
    Cgroup, become_subreaper,
    mounts::{self, Mount},
};

use crate::{
    adoption::{self, Adopted},
    clean::{self, Cleaned},
    config::ServeConfig,
    error::{ServeError, SystemContext},
    instance::Instance,
    lease_client::LeaseClient,
    link::{AttachRequest, Link},
    logger::Logger,
    logger_client::{FIRST_START_TIMEOUT, LoggerClient},
    options, preflight,
    rundir::Lock,
    standby_eligibility, sysctl_backup,
};

/// Silence of `serve` after which the programs let everything pass.
pub(crate) const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// Programs, logger, lease, cgroup and mounts of a service.
pub(crate) struct Resources {
    pub(crate) plane: Dataplane,
    pub(crate) injector: Injector,
    pub(crate) logger: Logger,
    /// `None` if no other host could serve.
    pub(crate) lease: Option<LeaseClient>,
    pub(crate) cgroup: Cgroup,
    // Dropped in this order: pins go before the mount that holds them, all before the lock.
    pub(crate) bpffs: Mount,
    pub(crate) cgroup2: Mount,
    pub(crate) instance: Instance,
    pub(crate) lock: Lock,
}

impl Resources {
    /// Set everything up, or adopt a service that an earlier `serve` has left running.
    pub(crate) fn prepare(config: &ServeConfig) -> Result<(Self, Option<Adopted>), ServeError> {
        let lock = config.run_dir.lock(&config.name)?;
        let bpffs = match mounts::bpffs(lock.directory()) {
            Ok(bpffs) => bpffs,
            Err(error) => {
                // A running service keeps everything.
                if !Instance::is_begun_in(lock.directory()) {
                    lock.remove();
                }
                return Err(error.into());
            }
        };
        let host_name = config.run_dir.host_name(&config.name);
        if let Err(error) = preflight::layout(bpffs.path(), config) {
            bpffs.leave(); // they are in there
            return Err(error);
        }
        let mut instance = match Instance::of(lock.directory()) {
            Ok(instance) => instance,
            Err(error) => {
                bpffs.leave(); // whatever may be in there
                return Err(error);
            }
        };
        let pins = PinDirectory::new(bpffs.path(), &host_name);
        if pins.can_be_adopted() && instance.has_begun() {
            let (resources, adopted) = adoption::adopt(config, lock, bpffs, pins, instance)?;
            return Ok((resources, Some(adopted)));
        }
        // Remains of a `serve` that was killed before an adoption was possible, or during the stop.
        let removed = &mut Cleaned::default();
        // An instance that had not begun served no clients: a running server is a replica of another host's server.
        let kill = !instance.has_begun();
        if let Err(error) = clean::remove_rest(&lock, &bpffs, &host_name, kill, removed) {
            if pins.can_be_adopted() || instance.has_begun() {
                bpffs.leave();
            } else {
                drop(bpffs);
                lock.remove(); // nothing was left, and nothing begins
            }
            return Err(error);
        }
        // The directory may be older than the last boot of the host.
        if let Err(error) = instance.renew() {
            drop(bpffs);
            return Err(error);
        }
        match Self::prepare_in(config, &lock, pins, &instance) {
            Ok((plane, injector, (logger, lease), cgroup, cgroup2)) => {
                let resources = Self {
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
                Ok((resources, None))
            }
            Err(error) => {
                drop(bpffs);
                lock.remove();
                Err(error)
            }
        }
    }

    fn prepare_in(
        config: &ServeConfig,
        lock: &Lock,
        pins: PinDirectory,
        instance: &Instance,
    ) -> Result<(Dataplane, Injector, Loggers, Cgroup, Mount), ServeError> {
        // Of two services that start at the same time, the first goes on, and the second sees the first.
        let alone = sysctl_backup::lock(lock.directory());
        if alone.is_some() {
            preflight::foreign_addresses(config)?;
        }
        options::keep(lock.directory(), config)?;
        drop(alone); // without this, each of the two sees the other
        preflight::pass_anew(config)?;
        let cgroup2 = mounts::cgroup2(lock.directory())?;
        let cgroup = Cgroup::create(&cgroup2, &config.run_dir.host_name(&config.name))?;
        become_subreaper().doing("become the reaper of the server's orphans")?;
        match bind(config, lock, &cgroup, pins, instance) {
            Ok((plane, injector, loggers)) => Ok((plane, injector, loggers, cgroup, cgroup2)),
            Err(error) => {
                let _ = cgroup.remove();
                Err(error)
            }
        }
    }

    /// From here on clients are served, after `unused_incarnations` incarnations that the programs have counted before.
    pub(crate) fn begins(&mut self, unused_incarnations: u32) -> Result<(), ServeError> {
        self.instance.begin_after(unused_incarnations)?;
        if let Some(link) = self.logger.link() {
            link.on_serving();
        }
        Ok(())
    }

    /// Sends a packet of ours to the client of a flow.
    pub(crate) fn send_to_client(&self, flow: &Flow, packet: &[u8]) -> Result<(), DataplaneError> {
        let interfaces = self.plane.interfaces();
        self.injector.to_client(packet, flow.ifindex, interfaces)
    }

    /// Keeps programs, mounts and processes for the next `serve`.
    pub(crate) fn leave(self) {
        self.bpffs.leave();
        self.cgroup2.leave();
    }

    /// Take everything down after the end of the server. `over`: no host will want the records at a remote logger.
    pub(crate) fn remove(mut self, over: bool) -> Result<(), ServeError> {
        // Before there are no programs any more, or the kernel would have the last word.
        let taken_down = service_addresses::take_down(self.lock.directory());
        let taken_down = taken_down.map_err(ServeError::from);
        if let Some(lease) = self.lease.take() {
            // Another host may serve at once: without programs, this host must not send any more.
            let released = lease
                .silence()
                .and(taken_down)
                .and_then(|_| lease.release());
            if let Err(error) = released {
                self.leave();
                return Err(error);
            }
            return self.remove_rest(over, Ok(0));
        }
        self.remove_rest(over, taken_down)
    }

    fn remove_rest(
        self,
        over: bool,
        taken_down: Result<usize, ServeError>,
    ) -> Result<(), ServeError> {
        self.logger.end(over);
        let detached = sysctl_backup::end(self.lock.directory(), self.plane);
        let removed = self.cgroup.remove();
        drop(self.bpffs);
        drop(self.cgroup2);
        self.lock.remove();
        taken_down?;
        detached?;
        removed?;
        Ok(())
    }
}

/// The logger, and the lease.
type Loggers = (Logger, Option<LeaseClient>);

/// Bytes per microsecond that each processor may digest in full: at most 3 % of the processor's time.
const DIGEST_RATE: u32 = 200;

/// Settings of the digest of the outstream, if configured: the key is random and secret.
fn digests(config: &ServeConfig) -> Option<Digests> {
    config.digests().then(|| {
        let mut rng = rand::rng();
        Digests {
            key: DigestKey::of(|| rng.random()),
            rate: DIGEST_RATE,
        }
    })
}

fn bind(
    config: &ServeConfig,
    lock: &Lock,
    cgroup: &Cgroup,
    pins: PinDirectory,
    instance: &Instance,
) -> Result<(Dataplane, Injector, Loggers), ServeError> {
    let settings = Settings {
        addresses: config.addresses.clone(),
        cgroup_id: cgroup.id(),
        cgroup_level: cgroup.level(),
        netns_cookie: netns_cookie()?,
        crash_on: config.crash_on,
        heartbeat_timeout: HEARTBEAT_TIMEOUT,
        verify_head: config.verify_head(),
        digests: digests(config),
        // Not 0 (unmarked packets), and not a mark that another program is likely to use.
        mark: rand::rng().random_range(0x4000_0000..0xf000_0000),
        mirror_version: mirror::VERSION, // until a logger is there
        mirror_bytes: config.limits.ring,
        max_flows: config.max_connections,
        link: config.link.is_some(),
        read_cursors: config.spare_copies(),
    };
    let mut plane = Dataplane::load(&settings, pins)?;
    let bound = (|| {
        let alone = sysctl_backup::lock(lock.directory());
        plane.shares_with(sysctl_backup::of_other_services(lock.directory()));
        for interface in ethernet_interfaces()? {
            plane.attach_interface(&interface, config.attach)?;
        }
        sysctl_backup::keep(lock.directory(), &plane)?;
        drop(alone);
        plane.attach_latch()?;
        let injector = Injector::new(settings.mark)?;
        let logger = match &config.link {
            None => local_logger(config, &plane)?,
            Some(_) => remote_logger(config, instance, &plane)?,
        };
        options::keep(lock.directory(), config)?;
        let lease = standby_eligibility::begin(config, instance, &plane)?;
        Ok((injector, (logger, lease)))
    })();
    match bound {
        Ok((injector, loggers)) => Ok((plane, injector, loggers)),
        Err(error) => {
            let _ = sysctl_backup::end(lock.directory(), plane);
            Err(error)
        }
    }
}

/// A logger process of this host.
pub(crate) fn local_logger(config: &ServeConfig, plane: &Dataplane) -> Result<Logger, ServeError> {
    let client = LoggerClient::start(config, plane.pins().path(), FIRST_START_TIMEOUT)?;
    plane.set_mirror_version(client.mirror_version)?;
    Ok(Logger::Local(client))
}

/// Loggers on other machines; none is called yet. We read the ring, and translate.
pub(crate) fn remote_logger(
    config: &ServeConfig,
    instance: &Instance,
    plane: &Dataplane,
) -> Result<Logger, ServeError> {
    let Some(link) = config.link.clone() else {
        return local_logger(config, plane);
    };
    plane.set_mirror_version(mirror::VERSION)?;
    let request = AttachRequest {
        claim: Some(standby_eligibility::claim(config, instance)?),
        attach: attach(config, instance),
        digests: config.digests().then(|| plane.digest_seed()).transpose()?,
    };
    Ok(Logger::Remote(Box::new(Link::new(
        link,
        request,
        (instance.logger(), instance.session()),
        plane.pins(),
    )?)))
}

/// The attach request for remote loggers.
fn attach(config: &ServeConfig, instance: &Instance) -> Attach {
    Attach {
        instance: instance.number(),
        replay: config.replay,
        per_connection: config.limits.per_connection,
        total: config.limits.total,
        connections: config.max_connections,
        udp_port: 0,
        inherit: false,
        service: config.name.clone(),
        ..Attach::PLAIN
    }
}

/// This host's memory, bytes.
#[must_use]
pub fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.mem_unit).saturating_mul(info.totalram)
}
