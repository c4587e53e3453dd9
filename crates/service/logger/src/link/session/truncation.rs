//! Bytes that a server with state has read are in its determinants, and need not be in the record.

use protocol::link::SegmentView;
use wire::{FlowId, SeqNumber};

use super::Session;
use crate::durable::entry::{Change, Entry};
use crate::link::outbox::Outbox;

impl Session {
    /// A segment may say that missing bytes before it were not copied, because the determinants have them. Answers
    /// whether the record has less to wait for with that. Bytes that are not missing stay: to drop them moves the rest.
    pub(super) fn truncate_to_cursor(
        &mut self,
        flow: FlowId,
        view: &SegmentView<'_>,
        out: &mut Outbox,
    ) -> bool {
        view.noted()
            .is_some_and(|to| self.is_missing(flow, to) && self.released(flow, to, out))
    }

    /// The service says the same, and expects an acknowledgement if more is recorded now.
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

    /// What lies before `to` is needed no more. Answers whether something of it was missing, and is not waited for any
    /// more: the log must know of that before anybody else does. Of what was recorded it may know longer than the
    /// record.
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

    /// Whether something before `to` is not in the record of a protected connection.
    pub(super) fn is_missing(&self, flow: FlowId, to: SeqNumber) -> bool {
        let stable_seq = self.ingest.journal.stable_seq(flow);
        stable_seq.is_some_and(|stable_seq| to.after(stable_seq))
    }
}
