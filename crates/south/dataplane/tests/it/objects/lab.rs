//! One step at a time through the programs of a member and through the model.

mod race;
mod sockets;
mod steps;
mod wrapping;

use std::{
    cell::RefCell,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    panic::resume_unwind,
    path::Path,
    process::Command,
    rc::Rc,
    thread,
    time::Duration,
};

use dataplane::{
    MemberPlane, MemberSettings, ObjectCopy, ObjectEvent, ObjectEventKind, ObjectRing,
    PinDirectory, ethernet_interfaces, member_pins,
};
use http1::version::VersionCheck;
use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys};
use objects::{
    PoolKey,
    flow::Flow,
    plane::{self, Counter, Event, Plane, StoreKind, Verdict},
    revive::WITHHOLD_MAX,
    timestamp::State,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    time::{ClockId, clock_gettime},
};
use south_model::CrashOn;
use wire::{ChecksumMode, ChecksumState, FlowKey, IpPacket, PROTOCOL_TCP, Segment, SeqNumber};

use crate::harness::{self, *};
use sockets::*;
pub(super) use steps::*;
pub(super) use wrapping::*;

/// The interface on which packets come and leave, and the other end of the cable.
const INTERFACE_NAME: &str = "pool0";
const CABLE_END_NAME: &str = "pool1";
/// No lease and no quiescence of the tests ends by itself.
const LEASE_MAX: Duration = Duration::from_secs(1 << 33);
/// How long a packet may need from one end of the kernel to the other on a busy machine.
const PASSAGE_LIMIT: Duration = Duration::from_secs(30);
const SLOT_DURATION: Duration = objects::isn::SLOT_DURATION;
pub(super) const POOL_KEY: PoolKey = PoolKey(*b"a key of 16 byte");
pub(super) const POOL_KEY_BEFORE: PoolKey = PoolKey(*b"the key before  ");

/// Output of a step.
#[derive(Debug, Clone)]
pub(super) struct Out {
    pub(super) verdict: Verdict,
    pub(super) packet: plane::Packet,
    /// Packets that left besides.
    pub(super) sent: Vec<plane::Packet>,
}

impl Out {
    pub(super) fn segment(&self) -> Segment<'_> {
        segment_of(&self.packet)
    }
}

pub(super) fn segment_of(packet: &plane::Packet) -> Segment<'_> {
    Segment::of(&IpPacket::parse(&packet.bytes).expect("an IP packet")).expect("a segment")
}

/// The programs of a member and the model, and one connection: `c` and `s` are the initial sequence numbers that the
/// client and the server's TCP choose.
pub(super) struct Lab {
    pub(super) plane: MemberPlane,
    pub(super) model: Plane,
    pub(super) key: FlowKey,
    pub(super) c: SeqNumber,
    pub(super) s: SeqNumber,
    pub(super) interface: u32,
    programs: [OwnedFd; 2],
    settings: MemberSettings,
    flows: MapHandle,
    half_open: MapHandle,
    tombstones: MapHandle,
    /// Counters when the model began.
    counted: Vec<(&'static str, u64)>,
    events: ObjectRing<'static>,
    queued: ObjectRing<'static>,
    copies: ObjectRing<'static>,
    turns: ObjectRing<'static>,
    happened: Rc<RefCell<Vec<Event>>>,
    copied: Rc<RefCell<Vec<plane::SegmentCopy>>>,
    turned: Rc<RefCell<Vec<plane::SegmentCopy>>>,
    tap: OwnedFd,
    offloading: OwnedFd,
    seen_events: Vec<Event>,
    seen_copies: Vec<plane::SegmentCopy>,
    seen_turns: Vec<plane::SegmentCopy>,
    /// The balancer wraps the packets of clients.
    wrapping: Option<Wrapping>,
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    In,
    Out,
}

pub(super) fn member_settings() -> MemberSettings {
    MemberSettings {
        addresses: vec![server_end(false), server_end(true)],
        cgroup_id: 0,
        cgroup_level: 0,
        netns_cookie: 0,
        crash_on: CrashOn::Signal,
        mark: MARK,
        keys: vec![POOL_KEY, POOL_KEY_BEFORE],
        version_check: VersionCheck::Etag,
        is_immutable: false,
        withhold: WITHHOLD_MAX,
        takes_inputs: false,
        takes_chunks: false,
        encapsulated_at: None,
    }
}

/// Runs the test with the usual settings, in namespaces of its own.
pub(super) fn alone(test: impl FnOnce(Lab) + Send) {
    alone_with(&member_settings(), test);
}

pub(super) fn alone_with(settings: &MemberSettings, test: impl FnOnce(Lab) + Send) {
    let run = || {
        // SAFETY: the call concerns this thread alone, which does no other work.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) };
        assert_eq!(result, 0, "this test needs root: run it with sudo");
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).expect("namespaces");
        let bpffs = tempfile::tempdir().expect("a directory");
        mount("bpf", bpffs.path(), "bpf", MountFlags::empty(), None).expect("a bpf filesystem");
        plug_in();
        test(Lab::load(settings, bpffs.path()));
    };
    thread::scope(|scope| {
        if let Err(panic) = scope.spawn(run).join() {
            resume_unwind(panic);
        }
    });
}

/// Two interfaces and a cable, to every client. The kernel says nothing of its own on the cable, and asks no neighbour
/// for its link address.
fn plug_in() {
    let cable = [
        "link",
        "add",
        INTERFACE_NAME,
        "type",
        "veth",
        "peer",
        CABLE_END_NAME,
    ];
    let mut commands = vec![cable.to_vec()];
    for name in [INTERFACE_NAME, CABLE_END_NAME] {
        commands.push(vec![
            "link",
            "set",
            name,
            "addrgenmode",
            "none",
            "arp",
            "off",
            "up",
        ]);
    }
    for family in ["-4", "-6"] {
        commands.push(vec![
            family,
            "route",
            "add",
            "default",
            "dev",
            INTERFACE_NAME,
        ]);
    }
    for words in commands {
        let status = Command::new("ip").args(&words).status();
        assert!(status.expect("iproute2").success(), "{words:?}");
    }
}

fn pinned_program(pins: &PinDirectory, name: &str) -> OwnedFd {
    let path = pins.pin(name);
    let path = std::ffi::CString::new(path.to_str().expect("text")).expect("no 0");
    // SAFETY: the path is a string that lives until the call returns.
    let fd = unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) };
    assert!(fd >= 0, "{name} is pinned");
    // SAFETY: a new descriptor.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn normal(mut flow: Flow) -> Flow {
    // Two clocks.
    flow.turn.asked_at = flow.turn.asked_at.min(Duration::from_nanos(1));
    flow
}

/// `struct flow_key`.
fn key_bytes(key: &FlowKey) -> Vec<u8> {
    let address = |end: SocketAddr| match end.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let ends = [key.client(), key.server()];
    let addresses = ends.iter().flat_map(|end| address(*end));
    let ports = ends.iter().flat_map(|end| end.port().to_be_bytes());
    addresses.chain(ports).collect()
}

fn model_of(settings: &MemberSettings) -> Plane {
    Plane::new(plane::Settings {
        addresses: settings.addresses.clone(),
        keys: settings.keys.clone(),
        mark: settings.mark,
        version_check: settings.version_check,
        is_immutable: settings.is_immutable,
        withhold: settings.withhold,
        takes_inputs: settings.takes_inputs,
        takes_chunks: settings.takes_chunks,
        encapsulates: settings.encapsulated_at.is_some(),
    })
}

fn event_of(event: &ObjectEvent) -> Event {
    match event.kind {
        ObjectEventKind::Death { .. } => Event::Death,
        ObjectEventKind::Listening => Event::Listening,
        ObjectEventKind::Unprotected { key, reason } => Event::Unprotected { key, reason },
        ObjectEventKind::Repeated { key, seq } => Event::Repeated { key, seq },
        ObjectEventKind::Answered { key } => Event::Answered { key },
        ObjectEventKind::TurnOver { key } => Event::TurnOver { key },
        ObjectEventKind::Diverged { key } => Event::Diverged { key },
    }
}

fn copy_of(copy: &ObjectCopy<'_>) -> plane::SegmentCopy {
    plane::SegmentCopy {
        key: copy.key,
        kind: copy.kind,
        interface: copy.interface,
        packet: copy.packet.to_vec(),
        packet_len: usize::try_from(copy.packet_len).expect("a length"),
    }
}

impl Lab {
    fn load(settings: &MemberSettings, bpffs: &Path) -> Self {
        let pins = member_pins(bpffs, "pool");
        let mut plane = MemberPlane::load(settings, pins.clone()).expect("the programs load");
        let all = ethernet_interfaces().expect("there are some");
        let own = all
            .iter()
            .find(|one| one.name == INTERFACE_NAME)
            .expect("veth");
        plane.attach_interface(own).expect("a veth takes programs");
        let (happened, copied, turned) = (Rc::default(), Rc::default(), Rc::default());
        let (into_happened, into_copied) = (Rc::clone(&happened), Rc::clone(&copied));
        let into_happened: Rc<RefCell<Vec<Event>>> = into_happened;
        let into_copied: Rc<RefCell<Vec<plane::SegmentCopy>>> = into_copied;
        let events = plane.events(move |event| into_happened.borrow_mut().push(event_of(&event)));
        let copies = plane.copies(move |copy| into_copied.borrow_mut().push(copy_of(&copy)));
        let into_copied = Rc::clone(&copied);
        let queued = plane.queued(move |copy| into_copied.borrow_mut().push(copy_of(&copy)));
        let into_turned: Rc<RefCell<Vec<plane::SegmentCopy>>> = Rc::clone(&turned);
        let turns = plane.turns(move |copy| into_turned.borrow_mut().push(copy_of(&copy)));
        let map = |name| MapHandle::from_pinned_path(pins.pin(name)).expect("pinned");
        let mut lab = Self {
            model: model_of(settings),
            settings: settings.clone(),
            flows: map("object_flows"),
            counted: plane.counters().expect("readable"),
            key: FlowKey::new(client_end(false, 0), server_end(false)),
            c: SeqNumber(1000),
            s: SeqNumber(5000),
            interface: own.index,
            programs: ["ingress", "egress"].map(|name| pinned_program(&pins, name)),
            half_open: map("embryos"),
            tombstones: map("tombstones"),
            events: events.expect("the ring"),
            copies: copies.expect("the ring"),
            queued: queued.expect("the ring"),
            turns: turns.expect("the ring"),
            happened,
            copied,
            turned,
            tap: tap(own.index),
            offloading: offloading_socket(),
            seen_events: Vec::new(),
            seen_copies: Vec::new(),
            seen_turns: Vec::new(),
            wrapping: settings.encapsulated_at.map(Wrapping::to),
            plane,
        };
        lab.begin();
        lab
    }

    fn begin(&mut self) {
        self.accept(true);
        self.store(StoreKind::None);
        self.lease(true);
        self.quiescence(false);
        self.slot(5);
        self.new_incarnation(1);
    }

    /// Without connections, whatever has happened.
    pub(super) fn clear(&mut self) {
        for map in [&self.flows, &self.half_open, &self.tombstones] {
            for key in map.keys().collect::<Vec<_>>() {
                map.delete(&key).expect("nobody else deletes");
            }
        }
        self.plane.clear_forwards().expect("it runs");
        self.plane.next_stray_round().expect("it runs");
        self.events.consume().expect("readable");
        self.copies.consume().expect("readable");
        self.queued.consume().expect("readable");
        self.turns.consume().expect("readable");
        self.turned.borrow_mut().clear();
        self.happened.borrow_mut().clear();
        self.copied.borrow_mut().clear();
        while self.read_tap().is_some() {}
        self.counted = self.plane.counters().expect("readable");
        self.model = model_of(&self.settings);
        self.begin();
    }

    /// With these initial sequence numbers of client and server.
    pub(super) fn numbered(mut self, c: u32, s: u32, v6: bool) -> Self {
        self.connect(v6, 0, c, s);
        self
    }

    /// The connection of the vocabulary is this one from now on.
    pub(super) fn connect(&mut self, v6: bool, number: u16, c: u32, s: u32) {
        self.key = FlowKey::new(client_end(v6, number), server_end(v6));
        (self.c, self.s) = (SeqNumber(c), SeqNumber(s));
    }

    // Packets.

    fn pass(&mut self, direction: Direction, packet: south_model::Packet) -> Out {
        self.run(direction, packet).checked()
    }

    fn run(&mut self, direction: Direction, packet: south_model::Packet) -> Out {
        let mut frame = Frame::of(&packet);
        frame.ifindex = self.interface;
        let frame_before = frame.bytes[..12].to_vec();
        if let (Some(wrapping), Direction::In) = (&self.wrapping, direction) {
            wrapping.wrap(&mut frame);
        }
        let [ingress, egress] = &self.programs;
        let program = match direction {
            Direction::In => ingress,
            Direction::Out => egress,
        };
        let verdict = frame.run(program.as_fd()).expect("the packet is run");
        let mut wanted = plane::Packet {
            bytes: packet.bytes.clone(),
            mark: packet.mark,
            interface: self.interface,
            checksum: ChecksumMode::Full,
        };
        let now = Duration::from_secs(1);
        let want = match direction {
            Direction::In => self.model.ingress(&mut wanted, now),
            Direction::Out => self.model.egress(&mut wanted, now),
        };
        if self.wrapping.is_some() && want == Verdict::RedirectNeighbour && packet.mark == 0 {
            let outer = unwrap(&mut frame);
            assert!(outer.is_forwarded, "by this member");
        }
        let seen = plane::Packet {
            bytes: frame.bytes.split_off(14),
            mark: frame.mark,
            ..wanted.clone()
        };
        assert_eq!(as_seen(want, direction), verdict, "verdicts on {packet:x?}");
        assert_eq!(
            seen, wanted,
            "packets of programs and model, from {packet:x?}"
        );
        let is_turned = want == Verdict::RedirectIngress && packet.mark != wanted.mark;
        let (before, after) = frame_before.split_at(6);
        let macs = if is_turned {
            [after, before].concat()
        } else {
            frame_before.clone()
        };
        assert_eq!(frame.bytes[..12], macs, "link addresses");
        let sent = self.take_sent();
        self.agree();
        Out {
            verdict: want,
            packet: seen,
            sent,
        }
    }

    /// Packets that left besides, of both.
    fn take_sent(&mut self) -> Vec<plane::Packet> {
        let wanted: Vec<_> = std::iter::from_fn(|| self.model.take_sent()).collect();
        let seen: Vec<_> = std::iter::from_fn(|| self.read_tap()).collect();
        let bytes: Vec<_> = wanted.iter().map(|packet| packet.bytes.clone()).collect();
        assert_eq!(seen, bytes, "packets that leave besides");
        wanted
    }

    /// The next segment on the interface. The kernel sends packets of its own, too.
    fn read_tap(&self) -> Option<Vec<u8>> {
        loop {
            let packet = self.read_any()?;
            let is_segment = match packet[0] >> 4 {
                4 => packet[9] == PROTOCOL_TCP,
                6 => packet[6] == PROTOCOL_TCP,
                _ => false,
            };
            if is_segment {
                return Some(packet);
            }
        }
    }

    fn read_any(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 1 << 16];
        // SAFETY: the buffer is valid for the size that is told.
        let len = unsafe {
            libc::recv(
                self.tap.as_raw_fd(),
                frame.as_mut_ptr().cast(),
                frame.len(),
                0,
            )
        };
        let len = usize::try_from(len).ok()?;
        Some(frame[14..len].to_vec())
    }

    pub(super) fn ingress(&mut self, packet: south_model::Packet) -> Out {
        self.pass(Direction::In, packet)
    }

    pub(super) fn egress(&mut self, packet: south_model::Packet) -> Out {
        self.pass(Direction::Out, packet)
    }

    /// A segment leaves as the server's TCP sends segments: the device finishes the checksum, and cuts the segment.
    pub(super) fn server_offloaded(&mut self, spec: &Spec, segment_size: u16) -> Verdict {
        let is_v6 = self.key.server().is_ipv6();
        let packet = spec.packet(self.key.server(), self.key.client());
        let mut wanted = plane::Packet {
            bytes: packet.bytes.clone(),
            mark: 0,
            interface: self.interface,
            checksum: ChecksumMode::Partial,
        };
        unfinish(&mut wanted.bytes);
        let mut frame = Frame::of(&packet);
        frame.bytes.splice(14.., wanted.bytes.iter().copied());
        let header = offloads(is_v6, segment_size);
        self.send(&[&header[..], &frame.bytes].concat(), is_v6);
        let verdict = self.model.egress(&mut wanted, Duration::from_secs(1));
        let passes = matches!(verdict, Verdict::Next | Verdict::RedirectIngress);
        let mut seen: Vec<_> = std::iter::from_fn(|| self.read_tap()).collect();
        while passes && seen.is_empty() {
            let mut tap = [PollFd::new(&self.tap, PollFlags::IN)];
            let limit = Timespec::try_from(PASSAGE_LIMIT).expect("seconds");
            let ready = poll(&mut tap, Some(&limit)).expect("a packet");
            assert_eq!(ready, 1, "no packet");
            seen.extend(std::iter::from_fn(|| self.read_tap()));
        }
        let wanted: Vec<_> = passes.then_some(wanted.bytes).into_iter().collect();
        assert_eq!(seen, wanted, "packets of programs and model");
        self.agree();
        verdict
    }

    fn send(&self, bytes: &[u8], is_v6: bool) {
        let ethertype = if is_v6 {
            libc::ETH_P_IPV6
        } else {
            libc::ETH_P_IP
        };
        let address = link_address(self.interface, ethertype);
        let len = u32::try_from(size_of_val(&address)).expect("32 bits");
        // SAFETY: buffer and address are valid for the sizes that are told.
        let sent = unsafe {
            libc::sendto(
                self.offloading.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                0,
                std::ptr::from_ref(&address).cast(),
                len,
            )
        };
        assert!(sent > 0, "{}", std::io::Error::last_os_error());
    }

    /// The verdict on a packet that has no checksum to verify.
    pub(super) fn egress_raw(&mut self, packet: south_model::Packet) -> Verdict {
        self.run(Direction::Out, packet).verdict
    }

    pub(super) fn client(&mut self, spec: Spec) -> Out {
        let packet = spec.packet(self.key.client(), self.key.server());
        self.ingress(packet)
    }

    /// How many of so many segments the programs copy while user space reads nothing. Without the model, which has no
    /// ring that is full.
    pub(super) fn copied_of(&mut self, spec: &Spec, count: u64) -> u64 {
        let packet = spec.packet(self.key.client(), self.key.server());
        let lost = |plane: &MemberPlane| {
            let counters = plane.counters().expect("readable");
            let lost = counters.iter().find(|(name, _)| *name == "copies_lost");
            lost.expect("a counter").1
        };
        let before = lost(&self.plane);
        for _ in 0..count {
            let mut frame = Frame::of(&packet);
            frame.ifindex = self.interface;
            frame.run(self.programs[0].as_fd()).expect("it is run");
        }
        count - (lost(&self.plane) - before)
    }

    pub(super) fn server(&mut self, spec: Spec) -> Out {
        let packet = spec.packet(self.key.server(), self.key.client());
        self.egress(packet)
    }

    // Control.

    /// The lease goes on for ever, or is over.
    pub(super) fn lease(&mut self, goes_on: bool) {
        let end = if goes_on { LEASE_MAX } else { Duration::ZERO };
        self.plane.set_lease(end).expect("it runs");
        self.model.set_lease(end);
    }

    pub(super) fn accept(&mut self, does: bool) {
        self.plane.accept(does).expect("it runs");
        self.model.accept(does);
    }

    pub(super) fn next_queue_round(&mut self) {
        self.plane.next_queue_round().expect("it runs");
        self.model.next_queue_round();
    }

    pub(super) fn next_stray_round(&mut self) {
        self.plane.next_stray_round().expect("it runs");
        self.model.next_stray_round();
    }

    pub(super) fn store(&mut self, kind: StoreKind) {
        self.plane.set_store(kind).expect("it runs");
        self.model.set_store(kind);
    }

    /// The store has the record of the turn of this number.
    pub(super) fn stored(&mut self, number: u32) -> bool {
        let Some(flow) = self.model.flow(&self.key) else {
            return false;
        };
        let (start, options) = (flow.turn.request_start, flow.client.options);
        let state = State::stored(&POOL_KEY, &self.key, flow.slot, options, number).bits();
        let set = self.plane.set_stored(self.key, number, start, state);
        let set = set.expect("it runs");
        let wanted = self.model.set_stored(&self.key, number, start, state);
        assert_eq!(set, wanted);
        self.agree();
        set
    }

    pub(super) fn quiescence(&mut self, goes_on: bool) {
        let end = if goes_on { LEASE_MAX } else { Duration::ZERO };
        self.plane.set_quiescence(end).expect("it runs");
        self.model.set_quiescence(end);
    }

    /// The middle of this slot of the wall clock begins.
    pub(super) fn slot(&mut self, number: u8) {
        let unix =
            Duration::from_secs(1 << 33) + SLOT_DURATION * u32::from(number) + SLOT_DURATION / 2;
        let boot = clock_gettime(ClockId::Boottime);
        let boot = Duration::try_from(boot).expect("it began at 0");
        self.plane.set_clock(unix - boot).expect("it runs");
        self.model.set_clock(unix - Duration::from_secs(1));
    }

    /// Another member serves the connection.
    pub(super) fn forward(&mut self) {
        let to = IpAddr::from([10, 0, 0, 12]);
        let route = self.wrapping.as_ref().map(|_| supervise::Route {
            device: self.interface,
            source: [10, 0, 1, 11].into(),
        });
        self.plane.forward(self.key, to, route).expect("it runs");
        self.model.forward(self.key, to);
    }

    pub(super) fn gate(&mut self) {
        self.plane.gate().expect("it runs");
        self.model.gate();
    }

    pub(super) fn new_incarnation(&mut self, incarnation: u32) {
        self.plane.new_incarnation(incarnation).expect("it runs");
        self.model.new_incarnation(incarnation);
    }

    pub(super) fn own_address(&mut self, address: Ipv4Addr) {
        let set = self.plane.set_own_address(self.interface, address);
        set.expect("writable");
        self.model.set_own_address(self.interface, address);
    }

    /// User space writes a connection. Returns whether the connection was written.
    pub(super) fn write_flow(&mut self, flow: &Flow, is_known: bool) -> bool {
        // The model's clock stands still, and the programs' clock advances.
        let mut of_programs = flow.clone();
        if !flow.turn.asked_at.is_zero() {
            let now = clock_gettime(ClockId::Monotonic);
            of_programs.turn.asked_at = now.try_into().expect("after the boot");
        }
        let written = self.plane.write_flow(self.key, &of_programs, is_known);
        let written = written.expect("writable");
        let wanted = self.model.write_flow(self.key, flow.clone(), is_known);
        assert_eq!(written, wanted);
        self.agree();
        written
    }

    /// The server's socket is gone. No test run reaches a tracepoint: the map is written as the program writes.
    pub(super) fn close(&mut self) {
        let Some(flow) = self.model.flow(&self.key).cloned() else {
            return;
        };
        self.model.on_close(&self.key);
        if self.model.flow(&self.key).is_some() {
            return;
        }
        if flow.mode == objects::flow::Mode::Served {
            let echoes = flow.echoes.parts();
            let next = echoes.newest.advanced(1);
            let value = objects::timestamp::Timestamp::value(next, flow.states.bare);
            let now: Duration = clock_gettime(ClockId::Monotonic)
                .try_into()
                .expect("after the boot");
            let now = u64::try_from(now.as_nanos()).expect("a host that runs");
            let [low, high] =
                [now, now >> 32].map(|word| u32::try_from(word & 0xffff_ffff).expect("half"));
            let slot = u32::from_ne_bytes([flow.slot.number(), 0, 0, 0]);
            let words = [
                low,
                high,
                flow.server.delta,
                echoes.newest_tsval,
                value,
                slot,
            ];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let key = key_bytes(&self.key);
            let written = self.tombstones.update(&key, &bytes, MapFlags::ANY);
            written.expect("writable");
        }
        self.plane.forget_flow(self.key).expect("writable");
        self.agree();
    }

    // Both.

    pub(super) fn flow(&self) -> &Flow {
        self.model.flow(&self.key).expect("the flow is known")
    }

    /// The first sequence number behind the SYN-ACK, as the client sees the number.
    pub(super) fn first(&self) -> SeqNumber {
        self.flow().server.isn + 1
    }

    pub(super) fn counted(&self, counter: Counter) -> u64 {
        self.model.counted(counter)
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.seen_events)
    }

    pub(super) fn copies(&mut self) -> Vec<plane::SegmentCopy> {
        std::mem::take(&mut self.seen_copies)
    }

    pub(super) fn turns(&mut self) -> Vec<plane::SegmentCopy> {
        std::mem::take(&mut self.seen_turns)
    }

    /// After each step: everything that can be seen of the two is equal.
    fn agree(&mut self) {
        let flows = self.plane.flows().expect("readable").into_iter();
        let mut flows: Vec<_> = flows.map(|(key, flow)| (key, normal(flow))).collect();
        flows.sort_by_key(|(key, _)| *key);
        let wanted = self.model.flows();
        let wanted: Vec<_> = wanted
            .map(|(key, flow)| (*key, normal(flow.clone())))
            .collect();
        assert_eq!(flows, wanted, "connections");
        let counts = [&self.half_open, &self.tombstones].map(|map| map.keys().count());
        let wanted = [self.model.half_open_count(), self.model.tombstone_count()];
        assert_eq!(counts, wanted, "handshakes and ends");
        self.events.consume().expect("readable");
        let events = std::mem::take(&mut *self.happened.borrow_mut());
        let wanted: Vec<_> = std::iter::from_fn(|| self.model.take_event()).collect();
        assert_eq!(events, wanted, "events");
        self.seen_events.extend(events);
        self.copies.consume().expect("readable");
        self.queued.consume().expect("readable");
        let copies = std::mem::take(&mut *self.copied.borrow_mut());
        let wanted: Vec<_> = std::iter::from_fn(|| self.model.take_copy()).collect();
        assert_eq!(copies, wanted, "copies");
        self.seen_copies.extend(copies);
        self.turns.consume().expect("readable");
        let turns = std::mem::take(&mut *self.turned.borrow_mut());
        let wanted: Vec<_> = std::iter::from_fn(|| self.model.take_beginning()).collect();
        assert_eq!(turns, wanted, "copies of turns");
        self.seen_turns.extend(turns);
        let counters = self.plane.counters().expect("readable");
        for (counter, name) in Counter::ALL {
            let of = |list: &[(&str, u64)]| {
                let counter = list.iter().find(|(other, _)| *other == name);
                counter.expect("it exists").1
            };
            let seen = of(&counters) - of(&self.counted);
            assert_eq!(seen, self.model.counted(counter), "counter {name}");
        }
    }
}

impl Out {
    /// A segment that goes anywhere has a checksum that verifies.
    fn checked(self) -> Self {
        let goes = !matches!(self.verdict, Verdict::Drop | Verdict::Withheld);
        let passed = goes.then_some(&self.packet);
        for packet in passed.into_iter().chain(&self.sent) {
            let bytes = without_jumbo_header(&packet.bytes);
            let Ok(packet) = IpPacket::parse(&bytes) else {
                continue;
            };
            let state = ChecksumState::of(packet.source(), packet.destination(), packet.payload());
            assert_eq!(state, ChecksumState::Valid, "{self:?}");
        }
        self
    }
}

/// A run of a program tells that a packet is redirected, and not where. The mark tells more, but forwarded segments
/// have none.
const fn as_seen(verdict: Verdict, direction: Direction) -> harness::Verdict {
    match verdict {
        Verdict::RedirectNeighbour if matches!(direction, Direction::In) => {
            harness::Verdict::Withheld
        }
        Verdict::Next => harness::Verdict::Next,
        Verdict::Drop => harness::Verdict::Drop,
        Verdict::Withheld => harness::Verdict::Withheld,
        Verdict::RedirectIngress => harness::Verdict::RedirectIngress,
        Verdict::RedirectNeighbour => harness::Verdict::Redirect,
    }
}
