//! Truncation of a record: the determinants of a server with state have all bytes that the server has read.

use protocol::link::SegmentView;
use wire::{FlowId, SeqNumber};

use super::Session;
use crate::durable::entry::{Change, Entry};
use crate::link::outbox::Outbox;

impl Session {
    /// A segment may report that missing bytes before the segment were not mirrored, because the determinants have the
    /// bytes. Returns whether a hole was closed. Bytes that are not missing stay: dropping bytes moves the rest.
    pub(super) fn truncate_to_cursor(
        &mut self,
        flow: FlowId,
        view: &SegmentView<'_>,
        out: &mut Outbox,
    ) -> bool {
        view.noted()
            .is_some_and(|to| self.is_missing(flow, to) && self.released(flow, to, out))
    }

    /// Truncates at the service's request, and acknowledges the flow if a hole was closed.
    pub(super) fn release(&mut self, flow: FlowId, to: SeqNumber, out: &mut Outbox) {
        if self.released(flow, to, out) {
            self.acknowledge(flow, out);
        }
    }

    /// Acknowledges at once.
    pub(super) fn acknowledge(&mut self, flow: FlowId, out: &mut Outbox) {
        if let Some(flow) = self.flows.get_mut(flow) {
            self.acks.send(flow, &self.ingest.journal, out);
        }
    }

    /// Drops the record before `to`. Returns whether a hole was closed. The log must have that before any ACK.
    /// Recorded bytes may stay longer in the log than in the record.
    fn released(&mut self, flow: FlowId, to: SeqNumber, out: &mut Outbox) -> bool {
        let was_missing = self.is_missing(flow, to);
        self.ingest.journal.release(flow, to);
        let fills_a_hole = was_missing && !self.is_missing(flow, to);
        if fills_a_hole {
            let released = Change::Released(to);
            out.record(self.instance, &Entry::Changed(flow, released));
            self.recorded = out.recorded();
        }
        fills_a_hole
    }

    /// Whether bytes before `to` are missing in the record of a protected connection.
    pub(super) fn is_missing(&self, flow: FlowId, to: SeqNumber) -> bool {
        let stable_seq = self.ingest.journal.stable_seq(flow);
        stable_seq.is_some_and(|stable_seq| to.after(stable_seq))
    }
}
