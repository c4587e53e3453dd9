//! The loaded data plane of one service: its settings, its control, its flows.

use std::{
    collections::BTreeSet,
    io,
    net::{Ipv6Addr, SocketAddr},
    os::fd::BorrowedFd,
    time::Duration,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, ProgramInput};
use ssw::{Expect, Flow};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    abi::{self, Abi},
    attach::{self, AttachMode, Attachment},
    error::{DataplaneError, MapContext},
    interfaces::Interface,
    link::Link,
    pins::PinDirectory,
};

/// What a service tells the data plane before anything is attached.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The protected addresses, as clients connect to them.
    pub addresses: Vec<SocketAddr>,
    /// Id of the cgroup that holds every process of the server.
    pub cgroup_id: u64,
    /// Its depth below the root of the hierarchy (the root has 0).
    pub cgroup_level: u32,
    /// Cookie of the network namespace (`SO_NETNS_COOKIE`).
    pub netns_cookie: u64,
    /// A process other than the main one that leaves with a status other than 0 is a crash too.
    pub crash_on_any_failure: bool,
    /// Silence of `serve` after which nothing is gated or recorded any more.
    pub heartbeat_timeout: Duration,
    /// Outstream bytes recorded at the beginning of each turn; 0: none; `u32::MAX`: all.
    pub verify_head: u32,
    /// First of the three marks by which our own packets are known.
    pub mark: u32,
    /// Size of the ring to the logger, bytes; a power of two and a multiple of the page size.
    pub mirror_bytes: u32,
    /// Largest number of connections protected at a time.
    pub max_flows: u32,
}

/// Where a replay begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplicePoint {
    /// Sequence number of the fabricated SYN; replay begins one after it.
    pub instream: SeqNumber,
    /// Client-space number of the first byte that the new server will send.
    pub outstream: SeqNumber,
    /// Compare the replayed outstream up to here.
    pub verify_end: SeqNumber,
}

/// The programs and maps of one service.
///
/// Dropping it closes our own handles only. What is pinned lives on; [`Dataplane::remove`] ends it.
pub struct Dataplane {
    object: Object,
    maps: Maps,
    pins: PinDirectory,
    attachments: Vec<Attachment>,
    /// Indices of interfaces whose packets another interface will show.
    enslaved: BTreeSet<u32>,
    /// An address of 127.0.0.0/8 is protected.
    localnet: bool,
    mark: u32,
}

/// Our own descriptors of the maps that are used often.
struct Maps {
    service: MapHandle,
    endpoints: MapHandle,
    flows: MapHandle,
    expected: MapHandle,
    counters: MapHandle,
    events: MapHandle,
}

impl Maps {
    fn of(object: &Object) -> Result<Self, DataplaneError> {
        Ok(Self {
            service: map(object, "service")?,
            endpoints: map(object, "endpoints")?,
            flows: map(object, "flows")?,
            expected: map(object, "expected")?,
            counters: map(object, "counters")?,
            events: map(object, "events")?,
        })
    }
}

fn map(object: &Object, name: &'static str) -> Result<MapHandle, DataplaneError> {
    let map = object
        .maps()
        .find(|map| map.name() == name)
        .ok_or(DataplaneError::Missing(name))?;
    MapHandle::try_from(&map).doing("duplicate a map's descriptor")
}

impl Dataplane {
    /// Load the programs, with the settings in place, and pin the maps. Nothing is attached yet.
    ///
    /// # Errors
    /// The kernel lacks something, or pins of this service exist already.
    pub fn load(settings: &Settings, pins: PinDirectory) -> Result<Self, DataplaneError> {
        log_libbpf();
        let load = |source| DataplaneError::Load { source };
        let mut open = ObjectBuilder::default()
            .open_memory(abi::OBJECT)
            .map_err(load)?;
        for mut map in open.maps_mut() {
            let entries = match map.name().to_str() {
                Some("mirror") => settings.mirror_bytes,
                Some("flows") => settings.max_flows,
                _ => continue,
            };
            map.set_max_entries(entries).map_err(load)?;
        }
        let object = open.load().map_err(load)?;
        let plane = Self {
            maps: Maps::of(&object)?,
            object,
            pins,
            attachments: Vec::new(),
            enslaved: BTreeSet::new(),
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

    fn configure(&self, settings: &Settings) -> Result<(), DataplaneError> {
        let service = abi::service {
            netns_cookie: settings.netns_cookie,
            cgroup_id: settings.cgroup_id,
            heartbeat_timeout_ns: u64::try_from(settings.heartbeat_timeout.as_nanos())
                .unwrap_or(u64::MAX),
            cgroup_level: settings.cgroup_level,
            crash_policy: u32::from(settings.crash_on_any_failure),
            mark: settings.mark,
            verify_head: settings.verify_head,
            incarnation: 1,
            next_flow_id: 1,
            ..Default::default()
        };
        self.maps
            .service
            .update(&0u32.to_ne_bytes(), service.as_bytes(), MapFlags::ANY)
            .doing("write the service's settings")?;
        for address in &settings.addresses {
            // The port alone, too: a listener on a wildcard address listens for us.
            let wildcard = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
            for endpoint in [*address, wildcard].map(abi::endpoint::from) {
                self.maps
                    .endpoints
                    .update(endpoint.as_bytes(), &[1], MapFlags::ANY)
                    .doing("write a protected address")?;
            }
        }
        self.heartbeat()
    }

    fn pin(&self) -> Result<(), DataplaneError> {
        self.pins.create()?;
        for name in [
            "service", "flows", "embryos", "mirror", "events", "counters",
        ] {
            let path = self.pins.pin(name);
            map(&self.object, name)?
                .pin(&path)
                .map_err(|error| DataplaneError::Pin {
                    path,
                    source: io::Error::other(error),
                })?;
        }
        for name in ["ingress", "egress"] {
            let path = self.pins.pin(name);
            let mut program = attach::program(&self.object, name)?;
            program.pin(&path).map_err(|error| DataplaneError::Pin {
                path,
                source: io::Error::other(error),
            })?;
        }
        Ok(())
    }

    /// Attach the death latch: from now on a crash in the cgroup shuts the gate.
    ///
    /// # Errors
    /// The kernel has no BTF tracepoints.
    pub fn attach_latch(&self) -> Result<(), DataplaneError> {
        for (name, tracepoint) in [
            ("on_exit", "sched_process_exit"),
            ("on_state", "inet_sock_set_state"),
        ] {
            let mut link = attach::program(&self.object, name)?
                .attach_trace()
                .map_err(|source| DataplaneError::Attach {
                    program: name,
                    target: format!("tracepoint {tracepoint}"),
                    source,
                })?;
            attach::pin_link(&mut link, &self.pins, name)?;
        }
        Ok(())
    }

    /// Attach to `interface`. One that has the programs already, or belongs to a bridge or bond, is
    /// left alone.
    ///
    /// # Errors
    /// The kernel refuses both mechanisms, or the one demanded.
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
        )?;
        self.attachments.push(attachment);
        Ok(())
    }

    /// The interfaces that carry the programs.
    pub fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.attachments
            .iter()
            .map(|attachment| &attachment.interface)
    }

    /// The interfaces, each with how it is bound: `eth0 (tcx)`.
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

    /// Detach everything and remove the pins. Connections that were spliced lose their
    /// translation: call this when the server is gone.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn remove(mut self) -> Result<(), DataplaneError> {
        for attachment in &mut self.attachments {
            attachment.detach(&self.object);
        }
        self.pins.remove()
    }

    /// All connections whose handshake is complete.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn flows(&self) -> Result<Vec<(FlowKey, Flow)>, DataplaneError> {
        let map = &self.maps.flows;
        let mut flows = Vec::new();
        // In one batch. The kernel ends a batch early when the next hash bucket does not fit, but
        // libbpf-rs takes one that is not full for the last, and would leave out the rest.
        for (key, value) in map
            .lookup_batch(map.max_entries(), MapFlags::ANY, MapFlags::ANY)
            .doing("read the flows")?
        {
            if let (Some(key), Some(flow)) = (
                abi::flow_key::from_bytes(&key),
                abi::flow::from_bytes(&value),
            ) {
                flows.push((FlowKey::from(key), Flow::from(flow)));
            }
        }
        Ok(flows)
    }

    /// One connection.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn flow(&self, key: FlowKey) -> Result<Option<Flow>, DataplaneError> {
        let value = self
            .maps
            .flows
            .lookup(abi::flow_key::from(key).as_bytes(), MapFlags::ANY)
            .doing("read a flow")?;
        Ok(value
            .and_then(|bytes| abi::flow::from_bytes(&bytes))
            .map(Flow::from))
    }

    /// Values of the counters, in the order of `enum counter`.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counters(&self) -> Result<Counters, DataplaneError> {
        let map = &self.maps.counters;
        let mut values = Vec::new();
        for index in 0..abi::counter::COUNTERS.0 {
            let per_cpu = map
                .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
                .doing("read a counter")?
                .unwrap_or_default();
            let value =
                |bytes: &Vec<u8>| bytes.first_chunk().copied().map_or(0, u64::from_ne_bytes);
            values.push(per_cpu.iter().map(value).sum());
        }
        Ok(Counters(values))
    }

    /// Put what the replayed outstream of `flow` must look like in place.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn expect(&self, flow: FlowId, chunks: &[(u32, Expect)]) -> Result<(), DataplaneError> {
        let map = &self.maps.expected;
        for (chunk, expect) in chunks {
            let key = expect_key(flow, *chunk);
            let value = abi::expect {
                bytes: expect.bytes,
                strict: expect.strict,
                soft: expect.soft,
            };
            map.update(key.as_bytes(), value.as_bytes(), MapFlags::ANY)
                .doing("write what a replay must look like")?;
        }
        Ok(())
    }

    /// Take it away again. Chunks that are not there are no error.
    ///
    /// # Errors
    /// The map cannot be changed.
    pub fn forget_expected(
        &self,
        flow: FlowId,
        chunks: impl Iterator<Item = u32>,
    ) -> Result<(), DataplaneError> {
        let map = &self.maps.expected;
        for chunk in chunks {
            match map.delete(expect_key(flow, chunk).as_bytes()) {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                    return Err(error).doing("remove what a replay must look like");
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn control(
        &self,
        what: &'static str,
        op: abi::control_op,
        fill: impl FnOnce(&mut abi::control),
    ) -> Result<abi::control, DataplaneError> {
        let mut request = abi::control {
            op: op.0,
            ..Default::default()
        };
        fill(&mut request);
        let program = attach::program(&self.object, "control")?;
        let input = ProgramInput {
            context_in: Some(request.as_bytes_mut()),
            ..Default::default()
        };
        program.test_run(input).doing(what)?;
        match request.result {
            0 => Ok(request),
            error => Err(DataplaneError::Control {
                what,
                source: io::Error::from_raw_os_error(-error),
            }),
        }
    }

    /// `serve` is alive.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn heartbeat(&self) -> Result<(), DataplaneError> {
        self.control("heartbeat", abi::control_op::CONTROL_HEARTBEAT, |_| ())
            .map(drop)
    }

    /// Shut the gate now.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn gate(&self) -> Result<(), DataplaneError> {
        self.control("shut the gate", abi::control_op::CONTROL_GATE, |_| ())
            .map(drop)
    }

    /// Begin a new life of the service: the gate opens for its sockets, and for connections as
    /// they are spliced to it.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn new_incarnation(&self) -> Result<(), DataplaneError> {
        self.control(
            "new incarnation",
            abi::control_op::CONTROL_INCARNATION,
            |_| (),
        )
        .map(drop)
    }

    /// The recovery is over: strangers get their ordinary RST again.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn recovered(&self) -> Result<(), DataplaneError> {
        self.control(
            "end of recovery",
            abi::control_op::CONTROL_RECOVERED,
            |_| (),
        )
        .map(drop)
    }

    /// The service is asked to end: deaths are not crashes any more.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn stopping(&self) -> Result<(), DataplaneError> {
        self.control("stopping", abi::control_op::CONTROL_STOPPING, |_| ())
            .map(drop)
    }

    /// Name the main process.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn main_process(&self, pid: u32) -> Result<(), DataplaneError> {
        let pid = u64::from(pid);
        self.control(
            "name the main process",
            abi::control_op::CONTROL_MAIN,
            |c| c.argument = pid,
        )
        .map(drop)
    }

    /// Make the flow ready for its fabricated SYN.
    ///
    /// # Errors
    /// The flow with this number is gone (`ENOENT`).
    pub fn splice(
        &self,
        key: FlowKey,
        flow: FlowId,
        point: SplicePoint,
    ) -> Result<(), DataplaneError> {
        self.control("splice", abi::control_op::CONTROL_SPLICE, |c| {
            c.key = key.into();
            c.flow_id = flow.0;
            c.instream = point.instream.0;
            c.outstream = point.outstream.0;
            c.verify_end = point.verify_end.0;
        })
        .map(drop)
    }

    /// Forget a flow.
    ///
    /// # Errors
    /// The flow with this number is gone already (`ENOENT`).
    pub fn abandon(&self, key: FlowKey, flow: FlowId) -> Result<(), DataplaneError> {
        self.control("abandon a flow", abi::control_op::CONTROL_ABANDON, |c| {
            c.key = key.into();
            c.flow_id = flow.0;
        })
        .map(drop)
    }

    /// The flow has no complete record any more; `reason` as in `protocol::UnprotectedReason`.
    ///
    /// # Errors
    /// The flow with this number is gone (`ENOENT`).
    pub fn unprotect(&self, key: FlowKey, flow: FlowId, reason: u8) -> Result<(), DataplaneError> {
        self.control(
            "unprotect a flow",
            abi::control_op::CONTROL_UNPROTECT,
            |c| {
                c.key = key.into();
                c.flow_id = flow.0;
                c.argument = u64::from(reason);
            },
        )
        .map(drop)
    }

    /// Ask the logger, through the ring, to say when it has read everything up to here.
    ///
    /// # Errors
    /// The ring is full.
    pub fn barrier(&self, token: u64) -> Result<(), DataplaneError> {
        self.control("barrier", abi::control_op::CONTROL_BARRIER, |c| {
            c.argument = token
        })
        .map(drop)
    }

    /// Forget flows that have been closed for longer than `age`; returns how many.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn sweep(&self, age: Duration) -> Result<u64, DataplaneError> {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        self.control("sweep", abi::control_op::CONTROL_SWEEP, |c| {
            c.argument = age
        })
        .map(|reply| reply.swept)
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

/// What libbpf says goes to our own log; what matters of it is in its errors.
pub(crate) fn log_libbpf() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, message| {
        tracing::debug!(target: "libbpf", "{}", message.trim_end());
    })));
}

/// Does this kernel load the programs? Nothing is attached or pinned.
///
/// # Errors
/// It does not.
pub fn probe() -> Result<(), DataplaneError> {
    log_libbpf();
    let load = |source| DataplaneError::Load { source };
    ObjectBuilder::default()
        .open_memory(abi::OBJECT)
        .map_err(load)?
        .load()
        .map_err(load)?;
    Ok(())
}

fn expect_key(flow: FlowId, chunk: u32) -> abi::expect_key {
    abi::expect_key {
        flow_id: flow.0,
        chunk,
        pad: 0,
    }
}

/// What the programs have counted since they were loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters(Vec<u64>);

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $constant:ident,)*) => {
        impl Counters {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(&self) -> u64 {
                usize::try_from(abi::counter::$constant.0).ok().and_then(|i| self.0.get(i)).copied().unwrap_or(0)
            })*

            /// Every counter with its name, for status output.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name())),*]
            }
        }
    };
}

counters! {
    /// Instream segments recorded.
    mirrored = COUNT_MIRRORED,
    /// Instream segments dropped because the ring was full (the client sends them again).
    mirror_full = COUNT_MIRROR_FULL,
    /// Outstream heads recorded.
    heads = COUNT_HEADS,
    /// Outstream heads not recorded because the ring was full.
    heads_lost = COUNT_HEADS_LOST,
    /// Packets of the service dropped by the gate.
    gated_out = COUNT_GATED_OUT,
    /// Packets of clients dropped by the gate.
    gated_in = COUNT_GATED_IN,
    /// Replayed segments acknowledged in the client's name.
    self_acks = COUNT_SELF_ACKS,
    /// Segments translated on their way to clients.
    translated_out = COUNT_TRANSLATED_OUT,
    /// Segments translated on their way to the server.
    translated_in = COUNT_TRANSLATED_IN,
    /// Segments of connections that are not protected.
    untracked = COUNT_UNTRACKED,
    /// SYNs from which an option that we cannot carry was removed.
    stripped = COUNT_STRIPPED,
    /// Connections for which there was no room in the table.
    table_full = COUNT_TABLE_FULL,
    /// Events lost because nobody read them.
    events_lost = COUNT_EVENTS_LOST,
    /// Packets dropped because they could not be rewritten.
    edit_failed = COUNT_EDIT_FAILED,
}
