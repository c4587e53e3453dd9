//! The loaded programs, run on one packet at a time.

use std::{
    io, mem,
    ops::Deref,
    os::fd::{AsRawFd, BorrowedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use dataplane::{Dataplane, Event, PinDirectory, Ring, Settings};
use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys};
use north_abi::{
    handover::Ends,
    read_cursors::{READ_CURSORS, ReadCursors},
};
use protocol::{link::SegmentKind, mirror};
use rustix::mm::{MapFlags as Mapping, ProtFlags, mmap};
use south_model::{CrashOn, DigestKey, Digests, Expect, Packet, Verdict};
use supervise::mounts::{self, Mount};
use wire::{FlowId, FlowKey, IpPacket, Segment, SeqNumber};

use super::segments::{MARK, server_end};

/// The usual settings of the tests. The heartbeat is real time: the timeout must be longer than any
/// test on a busy machine.
pub(crate) fn settings() -> Settings {
    Settings {
        addresses: vec![server_end(false), server_end(true)],
        cgroup_id: 0,
        cgroup_level: 0,
        netns_cookie: 0,
        crash_on: CrashOn::Signal,
        heartbeat_timeout: Duration::from_secs(600),
        verify_head: 4096,
        digests: None,
        mark: MARK,
        mirror_version: mirror::VERSION,
        mirror_bytes: 1 << 20,
        max_flows: 16,
        link: false,
        read_cursors: None,
    }
}

/// The same with a log link, and a server with read cursors.
pub(crate) fn linked_settings() -> Settings {
    Settings {
        link: true,
        read_cursors: Some(0),
        ..settings()
    }
}

/// The same with digests, whole ones or (0) samples.
pub(crate) fn digesting_settings(rate: u32) -> Settings {
    let mut state = 1_u64;
    let random = || {
        // Knuth's, with the better half of the bits twice.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state ^ state >> 32
    };
    Settings {
        digests: Some(Digests {
            key: DigestKey::of(random),
            rate,
        }),
        ..settings()
    }
}

/// With a log link, and digests of all.
pub(crate) fn linked_digesting_settings() -> Settings {
    Settings {
        digests: digesting_settings(u32::MAX).digests,
        ..linked_settings()
    }
}

/// A mirror frame, without the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RingFrame {
    pub(crate) kind: mirror::FrameKind,
    pub(crate) flow_id: u64,
    pub(crate) server_nxt: SeqNumber,
    pub(crate) server_ack: SeqNumber,
    pub(crate) packet_len: u32,
    pub(crate) unfinished: bool,
    pub(crate) packet: Vec<u8>,
    /// Version of the frame.
    pub(crate) version: u8,
    /// Length of the ring's record.
    pub(crate) room: usize,
}

pub(crate) struct Kernel {
    plane: Dataplane,
    mirror: Ring<'static>,
    events: Ring<'static>,
    frames: Arc<Mutex<Vec<RingFrame>>>,
    happened: Arc<Mutex<Vec<Event>>>,
    service: MapHandle,
    half_open: MapHandle,
    flows: MapHandle,
    synacks: MapHandle,
    /// Protected endpoints, and their addresses.
    protected: [MapHandle; 2],
    /// The link and the way to the logger.
    link: [MapHandle; 2],
    expected: Mutex<Vec<(FlowId, u32)>>,
    read_cursors: Option<ReadCursors<'static>>,
    taken: Mutex<Vec<u32>>,
    /// State that the last packet has left for the next program.
    carried: Mutex<[u32; 5]>,
    fresh: Vec<u8>,
}

/// Place of a kernel's pins. Dropping the place removes the pins.
pub(crate) struct Pinned {
    pub(crate) pins: PinDirectory,
    bpffs: Option<Mount>,
    _directory: tempfile::TempDir,
}

impl Pinned {
    pub(crate) fn nowhere_else() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test needs root: run it with sudo"
        );
        let directory = tempfile::tempdir().expect("a directory");
        let bpffs = mounts::bpffs(directory.path()).expect("a bpf filesystem");
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{number}", std::process::id());
        Self {
            pins: PinDirectory::new(bpffs.path(), &name),
            bpffs: Some(bpffs),
            _directory: directory,
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Err(error) = self.pins.remove() {
            eprintln!("pins are left: {error}");
        }
        // By hand: in a panic, a mount stays for the sake of a service's pins, and a test has none to save.
        if let Some(Err(error)) = self.bpffs.take().map(Mount::unmount) {
            eprintln!("{error}");
        }
    }
}

/// A kernel with the usual settings, or these and a log link. Loading takes a second on a busy
/// machine, so later tests use a kernel again.
pub(crate) struct Leased {
    kernel: Option<Kernel>,
    idle: Option<&'static Mutex<Vec<Idle>>>,
}

pub(crate) struct Idle(Kernel);

// SAFETY: all that is bound to a thread is libbpf's description of clsact filters, and a kernel
// that is leased is attached to no interface.
unsafe impl Send for Idle {}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());
static IDLE_LINKED: Mutex<Vec<Idle>> = Mutex::new(Vec::new());
static IDLE_LINKED_WHOLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());
static IDLE_WHOLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());
static IDLE_SAMPLING: Mutex<Vec<Idle>> = Mutex::new(Vec::new());
/// With settings of a test each time.
static IDLE_CONFIGURED: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

impl Leased {
    pub(crate) fn new() -> Self {
        Self::of(&settings(), &IDLE)
    }

    pub(crate) fn linked() -> Self {
        Self::of(&linked_settings(), &IDLE_LINKED)
    }

    pub(crate) fn linked_and_digesting() -> Self {
        Self::of(&linked_digesting_settings(), &IDLE_LINKED_WHOLE)
    }

    pub(crate) fn digesting(rate: u32) -> Self {
        let idle = if rate == 0 {
            &IDLE_SAMPLING
        } else {
            &IDLE_WHOLE
        };
        Self::of(&digesting_settings(rate), idle)
    }

    /// With these settings; sizes of maps must be the usual sizes.
    pub(crate) fn configured(settings: &Settings) -> Self {
        let kernel = Self::of(settings, &IDLE_CONFIGURED);
        kernel.configure(settings);
        kernel
    }

    fn of(settings: &Settings, idle: &'static Mutex<Vec<Idle>>) -> Self {
        let one = idle.lock().expect("no panic with it").pop();
        let kernel = one.map_or_else(|| Kernel::load(settings), |one| one.0);
        kernel.reset();
        Self {
            kernel: Some(kernel),
            idle: Some(idle),
        }
    }
}

impl Deref for Leased {
    type Target = Kernel;

    fn deref(&self) -> &Kernel {
        self.kernel.as_ref().expect("until it is dropped")
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        // Also after a failure: a kernel is reset before the next use.
        if let Some(idle) = self.idle
            && let Ok(mut idle) = idle.lock()
        {
            idle.extend(self.kernel.take().map(Idle));
        }
    }
}

impl From<Kernel> for Leased {
    fn from(kernel: Kernel) -> Self {
        Self {
            kernel: Some(kernel),
            idle: None,
        }
    }
}

impl Kernel {
    /// Programs without pins: only descriptors of this process keep the programs, and no object is
    /// left after the test.
    pub(crate) fn load(settings: &Settings) -> Self {
        Self::pinned(settings, &Pinned::nowhere_else())
    }

    /// Programs that stay pinned as long as `place` lives.
    pub(crate) fn pinned(settings: &Settings, place: &Pinned) -> Self {
        let pins = &place.pins;
        let plane = Dataplane::load(settings, pins.clone()).expect("the programs load");
        let frames = Arc::new(Mutex::new(Vec::new()));
        let happened = Arc::new(Mutex::new(Vec::new()));
        let (to_frames, to_happened) = (Arc::clone(&frames), Arc::clone(&happened));
        let each = move |record: &[u8]| {
            let frame = decode(record);
            to_frames.lock().expect("no panic").push(frame);
        };
        let mirror = Ring::mirror(pins, each).expect("the ring");
        let ring = plane.event_ring().expect("the ring");
        let each = move |event| to_happened.lock().expect("no panic").push(event);
        let events = Ring::events(&ring, each).expect("the ring");
        let map = |name| MapHandle::from_pinned_path(pins.pin(name)).expect("pinned");
        let service = map("service");
        let fresh = read(&service);
        Self {
            mirror,
            events,
            frames,
            happened,
            half_open: map("half_open"),
            flows: map("flows"),
            synacks: map("synacks"),
            protected: ["endpoints", "addresses"].map(map),
            link: ["link", "path"].map(map),
            expected: Mutex::default(),
            read_cursors: settings.read_cursors.map(|_| mapped(plane.read_cursors())),
            taken: Mutex::default(),
            carried: Mutex::default(),
            plane,
            service,
            fresh,
        }
    }

    pub(crate) fn plane(&self) -> &Dataplane {
        &self.plane
    }

    pub(crate) fn expect(&self, flow: FlowId, chunks: &[(u32, Expect)]) {
        self.plane.expect(flow, chunks).expect("there is room");
        let numbers = chunks.iter().map(|(number, _)| (flow, *number));
        self.expected.lock().expect("no panic").extend(numbers);
    }

    /// The first life again, without connections.
    pub(crate) fn reset(&self) {
        for map in [&self.flows, &self.half_open, &self.synacks] {
            empty(map);
        }
        for map in &self.link {
            write(map, &vec![0; read(map).len()]);
        }
        for (flow, chunk) in mem::take(&mut *self.expected.lock().expect("no panic")) {
            let chunk = std::iter::once(chunk);
            self.plane.forget_expected(flow, chunk).expect("it runs");
        }
        let mut taken = self.taken.lock().expect("no panic");
        if let Some(cursors) = self.read_cursors {
            taken.drain(..).for_each(|place| cursors.free(place));
        }
        drop(taken);
        write(&self.service, &self.fresh);
        self.plane().heartbeat().expect("it runs");
        self.take_frames();
        self.take_events();
    }

    /// Changes the settings of the loaded programs.
    fn configure(&self, settings: &Settings) {
        for map in &self.protected {
            empty(map);
        }
        self.plane().configure(settings).expect("it runs");
    }

    /// The read cursors, mapped as in a process of the service.
    pub(crate) fn read_cursors(&self) -> ReadCursors<'static> {
        self.read_cursors.expect("with read cursors")
    }

    /// A process of the service advances the read cursor of this connection. Returns whether the
    /// map had space.
    pub(crate) fn advance_cursor(&self, key: FlowKey, isn: SeqNumber, seq: SeqNumber) -> bool {
        let place = self
            .read_cursors()
            .take(&Ends::new(key.client(), key.server()), isn.0, seq.0);
        let mut taken = self.taken.lock().expect("no panic");
        taken.extend(place);
        place.is_some()
    }

    /// State that the last packet has left for the next program.
    pub(crate) fn carried(&self) -> [u32; 5] {
        *self.carried.lock().expect("no panic")
    }

    pub(crate) fn half_open(&self) -> usize {
        self.half_open.keys().count()
    }

    /// Makes `serve` look silent for `silence`. The heartbeat itself shows the field of the
    /// heartbeat: no other field changes.
    pub(crate) fn age_heartbeat(&self, silence: Duration) {
        let before = read(&self.service);
        self.plane().heartbeat().expect("it runs");
        let mut value = read(&self.service);
        let words = value.chunks_exact_mut(8).zip(before.chunks_exact(8));
        let mut changed: Vec<&mut [u8]> = words
            .filter(|(new, old)| new != old)
            .map(|(new, _)| new)
            .collect();
        let [heartbeat] = changed.as_mut_slice() else {
            panic!("the heartbeat changed {} words", changed.len());
        };
        let now = u64::from_ne_bytes((&**heartbeat).try_into().unwrap());
        let silence = u64::try_from(silence.as_nanos()).unwrap();
        heartbeat.copy_from_slice(&now.wrapping_sub(silence).to_ne_bytes());
        write(&self.service, &value);
    }

    pub(crate) fn ingress(&self, packet: &mut Packet) -> Verdict {
        self.run("ingress", packet)
    }

    pub(crate) fn egress(&self, packet: &mut Packet) -> Verdict {
        self.run("egress", packet)
    }

    /// A copy of a segment passes the interface of the log link.
    pub(crate) fn wrap(&self, copy: &south_model::Copy) -> Packet {
        let mut packet = copy.packet.clone();
        let mut frame = Frame::of(&packet);
        frame.cb = carried(copy);
        let verdict = self.run_frame("egress", &mut frame).expect("it is run");
        assert_eq!(verdict, Verdict::Next);
        packet.bytes = frame.bytes.split_off(ETHERNET);
        packet.mark = frame.mark;
        packet
    }

    fn run(&self, program: &'static str, packet: &mut Packet) -> Verdict {
        let mut frame = Frame::of(packet);
        let verdict = self
            .run_frame(program, &mut frame)
            .expect("the packet is run");
        *self.carried.lock().expect("no panic") = frame.cb;
        let as_it_is = packet.mark.wrapping_sub(MARK) < 2;
        let macs = if verdict == Verdict::RedirectIngress && !as_it_is {
            [CLIENT_MAC, SERVER_MAC] // turned round
        } else {
            [SERVER_MAC, CLIENT_MAC]
        };
        assert_eq!(frame.bytes[..12], macs.concat(), "link addresses");
        packet.bytes = frame.bytes.split_off(ETHERNET);
        packet.mark = frame.mark;
        verdict
    }

    /// Runs a program on an unchanged frame.
    pub(crate) fn run_frame(
        &self,
        program: &'static str,
        frame: &mut Frame,
    ) -> io::Result<Verdict> {
        frame.run(self.plane().program_fd(program).expect("it is loaded"))
    }

    pub(crate) fn take_frames(&self) -> Vec<RingFrame> {
        self.mirror.consume().expect("the ring is read");
        mem::take(&mut *self.frames.lock().expect("no panic"))
    }

    pub(crate) fn take_events(&self) -> Vec<Event> {
        self.events.consume().expect("the ring is read");
        mem::take(&mut *self.happened.lock().expect("no panic"))
    }
}

// Offsets in `struct __sk_buff` (linux/bpf.h), which never change.
const AT_MARK: usize = 8;
const AT_IFINDEX: usize = 40;
const AT_CB: usize = 48;
const CONTEXT_IN: usize = 68;
/// By as much as this a program may lengthen a packet.
const GROWTH: usize = 256;

const ETHERNET: usize = 14;
const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Input of a program.
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) mark: u32,
    pub(crate) ifindex: u32,
    /// State that one program leaves for the next.
    pub(crate) cb: [u32; 5],
}

impl Frame {
    /// With an Ethernet header for the IP version of the packet; ARP for no IP version.
    pub(crate) fn of(packet: &Packet) -> Self {
        let ethertype: u16 = match packet.bytes.first().map_or(0, |first| first >> 4) {
            4 => 0x0800,
            6 => 0x86dd,
            _ => 0x0806,
        };
        let ethertype = ethertype.to_be_bytes();
        Self {
            bytes: [&SERVER_MAC[..], &CLIENT_MAC, &ethertype, &packet.bytes].concat(),
            mark: packet.mark,
            ifindex: packet.ifindex,
            cb: [0; 5],
        }
    }

    /// Runs this program on the frame.
    pub(crate) fn run(&mut self, program: BorrowedFd<'_>) -> io::Result<Verdict> {
        let mut context = [0u8; CONTEXT_IN];
        for (n, word) in self.cb.iter().enumerate() {
            context[AT_CB + 4 * n..][..4].copy_from_slice(&word.to_ne_bytes());
        }
        context[AT_MARK..AT_MARK + 4].copy_from_slice(&self.mark.to_ne_bytes());
        context[AT_IFINDEX..][..4].copy_from_slice(&self.ifindex.to_ne_bytes());
        let mut context_out = [0u8; 256];
        let mut out = vec![0u8; self.bytes.len() + GROWTH];
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: libbpf_sys::size_t::try_from(size_of::<libbpf_sys::bpf_test_run_opts>()).unwrap(),
            data_in: self.bytes.as_ptr().cast(),
            data_out: out.as_mut_ptr().cast(),
            data_size_in: u32::try_from(self.bytes.len()).unwrap(),
            data_size_out: u32::try_from(out.len()).unwrap(),
            ctx_in: context.as_ptr().cast(),
            ctx_out: context_out.as_mut_ptr().cast(),
            ctx_size_in: u32::try_from(context.len()).unwrap(),
            ctx_size_out: u32::try_from(context_out.len()).unwrap(),
            ..Default::default()
        };
        // SAFETY: every pointer is valid for the size beside it until the call returns.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        if result != 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        out.truncate(usize::try_from(options.data_size_out).unwrap());
        self.bytes = out;
        let word = |at: usize| {
            let word = context_out[at..at + 4].try_into();
            u32::from_ne_bytes(word.expect("four bytes"))
        };
        self.mark = word(AT_MARK);
        self.cb = [0, 1, 2, 3, 4].map(|n| word(AT_CB + 4 * n));
        Ok(match options.retval.cast_signed() {
            -1 => Verdict::Next,
            2 => Verdict::Drop,
            // TC_ACT_REDIRECT; where to, the mark tells.
            7 if [2, 4].contains(&self.mark.wrapping_sub(MARK)) => Verdict::Redirect,
            7 if [0, 1].contains(&self.mark.wrapping_sub(MARK)) => Verdict::RedirectIngress,
            // To no interface.
            7 => Verdict::Withheld,
            other => panic!("verdict {other}"),
        })
    }
}

/// State that a mirrored segment takes through the stack.
pub(crate) fn carried(copy: &south_model::Copy) -> [u32; 5] {
    let [low, high] = [copy.flow_id.0, copy.flow_id.0 >> 32].map(|word| word & 0xffff_ffff);
    let [low, high] = [low, high].map(|word| u32::try_from(word).expect("half of a number"));
    let (head, lengths) = (copy.head, [copy.head.keep, copy.head.whole].map(u32::from));
    let after = match copy.flags.kind {
        SegmentKind::Noted => numbers(&copy.packet).0.0.wrapping_sub(head.after.0),
        SegmentKind::Doubted => head.after.0.wrapping_sub(numbers(&copy.packet).1.0),
        _ => head.after.0,
    };
    let is_head = copy.flags.kind == SegmentKind::Head;
    let asked = head.asked.distance_from(numbers(&copy.packet).1);
    let asked = asked.filter(|_| is_head);
    let asked = asked.map_or(0, |ahead| ahead.min((1 << 24) - 1));
    let flags = u32::from(copy.flags.byte()) | asked << 8;
    [low, high, flags, after, lengths[1] << 16 | lengths[0]]
}

/// Sequence and acknowledgement numbers of a packet.
fn numbers(packet: &Packet) -> (SeqNumber, SeqNumber) {
    let packet = IpPacket::parse(&packet.bytes).expect("an IP packet");
    let segment = Segment::of(&packet).expect("a segment");
    (segment.seq(), segment.ack())
}

/// The read cursors, mapped as in a process of the service.
fn mapped(cursors: BorrowedFd<'_>) -> ReadCursors<'static> {
    let length = size_of::<[north_abi::read_cursors::ReadCursor; READ_CURSORS]>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping.
    let at = unsafe {
        mmap(
            std::ptr::null_mut(),
            length,
            access,
            Mapping::SHARED,
            cursors,
            0,
        )
    };
    let at = at.expect("it can be mapped");
    // SAFETY: the mapping stays, has this size, and holds only atomics, for which any value is
    // valid.
    ReadCursors(unsafe { &*at.cast() })
}

fn decode(record: &[u8]) -> RingFrame {
    let frame = mirror::MirrorFrame::decode(record).expect("the logger understands it");
    RingFrame {
        kind: frame.kind,
        flow_id: frame.flow_id.0,
        server_nxt: frame.server_nxt,
        server_ack: frame.server_ack,
        packet_len: frame.packet_len,
        unfinished: frame.unfinished,
        packet: frame.packet.to_vec(),
        version: record[4],
        room: record.len(),
    }
}

fn empty(map: &MapHandle) {
    for key in map.keys().collect::<Vec<_>>() {
        map.delete(&key).expect("nobody else deletes");
    }
}

/// The value of a map with one value.
fn read(map: &MapHandle) -> Vec<u8> {
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
    value.expect("readable").expect("an array has it")
}

fn write(map: &MapHandle, value: &[u8]) {
    let zero = 0u32.to_ne_bytes();
    map.update(&zero, value, MapFlags::ANY).expect("writable");
}
