//! The loaded data plane of one service.
//!
//! | module | |
//! |---|---|
//! | `adoption` | adoption of a service of an earlier `serve` |
//! | `migration` | migration of maps of the former layout |
//! | `settings` | settings that are fixed before a program is attached |
//! | `fence` | end of this host's permission to send |
//! | `control` | changing the state of the service and of its flows |
//! | `log_link` | address of the logger, and whether the logger is there |
//! | `reading` | reading the flows and the counters |
//! | `slow_start` | congestion control of recovered connections |

mod adoption;
mod control;
mod fence;
mod log_link;
mod migration;
mod reading;
mod settings;
mod slow_start;
#[cfg(test)]
pub(crate) mod test_namespace;

use std::{collections::BTreeSet, io, os::fd::BorrowedFd};

use libbpf_rs::{ErrorKind, MapCore, MapHandle, Object, ObjectBuilder, PrintLevel};

pub(crate) use self::settings::policy;
pub use self::{
    adoption::{Adoption, Life},
    control::SplicePoint,
    fence::Fence,
    log_link::{AckStrategy, LinkSettings},
    migration::MigrationError,
    reading::Counters,
    settings::Settings,
    slow_start::Renewer,
};
use crate::{
    abi,
    attach::{self, AttachMode, Attachment, PACKET_PROGRAMS},
    error::{DataplaneError, MapContext},
    interfaces::Interface,
    link::{Change, Link},
    pins::PinDirectory,
    step::begin_step,
};

/// The programs of the death latch.
const LATCH_PROGRAMS: [&str; 2] = ["on_exit", "on_state"];

/// The programs and maps of one service.
///
/// Dropping a data plane closes the handles of this process only. Pinned objects stay until
/// [`Dataplane::remove`].
pub struct Dataplane {
    object: Object,
    maps: Maps,
    pins: PinDirectory,
    attachments: Vec<Attachment>,
    /// Indices of interfaces whose packets another interface will show.
    enslaved: BTreeSet<u32>,
    /// Changes of other services of this network namespace on the interfaces.
    others: Vec<Change>,
    /// An address of 127.0.0.0/8 is protected.
    localnet: bool,
    mark: u32,
}

/// Our own descriptors of the maps that are used often.
struct Maps {
    service: MapHandle,
    endpoints: MapHandle,
    addresses: MapHandle,
    flows: MapHandle,
    expected: MapHandle,
    digest_keys: MapHandle,
    link: MapHandle,
    path: MapHandle,
    counters: MapHandle,
    events: MapHandle,
    read_cursors: MapHandle,
}

impl Maps {
    fn of(object: &Object) -> Result<Self, DataplaneError> {
        Ok(Self {
            service: map(object, "service")?,
            endpoints: map(object, "endpoints")?,
            addresses: map(object, "addresses")?,
            flows: map(object, "flows")?,
            expected: map(object, "expected")?,
            digest_keys: map(object, "digest_keys")?,
            link: map(object, "link")?,
            path: map(object, "path")?,
            counters: map(object, "counters")?,
            events: map(object, "events")?,
            read_cursors: map(object, "read_cursors")?,
        })
    }
}

/// A map that libbpf makes for itself (`.rodata` and the like).
fn is_internal(name: &str) -> bool {
    name.contains('.')
}

pub(crate) fn map(object: &Object, name: &'static str) -> Result<MapHandle, DataplaneError> {
    let map = object
        .maps()
        .find(|map| map.name() == name)
        .ok_or(DataplaneError::Missing(name))?;
    MapHandle::try_from(&map).doing("duplicate a map's descriptor")
}

impl Dataplane {
    /// Loads the programs, with the settings in place, and pins the maps. No program is attached
    /// yet.
    ///
    /// # Errors
    /// The kernel lacks a feature, or pins of this service exist already.
    pub fn load(settings: &Settings, pins: PinDirectory) -> Result<Self, DataplaneError> {
        log_libbpf();
        let load = not_loaded;
        let mut open = ObjectBuilder::default()
            .open_memory(abi::OBJECT)
            .map_err(load)?;
        for mut map in open.maps_mut() {
            let entries = match map.name().to_str() {
                Some("mirror") => settings.mirror_bytes,
                Some("flows") => settings.max_flows,
                Some("read_cursors") if settings.read_cursors.is_none() => 1,
                _ => continue,
            };
            map.set_max_entries(entries).map_err(load)?;
        }
        let object = open.load().map_err(|source| match source.kind() {
            ErrorKind::OutOfMemory => DataplaneError::Memory {
                ring: settings.mirror_bytes,
                flows: settings.max_flows,
            },
            _ => load(source),
        })?;
        let mut plane = Self {
            maps: Maps::of(&object)?,
            object,
            pins,
            attachments: Vec::new(),
            enslaved: BTreeSet::new(),
            others: Vec::new(),
            localnet: settings
                .addresses
                .iter()
                .any(|address| address.ip().is_loopback() && address.is_ipv4()),
            mark: settings.mark,
        };
        plane.configure(settings)?;
        plane.pin()?;
        Ok(plane)
    }

    fn pin(&mut self) -> Result<(), DataplaneError> {
        self.pins.create()?;
        // All maps: an adopter needs all of them.
        for mut map in self.object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if is_internal(&name) {
                continue;
            }
            let path = self.pins.pin(&name);
            map.pin(&path).map_err(|error| DataplaneError::Pin {
                path,
                source: io::Error::other(error),
            })?;
        }
        self.pin_programs()
    }

    fn pin_programs(&self) -> Result<(), DataplaneError> {
        for name in PACKET_PROGRAMS {
            let path = self.pins.pin(name);
            let mut program = attach::program(&self.object, name)?;
            program.pin(&path).map_err(|error| DataplaneError::Pin {
                path,
                source: io::Error::other(error),
            })?;
        }
        Ok(())
    }

    /// Changes on the interfaces, to be put back when the programs are detached.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let all = self.attachments.iter().flat_map(Attachment::changes);
        all.cloned().collect()
    }

    /// Attach the death latch: from now on a crash in the cgroup shuts the gate.
    ///
    /// # Errors
    /// The kernel has no BTF tracepoints.
    pub fn attach_latch(&self) -> Result<(), DataplaneError> {
        for (name, mut link) in latch_of(&self.object)? {
            attach::pin_link(&mut link, &self.pins, name)?;
        }
        Ok(())
    }

    /// The death latch, by the names of the programs. The latch is attached as long as the links
    /// live.
    ///
    /// # Errors
    /// The kernel has no BTF tracepoints.
    pub fn latch(&self) -> Result<Vec<(&'static str, libbpf_rs::Link)>, DataplaneError> {
        latch_of(&self.object)
    }

    /// Attaches the programs to `interface`. An interface that has the programs already, or belongs
    /// to a bridge or bond, is left alone.
    ///
    /// # Errors
    /// The kernel refuses both mechanisms, or the demanded mechanism.
    pub fn attach_interface(
        &mut self,
        interface: &Interface,
        mode: AttachMode,
    ) -> Result<(), DataplaneError> {
        let known = self
            .attachments
            .iter()
            .any(|a| a.interface.index == interface.index);
        if known || self.enslaved.contains(&interface.index) {
            return Ok(());
        }
        let link = Link::of(interface)?;
        if link.enslaved {
            self.enslaved.insert(interface.index);
            return Ok(());
        }
        let attachment = Attachment::new(
            &self.object,
            interface.clone(),
            &link,
            self.localnet,
            mode,
            &self.pins,
            &self.others,
        )?;
        self.attachments.push(attachment);
        Ok(())
    }

    /// Other services of this network namespace have changed settings of the interfaces: settings
    /// that these services need are not put back.
    pub fn shares_with(&mut self, others: Vec<Change>) {
        self.others = others;
    }

    /// Makes changes on the interfaces again that another program may have put back. Returns
    /// whether [`Dataplane::changes`] has changed.
    ///
    /// # Errors
    /// A setting cannot be changed.
    pub fn arrange_again(&mut self) -> Result<bool, DataplaneError> {
        let mut changed = false;
        for attachment in &mut self.attachments {
            changed |= attachment.arrange_again(self.localnet)?;
        }
        Ok(changed)
    }

    /// The interfaces that carry the programs.
    pub fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.attachments
            .iter()
            .map(|attachment| &attachment.interface)
    }

    /// The interfaces, each with the mechanism: `eth0 (tcx)`.
    #[must_use]
    pub fn mechanisms(&self) -> Vec<String> {
        self.attachments
            .iter()
            .map(|attachment| format!("{} ({})", attachment.interface.name, attachment.mechanism()))
            .collect()
    }

    /// First of the marks of our own packets.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// Where everything is pinned.
    #[must_use]
    pub fn pins(&self) -> &PinDirectory {
        &self.pins
    }

    /// Detaches all programs and removes the pins. Spliced connections lose the translation: call
    /// this function when the server is gone.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn remove(mut self) -> Result<(), DataplaneError> {
        for attachment in &mut self.attachments {
            attachment.detach(&self.object, &self.others);
        }
        self.pins.remove()
    }

    /// A handle on the ring of events.
    ///
    /// # Errors
    /// The descriptor cannot be duplicated.
    pub fn event_ring(&self) -> Result<MapHandle, DataplaneError> {
        MapHandle::try_from(&self.maps.events).doing("duplicate a map's descriptor")
    }

    /// Descriptor of a program, for tests that run it on a packet.
    ///
    /// # Errors
    /// There is no such program.
    pub fn program_fd(&self, name: &'static str) -> Result<BorrowedFd<'_>, DataplaneError> {
        use std::os::fd::{AsFd, AsRawFd};
        let raw = attach::program(&self.object, name)?.as_fd().as_raw_fd();
        // SAFETY: the descriptor belongs to the object, which `self` keeps open.
        Ok(unsafe { BorrowedFd::borrow_raw(raw) })
    }
}

/// The death latch, by the names of the programs. The latch is attached as long as the links live.
fn latch_of(object: &Object) -> Result<Vec<(&'static str, libbpf_rs::Link)>, DataplaneError> {
    let attach = |name| Ok((name, attach_latch_program(object, name)?));
    LATCH_PROGRAMS.into_iter().map(attach).collect()
}

fn attach_latch_program(
    object: &Object,
    name: &'static str,
) -> Result<libbpf_rs::Link, DataplaneError> {
    let tracepoint = match name {
        "on_exit" => "sched_process_exit",
        _ => "inet_sock_set_state",
    };
    begin_step();
    attach::program(object, name)?
        .attach_trace()
        .map_err(|source| DataplaneError::Attach {
            program: name,
            target: format!("tracepoint {tracepoint}"),
            source,
        })
}

/// Messages of libbpf go to the log of `outlive`; the errors of libbpf have all that matters.
pub(crate) fn log_libbpf() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, message| {
        tracing::debug!(target: "libbpf", "{}", message.trim_end());
    })));
}

/// Reason why the programs are not loaded: a kernel without a feature differs from a missing
/// permission.
pub(crate) fn not_loaded(source: libbpf_rs::Error) -> DataplaneError {
    match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => DataplaneError::NotPermitted { source },
        _ => DataplaneError::Load { source },
    }
}

/// Checks that this kernel loads the programs. No program is attached or pinned.
///
/// # Errors
/// The kernel does not load the programs.
pub fn probe() -> Result<(), DataplaneError> {
    log_libbpf();
    let load = not_loaded;
    ObjectBuilder::default()
        .open_memory(abi::OBJECT)
        .map_err(load)?
        .load()
        .map_err(load)?;
    Ok(())
}
