//! `struct flow`, from the kernel and into it.

use south_model::{
    ClientHalf, Comparison, Digest, DigestHalf, Flow, LogHalf, Mode, Range, Restored, Said,
    ServerHalf, SpliceHalf, UnprotectedReason, VerifyHalf,
};
use wire::{FlowId, SeqNumber};

use super::{
    client_half, closing, digest, digest_comparison, digest_half, flow, flow_mode, log_half, range,
    restored, said, sampling, server_half, splice_half, verify_half,
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
            spoken: SeqNumber(raw.spoken),
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
            edge: SeqNumber(raw.edge),
            tsval: raw.tsval,
            window_scale: raw.window_scale,
            timestamps: raw.timestamps != 0,
            sack: raw.sack != 0,
            answered: raw.answered != 0,
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
            edge: SeqNumber(raw.edge),
            window_scale: raw.window_scale,
            held: raw.held != 0,
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
            asked: SeqNumber(raw.asked),
            end: SeqNumber(raw.end),
            compared: raw.compared,
            tolerated: raw.tolerated,
            unverified: raw.unverified,
            behind: raw.behind,
            diverged_at: SeqNumber(raw.diverged_at),
            ended_early: raw.ended_early != 0,
            by_digest: raw.by_digest != 0,
            said: match said(u32::from(raw.said)) {
                said::SAID_ANSWER => Said::Answer,
                said::SAID_OTHER_PROTOCOL => Said::OtherProtocol,
                _ => Said::Nothing,
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
            held: raw.held,
            told: SeqNumber(raw.told),
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
        let held = raw.held.iter().take(usize::from(raw.held_count));
        Self {
            counter: raw.counter,
            stable: SeqNumber(raw.stable),
            ack: SeqNumber(raw.ack),
            edge: SeqNumber(raw.edge),
            tsecr: raw.tsecr,
            ifindex: raw.ifindex,
            told: SeqNumber(raw.told),
            copied: SeqNumber(raw.copied),
            copied_ns: raw.copied_ns,
            hasty_ns: raw.hasty_ns,
            is_noted: raw.note != 0,
            caught_up: raw.caught_up != 0,
            ranges: ranges(&raw.ranges, raw.range_count),
            blocks: ranges(&raw.blocks, raw.block_count),
            held: held.map(|seq| SeqNumber(*seq)).collect(),
            ttl: raw.ttl,
            ece: raw.ece != 0,
            withheld: raw.withheld != 0,
            ended: raw.ended != 0,
            stateful: raw.stateful != 0,
            ahead: raw.ahead != 0,
            unfound: raw.unfound != 0,
            answered: SeqNumber(raw.answered),
            heard: SeqNumber(raw.heard),
            doubt: (raw.is_doubtful != 0).then_some(SeqNumber(raw.doubt)),
            lacks: (raw.is_lacking != 0).then_some(SeqNumber(raw.lacks)),
            reach: SeqNumber(raw.reach),
            restored: match restored(u32::from(raw.restored)) {
                restored::RESTORED_SILENT => Restored::Silent,
                restored::RESTORED_HEARD => Restored::Heard,
                restored::RESTORED_TOLD => Restored::Told,
                restored::RESTORED_UNTOLD => Restored::Untold,
                _ => Restored::Not,
            },
        }
    }
}

// What follows is for flows that are made anew from their records: they have no binding to a later
// server, and of the log link nothing but numbers.

/// An enumeration of `bpf/intf` in the byte that holds it.
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
            spoken: from.spoken.0,
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
            edge: from.edge.0,
            tsval: from.tsval,
            window_scale: from.window_scale,
            timestamps: u8::from(from.timestamps),
            sack: u8::from(from.sack),
            answered: u8::from(from.answered),
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
            asked: from.asked.0,
            ..Default::default()
        }
    }
}

impl From<&LogHalf> for log_half {
    fn from(from: &LogHalf) -> Self {
        Self {
            stable: from.stable.0,
            ack: from.ack.0,
            edge: from.edge.0,
            told: from.told.0,
            answered: from.answered.0,
            heard: from.heard.0,
            doubt: from.doubt.map_or(0, |doubt| doubt.0),
            is_doubtful: u8::from(from.doubt.is_some()),
            is_lacking: u8::from(from.lacks.is_some()),
            lacks: from.lacks.map_or(0, |lacks| lacks.0),
            reach: from.reach.0,
            stateful: u8::from(from.stateful),
            ahead: u8::from(from.ahead),
            unfound: u8::from(from.unfound),
            restored: byte(match from.restored {
                Restored::Not => restored::RESTORED_NOT.0,
                Restored::Silent => restored::RESTORED_SILENT.0,
                Restored::Heard => restored::RESTORED_HEARD.0,
                Restored::Told => restored::RESTORED_TOLD.0,
                Restored::Untold => restored::RESTORED_UNTOLD.0,
            }),
            ..Default::default()
        }
    }
}
