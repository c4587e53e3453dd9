//! Binding the programs to interfaces and tracepoints.
//!
//! On an interface: TCX where the kernel has TCX (Linux 6.6), else the clsact qdisc. Both let
//! programs of other owners run after these programs. A TCX link is pinned and lives on without
//! `serve`; a clsact filter belongs to the interface and lives on anyway.

mod adoption;

#[cfg(test)]
pub(crate) use adoption::program_in_filter;
pub(crate) use adoption::replace_everywhere;

use std::{io, os::fd::AsFd, path::PathBuf, ptr::NonNull};

use libbpf_rs::{
    AsRawLibbpf, Link, Object, ProgramMut, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder, libbpf_sys,
};

use crate::{
    error::DataplaneError,
    interfaces::Interface,
    link::{Arranged, Change, Link as LinkDetails},
    pins::{LINK_PREFIX, NEXT_PREFIX, PinDirectory},
    step::begin_step,
};

/// How to bind to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttachMode {
    /// TCX if the kernel has TCX, else clsact.
    #[default]
    Auto,
    /// TCX or an error.
    Tcx,
    /// clsact or an error.
    Clsact,
}

/// The programs by direction.
pub(crate) const PACKET_PROGRAMS: [&str; 2] = ["ingress", "egress"];

/// First among all filters: a filter that accepts a packet would keep the packet from later
/// filters. Other programs are unlikely to use this handle.
pub(crate) const PRIORITY: u32 = 1;
const HANDLE: u32 = 0x6f75;

/// Both programs on one interface. Dropping an attachment leaves pinned links and clsact filters in
/// place.
pub(crate) struct Attachment {
    pub(crate) interface: Interface,
    hooks: Hooks,
    arranged: Arranged,
}

enum Hooks {
    Tcx,
    Clsact {
        filters: [TcHook; 2],
        qdisc_is_ours: bool,
    },
}

impl Attachment {
    pub(crate) fn new(
        object: &Object,
        mut interface: Interface,
        link: &LinkDetails,
        localnet: bool,
        mode: AttachMode,
        pins: &PinDirectory,
        others: &[Change],
    ) -> Result<Self, DataplaneError> {
        interface.mtu = link.mtu;
        let arranged = Arranged::on(&interface, link, localnet, others)?;
        let tcx = match mode {
            AttachMode::Clsact => None,
            AttachMode::Tcx => Some(attach_both_tcx(object, &interface, pins)),
            AttachMode::Auto => Some(attach_both_tcx(object, &interface, pins))
                .filter(|tried| !matches!(tried, Err(error) if lacks_tcx(error))),
        };
        let hooks = match tcx {
            Some(tried) => tried.map(|()| Hooks::Tcx)?,
            None => attach_clsact(object, &interface)?,
        };
        Ok(Self {
            interface,
            hooks,
            arranged,
        })
    }

    /// Changes on the interface.
    pub(crate) fn changes(&self) -> &[Change] {
        self.arranged.changes()
    }

    /// Which mechanism is in use: `tcx` or `clsact`.
    pub(crate) fn mechanism(&self) -> &'static str {
        match self.hooks {
            Hooks::Tcx => "tcx",
            Hooks::Clsact { .. } => "clsact",
        }
    }

    /// Makes settings again that another program may have put back. Returns whether a change is new
    /// on the list.
    pub(crate) fn arrange_again(&mut self, localnet: bool) -> Result<bool, DataplaneError> {
        self.arranged.again(&self.interface, localnet)
    }

    /// Detaches the programs. (TCX links go with the pins.)
    pub(crate) fn detach(&mut self, object: &Object, others: &[Change]) {
        self.arranged.undo(others);
        let Hooks::Clsact {
            filters,
            qdisc_is_ours,
        } = &mut self.hooks
        else {
            return;
        };
        for filter in filters.iter_mut() {
            if let Err(error) = filter.detach() {
                tracing::warn!(interface = self.interface.name, %error, "filter was not removed");
            }
        }
        if *qdisc_is_ours && !has_filters(&self.interface.name) {
            let Ok(any) = program(object, "ingress") else {
                return;
            };
            let ifindex = i32::try_from(self.interface.index).unwrap_or(i32::MAX);
            let mut both = TcHookBuilder::new(any.as_fd())
                .ifindex(ifindex)
                .hook(TC_INGRESS | TC_EGRESS);
            if let Err(error) = both.destroy() {
                tracing::warn!(interface = self.interface.name, %error, "clsact was not removed");
            }
        }
    }
}

pub(crate) fn program<'obj>(
    object: &'obj Object,
    name: &'static str,
) -> Result<ProgramMut<'obj>, DataplaneError> {
    object
        .progs_mut()
        .find(|program| program.name() == name)
        .ok_or(DataplaneError::Missing(name))
}

pub(crate) fn lacks_tcx(error: &DataplaneError) -> bool {
    matches!(error, DataplaneError::Attach { source, .. }
        if source.kind() == libbpf_rs::ErrorKind::InvalidInput
            || source.kind() == libbpf_rs::ErrorKind::Unsupported)
}

fn attach_both_tcx(
    object: &Object,
    interface: &Interface,
    pins: &PinDirectory,
) -> Result<(), DataplaneError> {
    PACKET_PROGRAMS
        .into_iter()
        .try_for_each(|name| attach_tcx(object, name, interface, pins))
}

pub(crate) fn attach_tcx(
    object: &Object,
    name: &'static str,
    interface: &Interface,
    pins: &PinDirectory,
) -> Result<(), DataplaneError> {
    begin_step();
    let mut link = tcx_link(&program(object, name)?, interface.index)
        .map_err(|source| failed(name, interface, source))?;
    pin_link(&mut link, pins, &format!("{name}_{}", interface.index))
}

pub(crate) fn failed(
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

/// Name of the pin of the link of a program to an interface.
pub(crate) fn link_name(name: &str, interface: &Interface) -> String {
    format!("{LINK_PREFIX}{name}_{}", interface.index)
}

/// Where the link of a program to an interface is pinned.
pub(crate) fn link_pin(pins: &PinDirectory, name: &str, interface: &Interface) -> PathBuf {
    pins.pin(&link_name(name, interface))
}

/// libbpf-rs has no TCX attachment.
fn tcx_link(program: &ProgramMut<'_>, ifindex: u32) -> Result<Link, libbpf_rs::Error> {
    let ifindex =
        i32::try_from(ifindex).map_err(|_| libbpf_rs::Error::from_raw_os_error(libc::ENODEV))?;
    let program = program.as_libbpf_object().as_ptr();
    // SAFETY: the program belongs to a loaded object that outlives this call; null options mean
    // the defaults.
    let link = unsafe { libbpf_sys::bpf_program__attach_tcx(program, ifindex, std::ptr::null()) };
    let link =
        NonNull::new(link).ok_or_else(|| libbpf_rs::Error::from(io::Error::last_os_error()))?;
    // SAFETY: libbpf has just returned this link, which has no other owner.
    Ok(unsafe { Link::from_ptr(link) })
}

fn attach_clsact(object: &Object, interface: &Interface) -> Result<Hooks, DataplaneError> {
    let ifindex = i32::try_from(interface.index).unwrap_or(i32::MAX);
    let mut qdisc_is_ours = false;
    let mut filter = |name, point| -> Result<TcHook, DataplaneError> {
        let program = program(object, name)?;
        let mut hook = TcHookBuilder::new(program.as_fd())
            .ifindex(ifindex)
            .replace(false)
            .handle(HANDLE)
            .priority(PRIORITY)
            .hook(point);
        begin_step();
        match hook.create() {
            Ok(_) => qdisc_is_ours |= name == "ingress",
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(name, interface, error)),
        }
        begin_step();
        hook.attach()
            .map_err(|error| failed(name, interface, error))
    };
    let filters = [filter("ingress", TC_INGRESS)?, filter("egress", TC_EGRESS)?];
    Ok(Hooks::Clsact {
        filters,
        qdisc_is_ours,
    })
}

pub(crate) fn pin_link(
    link: &mut Link,
    pins: &PinDirectory,
    name: &str,
) -> Result<(), DataplaneError> {
    let path = pins.pin(&format!("{LINK_PREFIX}{name}"));
    begin_step();
    link.pin(&path).map_err(|error| DataplaneError::Pin {
        path,
        source: io::Error::other(error),
    })
}

/// Does anybody have a filter on this interface's clsact?
fn has_filters(interface: &str) -> bool {
    ["ingress", "egress"].iter().any(|direction| {
        std::process::Command::new("tc")
            .args(["filter", "show", "dev", interface, direction])
            .output()
            .map_or(true, |output| !output.stdout.is_empty())
    })
}

/// Removes the clsact filters of a service whose programs are pinned, from every interface: TCX
/// links go with the pins, filters do not.
///
/// # Errors
/// The interfaces cannot be listed.
pub fn detach_clsact(pins: &PinDirectory) -> Result<(), DataplaneError> {
    crate::object::log_libbpf();
    // The programs of an interrupted adoption or migration may be in the places of ours.
    let points = [("ingress", TC_INGRESS), ("egress", TC_EGRESS)];
    let prefixes = ["", NEXT_PREFIX, "hold_"];
    let pairs = points
        .into_iter()
        .flat_map(|(name, point)| prefixes.map(|prefix| (format!("{prefix}{name}"), point)));
    for (name, point) in pairs {
        let Ok(fd) = libbpf_rs::Program::fd_from_pinned_path(pins.pin(&name)) else {
            continue;
        };
        let Ok(ours) = libbpf_rs::Program::id_from_fd(fd.as_fd()) else {
            continue;
        };
        for interface in crate::interfaces::ethernet_interfaces()? {
            let ifindex = i32::try_from(interface.index).unwrap_or(i32::MAX);
            let mut hook = TcHookBuilder::new(fd.as_fd())
                .ifindex(ifindex)
                .handle(HANDLE)
                .priority(PRIORITY)
                .hook(point);
            if hook.query().is_ok_and(|id| id == ours) {
                let _ = hook.detach();
            }
        }
    }
    Ok(())
}
