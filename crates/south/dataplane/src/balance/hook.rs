//! The places of the program on the interfaces.

use std::{collections::BTreeSet, fs, os::fd::AsFd, path::Path};

use libbpf_rs::{Link, Object, Program, TC_INGRESS, TcHook, TcHookBuilder};

use super::{BALANCE_LAYOUT_VERSION, BALANCE_PREFIX, BALANCE_PROGRAM};
use crate::{
    attach::{self, AttachMode, PRIORITY},
    error::DataplaneError,
    interfaces::{Interface, ethernet_interfaces},
    pins::{NEXT_PREFIX, PinDirectory},
};

/// Differs from the handle of a service, which may be on the same interface.
const FILTER_HANDLE: u32 = 0x6f76;

pub(super) fn attach(
    object: &Object,
    interface: &Interface,
    mode: AttachMode,
    pins: &PinDirectory,
) -> Result<(), DataplaneError> {
    let tcx = || attach::attach_tcx(object, BALANCE_PROGRAM, interface, pins);
    match mode {
        AttachMode::Tcx => tcx(),
        AttachMode::Clsact => attach_clsact(object, interface),
        AttachMode::Auto => match tcx() {
            Err(error) if attach::lacks_tcx(&error) => attach_clsact(object, interface),
            tried => tried,
        },
    }
}

fn attach_clsact(object: &Object, interface: &Interface) -> Result<(), DataplaneError> {
    let program = attach::program(object, BALANCE_PROGRAM)?;
    let failed = |error| attach::failed(BALANCE_PROGRAM, interface, error);
    let mut hook = hook(program.as_fd(), interface);
    match hook.create() {
        Ok(_) => {}
        Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    hook.attach().map(drop).map_err(failed)
}

fn hook(program: std::os::fd::BorrowedFd<'_>, interface: &Interface) -> TcHook {
    TcHookBuilder::new(program)
        .ifindex(i32::try_from(interface.index).unwrap_or(i32::MAX))
        .replace(true)
        .handle(FILTER_HANDLE)
        .priority(PRIORITY)
        .hook(TC_INGRESS)
}

/// Puts the program of `object` into the places of the former program. Returns the interfaces.
pub(super) fn adopt(object: &Object, pins: &PinDirectory) -> Result<BTreeSet<u32>, DataplaneError> {
    let program = attach::program(object, BALANCE_PROGRAM)?;
    let former = pinned_ids(pins);
    pin_program(object, pins, &format!("{NEXT_PREFIX}{BALANCE_PROGRAM}"))?;
    let mut adopted = BTreeSet::new();
    for interface in ethernet_interfaces()? {
        let failed = |error| attach::failed(BALANCE_PROGRAM, &interface, error);
        let pin = attach::link_pin(pins, BALANCE_PROGRAM, &interface);
        if pin.exists() {
            let loaded = object.progs().find(|found| found.name() == BALANCE_PROGRAM);
            let loaded = loaded.ok_or(DataplaneError::Missing(BALANCE_PROGRAM))?;
            let updated = Link::open(&pin).and_then(|mut link| link.update_prog(&loaded));
            match updated {
                Ok(()) => _ = adopted.insert(interface.index),
                // The interface of the link is gone, and another has its index: attached anew later.
                Err(error) => {
                    tracing::debug!(interface = interface.name, %error, "a link is not adopted");
                    pins.unpin(&attach::link_name(BALANCE_PROGRAM, &interface))?;
                }
            }
            continue;
        }
        let mut place = hook(program.as_fd(), &interface);
        if place.query().is_ok_and(|id| former.contains(&id)) {
            place.attach().map_err(failed)?;
            adopted.insert(interface.index);
        }
    }
    pins.rename(&format!("{NEXT_PREFIX}{BALANCE_PROGRAM}"), BALANCE_PROGRAM)?;
    Ok(adopted)
}

fn pin_program(object: &Object, pins: &PinDirectory, name: &str) -> Result<(), DataplaneError> {
    pins.unpin(name)?;
    let path = pins.pin(name);
    let mut program = attach::program(object, BALANCE_PROGRAM)?;
    program.pin(&path).map_err(|error| DataplaneError::Pin {
        path,
        source: std::io::Error::other(error),
    })
}

/// Numbers of the pinned programs: of the balancer, and of a balancer that was killed while adopting.
fn pinned_ids(pins: &PinDirectory) -> Vec<u32> {
    let names = [String::new(), NEXT_PREFIX.to_owned()];
    let ids = names.iter().filter_map(|prefix| {
        let path = pins.pin(&format!("{prefix}{BALANCE_PROGRAM}"));
        let program = Program::fd_from_pinned_path(path).ok()?;
        Program::id_from_fd(program.as_fd()).ok()
    });
    ids.collect()
}

/// Detaches the program of a balancer from all interfaces and removes its pins. Missing pins are no error.
///
/// # Errors
/// A pin cannot be removed, or the interfaces cannot be listed.
pub fn remove_balancer(pins: &PinDirectory) -> Result<(), DataplaneError> {
    crate::object::log_libbpf();
    let ids = pinned_ids(pins);
    let program = Program::fd_from_pinned_path(pins.pin(BALANCE_PROGRAM));
    if let Ok(program) = program {
        for interface in ethernet_interfaces()? {
            let mut place = hook(program.as_fd(), &interface);
            if place.query().is_ok_and(|id| ids.contains(&id)) {
                let _ = place.detach();
            }
        }
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
