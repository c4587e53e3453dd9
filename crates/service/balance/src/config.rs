//! Settings of a balancer, checked before the start.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use channel::KeyRing;
use dataplane::XdpMode;
use lease::Terms;
use protocol::pool::{ADDRESS_COUNT_MAX, Config, PoolKey, STORE_COUNT_MAX, StoreSettings};
use supervise::local_addresses;
use types::{Encapsulation, TableKind, VersionCheck};

use crate::{
    error::{BalanceError, SystemContext},
    etcd::EtcdServers,
};

/// Purpose of the pool key among the secrets that follow from a key.
const POOL_KEY_LABEL: &str = "outlive pool key 1";
/// Behind a router that spreads packets over several balancers, each balancer may have the address here. No packet of a
/// client arrives here.
const LOOPBACK: &str = "lo";

/// Settings of a balancer.
#[derive(Debug, Clone)]
pub struct BalanceConfig {
    /// Name of the pool on this host.
    pub name: String,
    /// Addresses that clients connect to.
    pub addresses: Vec<SocketAddr>,
    /// Network device on which the balancer brings the addresses up. `None`: the host has the addresses.
    pub address_device: Option<String>,
    /// Addresses for the control streams of members.
    pub listen: Vec<SocketAddr>,
    /// Keys of the members.
    pub keys: KeyRing,
    /// How connections are spread over the members.
    pub kind: TableKind,
    /// Length of all leases. `None`: as short as the member's steady requests allow ([`Terms::of_pool`]).
    pub lease: Option<Duration>,
    /// After a change of the pool: how long weakly authenticated packets may revive a connection.
    pub quiescence: Duration,
    /// Which validators must be equal before a download continues on another member.
    pub version_check: VersionCheck,
    /// The store with the records of connections.
    pub store: Option<StoreSettings>,
    /// Where several balancers of the pool keep the table. `None`: this is the only balancer.
    pub register: Option<EtcdServers>,
    /// How packets reach the members.
    pub delivery: Delivery,
    /// Address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// Directory of sockets, locks and private mounts of all services.
    pub run_dir: PathBuf,
}

/// How packets reach the members.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Another load balancer forwards the packets.
    pub no_forward: bool,
    /// The program that runs after each change of the table.
    pub on_change: Option<PathBuf>,
    /// How packets reach members in other network segments. `None`: all members are neighbours.
    pub encapsulation: Option<Encapsulation>,
    /// The program that forwards.
    pub forward: Forward,
    /// Network devices on which packets of clients arrive, for XDP. Empty: the devices with the addresses.
    pub forward_devices: Vec<String>,
}

/// The program that forwards packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Forward {
    /// At tc.
    #[default]
    Tc,
    /// At XDP in the driver; at tc what XDP leaves.
    Xdp,
    /// The same, with XDP in the kernel.
    XdpGeneric,
}

impl Forward {
    /// The word in the status.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tc => "tc",
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdp-generic",
        }
    }

    pub(crate) const fn xdp_mode(self) -> Option<XdpMode> {
        match self {
            Self::Tc => None,
            Self::Xdp => Some(XdpMode::Native),
            Self::XdpGeneric => Some(XdpMode::Generic),
        }
    }
}

impl BalanceConfig {
    /// The terms of leases.
    pub(crate) fn terms(&self) -> Result<Terms, BalanceError> {
        let terms = match self.lease {
            Some(term) => Terms {
                term,
                least: term,
                ..Terms::of_pool()
            },
            None => Terms::of_pool(),
        };
        Ok(terms.checked()?)
    }

    /// The settings that members get.
    pub(crate) fn of_members(&self, terms: &Terms) -> Result<Config, BalanceError> {
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let key = self.keys.first().derive(POOL_KEY_LABEL)?;
        let stores = self.store.as_ref().map_or(0, |store| store.urls.len());
        if stores > STORE_COUNT_MAX {
            return Err(BalanceError::TooManyStores { given: stores });
        }
        Ok(Config {
            addresses: self.addresses.clone(),
            term_us: micros(terms.term),
            least_term_us: micros(terms.least),
            drift_ppm: terms.drift.parts_per_million(),
            queue_us: micros(terms.queue),
            quiescence_ms: u32::try_from(self.quiescence.as_millis()).unwrap_or(u32::MAX),
            key: PoolKey(key),
            version_check: self.version_check,
            store: self.store.clone(),
            encapsulation: self.delivery.encapsulation,
        })
    }

    /// Checks the settings of XDP.
    pub(crate) fn check_forward(&self) -> Result<(), BalanceError> {
        let Delivery {
            encapsulation,
            forward,
            forward_devices,
            ..
        } = &self.delivery;
        match forward.xdp_mode() {
            None if !forward_devices.is_empty() => return Err(BalanceError::NotForTc),
            Some(_) if encapsulation.is_some() => return Err(BalanceError::XdpEncapsulates),
            _ => {}
        }
        for device in forward_devices {
            service_addresses::check(device)?;
        }
        Ok(())
    }

    /// The devices for XDP now. The device of an address may change (keepalived).
    pub(crate) fn xdp_devices(&self) -> Result<Vec<String>, BalanceError> {
        if self.delivery.forward.xdp_mode().is_none() {
            return Ok(Vec::new());
        }
        let named = &self.delivery.forward_devices;
        if !named.is_empty() {
            return Ok(named.clone());
        }
        if let Some(device) = &self.address_device {
            return Ok(vec![device.clone()]);
        }
        let local = local_addresses().doing("list the addresses of this host")?;
        let is_of_service = |ip: IpAddr| self.addresses.iter().any(|address| address.ip() == ip);
        let found = local.into_iter().filter(|local| is_of_service(local.ip));
        // Without the label of an address (`eth0:1`).
        let device = |name: String| name.split(':').next().unwrap_or_default().to_owned();
        let devices = found.map(|local| device(local.interface));
        let mut devices: Vec<String> = devices.filter(|device| device != LOOPBACK).collect();
        devices.sort();
        devices.dedup();
        Ok(devices)
    }

    /// Checks the addresses of the service.
    pub(crate) fn check_addresses(&self) -> Result<(), BalanceError> {
        if self.addresses.is_empty() {
            return Err(BalanceError::NoAddress);
        }
        if self.addresses.len() > ADDRESS_COUNT_MAX {
            let given = self.addresses.len();
            return Err(BalanceError::TooManyAddresses { given });
        }
        for address in &self.addresses {
            if address.ip().is_unspecified() || address.port() == 0 {
                return Err(BalanceError::Wildcard(*address));
            }
        }
        let local: Vec<IpAddr> = local_addresses()
            .doing("list the addresses of this host")?
            .into_iter()
            .map(|local| local.ip)
            .collect();
        match &self.address_device {
            Some(device) => {
                service_addresses::check(device)?;
                service_addresses::refuse_in_use(device, &self.addresses)?;
            }
            // Keepalived or a router gives the address to one of several balancers.
            None if self.register.is_some() || self.delivery.no_forward => {}
            None => {
                let is_missing = |address: &&SocketAddr| !local.contains(&address.ip());
                if let Some(missing) = self.addresses.iter().find(is_missing) {
                    return Err(BalanceError::NotLocal(*missing));
                }
            }
        }
        Ok(())
    }
}
