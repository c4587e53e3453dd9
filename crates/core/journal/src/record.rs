//! The record of a protected connection.

use crate::answers::Answers;
use crate::beginnings::Beginnings;
use crate::error::{Refused, Unprotected};
use crate::heads::Heads;
use crate::instream::Instream;
use types::{ClientFin, ReplayMode};

use crate::journal::MAX_PER_CONNECTION;
use crate::len64;
use crate::marks::{Mark, Marks};
use crate::pool::{Budget, Pool};
use crate::position::{FIRST_POSITION, PLAUSIBLE_DISTANCE, seq_at, unwrap};
use crate::request::{Candidate, Candidates, Request};
use crate::statistics::{ByteCounts, Statistics};
use crate::summary::{Position, Protected};
use wire::SeqNumber;

/// A segment from a client, with the state of the connection on the server's host at the arrival. All numbers are the
/// original numbers, as the client knows them.
#[derive(Debug, Clone, Copy)]
pub struct InstreamSegment<'a> {
    /// The sequence number of the first byte of the payload.
    pub seq: SeqNumber,
    /// The payload, of any length; empty for a bare FIN or acknowledgement.
    pub payload: &'a [u8],
    /// Whether the client's FIN follows the payload.
    pub fin: bool,
    /// The lowest outstream sequence number that the client has not acknowledged.
    pub client_ack: SeqNumber,
    /// Whether the client had received all output of the server: the next output answers this segment.
    pub heard_all: bool,
    /// Whether the head of everything that the server had said when this came is recorded.
    pub heads_known: bool,
    /// Set if a dead host may have answered this segment already, with a response that is not recorded: the client had
    /// received the output before this number from that host.
    pub doubted: Option<SeqNumber>,
    /// The progress of the server when this segment arrived; `None` if unknown. No request begins with such a segment,
    /// nor with the next new segment.
    pub server: Option<ServerProgress>,
}

/// The first bytes of a response, as sent by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutstreamSegment<'a> {
    /// The sequence number of the first byte.
    pub seq: SeqNumber,
    /// The bytes.
    pub payload: &'a [u8],
    /// How many more are to be recorded behind these, and come later.
    pub more: u32,
    /// The end of the preceding head, which may not be here yet. `None`: the preceding head is here.
    pub after: Option<SeqNumber>,
    /// How far the client had sent when this answer began, if that is known.
    pub asked: Option<SeqNumber>,
}

impl<'a> OutstreamSegment<'a> {
    /// A head whose predecessors are here.
    #[must_use]
    pub const fn in_order(seq: SeqNumber, payload: &'a [u8]) -> Self {
        Self {
            seq,
            payload,
            more: 0,
            after: None,
            asked: None,
        }
    }
}

/// How far a server has come in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerProgress {
    /// The lowest outstream sequence number that the server has not sent.
    pub nxt: SeqNumber,
    /// The lowest instream sequence number that the server's TCP has not acknowledged.
    pub ack: SeqNumber,
}

/// The outcome of a recorded segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The lowest instream sequence number that is not in the record now. A FIN counts as a number.
    pub stable_seq: SeqNumber,
    /// Whether there was a gap before this segment, or there is a gap now.
    pub hole: bool,
    /// Whether the segment was new: a byte that was not recorded or that lies beyond a gap, or the FIN. Otherwise the
    /// record would be the same without the segment.
    pub new: bool,
}

/// The initial sequence numbers of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isns {
    pub(crate) client: SeqNumber,
    pub(crate) server: SeqNumber,
}

impl Isns {
    fn place(self, instream: u64, outstream: u64) -> Position {
        Position {
            instream: seq_at(self.client, instream),
            outstream: seq_at(self.server, outstream),
        }
    }
}

/// The state that the records of a journal share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) per_connection: u64,
    pub(crate) mode: ReplayMode,
    /// No request begins.
    pub(crate) turns_held: bool,
    /// The heads of the outstream come by another way than the instream, and later.
    pub(crate) heads_come_late: bool,
    pub(crate) statistics: Statistics,
}

/// The record of a protected connection.
#[derive(Debug)]
pub(crate) struct Record {
    instream: Instream,
    heads: Heads,
    turn: Request,
    turns: u64,
    /// The highest outstream position seen: the next sequence numbers are near.
    outstream_seen: u64,
    /// The end of the output when the client's newest byte arrived, if known.
    spoken: Option<u64>,
    /// Requests that may have begun.
    candidates: Candidates,
    /// Where the client sent after receiving all output.
    beginnings: Beginnings,
    /// Hashes of the output.
    marks: Marks,
    /// Answers whose heads may not be here.
    answers: Answers,
    /// How far the server had read when the server sent the newest head.
    asked: u64,
    /// The first position that was in doubt on arrival.
    doubted: Option<u64>,
    /// The client's acknowledgement in the FIN segment.
    fin_heard: SeqNumber,
    held: u64,
}

impl Record {
    pub(crate) const fn new() -> Self {
        Self {
            instream: Instream::new(),
            heads: Heads::new(),
            turn: Request::FIRST,
            turns: 1,
            outstream_seen: Request::FIRST.outstream,
            spoken: Some(Request::FIRST.outstream),
            candidates: Candidates::NONE,
            beginnings: Beginnings::from(Request::FIRST.outstream),
            marks: Marks::NONE,
            answers: Answers::from(Request::FIRST.outstream),
            asked: Request::FIRST.instream,
            doubted: None,
            fin_heard: SeqNumber(0),
            held: 0,
        }
    }

    /// The record of a connection of which everything before this place is of no use any more.
    pub(crate) fn resumed(isns: Isns, at: Position) -> Self {
        let turn = Request {
            instream: first_position(isns.client, at.instream),
            outstream: first_position(isns.server, at.outstream),
        };
        Self {
            instream: Instream::from(turn.instream),
            heads: Heads::from(turn.outstream),
            turn,
            outstream_seen: turn.outstream,
            spoken: Some(turn.outstream),
            beginnings: Beginnings::from(turn.outstream),
            answers: Answers::from(turn.outstream),
            asked: turn.instream,
            ..Self::new()
        }
    }

    /// Records a segment from the client.
    pub(crate) fn arrival(
        &mut self,
        isns: Isns,
        arrival: &InstreamSegment<'_>,
        shared: &mut Shared,
    ) -> Result<Recorded, Refused> {
        let near = self.instream.data_end();
        let position = unwrap(isns.client, arrival.seq, near, PLAUSIBLE_DISTANCE)
            .ok_or(Refused::Implausible)?;
        let end = position + len64(arrival.payload.len());
        if end > near + u64::from(PLAUSIBLE_DISTANCE) {
            return Err(Refused::Implausible);
        }
        let hole = self.instream.has_hole();
        self.is_doubted(isns, arrival, shared)
            .map_err(Refused::BecameUnprotected)?;
        if arrival.server.is_some() && arrival.heads_known {
            // The server has read everything before this segment, and sent no response of which the head is missing
            // here.
            self.asked = self.asked.max(position);
        }
        match arrival.server {
            Some(server) => self
                .server_is_at(isns, server, arrival, (position, end), shared)
                .map_err(Refused::BecameUnprotected)?,
            None if end > self.instream.newest_end() => self.spoken = None,
            None => {}
        }

        let mut counts = ByteCounts::default();
        let mut budget = budget(&mut self.held, &mut shared.pool, shared.per_connection);
        let recorded = self
            .instream
            .record(position, arrival.payload, &mut counts, &mut budget);
        shared.statistics.instream.add(counts);
        recorded.map_err(Refused::BecameUnprotected)?;
        let mut new = counts.recorded > 0 || (end > near && !arrival.payload.is_empty());
        if arrival.fin {
            if self.instream.fin().is_none() {
                new = true;
                self.fin_heard = arrival.client_ack;
            }
            if !self.instream.record_fin(end) {
                shared.statistics.conflicting_fins += 1;
            }
        }
        if new && end >= near && arrival.heard_all {
            self.is_answered_next(isns, arrival);
        }
        Ok(Recorded {
            stable_seq: self.stable_seq(isns),
            hole: hole || self.instream.has_hole(),
            new,
        })
    }

    /// The first position of the instream that may have been answered without a record of input or response. The input
    /// there is not recorded, not even beyond a gap; nor had the server read the input when the server sent the newest
    /// head. (A FIN takes a number, and no input behind a FIN is answered.)
    fn unanswered(&self) -> u64 {
        let from = self.asked.max(self.instream.data_end());
        self.instream.range_of(from).map_or(from, |range| range.end)
    }

    /// As `unanswered`, and includes input that was in doubt on arrival, until a server has read that input after
    /// repeating the output that the client had received.
    fn doubt(&self) -> u64 {
        let doubted = self.doubted.filter(|doubted| *doubted >= self.asked);
        doubted.unwrap_or_else(|| self.unanswered())
    }

    /// A server gets input in doubt only after the server has repeated all output that the client had received.
    fn is_doubted(
        &mut self,
        isns: Isns,
        arrival: &InstreamSegment<'_>,
        shared: &mut Shared,
    ) -> Result<(), Unprotected> {
        let heard = arrival.doubted;
        let Some(outstream) = heard.and_then(|heard| self.outstream_position(isns, heard)) else {
            return Ok(());
        };
        self.doubted = Some(self.doubt());
        let from = Request {
            instream: self.unanswered(),
            outstream,
        };
        let mut budget = budget(&mut self.held, &mut shared.pool, shared.per_connection);
        let before = self.beginnings.push(from, &mut budget)?;
        before.into_iter().for_each(|at| self.marks.forget(at));
        Ok(())
    }

    /// The client has said something new, and had heard everything.
    fn is_answered_next(&mut self, isns: Isns, arrival: &InstreamSegment<'_>) {
        let Some(at) = self.outstream_position(isns, arrival.client_ack) else {
            return;
        };
        if arrival.server.is_some() || arrival.heads_known {
            self.answers.begins(at);
        } else {
            self.answers.may_have_begun(at);
        }
    }

    /// Takes the progress of the server when a segment arrives with the positions from `position` up to `end`.
    fn server_is_at(
        &mut self,
        isns: Isns,
        server: ServerProgress,
        arrival: &InstreamSegment<'_>,
        (position, end): (u64, u64),
        shared: &mut Shared,
    ) -> Result<(), Unprotected> {
        let Some(sent) = self.outstream_position(isns, server.nxt) else {
            return Ok(());
        };
        self.outstream_seen = self.outstream_seen.max(sent);
        let turn = Request {
            instream: position,
            outstream: sent,
        };
        let speaks = turn.may_begin(arrival, server, &self.instream);
        if speaks {
            let mut budget = budget(&mut self.held, &mut shared.pool, shared.per_connection);
            let before = self.beginnings.push(turn, &mut budget)?;
            before.into_iter().for_each(|at| self.marks.forget(at));
            self.marks.keep(turn.outstream);
        }
        if let Some(spoken) = self.spoken
            && !shared.turns_held
            && speaks
            && sent > spoken
        {
            self.candidates.push(Candidate { turn, spoken });
            self.decide(shared);
        }
        // A late segment that fills a gap says nothing about the bytes that arrived before.
        if end > self.instream.newest_end() {
            self.spoken = Some(self.spoken.map_or(sent, |spoken| spoken.max(sent)));
        }
        Ok(())
    }

    /// Begins the requests that are known to have begun.
    fn decide(&mut self, shared: &mut Shared) {
        while let Some(candidate) = self.candidates.first() {
            if shared.turns_held || (shared.heads_come_late && !candidate.is_decidable(&self.heads))
            {
                return;
            }
            self.candidates.pop_first();
            if candidate.turn.follows(self.turn, &self.heads) {
                self.begin(candidate.turn, shared);
            }
        }
    }

    /// Records output of the server. Returns whether the output is new.
    pub(crate) fn outstream(
        &mut self,
        isns: Isns,
        said: &OutstreamSegment<'_>,
        shared: &mut Shared,
    ) -> Result<bool, Refused> {
        let OutstreamSegment {
            seq,
            payload,
            more,
            after,
            asked,
        } = *said;
        let position = self
            .outstream_position(isns, seq)
            .ok_or(Refused::Implausible)?;
        let end = position + len64(payload.len());
        self.outstream_seen = self.outstream_seen.max(end);

        let mut counts = ByteCounts::default();
        let mut budget = budget(&mut self.held, &mut shared.pool, shared.per_connection);
        let recorded = self
            .heads
            .record(position, payload, &mut counts, &mut budget);
        shared.statistics.outstream.add(counts);
        recorded.map_err(Refused::BecameUnprotected)?;
        let end = end + u64::from(more);
        let before = match after {
            None => Some(0),
            Some(after) => seq
                .distance_from(after)
                .and_then(|behind| position.checked_sub(u64::from(behind))),
        };
        let Some(before) = before.filter(|before| *before <= self.answers.end) else {
            self.decide(shared);
            return Ok(counts.recorded > 0);
        };
        // A segment without a byte is no head, and only tells about the heads before.
        let mut known = end > position && self.answers.recorded_after(before, end);
        let asked = asked.and_then(|asked| self.instream_position(isns, asked));
        if let Some(asked) = asked.filter(|asked| *asked > self.asked) {
            self.asked = asked;
            known = true;
        }
        self.decide(shared);
        Ok(counts.recorded > 0 || known)
    }

    /// Records the hash of the whole output so far. The client has received the output before `heard`, and sends from
    /// a place on, if the client has received all output. Returns whether the hash is new.
    pub(crate) fn mark(
        &mut self,
        isns: Isns,
        (mark, (heard, speaks)): (Mark, (SeqNumber, Option<SeqNumber>)),
        shared: &mut Shared,
    ) -> Result<bool, Refused> {
        let position = self
            .outstream_position(isns, mark.next)
            .ok_or(Refused::Implausible)?;
        let floor = self.request_floor(shared);
        if position < floor {
            return Ok(false);
        }
        // Between two segments of the client there may be gigabytes.
        self.outstream_seen = self.outstream_seen.max(position);
        let heard = self.outstream_position(isns, heard);
        let near = self.instream.data_end();
        let speaks = speaks.and_then(|from| unwrap(isns.client, from, near, PLAUSIBLE_DISTANCE));
        let speaks = speaks.filter(|from| *from >= self.instream.start());
        let mut budget = budget(&mut self.held, &mut shared.pool, shared.per_connection);
        if let Some(instream) = speaks {
            // The server had sent all output that the client had received before the server read the input in doubt.
            let has_read = instream <= near;
            self.doubted = self
                .doubted
                .filter(|doubted| !has_read || *doubted >= instream);
            let turn = Request {
                instream,
                outstream: position,
            };
            let before = self.beginnings.push(turn, &mut budget);
            let before = before.map_err(Refused::BecameUnprotected)?;
            before.into_iter().for_each(|at| self.marks.forget(at));
        }
        let at = (position, self.beginnings.has(position));
        let is_new = self.marks.push(at, mark, &mut budget);
        self.marks.on_ack(heard.unwrap_or(0), floor, &mut budget);
        is_new.map_err(Refused::BecameUnprotected)
    }

    /// The server does not repeat the output before this position.
    fn request_floor(&self, shared: &Shared) -> u64 {
        match shared.mode {
            ReplayMode::Request => self.turn.outstream,
            ReplayMode::Connection => self.heads.start(),
        }
    }

    /// Hashes of the output, in order.
    pub(crate) fn marks(&self) -> impl Iterator<Item = Mark> {
        self.marks.iter()
    }

    /// The range beyond a gap around `seq`: the first number and the number after the last.
    pub(crate) fn range_of(&self, isns: Isns, seq: SeqNumber) -> Option<(SeqNumber, SeqNumber)> {
        let position = unwrap(
            isns.client,
            seq,
            self.instream.data_end(),
            PLAUSIBLE_DISTANCE,
        )?;
        let range = self.instream.range_of(position)?;
        Some((
            seq_at(isns.client, range.start),
            seq_at(isns.client, range.end),
        ))
    }

    /// Appends to `into` at most `max` stable bytes from `from` on. Returns the number of bytes, or the bounds of the
    /// record if `from` is outside.
    pub(crate) fn read(
        &self,
        isns: Isns,
        from: SeqNumber,
        max: usize,
        into: &mut Vec<u8>,
    ) -> Result<usize, OutOfRecord> {
        let (start, end) = (self.instream.start(), self.instream.data_end());
        let start_seq = seq_at(isns.client, start);
        // No record is longer than the searched part of the sequence space behind the end.
        let behind = u32::MAX - PLAUSIBLE_DISTANCE;
        let Some(position) =
            unwrap(isns.client, from, end, behind).filter(|position| *position >= start)
        else {
            return Err(OutOfRecord::Before(start_seq));
        };
        if position > self.instream.stable() {
            let stable = seq_at(isns.client, self.instream.stable());
            return Err(OutOfRecord::After(stable));
        }
        let length = crate::index(end.saturating_sub(position)).min(max);
        for slice in self.instream.slices(position, length) {
            into.extend_from_slice(slice);
        }
        Ok(length)
    }

    /// Drops the bytes before `to`, recorded or not. If the bytes behind `to` cannot be moved, the record stays as
    /// before.
    pub(crate) fn release(&mut self, isns: Isns, to: SeqNumber, shared: &mut Shared) {
        let end = self.instream.data_end();
        // A place too far ahead counts as a place before the record.
        let Some(position) = unwrap(isns.client, to, end, u32::MAX - PLAUSIBLE_DISTANCE) else {
            return;
        };
        let is_ended = self.instream.fin().is_some_and(|fin| fin < position);
        if position <= self.instream.start() || is_ended {
            return;
        }
        let mut budget = budget(&mut self.held, &mut shared.pool, shared.per_connection);
        let dropped = self.instream.drop_before(position, &mut budget);
        if dropped.is_ok() {
            self.beginnings.drop_before(position, &mut budget);
        }
        if dropped.is_ok() && position > end {
            // The progress of the server is unknown for those bytes.
            self.spoken = None;
        }
    }

    /// The sequence number and the bytes of each recorded part of the outstream, in order.
    pub(crate) fn heads(&self, isns: Isns) -> impl Iterator<Item = (SeqNumber, &[u8])> {
        self.heads
            .iter()
            .map(move |(position, bytes)| (seq_at(isns.server, position), bytes))
    }

    /// Where the client sent after receiving all output, in order.
    pub(crate) fn beginnings(&self, isns: Isns) -> impl Iterator<Item = Position> {
        self.beginnings.iter().map(move |at| Position {
            instream: isns.client + at.instream.0,
            outstream: isns.server + at.outstream.0,
        })
    }

    /// The first recorded bytes from `from` on, as far as they are contiguous in memory.
    pub(crate) fn recorded_from(&self, isns: Isns, from: SeqNumber) -> Option<(SeqNumber, &[u8])> {
        let near = self.instream.data_end();
        // No record is longer than the searched part of the sequence space behind the end.
        let position = unwrap(isns.client, from, near, u32::MAX - PLAUSIBLE_DISTANCE).unwrap_or(0);
        let (position, bytes) = self.instream.recorded_from(position)?;
        Some((seq_at(isns.client, position), bytes))
    }

    pub(crate) fn restore_beginnings(
        &mut self,
        isns: Isns,
        beginnings: impl Iterator<Item = Position>,
        shared: &mut Shared,
    ) -> Result<(), Unprotected> {
        let mut budget = budget(&mut self.held, &mut shared.pool, shared.per_connection);
        self.beginnings.clear(&mut budget);
        self.beginnings = Beginnings::from(self.heads.start());
        let behind = u32::MAX - PLAUSIBLE_DISTANCE;
        for at in beginnings {
            let instream = unwrap(isns.client, at.instream, self.instream.data_end(), behind);
            let outstream = unwrap(isns.server, at.outstream, self.heads.start(), 0);
            if let (Some(instream), Some(outstream)) = (instream, outstream) {
                let turn = Request {
                    instream,
                    outstream,
                };
                self.beginnings.push(turn, &mut budget)?;
                self.marks.keep(turn.outstream);
            }
        }
        Ok(())
    }

    pub(crate) fn restore_asked(&mut self, isns: Isns, asked: SeqNumber, doubt: SeqNumber) {
        self.asked = self.instream_position(isns, asked).unwrap_or(self.asked);
        let doubt = self.instream_position(isns, doubt);
        self.doubted = doubt.filter(|doubt| *doubt < self.unanswered());
    }

    pub(crate) fn restore_turn(&mut self, isns: Isns, at: Position, answers: [SeqNumber; 4]) {
        let said = |seq| unwrap(isns.server, seq, self.heads.start(), 0);
        if let [Some(oldest), Some(next), Some(newest), Some(end)] = answers.map(said) {
            self.answers = Answers {
                oldest,
                next,
                newest,
                end,
            };
        }
        let behind = u32::MAX - PLAUSIBLE_DISTANCE;
        let instream = unwrap(isns.client, at.instream, self.instream.data_end(), behind);
        let outstream = unwrap(isns.server, at.outstream, self.heads.start(), 0);
        if let (Some(instream), Some(outstream)) = (instream, outstream) {
            self.turn = Request {
                instream,
                outstream,
            };
            self.outstream_seen = self.outstream_seen.max(outstream);
        }
    }

    pub(crate) fn heads_end(&self, isns: Isns) -> SeqNumber {
        seq_at(isns.server, self.answers.end)
    }

    pub(crate) fn stable_seq(&self, isns: Isns) -> SeqNumber {
        seq_at(isns.client, self.instream.stable())
    }

    pub(crate) fn summary(&self, isns: Isns) -> Protected {
        Protected {
            start: isns.place(self.instream.start(), self.heads.start()),
            turn: isns.place(self.turn.instream, self.turn.outstream),
            answers: self.answers.places().map(|at| seq_at(isns.server, at)),
            asked: seq_at(isns.client, self.asked),
            doubt: seq_at(isns.client, self.doubt()),
            turns: self.turns,
            stable_seq: self.stable_seq(isns),
            fin: self.instream.fin().map(|fin| ClientFin {
                seq: seq_at(isns.client, fin),
                heard: self.fin_heard,
            }),
            ahead: self.instream.bytes_beyond_gap(),
            held: self.held,
        }
    }

    /// Gives all memory back.
    pub(crate) fn free(mut self, pool: &mut Pool) {
        let mut budget = budget(&mut self.held, pool, MAX_PER_CONNECTION);
        self.instream.clear(&mut budget);
        self.heads.clear(&mut budget);
        self.beginnings.clear(&mut budget);
        self.marks.clear(&mut budget);
    }

    fn begin(&mut self, turn: Request, shared: &mut Shared) {
        if shared.mode == ReplayMode::Request {
            let mut budget = budget(&mut self.held, &mut shared.pool, shared.per_connection);
            // The bytes since the beginning of the request must be moved, and there may be no memory: then these bytes
            // stay part of the old request.
            if self
                .instream
                .drop_before(turn.instream, &mut budget)
                .is_err()
            {
                return;
            }
            self.heads.drop_before(turn.outstream, &mut budget);
            self.beginnings.drop_before(turn.instream, &mut budget);
            self.marks.drop_before(turn.outstream, &mut budget);
        }
        self.turn = turn;
        self.answers.forget_before(turn.outstream);
        self.turns += 1;
        shared.statistics.turns += 1;
    }

    /// The position of `seq`, which the server sent lately or is about to send. Most of the sequence space is searched
    /// ahead: between two segments of the client the server may have sent gigabytes without a report.
    fn outstream_position(&self, isns: Isns, seq: SeqNumber) -> Option<u64> {
        unwrap(isns.server, seq, self.outstream_seen, PLAUSIBLE_DISTANCE)
    }

    /// The position of `seq`, up to which the client may have sent.
    fn instream_position(&self, isns: Isns, seq: SeqNumber) -> Option<u64> {
        let near = self.instream.data_end();
        unwrap(isns.client, seq, near, PLAUSIBLE_DISTANCE)
            .filter(|at| *at <= near + u64::from(PLAUSIBLE_DISTANCE))
    }

    #[cfg(test)]
    pub(crate) fn really_held(&self) -> usize {
        let streams = self.instream.really_held() + self.heads.really_held();
        streams + self.beginnings.really_held() + self.marks.really_held()
    }
}

/// The position of `seq` in the first 4 GiB of the stream: of which 4 GiB does not matter to a
/// record that begins there.
fn first_position(isn: SeqNumber, seq: SeqNumber) -> u64 {
    unwrap(isn, seq, FIRST_POSITION, 0).unwrap_or(FIRST_POSITION)
}

/// The place that was asked for lies before or after the record, which begins or ends there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutOfRecord {
    Before(SeqNumber),
    After(SeqNumber),
}

fn budget<'a>(held: &'a mut u64, pool: &'a mut Pool, limit: u64) -> Budget<'a> {
    Budget { pool, held, limit }
}
