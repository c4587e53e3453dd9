//! Settings that are fixed before a program is attached.

use std::{
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

use libbpf_rs::{MapCore, MapFlags};
use south_model::{CrashOn, DigestKey, DigestSeed};

use super::Dataplane;
use crate::{
    abi::{self, Abi},
    error::{DataplaneError, MapContext},
};

/// Settings of a service for the data plane, fixed before a program is attached.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The protected addresses, to which clients connect.
    pub addresses: Vec<SocketAddr>,
    /// Id of the cgroup that holds every process of the server.
    pub cgroup_id: u64,
    /// Depth of the cgroup below the root of the hierarchy (the root has 0).
    pub cgroup_level: u32,
    /// Cookie of the network namespace (`SO_NETNS_COOKIE`).
    pub netns_cookie: u64,
    /// Which ends of processes are crashes.
    pub crash_on: CrashOn,
    /// Silence of `serve` after which no packet is gated or recorded any more.
    pub heartbeat_timeout: Duration,
    /// Outstream bytes recorded at the beginning of each turn; 0: none; `u32::MAX`: all.
    pub verify_head: u32,
    /// Key and rate of digests of output beyond the recorded heads; `None`: no digests are taken.
    pub digests: Option<south_model::Digests>,
    /// First of the eight marks of the service's packets.
    pub mark: u32,
    /// In which version frames are written into the ring ([`Dataplane::set_mirror_version`]).
    pub mirror_version: u8,
    /// Size of the ring to the logger, bytes; a power of two and a multiple of the page size.
    pub mirror_bytes: u32,
    /// Largest number of connections protected at a time.
    pub max_flows: u32,
    /// The record is kept at the other end of a log link ([`Dataplane::set_link`]).
    pub link: bool,
    /// The server has state, and the server's processes advance read cursors
    /// ([`Dataplane::read_cursors`]). All segments are mirrored if no more than this number come in
    /// a tenth of a second.
    pub read_cursors: Option<u32>,
}

impl Dataplane {
    /// Changes the settings. Sizes of maps stay as loaded. Addresses are added to the protected
    /// addresses.
    ///
    /// # Errors
    /// A map cannot be written.
    pub fn configure(&self, settings: &Settings) -> Result<(), DataplaneError> {
        let service = abi::service {
            netns_cookie: settings.netns_cookie,
            cgroup_id: settings.cgroup_id,
            heartbeat_timeout_ns: u64::try_from(settings.heartbeat_timeout.as_nanos())
                .unwrap_or(u64::MAX),
            cgroup_level: settings.cgroup_level,
            crash_policy: policy(settings.crash_on).0,
            mark: settings.mark,
            verify_head: settings.verify_head,
            incarnation: 1,
            next_flow_id: 1,
            link: u8::from(settings.link),
            read_cursors: u8::from(settings.read_cursors.is_some()),
            spare_copies: settings.read_cursors.unwrap_or(0),
            digests: u8::from(settings.digests.is_some()),
            mirror_version: settings.mirror_version,
            digest_rate: settings.digests.as_ref().map_or(0, |digests| digests.rate),
            ..Default::default()
        };
        if let Some(digests) = &settings.digests {
            self.set_digest_key(&digests.key)?;
        }
        self.maps
            .service
            .update(&0u32.to_ne_bytes(), service.as_bytes(), MapFlags::ANY)
            .doing("write the service's settings")?;
        for address in &settings.addresses {
            self.maps
                .addresses
                .update(&abi::mapped(address.ip()), &[1], MapFlags::ANY)
                .doing("write a protected address")?;
            // The port alone, too: a listener on a wildcard address listens for us.
            let wildcard = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
            for endpoint in [*address, wildcard].map(abi::endpoint::from) {
                self.maps
                    .endpoints
                    .update(endpoint.as_bytes(), &[1], MapFlags::ANY)
                    .doing("write a protected address")?;
            }
        }
        self.heartbeat()
    }

    /// Seed of the key of digests. (Zeros without digests.)
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn digest_seed(&self) -> Result<DigestSeed, DataplaneError> {
        let value = self
            .maps
            .digest_keys
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.doing("read the key of digests")?;
        let key = value.and_then(|bytes| abi::digest_key::from_bytes(&bytes));
        Ok(DigestSeed(key.unwrap_or_default().seed))
    }

    /// The key of the host that has served before. There are no connections yet.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn set_digest_key(&self, key: &DigestKey) -> Result<(), DataplaneError> {
        let [place_factor, place_offset] = key.places;
        let key = abi::digest_key {
            factors: key.factors,
            point: key.point,
            place_factor,
            place_offset,
            seed: key.seed.0,
        };
        self.maps
            .digest_keys
            .update(&0u32.to_ne_bytes(), key.as_bytes(), MapFlags::ANY)
            .doing("write the key of digests")
    }
}

pub(crate) const fn policy(crash_on: CrashOn) -> abi::crash_policy {
    match crash_on {
        CrashOn::Main => abi::crash_policy::CRASH_MAIN,
        CrashOn::Signal => abi::crash_policy::CRASH_SIGNAL,
        CrashOn::AnyFailure => abi::crash_policy::CRASH_ANY,
    }
}
