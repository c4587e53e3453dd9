//! The turns that a member writes to the store: one record for each response that is not over after a while.
//!
//! | copy | |
//! |---|---|
//! | of a request | the turn begins; a turn before is over |
//! | of the head of a response | the turn can be written |
//!
//! A turn is written at the end of the delay, if the flow is still in that turn. A response of which timestamps tell
//! few bytes or none is written at once: a long later response, chunks, a long head.

mod beginnings;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use http1::edit::INPUTS_FIELD;
use http1::range::ContentRange;
use http1::version::ObjectVersion;
use http1::{BodyLength, Doubt, ResponseHead, parse_request, parse_response};
use wire::{FlowKey, Segment, SeqNumber};

pub use self::beginnings::Beginnings;
use crate::flow::{Flow, Mode, Phase};
use crate::record::{
    Beginning, INPUTS_LEN_MAX, REQUEST_LEN_MAX, Record, StoredAnswer, StoredOptions, StoredTurn,
};
use crate::records::GENERATIONS_OF_CLOCK_DIFFERENCE;
use crate::revivals::AskedRequest;
use crate::timestamp::MAX_HEADER;

/// Most turns at a time. A turn beyond is not written: the client holds the request.
const TURNS_MAX: usize = 65_536;
/// Bytes of a response that the timestamps of a later response tell.
const LATER_LIMIT: u64 = 24 << 10;
/// Time after which a turn without a response is looked at, and again.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// The turns that may have to be written.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    turns: BTreeMap<FlowKey, Exchange>,
}

#[derive(Debug, Clone)]
struct Exchange {
    request: Vec<u8>,
    request_start: SeqNumber,
    response: Option<Response>,
    /// The response waits for the record.
    is_deferred: bool,
    /// When the turn is looked at.
    due: Duration,
    /// When a turn is written whose timestamps tell all.
    delay_end: Duration,
}

/// The first segment of a response.
#[derive(Debug, Clone)]
struct Response {
    /// Number of the server's socket.
    seq: SeqNumber,
    bytes: Vec<u8>,
}

/// The member that writes a record, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// The membership.
    pub owner: u64,
    /// See [`Record::generation`].
    pub generation: u32,
}

/// Result of a look at a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Look {
    /// The turn is over, or cannot be written.
    Over,
    /// The response has not begun.
    Waits,
    /// The delay is not over.
    Delayed,
    Write(Record),
}

impl Turns {
    /// A segment that begins a turn: it is written after `delay`.
    pub fn on_request(&mut self, key: FlowKey, segment: &Segment<'_>, due: Duration) {
        self.turns.remove(&key);
        let is_whole = segment.payload().len() == segment.payload_len();
        if !is_whole || self.turns.len() >= TURNS_MAX {
            return;
        }
        let turn = Exchange {
            request: segment.payload().to_vec(),
            request_start: segment.seq(),
            response: None,
            is_deferred: segment.timestamps().is_none(),
            due,
            delay_end: due,
        };
        self.turns.insert(key, turn);
    }

    /// A request that a revival has passed to the server, of a client without timestamps.
    pub fn on_asked(&mut self, key: FlowKey, asked: AskedRequest, due: Duration) {
        let turn = Exchange {
            request: asked.bytes,
            request_start: asked.start,
            response: None,
            is_deferred: true,
            due,
            delay_end: due,
        };
        self.turns.insert(key, turn);
    }

    /// The segment of the server that begins a response, in the numbers of the server's socket.
    pub fn on_response(&mut self, key: FlowKey, segment: &Segment<'_>, now: Duration) {
        let Some(turn) = self.turns.get_mut(&key) else {
            return;
        };
        turn.response = Some(Response {
            seq: segment.seq(),
            bytes: segment.payload().to_vec(),
        });
        if turn.is_needed_at_once(false) {
            turn.due = turn.due.min(now);
        }
    }

    /// When [`Turns::take_due`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.turns.values().map(|turn| turn.due).min()
    }

    /// Whether no turn is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The records that are due. `flow`: the connection, if the connection is there; `delay`: of a turn from its
    /// request on.
    pub fn take_due<E>(
        &mut self,
        now: Duration,
        writer: Writer,
        mut flow: impl FnMut(FlowKey) -> Result<Option<Flow>, E>,
    ) -> Result<Vec<(FlowKey, Record)>, E> {
        let due = self.turns.iter().filter(|(_, turn)| turn.due <= now);
        let due: Vec<FlowKey> = due.map(|(key, _)| *key).collect();
        let mut records = Vec::new();
        for key in due {
            let flow = flow(key)?;
            let Some(turn) = self.turns.get_mut(&key) else {
                continue;
            };
            match turn.look(flow.as_ref(), writer, now) {
                Look::Waits => turn.due = now + LOOK_PERIOD,
                Look::Delayed => turn.due = turn.delay_end,
                Look::Over => drop(self.turns.remove(&key)),
                Look::Write(record) => {
                    self.turns.remove(&key);
                    records.push((key, record));
                }
            }
        }
        Ok(records)
    }

    /// Whether a turn of the connection may still be written.
    #[must_use]
    pub fn knows(&self, key: &FlowKey) -> bool {
        self.turns.contains_key(key)
    }

    /// Forgets all turns.
    pub fn clear(&mut self) {
        self.turns.clear();
    }
}

impl Exchange {
    /// Whether the timestamps tell the whole response, and the client repeats a request of which any member can ask the
    /// rest: where the last bytes of an object begin is in the record alone.
    fn is_covered(&self, flow: &Flow) -> bool {
        let is_repeated_whole = self.request.len() <= flow.client.repetition_len_max();
        flow.turn.number == 0 && is_repeated_whole && !flow.turn.has_range
    }

    /// Of a later response the timestamps tell few bytes, and of inputs, chunks and a long head nothing. `is_covered`:
    /// the timestamps tell any length. Before the look at the flow nobody knows that.
    fn is_needed_at_once(&self, is_covered: bool) -> bool {
        let is_needed = |head: ResponseHead<'_>| {
            head.len >= usize::from(MAX_HEADER)
                || head.fields.has(INPUTS_FIELD)
                || match head.body {
                    BodyLength::Bytes(len) => whole(head.len, len) > LATER_LIMIT && !is_covered,
                    BodyLength::Chunked | BodyLength::UntilClose => true,
                }
        };
        self.is_deferred || self.response_head().is_some_and(is_needed)
    }

    /// The inputs of the response. An error: several fields, or no text.
    fn inputs(&self) -> Result<Option<Vec<u8>>, Doubt> {
        let Some(head) = self.response_head() else {
            return Ok(None);
        };
        let value = head.fields.value(INPUTS_FIELD)?;
        Ok(value.map(|value| value.trim().as_bytes().to_vec()))
    }

    fn response_head(&self) -> Option<ResponseHead<'_>> {
        let method = parse_request(&self.request).ok()??.method;
        parse_response(&self.response.as_ref()?.bytes, method).ok()?
    }

    fn look(&self, flow: Option<&Flow>, writer: Writer, now: Duration) -> Look {
        let is_of = |flow: &&Flow| {
            flow.mode == Mode::Served
                && flow.unprotected.is_none()
                && flow.turn.is_guarded
                && flow.turn.request_start == self.request_start
                && !flow.is_stored()
        };
        let Some(flow) = flow.filter(is_of) else {
            return Look::Over;
        };
        match flow.turn.phase {
            Phase::Idle => Look::Over,
            Phase::Asked => Look::Waits,
            Phase::Body
                if now < self.delay_end && !self.is_needed_at_once(self.is_covered(flow)) =>
            {
                Look::Delayed
            }
            Phase::Body => match self.record(flow, writer) {
                Some(record) => Look::Write(record),
                // The copy of the response is on its way, or found no room.
                None if self.response.is_none() => Look::Waits,
                None => Look::Over,
            },
        }
    }

    fn record(&self, flow: &Flow, writer: Writer) -> Option<Record> {
        let (turn, client) = (&flow.turn, &flow.client);
        let response = self.response.as_ref()?;
        let is_of = response.seq + flow.server.delta == turn.response_start;
        let request_len = parse_request(&self.request).ok()??.len;
        if !is_of || request_len != self.request.len() || request_len > REQUEST_LEN_MAX {
            return None;
        }
        let inputs = match turn.inputs_end {
            Some(_) => Some(self.inputs().ok()??),
            None => None,
        };
        if inputs
            .as_ref()
            .is_some_and(|inputs| inputs.len() > INPUTS_LEN_MAX)
        {
            return None;
        }
        let mut answer = self.answer(turn.response_start)?;
        let chunks = self.beginning();
        // All chunks may have left.
        answer.response_len = answer.response_len.or(chunks.and(turn.response_len()));
        let stored = StoredTurn {
            number: turn.number,
            request_start: self.request_start,
            request: self.request.clone(),
            has_range: turn.has_range,
            answer: Some(answer),
        };
        // The members before may have written records by clocks that are ahead, and the echo alone has told nothing of
        // these.
        let is_revived = flow.server.floor != flow.server.isn;
        let ahead = if is_revived {
            GENERATIONS_OF_CLOCK_DIFFERENCE
        } else {
            0
        };
        Some(Record {
            generation: writer.generation.wrapping_add(ahead),
            owner: writer.owner,
            client_isn: client.isn,
            server_isn: flow.server.isn,
            slot: flow.slot,
            options: StoredOptions::of(flow),
            turns: Vec::from([stored]),
            inputs,
            chunks,
        })
    }

    /// Of a body in chunks, as far as the first segment has the body.
    fn beginning(&self) -> Option<Beginning> {
        let head = self.response_head()?;
        let bytes = self.response.as_ref()?.bytes.get(head.len..)?;
        (head.body == BodyLength::Chunked).then(|| Beginning::of(bytes))
    }

    fn answer(&self, start: SeqNumber) -> Option<StoredAnswer> {
        let head = self.response_head()?;
        let header_len = u32::try_from(head.len).ok()?;
        let range = head.fields.value("content-range").ok()?;
        let first_byte = match range.map(ContentRange::parse) {
            Some(Ok(ContentRange::Part { range, .. })) => range.first(),
            Some(_) => return None,
            None => 0,
        };
        Some(StoredAnswer {
            start,
            header_len,
            response_len: match head.body {
                BodyLength::Bytes(len) => Some(u64::from(header_len) + len),
                BodyLength::UntilClose | BodyLength::Chunked => None,
            },
            first_byte,
            acked: 0,
            version: ObjectVersion::of(&head).ok()?,
        })
    }
}

/// Bytes of head and body.
fn whole(head_len: usize, body_len: u64) -> u64 {
    u64::try_from(head_len)
        .unwrap_or(u64::MAX)
        .saturating_add(body_len)
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn exchange(has_timestamps: bool, fields: &str) -> Exchange {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let response = Response {
            seq: SeqNumber(0),
            bytes: head.into_bytes(),
        };
        Exchange {
            request: b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            request_start: SeqNumber(0),
            response: Some(response),
            is_deferred: !has_timestamps,
            due: Duration::ZERO,
            delay_end: Duration::ZERO,
        }
    }

    #[test]
    fn response_that_timestamps_describe_is_not_written_at_once() {
        let long_field = format!("X-Long: {}\r\n", "a".repeat(3000));
        let long_head = format!("Content-Length: 9\r\n{long_field}");
        let inputs = format!("Content-Length: 9\r\n{INPUTS_FIELD}: a\r\n");
        let rows: [(&str, bool, bool); 7] = [
            ("Content-Length: 24000\r\n", false, false),
            ("Content-Length: 24576\r\n", false, true),
            ("Content-Length: 100000\r\n", false, true),
            ("Content-Length: 2000000000\r\n", false, true),
            ("Transfer-Encoding: chunked\r\n", true, true),
            (&long_head, true, true),
            (&inputs, true, true),
        ];
        for (fields, of_first, of_later) in rows {
            let exchange = exchange(true, fields);
            let found = [true, false].map(|is_covered| exchange.is_needed_at_once(is_covered));
            assert_eq!(found, [of_first, of_later], "{fields}");
        }
        assert!(exchange(false, "Content-Length: 1\r\n").is_needed_at_once(true));
        let unanswered = Exchange {
            response: None,
            ..exchange(true, "")
        };
        assert!(!unanswered.is_needed_at_once(false));
    }
}
