//! A connection during a recovery.

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

/// Positions of a server in a connection after the replay of the determinant log (north side wrap), in client space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayPosition {
    /// The next byte for the server to read.
    pub instream: SeqNumber,
    /// The next byte that the server will send. Earlier output that the client lacks is kept for the client.
    pub outstream: SeqNumber,
    /// The server has closed the connection, as the dead incarnation may have been about to do.
    pub is_closed: bool,
    /// The position belongs to this connection, not to an earlier connection with the same 4-tuple.
    pub is_certain: bool,
}

/// A connection that was found when the server had died.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The 4-tuple of the connection.
    pub key: FlowKey,
    /// State of the connection in the data plane.
    pub flow: Flow,
    /// Record of the connection; `None` if the logger has no record.
    pub record: Option<RecordSummary>,
    /// Position of the new server in the connection; `None` if the server does not know the connection.
    pub replay_position: Option<ReplayPosition>,
}

/// The decision about a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Splice here and replay up to `end`. The client's FIN follows after the server's output has reached `fin`.
    Keep {
        point: SplicePoint,
        end: SeqNumber,
        fin: Option<SeqNumber>,
    },
    /// The client must first confirm its sequence numbers.
    Silent,
    /// A living server closed the connection: the kernel finishes.
    Finished,
    /// The client reset the connection.
    Reset,
    /// The connection cannot be kept.
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
        // Output of a diverged replay does not reach the client, so the kernel cannot finish the connection either.
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
    // Output that a determinant log has replayed needs no comparison: the server sent only output that the log
    // explains.
    if flow.log.restored != Restored::Not
        && candidate.replay_position.is_none()
        && let Some(lost) = incomparable(flow, &record, config.verify_head)
    {
        return Verdict::Lose(lost);
    }
    let fin = record.client_fin.map(|fin| fin.heard);
    let recorded = record.stable_seq + u32::from(fin.is_some());
    // A server with state has read bytes that may be only in the determinant log.
    let read = candidate.replay_position.map(|standing| standing.instream);
    let recorded = read.map_or(recorded, |read| recorded.max_seq(read));
    if recorded.before(flow.server.ack) {
        // The determinant log had these bytes, and the determinant log is lost.
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
    // The server does not listen for a connection that the server opened itself.
    if flow.is_opened_by_server() {
        return Verdict::Lose(LostReason::Forgotten);
    }
    // The client has output of a server whose determinant log is lost: no comparison is possible.
    if config.wrapped && flow.server.sent > 0 {
        return Verdict::Lose(LostReason::Forgotten);
    }
    let (instream, outstream) = match mode {
        ReplayMode::Connection => (flow.client.isn + 1, flow.server.isn + 1),
        ReplayMode::Request => (record.turn_instream, record.turn_outstream),
    };
    if record.start.after(instream) {
        // The determinant log had the bytes that the server had read, and the determinant log is lost.
        if config.wrapped {
            return Verdict::Lose(LostReason::Forgotten);
        }
        return Verdict::Lose(LostReason::RecordIncomplete {
            stable_seq: instream,
            acknowledged: flow.server.ack,
        });
    }
    // Beyond half of the sequence space the position of a replay is ambiguous (RFC 9293 3.4).
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

/// The server has replayed the determinant log: no output is repeated, and the connection continues at the positions of
/// both sides.
fn judge_graft(flow: &Flow, record: &RecordSummary, standing: ReplayPosition) -> Verdict {
    // A server cannot have read bytes that the client has not sent: the position belongs to an earlier connection with
    // the same 4-tuple. (For clients of a dead host the end of the client's data is unknown.)
    if flow.log.restored == Restored::Not && standing.instream.after(flow.client.nxt) {
        return Verdict::Lose(LostReason::Forgotten);
    }
    // A connection without output may be a later connection with the same 4-tuple that was never accepted.
    if standing.is_closed && flow.server.sent == 0 && !standing.is_certain {
        return Verdict::Lose(LostReason::Forgotten);
    }
    if record.start.after(standing.instream) {
        return Verdict::Lose(LostReason::RecordIncomplete {
            stable_seq: standing.instream,
            acknowledged: flow.server.ack,
        });
    }
    // A client cannot have output that the server has not sent, except the server's FIN, which the server may repeat.
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

/// Whether too little is recorded of the beginning of a response that the client has: the first response of the
/// request, or a later response. On a host that lives, output on the way to the logger is safe. Output on the way is
/// lost when a host stops.
fn incomparable(flow: &Flow, record: &RecordSummary, verify_head: u32) -> Option<LostReason> {
    let [oldest, next] = record.answers;
    [record.turn_outstream, oldest, next]
        .into_iter()
        .find_map(|answer| {
            let since = |end: SeqNumber| end.distance_from(answer).unwrap_or(0);
            // The client may have bytes beyond a gap: the beginning of that response must be recorded, too.
            let heard = since(flow.client.ack.max_seq(flow.log.client_received)).min(verify_head);
            let recorded = record.outstream_end.map_or(0, since);
            // The server's FIN takes a sequence number, and is no byte.
            (heard > recorded + 1).then_some(LostReason::NotComparable { heard, recorded })
        })
}

/// Sequence numbers more than half of the space apart have no order (RFC 9293 3.4). A server with more output to repeat
/// would seem ahead of the client instead of behind.
const HALF_SEQUENCE_SPACE: u64 = 1 << 31;

/// Number of bytes that the server had sent before the first repeated byte. `None` if the number is unknown, because
/// the sequence numbers have wrapped since.
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
    // After a wrap the data plane knows only the place of the last request.
    let last = flow.verify.head_sent;
    (last % (1 << 32) == u64::from(place)).then_some(last)
}

/// The reason to lose a connection whose replay contradicts the record.
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

/// Progress of a kept connection.
#[derive(Debug, Clone)]
pub(crate) enum ConnectionStep {
    /// The connection waits for a splice.
    Waiting,
    /// The fabricated SYN is out.
    Splicing {
        since: Duration,
        repeat_at: Duration,
        pause: Duration,
    },
    /// The record is being delivered.
    Replaying(Replay),
    /// The record was delivered. The server must survive the replay, and the output is still being compared.
    Settling { since: Duration, look_at: Duration },
}

/// Old output of the server, as far as the output is to be compared.
#[derive(Debug, Clone, Default)]
pub(crate) struct ComparedOutput {
    /// Places at which the replay waits for the server.
    pub(crate) beginnings: Vec<Beginning>,
    /// Digests of all output before some places.
    pub(crate) digests: Vec<Digest>,
    /// Acknowledgement of the client, if the flow was made anew and the output came from another host.
    pub(crate) heard_elsewhere: Option<SeqNumber>,
}

/// A connection that is being kept.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) key: FlowKey,
    pub(crate) flow: FlowId,
    /// The earlier incarnation of the server that had the connection.
    pub(crate) incarnation: u32,
    pub(crate) point: SplicePoint,
    end: SeqNumber,
    fin: Option<SeqNumber>,
    /// Old output to compare.
    pub(crate) words: ComparedOutput,
    /// Input that the server was given.
    pub(crate) given: Given,
    /// The server has repeated all output that can be compared.
    pub(crate) is_compared: bool,
    /// The server needs long for the repetition: other connections do not wait.
    pub(crate) is_late: bool,
    /// Bytes that the client was sent, as far as the new server has to repeat the bytes.
    sent: u32,
    /// Input from this place on is in doubt and waits for output.
    doubt: Option<Beginning>,
    /// An earlier doubt is resolved.
    is_resolved: bool,
    /// The server has not yet repeated all output that the client was sent.
    pub(crate) is_behind: bool,
    /// `is_behind` was set at some time since [`Self::resume`] last looked for new input of the client.
    was_behind: bool,
    /// Input from this place on waits until the server has repeated all output.
    pub(crate) later: Option<Beginning>,
    /// End of the record at the last request for more.
    asked_for: SeqNumber,
    asked: RecordRequest,
    /// End of the server's output so far, in client space, and the time of the last change.
    said: Option<(SeqNumber, Duration)>,
    /// The server died during a replay of this connection: the connection is spliced last, and alone.
    pub(crate) suspect: bool,
    /// Another host had the connection, and the client has not been sent the acknowledgement of the recorded bytes.
    pub(crate) to_be_told: bool,
    /// The server knows the connection and gets a socket that continues the connection.
    pub(crate) is_graft: bool,
    pub(crate) step: ConnectionStep,
}

/// After this time of silence, a server that has to repeat output keeps the client of that output waiting, and no
/// other.
const SLOW_SERVER_AFTER: Duration = Duration::from_secs(1);

/// First pause before a SYN is repeated; doubles up to [`SYN_DELAY_MAX`].
const SYN_FIRST_DELAY: Duration = Duration::from_millis(1);
const SYN_DELAY_MAX: Duration = Duration::from_millis(64);
/// Delay before a record is asked again for bytes that the client has sent; the delay doubles. The client retransmits
/// no sooner.
const RECORD_REQUEST_DELAY: Duration = Duration::from_millis(200);

/// The last request for more bytes of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct RecordRequest {
    /// End of the bytes that the client had sent.
    said: SeqNumber,
    /// End of the record at the other end of a log link.
    recorded: SeqNumber,
    at: Duration,
    /// Delay of the next request for the same bytes.
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
                Some(_) => 0, // a server with state has compared the output itself
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

    /// A connection found at the end of a recovery that an earlier `serve` watched.
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

    /// Reads the state of the flow in the data plane. Returns whether the server's socket took the connection just now.
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

    /// All input was delivered; the server must survive the replay.
    pub(crate) fn settles(&mut self, now: Duration) {
        if let ConnectionStep::Replaying(replay) = &mut self.step {
            self.words.beginnings = replay.later_gates();
        }
        self.step = ConnectionStep::Settling {
            since: now,
            look_at: now,
        };
    }

    /// No earlier server has read the client's bytes from there on. These bytes wait until this server has repeated all
    /// output that the client was sent. (Where a dead host may have read and answered any bytes, the place is unknown.)
    fn waits_for(&self, flow: &Flow) -> Option<Beginning> {
        let log = &flow.log;
        let is_known = log.restored == Restored::Not || log.doubt.is_some();
        if !is_known || !self.is_behind {
            return None;
        }
        // A server that answers acknowledges the input of the answer, even if the client never gets the
        // acknowledgement. (Without a log link there are no such places, and the fields have no meaning.)
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

    /// Since the last request the client has sent bytes, or the record has grown; or bytes may have come late, or again
    /// to a logger that was killed.
    fn may_have_more(&self, flow: &Flow, now: Duration) -> bool {
        !self.asked.is_of(flow) || now.saturating_sub(self.asked.at) >= self.asked.pause
    }

    /// Begins another replay when more input may be given. Either the doubt about recorded input is resolved; or
    /// recorded input was held together with resolved input; or the client sent input while the server was behind.
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

    /// The client's next input is in doubt and must wait.
    pub(crate) fn is_doubted(&self) -> bool {
        self.doubt.is_some()
    }

    /// Only the last number that the client has is missing, which may be the FIN of the dead server.
    fn lacks_end(&self, doubt: Beginning) -> bool {
        self.said.is_some_and(|(said, _)| said + 1 == doubt.heard)
    }

    /// The reason to lose a connection whose next input waits for output that the server has not repeated.
    pub(crate) fn output_not_repeated(&self) -> LostReason {
        let heard = self.doubt.or(self.later).map(|waits| waits.heard);
        let bytes = heard.and_then(|heard| heard.distance_from(self.point.outstream));
        LostReason::OutputNotRepeated {
            bytes: bytes.unwrap_or(0),
            missing: 0,
        }
    }

    /// Time since the last output of the server, while input of the client waits for more output.
    pub(crate) fn client_waits(&self, flow: &Flow, now: Duration) -> Duration {
        let waits = self.doubt.or(self.later);
        let given = (self.point.instream + 1 + self.given.bytes).max_seq(flow.splice.ack);
        let from = waits.map(|waits| waits.instream.max_seq(given));
        let waits = from.is_some_and(|from| flow.client.nxt.after(from));
        let since = self.said.filter(|_| waits);
        since.map_or(Duration::ZERO, |(_, at)| now.saturating_sub(at))
    }

    /// Delivery has begun, and the server has not yet survived the replay for `settle`. A comparison that still runs
    /// does not count.
    pub(crate) fn in_replay(&self, now: Duration, settle: Duration) -> bool {
        match &self.step {
            ConnectionStep::Waiting | ConnectionStep::Splicing { .. } => false,
            ConnectionStep::Replaying(replay) => replay.len() > 0 && !self.rests(now),
            ConnectionStep::Settling { since, .. } => {
                now.saturating_sub(*since) < settle && self.end.after(self.point.instream + 1)
            }
        }
    }

    /// The turn of this connection has come and is not over: the next suspect waits.
    pub(crate) fn is_in_replay_slot(&self, now: Duration, settle: Duration) -> bool {
        match &self.step {
            ConnectionStep::Waiting => false,
            ConnectionStep::Splicing { .. } | ConnectionStep::Replaying(_) => !self.rests(now),
            ConnectionStep::Settling { since, .. } => now.saturating_sub(*since) < settle,
        }
    }

    /// The record has not been delivered yet. A FIN that waits for output of the server does not count: the wait takes
    /// as long as the server takes.
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

    /// The data plane was asked for a comparison when the server had already sent the whole output, and other output. A
    /// server that waits for the next request sends no more, and the data plane compares only before the next byte.
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
        // For output of another host, the digest may be older than the newest response heads.
        let behind = flow.verify.behind.min(self.sent - by_digest);
        let compared = heads.max(whole + behind);
        Compared {
            compared,
            sampled,
            unverified: self.sent - compared - sampled,
        }
    }
}
