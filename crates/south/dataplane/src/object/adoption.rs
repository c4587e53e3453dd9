//! Adoption of a service that an earlier `serve` has left running.
//!
//! Maps, programs and links are pinned, and go on without a `serve`. An adopter loads its programs
//! upon the existing maps, and puts the programs in the place of the old programs, link by link:
//! there is no moment without programs. The layout of the maps is the same, because the layout
//! version is part of the path of the pins. Maps of the former layout are migrated first
//! (`migration`).
//!
//! An adopter may be killed at any step. So each program is pinned before the program takes a
//! place, first under a name with `next_`: only the pinned program identifies a filter. When all
//! new programs have their places, renames put the new pins in the places of the old pins. The next
//! adopter finds `next_` names only after a death between: then the programs without `next_` return
//! to all places, and the rest is removed.

#[cfg(test)]
mod tests;

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::AsFd as _,
    time::Duration,
};

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, Program};

use super::{
    Dataplane, LATCH_PROGRAMS, Maps, attach_latch_program, is_internal, log_libbpf,
    migration::{self, Migration},
};
use crate::{
    abi::{self, Abi},
    attach::{self, AttachMode, Attachment, PACKET_PROGRAMS},
    error::{DataplaneError, MapContext},
    interfaces::Interface,
    link::{Change, Link},
    pins::{LINK_PREFIX, NEXT_PREFIX, PinDirectory},
    step::begin_step,
};

/// State of a service at the adoption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The present incarnation of the server.
    pub incarnation: u32,
    /// The gate is shut: the server has died.
    pub gated: bool,
    /// A recovery was under way.
    pub recovering: bool,
    /// When the last `serve` was last heard of: `CLOCK_MONOTONIC`.
    pub heartbeat: Duration,
    /// Until when the service may send ([`Fence::set_lease`](super::Fence::set_lease)).
    pub lease_until: Option<Duration>,
    /// The protected addresses. Unspecified ones stand for the port alone.
    pub addresses: Vec<SocketAddr>,
}

/// New programs, loaded for a running service. Changes no state of the service before
/// [`Adoption::complete`].
pub struct Adoption {
    loaded: Loaded,
    pins: PinDirectory,
    mark: u32,
    main_pid: u32,
    mirror_version: u8,
}

impl Adoption {
    /// Loads the programs. Programs and maps of a killed adopter are removed, or a committed
    /// migration is completed.
    ///
    /// # Errors
    /// Maps are missing, or are not the maps of this program, or are of a layout that cannot be migrated.
    pub fn prepare(pins: PinDirectory) -> Result<Self, DataplaneError> {
        log_libbpf();
        let loaded = Loaded::from(abi::OBJECT, &pins, pins.former().as_ref())?;
        let service = Maps::of(loaded.object())?.the_service()?;
        Ok(Self {
            loaded,
            pins,
            mark: service.mark,
            main_pid: service.main_pid,
            mirror_version: service.mirror_version,
        })
    }

    /// First of the marks of the service's packets.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// The server's main process.
    #[must_use]
    pub fn main_pid(&self) -> u32 {
        self.main_pid
    }

    /// The version of the mirror frames in the ring.
    #[must_use]
    pub fn mirror_version(&self) -> u8 {
        self.mirror_version
    }

    /// Adopts the maps. The old programs run on until [`Dataplane::adopt_interface`] and
    /// [`Dataplane::adopt_latch`] have replaced the programs. After a migration of the former
    /// layout, the new maps are pinned, and the new programs run.
    ///
    /// # Errors
    /// A map cannot be migrated, or the kernel refuses a pin.
    pub fn complete(self) -> Result<(Dataplane, Life), DataplaneError> {
        let object = self.loaded.complete(&self.pins)?;
        Dataplane::of_adopted(object, self.pins)
    }
}

/// An object that is loaded, and has no place yet.
pub(super) enum Loaded {
    /// Upon the maps that are there.
    Upon(Object),
    /// Beside the maps of the former layout.
    Beside(Migration),
}

impl Loaded {
    /// `own`: the pins of the layout of `object`; `former`: of the layout before.
    pub(super) fn from(
        object: &[u8],
        own: &PinDirectory,
        former: Option<&PinDirectory>,
    ) -> Result<Self, DataplaneError> {
        migration::end_hold_of_next(own)?;
        if let Some(former) = former.filter(|former| former.exists()) {
            migration::settle(former, own)?;
            if !own.exists() {
                undo_interrupted(former)?;
                return Migration::load(object, former).map(Self::Beside);
            }
        }
        undo_interrupted(own)?;
        load_upon(object, own).map(Self::Upon)
    }

    fn object(&self) -> &Object {
        match self {
            Self::Upon(object) => object,
            Self::Beside(migration) => migration.object(),
        }
    }

    /// Pins the programs, so that the programs may replace others.
    pub(super) fn complete(self, own: &PinDirectory) -> Result<Object, DataplaneError> {
        match self {
            Self::Upon(object) => {
                for name in PACKET_PROGRAMS {
                    pin_program(&object, name, own, &format!("{NEXT_PREFIX}{name}"))?;
                }
                Ok(object)
            }
            Self::Beside(migration) => migration.complete(own),
        }
    }
}

/// Undoes a killed adoption: the old programs return to their places.
fn undo_interrupted(pins: &PinDirectory) -> Result<(), DataplaneError> {
    for name in LATCH_PROGRAMS {
        pins.unpin(&format!("{LINK_PREFIX}{NEXT_PREFIX}{name}"))?;
    }
    let next = PACKET_PROGRAMS.map(|name| format!("{NEXT_PREFIX}{name}"));
    if next.iter().any(|name| pins.pin(name).exists()) {
        let before = PACKET_PROGRAMS.map(|name| Program::fd_from_pinned_path(pins.pin(name)));
        if let [Ok(ingress), Ok(egress)] = &before {
            attach::replace_everywhere(pins, [ingress.as_fd(), egress.as_fd()])?;
        }
    }
    next.iter().try_for_each(|name| pins.unpin(name))
}

/// Puts the latch of `object` in the place of the old one, and the programs where `outlive clean` looks for them.
pub(super) fn take_places(
    object: &Object,
    own: &PinDirectory,
    former: Option<&PinDirectory>,
) -> Result<(), DataplaneError> {
    let next = PACKET_PROGRAMS.map(|name| format!("{NEXT_PREFIX}{name}"));
    // After a migration, latch and programs are in their places.
    if own.pin(&next[1]).exists() {
        for name in LATCH_PROGRAMS {
            let next = format!("{NEXT_PREFIX}{name}");
            attach::pin_link(&mut attach_latch_program(object, name)?, own, &next)?;
            let pin = |name| format!("{LINK_PREFIX}{name}");
            own.rename(&pin(&*next), &pin(name))?;
        }
        for (next, name) in next.iter().zip(PACKET_PROGRAMS) {
            own.rename(next, name)?;
        }
    }
    migration::finish(former, own)
}

fn pin_program(
    object: &Object,
    name: &'static str,
    pins: &PinDirectory,
    pin: &str,
) -> Result<(), DataplaneError> {
    let path = pins.pin(pin);
    begin_step();
    attach::program(object, name)?
        .pin(&path)
        .map_err(|error| DataplaneError::Pin {
            path,
            source: io::Error::other(error),
        })
}

impl Dataplane {
    fn of_adopted(object: Object, pins: PinDirectory) -> Result<(Self, Life), DataplaneError> {
        let maps = Maps::of(&object)?;
        let service = maps.the_service()?;
        let mut addresses = Vec::new();
        for key in maps.endpoints.keys() {
            addresses.extend(abi::endpoint::from_bytes(&key).map(address_of));
        }
        let life = Life {
            incarnation: service.incarnation,
            gated: service.gated != 0,
            recovering: service.recovering != 0,
            heartbeat: Duration::from_nanos(service.heartbeat_ns),
            lease_until: Some(service.lease_until_ns)
                .filter(|end| *end != 0)
                .map(Duration::from_nanos),
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

    /// Whether the gate is shut in this incarnation of the server. Before an incarnation begins,
    /// the gate is shut because of the incarnation before.
    ///
    /// # Errors
    /// The service's state cannot be read.
    pub fn is_gated_in(&self, incarnation: u32) -> Result<bool, DataplaneError> {
        let service = self.maps.the_service()?;
        Ok(service.gated != 0 && service.incarnation == incarnation)
    }

    /// Replaces the programs on `interface` by the new programs, or attaches the new programs if
    /// there are none. `changes`: changes of the earlier `serve` on the host's interfaces.
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

    /// Replaces the old death latch, and puts the new programs where `outlive clean` looks. For a
    /// moment both latches are attached: a death is reported twice, which does no harm. Afterwards
    /// no pin of the former layout is left.
    ///
    /// # Errors
    /// As [`Dataplane::attach_latch`], or a pin cannot be replaced.
    pub fn adopt_latch(&self) -> Result<(), DataplaneError> {
        take_places(&self.object, &self.pins, self.pins.former().as_ref())
    }
}

/// Loads programs upon maps of the same layout.
fn load_upon(object: &[u8], pins: &PinDirectory) -> Result<Object, DataplaneError> {
    let load = super::not_loaded;
    let mut open = ObjectBuilder::default().open_memory(object).map_err(load)?;
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
