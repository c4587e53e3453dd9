//! A small vocabulary for tests: one connection, and packets of its two ends.
//!
//! Each packet that comes out of the programs is checked: the packet parses, and the checksum is
//! right for the mode.

use std::net::SocketAddr;

use protocol::{
    control::{RecordSummary, Recorded, Resume},
    link::{Handshake, SynOptions},
};
use wire::{
    ChecksumMode, ChecksumState, Flags, FlowId, FlowKey, IpPacket, Segment, SegmentSpec, SeqNumber,
    checksum,
};

use crate::{Event, Flow, MirrorFrame, Packet, Settings, SouthSide, Verdict};

pub(crate) const MARK: u32 = 0x0f70_0000;
pub(crate) const SECOND: u64 = 1_000_000_000;
const ACK: Flags = Flags::ACK;
pub(crate) const SYN: Flags = Flags::SYN;
pub(crate) const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
pub(crate) const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);
pub(crate) const RST: Flags = Flags::RST;
/// Shift of the client's windows, and of the first and the second server's.
pub(crate) const CLIENT_SCALE: u8 = 2;
pub(crate) const SERVER_SCALE: u8 = 7;
pub(crate) const LATER_SCALE: u8 = 5;

pub(crate) fn settings() -> Settings {
    Settings {
        heartbeat_timeout_ns: 10 * SECOND,
        crash_on: crate::CrashOn::Signal,
        mark: MARK,
        verify_head: 4096,
        digests: None,
        mirror_capacity: 1 << 20,
        max_flows: 16,
        max_half_open: 4,
        endpoints: vec![server_end(false), server_end(true)],
        link: false,
        read_cursors: None,
    }
}

pub(crate) fn client_end(v6: bool) -> SocketAddr {
    let text = if v6 {
        "[fd00::1]:40000"
    } else {
        "10.0.0.1:40000"
    };
    text.parse().unwrap()
}

pub(crate) fn server_end(v6: bool) -> SocketAddr {
    let text = if v6 { "[fd00::10]:80" } else { "10.0.0.10:80" };
    text.parse().unwrap()
}

/// A segment to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) seq: SeqNumber,
    pub(crate) ack: SeqNumber,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) mark: u32,
    pub(crate) mode: ChecksumMode,
}

/// An ACK without options.
pub(crate) fn segment(seq: SeqNumber, ack: SeqNumber) -> Spec {
    Spec {
        seq,
        ack,
        flags: ACK,
        window: 1000,
        options: Vec::new(),
        payload: Vec::new(),
        mark: 0,
        mode: ChecksumMode::Full,
    }
}

impl Spec {
    pub(crate) fn flags(self, flags: Flags) -> Self {
        Self { flags, ..self }
    }
    pub(crate) fn window(self, window: u16) -> Self {
        Self { window, ..self }
    }
    pub(crate) fn options(self, options: &[u8]) -> Self {
        Self {
            options: options.to_vec(),
            ..self
        }
    }
    pub(crate) fn timestamps(self, value: u32, echo: u32) -> Self {
        Self {
            options: timestamps(value, echo),
            ..self
        }
    }
    pub(crate) fn payload(self, payload: &[u8]) -> Self {
        Self {
            payload: payload.to_vec(),
            ..self
        }
    }
    pub(crate) fn mark(self, mark: u32) -> Self {
        Self { mark, ..self }
    }
    pub(crate) fn partial(self) -> Self {
        Self {
            mode: ChecksumMode::Partial,
            ..self
        }
    }

    pub(crate) fn packet(&self, source: SocketAddr, destination: SocketAddr) -> Packet {
        let mut bytes = Vec::new();
        SegmentSpec {
            source,
            destination,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            options: &self.options,
            payload: &self.payload,
        }
        .emit(&mut bytes, self.mode)
        .unwrap();
        Packet {
            bytes,
            mark: self.mark,
            ifindex: 3,
            checksum: self.mode,
        }
    }
}

pub(crate) fn timestamps(value: u32, echo: u32) -> Vec<u8> {
    [
        &[1, 1, 8, 10],
        &value.to_be_bytes()[..],
        &echo.to_be_bytes()[..],
    ]
    .concat()
}

/// MSS, SACK permitted, timestamps, window scale.
pub(crate) fn syn_options(tsval: u32, tsecr: u32, scale: u8) -> Vec<u8> {
    let stamps = &timestamps(tsval, tsecr)[2..];
    [&[2, 4, 5, 0xb4, 4, 2][..], stamps, &[1, 3, 3, scale]].concat()
}

/// Output of the programs.
#[derive(Debug, Clone)]
pub(crate) struct Out {
    pub(crate) verdict: Verdict,
    pub(crate) packet: Packet,
}

impl Out {
    pub(crate) fn segment(&self) -> Segment<'_> {
        Segment::of(&IpPacket::parse(&self.packet.bytes).unwrap()).unwrap()
    }

    fn check(self) -> Self {
        if self.verdict != Verdict::Drop {
            let packet = IpPacket::parse(&self.packet.bytes).unwrap();
            let (source, destination) = (packet.source(), packet.destination());
            let right = match self.packet.checksum {
                ChecksumMode::Full => {
                    let state = ChecksumState::of(source, destination, packet.payload());
                    state == ChecksumState::Valid
                }
                // One of 65,536 unfinished checksums is also a valid checksum.
                ChecksumMode::Partial => {
                    let len = u32::try_from(packet.payload_len()).unwrap();
                    let sum = checksum::pseudo_header(source, destination, packet.protocol(), len);
                    self.segment().checksum() == checksum::fold(sum)
                }
            };
            assert!(right, "{self:?}");
        }
        self
    }
}

/// One connection through the programs. `c` and `s` are the initial sequence numbers that client
/// and first server chose.
pub(crate) struct Lab {
    pub(crate) south: SouthSide,
    pub(crate) now: u64,
    pub(crate) key: FlowKey,
    pub(crate) c: SeqNumber,
    pub(crate) s: SeqNumber,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with(settings(), 1000, 5000, false)
    }

    pub(crate) fn with(settings: Settings, c: u32, s: u32, v6: bool) -> Self {
        let now = 100 * SECOND;
        Self {
            south: SouthSide::new(settings, now),
            now,
            key: FlowKey::new(client_end(v6), server_end(v6)),
            c: SeqNumber(c),
            s: SeqNumber(s),
        }
    }

    pub(crate) fn client_packet(&self, spec: &Spec) -> Packet {
        spec.packet(self.key.client(), self.key.server())
    }

    pub(crate) fn server_packet(&self, spec: &Spec) -> Packet {
        spec.packet(self.key.server(), self.key.client())
    }

    pub(crate) fn ingress(&mut self, mut packet: Packet) -> Out {
        let verdict = self.south.ingress(&mut packet, self.now);
        Out { verdict, packet }
    }

    pub(crate) fn egress(&mut self, mut packet: Packet) -> Out {
        let verdict = self.south.egress(&mut packet, self.now);
        Out { verdict, packet }
    }

    pub(crate) fn client(&mut self, spec: Spec) -> Out {
        let packet = self.client_packet(&spec);
        self.ingress(packet).check()
    }

    pub(crate) fn server(&mut self, spec: Spec) -> Out {
        let packet = self.server_packet(&spec);
        self.egress(packet).check()
    }

    pub(crate) fn flow(&self) -> &Flow {
        self.south.flow(&self.key).expect("the flow is known")
    }

    pub(crate) fn syn(&self) -> Spec {
        segment(self.c, SeqNumber(0))
            .flags(SYN)
            .window(64_000)
            .options(&syn_options(10, 0, CLIENT_SCALE))
    }

    pub(crate) fn syn_ack(&self) -> Spec {
        let options = syn_options(900, 10, SERVER_SCALE);
        segment(self.s, self.c + 1)
            .flags(SYN_ACK)
            .window(60_000)
            .options(&options)
    }

    /// The handshake, with timestamps 10 to 11 and 900.
    pub(crate) fn open(mut self) -> Self {
        assert_eq!(self.client(self.syn()).verdict, Verdict::Next);
        assert_eq!(self.server(self.syn_ack()).verdict, Verdict::Next);
        let third = segment(self.c + 1, self.s + 1).timestamps(11, 900);
        assert_eq!(self.client(third).verdict, Verdict::Next);
        self.flow();
        self
    }

    pub(crate) fn crash(&mut self) {
        self.south.gate(self.now);
    }

    /// A new incarnation, and the answer of the new server, which begins at `s2`, to the fabricated
    /// SYN. The replay begins with the connection; no output is compared.
    pub(crate) fn splice(&mut self, s2: SeqNumber) -> Out {
        self.splice_and_verify(s2, self.s + 1)
    }

    pub(crate) fn splice_and_verify(&mut self, s2: SeqNumber, verify_end: SeqNumber) -> Out {
        self.south.new_incarnation();
        self.south
            .splice(
                self.key,
                FlowId(1),
                self.c,
                self.s + 1,
                verify_end,
                self.now,
            )
            .unwrap();
        let options = syn_options(70, 11, LATER_SCALE);
        let answer = segment(s2, self.c + 1)
            .flags(SYN_ACK)
            .window(50_000)
            .options(&options);
        self.server(answer)
    }

    pub(crate) fn mirrored(&mut self) -> Vec<MirrorFrame> {
        std::iter::from_fn(|| self.south.take_mirror()).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.south.take_event()).collect()
    }
}

/// A record of a connection that began at `c` and `s`: a request of 100 bytes, of whose answer the
/// client was heard to have 50; 60 bytes of that are recorded.
pub(crate) fn record(
    c: SeqNumber,
    s: SeqNumber,
    v6: bool,
    timestamps: bool,
) -> (Recorded, RecordSummary) {
    let key = FlowKey::new(client_end(v6), server_end(v6));
    let beginning = Resume {
        flow: FlowId(7),
        key,
        client_isn: c,
        server_isn: s,
        instream: c + 1,
        outstream: s + 1,
        handshake: Handshake {
            tsval: 900,
            syn_window: 64_000,
            syn_flags: SYN.bits(),
            syn_options: SynOptions::new(&syn_options(10, 0, CLIENT_SCALE)).unwrap(),
            window_scale: SERVER_SCALE,
            client_scale: CLIENT_SCALE,
            timestamps,
            sack: true,
            whole_segments: false,
        },
    };
    let recorded = Recorded {
        beginning,
        acknowledged: 50,
        tsval: 20,
        tsecr: 950,
    };
    let summary = RecordSummary {
        stable_seq: c + 101,
        outstream_end: Some(s + 61),
        doubt: c + 101,
        ..RecordSummary::fresh(FlowId(7), c, s)
    };
    (recorded, summary)
}
