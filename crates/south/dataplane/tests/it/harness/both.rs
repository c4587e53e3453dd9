//! One step at a time through the kernel's programs and through the model.

use std::{ops::RangeInclusive, time::Duration};

use dataplane::{Settings, SplicePoint};
use protocol::link::SegmentKind;
use rustix::{
    thread::{CpuSet, sched_getcpu, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use south_model::{
    AckStrategy, Digest, Expect, Flow, LinkSettings, Packet, SouthSide, UnprotectedReason, Verdict,
};
use wire::{ChecksumState, FlowId, FlowKey, IpPacket, Segment, SeqNumber};

use super::{
    kernel::{
        Kernel, Leased, RingFrame, carried, linked_digesting_settings, linked_settings, settings,
    },
    seen::{as_frame, model_counters},
    segments::*,
};

/// Output of a step.
#[derive(Debug, Clone)]
pub(crate) struct Out {
    pub(crate) verdict: Verdict,
    pub(crate) packet: Packet,
}

impl Out {
    pub(crate) fn segment(&self) -> Segment<'_> {
        Segment::of(&IpPacket::parse(&self.packet.bytes).unwrap()).unwrap()
    }

    /// A segment that goes anywhere has a checksum that verifies.
    fn check(self) -> Self {
        if !matches!(self.verdict, Verdict::Drop | Verdict::Withheld) {
            let bytes = without_jumbo_header(&self.packet.bytes);
            let packet = IpPacket::parse(&bytes).unwrap();
            let state = ChecksumState::of(packet.source(), packet.destination(), packet.payload());
            assert_eq!(state, ChecksumState::Valid, "{self:?}");
        }
        self
    }
}

/// The clock of the programs, in nanoseconds (`bpf_ktime_get_ns`).
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).expect("it began at 0")
}

/// Difference of the model's clock and the programs' clock: a heartbeat of ten minutes ago is no
/// negative time on a machine that has just started.
const AHEAD: u64 = 1_000_000_000_000;

/// The model's time now.
fn now() -> u64 {
    AHEAD + monotonic()
}

/// The model's time of a packet that the programs have judged within `span`. The time that the programs took for now is
/// in a flow, if the programs have decided anything by that time: a second may be over for the programs, and not at
/// the beginning of `span`.
fn time_of(flows: &[(FlowKey, Flow)], span: &RangeInclusive<u64>) -> u64 {
    let stamps = flows.iter().flat_map(|(_, flow)| {
        let log = &flow.log;
        [
            flow.closed_ns,
            flow.given_ns,
            log.copied_ns,
            log.early_ack_ns,
        ]
    });
    let now = stamps.filter(|stamp| span.contains(stamp)).max();
    AHEAD + now.unwrap_or(*span.start())
}

/// From now on this thread stays on this processor: the next program must find the state that a
/// program leaves there.
fn stay_here() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).expect("it is there");
}

/// The kernel and the model, and one connection: `c` and `s` are the initial sequence numbers
/// that client and first server choose.
pub(crate) struct Both {
    pub(crate) kernel: Leased,
    pub(crate) model: SouthSide,
    counted: Vec<(&'static str, u64)>,
    pub(crate) key: FlowKey,
    pub(crate) c: SeqNumber,
    pub(crate) s: SeqNumber,
    /// No logger reads the mirror ring: the ring fills.
    pub(crate) logger_hangs: bool,
    frames: Vec<RingFrame>,
    events: Vec<south_model::EventKind>,
    /// Mirrored segments, each with the packet that left, if that packet had to be read at once.
    copies: Vec<(south_model::Copy, Option<Packet>)>,
}

impl Both {
    pub(crate) fn new() -> Self {
        Self::numbered(1000, 5000, false)
    }

    /// With these initial sequence numbers of client and server.
    pub(crate) fn numbered(c: u32, s: u32, v6: bool) -> Self {
        let both = Self::on(Leased::new(), &settings());
        Self {
            key: FlowKey::new(client_end(v6, 0), server_end(v6)),
            c: SeqNumber(c),
            s: SeqNumber(s),
            ..both
        }
    }

    /// With other settings than usual.
    pub(crate) fn with(settings: &Settings) -> Self {
        let both = Self::on(Kernel::load(settings).into(), settings);
        Self {
            c: SeqNumber(1000),
            s: SeqNumber(5000),
            ..both
        }
    }

    /// With a log link in the initial state.
    pub(crate) fn linked() -> Self {
        Self::on(Leased::linked(), &linked_settings())
    }

    /// The same with digests of all.
    pub(crate) fn linked_and_digesting() -> Self {
        Self::on(Leased::linked_and_digesting(), &linked_digesting_settings())
    }

    /// Programs that are loaded already and have no connections.
    pub(crate) fn on(kernel: Leased, settings: &Settings) -> Self {
        stay_here();
        let model = SouthSide::new(
            south_model::Settings {
                heartbeat_timeout_ns: u64::try_from(settings.heartbeat_timeout.as_nanos()).unwrap(),
                crash_on: settings.crash_on,
                mark: settings.mark,
                verify_head: settings.verify_head,
                digests: settings.digests.clone(),
                mirror_capacity: usize::try_from(settings.mirror_bytes).unwrap(),
                max_flows: usize::try_from(settings.max_flows).unwrap(),
                max_half_open: 16_384,
                endpoints: settings.addresses.clone(),
                link: settings.link,
                read_cursors: settings.read_cursors,
            },
            now(),
        );
        let counted = kernel.plane().counters().expect("readable").named();
        Self {
            kernel,
            model,
            counted,
            key: FlowKey::new(client_end(false, 0), server_end(false)),
            c: SeqNumber(0),
            s: SeqNumber(0),
            logger_hangs: false,
            frames: Vec::new(),
            events: Vec::new(),
            copies: Vec::new(),
        }
    }

    // Packets.

    pub(crate) fn ingress(&mut self, packet: Packet) -> Out {
        self.pass(packet, Kernel::ingress, SouthSide::ingress)
    }

    pub(crate) fn egress(&mut self, packet: Packet) -> Out {
        self.pass(packet, Kernel::egress, SouthSide::egress)
    }

    fn pass(
        &mut self,
        packet: Packet,
        kernel: impl Fn(&Kernel, &mut Packet) -> Verdict,
        model: impl Fn(&mut SouthSide, &mut Packet, u64) -> Verdict,
    ) -> Out {
        let mut seen = packet.clone();
        let mut wanted = packet.clone();
        self.take_copies();
        let before = self.copies.len();
        let start = monotonic();
        let verdict = kernel(&self.kernel, &mut seen);
        let span = start..=monotonic();
        let flows = self.kernel.plane().flows().expect("readable");
        let want = model(&mut self.model, &mut wanted, time_of(&flows, &span));
        self.take_copies();
        if let Some((copy, _)) = self.copies.get(before..).and_then(<[_]>::last) {
            let [seen, wanted] = [self.kernel.carried(), carried(copy)];
            // Lengths are a head's.
            let count = match copy.flags.kind {
                SegmentKind::Head => 5,
                _ => 4,
            };
            assert_eq!(
                seen[..count],
                wanted[..count],
                "what is said with {copy:x?}"
            );
        }
        assert_eq!(verdict, want, "verdicts of kernel and model on {packet:x?}");
        assert_eq!(
            seen, wanted,
            "packets of kernel and model, which came as {packet:x?}"
        );
        self.agree();
        Out {
            verdict,
            packet: seen,
        }
    }

    pub(crate) fn client(&mut self, spec: Spec) -> Out {
        let packet = spec.packet(self.key.client(), self.key.server());
        self.ingress(packet).check()
    }

    pub(crate) fn server(&mut self, spec: Spec) -> Out {
        let packet = spec.packet(self.key.server(), self.key.client());
        self.egress(packet).check()
    }

    // Control.

    pub(crate) fn gate(&mut self) {
        self.kernel.plane().gate().expect("it runs");
        self.model.gate(now());
        self.agree();
    }

    pub(crate) fn new_incarnation(&mut self) {
        self.kernel.plane().new_incarnation().expect("it runs");
        self.model.new_incarnation();
        self.agree();
    }

    /// The lease goes on for ever, is over, or (`None`) is not needed.
    pub(crate) fn lease(&mut self, goes_on: Option<bool>) {
        let end = goes_on.map(|goes_on| if goes_on { u64::MAX } else { 0 });
        let fence = self.kernel.plane().fence().expect("it is there");
        let set = fence.set_lease(end.map(Duration::from_nanos));
        set.expect("it runs");
        self.model.set_lease(end);
        self.agree();
    }

    pub(crate) fn recovered(&mut self) {
        self.kernel.plane().recovered().expect("it runs");
        self.model.recovered();
        self.agree();
    }

    pub(crate) fn heartbeat(&mut self) {
        self.kernel.plane().heartbeat().expect("it runs");
        self.model.heartbeat(now());
        self.agree();
    }

    /// `serve` is silent for longer than the heartbeat timeout.
    pub(crate) fn fall_silent(&mut self) {
        let silence = settings().heartbeat_timeout + Duration::from_secs(1);
        self.kernel.age_heartbeat(silence);
        let silence = u64::try_from(silence.as_nanos()).unwrap();
        self.model.heartbeat(now() - silence);
        self.agree();
    }

    /// Returns whether there is such a flow.
    pub(crate) fn splice_at(&mut self, key: FlowKey, point: SplicePoint) -> bool {
        let SplicePoint {
            instream,
            outstream,
            verify_end,
        } = point;
        let flow = self.number(key);
        let model = self
            .model
            .splice(key, flow, instream, outstream, verify_end, now())
            .is_ok();
        self.refused(model, self.kernel.plane().splice(key, flow, point))
    }

    /// The same for a socket that was made at the client's numbers.
    pub(crate) fn graft_at(&mut self, key: FlowKey, point: SplicePoint, window: u32) -> bool {
        let flow = self.number(key);
        let (instream, outstream) = (point.instream, point.outstream);
        let model = self
            .model
            .graft(key, flow, instream, outstream, window, now())
            .is_ok();
        self.refused(model, self.kernel.plane().graft(key, flow, point, window))
    }

    /// Another host has told the client this.
    pub(crate) fn inherit_digest(&mut self, key: FlowKey, said: Digest, turn: Digest) -> bool {
        let flow = self.number(key);
        let model = self.model.inherit_digest(key, flow, said, turn).is_ok();
        self.refused(
            model,
            self.kernel.plane().inherit_digest(key, flow, said, turn),
        )
    }

    /// A request waits until the server has said this again.
    pub(crate) fn want(&mut self, key: FlowKey, digest: Digest) -> bool {
        let flow = self.number(key);
        let model = self.model.want(key, flow, digest).is_ok();
        self.refused(model, self.kernel.plane().want(key, flow, digest))
    }

    pub(crate) fn abandon(&mut self, key: FlowKey) -> bool {
        self.abandon_numbered(key, self.number(key))
    }

    /// The number of the connection with these ends; of none, if there is no such connection.
    fn number(&self, key: FlowKey) -> FlowId {
        self.model.flow(&key).map_or(FlowId(0), |flow| flow.id)
    }

    /// As [`Both::abandon`], for a connection that may no longer be there.
    pub(crate) fn abandon_numbered(&mut self, key: FlowKey, flow: FlowId) -> bool {
        let model = self.model.abandon(key, flow, now()).is_ok();
        self.refused(model, self.kernel.plane().abandon(key, flow))
    }

    pub(crate) fn unprotect(&mut self, key: FlowKey, reason: UnprotectedReason) -> bool {
        let flow = self.number(key);
        let model = self.model.unprotect(key, flow, reason).is_ok();
        let kernel = self.kernel.plane().unprotect(key, flow, reason.code());
        self.refused(model, kernel)
    }

    /// Returns whether there is such a handshake.
    pub(crate) fn refuse(&mut self, flow: FlowId, reason: UnprotectedReason) -> bool {
        let model = self.model.refuse(flow, reason);
        let kernel = self.kernel.plane().refuse(flow, reason.code());
        assert_eq!(model, kernel.as_ref().ok().copied());
        self.refused(model.is_some(), kernel.map(drop))
    }

    pub(crate) fn barrier(&mut self, token: u64) -> bool {
        let model = self.model.barrier(token, now()).is_ok();
        self.refused(model, self.kernel.plane().barrier(token))
    }

    fn refused(&mut self, model: bool, kernel: Result<(), dataplane::DataplaneError>) -> bool {
        assert_eq!(kernel.is_ok(), model, "kernel: {kernel:?}");
        self.agree();
        model
    }

    /// Returns how many flows are gone.
    pub(crate) fn sweep(&mut self) -> u64 {
        let model = self.model.sweep(0, now() + 1);
        let kernel = self.kernel.plane().sweep(Duration::ZERO).expect("it runs");
        assert_eq!(kernel, u64::try_from(model).unwrap());
        self.agree();
        kernel
    }

    pub(crate) fn expect(&mut self, flow: FlowId, chunks: Vec<(u32, Expect)>) {
        self.kernel.expect(flow, &chunks);
        self.model.expect(flow, chunks);
    }

    pub(crate) fn forget_expected(&mut self, flow: FlowId, chunks: &[u32]) {
        let numbers = chunks.iter().copied();
        self.kernel
            .plane()
            .forget_expected(flow, numbers.clone())
            .expect("it runs");
        self.model.forget_expected(flow, numbers);
    }

    /// Something that reaches the kernel's programs by a tracepoint has happened; tell the model.
    pub(crate) fn happened(&mut self, tell: impl FnOnce(&mut SouthSide, u64)) {
        tell(&mut self.model, now());
        self.agree();
    }

    // The log link.

    /// A process of the service advances the read cursor of the connection with these ends.
    pub(crate) fn advance_cursor(&mut self, key: FlowKey, isn: SeqNumber, seq: SeqNumber) {
        if self.kernel.advance_cursor(key, isn, seq) {
            self.model.advance_read_cursor(key, isn, seq);
        }
    }

    pub(crate) fn set_link(&mut self, link: LinkSettings) {
        let keys = link.keys;
        let settings = dataplane::LinkSettings {
            digests: link.digests,
            local: link.local,
            remote: link.remote,
            version: keys.version,
            slot: keys.slot.number(),
            up: keys.up.0,
            down: keys.down.0,
            mtu: link.mtu,
            strategy: match link.strategy {
                AckStrategy::Basic => dataplane::AckStrategy::Basic,
                AckStrategy::Lazy => dataplane::AckStrategy::Lazy,
                AckStrategy::Eager => dataplane::AckStrategy::Eager,
                AckStrategy::Conditional => dataplane::AckStrategy::Conditional,
            },
        };
        self.kernel.plane().set_link(&settings).expect("it runs");
        self.model.set_link(link);
    }

    pub(crate) fn link_up(&mut self, up: bool) {
        self.kernel.plane().link_up(up).expect("it runs");
        self.model.link_up(up);
        self.agree();
    }

    /// Returns whether the flow had lost the logger.
    pub(crate) fn reprotect(&mut self, key: FlowKey) -> bool {
        let flow = self.number(key);
        let model = self.model.reprotect(key, flow).unwrap_or(false);
        self.refused(model, self.kernel.plane().reprotect(key, flow))
    }

    /// A host without flows gets a connection from a record.
    pub(crate) fn restore(&mut self, key: FlowKey, flow: &Flow) {
        let next = FlowId(flow.id.0 + 1);
        self.kernel.plane().number_from(next).expect("it runs");
        self.model.number_from(next);
        self.kernel.plane().restore(key, flow).expect("it is new");
        self.model.restore(key, flow.clone());
        self.agree();
    }

    /// The mirrored segments that left since the last call, in the form on the interface of the
    /// link.
    pub(crate) fn copies(&mut self) -> Vec<Packet> {
        self.take_copies();
        let copies = std::mem::take(&mut self.copies);
        let wrapped = copies.into_iter().map(|(copy, seen)| {
            let wanted = self.model.wrap(&copy).expect("it is a segment");
            let seen = seen.unwrap_or_else(|| self.kernel.wrap(&copy));
            assert_eq!(seen, wanted, "copies of kernel and model");
            seen
        });
        wrapped.collect()
    }

    fn take_copies(&mut self) {
        let made = std::iter::from_fn(|| self.model.take_copy());
        // The program that has made a mirrored digest leaves the digest on the processor.
        let seen = made.map(|copy| {
            let seen = copy.digest.map(|_| self.kernel.wrap(&copy));
            (copy, seen)
        });
        self.copies.extend(seen);
    }

    // The flow in both.

    pub(crate) fn flow(&self) -> &Flow {
        self.model.flow(&self.key).expect("the flow is known")
    }

    /// The mirror frames since the last call.
    pub(crate) fn frames(&mut self) -> Vec<RingFrame> {
        std::mem::take(&mut self.frames)
    }

    /// The events since the last call.
    pub(crate) fn events(&mut self) -> Vec<south_model::EventKind> {
        std::mem::take(&mut self.events)
    }

    /// By how much the counter called `name` has grown since the programs were loaded.
    pub(crate) fn counted(&self, name: &str) -> u64 {
        let counters = self.kernel.plane().counters().expect("readable");
        grown(&self.counted, &counters.named(), name)
    }

    /// The logger reads again.
    pub(crate) fn resume_logger(&mut self) {
        self.logger_hangs = false;
        self.agree();
    }

    /// After each step: everything that can be seen of the two is equal.
    fn agree(&mut self) {
        let mut kernel = self.kernel.plane().flows().expect("readable");
        let mut model: Vec<(FlowKey, Flow)> = self
            .model
            .flows()
            .map(|(key, flow)| (*key, flow.clone()))
            .collect();
        for list in [&mut kernel, &mut model] {
            list.sort_by_key(|(key, _)| *key);
            for (_, flow) in list {
                flow.closed_ns = flow.closed_ns.min(1); // two clocks
                flow.given_ns = flow.given_ns.min(1);
                flow.log.copied_ns = flow.log.copied_ns.min(1);
                flow.log.early_ack_ns = flow.log.early_ack_ns.min(1);
            }
        }
        assert_eq!(kernel, model, "flows of kernel and model");
        assert_eq!(self.kernel.half_open(), self.model.half_open(), "half_open");
        let events: Vec<_> = self.kernel.take_events();
        let wanted: Vec<_> = std::iter::from_fn(|| self.model.take_event()).collect();
        let wanted_seen: Vec<_> = wanted.iter().map(|e| (e.incarnation, e.kind)).collect();
        let seen: Vec<_> = events.iter().map(|e| (e.incarnation, e.kind)).collect();
        assert_eq!(seen, wanted_seen, "events of kernel and model");
        self.events.extend(wanted.iter().map(|event| event.kind));
        if !self.logger_hangs {
            let frames = self.kernel.take_frames();
            let wanted: Vec<_> = std::iter::from_fn(|| self.model.take_mirror()).collect();
            let wanted: Vec<_> = wanted.into_iter().map(as_frame).collect();
            let as_of_model = |frame: &RingFrame| RingFrame {
                version: 0,
                room: 0,
                ..frame.clone()
            };
            let seen: Vec<_> = frames.iter().map(as_of_model).collect();
            assert_eq!(seen, wanted, "mirror frames of kernel and model");
            self.frames.extend(frames);
        }
        let counters = self.kernel.plane().counters().expect("readable").named();
        for (name, wanted) in model_counters(&self.model) {
            let seen = grown(&self.counted, &counters, name);
            assert_eq!(seen, wanted, "counter {name}");
        }
    }
}

/// By how much the counter called `name` has grown.
fn grown(before: &[(&str, u64)], after: &[(&str, u64)], name: &str) -> u64 {
    let [before, after] = [before, after].map(|list| {
        let counter = list.iter().find(|(other, _)| *other == name);
        counter.expect("it exists").1
    });
    after - before
}

/// The usual steps of one connection.
impl Both {
    pub(crate) fn syn(&self) -> Spec {
        segment(self.c, SeqNumber(0))
            .flags(SYN)
            .window(64_000)
            .options(&syn_options(10, 0, CLIENT_SCALE))
    }

    pub(crate) fn syn_ack(&self) -> Spec {
        segment(self.s, self.c + 1)
            .flags(SYN_ACK)
            .window(60_000)
            .options(&syn_options(900, 10, SERVER_SCALE))
    }

    /// The handshake, with timestamps 10 to 11 and 900.
    pub(crate) fn open(mut self) -> Self {
        assert_eq!(self.client(self.syn()).verdict, Verdict::Next);
        assert_eq!(self.server(self.syn_ack()).verdict, Verdict::Next);
        let third = segment(self.c + 1, self.s + 1).timestamps(11, 900);
        assert_eq!(self.client(third).verdict, Verdict::Next);
        assert_eq!(self.flow().id, FlowId(1));
        self
    }

    /// The handshake without any options.
    pub(crate) fn open_bare(mut self) -> Self {
        self.client(self.syn().options(&[]));
        self.server(self.syn_ack().options(&[]));
        self.client(segment(self.c + 1, self.s + 1));
        assert_eq!(self.flow().id, FlowId(1));
        self
    }

    /// A new incarnation, and a flow ready for the fabricated SYN; replay begins with the
    /// connection.
    pub(crate) fn revive(&mut self, verify_end: SeqNumber) {
        self.gate();
        self.new_incarnation();
        let point = SplicePoint {
            instream: self.c,
            outstream: self.s + 1,
            verify_end,
        };
        assert!(self.splice_at(self.key, point));
    }

    /// The answer of the new server, which begins at `s2`, to the fabricated SYN.
    pub(crate) fn second_syn_ack(&self, s2: SeqNumber) -> Spec {
        segment(s2, self.c + 1)
            .flags(SYN_ACK)
            .window(50_000)
            .options(&syn_options(70, 11, LATER_SCALE))
    }

    /// The whole splice. No output is compared.
    pub(crate) fn splice(&mut self, s2: SeqNumber) -> Out {
        self.revive(self.s + 1);
        let out = self.server(self.second_syn_ack(s2));
        assert_eq!(out.verdict, Verdict::RedirectIngress);
        out
    }
}

/// Another connection, of the same or the other family.
pub(crate) fn other_key(v6: bool, number: u16) -> FlowKey {
    FlowKey::new(client_end(v6, number), server_end(v6))
}
