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
//!
//! The programs give such segments to user space, and hide the segments from the server's TCP. The bytes stay
//! unacknowledged: the client keeps all that waits here. A queue that is forgotten costs a retransmission.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use http1::{BodyLength, parse_request};
use wire::{ChecksumMode, Flags, FlowKey, Segment, SegmentSpec, SeqNumber};

use crate::flow::{Flow, Mode, Phase};
use crate::revivals::CLIENT_PAUSE_MAX;
use crate::revive::segments::{emit, timestamps_if};
use crate::timestamp::Timestamp;

/// Longest time for which a part of a request waits for the rest. A TCP that delays short segments (Nagle, RFC 9293,
/// 3.7.4) does not send the rest before the part is acknowledged.
pub const PART_WAIT_MAX: Duration = Duration::from_millis(40);
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
}

#[derive(Debug, Clone)]
struct Queue {
    /// In the order of arrival. Segments may overlap.
    segments: Vec<(SeqNumber, Vec<u8>)>,
    newest_at: Duration,
    look_at: Duration,
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
    /// A segment that waits. Returns whether the segment is a repetition: all bytes wait already.
    pub fn add(&mut self, key: FlowKey, segment: &Segment<'_>, now: Duration) -> bool {
        let queue = self.queues.entry(key).or_insert(Queue {
            segments: Vec::new(),
            newest_at: now,
            look_at: now,
        });
        queue.look_at = now;
        let (seq, bytes) = (segment.seq(), segment.payload());
        if queue.has(seq, bytes.len()) {
            return true;
        }
        let is_within = queue.len() + bytes.len() <= FLOW_LEN_MAX
            && queue.segments.len() < SEGMENTS_MAX
            && self.len + bytes.len() <= LEN_MAX;
        if is_within {
            queue.newest_at = now;
            queue.segments.push((seq, bytes.to_vec()));
            self.len += bytes.len();
        }
        false
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
        mut flow: impl FnMut(FlowKey) -> Result<Option<Flow>, E>,
    ) -> Result<Vec<QueuedRequest>, E> {
        let due = self.queues.iter().filter(|(_, it)| it.look_at <= now);
        let due: Vec<FlowKey> = due.map(|(key, _)| *key).collect();
        let mut passed = Vec::new();
        for key in due {
            let flow = flow(key)?.filter(|flow| flow.mode == Mode::Served);
            let Some(queue) = self.queues.get_mut(&key) else {
                continue;
            };
            let len_before = queue.len();
            let packets = flow.as_ref().map(|flow| queue.look(key, flow, now));
            self.len -= len_before - queue.len();
            let is_over = queue.segments.is_empty() || now > queue.newest_at + CLIENT_PAUSE_MAX;
            if flow.is_none() || is_over {
                self.len -= queue.len();
                self.queues.remove(&key);
            }
            let packets = packets.unwrap_or_default();
            if let Some(flow) = flow.filter(|_| !packets.is_empty()) {
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
        *self = Self::default();
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.segments.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    fn has(&self, seq: SeqNumber, len: usize) -> bool {
        self.segments.iter().any(|(start, bytes)| {
            let before = seq.distance_from(*start);
            let before = before.and_then(|before| usize::try_from(before).ok());
            before.is_some_and(|before| before + len <= bytes.len())
        })
    }

    fn look(&mut self, key: FlowKey, flow: &Flow, now: Duration) -> Vec<Vec<u8>> {
        self.look_at = now + LOOK_PERIOD;
        let start = flow.client.nxt;
        self.segments
            .retain(|(seq, bytes)| (*seq + len32(bytes)).after(start));
        let bytes = self.bytes_from(start);
        if bytes.is_empty() {
            return Vec::new();
        }
        if flow.unprotected.is_some() {
            self.segments.clear();
            return packets(key, flow, &bytes);
        }
        if flow.turn.phase != Phase::Idle {
            return Vec::new();
        }
        match beginning(&bytes) {
            Beginning::Request(len) => packets(key, flow, &bytes[..len]),
            Beginning::Part if now < self.newest_at + PART_WAIT_MAX => {
                self.look_at = self.newest_at + PART_WAIT_MAX;
                Vec::new()
            }
            Beginning::Part | Beginning::Unclear => packets(key, flow, &bytes),
        }
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

/// Segments of the client with these bytes, the next of the connection. Acknowledgement, echo and window are the
/// client's newest: the copies may be old.
fn packets(key: FlowKey, flow: &Flow, bytes: &[u8]) -> Vec<Vec<u8>> {
    let client = &flow.client;
    let echo = Timestamp::value(flow.echoes.parts().echoed, flow.states.newest);
    let options = timestamps_if(client.has_timestamps, client.tsval, echo);
    let mut seq = client.nxt;
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
