//! Responses that wait for their records (TRODS 4.1): to clients without timestamps, and with inputs (TRODS 7).
//!
//! The segments of the client tell nothing of the response, or not enough. So no byte leaves before the store has the
//! record. With the record another member knows the response, and the client's acknowledgement tells the position.
//! Until then the programs give the server's segments to user space. The server's TCP takes the segments for sent.
//!
//! The inputs of a response are for the record alone: the client gets spaces in their place. The programs give all
//! segments with a part of such a head to user space, also when these come a second time.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use http1::edit::inputs_in;
use wire::{ChecksumMode, Flags, FlowKey, Segment, SegmentSpec, SeqNumber};

use crate::flow::{Flow, Mode};
use crate::plane::SegmentCopy;
use crate::revive::segments::timestamps_if;

/// Longest time for which a segment waits. The response then goes on without protection.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Pause between two looks at a response that waits.
const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// Most segments of a response, and of all responses. The server's TCP sends segments beyond again.
const FLOW_SEGMENTS_MAX: usize = 64;
const SEGMENTS_MAX: usize = 8192;
/// Most responses whose inputs are known. The heads of forgotten responses do not leave a second time.
const INPUTS_MAX: usize = 65_536;

/// The segments that wait.
#[derive(Debug, Clone, Default)]
pub struct DeferredResponses {
    responses: BTreeMap<FlowKey, Response>,
    segments: usize,
    inputs: BTreeMap<FlowKey, Inputs>,
}

/// Where the inputs of a response are.
#[derive(Debug, Clone)]
struct Inputs {
    /// First byte of the response, as the client sees the number.
    response_start: SeqNumber,
    /// Numbers of the values, as the client sees these.
    places: Vec<(SeqNumber, SeqNumber)>,
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
                self.note_inputs(key, &flow, &response);
                let inputs = self.inputs.get(&key);
                released.push(response.released(key, &flow, awaits, inputs));
            } else {
                self.inputs.remove(&key);
            }
        }
        Ok(released)
    }

    /// Notes where the inputs of the response under way are.
    fn note_inputs(&mut self, key: FlowKey, flow: &Flow, response: &Response) {
        if self.inputs.len() >= INPUTS_MAX {
            self.inputs.clear();
        }
        if let Some(found) = Inputs::of(flow, response) {
            self.inputs.insert(key, found);
        }
    }

    /// Forgets all segments.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Inputs {
    /// Of the segment with which the response begins: that segment has the whole head, or the programs would not know
    /// of the inputs.
    fn of(flow: &Flow, response: &Response) -> Option<Self> {
        let response_start = flow.turn.response_start;
        let len = flow.turn.inputs_end?.0.wrapping_sub(response_start.0);
        let mut segments = response.segments.iter().filter_map(SegmentCopy::segment);
        let first = segments.find(|it| it.seq() + flow.server.delta == response_start)?;
        let head = first.payload().get(..usize::try_from(len).ok()?)?;
        let number = |at: usize| response_start + u32::try_from(at).unwrap_or(0);
        let numbers = |place: Range<usize>| (number(place.start), number(place.end));
        Some(Self {
            response_start,
            places: inputs_in(head).into_iter().map(numbers).collect(),
        })
    }

    /// Spaces in the place of the inputs, in bytes that begin with this number.
    fn blank(&self, seq: SeqNumber, bytes: &mut [u8]) {
        for (byte, at) in bytes.iter_mut().zip(0_u32..) {
            let is_in = |(start, end): &(SeqNumber, SeqNumber)| {
                !(seq + at).before(*start) && (seq + at).before(*end)
            };
            if self.places.iter().any(is_in) {
                *byte = b' ';
            }
        }
    }
}

impl Response {
    fn released(
        self,
        key: FlowKey,
        flow: &Flow,
        is_given_up: bool,
        inputs: Option<&Inputs>,
    ) -> Released {
        let size = flow.client.payload_len_max();
        let mut packets = Vec::new();
        let response_start = flow.turn.response_start;
        let inputs = inputs.filter(|inputs| inputs.response_start == response_start);
        let mut end = response_start;
        if flow.turn.inputs_end.is_some() {
            // The head may come a second time, also in part.
            end = end.max_seq(flow.server.nxt);
        }
        for segment in self.segments.iter().filter_map(SegmentCopy::segment) {
            // From the first byte of the response on, without a gap: a segment of an earlier socket or of an earlier
            // turn has other numbers.
            let seq = segment.seq() + flow.server.delta;
            if seq.before(response_start) || seq.after(end) {
                continue;
            }
            let is_head = flow.turn.inputs_end.is_some_and(|end| seq.before(end));
            if is_head && inputs.is_none() {
                continue;
            }
            end = end.max_seq(seq + u32::try_from(segment.payload().len()).unwrap_or(0));
            packets.extend(cut(key, &segment, size, |payload| {
                if let Some(inputs) = inputs {
                    inputs.blank(seq, payload);
                }
            }));
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
fn cut(
    key: FlowKey,
    segment: &Segment<'_>,
    size: usize,
    edit: impl FnOnce(&mut [u8]),
) -> Vec<Vec<u8>> {
    let mut payload = segment.payload().to_vec();
    edit(&mut payload);
    let is_whole = segment.payload().len() == segment.payload_len();
    let last = segment.flags();
    let inner = Flags::ACK;
    let stamps = segment.timestamps();
    let options = stamps.map(|stamps| timestamps_if(true, stamps.value, stamps.echo));
    let options = options.unwrap_or_default();
    let mut packets = Vec::new();
    let mut seq = segment.seq();
    let mut left = &payload[..];
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
            options: options.as_slice(),
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
