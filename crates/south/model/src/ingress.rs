//! Ingress (`ingress.h`): from the client's side to the server's TCP.
//!
//! | packet | |
//! |---|---|
//! | not for a protected address:port | other packets |
//! | our own, server space | the server's TCP, untouched |
//! | our own, client space | translated, to the server's TCP |
//! | SYN of a new connection | stored as half-open, to the server; if an earlier incarnation has answered the SYN: |
//! | | dropped while a recovery is under way, and for a second |
//! | first segment that acknowledges the server's SYN-ACK | the half-open connection becomes a flow; "opened" is |
//! | | recorded first: no space, no delivery |
//! | of no known connection | the server's TCP, which resets; dropped while a recovery is under way: the segment may |
//! | | belong to a connection that is being recovered |
//! | of a flow whose server is gone (gated) | client state observed, bytes recorded; dropped |
//! | of a flow, with payload or FIN | recorded first; no space, no delivery |
//! | of a flow on the first server | the server's TCP |
//! | of a restored flow | ignored before the client has shown that the record is whole (`restored`) |
//! | of a spliced flow, FIN of a client that has more output than the new server has sent | dropped: the client |
//! | | retransmits the FIN when the server is there, too |
//! | of a spliced flow, new payload of a client that has more output than the new server has sent | recorded, and |
//! | | dropped: the replay delivers the payload |
//! | of a spliced flow, in a replay: a segment before the number acknowledged to the client | dropped: the record has |
//! | | the bytes |
//! | of a spliced flow, beyond the window of the new server | payload or FIN dropped; a pure ACK gets the number of |
//! | | the window's edge |
//! | of a flow spliced to a later server | acknowledgement number, SACK blocks and echoed timestamp mapped to the new |
//! | | server's, then on; with a zero window, the last acknowledgement is held back (`zero_window`) |
//!
//! A segment changes the client state only if the server's TCP would accept the segment (RFC 9293
//! 3.10.7.4, as Linux checks). Otherwise an attacker could falsify state that recovery relies on.

use protocol::mirror::{CloseReason, FrameKind};
use types::UnprotectedReason;
use wire::{Flags, FlowId, FlowKey, SeqNumber, kind};

use crate::{
    egress::advance_snd_nxt,
    flow::{Flow, LogHalf, Mode, Response, Restored},
    packet::{
        ACK, Network, Options, Packet, SEQ, Segment, WINDOW, find_options, length32, read32, write,
    },
    south::{
        EventKind, MARK_CLIENT_SPACE, MARK_SERVER_SPACE, Shared, SouthSide, Verdict, our_mark,
    },
    zero_window,
};

impl SouthSide {
    /// Verdict on a packet that arrives, from the network or from `serve`.
    pub fn ingress(&mut self, packet: &mut Packet, now_ns: u64) -> Verdict {
        let ours = our_mark(packet.mark, self.shared.settings.mark);
        if self.shared.settings.link && Network::parse(&packet.bytes).is_none() {
            return self.ingress_link(packet, now_ns);
        }
        let Some((network, key)) = self.addressed_to_us(packet) else {
            return Verdict::Next;
        };
        if ours.is_some() {
            packet.mark = 0; // it has done its work; rules of others must not see it
        }
        let Some(segment) = Segment::parse(&packet.bytes, network) else {
            return Verdict::Next;
        };
        if ours == Some(MARK_SERVER_SPACE) {
            if let Some(flow) = self.flows.get_mut(&key)
                && flow.mode == Mode::Spliced
                && segment.has(Flags::ACK)
            {
                zero_window::advance_una(flow, segment.ack);
            }
            return Verdict::Next;
        }
        if ours == Some(MARK_CLIENT_SPACE) {
            return self.ingress_replayed(packet, key, &segment, now_ns);
        }
        let syn = segment.has(Flags::SYN) && !segment.has(Flags::ACK) && !segment.has(Flags::RST);
        if syn && self.may_open(key, &segment, now_ns) {
            return self.ingress_syn(packet, key, &segment, now_ns);
        }
        let known = self.flows.contains_key(&key);
        if !known && !self.promote(key, &segment, packet.ifindex, now_ns) {
            return Verdict::Drop;
        }
        if let Some(flow) = self.flows.get_mut(&key)
            && !known
            && segment.sequence_len() == 0
            && self.shared.linked(flow)
        {
            // The logger learns that a client is there: the logger drops the oldest unfinished
            // handshakes. If this SEGMENT is lost, the client's first input does the same.
            self.shared
                .link_instream(packet, key, flow, &segment, now_ns);
        }
        match self.flows.get_mut(&key) {
            Some(flow) => self
                .shared
                .ingress_flow(packet, key, flow, &segment, now_ns),
            None => self.shared.ingress_stray(now_ns),
        }
    }

    fn addressed_to_us(&self, packet: &Packet) -> Option<(Network, FlowKey)> {
        let network = Network::parse(&packet.bytes)?;
        let (client, server) = network.ends(&packet.bytes)?;
        let key = FlowKey::new(client, server);
        // A connection that the server has opened begins at any port.
        let ours = self.shared.is_endpoint(server) || self.flows.contains_key(&key);
        ours.then_some((network, key))
    }

    fn ingress_replayed(
        &mut self,
        packet: &mut Packet,
        key: FlowKey,
        segment: &Segment,
        now_ns: u64,
    ) -> Verdict {
        let Some(flow) = self.flows.get_mut(&key) else {
            return Verdict::Drop;
        };
        // A connection that the server has closed would answer with a RST.
        let takes = flow.mode == Mode::Spliced
            && !flow.server_closing
            && !self.shared.flow_gated(flow, now_ns);
        if !takes || flow.doubt_precedes_repeat(segment) {
            return Verdict::Drop;
        }
        let options = find_options(&segment.header);
        self.shared.translate_in(packet, flow, segment, &options)
    }

    /// Whether this SYN can begin a connection. The ports of a finished connection are used again.
    fn may_open(&mut self, key: FlowKey, syn: &Segment, now_ns: u64) -> bool {
        let Some(flow) = self.flows.get(&key) else {
            return true;
        };
        if flow.closed_ns != 0 || flow.never_was(syn) {
            self.evict(key, now_ns);
            return true;
        }
        // The connection of this flow may be over: the socket is gone before the event arrives. The
        // server's TCP knows, and a SYN-ACK shows the end (`opens_anew`).
        syn.seq != flow.client.isn && !self.shared.flow_stands_still(flow, now_ns)
    }

    /// Forgets a flow whose ends are another connection's.
    pub(crate) fn evict(&mut self, key: FlowKey, now_ns: u64) {
        if let Some(flow) = self.flows.remove(&key) {
            let reason = CloseReason::Evicted;
            self.shared
                .mirror_marker(&flow, FrameKind::Closed(reason), now_ns);
        }
    }

    /// A SYN: begin to know a connection.
    fn ingress_syn(
        &mut self,
        packet: &mut Packet,
        key: FlowKey,
        segment: &Segment,
        now_ns: u64,
    ) -> Verdict {
        if self.shared.service_gated(now_ns) {
            self.shared.counters.gated_in += 1;
            return Verdict::Drop; // the client tries again in a second
        }
        let incarnation = self.shared.service.incarnation;
        // A SYN that comes twice must not make us forget the answer to the first.
        let answered = self
            .half_open
            .get_mut(&key)
            .filter(|half_open| half_open.server.synack_seen && half_open.client.isn == segment.seq)
            .map(|half_open| (half_open.incarnation, half_open.given_ns));
        // If an earlier incarnation answered, the client's ACK may be on the way, and a second
        // answer would contradict the first. The client retransmits the SYN.
        let is_contradicted = answered.is_some_and(|(life, first_ns)| {
            life != incarnation && self.shared.answer_is_awaited(first_ns, now_ns)
        });
        if is_contradicted {
            self.shared.counters.gated_in += 1;
            return Verdict::Drop;
        }
        let options = find_options(&segment.header);
        if options.authenticated {
            self.shared.counters.untracked += 1; // keys that we do not have: let it be
            return Verdict::Next;
        }
        let header = without(&options, segment);
        if !options.unsupported.is_empty() {
            segment.commit(packet, header.clone());
            self.shared.counters.stripped += 1;
        }
        if answered.is_none_or(|(life, _)| life != incarnation) {
            if let Some(known) = self.half_open.get_mut(&key) {
                self.shared.replace_half_open(known, now_ns);
            }
            let mut half_open = half_open(segment, &options, &header, incarnation, packet.ifindex);
            half_open.given_ns = now_ns;
            self.half_open.insert(key, half_open);
        }
        Verdict::Next
    }

    /// A segment of no flow may be the last step of a handshake whose beginning was seen. The
    /// segment need not be the third ACK: that ACK may be lost, or come after data. Any end of the
    /// handshake for the server's TCP must be an end here, too: otherwise the record would begin
    /// with a gap.
    ///
    /// False: the record cannot be opened now. As with later input, the server must not get the segment then; client
    /// or server retransmits the last step of the handshake.
    fn promote(&mut self, key: FlowKey, segment: &Segment, ifindex: u32, now_ns: u64) -> bool {
        let Some(half_open) = self.half_open.get_mut(&key) else {
            return true;
        };
        if !half_open.server.synack_seen
            || segment.ack != half_open.server.isn + 1
            || !believable(half_open, segment)
        {
            return true;
        }
        let shared = &mut self.shared;
        if half_open.id == FlowId(0) {
            // Otherwise a logger knows the handshake by the number already, or this is not the
            // first try.
            half_open.id = FlowId(shared.service.next_flow_id);
            shared.service.next_flow_id += 1;
        }
        let mut flow = half_open.clone();
        flow.client.ack = segment.ack;
        shared.begin_head(&mut flow); // a server may speak first
        flow.verify.heads_to = flow.server.nxt;
        flow.verify.request_end = flow.client.isn + 1;
        flow.ifindex = ifindex;
        let kind = FrameKind::Opened {
            client_isn: flow.client.isn,
            server_isn: flow.server.isn,
        };
        let opened = shared.settings.link || shared.mirror_marker(&flow, kind, now_ns);
        if !opened && !shared.abandoned(now_ns) {
            shared.counters.mirror_full += 1;
            return false;
        }
        if self.flows.len() >= shared.settings.max_flows {
            shared.counters.table_full += 1;
            if !shared.settings.link {
                let reason = CloseReason::Evicted;
                shared.mirror_marker(&flow, FrameKind::Closed(reason), now_ns);
            }
            shared.lose_protection(
                key,
                &mut flow,
                UnprotectedReason::TooManyConnections,
                now_ns,
            );
            self.half_open.remove(&key);
            return true;
        }
        if !opened {
            shared.lose_protection(key, &mut flow, UnprotectedReason::MirrorLost, now_ns);
        }
        // The server died while the client's ACK was on the way, and the other connections may have
        // been spliced already.
        if flow.incarnation != shared.service.incarnation {
            let flow_id = flow.id;
            shared.emit(EventKind::Late { key, flow: flow_id }, now_ns);
        }
        self.half_open.remove(&key);
        self.flows.insert(key, flow);
        true
    }
}

/// Less than the initial retransmission timeout (RFC 6298 2.1), ns: a client without an answer
/// retransmits the SYN later. An earlier SYN is a duplicate of the network.
const FIRST_TIMEOUT: u64 = 900_000_000;

impl Shared {
    /// Whether a client may still be about to acknowledge the answer of an earlier incarnation to a
    /// SYN at `first_ns`.
    fn answer_is_awaited(&self, first_ns: u64, now_ns: u64) -> bool {
        let is_copy = now_ns.saturating_sub(first_ns) < FIRST_TIMEOUT;
        (self.service.recovering || is_copy) && !self.abandoned(now_ns)
    }

    /// A handshake begins again: the logger that knows the handshake by number learns that the
    /// handshake will not finish.
    pub(crate) fn replace_half_open(&mut self, half_open: &mut Flow, now_ns: u64) {
        if self.settings.link && half_open.id != FlowId(0) {
            let reason = CloseReason::Evicted;
            self.mirror_marker(half_open, FrameKind::Closed(reason), now_ns);
        }
        half_open.id = FlowId(0);
    }

    /// A segment of no connection that we know.
    fn ingress_stray(&mut self, now_ns: u64) -> Verdict {
        if self.service_gated(now_ns) || self.strays_dropped(now_ns) {
            self.counters.gated_in += 1;
            return Verdict::Drop;
        }
        self.counters.untracked += 1;
        Verdict::Next
    }

    fn ingress_flow(
        &mut self,
        packet: &mut Packet,
        key: FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        now_ns: u64,
    ) -> Verdict {
        let options = find_options(&segment.header);
        let gated = self.flow_stands_still(flow, now_ns);
        let answer = flow.verify.response == Response::Begun;
        if matches!(
            flow.log.restored,
            Restored::Unconfirmed | Restored::GapKnown
        ) && !self.hear_restored(key, flow, segment, &options, now_ns)
        {
            self.counters.gated_in += 1;
            return Verdict::Drop;
        }
        if observe_client(flow, segment, &options, gated) {
            self.hear_rest(key, flow, segment, &options, now_ns);
        }
        flow.ifindex = packet.ifindex;
        self.link_digest(packet, flow, segment, now_ns);
        // Bytes that were acknowledged before are in the record already.
        let brings = segment.sequence_len() > 0 && segment.end().after(flow.server.ack);
        let mut recorded = true;
        if brings && believable(flow, segment) && flow.mode != Mode::Diverged {
            // A client that sends after receiving all output may begin a request.
            if flow.client.ack == flow.server.nxt {
                self.begin_head(flow);
                if answer {
                    self.protect_again(key, flow, segment, now_ns);
                }
            }
            // Recorded while gated, too: bytes in the replay need not wait for the client's
            // retransmission timer, which doubles with each try.
            recorded = self.mirror_instream(packet, key, flow, segment, now_ns);
        } else if self.is_progress(flow, segment) {
            self.link_instream(packet, key, flow, segment, now_ns);
        }
        let gated = gated
            || fin_precedes_repeat(flow, segment, now_ns)
            || waits_for_server(flow, segment)
            || self.payload_precedes_repeat(flow, segment, now_ns)
            || overshoots(flow, segment)
            || lags(flow, segment);
        self.counters.gated_in += u64::from(gated);
        if gated || !recorded {
            return Verdict::Drop;
        }
        match flow.mode {
            Mode::Spliced => self.translate_in(packet, flow, segment, &options),
            _ => Verdict::Next,
        }
    }

    /// New input of a client that has more output than the new server has sent. The input is
    /// recorded. The replay delivers the input after the server has repeated the client's whole
    /// outstream exactly: the server executes no request of a connection that is going to be lost.
    /// Input that the server already has need not wait. A grafted socket has no output to repeat.
    fn payload_precedes_repeat(&self, flow: &Flow, segment: &Segment, now_ns: u64) -> bool {
        let end = segment.seq + length32(segment.payload_len);
        let brings = segment.payload_len > 0 && end.after(flow.splice.ack);
        let is_unsent =
            segment.ack.after(flow.spliced_snd_nxt()) && !segment.ack.after(flow.server.nxt);
        flow.mode == Mode::Spliced
            && flow.splice.delta_seq != 0
            && brings
            && !segment.has(Flags::RST)
            && is_unsent
            && !self.may_have_been_read(flow, segment.seq, end)
            && !self.abandoned(now_ns)
    }

    /// An earlier server may have read this input without a record: the client's outstream may
    /// contain the response, and only the client has the input. (Later input in the same segment
    /// has to wait: the replay delivers both, unless recording has ended.)
    fn may_have_been_read(&self, flow: &Flow, seq: SeqNumber, end: SeqNumber) -> bool {
        let log = &flow.log;
        let last = match flow.unprotected {
            None => end,
            Some(_) => seq + 1,
        };
        let by_dead_host =
            log.restored != Restored::Not && log.doubt.is_none_or(|doubt| !last.after(doubt));
        let was_read = !last.after(log.former_ack) || by_dead_host;
        self.settings.link && end.after(log.stable) && was_read
    }

    /// A flow that lost the logger, and has a logger again. The record can begin at the first new
    /// input after all input and output so far, if all earlier input was answered. Otherwise the
    /// client may be in the middle of a request, and a later server would get only the rest of the
    /// request.
    fn protect_again(&mut self, key: FlowKey, flow: &mut Flow, segment: &Segment, now_ns: u64) {
        let (instream, outstream) = (segment.seq, flow.server.nxt);
        if flow.unprotected != Some(UnprotectedReason::AwaitsTurn)
            || flow.closed_ns != 0
            || !self.service.link_up
            || segment.ack != outstream
            || instream != flow.server.ack
            || self.flow_gated(flow, now_ns)
            || flow.mode == Mode::Splicing
        {
            return;
        }
        flow.log = LogHalf {
            stable: instream,
            ack: flow.server.ack,
            former_ack: flow.server.ack,
            tsecr: flow.client.tsval,
            rcv_wnd_edge: flow.server.rcv_wnd_edge,
            copied_ack: segment.ack,
            ..LogHalf::default()
        };
        flow.verify.heads_to = segment.ack;
        flow.verify.request_end = segment.seq;
        flow.digest
            .begin(self.settings.digests.as_ref(), segment.ack);
        flow.unprotected = None;
        let flow_id = flow.id;
        let event = EventKind::Reprotected {
            key,
            flow: flow_id,
            instream,
            outstream,
        };
        self.emit(event, now_ns);
    }

    fn translate_in(
        &mut self,
        packet: &mut Packet,
        flow: &mut Flow,
        segment: &Segment,
        options: &Options,
    ) -> Verdict {
        let mut header = segment.header.clone();
        let mut withheld = flow.splice.ack_withheld;
        if segment.has(Flags::ACK) {
            let ack = acknowledgement_in(flow, segment.ack);
            let is_replaying = zero_window::is_replaying(flow);
            let ack = zero_window::ack_for_server(flow, ack, !is_replaying);
            zero_window::advance_una(flow, ack);
            withheld |= flow.splice.ack_withheld;
            write(&mut header, ACK, ack.0.to_be_bytes());
            // See `overshoots`. The server's TCP and a connection tracker take a number at the edge.
            let is_bare = segment.sequence_len() == 0 && !segment.has(Flags::RST);
            if is_bare && segment.seq.after(flow.splice.rcv_wnd_edge) {
                write(&mut header, SEQ, flow.splice.rcv_wnd_edge.0.to_be_bytes());
            }
            let room = zero_window::self_ack_window(flow);
            if is_replaying && segment.window < room {
                write(&mut header, WINDOW, room.to_be_bytes());
            }
            if let (Some(at), Some(tsecr)) = (options.tsecr_at(), options.tsecr(&header)) {
                // An echo from before the splice would look like a round trip of the whole outage.
                let echo = SeqNumber(tsecr) - flow.splice.ts_delta;
                let first = SeqNumber(flow.splice.first_tsval);
                let echo = if echo.before(first) { first } else { echo };
                // The client's echo is older than the retransmission: Linux would take the retransmission for spurious.
                let echo = if withheld { 0 } else { echo.0 };
                write(&mut header, at, echo.to_be_bytes());
            }
        }
        for at in options.sack_edges.clone().step_by(4) {
            let edge = SeqNumber(read32(&segment.header, at)) - flow.splice.delta_seq;
            write(&mut header, at, edge.0.to_be_bytes());
        }
        if withheld && !options.sack_edges.is_empty() {
            // The blocks lie in the part that is held back.
            let blocks = options.sack_edges.start - 2..options.sack_edges.end;
            header[blocks].fill(kind::NO_OPERATION);
        }
        segment.commit(packet, header);
        self.counters.translated_in += 1;
        Verdict::Next
    }
}

/// The client may have acknowledged more than the new server has sent so far; an acknowledgement of
/// output that no server has sent stays invalid.
fn acknowledgement_in(flow: &Flow, ack: SeqNumber) -> SeqNumber {
    let mapped = ack - flow.splice.delta_seq;
    if mapped.after(flow.splice.nxt) && !ack.after(flow.server.nxt) {
        flow.splice.nxt
    } else {
        mapped
    }
}

/// Time for the new server to repeat the client's outstream, ns.
const FIN_PATIENCE: u64 = 30_000_000_000;

/// The dead host may have answered this input: the input is recorded, and the replay delivers the
/// input.
fn waits_for_server(flow: &Flow, segment: &Segment) -> bool {
    flow.is_doubted(segment) && !segment.has(Flags::RST)
}

/// An earlier server may have offered the client a window that ends far behind the window of the
/// new server. The new server's TCP cannot use a segment beyond the new window (RFC 9293 3.10.7.4),
/// and a connection tracker is misled.
///
/// In a replay a segment that crosses the edge is dropped, too: the replay delivers the bytes, and the answer of the
/// server's TCP would be withheld. Later the answer is needed: only the answer tells the client of the zero window.
fn overshoots(flow: &Flow, segment: &Segment) -> bool {
    let brings = segment.sequence_len() > 0 && !segment.has(Flags::RST);
    let is_replaying = flow.splice.ack.before(flow.server.ack);
    let number = if is_replaying {
        segment.end()
    } else {
        segment.seq
    };
    flow.mode == Mode::Spliced
        && !flow.server_closing
        && brings
        && number.after(flow.splice.rcv_wnd_edge)
}

/// Does the segment end before the number that the client was told? In a replay the new server's TCP may accept such a
/// segment, and remember the timestamp (RFC 7323 4.3). The programs do not believe the segment, and keep the older
/// timestamp. With that timestamp the server's TCP would discard the rest of the replay (PAWS, RFC 7323 5.3).
fn lags(flow: &Flow, segment: &Segment) -> bool {
    flow.mode == Mode::Spliced
        && !flow.server_closing
        && !segment.has(Flags::RST)
        && flow.splice.ack.before(flow.server.ack)
        && segment.end().before(flow.server.ack)
}

/// The FIN of a client that has more output than the new server has sent. The first server had sent
/// all this output before the FIN. A server that gets the FIN earlier takes the client for gone,
/// and stops in the middle of a response (nginx does). The client retransmits the FIN. But a server
/// that never repeats the output must get the FIN in the end: the server closes too early, and the
/// client is reset instead of waiting in vain.
fn fin_precedes_repeat(flow: &Flow, segment: &Segment, now_ns: u64) -> bool {
    flow.mode == Mode::Spliced
        && now_ns - flow.given_ns < FIN_PATIENCE
        && segment.has(Flags::FIN)
        && !segment.has(Flags::RST)
        && segment.ack.after(flow.splice.nxt + flow.splice.delta_seq)
        && !segment.ack.after(flow.server.nxt)
}

/// RFC 9293 3.10.7.4, first check, as Linux does this check.
fn in_window(flow: &Flow, segment: &Segment) -> bool {
    !segment.end().before(flow.server.ack) && !segment.seq.after(flow.server.rcv_wnd_edge)
}

/// Whether the server's TCP would accept any part of this segment: a SYN is challenged (RFC 5961
/// 4.2); a segment without ACK flag, or with an acknowledgement of unsent data, is dropped.
fn believable(flow: &Flow, segment: &Segment) -> bool {
    in_window(flow, segment)
        && segment.has(Flags::ACK)
        && !segment.has(Flags::SYN)
        && !segment.has(Flags::RST)
        && !segment.ack.after(flow.snd_max())
}

/// Updates the client state from a segment. False: the segment is not believed.
fn observe_client(flow: &mut Flow, segment: &Segment, options: &Options, gated: bool) -> bool {
    if segment.has(Flags::RST) {
        // RFC 5961 3.2: only at exactly RCV.NXT; a gated server cannot challenge, so the client's
        // own SND.NXT counts too.
        let exact = segment.seq == flow.server.ack || segment.seq == flow.client.nxt;
        flow.client.reset |= gated && exact && in_window(flow, segment);
        return false;
    }
    if !believable(flow, segment) {
        return false;
    }
    if let Some(tsval) = options.tsval(&segment.header) {
        if flow.client.tsval != 0 && SeqNumber(tsval).before(SeqNumber(flow.client.tsval)) {
            return false; // PAWS, RFC 7323 5
        }
        flow.client.tsval = tsval;
        // With a log link, server and logger together are the receiver. When the client retransmits
        // because the logger lacks a segment, the server's own echo would be that of the first
        // copy, long ago: the client would take the retransmission for spurious, and the delay for
        // a round-trip time.
        if !segment.seq.after(flow.server.ack) {
            flow.log.tsecr = tsval;
        }
    }
    if flow.log.restored != Restored::Not {
        flow.on_late_ack(segment);
        advance_snd_nxt(&mut flow.server, segment.ack);
        flow.on_sack_blocks(segment, options);
        flow.forget_dead_host();
    }
    if segment.end() != segment.seq && !segment.seq.after(flow.server.ack) {
        flow.log.snd_beyond_stable = false; // what is missing comes
    }
    if segment.end().after(flow.client.nxt) {
        flow.client.nxt = segment.end();
        flow.client.response_start = flow.server.nxt;
        if flow.verify.response == Response::Begun {
            flow.verify.response = Response::None;
        }
    }
    if !segment.ack.before(flow.client.ack) {
        flow.client.ack = segment.ack;
        flow.client.window = segment.window;
    }
    true
}

/// The header with the options that we cannot carry blanked.
fn without(options: &Options, segment: &Segment) -> Vec<u8> {
    let mut header = segment.header.clone();
    for place in &options.unsupported {
        if let Some(option) = header.get_mut(place.clone()) {
            option.fill(wire::kind::NO_OPERATION);
        }
    }
    header
}

fn half_open(
    syn: &Segment,
    options: &Options,
    header: &[u8],
    incarnation: u32,
    ifindex: u32,
) -> Flow {
    let mut flow = Flow {
        incarnation,
        ifindex,
        whole_segments: options.multipath,
        syn_flags: syn.flags.bits(),
        syn_window: syn.window,
        syn_options: header
            .get(wire::MIN_TCP_HEADER..)
            .unwrap_or_default()
            .to_vec(),
        ..Flow::default()
    };
    flow.client.isn = syn.seq;
    flow.client.nxt = syn.seq + 1;
    flow.client.window = syn.window;
    flow.client.window_scale = options.scale();
    flow.client.tsval = options.tsval(&syn.header).unwrap_or_default();
    flow
}

#[cfg(test)]
mod tests;
