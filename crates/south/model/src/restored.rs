//! Flows whose host has died, made anew from the record that the logger has (`restored.h`; FT-TCP
//! IV.E).
//!
//! What the logger does not know, the client does: a segment below its window makes it answer with its
//! own numbers ([`crate::keepalive_probe`]). Until it has spoken nothing is done with such a flow.
//!
//! What it says shows, too, whether the record is whole. If the dead host had gone on without its logger
//! for a while, its server has acknowledged what nobody recorded; a replay would then begin in the past,
//! and what the new server says would be taken for the answer to something else. A client that has sent
//! nothing but what is recorded, or sends again from a place that is recorded, was acknowledged no more
//! than that.
//!
//! What its client has behind a hole it says in the blocks of its selective acknowledgements: in answer to a call, and
//! not always in data that it sends again. Until it has told that, no server is given the connection; and a client
//! without selective acknowledgements, which never will, is lost if it may have a part of an answer that nobody has
//! recorded (see docs/internals/log-link.md).
//!
//! A server with state (north side) is beyond what a replay could get wrong: it has said what it has said,
//! and nothing was acknowledged that was not recorded as long as anybody looked after it. Its client is
//! believed if it has sent beyond the record, too, to a host that did not receive that any more; or it would
//! have to wait until it sends that again, for its timer that doubles with each try. If more was acknowledged
//! after all, the connection stands still, since what comes next never comes: `snd_beyond_stable` stays until the
//! client has sent bytes from a place that is recorded. `serve` resets a client with which it stays for too long.
//!
//! Who only guesses must not pass for it, so it is believed no further than it can be from what is
//! recorded:
//!
//! | number | |
//! |---|---|
//! | sequence number | below the end of the record by a window of the server at most: it sends again from what it was
//! acknowledged, and what is recorded was offered to it (one less: a keep-alive, RFC 9293 3.8.4); of one that is ahead
//! above it by as much |
//! | acknowledgement | above what is recorded by a window of its own (on its way when the host died), and what a
//! logger is not told of ([`PROGRESS`]) |
//! | timestamps | newer than what is recorded by [`AGE`] at most, if they were agreed on |
//!
//! One whose sequence number is the end of the record, as that of a client which waits or listens, is right
//! there once in 2^32. It may have heard [`LAG`] more, and its timestamps anything but a little less than
//! is recorded, which is a segment of an earlier time: the record of a connection that has been idle may be
//! older than PAWS can tell (RFC 7323 5.5), the more so at a tick a microsecond.

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
/// Copies that tell of progress may be lost, and a log on disk takes its time (at most a second, and one
/// commit) to write it: two seconds at 1 Gbit/s.
const LAG: u32 = 1 << 28;

impl Flow {
    /// The end of all that the client may have been sent. Its dead host may have sent more than is known: at most up
    /// to the edge of the client's window then.
    pub(crate) fn snd_max(&self) -> SeqNumber {
        if self.log.restored != Restored::Not && self.log.client_wnd_edge.after(self.server.nxt) {
            self.log.client_wnd_edge
        } else {
            self.server.nxt
        }
    }

    /// What has been sent since reaches as far as what the dead host may have sent: all that the client
    /// can have is known, as of any other flow.
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

    /// SND.NXT of the present server, if it has taken the connection; client space.
    pub(crate) fn spliced_snd_nxt(&self) -> SeqNumber {
        self.splice.nxt + self.splice.delta_seq
    }

    /// The dead host may have answered what its client says from a place on, and the client have heard that: it has
    /// heard more than heads of answers are recorded, and the server of now has not said so much again. Where that
    /// place is, and what the server has to say again before.
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

    /// All that the client has heard is compared with a digest. The replay may give to the server what the dead one
    /// had read by then: what follows from that is compared, too, before it is of any use.
    #[must_use]
    pub fn compares_all_received(&self) -> bool {
        self.digest.is_repeating() && !self.log.client_received.after(self.digest.sent.next)
    }

    /// The replay gives what is in doubt to the server when that has said again what the client has heard. A server may
    /// have ended because of what its client had said, and say that again no sooner: then all but the last number is
    /// enough.
    pub(crate) fn doubt_precedes_repeat(&mut self, segment: &Segment) -> bool {
        let is_doubted = self.is_doubted(segment) && !self.compares_all_received();
        let ends = self.spliced_snd_nxt() + 1 == self.log.client_received;
        if is_doubted && ends && self.log.unrecorded_from.is_none() {
            self.log.unrecorded_from = Some(self.log.client_received - 1);
        }
        is_doubted && !ends
    }

    /// Where the server says a byte of which the client has another life's, as far as can be told: nobody has recorded
    /// that.
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

    /// Is this segment, or its end, in doubt? (That the client ends waits by itself: see `fin_precedes_repeat`.)
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

    /// How far a client that was not believed yet has received, and the right edge of its window. Blocks that it sent
    /// before, when it was ahead of the record, are as good.
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

    /// Does this segment show what its client has behind a gap, if anything? Blocks do, and so does an acknowledgement
    /// without them. Some stacks leave blocks out of data that they send again, and of keep-alives.
    fn shows_gaps(&self, segment: &Segment, options: &Options) -> bool {
        let answers = segment.sequence_len() == 0 && segment.seq.at_or_after(self.log.stable);
        self.server.sack && (answers || !options.sack_edges.is_empty())
    }

    /// A client that sends bytes that are not recorded, and never shows what it has behind a gap.
    fn never_shows_gaps(&self) -> bool {
        let is_of_interest = self.log.doubt.is_some() && self.log.restored == Restored::Unconfirmed;
        is_of_interest && !self.server.sack
    }

    /// What becomes of a client that shows that its record is whole; `None`: nothing yet. One without selective
    /// acknowledgements can have nothing behind a hole that nobody has recorded if an answer to what it said last has
    /// begun, the beginning is recorded, and it has said nothing since.
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
        // What is recorded, or a keep-alive, does not show what comes behind that.
        let shows_all = segment.sequence_len() == 0 && segment.seq == self.log.stable;
        let is_answered = self.verify.head_left < verify_head;
        let state = if is_answered {
            Restored::Confirmed
        } else {
            Restored::GapUnknown
        };
        shows_all.then_some(state)
    }

    /// Can this be its client? `timestamps` are TSval and TSecr, if there are any.
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
        // RFC 7323 3.2: who agreed on them sends them in each segment.
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
    /// A segment of the client of a flow that was made anew. True: it shows that the record is whole.
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
            // What is not recorded comes again, maybe without blocks.
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

    /// The record is whole, and now its client shows what it has behind a gap, too.
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

/// Of two timestamps the newer one (RFC 7323 5.2).
fn newer(a: u32, b: u32) -> u32 {
    if SeqNumber(b).after(SeqNumber(a)) {
        b
    } else {
        a
    }
}

/// The client's newest TSval that is known, and its newest echo of the server's. 0 is a value like any
/// other; but if both are 0, it was not heard since it sent its SYN.
fn newest_timestamps(recorded: &Recorded) -> (u32, u32) {
    let handshake = &recorded.beginning.handshake;
    if (recorded.tsval, recorded.tsecr) == (0, 0) {
        let syn = SynOptions::parse(handshake.syn_options.as_slice());
        (syn.timestamps.map_or(0, |syn| syn.value), handshake.tsval)
    } else {
        (recorded.tsval, newer(handshake.tsval, recorded.tsecr))
    }
}

/// Of several records of connections with the same ends the one that began last: a handshake was answered
/// anew, or the ports were used again. Also the numbers of the others, which are of no use.
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

/// The flow of a connection of which this host knows nothing but what its record says. Its socket
/// belongs to no life of the service; `verify_head` is how much of each answer is recorded, bytes.
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
