//! `struct flow`, from the kernel and into it.

use south_model::{
    ClientHalf, Comparison, Digest, DigestHalf, Flow, LogHalf, Mode, Range, Response, Restored,
    ServerHalf, SpliceHalf, UnprotectedReason, VerifyHalf,
};
use wire::{FlowId, SeqNumber};

use super::{
    client_half, closing, digest, digest_comparison, digest_half, flow, flow_mode, log_half, range,
    response, restored, sampling, server_half, splice_half, verify_half,
};

impl From<flow> for Flow {
    fn from(raw: flow) -> Self {
        let options = usize::from(raw.syn_options_len).min(raw.syn_options.len());
        let end = closing(u32::from(raw.server_closing));
        Self {
            id: FlowId(raw.id),
            closed_ns: raw.closed_ns,
            given_ns: raw.given_ns,
            incarnation: raw.incarnation,
            ifindex: raw.ifindex,
            mode: match flow_mode(u32::from(raw.mode)) {
                flow_mode::FLOW_SPLICING => Mode::Splicing,
                flow_mode::FLOW_SPLICED => Mode::Spliced,
                flow_mode::FLOW_DIVERGED => Mode::Diverged,
                _ => Mode::Observed,
            },
            unprotected: UnprotectedReason::from_code(raw.unprotected),
            server_closing: matches!(end, closing::CLOSES_BY_FIN | closing::CLOSED_BY_RST),
            half_closed: end == closing::HALF_CLOSED,
            was_reset: end == closing::CLOSED_BY_RST,
            whole_segments: raw.whole_segments != 0,
            syn_flags: raw.syn_flags,
            syn_window: raw.syn_window,
            client: raw.client.into(),
            server: raw.server.into(),
            splice: raw.splice.into(),
            verify: raw.verify.into(),
            digest: raw.digest.into(),
            log: raw.log.into(),
            syn_options: raw.syn_options[..options].to_vec(),
        }
    }
}

impl From<client_half> for ClientHalf {
    fn from(raw: client_half) -> Self {
        Self {
            isn: SeqNumber(raw.isn),
            nxt: SeqNumber(raw.nxt),
            ack: SeqNumber(raw.ack),
            tsval: raw.tsval,
            window: raw.window,
            window_scale: raw.window_scale,
            reset: raw.reset != 0,
            response_start: SeqNumber(raw.response_start),
        }
    }
}

impl From<server_half> for ServerHalf {
    fn from(raw: server_half) -> Self {
        Self {
            sent: raw.sent,
            isn: SeqNumber(raw.isn),
            nxt: SeqNumber(raw.nxt),
            ack: SeqNumber(raw.ack),
            rcv_wnd_edge: SeqNumber(raw.rcv_wnd_edge),
            tsval: raw.tsval,
            window_scale: raw.window_scale,
            timestamps: raw.timestamps != 0,
            sack: raw.sack != 0,
            synack_seen: raw.synack_seen != 0,
        }
    }
}

impl From<splice_half> for SpliceHalf {
    fn from(raw: splice_half) -> Self {
        Self {
            instream: SeqNumber(raw.instream),
            outstream: SeqNumber(raw.outstream),
            delta_seq: raw.delta_seq,
            ts_delta: raw.ts_delta,
            first_tsval: raw.first_tsval,
            isn: SeqNumber(raw.isn),
            nxt: SeqNumber(raw.nxt),
            una: SeqNumber(raw.una),
            ack: SeqNumber(raw.ack),
            rcv_wnd_edge: SeqNumber(raw.rcv_wnd_edge),
            window_scale: raw.window_scale,
            ack_withheld: raw.ack_withheld != 0,
        }
    }
}

impl From<verify_half> for VerifyHalf {
    fn from(raw: verify_half) -> Self {
        Self {
            head_sent: raw.head_sent,
            head_next: SeqNumber(raw.head_next),
            head_left: raw.head_left,
            heads_to: SeqNumber(raw.heads_to),
            request_end: SeqNumber(raw.request_end),
            end: SeqNumber(raw.end),
            compared: raw.compared,
            tolerated: raw.tolerated,
            unverified: raw.unverified,
            behind: raw.behind,
            diverged_at: SeqNumber(raw.diverged_at),
            ended_early: raw.ended_early != 0,
            by_digest: raw.by_digest != 0,
            response: match response(u32::from(raw.response)) {
                response::RESPONSE_BEGUN => Response::Begun,
                response::RESPONSE_OTHER_PROTOCOL => Response::OtherProtocol,
                _ => Response::None,
            },
        }
    }
}

impl From<digest> for Digest {
    fn from(raw: digest) -> Self {
        Self {
            folded: raw.folded,
            sum: raw.sum,
            base: SeqNumber(raw.base),
            next: SeqNumber(raw.next),
        }
    }
}

impl From<Digest> for digest {
    fn from(from: Digest) -> Self {
        Self {
            folded: from.folded,
            sum: from.sum,
            base: from.base.0,
            next: from.next.0,
        }
    }
}

impl From<digest_half> for DigestHalf {
    fn from(raw: digest_half) -> Self {
        Self {
            now: raw.now.into(),
            sent: raw.sent.into(),
            acked: raw.acked.into(),
            newer: raw.newer.into(),
            turn: raw.turn.into(),
            wanted: (raw.wants != 0).then_some(raw.wanted.into()),
            sampled_from: (raw.sampled != 0).then_some(SeqNumber(raw.sampled_from)),
            is_turn_sampled: u32::from(raw.sampled) & sampling::TURN_SAMPLED.0 != 0,
            taken: raw.taken != 0,
            comparison: match digest_comparison(u32::from(raw.comparison)) {
                digest_comparison::COMPARES => Comparison::Due,
                digest_comparison::HAS_COMPARED => Comparison::Done,
                _ => Comparison::None,
            },
            retransmits: raw.retransmits,
            link_sent: SeqNumber(raw.link_sent),
        }
    }
}

impl From<log_half> for LogHalf {
    fn from(raw: log_half) -> Self {
        let ranges = |from: &[range], count: u8| {
            let ranges = from.iter().take(usize::from(count));
            ranges
                .map(|range| Range {
                    start: SeqNumber(range.start),
                    end: SeqNumber(range.end),
                })
                .collect()
        };
        let deferred = raw.deferred.iter().take(usize::from(raw.deferred_count));
        Self {
            counter: raw.counter,
            stable: SeqNumber(raw.stable),
            ack: SeqNumber(raw.ack),
            rcv_wnd_edge: SeqNumber(raw.rcv_wnd_edge),
            tsecr: raw.tsecr,
            ifindex: raw.ifindex,
            copied_ack: SeqNumber(raw.copied_ack),
            copied: SeqNumber(raw.copied),
            copied_ns: raw.copied_ns,
            early_ack_ns: raw.early_ack_ns,
            has_read_cursor: raw.read_cursor != 0,
            all_acked: raw.all_acked != 0,
            ranges: ranges(&raw.ranges, raw.range_count),
            blocks: ranges(&raw.blocks, raw.block_count),
            deferred: deferred.map(|seq| SeqNumber(*seq)).collect(),
            ttl: raw.ttl,
            ece: raw.ece != 0,
            withheld: raw.withheld != 0,
            ended: raw.ended != 0,
            stateful: raw.stateful != 0,
            snd_beyond_stable: raw.snd_beyond_stable != 0,
            lookup_missed: raw.lookup_missed != 0,
            former_ack: SeqNumber(raw.former_ack),
            client_received: SeqNumber(raw.client_received),
            doubt: (raw.is_doubtful != 0).then_some(SeqNumber(raw.doubt)),
            unrecorded_from: (raw.is_unrecorded != 0).then_some(SeqNumber(raw.unrecorded_from)),
            client_wnd_edge: SeqNumber(raw.client_wnd_edge),
            restored: match restored(u32::from(raw.restored)) {
                restored::RESTORED_UNCONFIRMED => Restored::Unconfirmed,
                restored::RESTORED_CONFIRMED => Restored::Confirmed,
                restored::RESTORED_GAP_KNOWN => Restored::GapKnown,
                restored::RESTORED_GAP_UNKNOWN => Restored::GapUnknown,
                _ => Restored::Not,
            },
        }
    }
}

// The following code is for restored flows: these have no binding to a later server, and of the log
// link only numbers.

/// An enumeration of `bpf/intf` in a byte.
fn byte(code: u32) -> u8 {
    u8::try_from(code).unwrap_or(u8::MAX)
}

impl From<&Flow> for flow {
    fn from(from: &Flow) -> Self {
        let mut syn_options = [0; 40];
        let len = from.syn_options.len().min(syn_options.len());
        syn_options[..len].copy_from_slice(&from.syn_options[..len]);
        Self {
            id: from.id.0,
            incarnation: from.incarnation,
            ifindex: from.ifindex,
            mode: byte(flow_mode::FLOW_OBSERVED.0),
            whole_segments: u8::from(from.whole_segments),
            syn_flags: from.syn_flags,
            syn_window: from.syn_window,
            syn_options,
            syn_options_len: u8::try_from(len).unwrap_or(0),
            client: (&from.client).into(),
            server: (&from.server).into(),
            verify: (&from.verify).into(),
            log: (&from.log).into(),
            ..Default::default()
        }
    }
}

impl From<&ClientHalf> for client_half {
    fn from(from: &ClientHalf) -> Self {
        Self {
            isn: from.isn.0,
            nxt: from.nxt.0,
            ack: from.ack.0,
            tsval: from.tsval,
            window: from.window,
            window_scale: from.window_scale,
            reset: u8::from(from.reset),
            response_start: from.response_start.0,
        }
    }
}

impl From<&ServerHalf> for server_half {
    fn from(from: &ServerHalf) -> Self {
        Self {
            sent: from.sent,
            isn: from.isn.0,
            nxt: from.nxt.0,
            ack: from.ack.0,
            rcv_wnd_edge: from.rcv_wnd_edge.0,
            tsval: from.tsval,
            window_scale: from.window_scale,
            timestamps: u8::from(from.timestamps),
            sack: u8::from(from.sack),
            synack_seen: u8::from(from.synack_seen),
        }
    }
}

impl From<&VerifyHalf> for verify_half {
    fn from(from: &VerifyHalf) -> Self {
        Self {
            head_sent: from.head_sent,
            head_next: from.head_next.0,
            head_left: from.head_left,
            heads_to: from.heads_to.0,
            request_end: from.request_end.0,
            ..Default::default()
        }
    }
}

impl From<&LogHalf> for log_half {
    fn from(from: &LogHalf) -> Self {
        Self {
            stable: from.stable.0,
            ack: from.ack.0,
            rcv_wnd_edge: from.rcv_wnd_edge.0,
            copied_ack: from.copied_ack.0,
            former_ack: from.former_ack.0,
            client_received: from.client_received.0,
            doubt: from.doubt.map_or(0, |doubt| doubt.0),
            is_doubtful: u8::from(from.doubt.is_some()),
            is_unrecorded: u8::from(from.unrecorded_from.is_some()),
            unrecorded_from: from
                .unrecorded_from
                .map_or(0, |unrecorded_from| unrecorded_from.0),
            client_wnd_edge: from.client_wnd_edge.0,
            stateful: u8::from(from.stateful),
            snd_beyond_stable: u8::from(from.snd_beyond_stable),
            lookup_missed: u8::from(from.lookup_missed),
            restored: byte(match from.restored {
                Restored::Not => restored::RESTORED_NOT.0,
                Restored::Unconfirmed => restored::RESTORED_UNCONFIRMED.0,
                Restored::Confirmed => restored::RESTORED_CONFIRMED.0,
                Restored::GapKnown => restored::RESTORED_GAP_KNOWN.0,
                Restored::GapUnknown => restored::RESTORED_GAP_UNKNOWN.0,
            }),
            ..Default::default()
        }
    }
}
