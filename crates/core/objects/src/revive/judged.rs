//! The verdict on an answer of the local server.

use alloc::vec::Vec;

use http1::chunks::Chunks;
use http1::date;
use http1::version::{ObjectVersion, VersionCheck};
use http1::{BodyLength, ResponseHead, parse_response};

use super::flow::{Answer, AnswerBody};
use super::segments::{Received, acknowledgement};
use super::{Action, CLOCK_DIFFERENCE, Connected, Position, Question, Reason, Revival, Stage};
use crate::judge::{Download, JudgeRules, Refusal, Verdict, judge, judge_chunks};
use crate::record::StoredAnswer;

/// Bytes that the reader of chunks takes at a time: no chunks are too short for so few bytes.
const CHUNKED_PIECE_BYTES: usize = 4096;

/// Window of a client whose window is shut, not scaled.
const BEGINNING_WINDOW: u16 = 4096;

impl Revival {
    /// Judges an answer of which `received` has the head, and perhaps a part of the body. `None`: the verdict needs
    /// more of the body.
    pub(super) fn judged(
        &self,
        question: &Question,
        head: &ResponseHead<'_>,
        received: &Received,
    ) -> Result<Option<Answer>, Reason> {
        let Position::Body { offset, .. } = self.position else {
            return Err(Reason::Answer(Refusal::Part));
        };
        let known = u64::from(offset > 0);
        let version = match head.status {
            200 | 206 => {
                let version = ObjectVersion::of(head).map_err(Refusal::Doubt)?;
                let first = self.flaws.first_byte(question.own_range_start());
                let (rules, key) = (&self.rules, &self.key);
                let is_of_record = self
                    .stored_answer()
                    .map(|answer| answer.first_byte == first);
                let is_same = is_of_record
                    .unwrap_or_else(|| self.position.has_version(rules, key, &version, first));
                if !is_same {
                    return Err(Reason::Version);
                }
                if self.position.is_tagged() && self.was_modified(&version) {
                    return Err(Reason::Modified);
                }
                version
            }
            status @ (404 | 410) => return Err(Refusal::Gone { status }.into()),
            500..=599 => return Err(Reason::NoServer),
            status => return Err(Refusal::Condition { status }.into()),
        };
        if head.body == BodyLength::Chunked || self.chunks.is_some() {
            return self.judged_chunks(&version, head, received);
        }
        let range = question
            .own_range
            .resolve(version.complete_len.unwrap_or(0));
        // The record has the whole version. Of the echo, the tag was compared above.
        let of_record = self.stored_answer().map(|answer| answer.version.clone());
        let download = Download {
            range: range.ok_or(Reason::Answer(Refusal::Part))?,
            offset: offset - known,
            version: of_record.unwrap_or(version),
        };
        let rules = self.judge_rules(&download.version);
        let discard = match judge(&download, head, rules) {
            Verdict::Splice { discard } => discard + known,
            Verdict::Retry => return Err(Reason::NoServer),
            Verdict::Reset(refusal) => return Err(refusal.into()),
        };
        let range = download.range;
        Ok(Some(Answer {
            head_len: head.len,
            discard,
            body: AnswerBody::Part(range.last() - range.first() + 1),
            is_complete: range.rest_from(offset).is_none(),
        }))
    }

    /// The server repeats a response in chunks from the first byte on.
    fn judged_chunks(
        &self,
        version: &ObjectVersion,
        head: &ResponseHead<'_>,
        received: &Received,
    ) -> Result<Option<Answer>, Reason> {
        let offset = self.offset().unwrap_or(0);
        // The record alone tells that the client has chunks.
        let (Some(answer), Some(beginning)) = (self.stored_answer(), self.chunks) else {
            return Err(Refusal::Part.into());
        };
        let recorded = &answer.version;
        judge_chunks(
            (recorded, offset),
            (version, head),
            self.judge_rules(recorded),
        )?;
        let has_validators = recorded.etag.is_some() || recorded.last_modified.is_some();
        if beginning.is_empty() && !has_validators {
            return Err(Reason::Version);
        }
        let body = received.bytes().get(head.len..).unwrap_or_default();
        if beginning.compare(body) == Some(false) {
            return Err(Reason::Version);
        }
        let (mut chunks, mut len) = (Chunks::new(), 0);
        for piece in body.chunks(CHUNKED_PIECE_BYTES) {
            len += chunks.take(piece).map_err(Refusal::Doubt)?;
        }
        let is_over = chunks.is_done() || received.has_fin();
        let is_short = is_over && u64::try_from(len).is_ok_and(|len| len < offset);
        if is_short || len < body.len() {
            return Err(Refusal::Part.into());
        }
        if beginning.compare(body).is_none() {
            return if is_over {
                Err(Reason::Version)
            } else {
                Ok(None)
            };
        }
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        Ok(Some(Answer {
            head_len: head.len,
            discard: offset,
            body: match chunks.is_done() {
                true => AnswerBody::Part(len),
                false => AnswerBody::Chunks(chunks),
            },
            is_complete: chunks.is_done() && len == offset,
        }))
    }

    fn judge_rules(&self, recorded: &ObjectVersion) -> JudgeRules {
        let mut rules = self.rules.judge;
        // With equal inputs the service repeats the bytes, and a dynamic response may have no validators.
        let has_validators = recorded.etag.is_some() || recorded.last_modified.is_some();
        if self.inputs.is_some() && !has_validators {
            rules.check = VersionCheck::Length;
        }
        rules
    }

    /// Tells the server that its bytes have come, as far as the client has these: the server may not send more before.
    pub(super) fn acknowledge(&self, connected: &Connected, received: &Received) -> Vec<Action> {
        let Stage::Asks(question, ..) = &self.stage else {
            return Vec::new();
        };
        let head = parse_response(received.bytes(), question.method);
        let head_len = head.ok().flatten().map_or(0, |head| head.len);
        let known = self.offset().unwrap_or(0);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let known = received.bytes().len().min(head_len.saturating_add(known));
        let ack = connected.isn + 1 + u32::try_from(known).unwrap_or(0);
        let tsval = self
            .client
            .options
            .has_timestamps
            .then_some(connected.tsval);
        // Of a client with little room: the bytes up to its position need none.
        let window = self.client.window.max(BEGINNING_WINDOW);
        let packet = acknowledgement(self.key, &self.client, question.end, (ack, window), tsval);
        packet.map(Action::ToServer).into_iter().collect()
    }

    pub(super) fn stored_answer(&self) -> Option<&StoredAnswer> {
        self.stored.as_ref()?.answer.as_ref()
    }

    /// Whether the object is younger than the download may be.
    fn was_modified(&self, version: &ObjectVersion) -> bool {
        let modified = version.last_modified.as_deref().and_then(date::parse);
        let began = self
            .position
            .began(self.rules.unix_now, self.rules.withhold);
        modified.is_some_and(|time| time + CLOCK_DIFFERENCE >= began)
    }
}
