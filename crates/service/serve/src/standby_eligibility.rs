//! Which host serves: the lease client of a service, if several hosts could serve.
//!
//! Several hosts can serve if a remote logger knows all the hosts, and the addresses come and go with the service: then
//! a host that does not serve any more has no address at which a client could reach the host.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use dataplane::{Dataplane, Life, ethernet_interfaces};
use lease::{Holder, Speech, Terms};
use north_host::layout;
use protocol::control::Claim;
use rustix::system::uname;
use supervise::address_is_local;

use crate::{
    config::ServeConfig,
    error::{ServeError, SystemContext},
    instance::Instance,
    lease_client::{Granting, LeaseClient},
    logger_client::{self, LoggerClient},
};

/// Time for a logger to take a release.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Tell a logger that the active host of a service is gone for good: afterwards no host holds the service. Returns the
/// epoch that is over.
///
/// # Errors
/// The logger cannot be reached, or has received a message of that host a moment ago.
pub fn give_up(at: SocketAddr, key_file: &Path, service: &str) -> Result<u32, ServeError> {
    logger_client::give_up(LoggerClient::call(at, key_file, RELEASE_TIMEOUT)?, service)
}

/// For a service without state on this host. `None`: no other host can take over.
///
/// # Errors
/// This host cannot take the service over, although the configuration demands a standby.
pub(crate) fn begin(
    config: &ServeConfig,
    instance: &Instance,
    plane: &Dataplane,
) -> Result<Option<LeaseClient>, ServeError> {
    match why_alone(config)? {
        Some(error) if config.standby => Err(error),
        Some(_) => Ok(None),
        None => keep(config, instance, holder(config, instance)?, plane),
    }
}

/// For an adopted service: the state of the lease is in the data plane.
pub(crate) fn go_on(
    config: &ServeConfig,
    instance: &Instance,
    plane: &Dataplane,
    plane_state: &Life,
) -> Result<Option<LeaseClient>, ServeError> {
    let Some(epoch) = instance.epoch() else {
        return Ok(None);
    };
    let speech = plane_state.lease_until.map_or(Speech::Free, Speech::Until);
    let holder = holder(config, instance)?.resumed(epoch, speech);
    keep(config, instance, holder, plane)
}

/// The logger that grants leases, if these options let another host take over. Only a single logger decides: of several
/// loggers, none does.
pub(crate) fn granter(config: &ServeConfig) -> Option<SocketAddr> {
    let link = config
        .link
        .as_ref()
        .filter(|_| config.address_device.is_some())?;
    match link.loggers[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// Why no other host can take over, although the options suggest a second host.
pub(crate) fn why_alone(config: &ServeConfig) -> Result<Option<ServeError>, ServeError> {
    let (Some(link), Some(device)) = (&config.link, &config.address_device) else {
        return Ok(None);
    };
    if link.loggers.len() > 1 {
        return Ok(Some(ServeError::SeveralLoggers));
    }
    obstacle(&config.addresses, device)
}

/// Why a host cannot start and stop serving at the logger's word.
fn obstacle(addresses: &[SocketAddr], device: &str) -> Result<Option<ServeError>, ServeError> {
    for address in addresses {
        if address_is_local(address.ip()).doing("list this host's addresses")? {
            return Ok(Some(ServeError::AddressHere(address.ip())));
        }
    }
    Ok(mac(device)?.is_none().then_some(ServeError::NoHostNumber))
}

fn keep(
    config: &ServeConfig,
    instance: &Instance,
    holder: Holder,
    plane: &Dataplane,
) -> Result<Option<LeaseClient>, ServeError> {
    let (Some(logger), Some(link)) = (granter(config), &config.link) else {
        return Ok(None);
    };
    let logger = Granting {
        at: logger,
        key_file: link.key_file.clone(),
        claim: claim(config, instance)?,
    };
    LeaseClient::start(holder, plane.fence()?, logger).map(Some)
}

fn holder(config: &ServeConfig, instance: &Instance) -> Result<Holder, ServeError> {
    let who = (host(config)?, instance.holder());
    let (preference, first) = (config.preference, !config.standby);
    let terms = Terms::default();
    Ok(Holder::new(
        config.name.clone(),
        who,
        preference,
        first,
        terms,
    ))
}

/// Claim of the service's addresses, the first request to a logger.
pub(crate) fn claim(config: &ServeConfig, instance: &Instance) -> Result<Claim, ServeError> {
    Ok(Claim {
        host: host(config)?,
        serves: instance.has_begun(),
        shared: config.shared_address,
        host_name: uname().nodename().to_string_lossy().into_owned(),
        service: config.name.clone(),
        addresses: config.addresses.clone(),
        determinants: match config.wrapped {
            true => layout::VERSION,
            false => 0,
        },
    })
}

/// The version of determinants of the serving host, if this host cannot replay that version.
pub(crate) fn other_determinants(config: &ServeConfig, serves: u32) -> Option<u32> {
    (config.wrapped && serves != 0 && serves != layout::VERSION).then_some(serves)
}

/// A number that this host has again after a boot, and no other host has. A copy of a machine may have the same
/// machine-id, but not the same network card; hosts in network namespaces also share the machine-id.
fn host(config: &ServeConfig) -> Result<u64, ServeError> {
    let mut hasher = DefaultHasher::new(); // SipHash with fixed keys: the same in every process
    let machine = fs::read("/etc/machine-id").unwrap_or_default();
    machine.hash(&mut hasher);
    config.run_dir.to_string().hash(&mut hasher);
    let device = config.address_device.as_deref();
    device.map(mac).transpose()?.hash(&mut hasher);
    Ok(hasher.finish())
}

/// Link-layer address of the network card on which the addresses come and go.
fn mac(device: &str) -> Result<Option<[u8; 6]>, ServeError> {
    let interfaces = ethernet_interfaces()?;
    let interface = interfaces.iter().find(|one| one.name == device);
    Ok(interface.map(|one| one.mac).filter(|mac| *mac != [0; 6]))
}
