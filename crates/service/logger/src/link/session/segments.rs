//! Datagrams with segments of clients and response heads.

use std::time::Duration;

use journal::{InstreamSegment, OutstreamSegment, Refused, ServerProgress};
use protocol::link::{SegmentKind, SegmentView, flow_low, heads_digest};
use wire::{Flags, FlowId, Segment};

use super::{AckPolicy, MAX_NOTICES, Session};
use crate::durable::entry::{Change, Entry};
use crate::ingest::Notice;
use crate::link::flows::{Flow, NotFound};
use crate::link::outbox::Outbox;

impl Session {
    /// Handles a datagram with a segment. A datagram that is not authentic is only counted.
    pub(super) fn segment(&mut self, datagram: &[u8], now: Duration, out: &mut Outbox) {
        let Ok(view) = SegmentView::parse(datagram) else {
            self.statistics.malformed += 1;
            return;
        };
        let Some(id) = self.flow_of(&view, now) else {
            return;
        };
        let is_taken = match view.flags().kind {
            SegmentKind::Head => {
                self.head(id, &view, out);
                true
            }
            SegmentKind::Said => self.record_output_digest(id, &view, out),
            _ => self.on_client_segment(id, &view, now, out),
        };
        if is_taken {
            self.on_keyed_datagram(view.flags().slot, now);
        }
    }

    /// The flow of an undamaged segment whose tag is right.
    fn flow_of(&mut self, view: &SegmentView<'_>, now: Duration) -> Option<FlowId> {
        match self.flows.of(view, &self.up) {
            Ok(flow) if view.is_undamaged(&flow.key) => return Some(flow.id),
            Ok(_) => self.statistics.damaged += 1,
            Err(NotFound::BadTag) => self.statistics.bad_tags += 1,
            Err(NotFound::Unknown) => {
                self.statistics.unknown += 1;
                // The control stream may be gone.
                let few = self.ingest.notices.len() < MAX_NOTICES;
                if few && self.unknown.is_due(view.flow_low(), now) {
                    let notice = Notice::Unknown(view.flow_low());
                    self.ingest.notices.push_back(notice);
                }
            }
        }
        None
    }

    /// The head of a response, before the client has the response.
    fn head(&mut self, flow: FlowId, view: &SegmentView<'_>, out: &mut Outbox) {
        let (seq, payload, more) = view.head();
        let head = OutstreamSegment {
            seq,
            payload,
            more,
            after: Some(view.after()),
            asked: view.asked(),
        };
        let has_bytes = !payload.is_empty() || more > 0;
        self.statistics.heads += u64::from(has_bytes);
        self.record_head(flow, head, out);
    }

    /// Records a digest whose output the client has received completely. False: the datagram has no digest.
    fn record_output_digest(
        &mut self,
        flow: FlowId,
        view: &SegmentView<'_>,
        out: &mut Outbox,
    ) -> bool {
        let Some(digest) = view.said() else {
            self.statistics.malformed += 1;
            return false;
        };
        self.digest(flow, digest, Some(view.after()), out);
        true
    }

    /// Records a segment of a client. False: the segment does not belong into an open connection.
    fn on_client_segment(
        &mut self,
        id: FlowId,
        view: &SegmentView<'_>,
        now: Duration,
        out: &mut Outbox,
    ) -> bool {
        let (Some(mut segment), Some(flow)) = (instream_segment(view), self.flows.get_mut(id))
        else {
            self.statistics.malformed += 1;
            return false;
        };
        if matches!(view.flags().kind, SegmentKind::HeardAll | SegmentKind::Turn) {
            let end = self.ingest.journal.heads_end(id);
            segment.heads_known = end.is_some_and(|end| heads_digest(end) == view.heads());
        }
        let was_half_open = std::mem::take(&mut flow.is_half_open);
        observe(flow, view.segment(), now);
        let is_truncated = self.truncate_to_cursor(id, view, out);
        if segment.payload.is_empty() && !segment.fin {
            self.record_progress(id, out);
            if is_truncated {
                self.acknowledge(id, out);
            }
        } else {
            self.statistics.segments += 1;
            self.record(id, &segment, now, out);
        }
        if was_half_open {
            self.flows.on_established();
        }
        true
    }

    /// A segment without payload and FIN: the client's progress goes into the log, if an entry is due.
    fn record_progress(&mut self, id: FlowId, out: &mut Outbox) {
        self.statistics.progress += 1;
        if let Some(flow) = self.flows.get_mut(id)
            && flow.progress.is_log_due()
        {
            flow.progress.on_logged();
            let progress = Change::Progress(flow.progress);
            out.record(self.instance, &Entry::Changed(id, progress));
        }
    }

    /// Records new bytes, and acknowledges the bytes now or with the batch.
    fn record(
        &mut self,
        id: FlowId,
        segment: &InstreamSegment<'_>,
        now: Duration,
        out: &mut Outbox,
    ) {
        let recorded = self.ingest.journal.instream(id, segment);
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        match recorded {
            Ok(recorded) if recorded.new => {
                flow.progress.on_logged();
                out.record(self.instance, &Entry::Changed(id, Change::of(segment)));
                self.recorded = out.recorded();
            }
            Err(Refused::BecameUnprotected(reason)) => {
                out.record(self.instance, &Entry::Changed(id, Change::Unprotected));
                let notice = Notice::Unprotected(id, reason.into());
                self.ingest.notices.push_back(notice);
            }
            Err(Refused::Unprotected(_)) => self.on_unrecorded_segment(id, now),
            Ok(_) | Err(Refused::Implausible | Refused::Unknown) => {}
        }
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        match recorded {
            Ok(recorded) if recorded.hole || self.policy == AckPolicy::EachFrame => {
                remember(flow, segment);
                self.acks.send(flow, &self.ingest.journal, out);
            }
            Ok(_) if !flow.due => {
                flow.due = true;
                if self.due.is_empty() {
                    self.due_since = now;
                }
                self.due.push(id);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// Segments arrive for a connection without a record. Unless the service knows, the client waits forever for an
    /// acknowledgement. The notice may have been lost with a control stream.
    fn on_unrecorded_segment(&mut self, id: FlowId, now: Duration) {
        let few = self.ingest.notices.len() < MAX_NOTICES;
        if few && self.unknown.is_repeated(flow_low(id), now) {
            self.ingest.notices.push_back(Notice::Unknown(flow_low(id)));
        }
    }
}

/// The recorded part of a segment; `None` for a segment that does not belong into an open connection.
fn instream_segment<'a>(view: &SegmentView<'a>) -> Option<InstreamSegment<'a>> {
    let segment = view.segment();
    let flags = segment.flags();
    if flags.contains(Flags::SYN) || flags.contains(Flags::RST) {
        return None;
    }
    let kind = view.flags().kind;
    let progress = ServerProgress {
        nxt: segment.ack(),
        ack: segment.seq(),
    };
    Some(InstreamSegment {
        seq: segment.seq(),
        payload: segment.payload(),
        fin: flags.contains(Flags::FIN),
        client_ack: segment.ack(),
        heard_all: matches!(
            kind,
            SegmentKind::HeardAll | SegmentKind::Turn | SegmentKind::Doubted
        ),
        // The response to bytes in doubt is received again before, in any case.
        heads_known: kind == SegmentKind::Doubted,
        doubted: view.heard(),
        server: (kind == SegmentKind::Turn).then_some(progress),
    })
}

/// Updates the client's progress from a segment of any kind.
fn observe(flow: &mut Flow, segment: &Segment<'_>, now: Duration) {
    flow.seen = Some(now);
    if segment.flags().contains(Flags::ACK) {
        let first = flow.server_isn + 1;
        flow.progress.acknowledge(first, segment.ack());
        if let Some(timestamps) = segment.timestamps() {
            flow.progress.time(timestamps);
        }
    }
}

/// Remembers the place of the newest bytes, possibly beyond a hole. Without space the oldest place is forgotten:
/// [`crate::link::acks`] has joined the places of a range.
fn remember(flow: &mut Flow, segment: &InstreamSegment<'_>) {
    if segment.payload.is_empty() {
        return;
    }
    flow.newest.rotate_right(1);
    flow.newest[0] = Some(segment.seq);
}
