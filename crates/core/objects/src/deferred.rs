//! Responses to clients without timestamps, which wait for their records (TRODS 4.1).
//!
//! Such a client's segments tell nothing of the response. So no byte leaves before the store has the record: another
//! member then knows the response, and the client's acknowledgement tells how much of the response the client has. The
//! programs give the server's segments to user space meanwhile; the server's TCP takes these for sent.

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
    /// The turn of the response, if the turn gets no record: its number, and the first byte of the request.
    pub given_up: Option<(u32, SeqNumber)>,
    /// Interface on which the segments would have left.
    pub interface: u32,
    /// IP packets in the numbers of the server's socket.
    pub packets: Vec<Vec<u8>>,
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
        let segments = self.segments.iter();
        let packets = segments.filter_map(SegmentCopy::segment);
        Released {
            key,
            given_up: is_given_up.then_some((flow.turn.number, flow.turn.request_start)),
            interface: self.segments.first().map_or(0, |copy| copy.interface),
            packets: packets
                .flat_map(|segment| cut(key, &segment, size))
                .collect(),
        }
    }
}

/// The segment in pieces that the client takes. Of a longer segment the copy has the beginning; the server's TCP sends
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
