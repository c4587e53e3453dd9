//! Replacing the programs that an earlier `serve` has left on an interface.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{
    Link, Object, Program, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder, libbpf_sys,
};

use super::{
    Attachment, HANDLE, Hooks, LinkDetails, PACKET_PROGRAMS, PRIORITY, attach_tcx, failed, link_pin,
};
use crate::{
    error::DataplaneError,
    interfaces::{Interface, ethernet_interfaces},
    link::{Arranged, Change},
    pins::{NEXT_PREFIX, PinDirectory},
    step::begin_step,
};

impl Attachment {
    /// Replaces the existing programs by the new programs; `None`: there are none.
    pub(crate) fn adopt(
        object: &Object,
        mut interface: Interface,
        link: &LinkDetails,
        pins: &PinDirectory,
        changes: &[Change],
    ) -> Result<Option<Self>, DataplaneError> {
        interface.mtu = link.mtu;
        let is_linked = |name| link_pin(pins, name, &interface).exists();
        let hooks = if PACKET_PROGRAMS.into_iter().any(is_linked) {
            for name in PACKET_PROGRAMS {
                match is_linked(name) {
                    true => replace_program(object, name, &interface, pins)?,
                    // An adopter was killed while attaching both programs to a new interface.
                    false => attach_tcx(object, name, &interface, pins)?,
                }
            }
            Hooks::Tcx
        } else if let Some(filters) = replace_filters(object, &interface, pins)? {
            Hooks::Clsact {
                filters,
                qdisc_is_ours: true, // removed at the end only if nobody has a filter there
            }
        } else {
            return Ok(None);
        };
        let here = |change: &&Change| change.interface == interface.name;
        let arranged = Arranged::by_others(changes.iter().filter(here).cloned().collect());
        Ok(Some(Self {
            interface,
            hooks,
            arranged,
        }))
    }
}

fn loaded<'obj>(object: &'obj Object, name: &str) -> Result<Program<'obj>, libbpf_rs::Error> {
    object
        .progs()
        .find(|program| program.name() == name)
        .ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))
}

/// Puts our program into the pinned link.
fn replace_program(
    object: &Object,
    name: &'static str,
    interface: &Interface,
    pins: &PinDirectory,
) -> Result<(), DataplaneError> {
    begin_step();
    Link::open(link_pin(pins, name, interface))
        .and_then(|mut link| link.update_prog(&loaded(object, name)?))
        .map_err(|source| failed(name, interface, source))
}

/// The two filters with the new programs, if programs of the service's pins are in the filters now.
/// A filter that an adopter could not attach before its death is attached.
fn replace_filters(
    object: &Object,
    interface: &Interface,
    pins: &PinDirectory,
) -> Result<Option<[TcHook; 2]>, DataplaneError> {
    let programs = [
        loaded(object, "ingress").map_err(|source| failed("ingress", interface, source))?,
        loaded(object, "egress").map_err(|source| failed("egress", interface, source))?,
    ];
    let [ingress, egress] = [programs[0].as_fd(), programs[1].as_fd()];
    let found = [
        Filter::of("ingress", interface, ingress, pins),
        Filter::of("egress", interface, egress, pins),
    ];
    if !found.contains(&Filter::Ours) {
        return Ok(None);
    }
    if found.contains(&Filter::Unknown) {
        return Err(unknown(interface));
    }
    Ok(Some([
        replace_filter("ingress", interface, ingress)?,
        replace_filter("egress", interface, egress)?,
    ]))
}

fn unknown(interface: &Interface) -> DataplaneError {
    DataplaneError::UnknownFilter {
        interface: interface.name.clone(),
    }
}

fn point_of(name: &str) -> TcAttachPoint {
    match name {
        "ingress" => TC_INGRESS,
        _ => TC_EGRESS,
    }
}

fn filter_of(name: &str, interface: &Interface, program: BorrowedFd<'_>) -> TcHook {
    let ifindex = i32::try_from(interface.index).unwrap_or(i32::MAX);
    TcHookBuilder::new(program)
        .ifindex(ifindex)
        .replace(true)
        .handle(HANDLE)
        .priority(PRIORITY)
        .hook(point_of(name))
}

/// State of the service's handle on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filter {
    Absent,
    /// With the pinned program, with that of an adopter, or with that of a migration.
    Ours,
    Unknown,
}

impl Filter {
    /// `any`: any program, because a query needs a program.
    fn of(name: &str, interface: &Interface, any: BorrowedFd<'_>, pins: &PinDirectory) -> Self {
        let Ok(found) = filter_of(name, interface, any).query() else {
            return Self::Absent;
        };
        let pinned = |pin: &String| {
            let program = Program::fd_from_pinned_path(pins.pin(pin)).ok();
            program.and_then(|fd| Program::id_from_fd(fd.as_fd()).ok())
        };
        let own_names = [
            name.to_owned(),
            format!("{NEXT_PREFIX}{name}"),
            format!("hold_{name}"),
        ];
        match own_names.iter().filter_map(pinned).any(|id| id == found) {
            true => Self::Ours,
            false => Self::Unknown,
        }
    }
}

fn replace_filter(
    name: &'static str,
    interface: &Interface,
    program: BorrowedFd<'_>,
) -> Result<TcHook, DataplaneError> {
    begin_step();
    filter_of(name, interface, program)
        .attach()
        .map_err(|source| failed(name, interface, source))
}

/// Replaces the programs of a service on every interface by `with`: `[ingress, egress]`.
///
/// # Errors
/// The kernel refuses a program, or an unknown program is in a place of the service.
pub(crate) fn replace_everywhere(
    pins: &PinDirectory,
    with: [BorrowedFd<'_>; 2],
) -> Result<(), DataplaneError> {
    // A service with links has no filters: a filter under our handle is of another service then.
    let has_links = pins.has_interface_links();
    for interface in ethernet_interfaces()? {
        for (name, program) in PACKET_PROGRAMS.into_iter().zip(with) {
            let pin = link_pin(pins, name, &interface);
            if pin.exists() {
                begin_step();
                let replaced = Link::open(&pin).and_then(|link| replace_linked(&link, program));
                replaced.map_err(|source| failed(name, &interface, source))?;
                continue;
            }
            match Filter::of(name, &interface, program, pins) {
                Filter::Ours => drop(replace_filter(name, &interface, program)?),
                Filter::Unknown if !has_links => return Err(unknown(&interface)),
                Filter::Unknown | Filter::Absent => {}
            }
        }
    }
    Ok(())
}

/// As `Link::update_prog`, with a program known only by descriptor.
fn replace_linked(link: &Link, program: BorrowedFd<'_>) -> Result<(), libbpf_rs::Error> {
    let (link, program) = (link.as_fd().as_raw_fd(), program.as_raw_fd());
    // SAFETY: both descriptors are open during the borrow; null options mean the defaults.
    match unsafe { libbpf_sys::bpf_link_update(link, program, std::ptr::null()) } {
        0 => Ok(()),
        error => Err(libbpf_rs::Error::from_raw_os_error(-error)),
    }
}

/// Number of the program in our filter in the direction of that name.
#[cfg(test)]
pub(crate) fn program_in_filter(
    name: &str,
    interface: &Interface,
    any: BorrowedFd<'_>,
) -> Option<u32> {
    filter_of(name, interface, any).query().ok()
}
