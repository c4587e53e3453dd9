//! The ACK clamp (`clamp.h`; FT-TCP IV.C and IV.F). With a log link, the client gets
//! acknowledgements only of input that both the server's TCP and the logger have. `stable_seq`
//! replaces a higher acknowledgement number, the window grows by the difference, and SACK blocks
//! keep the common ranges.
//!
//! The server's TCP acknowledges a segment once, and the logger some time later. The strategy
//! ([`AckStrategy`]) decides how both become an ACK. In each strategy a pure ACK without news is
//! dropped. Except in basic, a gap at the logger becomes a duplicate ACK at once: the client does
//! not wait for the retransmission timer.

use protocol::{
    link::Ack,
    mirror::{CloseReason, FrameKind},
};
use wire::{ChecksumMode, Flags, FlowKey, MIN_TCP_HEADER, SeqNumber, checksum, kind};

use crate::{
    egress::{advance_snd_nxt, window_of},
    flow::{Flow, LogHalf, Mode, Range},
    link::{AckStrategy, Link, ip_header},
    packet::{
        ACK, CHECKSUM, DATA_OFFSET, FLAGS, Options, Packet, SEQ, Segment, WINDOW, overwrite,
        read32, write,
    },
    read_cursors::observe_payload_ack,
    south::{MARK_TO_CLIENT, Shared, Verdict},
};

/// Pure ACKs that are deferred; of more, the newest take each other's place.
const DEFERRED_ACKS: usize = 8;
/// SACK blocks in one header (RFC 2018 3).
const BLOCKS: usize = 4;

impl Shared {
    /// The acknowledgement to the client for `ack`: not beyond the logger's, and not below the
    /// client's newest.
    pub(crate) fn clamped(&self, flow: &Flow, ack: SeqNumber) -> SeqNumber {
        let ack = if self.linked(flow) {
            ack.min_seq(flow.log.stable)
        } else {
            ack
        };
        ack.max_seq(flow.server.ack)
    }

    /// Whether a pure ACK of the server is withheld. `previous` is the server's acknowledgement
    /// before; the client would read `ack` and `window`.
    pub(crate) fn withholds_ack(
        &mut self,
        flow: &mut Flow,
        segment: &Segment,
        previous: SeqNumber,
        (ack, window): (SeqNumber, u16),
        now_ns: u64,
    ) -> bool {
        let Some(link) = self.link else {
            return false;
        };
        let edge = ack + (u32::from(window) << flow.server.window_scale);
        if flow.log.has_read_cursor && segment.ack.after(flow.log.stable) {
            flow.log.early_ack_ns = now_ns;
        }
        let mut useless = segment.ack.after(previous)
            && ack == flow.server.ack
            && !edge.after(flow.server.rcv_wnd_edge);
        // A server that repeats an ACK answers a client that retransmits. The client gets the
        // clamped ACK: otherwise the client would retransmit the same segment for ever. An earlier
        // ACK may have been lost.
        let repeats = segment.ack == previous;
        let lazy = link.settings.strategy == AckStrategy::Lazy;
        if lazy && segment.ack.after(flow.log.stable) && !repeats {
            defer_ack(&mut flow.log, segment.ack);
            useless = true;
        }
        self.counters.acks_withheld += u64::from(useless);
        useless
    }

    /// A segment of the client's first server. False: the segment is withheld.
    pub(crate) fn egress_clamped(
        &mut self,
        packet: &mut Packet,
        key: &FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        options: &Options,
        now_ns: u64,
    ) -> bool {
        let previous = flow.log.ack;
        let edge = segment.ack + window_of(segment, flow.server.window_scale);
        observe_server_ack(packet, flow, segment, options, edge);
        self.advance_stable(key, flow);
        advance_snd_nxt(&mut flow.server, segment.end());
        if let Some(tsval) = options.tsval(&segment.header) {
            flow.server.tsval = tsval;
        }
        let ack = self.clamped(flow, segment.ack);
        let window = window_up_to(flow, edge, ack);
        if segment.sequence_len() == 0
            && self.withholds_ack(flow, segment, previous, (ack, window), now_ns)
        {
            return false;
        }
        let echo = options.tsecr(&segment.header);
        if let Some(tsecr) = echo.filter(|_| flow.log.tsecr == 0) {
            flow.log.tsecr = tsecr; // the server has opened it, and knows what it was answered
        }
        let echo = echo.is_some_and(|tsecr| tsecr != flow.log.tsecr);
        if ack != segment.ack || options.sack.is_some() || echo {
            let mut header = segment.header.clone();
            write_echo(&mut header, flow, options);
            write(&mut header, ACK, ack.0.to_be_bytes());
            if ack != segment.ack {
                write(&mut header, WINDOW, window.to_be_bytes());
            }
            clamp_blocks(&mut header, flow, options);
            segment.commit(packet, header);
            self.counters.acks_clamped += u64::from(ack.before(segment.ack));
        }
        advance_ack_sent(flow, ack, window);
        observe_payload_ack(flow, segment, ack);
        true
    }

    /// Processes an ACK of the logger for a connection. Returns the acknowledgement to the client
    /// that is due.
    pub(crate) fn on_logger_ack(
        &mut self,
        link: &Link,
        flow: &mut Flow,
        ack: &Ack,
        now_ns: u64,
    ) -> Option<SeqNumber> {
        if !self.linked(flow) || ack.counter <= flow.log.counter {
            return None;
        }
        // A sign of life of the logger: a replayed old ACK is none.
        self.counters.link_acks += 1;
        let log = &mut flow.log;
        log.counter = ack.counter;
        log.stable = log.stable.max_seq(ack.stable_seq);
        let ranges = ack.ranges.iter().flatten();
        log.ranges = ranges.map(|&(start, end)| Range { start, end }).collect();
        let silent = matches!(flow.mode, Mode::Splicing | Mode::Diverged) || flow.log.ifindex == 0;
        if silent || self.flow_gated(flow, now_ns) || self.fenced(now_ns) {
            return None;
        }
        due_ack(flow, link.settings.strategy)
    }

    /// A RST for a connection that is over: the last ACK was lost, and no socket can repeat the
    /// ACK. (Without the clamp, each of the server's last segments would have brought the ACK.)
    pub(crate) fn repeat_final_ack(
        &mut self,
        packet: &mut Packet,
        key: FlowKey,
        flow: &mut Flow,
        now_ns: u64,
    ) -> Verdict {
        self.counters.gated_out += 1;
        // Otherwise the logger's ACK will bring the acknowledgement.
        let is_acked = flow.server.ack == flow.log.ack;
        if flow.log.ifindex == 0 || (self.linked(flow) && !is_acked) {
            return Verdict::Drop;
        }
        if self.fenced(now_ns) {
            return self.drop_fenced();
        }
        self.send_client_ack(packet, key, flow, closed_rcv_nxt(flow));
        Verdict::Redirect
    }

    /// The connection is over for the server, and the client has the last acknowledgement, or is
    /// not to get one: the record ends. Later input (the client's FIN, if the server closed first)
    /// concerns the client and the kernel alone.
    pub(crate) fn close_record(&mut self, flow: &mut Flow, reset: bool, now_ns: u64) {
        if flow.closed_ns != 0 && (flow.server.ack == flow.log.ack || reset) {
            let reason = CloseReason::Finished;
            // If the ring is full, the sweep reports the end.
            flow.log.ended = self.mirror_marker(flow, FrameKind::Closed(reason), now_ns);
        }
    }

    /// Both initial sequence numbers are logged. May the client know now that the connection exists?
    pub(crate) fn on_open_recorded(&self, half_open: &mut Flow, ack: &Ack, now_ns: u64) -> bool {
        let current = half_open.server.synack_seen
            && half_open.incarnation == self.service.incarnation
            && !self.service_gated(now_ns)
            && !self.fenced(now_ns);
        let first = half_open.client.isn + 1;
        if !current || ack.stable_seq != first {
            return false;
        }
        half_open.log.stable = first;
        true
    }

    /// Acknowledges all input before `ack` to the client, with SACK blocks of the ranges that
    /// server and logger have beyond.
    pub(crate) fn send_client_ack(
        &mut self,
        packet: &mut Packet,
        key: FlowKey,
        flow: &mut Flow,
        ack: SeqNumber,
    ) {
        let window = window_up_to(flow, flow.log.rcv_wnd_edge, ack);
        let log = &flow.log;
        let mut header = vec![0; MIN_TCP_HEADER];
        write(&mut header, 0, key.server().port().to_be_bytes());
        write(&mut header, 2, key.client().port().to_be_bytes());
        write(&mut header, SEQ, flow.server.nxt.0.to_be_bytes());
        write(&mut header, ACK, ack.0.to_be_bytes());
        let ece = if log.ece { Flags::ECE } else { Flags::ACK };
        write(&mut header, FLAGS, [Flags::ACK.union(ece).bits()]);
        write(&mut header, WINDOW, window.to_be_bytes());
        if flow.server.timestamps {
            // RFC 7323 appendix A
            header.extend([kind::NO_OPERATION, kind::NO_OPERATION, kind::TIMESTAMPS, 10]);
            header.extend(flow.server.tsval.to_be_bytes());
            header.extend(log.tsecr.to_be_bytes());
        }
        if flow.server.sack {
            let both = log.ranges.iter().map(|r| common(*r, log.ack, &log.blocks));
            let both: Vec<Range> = both.flatten().collect();
            if !both.is_empty() {
                header.extend([kind::NO_OPERATION; 2]);
                header.extend(sack_option(&both));
            }
        }
        let words = u8::try_from(header.len() / 4).unwrap_or(15);
        write(&mut header, DATA_OFFSET, [words << 4]);
        self.send_to_client(packet, key, &flow.log, header);
        flow.log.withheld = false;
        advance_ack_sent(flow, ack, window);
        self.counters.acks_made += 1;
    }

    /// Make a packet for the client of the packet that brought the logger's ACK, behind the headers with which
    /// the server's segments travel.
    pub(crate) fn send_to_client(
        &self,
        packet: &mut Packet,
        key: FlowKey,
        log: &LogHalf,
        header: Vec<u8>,
    ) {
        let (server, client) = (key.server().ip(), key.client().ip());
        let mut header = header;
        write(&mut header, CHECKSUM, [0, 0]);
        let sum = checksum::tcp_checksum(server, client, &header);
        write(&mut header, CHECKSUM, sum.to_be_bytes());
        let len = u16::try_from(header.len()).unwrap_or(u16::MAX);
        let network = ip_header((server, client), wire::PROTOCOL_TCP, log.ttl, len);
        packet.bytes = network.unwrap_or_default(); // both are of one family
        packet.bytes.extend(header);
        packet.checksum = ChecksumMode::Full;
        packet.mark = self.settings.mark.wrapping_add(MARK_TO_CLIENT);
    }
}

/// The acknowledgement to the client that is due by the strategy.
fn due_ack(flow: &mut Flow, strategy: AckStrategy) -> Option<SeqNumber> {
    let log = &mut flow.log;
    let ack = log.stable.min_seq(log.ack);
    let news = ack.after(flow.server.ack);
    let gap = !log.ranges.is_empty() && (log.ack.after(log.stable) || log.withheld);
    let dup = gap.then_some(ack);
    match strategy {
        AckStrategy::Eager => news.then_some(ack).or(dup),
        _ if flow.closed_ns != 0 && news => Some(ack),
        AckStrategy::Basic => None,
        AckStrategy::Conditional => {
            let newest = log.stable == flow.client.nxt && ack == log.stable;
            (news && newest).then_some(ack).or(dup)
        }
        AckStrategy::Lazy => released(log)
            .filter(|released| released.after(flow.server.ack) || gap)
            .or(dup),
    }
}

/// RCV.NXT of the server's TCP when the socket was closed.
pub(crate) fn closed_rcv_nxt(flow: &Flow) -> SeqNumber {
    if flow.log.ifindex == 0 {
        return flow.server.ack;
    }
    flow.log.ack.max_seq(flow.server.ack)
}

/// The client is sent this acknowledgement.
pub(crate) fn advance_ack_sent(flow: &mut Flow, ack: SeqNumber, window: u16) {
    let server = &mut flow.server;
    server.ack = server.ack.max_seq(ack);
    let edge = ack + (u32::from(window) << server.window_scale);
    server.rcv_wnd_edge = server.rcv_wnd_edge.max_seq(edge);
}

/// The window field for an acknowledgement of `ack`. The right edge counts, and stays (IV.C).
pub(crate) fn window_up_to(flow: &Flow, edge: SeqNumber, ack: SeqNumber) -> u16 {
    let window = edge.distance_from(ack).unwrap_or(0) >> flow.server.window_scale;
    u16::try_from(window).unwrap_or(u16::MAX)
}

/// Observes the acknowledgement of the server's TCP, and the path of the segments.
pub(crate) fn observe_server_ack(
    packet: &Packet,
    flow: &mut Flow,
    segment: &Segment,
    options: &Options,
    edge: SeqNumber,
) {
    let log = &mut flow.log;
    log.ack = log.ack.max_seq(segment.ack);
    log.rcv_wnd_edge = log.rcv_wnd_edge.max_seq(edge);
    log.ece = segment.has(Flags::ECE);
    log.blocks = blocks(&segment.header, options);
    log.ifindex = packet.ifindex;
    let at = if segment.network.v6 { 7 } else { 8 };
    log.ttl = packet.bytes.get(at).copied().unwrap_or_default();
}

/// In `header`: the echo that the client reads.
pub(crate) fn write_echo(header: &mut [u8], flow: &Flow, options: &Options) {
    if let Some(at) = options.tsecr_at() {
        write(header, at, flow.log.tsecr.to_be_bytes());
    }
}

/// In `header`: the SACK blocks that may be told.
pub(crate) fn clamp_blocks(header: &mut [u8], flow: &mut Flow, options: &Options) {
    let Some(at) = options.sack else {
        return;
    };
    let log = &mut flow.log;
    let all = &log.blocks;
    let both = all
        .iter()
        .map(|block| common(*block, log.stable, &log.ranges));
    let both: Vec<Range> = both.flatten().collect();
    log.withheld |= both.len() < all.len();
    let mut option = if both.is_empty() {
        Vec::new()
    } else {
        sack_option(&both)
    };
    option.resize(2 + 8 * all.len(), kind::NO_OPERATION);
    overwrite(header, at, &option);
}

fn sack_option(blocks: &[Range]) -> Vec<u8> {
    let len = u8::try_from(2 + 8 * blocks.len()).unwrap_or(u8::MAX);
    let edges = blocks.iter().flat_map(|block| [block.start, block.end]);
    [kind::SACK, len]
        .into_iter()
        .chain(edges.flat_map(|edge| edge.0.to_be_bytes()))
        .collect()
}

fn blocks(header: &[u8], options: &Options) -> Vec<Range> {
    let edges = options.sack_edges.clone().step_by(8).take(BLOCKS);
    edges
        .map(|at| Range {
            start: SeqNumber(read32(header, at)),
            end: SeqNumber(read32(header, at + 4)),
        })
        .collect()
}

/// The part of `range` that lies before `below`, or in one of `others`.
fn common(range: Range, below: SeqNumber, others: &[Range]) -> Option<Range> {
    let both = |start: SeqNumber, end: SeqNumber| {
        let range = Range {
            start: range.start.max_seq(start),
            end: range.end.min_seq(end),
        };
        range.start.before(range.end).then_some(range)
    };
    if range.start.before(below) {
        let end = range.end.min_seq(below);
        return (end != range.start).then_some(Range { end, ..range });
    }
    others.iter().find_map(|other| both(other.start, other.end))
}

fn defer_ack(log: &mut LogHalf, ack: SeqNumber) {
    if log.deferred.last().is_none_or(|last| ack.after(*last)) {
        log.deferred.truncate(DEFERRED_ACKS - 1);
        log.deferred.push(ack);
    }
}

/// The highest of the deferred ACKs that the logger has released.
fn released(log: &mut LogHalf) -> Option<SeqNumber> {
    let stable = log.stable;
    let free = log
        .deferred
        .iter()
        .rev()
        .find(|deferred| !deferred.after(stable))
        .copied();
    log.deferred.retain(|deferred| deferred.after(stable));
    free
}
