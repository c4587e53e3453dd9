//! Bytes of clients that wait for their turn: pipelined requests (RFC 9112, 9.3.2), and requests in several segments.
//!
//! Timestamps and record of a connection tell of one response. The server therefore gets one request at a time:
//!
//! | bytes of the client | |
//! |---|---|
//! | behind the request under way | wait until the client has the whole response |
//! | several requests in a segment | reach the server in turns |
//! | a part of a request, with a store | waits for the rest, for [`PART_WAIT_MAX`]; then passes without protection |
//! | of a connection without protection | pass |
//! | that wait for too long for the client's TCP | pass; the rest of the connection is without protection |
//!
//! The programs give such segments to user space, and hide the segments from the server's TCP. The bytes stay
//! unacknowledged: the client keeps all that waits here. A queue that is forgotten costs a retransmission.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use http1::edit::inputs_in;
use http1::{BodyLength, parse_request};
use wire::{ChecksumMode, Flags, FlowKey, Segment, SegmentSpec, SeqNumber};

use crate::flow::{Flow, Mode, Phase};
use crate::revive::segments::{emit, timestamps_if};
use crate::timestamp::Timestamp;

/// Longest time for which a part of a request waits for the rest. A TCP that delays short segments (Nagle, RFC 9293,
/// 3.7.4) does not send the rest before the part is acknowledged.
pub const PART_WAIT_MAX: Duration = Duration::from_millis(40);
/// Longest time for which bytes wait: a client's TCP gives up, Linux after a quarter of an hour.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// The same in repetitions, of a client whose pauses grow: Windows gives up after five.
const REPETITIONS_MAX: u32 = 4;
const GROWN_PAUSE: Duration = Duration::from_secs(2);
/// Pause between two looks at a queue whose turn has not come. The end of a turn wakes the queue before.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Most bytes of a client that wait: most bytes, too, of a client behind the request under way. The client repeats
/// bytes beyond.
pub(crate) const FLOW_LEN_MAX: usize = 64 << 10;
/// The same of all clients.
const LEN_MAX: usize = 64 << 20;
/// Most segments of a client.
const SEGMENTS_MAX: usize = 64;
/// Most bytes in a segment for the server.
const PASSED_LEN_MAX: usize = 32 << 10;

/// The bytes that wait, of all clients.
#[derive(Debug, Clone, Default)]
pub struct RequestQueues {
    queues: BTreeMap<FlowKey, Queue>,
    len: usize,
    takes_inputs: bool,
}

#[derive(Debug, Clone)]
struct Queue {
    /// Of the client: a later connection from the same port has other bytes.
    isn: SeqNumber,
    /// In the order of arrival. Segments may overlap.
    segments: Vec<(SeqNumber, Vec<u8>)>,
    /// The first byte that the server's TCP was not given, and since when.
    next: SeqNumber,
    next_since: Duration,
    newest_at: Duration,
    repetitions: u32,
    repeated_at: Duration,
    has_grown_pause: bool,
    look_at: Duration,
}

/// The server of a member, as far as queues depend on the server.
#[derive(Debug, Clone, Copy)]
pub struct ServerTerms {
    /// Life of the server.
    pub incarnation: u32,
    /// A store has the requests that a client does not repeat in one segment.
    pub has_store: bool,
}

/// Bytes whose turn has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedRequest {
    /// The connection.
    pub key: FlowKey,
    /// Interface on which the client's packets arrive.
    pub interface: u32,
    /// IP packets in the client's name, with partial checksums.
    pub packets: Vec<Vec<u8>>,
}

/// The beginning of the bytes that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beginning {
    /// A request, with the part of its body that is there: so many bytes.
    Request(usize),
    Part,
    /// The programs know why the connection cannot be protected.
    Unclear,
}

impl RequestQueues {
    /// No bytes wait. `takes_inputs`: the server takes the inputs of responses from requests, and must not get these
    /// from clients.
    #[must_use]
    pub const fn new(takes_inputs: bool) -> Self {
        Self {
            queues: BTreeMap::new(),
            len: 0,
            takes_inputs,
        }
    }

    /// A segment of a connection that waits. Returns whether the client repeats what waits already, or will have to.
    pub fn add(&mut self, key: FlowKey, flow: &Flow, segment: &Segment<'_>, now: Duration) -> bool {
        let (isn, next) = (flow.client.isn, flow.client.nxt);
        if self.queues.get(&key).is_some_and(|queue| queue.isn != isn) {
            self.forget(&key);
        }
        let queue = self
            .queues
            .entry(key)
            .or_insert_with(|| Queue::new(isn, next, now));
        let len_before = queue.len();
        let is_repetition = !queue.add(segment, next, now);
        self.len = (self.len + queue.len()) - len_before;
        while self.len > LEN_MAX {
            self.forget_longest();
        }
        is_repetition
    }

    /// The clients with many bytes make room.
    fn forget_longest(&mut self) {
        let longest = self.queues.iter().max_by_key(|(_, queue)| queue.len());
        let Some(key) = longest.map(|(key, _)| *key) else {
            self.len = 0;
            return;
        };
        self.forget(&key);
    }

    fn forget(&mut self, key: &FlowKey) {
        if let Some(queue) = self.queues.remove(key) {
            self.len -= queue.len();
        }
    }

    /// Whether bytes of the client wait.
    #[must_use]
    pub fn knows(&self, key: &FlowKey) -> bool {
        self.queues.contains_key(key)
    }

    /// The turn of a connection is over, or its protection.
    pub fn wake(&mut self, key: &FlowKey) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.look_at = Duration::ZERO;
        }
    }

    /// When [`RequestQueues::take_due`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.queues.values().map(|queue| queue.look_at).min()
    }

    /// The bytes whose turn has come. `flow`: the connection, if the connection is there.
    ///
    /// # Errors
    /// The error of `flow`.
    pub fn take_due<E>(
        &mut self,
        now: Duration,
        server: ServerTerms,
        mut flow: impl FnMut(FlowKey) -> Result<Option<Flow>, E>,
    ) -> Result<Vec<QueuedRequest>, E> {
        let due = self.queues.iter().filter(|(_, it)| it.look_at <= now);
        let due: Vec<FlowKey> = due.map(|(key, _)| *key).collect();
        let mut passed = Vec::new();
        for key in due {
            let isn = self.queues.get(&key).map(|queue| queue.isn);
            let is_of = |flow: &Flow| {
                let is_served = flow.mode == Mode::Served;
                is_served && flow.incarnation == server.incarnation && isn == Some(flow.client.isn)
            };
            let Some(flow) = flow(key)?.filter(is_of) else {
                self.forget(&key);
                continue;
            };
            let Some(queue) = self.queues.get_mut(&key) else {
                continue;
            };
            let len_before = queue.len();
            let (takes_inputs, has_store) = (self.takes_inputs, server.has_store);
            let packets = queue.look(key, &flow, (takes_inputs, has_store), now);
            self.len -= len_before - queue.len();
            if queue.segments.is_empty() || now > queue.newest_at + WAIT_MAX {
                self.forget(&key);
            }
            if !packets.is_empty() {
                let interface = flow.interface;
                passed.push(QueuedRequest {
                    key,
                    interface,
                    packets,
                });
            }
        }
        Ok(passed)
    }

    /// Forgets all bytes.
    pub fn clear(&mut self) {
        *self = Self::new(self.takes_inputs);
    }
}

impl Queue {
    const fn new(isn: SeqNumber, next: SeqNumber, now: Duration) -> Self {
        Self {
            isn,
            segments: Vec::new(),
            next,
            next_since: now,
            newest_at: now,
            repetitions: 0,
            repeated_at: now,
            has_grown_pause: false,
            look_at: now,
        }
    }

    fn len(&self) -> usize {
        self.segments.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Whether the bytes are new, and wait from now on.
    fn add(&mut self, segment: &Segment<'_>, next: SeqNumber, now: Duration) -> bool {
        let (seq, bytes) = (segment.seq(), segment.payload());
        if self.differs(seq, bytes) {
            // Two senders, or a broken one: the client's TCP repeats its own bytes.
            self.segments.clear();
            return false;
        }
        if self.has(seq, bytes.len()) {
            self.repetitions += 1;
            self.has_grown_pause = now.saturating_sub(self.repeated_at) >= GROWN_PAUSE;
            self.repeated_at = now;
            // Bytes of the request under way may have been lost on their way to the server's TCP.
            if seq.before(next) || self.may_pass(now) {
                self.look_at = now;
            }
            return false;
        }
        // The next bytes always find room: the bytes behind are worth nothing without these.
        while !seq.after(next) && !self.has_space(bytes.len()) && self.forget_last(seq) {}
        if !self.has_space(bytes.len()) {
            return false;
        }
        self.newest_at = now;
        self.look_at = now;
        self.segments.push((seq, bytes.to_vec()));
        true
    }

    fn has_space(&self, len: usize) -> bool {
        self.segments.len() < SEGMENTS_MAX && self.len() + len <= FLOW_LEN_MAX
    }

    /// Forgets the segment that is last of all behind a number.
    fn forget_last(&mut self, behind: SeqNumber) -> bool {
        let distance = |(seq, _): &&(SeqNumber, Vec<u8>)| seq.distance_from(behind);
        let last = self
            .segments
            .iter()
            .max_by_key(distance)
            .map(|(seq, _)| *seq);
        let count = self.segments.len();
        self.segments.retain(|(seq, _)| Some(*seq) != last);
        self.segments.len() < count
    }

    fn has(&self, seq: SeqNumber, len: usize) -> bool {
        self.segments.iter().any(|(start, bytes)| {
            let before = seq.distance_from(*start);
            let before = before.and_then(|before| usize::try_from(before).ok());
            before.is_some_and(|before| before + len <= bytes.len())
        })
    }

    /// Whether a byte with the same number is another one.
    fn differs(&self, seq: SeqNumber, bytes: &[u8]) -> bool {
        self.segments.iter().any(|(start, known)| {
            let skip = |from: SeqNumber, to: SeqNumber| {
                let skipped = to.distance_from(from).unwrap_or(0);
                usize::try_from(skipped).unwrap_or(usize::MAX)
            };
            let known = known.iter().skip(skip(*start, seq));
            let new = bytes.iter().skip(skip(seq, *start));
            known.zip(new).any(|(known, new)| known != new)
        })
    }

    /// The client's TCP would give up soon.
    fn may_pass(&self, now: Duration) -> bool {
        let is_last = self.repetitions >= REPETITIONS_MAX && self.has_grown_pause;
        is_last || now.saturating_sub(self.next_since) >= WAIT_MAX
    }

    fn look(
        &mut self,
        key: FlowKey,
        flow: &Flow,
        (takes_inputs, has_store): (bool, bool),
        now: Duration,
    ) -> Vec<Vec<u8>> {
        self.look_at = now + LOOK_PERIOD;
        let (next, turn) = (flow.client.nxt, &flow.turn);
        // The request under way, up to the acknowledgement of the server's TCP, may have to be sent once more.
        let received = flow.server.received.min_seq(next);
        self.segments
            .retain(|(seq, bytes)| (*seq + len32(bytes)).after(received));
        if self.next != next {
            (self.next, self.next_since, self.repetitions) = (next, now, 0);
        }
        if flow.unprotected.is_some() {
            let bytes = self.bytes_from(next);
            self.segments.clear();
            return packets(key, flow, next, &bytes);
        }
        if turn.phase != Phase::Idle {
            if self.may_pass(now) {
                return packets(key, flow, next, &self.bytes_from(next));
            }
            let start = match self.bytes_from(received).is_empty() {
                true => next,
                false => received,
            };
            let mut missing = self.bytes_from(start);
            let len = turn.request_end.distance_from(start).unwrap_or(0);
            missing.truncate(usize::try_from(len).unwrap_or(0));
            return packets(key, flow, start, &missing);
        }
        let mut bytes = self.bytes_from(next);
        if bytes.is_empty() {
            return Vec::new();
        }
        match beginning(&bytes) {
            // Without a store no member joins the segments of a repetition: the first part alone has no protection.
            Beginning::Request(len) if !has_store && !self.has(next, len) => {
                bytes.truncate(self.segment_len_from(next));
                packets(key, flow, next, &bytes)
            }
            Beginning::Request(len) => {
                if takes_inputs {
                    blank_inputs(&mut bytes);
                }
                packets(key, flow, next, &bytes[..len])
            }
            Beginning::Part if now < self.newest_at.max(self.next_since) + PART_WAIT_MAX => {
                self.look_at = self.newest_at.max(self.next_since) + PART_WAIT_MAX;
                Vec::new()
            }
            Beginning::Part | Beginning::Unclear => packets(key, flow, next, &bytes),
        }
    }

    /// Bytes from a number on that came in one segment.
    fn segment_len_from(&self, start: SeqNumber) -> usize {
        let lens = self.segments.iter().filter_map(|(seq, bytes)| {
            let known = usize::try_from(start.distance_from(*seq)?).ok()?;
            bytes.len().checked_sub(known)
        });
        lens.max().unwrap_or(0)
    }

    /// The bytes from a number on, up to the first hole.
    fn bytes_from(&self, start: SeqNumber) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let at = start + len32(&bytes);
            let next = self.segments.iter().find_map(|(seq, segment)| {
                let known = usize::try_from(at.distance_from(*seq)?).ok()?;
                segment.get(known..).filter(|rest| !rest.is_empty())
            });
            match next {
                Some(rest) => bytes.extend_from_slice(rest),
                None => return bytes,
            }
        }
    }
}

fn len32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(0)
}

fn beginning(bytes: &[u8]) -> Beginning {
    match parse_request(bytes) {
        Ok(Some(head)) => match head.body {
            BodyLength::Bytes(len) => {
                let body_len = usize::try_from(len).unwrap_or(usize::MAX);
                Beginning::Request(head.len.saturating_add(body_len).min(bytes.len()))
            }
            BodyLength::Chunked | BodyLength::UntilClose => Beginning::Unclear,
        },
        Ok(None) if bytes.len() < FLOW_LEN_MAX / 2 => Beginning::Part,
        Ok(None) | Err(_) => Beginning::Unclear,
    }
}

/// Spaces in the place of the inputs that a client has sent: the length stays the same.
fn blank_inputs(bytes: &mut [u8]) {
    let head = parse_request(bytes).ok().flatten();
    let places = head.map(|head| inputs_in(&bytes[..head.len]));
    for place in places.into_iter().flatten() {
        bytes[place].fill(b' ');
    }
}

/// Segments of the client with these bytes, from a number on. Acknowledgement, echo and window are the client's newest:
/// the copies may be old.
fn packets(key: FlowKey, flow: &Flow, start: SeqNumber, bytes: &[u8]) -> Vec<Vec<u8>> {
    let client = &flow.client;
    let echo = Timestamp::value(flow.echoes.parts().echoed, flow.states.newest);
    let options = timestamps_if(client.has_timestamps, client.tsval, echo);
    let mut seq = start;
    let mut packets = Vec::new();
    for payload in bytes.chunks(PASSED_LEN_MAX) {
        let spec = SegmentSpec {
            source: key.client(),
            destination: key.server(),
            seq,
            ack: client.ack,
            flags: Flags::ACK.union(Flags::PSH),
            window: client.window,
            options: options.as_slice(),
            payload,
        };
        packets.extend(emit(&spec, ChecksumMode::Partial));
        seq += len32(payload);
    }
    packets
}

/// A segment that the client acknowledges at once (RFC 9293, 3.10.7.4), in the numbers of the server's socket: a client
/// that has a whole response, and has nothing to send, may delay the acknowledgement for which its next request waits
/// here. The byte is one that the client has. `None`: the client has acknowledged the response, or lacks a part of the
/// dead member's bytes.
#[must_use]
pub fn call(key: FlowKey, flow: &Flow) -> Option<Vec<u8>> {
    let (client, server) = (&flow.client, &flow.server);
    let last = client.ack - 1;
    if !flow.turn.is_answered() || !client.ack.before(server.nxt) || last.before(server.floor) {
        return None;
    }
    let value = flow.echoes.parts().newest_tsval;
    let options = timestamps_if(client.has_timestamps, value, client.tsval);
    let window = server.window_edge.0.wrapping_sub(server.received.0);
    let window = window >> server.window_scale.unwrap_or(0);
    let spec = SegmentSpec {
        source: key.server(),
        destination: key.client(),
        seq: last - server.delta,
        ack: server.received,
        flags: Flags::ACK,
        window: u16::try_from(window).unwrap_or(u16::MAX),
        options: options.as_slice(),
        payload: &[0],
    };
    emit(&spec, ChecksumMode::Full)
}

#[cfg(test)]
mod tests;
