//! The program at XDP, and its places on the interfaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    os::unix::ffi::OsStrExt as _,
};

use libbpf_rs::{MapCore as _, Object, ObjectBuilder, libbpf_sys};

use super::hook::{self, NEIGHBOUR_WATCH};
use crate::{
    attach::{self, AttachMode},
    error::{DataplaneError, MapContext},
    interfaces::{Interface, ethernet_interfaces},
    object::not_loaded,
    pins::PinDirectory,
    step::begin_step,
};

/// The program.
pub(super) const NAME: &str = "balance_xdp";
/// The compiled program.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/balance_xdp.bpf.o"));

/// Who calls the program at XDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// The driver.
    Native,
    /// The kernel, after the driver has made a socket buffer.
    Generic,
}

impl XdpMode {
    /// The pins of the links say the mode: a link does not.
    const fn pin(self) -> &'static str {
        match self {
            Self::Native => "balance_xdp_native",
            Self::Generic => "balance_xdp_generic",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Native => Self::Generic,
            Self::Generic => Self::Native,
        }
    }

    const fn flags(self) -> u32 {
        match self {
            Self::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            Self::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }
}

/// The program, loaded.
pub(super) struct Xdp {
    mode: XdpMode,
    object: Object,
    /// Names by index.
    interfaces: BTreeMap<u32, String>,
    /// Interfaces whose link-layer addresses the program learns.
    watched: BTreeSet<u32>,
}

impl Xdp {
    /// The program uses the maps of the programs at tc.
    pub(super) fn load(mode: XdpMode, tc: &Object) -> Result<Self, DataplaneError> {
        let mut open = ObjectBuilder::default()
            .open_memory(OBJECT)
            .map_err(not_loaded)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_os_string();
            if let Some(shared) = tc.maps().find(|shared| shared.name() == name) {
                map.reuse_fd(shared.as_fd())
                    .doing("share a map of the balancer with XDP")?;
            }
        }
        Ok(Self {
            mode,
            object: open.load().map_err(not_loaded)?,
            interfaces: BTreeMap::new(),
            watched: BTreeSet::new(),
        })
    }

    pub(super) const fn object(&self) -> &Object {
        &self.object
    }

    pub(super) const fn interfaces(&self) -> &BTreeMap<u32, String> {
        &self.interfaces
    }

    /// Puts the program into the links of a former balancer. A link of the other mode is removed.
    pub(super) fn adopt(&mut self, tc: &Object, pins: &PinDirectory) -> Result<(), DataplaneError> {
        hook::remove_links(pins, self.mode.other().pin())?;
        self.watched = NEIGHBOUR_WATCH.adopt(tc, pins)?;
        for interface in ethernet_interfaces()? {
            let link = attach::link_name(self.mode.pin(), &interface);
            if pins.pin(&link).exists() && hook::update_link(&self.object, NAME, pins, &link)? {
                self.interfaces.insert(interface.index, interface.name);
            }
        }
        Ok(())
    }

    pub(super) fn attach(
        &mut self,
        tc: &Object,
        interface: &Interface,
        pins: &PinDirectory,
    ) -> Result<(), DataplaneError> {
        if !self.interfaces.contains_key(&interface.index) {
            self.attach_link(interface, pins)?;
            let name = interface.name.clone();
            self.interfaces.insert(interface.index, name);
        }
        if !self.watched.contains(&interface.index) {
            NEIGHBOUR_WATCH.attach(tc, interface, AttachMode::Auto, pins)?;
            self.watched.insert(interface.index);
        }
        Ok(())
    }

    /// libbpf's own attachment would take the generic mode for a driver without native XDP.
    fn attach_link(
        &self,
        interface: &Interface,
        pins: &PinDirectory,
    ) -> Result<(), DataplaneError> {
        let program = attach::program(&self.object, NAME)?;
        let ifindex = i32::try_from(interface.index).unwrap_or(i32::MAX);
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags: self.mode.flags(),
            ..Default::default()
        };
        let program = program.as_fd().as_raw_fd();
        begin_step();
        // SAFETY: the descriptor is open and the options are valid until the call returns.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(program, ifindex, libbpf_sys::BPF_XDP, &raw const options)
        };
        if fd < 0 {
            return Err(self.refused(interface, -fd));
        }
        // SAFETY: the kernel has just made this descriptor, which has no other owner.
        let link = unsafe { OwnedFd::from_raw_fd(fd) };
        let path = pins.pin(&attach::link_name(self.mode.pin(), interface));
        let failed = |source| DataplaneError::Pin {
            path: path.clone(),
            source,
        };
        let text = CString::new(path.as_os_str().as_bytes());
        let text = text.map_err(|error| failed(io::Error::other(error)))?;
        begin_step();
        // SAFETY: descriptor and path are valid until the call returns.
        match unsafe { libbpf_sys::bpf_obj_pin(link.as_raw_fd(), text.as_ptr()) } {
            0 => Ok(()),
            error => Err(failed(io::Error::from_raw_os_error(-error))),
        }
    }

    fn refused(&self, interface: &Interface, errno: i32) -> DataplaneError {
        let source = libbpf_rs::Error::from_raw_os_error(errno);
        let name = interface.name.clone();
        match (errno, self.mode) {
            (libc::EBUSY | libc::EEXIST, _) => DataplaneError::XdpTaken { interface: name },
            (_, XdpMode::Native) => DataplaneError::NoNativeXdp {
                interface: name,
                source,
            },
            (_, XdpMode::Generic) => attach::failed(NAME, interface, source),
        }
    }

    /// Takes the program off all interfaces but these.
    pub(super) fn retain(
        &mut self,
        interfaces: &[Interface],
        pins: &PinDirectory,
    ) -> Result<(), DataplaneError> {
        let is_kept = |index: &u32| interfaces.iter().any(|kept| kept.index == *index);
        for interface in ethernet_interfaces()? {
            if !is_kept(&interface.index) {
                let link = attach::link_name(self.mode.pin(), &interface);
                if pins.pin(&link).exists() {
                    hook::remove_link(pins, &link)?;
                }
            }
        }
        self.interfaces.retain(|index, _| is_kept(index));
        Ok(())
    }

    /// Forgets interfaces that are gone.
    pub(super) fn forget_all_but(&mut self, is_there: impl Fn(&u32) -> bool) {
        self.interfaces.retain(|index, _| is_there(index));
        self.watched.retain(&is_there);
    }
}

/// Takes the program off all interfaces.
pub(super) fn remove_links(pins: &PinDirectory) -> Result<(), DataplaneError> {
    let modes = [XdpMode::Native, XdpMode::Generic];
    let mut names = modes.into_iter().map(XdpMode::pin);
    names.try_for_each(|name| hook::remove_links(pins, name))
}

/// The same, and no link-layer addresses are learned any more.
pub(super) fn detach(pins: &PinDirectory) -> Result<(), DataplaneError> {
    remove_links(pins)?;
    NEIGHBOUR_WATCH.detach(pins)
}
