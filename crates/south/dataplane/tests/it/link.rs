//! The log link: datagrams to the logger, and the effects of acknowledgements.

mod clamp;
mod detour;
mod heads;
mod keys;
mod lease;
mod output_digest;
mod read_cursors;
pub(crate) mod restored;
mod retransmissions;

use protocol::link::{
    Ack, KeySet, KeySlot, LinkKey, LinkKeys, Open, Probe, ProbeKind, SegmentKind, SegmentView,
    heads_digest,
};
use south_model::{AckStrategy, LinkSettings, Packet, UnprotectedReason};
use wire::{ChecksumMode, Flags, FlowId, IpPacket, Segment, SeqNumber, checksum};

use crate::harness::*;

const UP: LinkKey = LinkKey([7; 16]);
const DOWN: LinkKey = LinkKey([9; 16]);
const MTU: u16 = 1500;

pub(crate) fn link(strategy: AckStrategy, v6: bool) -> LinkSettings {
    let end = |text: &str| text.parse().unwrap();
    LinkSettings {
        local: end(if v6 {
            "[fd00::20]:9000"
        } else {
            "10.0.0.20:9000"
        }),
        remote: end(if v6 {
            "[fd00::99]:7600"
        } else {
            "10.0.0.99:7600"
        }),
        keys: LinkKeys {
            version: protocol::link::VERSION,
            slot: KeySlot::One,
            up: UP,
            down: DOWN,
        },
        mtu: MTU,
        strategy,
        digests: true,
    }
}

fn keys(key: LinkKey) -> KeySet {
    let mut keys = KeySet::EMPTY;
    keys.put(KeySlot::One, key);
    keys
}

/// A UDP packet between the two ends of the link.
pub(crate) fn datagram(link: &LinkSettings, to_logger: bool, payload: &[u8]) -> Packet {
    let (from, to) = if to_logger {
        (link.local, link.remote)
    } else {
        (link.remote, link.local)
    };
    let mut udp = Vec::new();
    let len = u16::try_from(payload.len() + 8).unwrap();
    for field in [from.port(), to.port(), len, 0] {
        udp.extend(field.to_be_bytes());
    }
    udp.extend(payload);
    let bytes = match (from.ip(), to.ip()) {
        (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
            let total = (len + 20).to_be_bytes();
            let mut header = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0];
            header.extend(from.octets());
            header.extend(to.octets());
            let sum = !checksum::fold(checksum::sum(&header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        }
        (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
            let len = len.to_be_bytes();
            let mut header = vec![0x60, 0, 0, 0, len[0], len[1], 17, 64];
            header.extend(from.octets());
            header.extend(to.octets());
            header
        }
        _ => unreachable!("one family"),
    };
    Packet {
        bytes: [bytes, udp].concat(),
        mark: 0,
        ifindex: IFINDEX,
        checksum: ChecksumMode::Full,
    }
}

/// A service with a log link, whose logger the test plays.
struct Linked {
    both: Both,
    link: LinkSettings,
    counter: u64,
}

impl Linked {
    fn new(strategy: AckStrategy) -> Self {
        Self::over(strategy, false, false)
    }

    /// The connection's, and the link's IP version.
    fn over(strategy: AckStrategy, v6: bool, link_v6: bool) -> Self {
        Self::on(Both::linked(), strategy, v6, link_v6)
    }

    fn on(mut both: Both, strategy: AckStrategy, v6: bool, link_v6: bool) -> Self {
        both.s = SeqNumber(5000);
        both.key = other_key(v6, 0);
        both.c = CLIENT_ISN;
        let link = link(strategy, link_v6);
        both.set_link(link);
        both.link_up(true);
        let mut linked = Self {
            both,
            link,
            counter: 0,
        };
        linked.probe();
        linked
    }

    /// A new server, which has to repeat the whole record. Returns the initial sequence number of
    /// that server.
    fn splice_to_new_server(&mut self) -> SeqNumber {
        self.both.new_incarnation();
        let (c, s) = (self.both.c, self.both.s);
        let point = dataplane::SplicePoint {
            instream: c,
            outstream: s + 1,
            verify_end: s + 1,
        };
        assert!(self.both.splice_at(self.both.key, point));
        let theirs = SeqNumber(77_000);
        let synack = segment(theirs, c + 1)
            .flags(SYN_ACK)
            .window(50_000)
            .options(&syn_options(70, 33, LATER_SCALE));
        assert_eq!(self.both.server(synack).verdict, Verdict::RedirectIngress);
        theirs
    }

    /// `serve` sends a probe, and the programs learn the path.
    fn probe(&mut self) {
        let probe = Probe {
            version: protocol::link::VERSION,
            kind: ProbeKind::Probe,
            slot: KeySlot::One,
            counter: 1,
        };
        let probe = datagram(&self.link, true, &probe.encode(&UP));
        let out = self.both.egress(probe.clone());
        assert_eq!((out.verdict, out.packet), (Verdict::Next, probe));
    }

    /// The logger's word.
    fn word(&mut self, stable: u32, ranges: &[(u32, u32)]) -> Ack {
        self.counter += 1;
        let mut all = [None; 3];
        for (place, (start, end)) in all.iter_mut().zip(ranges) {
            *place = Some((self.both.c + *start, self.both.c + *end));
        }
        Ack {
            version: protocol::link::VERSION,
            slot: KeySlot::One,
            counter: self.counter,
            flow: FlowId(1),
            key: self.both.key,
            stable_seq: self.both.c + stable,
            ranges: all,
        }
    }

    /// The logger has all input before `stable`, and these ranges; relative to the client's ISN.
    fn logged(&mut self, stable: u32, ranges: &[(u32, u32)]) -> Out {
        let word = self.word(stable, ranges);
        self.hear(&word)
    }

    fn hear(&mut self, word: &Ack) -> Out {
        self.both
            .ingress(datagram(&self.link, false, &word.encode(&DOWN)))
    }

    /// The handshake, with the detour.
    fn open(mut self) -> Self {
        assert_eq!(self.both.client(self.both.syn()).verdict, Verdict::Next);
        let (open, _) = self.answer();
        assert_eq!(open.flow, FlowId(1));
        let out = self.logged(1, &[]);
        assert_eq!(out.verdict, Verdict::Redirect);
        let third = segment(self.both.c + 1, self.both.s + 1).timestamps(11, 900);
        assert_eq!(self.both.client(third).verdict, Verdict::Next);
        assert_eq!(self.both.flow().id, FlowId(1));
        assert!(
            self.both.frames().is_empty(),
            "the ring holds no handshakes"
        );
        let copies = self.both.copies();
        let payload = self.payload(&copies[0]);
        let view = SegmentView::parse(&payload).unwrap();
        assert!(view.segment().payload().is_empty(), "the handshake's end");
        assert!(view.flags().kind != SegmentKind::Turn);
        self
    }

    /// The server's SYN-ACK: returns the datagram that goes to the logger instead of the client.
    fn answer(&mut self) -> (Open, Vec<u8>) {
        let packet = self
            .both
            .syn_ack()
            .packet(self.both.key.server(), self.both.key.client());
        let out = self.both.egress(packet);
        assert_eq!(out.verdict, Verdict::Redirect);
        let payload = self.payload(&out.packet);
        let open = Open::decode(&payload, &keys(UP)).expect("the logger understands it");
        (open, payload[protocol::link::OPEN_LEN..].to_vec())
    }

    /// Of a packet to the logger.
    fn payload(&self, packet: &Packet) -> Vec<u8> {
        let v6 = self.link.remote.is_ipv6();
        let (headers, payload) = packet.bytes.split_at(if v6 { 48 } else { 28 });
        let whole = datagram(&self.link, true, payload);
        let mut wanted = whole.bytes[..headers.len()].to_vec();
        if !v6 {
            wanted[6] = 0x40; // the kernel's are not to be fragmented
            wanted[10..12].fill(0);
            let sum = !checksum::fold(checksum::sum(&wanted[..20]));
            wanted[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        assert_eq!(headers, wanted);
        payload.to_vec()
    }

    /// The client sends `payload` at `at`, relative to the client's ISN.
    fn says(&mut self, at: u32, payload: &[u8]) -> Verdict {
        let segment = segment(self.both.c + at, self.both.s + 1)
            .timestamps(20 + at, 901)
            .payload(payload);
        self.both.client(segment).verdict
    }

    /// The server's pure ACK, relative to the client's ISN.
    fn server_acks(&mut self, ack: u32) -> Out {
        let segment = segment(self.both.s + 1, self.both.c + ack).timestamps(902, 20);
        self.both.server(segment)
    }
}

/// The client's initial sequence number in these tests: in the upper half of the sequence space,
/// and most numbers wrap to 0.
const CLIENT_ISN: SeqNumber = SeqNumber(u32::MAX - 150);

/// The client's view: acknowledgement, window and SACK blocks, relative to the client's ISN.
fn told(out: &Out) -> (u32, u32, Vec<(u32, u32)>) {
    let segment = out.segment();
    let from = |seq: SeqNumber| seq.0.wrapping_sub(CLIENT_ISN.0);
    let blocks = segment.options().find_map(|option| match option {
        Ok(wire::TcpOption::Sack(blocks)) => Some(blocks),
        _ => None,
    });
    let blocks = blocks.iter().flat_map(|blocks| blocks.as_slice());
    let window = u32::from(segment.window()) << SERVER_SCALE;
    (
        from(segment.ack()),
        window,
        blocks
            .map(|block| (from(block.left), from(block.right)))
            .collect(),
    )
}
