//! The load balancer of a pool: `bpf/balance.bpf.c` and `bpf/balance_xdp.bpf.c`, the table, and the places on the
//! interfaces.
//!
//! `<bpffs>/outlive/balance-v<layout>/<name>/` has the pins of a balancer. The programs hand packets to the members of
//! the pinned table without a process. The next process of the balancer adopts the pins: it loads its programs upon the
//! pinned maps, and puts the programs into the existing links. Pins of another layout are not adopted
//! ([`Balance::start`] removes them): that balancer begins without a table.

#[allow(
    missing_docs,
    dead_code,
    unreachable_pub,
    non_camel_case_types,
    non_snake_case,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/balance.skel.rs"));
}
mod hook;
mod table;
mod xdp;

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::Path,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};

use crate::{
    abi::{Abi, mapped},
    attach::{self, AttachMode},
    error::{DataplaneError, MapContext},
    interfaces::Interface,
    link::Link,
    object::{log_libbpf, not_loaded},
    pins::PinDirectory,
};
use hook::{FORWARDER, NEIGHBOUR_WATCH};
pub use hook::{pinned_balancers, remove_balancer};
pub use table::{BalanceMember, BalanceTable, MEMBER_COUNT_MAX};
use xdp::Xdp;
pub use xdp::XdpMode;

/// Version of the layout of `bpf/intf/balance.h` (`BALANCE_LAYOUT_VERSION` there; a test compares the two).
const BALANCE_LAYOUT_VERSION: u32 = 2;
/// Directory of the mode, without the version.
const BALANCE_PREFIX: &str = "balance-v";
/// The compiled programs.
const BALANCE_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/balance.bpf.o"));

/// The format, for lists of versions.
pub const BALANCE_FORMAT: types::Format = types::Format {
    name: "BPF maps of a balancer",
    version: BALANCE_LAYOUT_VERSION,
    oldest: BALANCE_LAYOUT_VERSION,
};

/// Where the pins of a balancer are, under a mounted bpffs. Nothing is created.
#[must_use]
pub fn balance_pins(bpffs: &Path, name: &str) -> PinDirectory {
    // bpffs keeps names with a dot for itself; no name has a colon.
    let directory = bpffs
        .join("outlive")
        .join(format!("{BALANCE_PREFIX}{BALANCE_LAYOUT_VERSION}"));
    PinDirectory::at(directory.join(name.replace('.', ":")))
}

/// The service of a pool, and the secret of the hash.
#[derive(Debug, Clone)]
pub struct BalanceSettings {
    /// The addresses that clients connect to.
    pub addresses: Vec<SocketAddr>,
    /// The key of the hash of a connection.
    pub key: [u8; 16],
    /// Packets go to members in UDP, through routers.
    pub encapsulates: bool,
    /// A program at XDP is in front of the program at tc, on the interfaces of [`Balance::attach_xdp`].
    pub xdp: Option<XdpMode>,
}

/// Packets since the balancer was first started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BalanceCounters {
    /// Handed to members.
    pub forwarded: u64,
    /// Of these: ICMP errors about a connection.
    pub icmp: u64,
    /// Fragments of segments, dropped.
    pub fragments: u64,
    /// Segments without a member, dropped.
    pub no_member: u64,
    /// Packets that are too long in UDP, dropped.
    pub not_wrapped: u64,
    /// Of the packets handed to members: by XDP.
    pub xdp_forwarded: u64,
}

/// The programs and maps of a balancer.
///
/// Dropping a balancer closes the handles of this process only. Pinned objects stay until [`Balance::remove`].
pub struct Balance {
    object: Object,
    pins: PinDirectory,
    /// `None`: tc alone.
    xdp: Option<Xdp>,
    /// Interfaces with the program at tc, and interfaces whose packets another interface will show.
    interfaces: BTreeSet<u32>,
    enslaved: BTreeSet<u32>,
    /// The table in the kernel.
    table: Option<BalanceTable>,
}

impl Balance {
    /// Loads the programs, upon the pinned maps if there are pins, and adopts the places on the interfaces. The table
    /// of a former life is [`Balance::table`].
    ///
    /// # Errors
    /// The kernel lacks a feature, or the pins are not those of a balancer.
    pub fn start(settings: &BalanceSettings, pins: PinDirectory) -> Result<Self, DataplaneError> {
        log_libbpf();
        hook::remove_other_layouts(&pins)?;
        let mut open = ObjectBuilder::default()
            .open_memory(BALANCE_OBJECT)
            .map_err(not_loaded)?;
        for mut map in open.maps_mut() {
            let path = pins.pin(&map.name().to_string_lossy());
            if path.exists() {
                map.reuse_pinned_map(&path)
                    .doing("adopt a map of the balancer")?;
            }
        }
        let object = open.load().map_err(not_loaded)?;
        let xdp = settings.xdp.map(|mode| Xdp::load(mode, &object));
        let mut balance = Self {
            xdp: xdp.transpose()?,
            object,
            pins,
            interfaces: BTreeSet::new(),
            enslaved: BTreeSet::new(),
            table: None,
        };
        balance.table = balance.read_table()?;
        balance.configure(settings)?;
        balance.pin()?;
        balance.interfaces = FORWARDER.adopt(&balance.object, &balance.pins)?;
        match &mut balance.xdp {
            Some(xdp) => xdp.adopt(&balance.object, &balance.pins)?,
            None => xdp::detach(&balance.pins)?,
        }
        Ok(balance)
    }

    /// The newest table.
    #[must_use]
    pub const fn table(&self) -> Option<&BalanceTable> {
        self.table.as_ref()
    }

    fn configure(&self, settings: &BalanceSettings) -> Result<(), DataplaneError> {
        let doing = "write the settings of the balancer";
        let half = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&settings.key[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let state = generated::types::balance {
            k0: half(0),
            k1: half(8),
            encapsulates: settings.encapsulates.into(),
            pad: 0,
        };
        let map = self.map("balance")?;
        map.update(&0u32.to_ne_bytes(), state.as_bytes(), MapFlags::ANY)
            .doing(doing)?;
        let endpoints = settings.addresses.iter().map(|address| {
            let endpoint = generated::types::endpoint {
                address: mapped(address.ip()),
                port: address.port().to_be(),
                pad: 0,
            };
            endpoint.as_bytes().to_vec()
        });
        replace_keys(&self.map("services")?, endpoints.collect())?;
        let addresses = settings.addresses.iter();
        let addresses = addresses.map(|address| mapped(address.ip()).to_vec());
        replace_keys(&self.map("service_addresses")?, addresses.collect())
    }

    fn pin(&mut self) -> Result<(), DataplaneError> {
        self.pins.create()?;
        for mut map in self.object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let path = self.pins.pin(&name);
            // libbpf makes maps for itself: `.rodata` and the like.
            if name.contains('.') || path.exists() {
                continue;
            }
            map.pin(&path).map_err(|error| DataplaneError::Pin {
                path,
                source: io::Error::other(error),
            })?;
        }
        Ok(())
    }

    /// Puts a table in the place of the table before, in one step. The members keep their counters of packets by name.
    ///
    /// # Errors
    /// The kernel has no memory for the table.
    pub fn write_table(&mut self, mut table: BalanceTable) -> Result<(), DataplaneError> {
        let fresh = table.assign_slots(self.table.as_ref());
        let packets = self.map("member_packets")?;
        let cpus = libbpf_rs::num_possible_cpus().doing("count the processors")?;
        for slot in fresh {
            let zeros = vec![0u64.to_ne_bytes().to_vec(); cpus];
            packets
                .update_percpu(&u32::from(slot).to_ne_bytes(), &zeros, MapFlags::ANY)
                .doing("begin a counter of packets")?;
        }
        let map = table::create_map(&table)?;
        let fd = map.as_fd().as_raw_fd();
        let tables = self.map("tables")?;
        tables
            .update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
            .doing("write the table of the balancer")?;
        self.table = Some(table);
        Ok(())
    }

    fn read_table(&self) -> Result<Option<BalanceTable>, DataplaneError> {
        let doing = "read the table of the balancer";
        let tables = self.map("tables")?;
        let found = tables.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let Some(id) = found.doing(doing)? else {
            return Ok(None);
        };
        let id = id.try_into().map(u32::from_ne_bytes).unwrap_or_default();
        let map = MapHandle::from_map_id(id).doing(doing)?;
        let value = map
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .doing(doing)?;
        Ok(value.and_then(|bytes| BalanceTable::from_bytes(&bytes)))
    }

    /// Attaches the program to `interface`. An interface that has the program already, or belongs to a bridge or bond,
    /// is left alone.
    ///
    /// # Errors
    /// The kernel refuses both mechanisms, or the demanded mechanism.
    pub fn attach_interface(
        &mut self,
        interface: &Interface,
        mode: AttachMode,
    ) -> Result<(), DataplaneError> {
        if self.interfaces.contains(&interface.index) || self.enslaved.contains(&interface.index) {
            return Ok(());
        }
        if Link::of(interface)?.enslaved {
            self.enslaved.insert(interface.index);
            return Ok(());
        }
        FORWARDER.attach(&self.object, interface, mode, &self.pins)?;
        self.interfaces.insert(interface.index);
        Ok(())
    }

    /// Attaches the program at XDP to `interface`. An interface that has the program already is left alone, and so are
    /// all interfaces of a balancer without XDP.
    ///
    /// # Errors
    /// The driver has no native XDP, or another program has the place.
    pub fn attach_xdp(&mut self, interface: &Interface) -> Result<(), DataplaneError> {
        match &mut self.xdp {
            Some(xdp) => xdp.attach(&self.object, interface, &self.pins),
            None => Ok(()),
        }
    }

    /// Takes the program at XDP off all interfaces but these.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn retain_xdp(&mut self, interfaces: &[Interface]) -> Result<(), DataplaneError> {
        match &mut self.xdp {
            Some(xdp) => xdp.retain(interfaces, &self.pins),
            None => Ok(()),
        }
    }

    /// The names of the interfaces with the program at XDP.
    #[must_use]
    pub fn xdp_interfaces(&self) -> Vec<String> {
        let xdp = self.xdp.iter();
        xdp.flat_map(|xdp| xdp.interfaces().values().cloned())
            .collect()
    }

    /// Drops interfaces that are gone: an index may come again.
    pub fn retain_interfaces(&mut self, interfaces: &[Interface]) {
        let is_there = |index: &u32| interfaces.iter().any(|there| there.index == *index);
        self.interfaces.retain(is_there);
        self.enslaved.retain(is_there);
        if let Some(xdp) = &mut self.xdp {
            xdp.forget_all_but(is_there);
        }
    }

    /// Packets by kind.
    ///
    /// # Errors
    /// The kernel does not show the counters.
    pub fn counters(&self) -> Result<BalanceCounters, DataplaneError> {
        use generated::types::{balance_counter as counter, balance_xdp_counter as xdp_counter};
        let map = self.map("balance_counters")?;
        let count = |of: counter| sum_percpu(&map, of.0);
        let xdp_map = self.map("xdp_counters")?;
        Ok(BalanceCounters {
            forwarded: count(counter::BALANCE_FORWARDED)?,
            icmp: count(counter::BALANCE_ICMP)?,
            fragments: count(counter::BALANCE_FRAGMENTS)?,
            no_member: count(counter::BALANCE_NO_MEMBER)?,
            not_wrapped: count(counter::BALANCE_NOT_WRAPPED)?,
            xdp_forwarded: sum_percpu(&xdp_map, xdp_counter::BALANCE_XDP_FORWARDED.0)?,
        })
    }

    /// Packets to each member of the table, by name.
    ///
    /// # Errors
    /// The kernel does not show the counters.
    pub fn member_packets(&self) -> Result<Vec<(String, u64)>, DataplaneError> {
        let map = self.map("member_packets")?;
        let members = self.table.iter().flat_map(|table| &table.members);
        members
            .map(|member| Ok((member.name.clone(), sum_percpu(&map, member.slot.into())?)))
            .collect()
    }

    /// Detaches the program and removes the pins: packets to the service reach no member any more.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn remove(self) -> Result<(), DataplaneError> {
        let pins = self.pins.clone();
        drop(self);
        remove_balancer(&pins)
    }

    /// Descriptor of the program that forwards at tc, for tests that run the program on a packet.
    ///
    /// # Errors
    /// There is no such program.
    pub fn program_fd(&self) -> Result<BorrowedFd<'_>, DataplaneError> {
        self.fd_of(&self.object, FORWARDER.name)
    }

    /// The same of the program that learns link-layer addresses.
    ///
    /// # Errors
    /// As there.
    pub fn neighbour_watch_fd(&self) -> Result<BorrowedFd<'_>, DataplaneError> {
        self.fd_of(&self.object, NEIGHBOUR_WATCH.name)
    }

    /// The same of the program at XDP.
    ///
    /// # Errors
    /// As there; the balancer has no XDP.
    pub fn xdp_fd(&self) -> Result<BorrowedFd<'_>, DataplaneError> {
        let xdp = self
            .xdp
            .as_ref()
            .ok_or(DataplaneError::Missing(xdp::NAME))?;
        self.fd_of(xdp.object(), xdp::NAME)
    }

    fn fd_of(&self, object: &Object, name: &'static str) -> Result<BorrowedFd<'_>, DataplaneError> {
        let raw = attach::program(object, name)?.as_fd().as_raw_fd();
        // SAFETY: the descriptor belongs to an object of `self`, which `self` keeps open.
        Ok(unsafe { BorrowedFd::borrow_raw(raw) })
    }

    fn map(&self, name: &'static str) -> Result<MapHandle, DataplaneError> {
        crate::object::map(&self.object, name)
    }
}

// SAFETY: a generated `repr(C)` structure of integers without padding.
unsafe impl Abi for generated::types::balance {}
// SAFETY: as above.
unsafe impl Abi for generated::types::endpoint {}

/// Makes `keys` the keys of a map of flags. Keys that stay are never missing.
fn replace_keys(map: &MapHandle, keys: Vec<Vec<u8>>) -> Result<(), DataplaneError> {
    let doing = "write the addresses of the balancer";
    for key in &keys {
        map.update(key, &[1], MapFlags::ANY).doing(doing)?;
    }
    let old: Vec<Vec<u8>> = map.keys().filter(|key| !keys.contains(key)).collect();
    for key in old {
        map.delete(&key).doing(doing)?;
    }
    Ok(())
}

fn sum_percpu(map: &MapHandle, key: u32) -> Result<u64, DataplaneError> {
    let values = map
        .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
        .doing("read a counter of the balancer")?;
    let numbers = values.into_iter().flatten().map(|bytes| {
        let bytes = bytes.try_into();
        bytes.map_or(0, u64::from_ne_bytes)
    });
    Ok(numbers.sum())
}

#[cfg(test)]
mod tests;
