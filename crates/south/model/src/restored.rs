//! Flows of a dead host, restored from the record at the logger (`restored.h`; FT-TCP IV.E).
//!
//! The client knows the numbers that the logger lacks: a client that gets a segment below the
//! receive window answers with the client's own numbers ([`crate::keepalive_probe`]). Before the
//! client has sent, a restored flow stands still.
//!
//! The client's numbers also show whether the record is whole. A dead host may have gone on without
//! a logger for a while: then the dead server has acknowledged unrecorded input. A replay would
//! begin too early, and the new server's output would count as the response to another request. A
//! client that has sent only recorded input, or retransmits from a recorded place, has no
//! acknowledgement beyond that place.
//!
//! The client shows data behind a gap in SACK blocks: in answer to a probe, and not always in a
//! retransmission. Until the client has shown these blocks, no server gets the connection. A client
//! without SACK never shows the blocks. Such a client is lost if the client may have a part of an
//! unrecorded response (see docs/internals/log-link.md).
//!
//! A server with state (north side) cannot fail in a replay in this way. The output of the server
//! is fixed, and no unrecorded input was acknowledged while a supervisor was there. Such a client
//! is believed, too, if the client has sent beyond the record to a host that no longer received the
//! input. Otherwise the client would have to wait for the retransmission timer, which doubles with
//! each try. If more was acknowledged after all, the connection stands still, because the next byte
//! never comes: `snd_beyond_stable` stays until the client has sent bytes from a recorded place.
//! `serve` resets a client for which `snd_beyond_stable` stays too long.
//!
//! An attacker who guesses must not pass for the client. So the numbers of a client must lie near
//! the record:
//!
//! | number | |
//! |---|---|
//! | sequence number | at most a window of the server below the end of the record, or one less: the client |
//! | | retransmits from the acknowledgement, and recorded input was offered (keep-alive: RFC 9293 3.8.4); |
//! | | or at most a window above the end, if the client is ahead |
//! | acknowledgement | at most one window of the client above the record (under way when the host died), and the |
//! | | progress that a logger does not learn of ([`PROGRESS`]) |
//! | timestamps | at most [`AGE`] newer than the record, if both ends agreed on timestamps |
//!
//! A client that waits or listens has the end of the record as sequence number; a guess hits that
//! number once in 2^32. For such a client the acknowledgement may be [`LAG`] higher. The timestamps
//! may be any value but slightly older than the record, which would be a segment from an earlier
//! time. The record of an idle connection may be older than PAWS can tell (RFC 7323 5.5), the more
//! with a tick of one microsecond.

use std::collections::{BTreeMap, btree_map::Entry};

use protocol::control::{RecordSummary, Recorded};
use wire::{Flags, FlowId, FlowKey, SeqNumber, SynOptions};

use crate::{
    egress::advance_snd_nxt,
    flow::{ClientHalf, Flow, LogHalf, Mode, Restored, ServerHalf, VerifyHalf},
    link::PROGRESS,
    packet::{Options, Segment, length32, read32},
    south::{EventKind, Shared},
};

/// Ticks: three days of milliseconds. Of who only uploads, a log on disk may have none but the SYN's.
const AGE: u32 = 1 << 28;
/// SEGMENTs with progress may be lost, and a log on disk writes late (at most a second, and one
/// commit): two seconds at 1 Gbit/s.
const LAG: u32 = 1 << 28;

impl Flow {
    /// End of all output that the client may have. A dead host may have sent more than the record
    /// has: at most up to the right edge of the client's window at that time.
    pub(crate) fn snd_max(&self) -> SeqNumber {
        if self.log.restored != Restored::Not && self.log.client_wnd_edge.after(self.server.nxt) {
            self.log.client_wnd_edge
        } else {
            self.server.nxt
        }
    }

    /// Output since the splice reaches as far as the output of the dead host may have: all data of
    /// the client is known, as of any other flow.
    pub(crate) fn forget_dead_host(&mut self) {
        if self.server.nxt.after(self.log.client_received)
            && !self.log.client_wnd_edge.after(self.server.nxt)
        {
            self.log.restored = Restored::Not;
        }
    }

    /// Output that the client acknowledges, and that this host has not sent, is the dead host's.
    pub(crate) fn on_late_ack(&mut self, segment: &Segment) {
        if segment.ack.after(self.server.nxt) {
            self.log.client_received = self.log.client_received.max_seq(segment.ack);
        }
    }

    /// SND.NXT of the present server, after a splice; client space.
    pub(crate) fn spliced_snd_nxt(&self) -> SeqNumber {
        self.splice.nxt + self.splice.delta_seq
    }

    /// Input that the dead host may have answered. The client may have the response: the client has
    /// received more than the recorded heads, and the present server has not repeated as much.
    /// Returns where the input in doubt begins, and how far the server must repeat output before.
    #[must_use]
    pub fn doubt(&self) -> Option<(SeqNumber, SeqNumber)> {
        let heard = self.log.client_received;
        let is_said_again = self.mode == Mode::Spliced && self.spliced_snd_nxt().at_or_after(heard);
        let in_doubt = match self.log.restored {
            _ if self.log.stateful => false,
            Restored::GapUnknown => true, // it may have heard more
            Restored::Confirmed => heard.after(self.verify.heads_to) && !is_said_again,
            Restored::Not | Restored::Unconfirmed | Restored::GapKnown => false,
        };
        let from = self.log.doubt.filter(|_| in_doubt)?;
        Some((from, heard))
    }

    /// A digest covers the whole outstream that the client has. The replay may give the server all
    /// input that the dead server had read by then: the resulting output is compared, too, before
    /// the output leaves.
    #[must_use]
    pub fn compares_all_received(&self) -> bool {
        self.digest.is_repeating() && !self.log.client_received.after(self.digest.sent.next)
    }

    /// The replay gives input in doubt to the server after the server has repeated the outstream
    /// that the client has. A server may have closed in response to the input, and repeats the FIN
    /// no sooner: then all but the last number is enough.
    pub(crate) fn doubt_precedes_repeat(&mut self, segment: &Segment) -> bool {
        let is_doubted = self.is_doubted(segment) && !self.compares_all_received();
        let ends = self.spliced_snd_nxt() + 1 == self.log.client_received;
        if is_doubted && ends && self.log.unrecorded_from.is_none() {
            self.log.unrecorded_from = Some(self.log.client_received - 1);
        }
        is_doubted && !ends
    }

    /// The place at which the server's output overlaps unrecorded output that the client has of
    /// another incarnation, as far as the programs can tell.
    pub(crate) fn contradicts_unrecorded(
        &mut self,
        segment: &Segment,
        seq: SeqNumber,
    ) -> Option<SeqNumber> {
        let from = self.log.unrecorded_from.filter(|_| !self.log.stateful)?;
        if !seq.before(self.log.client_received) {
            self.log.unrecorded_from = None; // it has come past that
            return None;
        }
        let end = seq + length32(segment.payload_len);
        let is_unrecorded = from.before(self.log.client_received) && end.after(from);
        is_unrecorded.then(|| seq.max_seq(from))
    }

    /// Whether this segment, or the end of the segment, is in doubt. (The client's FIN waits
    /// separately: see `fin_precedes_repeat`.)
    pub(crate) fn is_doubted(&self, segment: &Segment) -> bool {
        let end = segment.seq + length32(segment.payload_len);
        let brings = |from| segment.payload_len > 0 && end.after(from);
        self.doubt().is_some_and(|(from, _)| brings(from))
    }

    /// The client has this of the dead host's output, also behind a gap (RFC 2018).
    pub(crate) fn on_sack_blocks(&mut self, segment: &Segment, options: &Options) {
        let known = self.server.nxt.max_seq(segment.ack);
        let edges = options.sack_edges.clone().step_by(4);
        for edge in edges.map(|at| SeqNumber(read32(&segment.header, at))) {
            if edge.after(known) && !edge.after(self.log.client_wnd_edge) {
                self.log.client_received = self.log.client_received.max_seq(edge);
            }
        }
    }

    /// How far a client that was not confirmed yet has received, and the right edge of the client's
    /// window. SACK blocks from before, when the client was ahead of the record, count as well.
    fn on_first_segment(&mut self, segment: &Segment, options: &Options) {
        let room = u32::from(segment.window) << (self.client.window_scale & 15);
        self.log.client_wnd_edge = segment.ack + room;
        if !self.log.client_received.after(segment.ack)
            || self.log.client_received.after(self.log.client_wnd_edge)
        {
            self.log.client_received = segment.ack;
        }
        self.on_sack_blocks(segment, options);
    }

    fn is_beyond_stable(&self, segment: &Segment) -> bool {
        segment.seq.after(self.log.stable)
    }

    /// Whether this segment shows the data that the client has behind a gap. SACK blocks do, and an
    /// acknowledgement without SACK blocks does, too. Some stacks leave SACK blocks out of
    /// retransmissions and keep-alives.
    fn shows_gaps(&self, segment: &Segment, options: &Options) -> bool {
        let answers = segment.sequence_len() == 0 && segment.seq.at_or_after(self.log.stable);
        self.server.sack && (answers || !options.sack_edges.is_empty())
    }

    /// A client that sends unrecorded bytes, and never shows data behind a gap.
    fn never_shows_gaps(&self) -> bool {
        let is_of_interest = self.log.doubt.is_some() && self.log.restored == Restored::Unconfirmed;
        is_of_interest && !self.server.sack
    }

    /// State of a client that shows that the record is whole; `None`: no change yet. A client
    /// without SACK can have no unrecorded data behind a gap under three conditions: a response to
    /// the client's last input has begun, the beginning of the response is recorded, and the client
    /// has sent no data since.
    fn confirmed_state(
        &self,
        segment: &Segment,
        options: &Options,
        verify_head: u32,
    ) -> Option<Restored> {
        let is_of_no_interest = self.log.stateful || self.log.doubt.is_none();
        let needs_no_gaps = is_of_no_interest || self.log.restored == Restored::GapKnown;
        if needs_no_gaps || self.shows_gaps(segment, options) {
            return Some(Restored::Confirmed);
        }
        let has_said_more = segment.end().after(self.log.stable);
        if self.server.sack || has_said_more {
            return Some(Restored::GapUnknown);
        }
        // Neither a recorded byte nor a keep-alive shows the data that comes behind.
        let shows_all = segment.sequence_len() == 0 && segment.seq == self.log.stable;
        let is_answered = self.verify.head_left < verify_head;
        let state = if is_answered {
            Restored::Confirmed
        } else {
            Restored::GapUnknown
        };
        shows_all.then_some(state)
    }

    /// Whether this segment can be from the flow's client. `timestamps` are TSval and TSecr, if
    /// present.
    fn credits(&self, segment: &Segment, timestamps: Option<(u32, u32)>) -> bool {
        let between = |from: SeqNumber, to: SeqNumber| to.0.wrapping_sub(from.0);
        let whole = |scale: u8| u32::from(u16::MAX) << (scale & 15);
        let (offered, window) = (
            whole(self.server.window_scale),
            whole(self.client.window_scale),
        );
        let exact = segment.seq == self.log.stable;
        let reach = window + PROGRESS.max(window / 2) + if exact { LAG } else { 0 };
        let believed = if self.is_beyond_stable(segment) {
            between(self.log.stable, segment.seq) <= offered
        } else {
            between(segment.seq, self.log.stable) <= offered + 1
        };
        if !believed || between(self.client.ack, segment.ack) > reach {
            return false;
        }
        // RFC 7323 3.2: an end that agreed on timestamps sends timestamps in each segment.
        !self.server.timestamps
            || timestamps.is_some_and(|(tsval, tsecr)| {
                is_later(self.client.tsval, tsval, exact)
                    && is_later(self.server.tsval, tsecr, exact)
            })
    }

    /// Is this a SYN of a client that never knew the connection?
    pub(crate) fn never_was(&self, syn: &Segment) -> bool {
        matches!(
            self.log.restored,
            Restored::Unconfirmed | Restored::GapKnown
        ) && syn.seq == self.client.isn
    }
}

impl Shared {
    /// Processes a segment of the client of a restored flow. True: the segment shows that the
    /// record is whole.
    pub(crate) fn hear_restored(
        &mut self,
        key: FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        options: &Options,
        now_ns: u64,
    ) -> bool {
        let flow_id = flow.id;
        let late = EventKind::Late { key, flow: flow_id };
        if segment.has(Flags::RST) {
            if segment.seq == flow.server.ack || segment.seq == flow.client.nxt {
                flow.client.reset = true;
                self.emit(late, now_ns);
            }
            return false;
        }
        let header = &segment.header;
        let timestamps = options.tsval(header).zip(options.tsecr(header));
        let right = segment.has(Flags::ACK) && !segment.has(Flags::SYN);
        if !right || !flow.credits(segment, timestamps) {
            return false;
        }
        let is_beyond_stable = flow.is_beyond_stable(segment);
        if is_beyond_stable && !flow.log.stateful {
            // The client retransmits unrecorded input, maybe without SACK blocks.
            if flow.shows_gaps(segment, options) {
                flow.on_first_segment(segment, options);
                flow.log.restored = Restored::GapKnown;
            } else if flow.never_shows_gaps() {
                flow.on_first_segment(segment, options);
                flow.log.restored = Restored::GapUnknown;
                self.emit(late, now_ns);
            }
            return false;
        }
        let verify_head = self.settings.verify_head;
        let Some(state) = flow.confirmed_state(segment, options, verify_head) else {
            return false;
        };
        flow.on_first_segment(segment, options);
        advance_snd_nxt(&mut flow.server, segment.ack);
        flow.client.ack = segment.ack;
        flow.client.window = segment.window;
        if let Some((tsval, tsecr)) = timestamps.filter(|_| flow.server.timestamps) {
            flow.client.tsval = tsval;
            flow.server.tsval = tsecr;
            flow.log.tsecr = tsval;
        }
        flow.log.snd_beyond_stable = is_beyond_stable;
        flow.log.restored = state;
        self.emit(late, now_ns); // a client whose gaps are unknown is probed at once
        true
    }

    /// The record is whole, and now the client shows the data behind a gap, too.
    pub(crate) fn hear_rest(
        &mut self,
        key: FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        options: &Options,
        now_ns: u64,
    ) {
        let flow_id = flow.id;
        if flow.log.restored == Restored::GapUnknown && flow.shows_gaps(segment, options) {
            flow.log.restored = Restored::Confirmed;
            self.emit(EventKind::Late { key, flow: flow_id }, now_ns);
        }
    }
}

/// Can `tsval` follow the timestamp `known`? 0: none was received, for the server has opened the connection.
fn is_later(known: u32, tsval: u32, exact: bool) -> bool {
    let age = tsval.wrapping_sub(known);
    age <= AGE || (exact && (known == 0 || age < AGE.wrapping_neg()))
}

/// The newer of two timestamps (RFC 7323 5.2).
fn newer(a: u32, b: u32) -> u32 {
    if SeqNumber(b).after(SeqNumber(a)) {
        b
    } else {
        a
    }
}

/// The client's newest known TSval, and the client's newest echo of the server's TSval. 0 is a
/// valid value. But if both are 0, no timestamp came since the SYN.
fn newest_timestamps(recorded: &Recorded) -> (u32, u32) {
    let handshake = &recorded.beginning.handshake;
    if (recorded.tsval, recorded.tsecr) == (0, 0) {
        let syn = SynOptions::parse(handshake.syn_options.as_slice());
        (syn.timestamps.map_or(0, |syn| syn.value), handshake.tsval)
    } else {
        (recorded.tsval, newer(handshake.tsval, recorded.tsecr))
    }
}

/// Of several records of connections with the same ends, the record that began last: a handshake
/// was answered again, or the ports were used again. Also returns the numbers of the other
/// connections, which are obsolete.
#[must_use]
pub fn newest_records(recorded: Vec<Recorded>) -> (Vec<Recorded>, Vec<FlowId>) {
    let mut newest: BTreeMap<FlowKey, Recorded> = BTreeMap::new();
    let mut others = Vec::new();
    for one in recorded {
        match newest.entry(one.beginning.key) {
            Entry::Vacant(place) => {
                place.insert(one);
            }
            Entry::Occupied(mut place) => {
                let known = place.get().beginning.flow;
                if known < one.beginning.flow {
                    place.insert(one);
                    others.push(known);
                } else {
                    others.push(one.beginning.flow);
                }
            }
        }
    }
    (newest.into_values().collect(), others)
}

/// The flow of a connection that this host knows only from a record. The socket belongs to no
/// incarnation of the service; `verify_head` is the recorded length of each response head, bytes.
#[must_use]
pub fn restored_flow(recorded: &Recorded, summary: &RecordSummary, verify_head: u32) -> Flow {
    let (beginning, handshake) = (&recorded.beginning, &recorded.beginning.handshake);
    let end = summary.stable_seq + u32::from(summary.client_fin.is_some());
    let rcv_wnd_edge = end + (u32::from(u16::MAX) << handshake.window_scale);
    let sent = recorded.acknowledged;
    // Sequence numbers are positions modulo 2^32.
    let position = u32::try_from(sent & u64::from(u32::MAX)).unwrap_or(0);
    let received = beginning.server_isn + 1 + position;
    let turn = summary.turn_outstream;
    let answer = summary.answers[1].max_seq(turn);
    let head_next = summary.outstream_end.unwrap_or(answer).max_seq(answer);
    let head_left = verify_head.saturating_sub(head_next.distance_from(answer).unwrap_or(0));
    let of_turn = received.distance_from(turn).unwrap_or(0);
    let (tsval, tsecr) = newest_timestamps(recorded);
    Flow {
        id: beginning.flow,
        whole_segments: handshake.whole_segments,
        syn_flags: handshake.syn_flags,
        syn_window: handshake.syn_window,
        syn_options: handshake.syn_options.as_slice().to_vec(),
        client: ClientHalf {
            isn: beginning.client_isn,
            nxt: end,
            ack: received,
            tsval,
            window: u16::MAX, // until its first segment
            window_scale: handshake.client_scale,
            reset: false,
            response_start: turn,
        },
        server: ServerHalf {
            isn: beginning.server_isn,
            sent,
            nxt: received,
            ack: end,
            rcv_wnd_edge,
            tsval: tsecr,
            window_scale: handshake.window_scale,
            timestamps: handshake.timestamps,
            sack: handshake.sack,
            synack_seen: true,
        },
        verify: VerifyHalf {
            head_sent: sent.saturating_sub(of_turn.into()),
            head_next,
            heads_to: summary.outstream_end.unwrap_or(summary.server_isn + 1),
            request_end: summary.doubt,
            head_left,
            ..VerifyHalf::default()
        },
        log: LogHalf {
            stable: end,
            ack: end,
            rcv_wnd_edge,
            copied_ack: received,
            client_received: received,
            former_ack: end,
            doubt: (verify_head > 0).then_some(summary.doubt),
            unrecorded_from: (head_left > 0).then_some(head_next),
            restored: Restored::Unconfirmed,
            ..LogHalf::default()
        },
        ..Flow::default()
    }
}

#[cfg(test)]
mod tests;
