//! Responses to clients without timestamps, which wait for their records (TRODS 4.1).
//!
//! The segments of the client tell nothing of the response. So no byte leaves before the store has the record. With the
//! record another member knows the response, and the client's acknowledgement tells the position. Until then the
//! programs give the server's segments to user space. The server's TCP takes the segments for sent.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use wire::{ChecksumMode, Flags, FlowKey, Segment, SegmentSpec, SeqNumber};

use crate::flow::{Flow, Mode};
use crate::plane::SegmentCopy;

/// Longest time for which a segment waits. The response then goes on without protection.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Pause between two looks at a response that waits.
const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// Most segments of a response, and of all responses. The server's TCP sends segments beyond again.
const FLOW_SEGMENTS_MAX: usize = 64;
const SEGMENTS_MAX: usize = 8192;

/// The segments that wait.
#[derive(Debug, Clone, Default)]
pub struct DeferredResponses {
    responses: BTreeMap<FlowKey, Response>,
    segments: usize,
}

#[derive(Debug, Clone)]
struct Response {
    segments: Vec<SegmentCopy>,
    since: Duration,
    look_at: Duration,
}

/// A response that waits no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The connection.
    pub key: FlowKey,
    /// The turn gets no record.
    pub given_up: Option<GivenUp>,
    /// Interface on which the segments would have left.
    pub interface: u32,
    /// IP packets in the numbers of the server's socket.
    pub packets: Vec<Vec<u8>>,
}

/// A turn without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenUp {
    /// Number of the turn.
    pub number: u32,
    /// First byte of the request.
    pub request_start: SeqNumber,
    /// The connection was revived here. The member before may have left a record of a response to the same request,
    /// with another head: no member can tell the two responses apart, and the connection must be reset.
    pub must_reset: bool,
}

impl DeferredResponses {
    /// A segment that the programs have withheld.
    pub fn add(&mut self, copy: SegmentCopy, now: Duration) {
        let response = self.responses.entry(copy.key).or_insert(Response {
            segments: Vec::new(),
            since: now,
            look_at: now,
        });
        response.look_at = now;
        if response.segments.len() < FLOW_SEGMENTS_MAX && self.segments < SEGMENTS_MAX {
            response.segments.push(copy);
            self.segments += 1;
        }
    }

    /// The store has answered about the connection.
    pub fn wake(&mut self, key: &FlowKey) {
        if let Some(response) = self.responses.get_mut(key) {
            response.look_at = Duration::ZERO;
        }
    }

    /// When [`DeferredResponses::take_due`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.responses.values().map(|it| it.look_at).min()
    }

    /// The responses that wait no longer. `flow`: the connection, if the connection is there; `may_be_stored`: a record
    /// of the connection is under way.
    ///
    /// # Errors
    /// The error of `flow`.
    pub fn take_due<E>(
        &mut self,
        now: Duration,
        mut flow: impl FnMut(FlowKey) -> Result<Option<Flow>, E>,
        may_be_stored: impl Fn(&FlowKey) -> bool,
    ) -> Result<Vec<Released>, E> {
        let due = self.responses.iter().filter(|(_, it)| it.look_at <= now);
        let due: Vec<FlowKey> = due.map(|(key, _)| *key).collect();
        let mut released = Vec::new();
        for key in due {
            let flow = flow(key)?.filter(|flow| flow.mode == Mode::Served);
            let Some(response) = self.responses.get_mut(&key) else {
                continue;
            };
            let awaits = flow.as_ref().is_some_and(Flow::awaits_store);
            if awaits && may_be_stored(&key) && now < response.since + WAIT_MAX {
                response.look_at = now + LOOK_PERIOD;
                continue;
            }
            let Some(response) = self.responses.remove(&key) else {
                continue;
            };
            self.segments -= response.segments.len();
            if let Some(flow) = flow {
                released.push(response.released(key, &flow, awaits));
            }
        }
        Ok(released)
    }

    /// Forgets all segments.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Response {
    fn released(self, key: FlowKey, flow: &Flow, is_given_up: bool) -> Released {
        let size = flow.client.payload_len_max();
        let mut packets = Vec::new();
        let mut end = flow.turn.response_start;
        for segment in self.segments.iter().filter_map(SegmentCopy::segment) {
            // From the first byte of the response on, without a gap: a segment of an earlier socket or of an earlier
            // turn has other numbers.
            let seq = segment.seq() + flow.server.delta;
            if seq.before(flow.turn.response_start) || seq.after(end) {
                continue;
            }
            end = end.max_seq(seq + u32::try_from(segment.payload().len()).unwrap_or(0));
            packets.extend(cut(key, &segment, size));
        }
        Released {
            key,
            given_up: is_given_up.then_some(GivenUp {
                number: flow.turn.number,
                request_start: flow.turn.request_start,
                must_reset: flow.server.floor != flow.server.isn,
            }),
            interface: self.segments.first().map_or(0, |copy| copy.interface),
            packets,
        }
    }
}

/// The segment in pieces that the client takes. The copy of a longer segment has the beginning. The server's TCP sends
/// the rest again.
fn cut(key: FlowKey, segment: &Segment<'_>, size: usize) -> Vec<Vec<u8>> {
    let is_whole = segment.payload().len() == segment.payload_len();
    let last = segment.flags();
    let inner = Flags::ACK;
    let mut packets = Vec::new();
    let mut seq = segment.seq();
    let mut left = segment.payload();
    loop {
        let (piece, rest) = left.split_at(left.len().min(size));
        let is_last = rest.is_empty();
        let spec = SegmentSpec {
            source: key.server(),
            destination: key.client(),
            seq,
            ack: segment.ack(),
            flags: if is_last && is_whole { last } else { inner },
            window: segment.window(),
            options: &[],
            payload: piece,
        };
        let mut packet = Vec::new();
        if spec.emit(&mut packet, ChecksumMode::Full).is_ok() {
            packets.push(packet);
        }
        if is_last {
            return packets;
        }
        seq += u32::try_from(piece.len()).unwrap_or(0);
        left = rest;
    }
}

#[cfg(test)]
mod tests;
