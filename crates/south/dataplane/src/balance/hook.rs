//! The places of the programs at tc on the interfaces.

use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use libbpf_rs::{
    Link, Object, Program, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder,
};

use super::{BALANCE_LAYOUT_VERSION, BALANCE_PREFIX, xdp};
use crate::{
    attach::{self, AttachMode, PRIORITY},
    error::DataplaneError,
    interfaces::{Interface, ethernet_interfaces},
    pins::{LINK_PREFIX, NEXT_PREFIX, PinDirectory},
};

/// Differs from the handle of a service, which may be on the same interface.
const FILTER_HANDLE: u32 = 0x6f76;

/// A program at tc.
#[derive(Debug, Clone, Copy)]
pub(super) struct TcProgram {
    /// Also the name of its pin.
    pub(super) name: &'static str,
    point: TcAttachPoint,
}

/// Hands packets to members.
pub(super) const FORWARDER: TcProgram = TcProgram {
    name: "balance_ingress",
    point: TC_INGRESS,
};
/// Tells XDP the link-layer addresses of members.
pub(super) const NEIGHBOUR_WATCH: TcProgram = TcProgram {
    name: "balance_egress",
    point: TC_EGRESS,
};

impl TcProgram {
    pub(super) fn attach(
        self,
        object: &Object,
        interface: &Interface,
        mode: AttachMode,
        pins: &PinDirectory,
    ) -> Result<(), DataplaneError> {
        let tcx = || attach::attach_tcx(object, self.name, interface, pins);
        match mode {
            AttachMode::Tcx => tcx(),
            AttachMode::Clsact => self.attach_clsact(object, interface),
            AttachMode::Auto => match tcx() {
                Err(error) if attach::lacks_tcx(&error) => self.attach_clsact(object, interface),
                tried => tried,
            },
        }
    }

    fn attach_clsact(self, object: &Object, interface: &Interface) -> Result<(), DataplaneError> {
        let program = attach::program(object, self.name)?;
        let failed = |error| attach::failed(self.name, interface, error);
        let mut hook = self.hook(program.as_fd(), interface);
        match hook.create() {
            Ok(_) => {}
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        hook.attach().map(drop).map_err(failed)
    }

    fn hook(self, program: BorrowedFd<'_>, interface: &Interface) -> TcHook {
        TcHookBuilder::new(program)
            .ifindex(i32::try_from(interface.index).unwrap_or(i32::MAX))
            .replace(true)
            .handle(FILTER_HANDLE)
            .priority(PRIORITY)
            .hook(self.point)
    }

    /// Puts the program of `object` into the places of the former program. Returns the interfaces.
    pub(super) fn adopt(
        self,
        object: &Object,
        pins: &PinDirectory,
    ) -> Result<BTreeSet<u32>, DataplaneError> {
        let program = attach::program(object, self.name)?;
        let former = self.pinned_ids(pins);
        let next = format!("{NEXT_PREFIX}{}", self.name);
        self.pin(object, pins, &next)?;
        let mut adopted = BTreeSet::new();
        for interface in ethernet_interfaces()? {
            let failed = |error| attach::failed(self.name, &interface, error);
            let link = attach::link_name(self.name, &interface);
            if pins.pin(&link).exists() {
                if update_link(object, self.name, pins, &link)? {
                    adopted.insert(interface.index);
                }
                continue;
            }
            let mut place = self.hook(program.as_fd(), &interface);
            if place.query().is_ok_and(|id| former.contains(&id)) {
                place.attach().map_err(failed)?;
                adopted.insert(interface.index);
            }
        }
        pins.rename(&next, self.name)?;
        Ok(adopted)
    }

    fn pin(self, object: &Object, pins: &PinDirectory, pin: &str) -> Result<(), DataplaneError> {
        pins.unpin(pin)?;
        let path = pins.pin(pin);
        let mut program = attach::program(object, self.name)?;
        program.pin(&path).map_err(|error| DataplaneError::Pin {
            path,
            source: std::io::Error::other(error),
        })
    }

    /// Numbers of the pinned programs: of the balancer, and of a balancer that was killed while adopting.
    fn pinned_ids(self, pins: &PinDirectory) -> Vec<u32> {
        let names = [String::new(), NEXT_PREFIX.to_owned()];
        let ids = names.iter().filter_map(|prefix| {
            let path = pins.pin(&format!("{prefix}{}", self.name));
            let program = Program::fd_from_pinned_path(path).ok()?;
            Program::id_from_fd(program.as_fd()).ok()
        });
        ids.collect()
    }

    /// Detaches the program from all interfaces where the program is a filter. Links go with their pins.
    fn detach_filters(self, pins: &PinDirectory) -> Result<(), DataplaneError> {
        let ids = self.pinned_ids(pins);
        let Ok(program) = Program::fd_from_pinned_path(pins.pin(self.name)) else {
            return Ok(());
        };
        for interface in ethernet_interfaces()? {
            let mut place = self.hook(program.as_fd(), &interface);
            if place.query().is_ok_and(|id| ids.contains(&id)) {
                let _ = place.detach();
            }
        }
        Ok(())
    }

    /// Detaches the program from all interfaces, and removes its pins.
    pub(super) fn detach(self, pins: &PinDirectory) -> Result<(), DataplaneError> {
        self.detach_filters(pins)?;
        remove_links(pins, self.name)?;
        pins.unpin(&format!("{NEXT_PREFIX}{}", self.name))?;
        pins.unpin(self.name)
    }
}

/// Puts the program of this name into a pinned link. False, and no pin any more: the interface of the link is gone, and
/// another has its index.
pub(super) fn update_link(
    object: &Object,
    program: &'static str,
    pins: &PinDirectory,
    link: &str,
) -> Result<bool, DataplaneError> {
    let loaded = object.progs().find(|found| found.name() == program);
    let loaded = loaded.ok_or(DataplaneError::Missing(program))?;
    match Link::open(pins.pin(link)).and_then(|mut link| link.update_prog(&loaded)) {
        Ok(()) => Ok(true),
        Err(error) => {
            tracing::debug!(link, %error, "a link is not adopted");
            pins.unpin(link)?;
            Ok(false)
        }
    }
}

/// Detaches the program of a pinned link, and removes the pin.
pub(super) fn remove_link(pins: &PinDirectory, link: &str) -> Result<(), DataplaneError> {
    // The kernel detaches the program of a link without a pin later, and the place is taken until then.
    if let Err(error) = Link::open(pins.pin(link)).and_then(|link| link.detach()) {
        tracing::debug!(link, %error, "a link is not detached");
    }
    pins.unpin(link)
}

/// The same for all links of the program of this name.
pub(super) fn remove_links(pins: &PinDirectory, program: &str) -> Result<(), DataplaneError> {
    let prefix = format!("{LINK_PREFIX}{program}_");
    let names = pins.names().into_iter();
    let mut links = names.filter(|name| name.starts_with(&prefix));
    links.try_for_each(|name| remove_link(pins, &name))
}

/// Detaches the programs of a balancer from all interfaces and removes its pins. Missing pins are no error.
///
/// # Errors
/// A pin cannot be removed, or the interfaces cannot be listed.
pub fn remove_balancer(pins: &PinDirectory) -> Result<(), DataplaneError> {
    crate::object::log_libbpf();
    xdp::remove_links(pins)?;
    for program in [FORWARDER, NEIGHBOUR_WATCH] {
        program.detach_filters(pins)?;
    }
    pins.remove()
}

/// Removes the pins of this balancer in other layouts.
pub(super) fn remove_other_layouts(pins: &PinDirectory) -> Result<(), DataplaneError> {
    let root = pins.path().parent().and_then(Path::parent);
    let name = pins.path().file_name().unwrap_or_default();
    let directories = root.map(fs::read_dir).into_iter().flatten().flatten();
    for directory in directories.flatten() {
        let other = PinDirectory::at(directory.path().join(name));
        if is_of_balancers(&directory.path()) && other.path() != pins.path() && other.exists() {
            remove_balancer(&other)?;
        }
    }
    Ok(())
}

fn is_of_balancers(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(BALANCE_PREFIX))
}

/// Names of the balancers that have pins under this bpffs.
#[must_use]
pub fn pinned_balancers(bpffs: &Path) -> Vec<String> {
    let directory = bpffs
        .join("outlive")
        .join(format!("{BALANCE_PREFIX}{BALANCE_LAYOUT_VERSION}"));
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.map(|name| name.replace(':', ".")).collect();
    names.sort();
    names
}
