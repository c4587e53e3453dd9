//! Flows whose host has died, made anew from the record that the logger has (`restored.h`; FT-TCP
//! IV.E).
//!
//! What the logger does not know, the client does: a segment below its window makes it answer with its
//! own numbers ([`crate::call_to_client`]). Until it has spoken nothing is done with such a flow.
//!
//! What it says shows, too, whether the record is whole. If the dead host had gone on without its logger
//! for a while, its server has acknowledged what nobody recorded; a replay would then begin in the past,
//! and what the new server says would be taken for the answer to something else. A client that has sent
//! nothing but what is recorded, or sends again from a place that is recorded, was acknowledged no more
//! than that.

use std::collections::{BTreeMap, btree_map::Entry};

use protocol::control::{FlowSummary, Recorded};
use wire::{Flags, FlowId, FlowKey, SeqNumber, SynOptions};

use crate::{
    egress::sent_up_to,
    flow::{ClientHalf, Flow, LogHalf, Restored, ServerHalf, VerifyHalf},
    packet::{Options, Segment},
    south::{EventKind, Shared},
};

/// What is known of a client lies no further behind than this: the largest window (RFC 7323 2.3).
const REACH: u32 = 1 << 30;

impl Flow {
    /// The end of what the client may have been sent. Its dead host may have sent more than was heard
    /// of: at most what the client had room for.
    pub(crate) fn may_have(&self) -> SeqNumber {
        let window = u32::from(self.client.window) << (self.client.window_scale & 15);
        let edge = self.client.ack + window;
        if self.log.restored != Restored::Not && edge.after(self.server.nxt) {
            edge
        } else {
            self.server.nxt
        }
    }

    /// Is this a SYN of a client that had never heard of the connection?
    pub(crate) fn never_was(&self, syn: &Segment) -> bool {
        self.log.restored == Restored::Silent && syn.seq == self.client.isn
    }
}

impl Shared {
    /// A segment of the client of a flow that was made anew. True: it tells what had to be known.
    pub(crate) fn hear_restored(
        &mut self,
        key: FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        options: &Options,
        now_ns: u64,
    ) -> bool {
        let flow_id = flow.id;
        let late = EventKind::Late { key, flow_id };
        if segment.has(Flags::RST) {
            if segment.seq == flow.server.ack || segment.seq == flow.client.nxt {
                flow.client.reset = true;
                self.emit(late, now_ns);
            }
            return false;
        }
        let reached = |from: SeqNumber, to: SeqNumber| to.0.wrapping_sub(from.0) <= REACH;
        if !segment.has(Flags::ACK)
            || segment.has(Flags::SYN)
            || !reached(segment.seq, flow.log.stable)
            || !reached(flow.client.ack, segment.ack)
        {
            return false;
        }
        sent_up_to(&mut flow.server, segment.ack);
        flow.client.ack = segment.ack;
        flow.client.window = segment.window;
        if let (Some(tsval), Some(tsecr)) = (
            options.tsval(&segment.header),
            options.tsecr(&segment.header),
        ) {
            flow.client.tsval = newer(flow.client.tsval, tsval);
            flow.server.tsval = newer(flow.server.tsval, tsecr);
            flow.log.tsecr = flow.client.tsval;
        }
        flow.log.heard = segment.ack;
        flow.log.restored = Restored::Heard;
        self.emit(late, now_ns);
        true
    }
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
pub fn restored_flow(recorded: &Recorded, summary: &FlowSummary, verify_head: u32) -> Flow {
    let (beginning, handshake) = (&recorded.beginning, &recorded.beginning.handshake);
    let end = summary.stable_seq + u32::from(summary.client_fin.is_some());
    let edge = end + (u32::from(u16::MAX) << handshake.window_scale);
    let sent = recorded.acknowledged;
    // Sequence numbers are positions modulo 2^32.
    let position = u32::try_from(sent & u64::from(u32::MAX)).unwrap_or(0);
    let heard = beginning.server_isn + 1 + position;
    let turn = summary.turn_outstream;
    let head_next = summary.outstream_end.unwrap_or(turn).max_seq(turn);
    let of_turn = heard.distance_from(turn).unwrap_or(0);
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
            ack: heard,
            tsval,
            window: u16::MAX, // until it is heard
            window_scale: handshake.client_scale,
            reset: false,
            spoken: turn,
        },
        server: ServerHalf {
            isn: beginning.server_isn,
            sent,
            nxt: heard,
            ack: end,
            edge,
            tsval: tsecr,
            window_scale: handshake.window_scale,
            timestamps: handshake.timestamps,
            sack: handshake.sack,
            answered: true,
        },
        verify: VerifyHalf {
            head_sent: sent.saturating_sub(of_turn.into()),
            head_next,
            head_left: verify_head.saturating_sub(head_next.distance_from(turn).unwrap_or(0)),
            ..VerifyHalf::default()
        },
        log: LogHalf {
            stable: end,
            ack: end,
            edge,
            told: heard,
            answered: end,
            restored: Restored::Silent,
            ..LogHalf::default()
        },
        ..Flow::default()
    }
}

#[cfg(test)]
mod tests;
