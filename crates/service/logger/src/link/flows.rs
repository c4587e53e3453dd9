//! The connections of a session, as the link names them.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use protocol::{
    Digest,
    control::Resume,
    link::{Handshake, KeySet, MAX_RANGES, SegmentView, flow_low},
};
use wire::{FlowId, FlowKey, SeqNumber};

use super::progress::Progress;

/// A connection, as the link needs the connection.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) id: FlowId,
    pub(super) key: FlowKey,
    pub(super) client_isn: SeqNumber,
    pub(super) server_isn: SeqNumber,
    /// The options of the handshake.
    pub(super) handshake: Handshake,
    /// The client's progress.
    pub(super) progress: Progress,
    /// Time of the last segment; `None` before the first segment after the log was read.
    pub(super) seen: Option<Duration>,
    /// No segment has arrived from the client.
    pub(super) is_half_open: bool,
    /// Due for an acknowledgement at the end of the batch.
    pub(super) due: bool,
    /// Where bytes arrived last beyond a hole, newest first: for as many ranges as an ACK reports, and one more.
    pub(super) newest: [Option<SeqNumber>; MAX_RANGES + 1],
}

impl Flow {
    /// A flow without any segment yet, whose record begins there. A request begins when the client has received all
    /// output before the request; the number of wraps of the sequence space before is unknown.
    pub(super) fn new(beginning: &Resume) -> Self {
        let first = beginning.server_isn + 1;
        let received = beginning.outstream.0.wrapping_sub(first.0);
        Self {
            id: beginning.flow,
            key: beginning.key,
            client_isn: beginning.client_isn,
            server_isn: beginning.server_isn,
            handshake: beginning.handshake,
            progress: Progress::from(u64::from(received)),
            seen: None,
            is_half_open: true,
            due: false,
            newest: [None; MAX_RANGES + 1],
        }
    }

    /// How far the client is known to have received the outstream when this digest arrives. `speaks`: the client
    /// has received all output of the digest.
    pub(super) fn received_up_to(&self, digest: &Digest, speaks: Option<SeqNumber>) -> SeqNumber {
        match speaks {
            Some(_) => digest.next,
            None => self.server_isn + 1 + self.progress.low_half(),
        }
    }
}

/// Why a segment belongs to no flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotFound {
    /// No flow has this number.
    Unknown,
    /// The number is known, but the tag does not match.
    BadTag,
}

/// The connections, by the low half of the number, which each segment carries.
#[derive(Debug, Default)]
pub(super) struct Flows {
    by_low: HashMap<u32, Vec<Flow>>,
    /// Half-open connections, and flows that once were half-open, oldest first.
    half_open: VecDeque<FlowId>,
    half_open_count: usize,
}

impl Flows {
    pub(super) fn get(&self, id: FlowId) -> Option<&Flow> {
        let flows = self.by_low.get(&flow_low(id))?;
        flows.iter().find(|flow| flow.id == id)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.by_low.values_mut().flatten()
    }

    pub(super) fn get_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        let flows = self.by_low.get_mut(&flow_low(id))?;
        flows.iter_mut().find(|flow| flow.id == id)
    }

    /// The flow of a segment: the flow whose number made the tag.
    pub(super) fn of(
        &mut self,
        segment: &SegmentView<'_>,
        keys: &KeySet,
    ) -> Result<&mut Flow, NotFound> {
        let flows = self.by_low.get_mut(&segment.flow_low());
        let flows = flows.ok_or(NotFound::Unknown)?;
        let verified = flows.iter_mut().find(|f| segment.verify(keys, f.id));
        verified.ok_or(NotFound::BadTag)
    }

    /// Adds a new flow.
    pub(super) fn insert(&mut self, flow: Flow) {
        if flow.is_half_open {
            if self.half_open.len() > 2 * super::MAX_HALF_OPEN {
                self.tidy();
            }
            self.half_open.push_back(flow.id);
            self.half_open_count += 1;
        }
        // Two flows hardly ever share a low half.
        let flows = self.by_low.entry(flow_low(flow.id));
        flows.or_insert_with(|| Vec::with_capacity(1)).push(flow);
    }

    pub(super) fn remove(&mut self, id: FlowId) -> Option<Flow> {
        let low = flow_low(id);
        let flows = self.by_low.get_mut(&low)?;
        let at = flows.iter().position(|flow| flow.id == id)?;
        let flow = flows.swap_remove(at);
        if flows.is_empty() {
            self.by_low.remove(&low);
        }
        self.half_open_count -= usize::from(flow.is_half_open);
        Some(flow)
    }

    /// A segment has come from a half-open connection.
    pub(super) const fn on_established(&mut self) {
        self.half_open_count -= 1;
    }

    pub(super) const fn half_open(&self) -> usize {
        self.half_open_count
    }

    /// Removes the oldest half-open connection.
    pub(super) fn remove_oldest_half_open(&mut self) -> Option<FlowId> {
        while let Some(id) = self.half_open.pop_front() {
            if self.get_mut(id).is_some_and(|flow| flow.is_half_open) {
                self.remove(id);
                return Some(id);
            }
        }
        None
    }

    /// Removes connections from the list that are no longer half-open.
    fn tidy(&mut self) {
        let mut half_open = std::mem::take(&mut self.half_open);
        half_open.retain(|id| self.get_mut(*id).is_some_and(|flow| flow.is_half_open));
        self.half_open = half_open;
    }
}
