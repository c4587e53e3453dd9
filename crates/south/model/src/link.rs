//! The log link (`link.h`): a logger on another machine keeps the record (FT-TCP, sections II and
//! IV).
//!
//! | | |
//! |---|---|
//! | a client's segment | is mirrored to the logger: [`SouthSide::take_copy`] |
//! | the head of a response | goes to the logger before the client gets the segment, cut to the size of a datagram |
//! | a client has acknowledged a response longer than the head | the digest goes to the logger, before later input |
//! | the server's SYN-ACK | goes to the logger, and to the client when the handshake is recorded (IV.B) |
//! | acknowledgement of the logger | `stable_seq` of the flow; the packet becomes the client's ACK, if the strategy |
//! | | says so (`clamp`) |
//!
//! [`protocol::link`] has the formats. A segment that cannot be mirrored is not delivered.

use std::net::{IpAddr, SocketAddr};

use protocol::{
    Digest,
    link::{
        ACK_LEN, Ack, Handshake, Head, KeySet, Kind, LinkKeys, Open, SegmentFlags, SegmentKind,
        Signer, SynOptions, seal, seal_head, seal_said,
    },
};
use types::UnprotectedReason;
use wire::{ChecksumMode, Flags, FlowId, FlowKey, MIN_TCP_HEADER, SeqNumber, checksum};

use crate::{
    flow::{Flow, Mode, Restored},
    packet::{Options, Packet, Segment, array, write},
    read_cursors::progress_step,
    south::{MARK_SEGMENT, MARK_TO_LOGGER, Shared, SouthSide, Verdict},
};

const UDP: u8 = 17;
const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;

/// The logger learns the acknowledgement of a client that only listens, so that another host can
/// send at the right place after a crash of this host. The logger lags at most this far behind,
/// bytes, or half of the client's window.
pub(crate) const PROGRESS: u32 = 64 * 1024;

/// Behind the payload of a head: how far the client had sent when the response began, bytes.
const REQUEST_END_BYTES: usize = 4;

/// How ACKs of the server's TCP and of the logger become ACKs to the client. Either may be earlier
/// (FT-TCP IV.F).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AckStrategy {
    /// The server's next segment acknowledges the logged input.
    Basic,
    /// Pure ACKs wait until all acknowledged input is logged.
    Lazy,
    /// An ACK of the logger becomes an ACK to the client at once, if the number is new.
    #[default]
    Eager,
    /// As [`AckStrategy::Eager`], if the logger has the client's newest byte.
    Conditional,
}

/// The two ends of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkSettings {
    /// Where the probes come from.
    pub local: SocketAddr,
    /// The logger's end.
    pub remote: SocketAddr,
    /// The keys to use from now on. Keys in the other slot stay valid.
    pub keys: LinkKeys,
    /// The largest IP packet that the link carries, bytes.
    pub mtu: u16,
    /// Handling of acknowledgements.
    pub strategy: AckStrategy,
    /// The logger takes digests of outstreams.
    pub digests: bool,
}

/// The link, as the programs know the link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) settings: LinkSettings,
    up: KeySet,
    down: KeySet,
}

impl Link {
    fn overhead(&self) -> usize {
        UDP_HEADER
            + if self.settings.remote.ip().to_canonical().is_ipv4() {
                V4_HEADER
            } else {
                V6_HEADER
            }
    }
}

/// A mirrored segment on the way to the interface of the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// The packet, with the mark for the link.
    pub packet: Packet,
    /// The connection.
    pub flow_id: FlowId,
    /// Flags of the SEGMENT.
    pub flags: SegmentFlags,
    /// The end of the newest head (or the read cursor, or the end of the client's data from a dead
    /// host); of a head, all fields.
    pub head: Head,
    /// The digest in this SEGMENT.
    pub digest: Option<Digest>,
}

/// A segment to a client that an ACK of the logger has made due.
enum Due {
    /// Acknowledges recorded bytes.
    Ack(FlowKey, SeqNumber),
    /// Completes the first half of a recorded handshake.
    SynAck(FlowKey),
}

impl SouthSide {
    /// Use this link from now on.
    pub fn set_link(&mut self, settings: LinkSettings) {
        let (mut up, mut down) = match &self.shared.link {
            Some(link) => (link.up, link.down),
            None => (KeySet::EMPTY, KeySet::EMPTY),
        };
        let keys = &settings.keys;
        up.put(keys.slot, keys.up);
        down.put(keys.slot, keys.down);
        self.shared.link = Some(Link { settings, up, down });
    }

    /// Whether there is a logger.
    pub fn link_up(&mut self, up: bool) {
        self.shared.service.link_up = up;
        if up {
            // Another logger counts acknowledgements from the beginning.
            for flow in self.flows.values_mut() {
                flow.log.counter = 0;
            }
        }
    }

    /// The next mirrored segment. The segment leaves through the interface of the link, where
    /// [`SouthSide::wrap`] makes the datagram.
    pub fn take_copy(&mut self) -> Option<Copy> {
        self.shared.copies.pop_front()
    }

    /// The datagram of a mirrored segment. `None`: no datagram leaves.
    #[must_use]
    pub fn wrap(&self, copy: &Copy) -> Option<Packet> {
        let link = self.shared.link?;
        let (flags, slot) = (copy.flags, copy.flags.slot);
        let (bytes, key) = (&copy.packet.bytes, link.up.get(slot)?);
        let signer = Signer {
            version: flags.version,
            slot,
            key,
        };
        let mut datagram = Vec::new();
        let id = copy.flow_id;
        let sealed = match (flags.kind, copy.digest) {
            (SegmentKind::Said, Some(digest)) => {
                let content = (digest, copy.head.after);
                seal_said(bytes, id, content, signer, &mut datagram)
            }
            (SegmentKind::Head, _) => seal_head(bytes, id, copy.head, signer, &mut datagram),
            _ => seal(bytes, id, (flags, copy.head.after), key, &mut datagram),
        };
        sealed.ok()?;
        Some(Packet {
            bytes: wrapped(&link.settings, &datagram)?,
            mark: 0,
            ..copy.packet.clone()
        })
    }

    /// A packet without TCP leaves: a probe of `serve` shows the way to the logger.
    pub(crate) fn learn_path(&mut self, packet: &Packet) {
        if let Some(link) = self.shared.link
            && datagram(&packet.bytes, link.settings.local, link.settings.remote).is_some()
        {
            self.shared.path = Some(packet.ifindex);
        }
    }

    /// A packet without TCP arrives: the packet may bring ACKs of the logger.
    pub(crate) fn ingress_link(&mut self, packet: &mut Packet, now_ns: u64) -> Verdict {
        let Some(link) = self.shared.link else {
            return Verdict::Next;
        };
        let ends = (link.settings.remote, link.settings.local);
        let Some(payload) = datagram(&packet.bytes, ends.0, ends.1) else {
            return Verdict::Next;
        };
        // All are read before any segment is sent.
        let mut due = Vec::new();
        for (nth, entry) in Ack::each(payload).enumerate() {
            let is_agreed = entry.get(4) == Some(&link.settings.keys.version);
            if !is_agreed || Kind::of(entry) != Ok(Kind::Ack) {
                if nth == 0 {
                    return Verdict::Next;
                }
                break;
            }
            let Ok(ack) = Ack::decode(entry, &link.down) else {
                self.shared.counters.link_forged += 1;
                break;
            };
            due.extend(self.on_link_ack(&link, &ack, now_ns));
        }
        if payload.len() < ACK_LEN {
            return Verdict::Next; // the answer to a probe is for the socket
        }
        let sent = due
            .iter()
            .filter_map(|due| self.send_due(packet, due, now_ns));
        let mut sent: Vec<Packet> = sent.collect();
        let Some(last) = sent.pop() else {
            return Verdict::Drop;
        };
        self.shared.sent.extend(sent);
        *packet = last;
        Verdict::Redirect
    }

    /// Processes one acknowledgement, and returns the segment that is due.
    fn on_link_ack(&mut self, link: &Link, ack: &Ack, now_ns: u64) -> Option<Due> {
        let (key, shared) = (ack.key, &mut self.shared);
        if let Some(flow) = self.flows.get_mut(&key)
            && flow.id == ack.flow
        {
            let number = shared.on_logger_ack(link, flow, ack, now_ns)?;
            return Some(Due::Ack(key, number));
        }
        let half_open = self.half_open.get_mut(&key).filter(|e| e.id == ack.flow)?;
        let waits = self.synacks.get_mut(&key).is_some();
        (waits && shared.on_open_recorded(half_open, ack, now_ns)).then_some(Due::SynAck(key))
    }

    /// The segment that an ACK of the logger has made due, made of the packet that brought the ACK.
    fn send_due(&mut self, brought: &Packet, due: &Due, now_ns: u64) -> Option<Packet> {
        let mut packet = brought.clone();
        match due {
            Due::Ack(key, ack) => {
                let flow = self.flows.get_mut(key)?;
                let ack = ack.max_seq(flow.server.ack);
                self.shared.send_client_ack(&mut packet, *key, flow, ack);
                self.shared.close_record(flow, false, now_ns);
            }
            Due::SynAck(key) => {
                let (header, half_open) =
                    (self.synacks.get_mut(key)?, self.half_open.get_mut(key)?);
                let header = header.clone();
                self.shared
                    .send_to_client(&mut packet, *key, &half_open.log, header);
            }
        }
        Some(packet)
    }

    /// The next packet for a client that left, besides the packet that a call has returned: a datagram of the
    /// logger may make several due.
    pub fn take_sent(&mut self) -> Option<Packet> {
        self.shared.sent.pop_front()
    }

    /// A SYN-ACK of a connection that is to have a record behind the link.
    pub(crate) fn egress_synack_linked(
        &mut self,
        packet: &mut Packet,
        key: FlowKey,
        segment: &Segment,
        options: &Options,
        now_ns: u64,
    ) -> Verdict {
        let (Some(half_open), shared) = (self.half_open.get_mut(&key), &mut self.shared) else {
            return Verdict::Next;
        };
        let Some(link) = shared.link else {
            half_open.unprotected = Some(UnprotectedReason::LoggerLost);
            return Verdict::Next;
        };
        let header = with_mss(segment, options, &link);
        segment.commit(packet, header.clone());
        if !shared.service.link_up || shared.abandoned(now_ns) || shared.path.is_none() {
            if shared.waits_for_logger(now_ns) {
                return shared.refuse_fenced();
            }
            half_open.unprotected = Some(UnprotectedReason::LoggerLost);
            return Verdict::Next;
        }
        if half_open.id != FlowId(0)
            && half_open.unprotected == Some(UnprotectedReason::TooManyConnections)
        {
            return Verdict::Next; // the logger has said so
        }
        half_open.unprotected = None;
        half_open.log.stable = half_open.client.isn;
        let edge = half_open.server.rcv_wnd_edge;
        half_open.log.ack = segment.ack; // 0 is a number like any other: nothing is "after nothing"
        half_open.log.former_ack = segment.ack;
        half_open.log.tsecr = half_open.client.tsval;
        half_open.log.rcv_wnd_edge = edge;
        half_open.log.copied_ack = segment.seq + 1;
        crate::clamp::observe_server_ack(packet, half_open, segment, options, edge);
        if half_open.id == FlowId(0) {
            half_open.id = FlowId(shared.service.next_flow_id);
            shared.service.next_flow_id += 1;
        }
        self.synacks.insert(key, header);
        let open = Open {
            version: link.settings.keys.version,
            slot: link.settings.keys.slot,
            flow: half_open.id,
            key,
            client_isn: half_open.client.isn,
            server_isn: half_open.server.isn,
            handshake: half_open.handshake(),
        };
        let Some(secret) = link.up.get(open.slot) else {
            return Verdict::Drop;
        };
        let mut datagram = open.encode(secret).to_vec();
        datagram.extend_from_slice(
            packet
                .bytes
                .get(..segment.network.ip_len)
                .unwrap_or_default(),
        );
        match (shared.path, wrapped(&link.settings, &datagram)) {
            (Some(_), Some(bytes)) => {
                shared.counters.link_opens += 1;
                packet.bytes = bytes;
                packet.mark = shared.settings.mark.wrapping_add(MARK_TO_LOGGER);
                Verdict::Redirect
            }
            _ => Verdict::Drop,
        }
    }
}

impl Shared {
    /// Records a client's segment at the other end of the link. False: the server must not get the
    /// segment now.
    pub(crate) fn link_instream(
        &mut self,
        packet: &Packet,
        key: FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        now_ns: u64,
    ) -> bool {
        let link = self.link.filter(|_| self.path.is_some());
        let Some(link) = link.filter(|_| self.service.link_up && !self.abandoned(now_ns)) else {
            if self.waits_for_logger(now_ns) {
                return false;
            }
            self.lose_protection(key, flow, UnprotectedReason::LoggerLost, now_ns);
            return true;
        };
        // The link would lose the segment as often as the client sends the segment. (Segments to be
        // cut have no place here.)
        if segment.network.ip_len + link.overhead() > usize::from(link.settings.mtu) {
            self.lose_protection(key, flow, UnprotectedReason::MirrorLost, now_ns);
            return true;
        }
        let has_cursor = self.poll_read_cursor(&key, flow);
        if has_cursor && self.is_mirror_skipped(&key, flow, segment, now_ns) {
            return true;
        }
        // Also without a cursor by now: bytes before the former cursor may have no copy.
        let read = segment.seq.min_seq(flow.log.stable);
        let is_near = segment.seq.0.wrapping_sub(read.0) <= u16::MAX.into();
        let (kind, place) = if flow.log.has_read_cursor && is_near {
            (SegmentKind::Noted, read)
        } else if flow.is_doubted(segment) {
            let heard = flow.log.client_received.max_seq(segment.ack);
            (SegmentKind::Doubted, heard)
        } else {
            (kind_of(flow, segment), flow.verify.heads_to)
        };
        let flags = SegmentFlags {
            version: link.settings.keys.version,
            kind,
            unfinished: packet.checksum == ChecksumMode::Partial,
            slot: link.settings.keys.slot,
        };
        self.send_copy(packet, flow, segment, flags, Head::of(place));
        let log = &mut flow.log;
        log.copied_ack = log.copied_ack.max_seq(segment.ack);
        (log.copied, log.copied_ns) = (segment.end(), now_ns);
        self.counters.mirrored += u64::from(segment.sequence_len() > 0);
        true
    }

    /// Sends bytes of a server's segment to the logger: `take` bytes behind `skip`, or as many as
    /// fit a datagram. The segment is as the client will get it. A crash of this host must not lose
    /// output that the client has.
    pub(crate) fn link_head(
        &mut self,
        packet: &Packet,
        flow: &Flow,
        segment: &Segment,
        (skip, take): (u32, u32),
        now_ns: u64,
    ) {
        let (Some(link), Some(_), Ok(take)) = (self.link, self.path, u16::try_from(take)) else {
            return;
        };
        let headers = segment.headers_len() + REQUEST_END_BYTES + link.overhead();
        let room = usize::from(link.settings.mtu).saturating_sub(headers);
        let jumbo = segment.network.v6 && segment.network.tcp_offset != V6_HEADER;
        let linked = self.linked(flow) && self.service.link_up && !self.abandoned(now_ns);
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        let skip = u16::try_from(skip).unwrap_or(u16::MAX);
        if !linked || jumbo || skip >= room {
            return;
        }
        let keep = skip.saturating_add(take).min(room);
        // Only a head at the beginning of a packet can announce missing bytes: with `skip`, the
        // head ends with the datagram.
        let whole = if skip == 0 { take } else { keep - skip };
        let flags = SegmentFlags {
            version: link.settings.keys.version,
            kind: SegmentKind::Head,
            unfinished: true,
            slot: link.settings.keys.slot,
        };
        let head = Head {
            after: flow.verify.heads_to,
            keep,
            whole,
            asked: flow.verify.request_end,
        };
        self.send_copy(packet, flow, segment, flags, head);
        self.counters.link_heads += u64::from(take > 0);
    }

    /// A client has acknowledged the whole outstream, and the recorded heads are shorter. The
    /// logger gets the digest for a host that takes over, before the client's next bytes.
    pub(crate) fn link_digest(
        &mut self,
        packet: &Packet,
        flow: &mut Flow,
        segment: &Segment,
        now_ns: u64,
    ) {
        let is_new = segment.ack == flow.server.nxt
            && segment.ack == flow.client.ack
            && segment.ack != flow.verify.heads_to
            && segment.ack != flow.digest.link_sent;
        let is_whole = self.linked(flow) && segment.has(Flags::ACK) && !segment.has(Flags::RST);
        let link = self.link.filter(|_| self.path.is_some());
        let link = link.filter(|_| self.service.link_up && !self.abandoned(now_ns));
        let Some(link) = link.filter(|link| link.settings.digests) else {
            return;
        };
        let digest = flow.digest.whole_before(segment.ack);
        let Some(digest) = digest.filter(|_| is_new && is_whole) else {
            return;
        };
        flow.digest.link_sent = segment.ack;
        let flags = SegmentFlags {
            version: link.settings.keys.version,
            kind: SegmentKind::Said,
            unfinished: true,
            slot: link.settings.keys.slot,
        };
        // In a replay the server's acknowledgements return to the server's own TCP, and `log.ack`
        // does not change.
        let read = match flow.mode {
            Mode::Spliced => flow.log.ack.max_seq(flow.splice.ack),
            _ => flow.log.ack,
        };
        self.send_copy(packet, flow, segment, flags, Head::of(read));
        if let Some(copy) = self.copies.back_mut() {
            copy.digest = Some(digest);
        }
    }

    /// Copies a packet to the interface of the link.
    fn send_copy(
        &mut self,
        packet: &Packet,
        flow: &Flow,
        segment: &Segment,
        flags: SegmentFlags,
        head: Head,
    ) {
        let bytes = packet.bytes.get(..segment.network.ip_len);
        self.copies.push_back(Copy {
            packet: Packet {
                bytes: bytes.unwrap_or_default().to_vec(),
                mark: self.settings.mark.wrapping_add(MARK_SEGMENT),
                ..*packet
            },
            flow_id: flow.id,
            flags,
            head,
            digest: None,
        });
    }

    /// Is the logger to hear how far the client is?
    pub(crate) fn is_progress(&self, flow: &Flow, segment: &Segment) -> bool {
        let step = progress_step(flow);
        self.linked(flow)
            && self.service.link_up
            && segment.sequence_len() == 0
            && segment.ack == flow.client.ack
            && !segment.ack.before(flow.log.copied_ack + step)
    }
}

fn kind_of(flow: &Flow, segment: &Segment) -> SegmentKind {
    if segment.sequence_len() == 0 {
        return SegmentKind::Plain;
    }
    // Excluded: a retransmitted request with a lost mirrored segment, which this or an earlier
    // server has answered; and input that the server of a dead host may have answered.
    if segment.ack == flow.server.nxt
        && segment.seq == flow.log.ack
        && !segment.seq.before(flow.log.former_ack)
        && (flow.log.restored == Restored::Not || segment.ack.after(flow.log.client_received))
    {
        SegmentKind::Turn
    } else if flow.client.ack == flow.server.nxt {
        SegmentKind::HeardAll
    } else {
        SegmentKind::Plain
    }
}

impl Flow {
    /// Values that both ends agreed on, with the server's newest TSval.
    #[must_use]
    pub fn handshake(&self) -> Handshake {
        Handshake {
            tsval: self.server.tsval,
            syn_window: self.syn_window,
            syn_flags: self.syn_flags,
            syn_options: SynOptions::new(&self.syn_options).unwrap_or(SynOptions::NONE),
            window_scale: self.server.window_scale,
            client_scale: self.client.window_scale,
            timestamps: self.server.timestamps,
            sack: self.server.sack,
            whole_segments: self.whole_segments,
        }
    }
}

/// The MSS option, lowered by the headers of the link.
fn with_mss(segment: &Segment, options: &Options, link: &Link) -> Vec<u8> {
    let mut header = segment.header.clone();
    let network = if segment.network.v6 {
        V6_HEADER
    } else {
        V4_HEADER
    };
    let most =
        usize::from(link.settings.mtu).wrapping_sub(network + MIN_TCP_HEADER + link.overhead());
    if let Some(at) = options.mss_at
        && link.settings.mtu != 0
        && let Some(mss) = array::<2>(&header, at).map(u16::from_be_bytes)
        && usize::from(mss) > most
    {
        let most = u16::try_from(most).unwrap_or(mss);
        write(&mut header, at, most.to_be_bytes());
    }
    header
}

/// The payload of a UDP packet between these ends; `None` for any other packet.
fn datagram(bytes: &[u8], from: SocketAddr, to: SocketAddr) -> Option<&[u8]> {
    let (source, destination, at): (IpAddr, IpAddr, usize) = match *bytes.first()? {
        0x45 if bytes.get(9) == Some(&UDP) => {
            let fragment = u16::from_be_bytes(array(bytes, 6)?) & 0x3fff;
            if fragment != 0 {
                return None;
            }
            let ends = (array::<4>(bytes, 12)?, array::<4>(bytes, 16)?);
            (ends.0.into(), ends.1.into(), V4_HEADER)
        }
        first if first >> 4 == 6 && bytes.get(6) == Some(&UDP) => {
            let ends = (array::<16>(bytes, 8)?, array::<16>(bytes, 24)?);
            (ends.0.into(), ends.1.into(), V6_HEADER)
        }
        _ => return None,
    };
    let port = |at| array(bytes, at).map(u16::from_be_bytes);
    let ours = source == from.ip().to_canonical()
        && destination == to.ip().to_canonical()
        && port(at)? == from.port()
        && port(at + 2)? == to.port();
    ours.then(|| bytes.get(at + UDP_HEADER..)).flatten()
}

/// The UDP packet with this payload; `None` if the payload is too long.
fn wrapped(link: &LinkSettings, payload: &[u8]) -> Option<Vec<u8>> {
    let len = u16::try_from(payload.len() + UDP_HEADER).ok()?;
    let ends = (link.local.ip(), link.remote.ip());
    let mut packet = ip_header(ends, UDP, 64, len)?;
    for field in [link.local.port(), link.remote.port(), len, 0] {
        packet.extend_from_slice(&field.to_be_bytes());
    }
    packet.extend_from_slice(payload);
    Some(packet)
}

/// An IP header from the first to the second of `ends`; `None` if the ends are of two families, or
/// `len` bytes do not fit.
pub(crate) fn ip_header(
    ends: (IpAddr, IpAddr),
    protocol: u8,
    ttl: u8,
    len: u16,
) -> Option<Vec<u8>> {
    match (ends.0.to_canonical(), ends.1.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = len.checked_add(20)?.to_be_bytes();
            let mut header = [0; V4_HEADER];
            header[0] = 0x45;
            header[2..4].copy_from_slice(&total);
            header[6] = 0x40; // do not fragment
            header[8] = ttl;
            header[9] = protocol;
            header[12..16].copy_from_slice(&source.octets());
            header[16..].copy_from_slice(&destination.octets());
            let sum = !checksum::fold(checksum::sum(&header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            Some(header.to_vec())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = [0; V6_HEADER];
            header[0] = 0x60;
            header[4..6].copy_from_slice(&len.to_be_bytes());
            header[6] = protocol;
            header[7] = ttl;
            header[8..24].copy_from_slice(&source.octets());
            header[24..].copy_from_slice(&destination.octets());
            Some(header.to_vec())
        }
        _ => None,
    }
}
