//! One connection on its way back.

use std::time::Duration;

use protocol::control::RecordSummary;
use south_model::{Comparison, Digest, Flow, Mode, Restored};
use types::ReplayMode;
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    action::SplicePoint,
    config::Config,
    event::LostReason,
    replay::{Beginning, Given, Replay},
};

/// Where a server stands with a connection that has replayed its own record (the north side wrap's), client space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayPosition {
    /// The next byte that it is to be given.
    pub instream: SeqNumber,
    /// The next byte that it will say. What it has said before that, and its client lacks, is kept for it.
    pub outstream: SeqNumber,
    /// It has closed it, as the dead incarnation may have been about to.
    pub is_closed: bool,
    /// It is this connection, and not one before it that had the same ends.
    pub is_certain: bool,
}

/// A connection that was found when the server had died.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Its ends.
    pub key: FlowKey,
    /// Its state in the data plane.
    pub flow: Flow,
    /// Its record; `None` if the logger knows nothing of it.
    pub record: Option<RecordSummary>,
    /// Where the new server stands with it; `None`: it has never heard of it.
    pub replay_position: Option<ReplayPosition>,
}

/// What is to become of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Splice it here and replay up to `end`, and the FIN after the server has said what `fin`
    /// says.
    Keep {
        point: SplicePoint,
        end: SeqNumber,
        fin: Option<SeqNumber>,
    },
    /// Its client must say first where it stands.
    Silent,
    /// A living server closed it: the kernel finishes.
    Finished,
    /// The client reset it.
    Reset,
    /// It cannot be kept.
    Lose(LostReason),
}

/// The decision table: the first row that applies.
pub(crate) fn judge(
    candidate: &Candidate,
    mode: ReplayMode,
    deaths: u32,
    config: &Config,
) -> Verdict {
    let flow = &candidate.flow;
    if flow.server_closing || flow.closed_ns != 0 {
        // Of a replay that contradicted the record nothing reaches the client, so the kernel
        // cannot finish it either.
        if flow.mode == Mode::Diverged {
            return Verdict::Lose(contradiction(flow));
        }
        return Verdict::Finished;
    }
    if flow.client.reset {
        return Verdict::Reset;
    }
    if let Some(reason) = flow.unprotected {
        return Verdict::Lose(LostReason::Unprotected { reason });
    }
    let Some(record) = candidate.record else {
        return Verdict::Lose(LostReason::NoRecord);
    };
    if let Some(reason) = record.unprotected {
        return Verdict::Lose(LostReason::Unprotected { reason });
    }
    if deaths >= config.quarantine_after {
        return Verdict::Lose(LostReason::Quarantined { deaths });
    }
    if flow.is_silent() {
        return Verdict::Silent;
    }
    if flow.log.restored == Restored::GapUnknown {
        return Verdict::Lose(LostReason::HoleUnknown);
    }
    // One that has replayed a record of its own is beyond that: nothing was said that is not in it.
    if flow.log.restored != Restored::Not
        && candidate.replay_position.is_none()
        && let Some(lost) = incomparable(flow, &record, config.verify_head)
    {
        return Verdict::Lose(lost);
    }
    let fin = record.client_fin.map(|fin| fin.heard);
    let recorded = record.stable_seq + u32::from(fin.is_some());
    // What a server with state has read is in its own record, and may be in no other.
    let read = candidate.replay_position.map(|standing| standing.instream);
    let recorded = read.map_or(recorded, |read| recorded.max_seq(read));
    if recorded.before(flow.server.ack) {
        // It knew of that by the server's own record, which is gone.
        if config.wrapped && candidate.replay_position.is_none() {
            return Verdict::Lose(LostReason::Forgotten);
        }
        return Verdict::Lose(LostReason::RecordIncomplete {
            stable_seq: record.stable_seq,
            acknowledged: flow.server.ack,
        });
    }
    if let Some(standing) = candidate.replay_position {
        return judge_graft(flow, &record, standing);
    }
    // To a connection that the server has opened itself it does not listen.
    if flow.is_opened_by_server() {
        return Verdict::Lose(LostReason::Forgotten);
    }
    // What it has heard was said by a server of whose record nothing is left: nobody could compare it.
    if config.wrapped && flow.server.sent > 0 {
        return Verdict::Lose(LostReason::Forgotten);
    }
    let (instream, outstream) = match mode {
        ReplayMode::Connection => (flow.client.isn + 1, flow.server.isn + 1),
        ReplayMode::Request => (record.turn_instream, record.turn_outstream),
    };
    if record.start.after(instream) {
        // What it had read was in its own record, which is gone.
        if config.wrapped {
            return Verdict::Lose(LostReason::Forgotten);
        }
        return Verdict::Lose(LostReason::RecordIncomplete {
            stable_seq: instream,
            acknowledged: flow.server.ack,
        });
    }
    // Also beyond half of the sequence space: where such a replay is cannot be told.
    if record.stable_seq.distance_from(instream).is_none() {
        return Verdict::Lose(LostReason::RecordIncomplete {
            stable_seq: record.stable_seq,
            acknowledged: instream,
        });
    }
    let behind =
        first_repeated(flow, &record, mode).and_then(|at| flow.server.sent.checked_sub(at));
    if behind.is_none_or(|behind| behind >= HALF_SEQUENCE_SPACE) {
        return Verdict::Lose(LostReason::OutstreamTooLong {
            sent: flow.server.sent,
        });
    }
    Verdict::Keep {
        point: SplicePoint {
            instream: instream - 1,
            outstream,
            verify_end: record.outstream_end.unwrap_or(outstream).max_seq(outstream),
        },
        end: record.stable_seq,
        fin,
    }
}

/// The server has lived through the record by itself: nothing of the connection is said again, and it goes on
/// where both sides are.
fn judge_graft(flow: &Flow, record: &RecordSummary, standing: ReplayPosition) -> Verdict {
    // Nobody has read what its client has not sent: what the server stands with is one before it, with the same ends.
    // (How far the clients of a dead host are is not known.)
    if flow.log.restored == Restored::Not && standing.instream.after(flow.client.nxt) {
        return Verdict::Lose(LostReason::Forgotten);
    }
    // A connection to which nothing was ever said may be a later one with the same ends, which was never accepted.
    if standing.is_closed && flow.server.sent == 0 && !standing.is_certain {
        return Verdict::Lose(LostReason::Forgotten);
    }
    if record.start.after(standing.instream) {
        return Verdict::Lose(LostReason::RecordIncomplete {
            stable_seq: standing.instream,
            acknowledged: flow.server.ack,
        });
    }
    // What it has not said, nobody can have heard: but for its FIN, which it may say again.
    if flow.client.ack.after(standing.outstream + 1) {
        let offset = standing.outstream.0.wrapping_sub((flow.server.isn + 1).0);
        return Verdict::Lose(LostReason::Diverged { offset });
    }
    let outstream = if flow.client.ack.after(standing.outstream) {
        standing.outstream
    } else {
        flow.client.ack
    };
    Verdict::Keep {
        point: SplicePoint {
            instream: standing.instream - 1,
            outstream,
            verify_end: outstream,
        },
        end: record.stable_seq.max_seq(standing.instream),
        fin: record.client_fin.map(|fin| fin.heard),
    }
}

/// Whether too little is recorded of what the client has heard, of the beginning of an answer: of the
/// turn's first one, or of a later one. On a host that lives on, what is on its way to the logger is safe;
/// what a host had said when it stopped is not.
fn incomparable(flow: &Flow, record: &RecordSummary, verify_head: u32) -> Option<LostReason> {
    let [oldest, next] = record.answers;
    [record.turn_outstream, oldest, next]
        .into_iter()
        .find_map(|answer| {
            let since = |end: SeqNumber| end.distance_from(answer).unwrap_or(0);
            // The client may have bytes behind a hole: the beginning of that answer has to be known, too.
            let heard = since(flow.client.ack.max_seq(flow.log.client_received)).min(verify_head);
            let recorded = record.outstream_end.map_or(0, since);
            // The server's FIN is a number, too, and no byte.
            (heard > recorded + 1).then_some(LostReason::NotComparable { heard, recorded })
        })
}

/// What lies further apart than half of the sequence space is in no order (RFC 9293 3.4): a server
/// that has to say so much again would seem to be ahead of the client, and not behind.
const HALF_SEQUENCE_SPACE: u64 = 1 << 31;

/// How much the server had sent before what a replay makes it say again. `None`: that is not known,
/// because the sequence numbers have come round since.
fn first_repeated(flow: &Flow, record: &RecordSummary, mode: ReplayMode) -> Option<u64> {
    let place = match mode {
        ReplayMode::Connection => return Some(0),
        ReplayMode::Request => record
            .turn_outstream
            .0
            .wrapping_sub((flow.server.isn + 1).0),
    };
    if flow.server.sent <= u64::from(u32::MAX) {
        return Some(u64::from(place));
    }
    // Then only the last turn's place is known to the data plane.
    let last = flow.verify.head_sent;
    (last % (1 << 32) == u64::from(place)).then_some(last)
}

/// What a replay said that its record does not say.
pub(crate) fn contradiction(flow: &Flow) -> LostReason {
    let at = flow.verify.diverged_at;
    let offset = at.0.wrapping_sub(flow.server.isn.0).wrapping_sub(1);
    let unheard = flow
        .log
        .unrecorded_from
        .filter(|lacks| at.at_or_after(*lacks));
    if let Some(lacks) = unheard.filter(|_| at.before(flow.log.client_received)) {
        LostReason::NotComparable {
            heard: since(lacks, flow.log.client_received),
            recorded: 0,
        }
    } else if flow.verify.by_digest {
        LostReason::DivergedBefore { offset }
    } else if flow.verify.ended_early {
        LostReason::EndedEarly { offset }
    } else {
        LostReason::Diverged { offset }
    }
}

/// Bytes that a client was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compared {
    /// Compared byte by byte, or by a hash.
    pub(crate) compared: u32,
    /// Compared by samples.
    pub(crate) sampled: u32,
    /// Not compared.
    pub(crate) unverified: u32,
}

fn since(start: SeqNumber, end: SeqNumber) -> u32 {
    end.distance_from(start).unwrap_or(0)
}

/// How far a kept connection is.
#[derive(Debug, Clone)]
pub(crate) enum ConnectionStep {
    /// Its turn has not come.
    Waiting,
    /// The fabricated SYN is out.
    Splicing {
        since: Duration,
        repeat_at: Duration,
        pause: Duration,
    },
    /// Its record is being delivered.
    Replaying(Replay),
    /// The record was delivered; the server has yet to live through it, and its output is still
    /// being compared.
    Settling { since: Duration, look_at: Duration },
}

/// What a server had said, as far as that is to be compared.
#[derive(Debug, Clone, Default)]
pub(crate) struct ComparedOutput {
    /// Where its replay waits for the server.
    pub(crate) beginnings: Vec<Beginning>,
    /// Of all that it had said by some places.
    pub(crate) digests: Vec<Digest>,
    /// What its client has heard of another host, if it was made anew.
    pub(crate) heard_elsewhere: Option<SeqNumber>,
}

/// A connection that is being kept.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) key: FlowKey,
    pub(crate) flow: FlowId,
    /// The earlier incarnation of the server that it comes from.
    pub(crate) incarnation: u32,
    pub(crate) point: SplicePoint,
    end: SeqNumber,
    fin: Option<SeqNumber>,
    /// What of its server's words is to be compared.
    pub(crate) words: ComparedOutput,
    /// So much was given to the server.
    pub(crate) given: Given,
    /// The server has repeated all output that can be compared.
    pub(crate) is_compared: bool,
    /// The server needs long for the repetition: other connections do not wait.
    pub(crate) is_late: bool,
    /// Bytes that the client was sent, as far as the new server has to repeat the bytes.
    sent: u32,
    /// What the client says from there on is in doubt, and waits for this.
    doubt: Option<Beginning>,
    /// That was so, and is no more.
    is_resolved: bool,
    /// The server has not said again all that the client was sent.
    pub(crate) is_behind: bool,
    /// That was so when nobody had looked yet whether the client has spoken meanwhile.
    was_behind: bool,
    /// What the client says from there on waits for that.
    pub(crate) later: Option<Beginning>,
    /// What the record had when it was asked for more since.
    asked_for: SeqNumber,
    asked: RecordRequest,
    /// What the server has said so far, client space, and since when.
    said: Option<(SeqNumber, Duration)>,
    /// Its replay was involved in a death: it goes last, and alone.
    pub(crate) suspect: bool,
    /// Another host has served it before, and its client was not told yet what is recorded.
    pub(crate) to_be_told: bool,
    /// The server knows it already, and gets a socket that goes on with it.
    pub(crate) is_graft: bool,
    pub(crate) step: ConnectionStep,
}

/// After this time of silence, a server that has to repeat output keeps the client of that output waiting, and no
/// other.
const SLOW_SERVER_AFTER: Duration = Duration::from_secs(1);

/// First pause before a SYN is repeated; doubles up to [`SYN_DELAY_MAX`].
const SYN_FIRST_DELAY: Duration = Duration::from_millis(1);
const SYN_DELAY_MAX: Duration = Duration::from_millis(64);
/// A record that lacks what a client has said is asked for that again after this time, and then twice as long each
/// time: a client says that again no sooner.
const RECORD_REQUEST_DELAY: Duration = Duration::from_millis(200);

/// The last question for more of what a client has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct RecordRequest {
    /// How far the client had spoken.
    said: SeqNumber,
    /// The end of the record at the other end of a log link.
    recorded: SeqNumber,
    at: Duration,
    /// How long the next question for the same waits.
    pause: Duration,
}

impl RecordRequest {
    fn repeated(self, flow: &Flow, now: Duration) -> Self {
        Self {
            said: flow.client.nxt,
            recorded: flow.log.stable,
            at: now,
            pause: match self.is_of(flow) {
                true => self.pause * 2,
                false => RECORD_REQUEST_DELAY,
            },
        }
    }

    fn is_of(&self, flow: &Flow) -> bool {
        (self.said, self.recorded) == (flow.client.nxt, flow.log.stable)
    }
}

impl Connection {
    pub(crate) fn new(
        candidate: &Candidate,
        point: SplicePoint,
        end: SeqNumber,
        fin: Option<SeqNumber>,
        suspect: bool,
    ) -> Self {
        Self {
            key: candidate.key,
            flow: candidate.flow.id,
            incarnation: candidate.flow.incarnation,
            point,
            end,
            fin,
            words: ComparedOutput {
                heard_elsewhere: (!candidate.flow.digest.taken)
                    .then_some(candidate.flow.client.ack),
                ..ComparedOutput::default()
            },
            given: Given::default(),
            is_compared: false,
            is_late: false,
            sent: match candidate.replay_position {
                None => candidate
                    .flow
                    .server
                    .nxt
                    .distance_from(point.outstream)
                    .unwrap_or(0),
                Some(_) => 0, // a server with state has compared that by itself
            },
            doubt: None,
            is_resolved: false,
            is_behind: false,
            was_behind: false,
            later: None,
            asked_for: point.instream,
            asked: RecordRequest::default(),
            said: None,
            suspect,
            to_be_told: candidate.flow.log.restored != Restored::Not,
            is_graft: candidate.replay_position.is_some(),
            step: ConnectionStep::Waiting,
        }
    }

    /// One that was found at the end of its way, which somebody else has watched so far.
    pub(crate) fn found(key: FlowKey, flow: &Flow, now: Duration) -> Self {
        let given = since(flow.splice.instream + 1, flow.splice.ack);
        Self {
            key,
            flow: flow.id,
            incarnation: flow.incarnation.wrapping_sub(1), // or an earlier one
            point: SplicePoint {
                instream: flow.splice.instream,
                outstream: flow.server.nxt,
                verify_end: flow.server.nxt,
            },
            end: flow.splice.ack,
            fin: None,
            words: ComparedOutput::default(),
            given: Given {
                requests: 0,
                bytes: given,
            },
            is_compared: true,
            is_late: false,
            sent: 0,
            doubt: None,
            is_resolved: false,
            is_behind: false,
            was_behind: false,
            later: None,
            asked_for: flow.server.ack,
            asked: RecordRequest::default(),
            said: None,
            suspect: false,
            to_be_told: false,
            is_graft: !flow.is_behind(),
            step: ConnectionStep::Settling {
                since: now,
                look_at: now,
            },
        }
    }

    /// The record is empty in both directions.
    pub(crate) fn is_fresh(&self) -> bool {
        self.point.verify_end == self.point.outstream && self.end == self.point.instream + 1
    }

    /// The record ends at `end` now.
    pub(crate) fn record_ends(&mut self, end: SeqNumber) {
        if self.is_graft || !end.after(self.point.instream) {
            return;
        }
        if end.before(self.end) {
            (self.end, self.fin) = (end, None);
        }
        if let ConnectionStep::Replaying(replay) = &mut self.step {
            replay.shorten(end);
        }
    }

    pub(crate) fn begin(&mut self, now: Duration) {
        self.step = ConnectionStep::Splicing {
            since: now,
            repeat_at: now + SYN_FIRST_DELAY,
            pause: SYN_FIRST_DELAY,
        };
    }

    /// Should the SYN be repeated now? Moves the timer on.
    pub(crate) fn repeat_syn(&mut self, now: Duration) -> bool {
        match &mut self.step {
            ConnectionStep::Splicing {
                repeat_at, pause, ..
            } if now >= *repeat_at => {
                *pause = (*pause * 2).min(SYN_DELAY_MAX);
                *repeat_at = now + *pause;
                true
            }
            _ => false,
        }
    }

    /// Look at its flow in the data plane. Returns whether the server's socket took the
    /// connection just now.
    pub(crate) fn observe(&mut self, flow: Option<&Flow>, now: Duration) -> bool {
        let Some(flow) = flow else { return false };
        let mut spliced = false;
        if matches!(self.step, ConnectionStep::Splicing { .. }) && flow.mode == Mode::Spliced {
            spliced = true;
            let replay = Replay::new(self.point.instream + 1, self.end, self.fin, now);
            let gates = std::mem::take(&mut self.words.beginnings);
            self.step = ConnectionStep::Replaying(replay.with_gates(gates));
        }
        let doubt = flow.doubt().filter(|_| !self.is_graft);
        let doubt = doubt.map(|(instream, heard)| Beginning {
            instream,
            heard,
            said: None,
        });
        self.is_resolved |= self.doubt.is_some() && doubt.is_none();
        self.doubt = doubt;
        let said = flow.splice.nxt + flow.splice.delta_seq;
        self.is_behind = flow.is_behind() && self.doubt.is_none() && !self.is_graft;
        self.was_behind |= self.is_behind;
        self.later = self.waits_for(flow);
        if let (true, ConnectionStep::Replaying(replay)) = (spliced, &mut self.step) {
            replay.set_later(self.later);
        }
        if self.said.is_none_or(|(before, _)| said.after(before)) {
            self.said = Some((said, now));
        }
        if let ConnectionStep::Replaying(replay) = &mut self.step {
            replay.update(flow.splice.ack, flow.splice.rcv_wnd_edge, now);
            replay.compare(&flow.digest);
            replay.on_output(said, now);
            let compares =
                |doubt: &Beginning| flow.compares_all_received() && replay.compares(*doubt);
            let doubt = self.doubt.filter(|doubt| !compares(doubt));
            replay.doubt(doubt, now);
        }
        spliced
    }

    /// Everything was delivered; the server has yet to live through it.
    pub(crate) fn settles(&mut self, now: Duration) {
        if let ConnectionStep::Replaying(replay) = &mut self.step {
            self.words.beginnings = replay.later_gates();
        }
        self.step = ConnectionStep::Settling {
            since: now,
            look_at: now,
        };
    }

    /// What the client says from there on no earlier server has read: it waits until this one has said again all that
    /// the client was sent. (Where a dead host may have read and answered anything, that is not known.)
    fn waits_for(&self, flow: &Flow) -> Option<Beginning> {
        let log = &flow.log;
        let is_known = log.restored == Restored::Not || log.doubt.is_some();
        if !is_known || !self.is_behind {
            return None;
        }
        // Who says something acknowledges what led to that, though its client may not be told. (Without a log link
        // there are no such places, and what is there has no meaning.)
        let read = flow.server.ack;
        let is_place = |at: &SeqNumber| at.after(read) && at.at_or_before(flow.client.nxt);
        let doubt = log.doubt.filter(|_| log.restored != Restored::Not);
        let places = doubt.into_iter().chain([log.former_ack]).filter(is_place);
        Some(Beginning {
            instream: places.fold(read, SeqNumber::max_seq),
            heard: flow.server.nxt,
            said: None,
        })
    }

    /// Something was said since the record was asked last, or came to the record; or may have come late, or again to a
    /// logger that was killed.
    fn may_have_more(&self, flow: &Flow, now: Duration) -> bool {
        !self.asked.is_of(flow) || now.saturating_sub(self.asked.at) >= self.asked.pause
    }

    /// Everything was delivered, and what is recorded since of what the client has said was in doubt, and is no more;
    /// or it is not, but was held with something that is; or the client has spoken when the server had not said again
    /// all that the client was sent. There is a replay again, which gives that to the server.
    pub(crate) fn resume(&mut self, flow: &Flow, now: Duration) -> bool {
        let start = self.point.instream + 1;
        let end = (start + self.given.bytes).max_seq(flow.splice.ack);
        let gates = &self.words.beginnings;
        let compares = |doubt: Beginning| {
            let mut later = gates.iter().filter(|gate| gate.instream.after(end));
            flow.compares_all_received() && later.any(|gate| gate.compares(doubt.heard))
        };
        let gives = |doubt: Beginning| {
            end.before(doubt.instream) || self.lacks_end(doubt) || compares(doubt)
        };
        // The answer to the last question may have had a part of the record only.
        let is_new = flow.log.stable.after(self.asked_for) || self.may_have_more(flow, now);
        let is_resolved = (self.is_resolved || self.doubt.is_some_and(gives))
            && flow.log.stable.after(end)
            && is_new;
        let is_held = self.was_behind
            && flow.unprotected.is_none()
            && flow.client.nxt.after(end)
            && self.may_have_more(flow, now);
        let may_give = self.fin.is_none() && (is_resolved || is_held);
        self.was_behind = self.is_behind;
        if may_give {
            self.asked = self.asked.repeated(flow, now);
            self.is_resolved = false;
            self.asked_for = flow.log.stable;
            let gates = std::mem::take(&mut self.words.beginnings);
            let replay = Replay::resumed(start, end, self.given, now);
            self.step = ConnectionStep::Replaying(replay.with_gates(gates));
        }
        may_give
    }

    /// What its client says next is in doubt, and has to wait.
    pub(crate) fn is_doubted(&self) -> bool {
        self.doubt.is_some()
    }

    /// But the last number that the client has heard is missing, which may be the end of what the dead server said.
    fn lacks_end(&self, doubt: Beginning) -> bool {
        self.said.is_some_and(|(said, _)| said + 1 == doubt.heard)
    }

    /// The server has not said again what the client waits for that says something next.
    pub(crate) fn output_not_repeated(&self) -> LostReason {
        let heard = self.doubt.or(self.later).map(|waits| waits.heard);
        let bytes = heard.and_then(|heard| heard.distance_from(self.point.outstream));
        LostReason::OutputNotRepeated {
            bytes: bytes.unwrap_or(0),
            missing: 0,
        }
    }

    /// For how long the server has said nothing more, while something that the client has said waits for that.
    pub(crate) fn client_waits(&self, flow: &Flow, now: Duration) -> Duration {
        let waits = self.doubt.or(self.later);
        let given = (self.point.instream + 1 + self.given.bytes).max_seq(flow.splice.ack);
        let from = waits.map(|waits| waits.instream.max_seq(given));
        let waits = from.is_some_and(|from| flow.client.nxt.after(from));
        let since = self.said.filter(|_| waits);
        since.map_or(Duration::ZERO, |(_, at)| now.saturating_sub(at))
    }

    /// Delivering it has begun and it is not known whether the server survives it, which it has to for
    /// `settle`. That its output is still being compared does not count.
    pub(crate) fn in_replay(&self, now: Duration, settle: Duration) -> bool {
        match &self.step {
            ConnectionStep::Waiting | ConnectionStep::Splicing { .. } => false,
            ConnectionStep::Replaying(replay) => replay.len() > 0 && !self.rests(now),
            ConnectionStep::Settling { since, .. } => {
                now.saturating_sub(*since) < settle && self.end.after(self.point.instream + 1)
            }
        }
    }

    /// Its turn has come, and is not over: the next suspect waits.
    pub(crate) fn is_in_replay_slot(&self, now: Duration, settle: Duration) -> bool {
        match &self.step {
            ConnectionStep::Waiting => false,
            ConnectionStep::Splicing { .. } | ConnectionStep::Replaying(_) => !self.rests(now),
            ConnectionStep::Settling { since, .. } => now.saturating_sub(*since) < settle,
        }
    }

    /// Its record has not been delivered yet. A FIN that has to wait for what the server says
    /// does not count: that takes as long as the server takes.
    pub(crate) fn to_be_replayed(&self) -> bool {
        match &self.step {
            ConnectionStep::Waiting | ConnectionStep::Splicing { .. } => true,
            ConnectionStep::Replaying(replay) => !replay.holds_fin(),
            ConnectionStep::Settling { .. } => false,
        }
    }

    /// The replay waits for a slow answer of the server, as in a long poll.
    pub(crate) fn rests(&self, now: Duration) -> bool {
        matches!(&self.step, ConnectionStep::Replaying(replay) if replay.awaits().is_some() && replay.idle(now) >= SLOW_SERVER_AFTER)
    }

    /// The data plane was asked for a comparison when the server had said all of that already, and something else: a
    /// server that waits for the next request says no more, and the data plane compares before the next byte only.
    pub(crate) fn contradicted(&self, flow: &Flow, now: Duration) -> Option<LostReason> {
        let (wanted, said) = (flow.digest.wanted?, flow.digest.now);
        // The server's next byte may be on the way: the data plane changes the digest meanwhile.
        let differs = wanted.next == said.next && wanted != said && self.rests(now);
        let offset = said.next.0.wrapping_sub((flow.server.isn + 1).0);
        differs.then_some(LostReason::DivergedBefore { offset })
    }

    /// Other connections wait for the delivery of the record.
    pub(crate) fn is_waited_for(&self, now: Duration) -> bool {
        let later =
            matches!(&self.step, ConnectionStep::Replaying(replay) if replay.awaits_later_only());
        self.to_be_replayed() && !self.rests(now) && !later
    }

    /// How much of the old output was compared with the new server's output.
    pub(crate) fn compared(&self, flow: &Flow) -> Compared {
        let digest = &flow.digest;
        let by_digest = match digest.comparison {
            Comparison::Done => since(self.point.outstream, digest.sent.next).min(self.sent),
            Comparison::None | Comparison::Due => 0,
        };
        let whole = digest.sampled_from.map_or(by_digest, |from| {
            since(self.point.outstream, from).min(by_digest)
        });
        let heads = flow.verify.compared.min(self.sent);
        let sampled = by_digest.saturating_sub(whole.max(heads));
        // Of what another host has said the digest may be older than the newest heads.
        let behind = flow.verify.behind.min(self.sent - by_digest);
        let compared = heads.max(whole + behind);
        Compared {
            compared,
            sampled,
            unverified: self.sent - compared - sampled,
        }
    }
}
