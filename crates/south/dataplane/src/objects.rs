//! The programs of a member of a pool (`bpf/objects.bpf.c`).
//!
//! | module | |
//! |---|---|
//! | `fence` | the lease, from another thread |
//! | `flows` | connections, in both forms |
//! | `rings` | events, and copies of segments |
//! | `turns` | turns whose records are in the store |

mod abi;
mod fence;
mod flows;
mod rings;
mod turns;

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use libbpf_rs::{
    Link as ProgramLink, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput,
};
use objects::{PoolKey, flow::Flow};
use south_model::CrashOn;
use supervise::Route;
use wire::FlowKey;

pub use self::fence::MemberFence;
pub use self::rings::{ObjectCopy, ObjectEvent, ObjectEventKind, ObjectRing};
use crate::{
    abi::{Abi, mapped},
    attach::{self, AttachMode, Attachment, PACKET_PROGRAMS},
    batches,
    error::{DataplaneError, MapContext},
    interfaces::Interface,
    link::Link,
    pins::PinDirectory,
};

/// The UDP port of packets between the hosts of a pool.
#[must_use]
pub fn encapsulation_port() -> u16 {
    let port = abi::encapsulation_constant::ENCAPSULATION_PORT.0;
    u16::try_from(port).unwrap_or_default()
}

/// The format of packets between the hosts of a pool, for lists of versions.
pub const ENCAPSULATION_FORMAT: types::Format = types::Format {
    name: "datagrams of a pool",
    version: abi::encapsulation_constant::ENCAPSULATION_VERSION.0,
    oldest: abi::encapsulation_constant::ENCAPSULATION_VERSION.0,
};

/// Version of the layout of `bpf/intf/objects.h`.
pub const OBJECTS_LAYOUT_VERSION: u32 = 1;

/// The programs of the death latch.
const LATCH_PROGRAMS: [&str; 2] = ["on_exit", "on_state"];

/// Settings of a member, fixed before a program is attached.
#[derive(Debug, Clone)]
pub struct MemberSettings {
    /// Addresses of the pool, to which clients connect.
    pub addresses: Vec<SocketAddr>,
    /// Id of the cgroup that holds every process of the server.
    pub cgroup_id: u64,
    /// Depth of the cgroup below the root of the hierarchy (the root has 0).
    pub cgroup_level: u32,
    /// Cookie of the network namespace (`SO_NETNS_COOKIE`).
    pub netns_cookie: u64,
    /// Which ends of processes are crashes.
    pub crash_on: CrashOn,
    /// First of the eight marks of the member's packets.
    pub mark: u32,
    /// The present key of the pool, and perhaps the key before.
    pub keys: Vec<PoolKey>,
    /// Which validators tell two versions of an object apart.
    pub version_check: http1::version::VersionCheck,
    /// The operator says that objects never change under a name.
    pub is_immutable: bool,
    /// Longest time for which a request stays unacknowledged.
    pub withhold: Duration,
    /// Responses may have inputs ([`http1::edit::INPUTS_FIELD`]).
    pub takes_inputs: bool,
    /// Every server sends the same chunks of the same response.
    pub takes_chunks: bool,
    /// Packets between hosts of the pool are in UDP, and come to this address of the host. `None`: as frames.
    pub encapsulated_at: Option<IpAddr>,
}

/// The programs and maps of a member.
///
/// Without a lease no packet leaves. Pinned objects stay, and stay silent, until [`MemberPlane::remove`].
pub struct MemberPlane {
    object: Object,
    member: MapHandle,
    flows: MapHandle,
    pins: PinDirectory,
    attachments: Vec<Attachment>,
    enslaved: BTreeSet<u32>,
    mark: u32,
}

/// Where the objects of a member are pinned.
#[must_use]
pub fn member_pins(bpffs: &Path, name: &str) -> PinDirectory {
    let mode = format!("objects-v{OBJECTS_LAYOUT_VERSION}");
    PinDirectory::at(
        bpffs
            .join("outlive")
            .join(mode)
            .join(name.replace('.', ":")),
    )
}

fn map(object: &Object, name: &'static str) -> Result<MapHandle, DataplaneError> {
    let map = object
        .maps()
        .find(|map| map.name() == name)
        .ok_or(DataplaneError::Missing(name))?;
    MapHandle::try_from(&map).doing("duplicate a map's descriptor")
}

/// Removes all entries.
fn clear(map: &MapHandle) -> Result<(), libbpf_rs::Error> {
    let keys: Vec<Vec<u8>> = map.keys().collect();
    for key in keys {
        match map.delete(&key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

impl MemberPlane {
    /// Loads the programs, with the settings in place, and pins the maps. No program is attached
    /// yet, and the member has no lease.
    ///
    /// # Errors
    /// The kernel lacks a feature, or pins of this member exist already.
    pub fn load(settings: &MemberSettings, pins: PinDirectory) -> Result<Self, DataplaneError> {
        crate::object::log_libbpf();
        let object = ObjectBuilder::default()
            .open_memory(abi::OBJECT)
            .map_err(crate::object::not_loaded)?
            .load()
            .map_err(crate::object::not_loaded)?;
        let mut plane = Self {
            member: map(&object, "member")?,
            flows: map(&object, "object_flows")?,
            object,
            pins,
            attachments: Vec::new(),
            enslaved: BTreeSet::new(),
            mark: settings.mark,
        };
        plane.configure(settings)?;
        plane.pin()?;
        Ok(plane)
    }

    fn configure(&self, settings: &MemberSettings) -> Result<(), DataplaneError> {
        let mut member = abi::member {
            netns_cookie: settings.netns_cookie,
            cgroup_id: settings.cgroup_id,
            cgroup_level: settings.cgroup_level,
            crash_policy: crate::object::policy(settings.crash_on).0,
            mark: settings.mark,
            incarnation: 1,
            version_check: version_check_code(settings.version_check),
            is_immutable: settings.is_immutable.into(),
            takes_inputs: settings.takes_inputs.into(),
            takes_chunks: settings.takes_chunks.into(),
            gated: 1,
            withhold_ns: nanos(settings.withhold),
            encapsulates: settings.encapsulated_at.is_some().into(),
            address: settings.encapsulated_at.map_or([0; 16], mapped),
            ..Default::default()
        };
        for (place, key) in member.keys.iter_mut().zip(&settings.keys) {
            let [k0, k1] = key.words();
            *place = abi::pool_key { k0, k1 };
            member.key_count += 1;
        }
        let doing = "write the member's settings";
        self.member
            .update(&0u32.to_ne_bytes(), member.as_bytes(), MapFlags::ANY)
            .doing(doing)?;
        let (addresses, endpoints) = (
            map(&self.object, "addresses")?,
            map(&self.object, "endpoints")?,
        );
        for address in &settings.addresses {
            addresses
                .update(&mapped(address.ip()), &[1], MapFlags::ANY)
                .doing(doing)?;
            // The port alone, too: a listener on a wildcard address listens for us.
            let wildcard = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
            for endpoint in [*address, wildcard].map(abi::endpoint::from) {
                endpoints
                    .update(endpoint.as_bytes(), &[1], MapFlags::ANY)
                    .doing(doing)?;
            }
        }
        Ok(())
    }

    fn pin(&mut self) -> Result<(), DataplaneError> {
        self.pins.create()?;
        let failed = |path, error| DataplaneError::Pin {
            path,
            source: io::Error::other(error),
        };
        for mut map in self.object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name.contains('.') {
                continue; // one of libbpf's own
            }
            let path = self.pins.pin(&name);
            map.pin(&path).map_err(|error| failed(path, error))?;
        }
        for name in PACKET_PROGRAMS {
            let path = self.pins.pin(name);
            let mut program = attach::program(&self.object, name)?;
            program.pin(&path).map_err(|error| failed(path, error))?;
        }
        Ok(())
    }

    /// Attaches the death latch: from now on a crash in the cgroup shuts the gate.
    ///
    /// # Errors
    /// The kernel has no BTF tracepoints.
    pub fn attach_latch(&self) -> Result<(), DataplaneError> {
        for name in LATCH_PROGRAMS {
            let link: Result<ProgramLink, _> = attach::program(&self.object, name)?.attach_trace();
            let mut link = link.map_err(|source| DataplaneError::Attach {
                program: name,
                target: "a tracepoint".to_string(),
                source,
            })?;
            attach::pin_link(&mut link, &self.pins, name)?;
        }
        Ok(())
    }

    /// Attaches the programs to `interface`. An interface that has the programs already, or belongs
    /// to a bridge or bond, is left alone.
    ///
    /// # Errors
    /// The kernel refuses both mechanisms.
    pub fn attach_interface(&mut self, interface: &Interface) -> Result<(), DataplaneError> {
        let known = |a: &Attachment| a.interface.index == interface.index;
        if self.attachments.iter().any(known) || self.enslaved.contains(&interface.index) {
            return Ok(());
        }
        let link = Link::of(interface)?;
        if link.enslaved {
            self.enslaved.insert(interface.index);
            return Ok(());
        }
        self.attachments.push(Attachment::new(
            &self.object,
            interface.clone(),
            &link,
            false,
            AttachMode::Auto,
            &self.pins,
            &[],
        )?);
        Ok(())
    }

    /// Tells the address in whose name the interface looks for its neighbours: never an address of the pool.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn set_own_address(&self, interface: u32, address: Ipv4Addr) -> Result<(), DataplaneError> {
        map(&self.object, "own_addresses")?
            .update(&interface.to_ne_bytes(), &address.octets(), MapFlags::ANY)
            .doing("write an address of an interface")
    }

    /// The interfaces that carry the programs.
    pub fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.attachments
            .iter()
            .map(|attachment| &attachment.interface)
    }

    /// First of the marks of our own packets.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// Detaches all programs and removes the pins. Call this function when the server is gone.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn remove(mut self) -> Result<(), DataplaneError> {
        for attachment in &mut self.attachments {
            attachment.detach(&self.object, &[]);
        }
        self.pins.remove()
    }

    fn control(
        &self,
        what: &'static str,
        op: abi::member_op,
        argument: u64,
    ) -> Result<(), DataplaneError> {
        let mut request = abi::member_control {
            op: op.0,
            argument,
            ..Default::default()
        };
        let program = attach::program(&self.object, "member_control")?;
        let input = ProgramInput {
            context_in: Some(request.as_bytes_mut()),
            ..Default::default()
        };
        program.test_run(input).doing(what)?;
        match request.result {
            0 => Ok(()),
            error => Err(DataplaneError::Control {
                what,
                source: io::Error::from_raw_os_error(-error),
            }),
        }
    }

    /// End of the permission to send, as time since the host was booted (`CLOCK_BOOTTIME`).
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn set_lease(&self, end: Duration) -> Result<(), DataplaneError> {
        self.control("limit speech", abi::member_op::MEMBER_LEASE, nanos(end))
    }

    /// Until when the pool counts as changed a short time ago (`CLOCK_BOOTTIME`).
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn set_quiescence(&self, end: Duration) -> Result<(), DataplaneError> {
        let op = abi::member_op::MEMBER_QUIESCENCE;
        self.control("set the end of quiescence", op, nanos(end))
    }

    /// Unix time less the time since the host was booted.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn set_clock(&self, offset: Duration) -> Result<(), DataplaneError> {
        self.control("set the clock", abi::member_op::MEMBER_CLOCK, nanos(offset))
    }

    /// Whether connections may begin at this member.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn accept(&self, does: bool) -> Result<(), DataplaneError> {
        let op = abi::member_op::MEMBER_ACCEPTS;
        self.control("accept connections", op, does.into())
    }

    /// No packet of the server leaves from now on.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn gate(&self) -> Result<(), DataplaneError> {
        self.control("shut the gate", abi::member_op::MEMBER_GATE, 0)
    }

    /// A new server: the gate opens.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn new_incarnation(&self, incarnation: u32) -> Result<(), DataplaneError> {
        let op = abi::member_op::MEMBER_INCARNATION;
        self.control("open the gate", op, incarnation.into())
    }

    /// Process id of the server's main process.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn main_process(&self, pid: u32) -> Result<(), DataplaneError> {
        let op = abi::member_op::MEMBER_MAIN;
        self.control("name the main process", op, pid.into())
    }

    /// Whether the server was asked to end: its deaths are no crashes then.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn stopping(&self, is: bool) -> Result<(), DataplaneError> {
        let op = abi::member_op::MEMBER_STOPPING;
        self.control("announce the end", op, is.into())
    }

    /// All connections.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn flows(&self) -> Result<Vec<(FlowKey, Flow)>, DataplaneError> {
        let mut all = Vec::new();
        batches::each_entry(&self.flows, batches::ROOM, |key, value| {
            let key = abi::flow_key::from_bytes(key).map(FlowKey::from);
            let flow = abi::object_flow::from_bytes(value).and_then(|raw| flows::flow_of(&raw));
            all.extend(key.zip(flow));
        })
        .doing("read the connections")?;
        Ok(all)
    }

    /// A connection.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn flow(&self, key: FlowKey) -> Result<Option<Flow>, DataplaneError> {
        let value = self
            .flows
            .lookup(abi::flow_key::from(key).as_bytes(), MapFlags::ANY)
            .doing("read a connection")?;
        let raw = value.and_then(|bytes| abi::object_flow::from_bytes(&bytes));
        Ok(raw.and_then(|raw| flows::flow_of(&raw)))
    }

    /// Writes a connection. Returns whether the connection was written: a connection that is known and must not be, or
    /// is unknown and must not be, is left alone.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn write_flow(
        &self,
        key: FlowKey,
        flow: &Flow,
        is_known: bool,
    ) -> Result<bool, DataplaneError> {
        let flags = if is_known {
            MapFlags::EXIST
        } else {
            MapFlags::NO_EXIST
        };
        let raw = abi::object_flow::from(flow);
        let written = self
            .flows
            .update(abi::flow_key::from(key).as_bytes(), raw.as_bytes(), flags);
        match written {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    libbpf_rs::ErrorKind::AlreadyExists | libbpf_rs::ErrorKind::NotFound
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error).doing("write a connection"),
        }
    }

    /// Forgets a connection.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn forget_flow(&self, key: FlowKey) -> Result<(), DataplaneError> {
        match self.flows.delete(abi::flow_key::from(key).as_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(error).doing("forget a connection")
            }
            _ => Ok(()),
        }
    }

    /// Whether a connection, or its handshake, is here.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn knows(&self, key: FlowKey) -> Result<bool, DataplaneError> {
        let raw = abi::flow_key::from(key);
        for name in ["object_flows", "embryos"] {
            let value = map(&self.object, name)?.lookup(raw.as_bytes(), MapFlags::ANY);
            if value.doing("look for a connection")?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Another member serves the connection: its segments go to that neighbour, or in UDP by the route.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn forward(
        &self,
        key: FlowKey,
        to: IpAddr,
        route: Option<Route>,
    ) -> Result<(), DataplaneError> {
        let (key, hop) = (abi::flow_key::from(key), abi::next_hop::new(to, route));
        map(&self.object, "forwards")?
            .update(key.as_bytes(), hop.as_bytes(), MapFlags::ANY)
            .doing("forward a connection")
    }

    /// Segments go to no other member any more.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn clear_forwards(&self) -> Result<(), DataplaneError> {
        clear(&map(&self.object, "forwards")?).doing("forward nothing")
    }

    /// Forgets handshakes under way.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn forget_handshakes(&self) -> Result<(), DataplaneError> {
        clear(&map(&self.object, "embryos")?).doing("forget handshakes")
    }

    /// Counts of packets, by name.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, DataplaneError> {
        let counters = map(&self.object, "object_counters")?;
        let doing = "read the counters";
        let mut named = Vec::new();
        for (index, name) in (0_u32..).zip(COUNTERS) {
            let values = counters
                .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
                .doing(doing)?;
            let value = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
            named.push((name, values.iter().flatten().map(value).sum()));
        }
        Ok(named)
    }

    /// The ring of events.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub fn events<'cb>(
        &self,
        each: impl FnMut(ObjectEvent) + 'cb,
    ) -> Result<ObjectRing<'cb>, DataplaneError> {
        ObjectRing::events(&map(&self.object, "object_events")?, each)
    }

    /// The ring of copies.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub fn copies<'cb>(
        &self,
        each: impl FnMut(ObjectCopy<'_>) + 'cb,
    ) -> Result<ObjectRing<'cb>, DataplaneError> {
        ObjectRing::copies(&map(&self.object, "copies")?, each)
    }

    /// The ring of copies of bytes that wait for their turn.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub fn queued<'cb>(
        &self,
        each: impl FnMut(ObjectCopy<'_>) + 'cb,
    ) -> Result<ObjectRing<'cb>, DataplaneError> {
        ObjectRing::copies(&map(&self.object, "queued")?, each)
    }

    /// The bytes that wait were taken: clients may wait with more.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn next_queue_round(&self) -> Result<(), DataplaneError> {
        let op = abi::member_op::MEMBER_QUEUE_ROUND;
        self.control("begin a round of queues", op, 0)
    }

    /// The kernel gets segments of unknown connections again, as many as in each round.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn next_stray_round(&self) -> Result<(), DataplaneError> {
        let op = abi::member_op::MEMBER_STRAY_ROUND;
        self.control("begin a round of unknown segments", op, 0)
    }
}

/// In the order of `enum object_counter`.
const COUNTERS: [&str; 23] = [
    "translated_in",
    "translated_out",
    "withheld",
    "acks_made",
    "fenced",
    "gated",
    "unknown",
    "stray",
    "forged",
    "parked",
    "copies_lost",
    "self_acks",
    "exhausted",
    "edit_failed",
    "table_full",
    "events_lost",
    "forwarded",
    "deferred",
    "queued",
    "unwrapped",
    "miswrapped",
    "not_wrapped",
    "strays_dropped",
];

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

const fn version_check_code(check: http1::version::VersionCheck) -> u8 {
    use http1::version::VersionCheck;
    match check {
        VersionCheck::Etag => 0,
        VersionCheck::Modified => 1,
        VersionCheck::Length => 2,
        VersionCheck::Off => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_a_name() {
        assert_eq!(
            COUNTERS.len(),
            abi::object_counter::OBJECTS_COUNTERS.0 as usize
        );
    }

    #[test]
    fn each_reason_has_a_code_of_the_programs() {
        let last = objects::flow::Unprotected::ALL.map(objects::flow::Unprotected::code);
        assert_eq!(
            last.last().copied().map(u32::from),
            Some(abi::unprotected_object::OBJECT_TOO_LONG.0)
        );
    }

    #[test]
    fn programs_read_chunks_as_far_as_the_model() {
        let mut reader = http1::chunks::Chunks::new();
        reader.take(b"0\r\n\r\n").unwrap();
        let (done, _) = reader.parts();
        assert_eq!(u32::from(done), abi::chunk_place::CHUNK_DONE.0);
        let steps = abi::chunk_constant::CHUNK_STEPS_MOST.0;
        assert_eq!(http1::chunks::STEP_COUNT_MAX, steps);
    }
}
