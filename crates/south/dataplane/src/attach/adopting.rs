//! Replacing the programs that an earlier `serve` has left on an interface.

use std::os::fd::AsFd;

use libbpf_rs::{Link, Object, Program, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};

use super::{Attachment, HANDLE, Hooks, LinkDetails, PRIORITY};
use crate::{
    error::DataplaneError,
    interfaces::Interface,
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
    let ifindex = i32::try_from(interface.index).unwrap_or(i32::MAX);
    let is_there = |name: &str, point| {
        let fd = libbpf_rs::Program::fd_from_pinned_path(pins.pin(name)).ok()?;
        let id = libbpf_rs::Program::id_from_fd(fd.as_fd()).ok()?;
        let mut hook = TcHookBuilder::new(fd.as_fd())
            .ifindex(ifindex)
            .handle(HANDLE)
            .priority(PRIORITY)
            .hook(point);
        hook.query().is_ok_and(|found| found == id).then_some(())
    };
    let both = is_there("ingress", TC_INGRESS).and_then(|()| is_there("egress", TC_EGRESS));
    if both.is_none() {
        return Ok(None);
    }
    let replace = |name, point| -> Result<TcHook, DataplaneError> {
        let program = loaded(object, name).map_err(|source| failed(name, interface, source))?;
        TcHookBuilder::new(program.as_fd())
            .ifindex(ifindex)
            .replace(true)
            .handle(HANDLE)
            .priority(PRIORITY)
            .hook(point)
            .attach()
            .map_err(|source| failed(name, interface, source))
    };
    Ok(Some([
        replace("ingress", TC_INGRESS)?,
        replace("egress", TC_EGRESS)?,
    ]))
}
