//! Taking over what an earlier `serve` has left running.
//!
//! Maps, programs and links are pinned, so they go on without anybody. Whoever comes next loads its own
//! programs upon the maps that are there, and puts them in the place of the old ones, link by link:
//! there is no moment without programs. The layout of the maps is the same, because its version is
//! part of the path of the pins; what the layout before has pinned is migrated first (`migration`).

use std::{
    fs,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};

use super::{Dataplane, Maps, is_internal, latch_of, log_libbpf, migration};
use crate::{
    abi::{self, Abi},
    attach::{self, AttachMode, Attachment},
    error::{DataplaneError, MapContext},
    interfaces::Interface,
    link::{Change, Link},
    pins::{LINK_PREFIX, PinDirectory},
};

/// How a service was when it was taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Its server's present life.
    pub incarnation: u32,
    /// Its server's main process.
    pub main_pid: u32,
    /// The gate is shut: its server has died.
    pub gated: bool,
    /// It was being recovered.
    pub recovering: bool,
    /// When the last `serve` was last heard of: `CLOCK_MONOTONIC`.
    pub heartbeat: Duration,
    /// Until when the service may send ([`Fence::set_lease`](super::Fence::set_lease)).
    pub lease_until: Option<Duration>,
    /// The version of the mirror frames that its programs have written.
    pub mirror_version: u8,
    /// The protected addresses. Unspecified ones stand for the port alone.
    pub addresses: Vec<SocketAddr>,
}

impl Dataplane {
    /// Take over the maps of a service, and load programs upon them. The old programs run on until
    /// [`Dataplane::adopt_interface`] and [`Dataplane::adopt_latch`] have replaced them. Maps of the layout before are
    /// migrated: ours are pinned then, and our programs run.
    ///
    /// # Errors
    /// Maps are missing, or are other ones than this program's, or of a layout that cannot be migrated.
    pub fn adopt(pins: PinDirectory) -> Result<(Self, Life), DataplaneError> {
        log_libbpf();
        migration::end_hold_of_next(&pins)?;
        let object = match pins.former() {
            Some(former) if former.exists() => {
                migration::settle(&former, &pins)?;
                match pins.exists() {
                    true => load_upon(&pins)?,
                    false => migration::migrate(abi::OBJECT, &former, &pins)?,
                }
            }
            _ => load_upon(&pins)?,
        };
        let maps = Maps::of(&object)?;
        let service = maps.the_service()?;
        let mut addresses = Vec::new();
        for key in maps.endpoints.keys() {
            addresses.extend(abi::endpoint::from_bytes(&key).map(address_of));
        }
        let life = Life {
            incarnation: service.incarnation,
            main_pid: service.main_pid,
            gated: service.gated != 0,
            recovering: service.recovering != 0,
            heartbeat: Duration::from_nanos(service.heartbeat_ns),
            lease_until: Some(service.lease_until_ns)
                .filter(|end| *end != 0)
                .map(Duration::from_nanos),
            mirror_version: service.mirror_version,
            addresses,
        };
        let loopback = |address: &SocketAddr| address.is_ipv4() && address.ip().is_loopback();
        let plane = Self {
            maps,
            object,
            pins,
            attachments: Vec::new(),
            enslaved: std::collections::BTreeSet::new(),
            others: Vec::new(),
            localnet: life.addresses.iter().any(loopback),
            mark: service.mark,
        };
        Ok((plane, life))
    }

    /// Whether the gate is shut in this life of the server: before it begins, the gate is shut because of the life
    /// before.
    ///
    /// # Errors
    /// The service's state cannot be read.
    pub fn is_gated_in(&self, incarnation: u32) -> Result<bool, DataplaneError> {
        let service = self.maps.the_service()?;
        Ok(service.gated != 0 && service.incarnation == incarnation)
    }

    /// Put our programs in the place of those on `interface`, or attach them if there are none.
    /// `changes`: what the earlier `serve` changed on the host's interfaces.
    ///
    /// # Errors
    /// As [`Dataplane::attach_interface`].
    pub fn adopt_interface(
        &mut self,
        interface: &Interface,
        mode: AttachMode,
        changes: &[Change],
    ) -> Result<(), DataplaneError> {
        let link = Link::of(interface)?;
        let adopted =
            Attachment::adopt(&self.object, interface.clone(), &link, &self.pins, changes)?;
        match adopted {
            Some(attachment) => {
                self.attachments.push(attachment);
                Ok(())
            }
            None => self.attach_interface(interface, mode),
        }
    }

    /// Put our death latch in the place of the old one, and our programs where `outlive clean` looks
    /// for them. For a moment both latches are there: a death is told twice, which is no harm. Nothing of the layout
    /// before is left.
    ///
    /// # Errors
    /// As [`Dataplane::attach_latch`], or a pin cannot be replaced.
    pub fn adopt_latch(&self) -> Result<(), DataplaneError> {
        let links = latch_of(&self.object)?;
        for (name, mut link) in links {
            unpin(&self.pins, &format!("{LINK_PREFIX}{name}"))?;
            attach::pin_link(&mut link, &self.pins, name)?;
        }
        for name in ["ingress", "egress"] {
            unpin(&self.pins, name)?;
        }
        self.pin_programs()?;
        migration::finish(self.pins.former().as_ref(), &self.pins)
    }
}

fn unpin(pins: &PinDirectory, name: &str) -> Result<(), DataplaneError> {
    let path = pins.pin(name);
    fs::remove_file(&path).map_err(|source| DataplaneError::Pin { path, source })
}

/// Our programs upon maps of our layout.
fn load_upon(pins: &PinDirectory) -> Result<Object, DataplaneError> {
    let load = super::not_loaded;
    let mut open = ObjectBuilder::default()
        .open_memory(abi::OBJECT)
        .map_err(load)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if !is_internal(&name) {
            map.reuse_pinned_map(pins.pin(&name))
                .doing("take over a map of an earlier outlive serve")?;
        }
    }
    open.load().map_err(load)
}

impl Maps {
    pub(super) fn the_service(&self) -> Result<abi::service, DataplaneError> {
        self.service
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .doing("read the service's settings")?
            .and_then(|bytes| abi::service::from_bytes(&bytes))
            .ok_or(DataplaneError::Missing("service"))
    }
}

fn address_of(endpoint: abi::endpoint) -> SocketAddr {
    let ip = Ipv6Addr::from(endpoint.address);
    let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
    SocketAddr::new(ip, u16::from_be(endpoint.port))
}
