//! Replacing the programs that an earlier `serve` has left on an interface.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{
    Link, Object, Program, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder, libbpf_sys,
};

use super::{Attachment, HANDLE, Hooks, LinkDetails, PRIORITY};
use crate::{
    error::DataplaneError,
    interfaces::{Interface, ethernet_interfaces},
    link::{Arranged, Change},
    pins::{LINK_PREFIX, PinDirectory},
};

impl Attachment {
    /// Ours instead of those that are there; `None`: there are none.
    pub(crate) fn adopt(
        object: &Object,
        mut interface: Interface,
        link: &LinkDetails,
        pins: &PinDirectory,
        changes: &[Change],
    ) -> Result<Option<Self>, DataplaneError> {
        interface.mtu = link.mtu;
        let pinned = |name| pins.pin(&format!("{LINK_PREFIX}{name}_{}", interface.index));
        let hooks = if pinned("ingress").exists() && pinned("egress").exists() {
            for name in ["ingress", "egress"] {
                let path = pinned(name);
                let replaced =
                    Link::open(&path).and_then(|mut link| link.update_prog(&loaded(object, name)?));
                replaced.map_err(|source| failed(name, &interface, source))?;
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

fn failed(
    program: &'static str,
    interface: &Interface,
    source: libbpf_rs::Error,
) -> DataplaneError {
    DataplaneError::Attach {
        program,
        target: interface.name.clone(),
        source,
    }
}

fn loaded<'obj>(object: &'obj Object, name: &str) -> Result<Program<'obj>, libbpf_rs::Error> {
    object
        .progs()
        .find(|program| program.name() == name)
        .ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))
}

/// The two filters with our programs, if the programs of the service's pins are in them now.
fn replace_filters(
    object: &Object,
    interface: &Interface,
    pins: &PinDirectory,
) -> Result<Option<[TcHook; 2]>, DataplaneError> {
    let both = has_filter("ingress", interface, pins) && has_filter("egress", interface, pins);
    if !both {
        return Ok(None);
    }
    let replace = |name| {
        let program = loaded(object, name).map_err(|source| failed(name, interface, source))?;
        replace_filter(name, interface, program.as_fd())
    };
    Ok(Some([replace("ingress")?, replace("egress")?]))
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

/// Is the pinned program of that name in the filter, or the program that a migration has put in its place?
fn has_filter(name: &str, interface: &Interface, pins: &PinDirectory) -> bool {
    [name.to_owned(), format!("hold_{name}")].iter().any(|pin| {
        let Ok(fd) = Program::fd_from_pinned_path(pins.pin(pin)) else {
            return false;
        };
        let id = Program::id_from_fd(fd.as_fd()).ok();
        let found = filter_of(name, interface, fd.as_fd()).query().ok();
        found.is_some() && found == id
    })
}

fn replace_filter(
    name: &'static str,
    interface: &Interface,
    program: BorrowedFd<'_>,
) -> Result<TcHook, DataplaneError> {
    filter_of(name, interface, program)
        .attach()
        .map_err(|source| failed(name, interface, source))
}

/// Puts other programs in the places of those of a service, on every interface: `[ingress, egress]`.
///
/// # Errors
/// The kernel refuses a program.
pub(crate) fn replace_everywhere(
    pins: &PinDirectory,
    with: [BorrowedFd<'_>; 2],
) -> Result<(), DataplaneError> {
    for interface in ethernet_interfaces()? {
        for (name, program) in ["ingress", "egress"].into_iter().zip(with) {
            let pin = pins.pin(&format!("{LINK_PREFIX}{name}_{}", interface.index));
            if pin.exists() {
                let replaced = Link::open(&pin).and_then(|link| replace_linked(&link, program));
                replaced.map_err(|source| failed(name, &interface, source))?;
            } else if has_filter(name, &interface, pins) {
                replace_filter(name, &interface, program)?;
            }
        }
    }
    Ok(())
}

/// As `Link::update_prog`, with a program that is known by its descriptor alone.
fn replace_linked(link: &Link, program: BorrowedFd<'_>) -> Result<(), libbpf_rs::Error> {
    let (link, program) = (link.as_fd().as_raw_fd(), program.as_raw_fd());
    // SAFETY: both descriptors are open while they are borrowed; null options mean the defaults.
    match unsafe { libbpf_sys::bpf_link_update(link, program, std::ptr::null()) } {
        0 => Ok(()),
        error => Err(libbpf_rs::Error::from_raw_os_error(-error)),
    }
}

/// Number of the program in our filter for packets that arrive.
#[cfg(test)]
pub(crate) fn program_in_filter(interface: &Interface, any: BorrowedFd<'_>) -> Option<u32> {
    filter_of("ingress", interface, any).query().ok()
}
