//! Egress (`egress.h`): from the server's TCP to the client's side.
//!
//! | packet | |
//! |---|---|
//! | our own for the server | redirected into this interface's ingress |
//! | our own for the client | other packets |
//! | any packet of the service, after the end of the lease | dropped (`fence`) |
//! | not from a protected address:port | other packets |
//! | of a gated flow or service | dropped: FIN and RST of the dying server included |
//! | RST after all output was sent and acknowledged | dropped; with a log link the RST becomes the ACK that the |
//! | | client may have missed |
//! | SYN-ACK of a new connection | stored as half-open, to the client; an old flow with the same ends is over |
//! | of a flow on the first server, the first RST before any output, to a client that has sent data | dropped: the |
//! | | kernel may have missed the socket |
//! | of a flow on the first server | observed; the head of a response is recorded |
//! | of a flow being spliced, SYN-ACK | gives `delta_seq` and the timestamp offset; the packet becomes the client's |
//! | | third ACK and goes back up the stack |
//! | of a flow being spliced, any other packet | dropped (a RST: no socket listens yet) |
//! | of a spliced flow, output that the client has | compared with the record, then turned into the client's |
//! | | acknowledgement of the output |
//! | of a spliced flow, a retransmission of such output, if the client's window has no space for the bytes behind | |
//! | | as any other segment: the client answers with the present window (`zero_window`) |
//! | of a spliced flow, FIN before the end of the client's outstream | a divergence like any other |
//! | of a spliced flow, output that the client lacks and that waits for a comparison (`digest`) | dropped as if lost: |
//! | | the server retransmits |
//! | of a spliced flow, pure ACK below the client's newest | withheld: the client has a higher acknowledgement |
//! | of a spliced flow, any other segment | compared if there is an overlap with the record; sequence number, |
//! | | timestamp and window mapped to the client's, acknowledgement never taken back |

use std::{collections::BTreeMap, net::IpAddr};

use types::UnprotectedReason;
use wire::{
    ChecksumMode, Flags, FlowId, FlowKey, MIN_TCP_HEADER, PROTOCOL_TCP, SeqNumber, checksum, kind,
};

use crate::{
    clamp::{
        advance_ack_sent, clamp_blocks, closed_rcv_nxt, observe_server_ack, window_up_to,
        write_echo,
    },
    digest,
    flow::{Flow, Mode, Response, ServerHalf},
    packet::{
        ACK, CHECKSUM, DATA_OFFSET, FLAGS, Network, Options, Packet, SEQ, Segment, V6_HEADER,
        WINDOW, array, find_options, overwrite, write,
    },
    read_cursors::observe_payload_ack,
    south::{
        EventKind, MARK_CLIENT_SPACE, MARK_SERVER_SPACE, MARK_TO_CLIENT, MARK_TO_LOGGER,
        MARK_TO_NEIGHBOUR, Shared, SouthSide, Verdict, our_mark,
    },
    tolerance::Expect,
    verify::{Divergence, verify_replayed},
    zero_window,
};

/// Whether the kernel missed an existing socket at the moment in which the socket replaced its
/// request. Only the client's first data is retransmitted: a client that listens gets the RST at
/// once.
fn is_lookup_race(flow: &mut Flow, segment: &Segment) -> bool {
    let first = flow.server.isn + 1;
    let is_reset = segment.has(Flags::RST) && !segment.has(Flags::ACK);
    let is_bare = is_reset && segment.sequence_len() == 0;
    let is_first = segment.seq == first && flow.server.nxt == first;
    let comes_again = flow.client.nxt != flow.client.isn + 1;
    let is_open = flow.closed_ns == 0 && comes_again;
    let is_missed = is_bare && is_first && is_open && !flow.log.lookup_missed;
    flow.log.lookup_missed |= is_missed;
    is_missed
}

impl SouthSide {
    /// Verdict on a packet that leaves, from the server or from `serve`.
    pub fn egress(&mut self, packet: &mut Packet, now_ns: u64) -> Verdict {
        match our_mark(packet.mark, self.shared.settings.mark) {
            Some(MARK_CLIENT_SPACE | MARK_SERVER_SPACE) => return Verdict::RedirectIngress,
            Some(MARK_TO_CLIENT | MARK_TO_NEIGHBOUR) if self.shared.fenced(now_ns) => {
                return self.shared.drop_fenced();
            }
            Some(MARK_TO_NEIGHBOUR) => {
                packet.mark = self.shared.settings.mark.wrapping_add(MARK_TO_CLIENT);
                return Verdict::Redirect;
            }
            Some(MARK_TO_CLIENT | MARK_TO_LOGGER) => return Verdict::Next,
            _ => {}
        }
        let Some((network, key)) = self.sent_by_us(packet) else {
            let verdict = self.shared.fence_other(packet, now_ns);
            let other = Network::parse(&packet.bytes).is_none();
            if verdict == Verdict::Next && self.shared.settings.link && other {
                self.learn_path(packet);
            }
            return verdict;
        };
        let Some(segment) = Segment::parse(&packet.bytes, network) else {
            let fenced = self.shared.fenced(now_ns);
            return if fenced {
                self.shared.drop_fenced()
            } else {
                Verdict::Next
            };
        };
        if self.opens_anew(key, &segment, now_ns) {
            self.evict(key, now_ns);
        }
        if self.flows.contains_key(&key) {
            self.egress_flow(packet, key, &segment, now_ns)
        } else {
            self.egress_stray(packet, key, &segment, now_ns)
        }
    }

    /// Whether the server answers a SYN that came while the last connection with these ends was
    /// being closed, or sends such a SYN. No two sockets have the same ends.
    fn opens_anew(&mut self, key: FlowKey, segment: &Segment, now_ns: u64) -> bool {
        let Some(flow) = self.flows.get(&key) else {
            return false;
        };
        if segment.has(Flags::SYN) && !segment.has(Flags::ACK) && !segment.has(Flags::RST) {
            return flow.closed_ns != 0 && !self.shared.flow_stands_still(flow, now_ns);
        }
        let known = segment.ack == flow.client.isn + 1
            || (flow.mode == Mode::Spliced && segment.ack == flow.splice.instream + 1);
        if known
            || !segment.has(Flags::SYN | Flags::ACK)
            || self.shared.flow_stands_still(flow, now_ns)
        {
            return false;
        }
        let half_open = self.half_open.get_mut(&key);
        half_open.is_some_and(|half_open| segment.ack == half_open.client.isn + 1)
    }

    fn sent_by_us(&self, packet: &Packet) -> Option<(Network, FlowKey)> {
        let network = Network::parse(&packet.bytes)?;
        let (server, client) = network.ends(&packet.bytes)?;
        let key = FlowKey::new(client, server);
        let ours = self.shared.is_endpoint(server) || self.flows.contains_key(&key);
        ours.then_some((network, key))
    }

    /// No flow: a handshake, a connection that is not protected, or an answer to a stray.
    fn egress_stray(
        &mut self,
        packet: &mut Packet,
        key: FlowKey,
        segment: &Segment,
        now_ns: u64,
    ) -> Verdict {
        let shared = &mut self.shared;
        let half_open = self.half_open.get_mut(&key);
        let stale = half_open.as_ref().is_some_and(|half_open| {
            half_open.server.synack_seen && half_open.incarnation != shared.service.incarnation
        });
        let answer_to_stray = segment.has(Flags::RST) && shared.strays_dropped(now_ns);
        if shared.service_gated(now_ns) || stale || answer_to_stray {
            shared.counters.gated_out += 1;
            return Verdict::Drop;
        }
        if shared.fenced(now_ns) {
            return shared.refuse_fenced();
        }
        if let Some(half_open) = half_open
            && segment.has(Flags::SYN | Flags::ACK)
        {
            let options = find_options(&segment.header);
            // A different SYN-ACK (the request's socket expired, or the cookie did) begins another
            // connection: a logger refuses other numbers for a known connection.
            if half_open.server.synack_seen && half_open.server.isn != segment.seq {
                shared.replace_half_open(half_open, now_ns);
            }
            egress_synack(half_open, segment, &options);
            half_open
                .digest
                .begin(shared.settings.digests.as_ref(), segment.seq + 1);
            if shared.settings.link {
                return self.egress_synack_linked(packet, key, segment, &options, now_ns);
            }
        }
        Verdict::Next
    }

    fn egress_flow(
        &mut self,
        packet: &mut Packet,
        key: FlowKey,
        segment: &Segment,
        now_ns: u64,
    ) -> Verdict {
        let Some(flow) = self.flows.get_mut(&key) else {
            return Verdict::Next;
        };
        let shared = &mut self.shared;
        let synack = segment.has(Flags::SYN | Flags::ACK);
        if shared.linked(flow) && shared.abandoned(now_ns) {
            // No supervisor would recover the connection any more.
            shared.lose_protection(key, flow, UnprotectedReason::LoggerLost, now_ns);
        }
        if shared.settings.link
            && shared.is_afterthought(flow, segment)
            && !shared.flow_gated(flow, now_ns)
        {
            return shared.repeat_final_ack(packet, key, flow, now_ns);
        }
        let silent = shared.flow_gated(flow, now_ns)
            || flow.mode == Mode::Diverged
            || shared.is_afterthought(flow, segment)
            || (flow.mode == Mode::Splicing && !synack);
        if silent {
            shared.counters.gated_out += 1;
            return Verdict::Drop;
        }
        let options = find_options(&segment.header);
        if flow.mode == Mode::Observed {
            if shared.fenced(now_ns) {
                shared.digest_output(&self.expected, packet, flow, segment, (segment.seq, now_ns));
                return shared.refuse_fenced();
            }
            if is_lookup_race(flow, segment) {
                shared.counters.gated_out += 1;
                return Verdict::Drop;
            }
            let tells = segment.has(Flags::ACK) && !segment.has(Flags::RST);
            if shared.linked(flow) && tells {
                if !shared.egress_clamped(packet, &key, flow, segment, &options, now_ns) {
                    return Verdict::Withheld;
                }
            } else {
                observe_server(flow, segment, &options);
            }
            shared.digest_output(&self.expected, packet, flow, segment, (segment.seq, now_ns));
            shared.mirror_head(packet, flow, segment, segment.seq, now_ns);
            shared.observe_response(packet, flow, segment, segment.seq);
            return Verdict::Next;
        }
        if synack {
            return shared.egress_spliced_synack(packet, flow, segment, &options);
        }
        let repeated = !segment.end().after(flow.splice.nxt);
        observe_new_server(flow, segment);
        let seq = segment.seq + flow.splice.delta_seq;
        let mut verdict = Ok(());
        if segment.payload_len > 0 && seq.before(flow.verify.end) {
            verdict = verify_replayed(&self.expected, flow, segment.payload(&packet.bytes), seq);
        }
        let digests = shared.settings.digests.as_ref();
        let payload = segment.payload(&packet.bytes);
        let verdict = verdict.and_then(|()| {
            digest::digest_replayed(digests, &self.expected, flow, segment, payload, seq)
        });
        let verdict = verdict.and_then(|()| verify_unheard(flow, segment, seq));
        if let Err(Divergence(at)) = verdict.and_then(|()| verify_end(flow, segment)) {
            flow.mode = Mode::Diverged;
            let flow_id = flow.id;
            shared.emit(
                EventKind::Diverged {
                    key,
                    flow: flow_id,
                    at,
                },
                now_ns,
            );
            return Verdict::Drop;
        }
        if !segment.has(Flags::RST) {
            // Not before: who looks at the flow takes this for compared, and gives the server more.
            flow.splice.nxt = flow.splice.nxt.max_seq(segment.end());
            bound_verify_end(flow);
        }
        let expected = &self.expected;
        if is_self_acked(flow, segment, repeated) {
            shared.digest_output(expected, packet, flow, segment, (seq, now_ns));
        }
        if shared.waits_for_digest(flow, segment, repeated) {
            return shared.hold(packet, flow, segment, &options, repeated);
        }
        let verdict =
            shared.egress_spliced(packet, &key, flow, segment, &options, (repeated, now_ns));
        // Of all withheld segments only the segments kept by the fence have bytes.
        if matches!(verdict, Verdict::Next | Verdict::Withheld) {
            shared.digest_output(expected, packet, flow, segment, (seq, now_ns));
        }
        if verdict == Verdict::Next {
            shared.mirror_head(packet, flow, segment, seq, now_ns);
            shared.observe_response(packet, flow, segment, seq);
        }
        verdict
    }
}

impl Shared {
    /// FT-TCP IV.E.4: computes the deltas. The window scale of the new server may differ, too:
    /// windows are mapped separately.
    fn egress_spliced_synack(
        &mut self,
        packet: &mut Packet,
        flow: &mut Flow,
        segment: &Segment,
        options: &Options,
    ) -> Verdict {
        if flow.mode == Mode::Splicing {
            if segment.ack != flow.splice.instream + 1 {
                return Verdict::Drop;
            }
            let splice = &mut flow.splice;
            splice.isn = segment.seq;
            splice.nxt = segment.seq + 1;
            splice.una = segment.seq + 1;
            splice.ack = segment.ack;
            splice.rcv_wnd_edge = segment.ack + u32::from(segment.window);
            splice.window_scale = options.scale();
            flow.log.ack = splice.ack;
            flow.log.rcv_wnd_edge = splice.rcv_wnd_edge;
            splice.delta_seq = splice.outstream.0.wrapping_sub(splice.nxt.0);
            if let Some(tsval) = options.tsval(&segment.header) {
                splice.first_tsval = tsval;
                splice.ts_delta = flow.server.tsval.wrapping_add(1).wrapping_sub(tsval);
            }
            flow.mode = Mode::Spliced;
        }
        self.self_ack(packet, flow, segment, options, segment.seq + 1)
    }

    /// Digests output that leaves for the client, or would leave without the fence, or that the
    /// client already has. The server retransmits fenced output only where the client misses the
    /// output, behind later output.
    fn digest_output(
        &mut self,
        expected: &BTreeMap<(FlowId, u32), Expect>,
        packet: &Packet,
        flow: &mut Flow,
        segment: &Segment,
        (seq, now_ns): (SeqNumber, u64),
    ) {
        let digests = self.settings.digests.as_ref();
        let payload = segment.payload(&packet.bytes);
        let at = (seq, self.settings.link);
        let digested = digest::digest_output(digests, expected, flow, segment, payload, at);
        self.counters.sampled += u64::from(digested.sampling_begins);
        for digest in digested.mirrored.into_iter().flatten() {
            self.mirror_output_digest(flow, digest, now_ns);
        }
    }

    /// Whether the client lacks this segment, and output behind the segment is to be compared
    /// first.
    fn waits_for_digest(&self, flow: &mut Flow, segment: &Segment, repeated: bool) -> bool {
        let is_said = segment.sequence_len() > 0 && !segment.has(Flags::RST);
        let seq = segment.seq + flow.splice.delta_seq;
        let acked = flow.client.ack;
        is_said && !client_has(flow, segment) && flow.digest.waits(seq, acked, repeated)
    }

    /// Treats the segment as lost, except for the part that the client has.
    fn hold(
        &mut self,
        packet: &mut Packet,
        flow: &mut Flow,
        segment: &Segment,
        options: &Options,
        repeated: bool,
    ) -> Verdict {
        self.counters.replay_held += 1;
        let ack = zero_window::client_una(flow);
        if segment.seq.before(ack) {
            let ack = zero_window::ack_for_server(flow, ack, repeated);
            return self.self_ack(packet, flow, segment, options, ack);
        }
        Verdict::Withheld
    }

    /// A segment of the new server that does not contradict the record.
    fn egress_spliced(
        &mut self,
        packet: &mut Packet,
        key: &FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        options: &Options,
        (repeated, now_ns): (bool, u64),
    ) -> Verdict {
        let reset = segment.has(Flags::RST);
        let silent = segment.sequence_len() == 0;
        let client_has = client_has(flow, segment);
        if is_self_acked(flow, segment, repeated) {
            self.counters.self_acks += 1;
            let ack = zero_window::ack_for_server(flow, segment.end(), repeated);
            return self.self_ack(packet, flow, segment, options, ack);
        }
        let seq = segment.seq + flow.splice.delta_seq;
        let client_has_part = !client_has && seq.before(flow.client.ack);
        if !silent && !reset && flow.whole_segments && client_has_part {
            self.counters.self_acks += 1;
            let ack = zero_window::ack_for_server(flow, zero_window::client_una(flow), repeated);
            return self.self_ack(packet, flow, segment, options, ack);
        }
        if silent && !reset && segment.ack.before(flow.server.ack) {
            return Verdict::Withheld;
        }
        if self.fenced(now_ns) {
            // Checked late: segments that do not leave are processed while the fence is closed.
            return self.refuse_fenced();
        }
        let Some(header) = self.translated_out(packet, key, flow, segment, options, now_ns) else {
            return Verdict::Withheld;
        };
        segment.commit(packet, header);
        self.counters.translated_out += 1;
        Verdict::Next
    }

    /// The header for the client; `None`: the segment is withheld.
    fn translated_out(
        &mut self,
        packet: &Packet,
        key: &FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        options: &Options,
        now_ns: u64,
    ) -> Option<Vec<u8>> {
        let mut header = segment.header.clone();
        let mut seq = segment.seq + flow.splice.delta_seq;
        let reset = segment.has(Flags::RST);
        let acknowledges = segment.sequence_len() == 0 && segment.seq == flow.splice.nxt;
        if reset || acknowledges {
            // In the middle of a replay a RST or an acknowledgement would lie below the client's
            // window, and the client would ignore the segment. (A probe lies there on purpose: the
            // client answers.)
            seq = seq.max_seq(flow.client.ack);
        }
        write(&mut header, SEQ, seq.0.to_be_bytes());
        if segment.has(Flags::ACK) {
            let edge = segment.ack + window_of(segment, flow.splice.window_scale);
            if self.linked(flow) && !reset {
                self.advance_stable(key, flow);
            }
            let (ack, previous) = (self.clamped(flow, segment.ack), flow.log.ack);
            let window = window_up_to(flow, edge, ack);
            if self.linked(flow) && !reset {
                observe_server_ack(packet, flow, segment, options, edge);
                write_echo(&mut header, flow, options);
                clamp_blocks(&mut header, flow, options);
                if segment.sequence_len() == 0
                    && self.withholds_ack(flow, segment, previous, (ack, window), now_ns)
                {
                    return None;
                }
                self.counters.acks_clamped += u64::from(ack.before(segment.ack));
            }
            write(&mut header, ACK, ack.0.to_be_bytes());
            write(&mut header, WINDOW, window.to_be_bytes());
            observe_payload_ack(flow, segment, ack);
            advance_ack_sent(flow, ack, window);
        }
        if !reset {
            advance_snd_nxt(&mut flow.server, seq + segment.sequence_len());
        }
        if let (Some(at), Some(tsval)) = (options.tsval_at(), options.tsval(&segment.header)) {
            let tsval = SeqNumber(tsval) + flow.splice.ts_delta;
            write(&mut header, at, tsval.0.to_be_bytes());
            flow.server.tsval = SeqNumber(flow.server.tsval).max_seq(tsval).0;
        }
        Some(header)
    }

    /// A RST for a connection that both sides have ended and acknowledged: the answer to a late
    /// segment, perhaps from `serve`. With a log link the last ACK may not have reached the client
    /// yet, and follows after logging. A RST of a server that closes with unread input must reach
    /// the client.
    fn is_afterthought(&self, flow: &Flow, segment: &Segment) -> bool {
        let acknowledged = if self.settings.link {
            closed_rcv_nxt(flow)
        } else {
            flow.server.ack
        };
        segment.has(Flags::RST)
            && flow.closed_ns != 0
            && !flow.was_reset
            && flow.client.ack == flow.server.nxt
            && flow.client.nxt == acknowledged
    }

    /// Turns a segment of the server into the client's pure ACK of all output before `ack`, and
    /// sends the ACK back up, as if from the client. Server space.
    fn self_ack(
        &self,
        packet: &mut Packet,
        flow: &Flow,
        segment: &Segment,
        options: &Options,
        ack: SeqNumber,
    ) -> Verdict {
        let header = self_ack_header(flow, segment, options, ack);
        turn(&mut packet.bytes, &segment.network, &header);
        packet.checksum = ChecksumMode::Full;
        packet.mark = self.settings.mark.wrapping_add(MARK_SERVER_SPACE);
        Verdict::RedirectIngress
    }
}

fn self_ack_header(flow: &Flow, segment: &Segment, options: &Options, ack: SeqNumber) -> Vec<u8> {
    let tsval = options.tsval(&segment.header);
    let len: u8 = if tsval.is_some() { 32 } else { 20 };
    let mut header = vec![0; usize::from(len)];
    let ports: [u8; 2] = array(&segment.header, 2).unwrap_or_default();
    write(&mut header, 0, ports);
    let ports: [u8; 2] = array(&segment.header, 0).unwrap_or_default();
    write(&mut header, 2, ports);
    write(&mut header, SEQ, segment.ack.0.to_be_bytes());
    write(&mut header, ACK, ack.0.to_be_bytes());
    write(&mut header, DATA_OFFSET, [(len / 4) << 4]);
    write(&mut header, FLAGS, [Flags::ACK.bits()]);
    let window = zero_window::window_of_self_ack(flow);
    write(&mut header, WINDOW, window.to_be_bytes());
    if let Some(tsval) = tsval {
        // RFC 7323 appendix A
        write(
            &mut header,
            MIN_TCP_HEADER,
            [kind::NO_OPERATION, kind::NO_OPERATION, kind::TIMESTAMPS, 10],
        );
        write(
            &mut header,
            MIN_TCP_HEADER + 4,
            flow.client.tsval.to_be_bytes(),
        );
        write(&mut header, MIN_TCP_HEADER + 8, tsval.to_be_bytes());
    }
    let network = &segment.network;
    let sum = checksum::tcp_checksum(network.destination, network.source, &header);
    write(&mut header, CHECKSUM, sum.to_be_bytes());
    header
}

/// Exchanges source and destination of the network header, and makes `header` the only payload.
fn turn(bytes: &mut Vec<u8>, network: &Network, header: &[u8]) {
    if network.v6 {
        bytes.truncate(V6_HEADER); // a super-segment has a jumbo header behind it
    } else {
        bytes.truncate(network.tcp_offset);
    }
    bytes.extend_from_slice(header);
    // Both fit: a TCP header has at most 60 bytes, and the IPv4 header before has at most 60.
    let length = if network.v6 {
        header.len()
    } else {
        bytes.len()
    };
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    match (network.destination, network.source) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let old = u16::from_be_bytes(array(bytes, 2).unwrap_or_default());
            let sum = u16::from_be_bytes(array(bytes, 10).unwrap_or_default());
            write(bytes, 2, length.to_be_bytes());
            write(
                bytes,
                10,
                checksum::update_u16(sum, old, length).to_be_bytes(),
            );
            overwrite(bytes, 12, &source.octets());
            overwrite(bytes, 16, &destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            write(bytes, 4, length.to_be_bytes());
            write(bytes, 6, [PROTOCOL_TCP]);
            overwrite(bytes, 8, &source.octets());
            overwrite(bytes, 24, &destination.octets());
        }
        _ => {} // both come from one header
    }
}

/// The server answers a SYN: the half-open connection learns the other half of the handshake.
fn egress_synack(half_open: &mut Flow, segment: &Segment, options: &Options) {
    half_open.server.isn = segment.seq;
    half_open.server.nxt = segment.seq + 1;
    half_open.server.sent = 0;
    half_open.server.ack = segment.ack;
    half_open.server.rcv_wnd_edge = segment.ack + window_of(segment, 0);
    half_open.server.window_scale = options.scale();
    if options.window_scale.is_none() {
        half_open.client.window_scale = 0; // one side's silence turns it off for both
    }
    let tsval = options.tsval(&segment.header);
    half_open.server.timestamps = tsval.is_some();
    half_open.server.sack = options.sack_permitted;
    if let Some(tsval) = tsval {
        half_open.server.tsval = tsval;
    }
    half_open.server.synack_seen = true;
    half_open.client.response_start = segment.seq + 1;
    half_open.verify.response = Response::Begun; // to nothing: the client's first byte begins a turn
}

/// The client is sent everything before `end`.
pub(crate) fn advance_snd_nxt(server: &mut ServerHalf, end: SeqNumber) {
    if end.after(server.nxt) {
        server.sent += u64::from(end.0.wrapping_sub(server.nxt.0));
        server.nxt = end;
    }
}

/// Observes a segment of the first server, as the client will get the segment.
fn observe_server(flow: &mut Flow, segment: &Segment, options: &Options) {
    if segment.has(Flags::RST) {
        return;
    }
    let server = &mut flow.server;
    advance_snd_nxt(server, segment.end());
    if segment.has(Flags::ACK) {
        server.ack = server.ack.max_seq(segment.ack);
        let window = window_of(segment, server.window_scale);
        server.rcv_wnd_edge = server.rcv_wnd_edge.max_seq(segment.ack + window);
    }
    if let Some(tsval) = options.tsval(&segment.header) {
        server.tsval = tsval;
    }
}

/// The window in bytes; never scaled in a SYN (RFC 7323 2.2), also in a retransmission.
pub(crate) fn window_of(segment: &Segment, scale: u8) -> u32 {
    let scale = if segment.has(Flags::SYN) { 0 } else { scale };
    u32::from(segment.window) << scale
}

/// The client has acknowledged the whole segment.
fn client_has(flow: &Flow, segment: &Segment) -> bool {
    !(segment.end() + flow.splice.delta_seq).after(flow.client.ack)
}

/// Whether this segment becomes the client's acknowledgement of the segment.
fn is_self_acked(flow: &Flow, segment: &Segment, repeated: bool) -> bool {
    segment.sequence_len() > 0
        && !segment.has(Flags::RST)
        && client_has(flow, segment)
        && !ends_with_news(flow, segment)
        && !(repeated && zero_window::sent_beyond_window(flow))
}

/// Numbers more than half of the sequence space apart have no order (RFC 9293 3.4). So the end of
/// the comparison stays as near behind the server's newest output as a retransmission can be.
fn bound_verify_end(flow: &mut Flow) {
    let nxt = flow.splice.nxt + flow.splice.delta_seq;
    let behind = nxt.distance_from(flow.verify.end);
    if behind.is_some_and(|behind| behind >= LARGEST_WINDOW) {
        flow.verify.end = nxt - LARGEST_WINDOW;
    }
}

/// RFC 7323 2.3.
pub(crate) const LARGEST_WINDOW: u32 = 1 << 30;

/// Observes acknowledgement and window of the new server, server space.
fn observe_new_server(flow: &mut Flow, segment: &Segment) {
    if segment.has(Flags::RST) {
        return;
    }
    let splice = &mut flow.splice;
    splice.ack = splice.ack.max_seq(segment.ack);
    let window = window_of(segment, splice.window_scale);
    splice.rcv_wnd_edge = splice.rcv_wnd_edge.max_seq(segment.ack + window);
}

/// A FIN that acknowledges more than the client's newest ACK: most likely the client's own FIN, and
/// no socket of the server could acknowledge later. The client may have this FIN, and then takes
/// the segment for a duplicate.
fn ends_with_news(flow: &Flow, segment: &Segment) -> bool {
    segment.has(Flags::FIN) && segment.ack.after(flow.server.ack)
}

/// Output at a place where the client has unrecorded output.
fn verify_unheard(flow: &mut Flow, segment: &Segment, seq: SeqNumber) -> Result<(), Divergence> {
    let Some(at) = flow.contradicts_unrecorded(segment, seq) else {
        return Ok(());
    };
    flow.verify.diverged_at = at;
    Err(Divergence(at))
}

/// A FIN before the end of the client's outstream contradicts the record: the client would wait for
/// ever for the promised output, and the server would take the silence for consent. (At the end of
/// the outstream, only `verify.end` tells a wrong FIN from a retransmitted FIN.)
fn verify_end(flow: &mut Flow, segment: &Segment) -> Result<(), Divergence> {
    let end = segment.end() + flow.splice.delta_seq;
    let fin = segment.has(Flags::FIN) && !segment.has(Flags::RST);
    // Output that the client has acknowledged with the next input counts as recorded, with the end
    // of the server.
    let inside = (end - 1).before(flow.verify.end) && !flow.repeats_fin(end);
    let early = end.before(flow.server.nxt) || inside;
    if fin && (early || flow.digest.is_repeating()) {
        flow.verify.diverged_at = end - 1;
        flow.verify.ended_early = true;
        return Err(Divergence(end - 1));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
