//! Segments of clients, and heads of answers, as they come in datagrams.

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
    /// A datagram that holds a segment. One that cannot be believed is counted, and else nothing.
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
            SegmentKind::Said => self.heard_all(id, &view, out),
            _ => self.arrived(id, &view, now, out),
        };
        if is_taken {
            self.seen(view.flags().slot, now);
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
                // Nobody may be there to be told.
                let few = self.intake.notices.len() < MAX_NOTICES;
                if few && self.unknown.is_news(view.flow_low(), now) {
                    let notice = Notice::Unknown(view.flow_low());
                    self.intake.notices.push_back(notice);
                }
            }
        }
        None
    }

    /// The beginning of an answer, before the client has it.
    fn head(&mut self, flow: FlowId, view: &SegmentView<'_>, out: &mut Outbox) {
        let (seq, payload, more) = view.head();
        let said = OutstreamSegment {
            seq,
            payload,
            more,
            after: Some(view.after()),
            asked: view.asked(),
        };
        let has_bytes = !payload.is_empty() || more > 0;
        self.statistics.heads += u64::from(has_bytes);
        self.said(flow, said, out);
    }

    /// The client has heard all that this is the digest of. False: it tells none.
    fn heard_all(&mut self, flow: FlowId, view: &SegmentView<'_>, out: &mut Outbox) -> bool {
        let Some(said) = view.said() else {
            self.statistics.malformed += 1;
            return false;
        };
        self.digest(flow, said, Some(view.after()), out);
        true
    }

    /// A segment of a client. False: it has no place in its connection.
    fn arrived(
        &mut self,
        id: FlowId,
        view: &SegmentView<'_>,
        now: Duration,
        out: &mut Outbox,
    ) -> bool {
        let (Some(mut arrival), Some(flow)) = (arrival(view), self.flows.get_mut(id)) else {
            self.statistics.malformed += 1;
            return false;
        };
        if matches!(view.flags().kind, SegmentKind::HeardAll | SegmentKind::Turn) {
            let end = self.intake.journal.heads_end(id);
            arrival.heads_known = end.is_some_and(|end| heads_digest(end) == view.heads());
        }
        let was_embryo = std::mem::take(&mut flow.embryo);
        observe(flow, view.segment(), now);
        let is_noted = self.noted(id, view, out);
        if arrival.payload.is_empty() && !arrival.fin {
            self.went_on(id, out);
            if is_noted {
                self.acknowledge(id, out);
            }
        } else {
            self.statistics.segments += 1;
            self.record(id, &arrival, now, out);
        }
        if was_embryo {
            self.flows.born();
        }
        true
    }

    /// A segment with nothing to record: how far the client has heard the server is told, if that is news.
    fn went_on(&mut self, id: FlowId, out: &mut Outbox) {
        self.statistics.progress += 1;
        if let Some(flow) = self.flows.get_mut(id)
            && flow.progress.is_news()
        {
            flow.progress.told();
            let progress = Change::Progress(flow.progress);
            out.record(self.instance, &Entry::Changed(id, progress));
        }
    }

    /// What was not recorded yet is, and the service is told so, now or with the batch.
    fn record(
        &mut self,
        id: FlowId,
        arrival: &InstreamSegment<'_>,
        now: Duration,
        out: &mut Outbox,
    ) {
        let recorded = self.intake.journal.instream(id, arrival);
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        match recorded {
            Ok(recorded) if recorded.new => {
                flow.progress.told();
                out.record(self.instance, &Entry::Changed(id, Change::of(arrival)));
                self.recorded = out.recorded();
            }
            Err(Refused::BecameUnprotected(reason)) => {
                out.record(self.instance, &Entry::Changed(id, Change::Unprotected));
                let notice = Notice::Unprotected(id, reason.into());
                self.intake.notices.push_back(notice);
            }
            Err(Refused::Unprotected(_)) => self.has_no_record(id, now),
            Ok(_) | Err(Refused::Implausible | Refused::Unknown) => {}
        }
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        match recorded {
            Ok(recorded) if recorded.hole || self.policy == AckPolicy::EachFrame => {
                remember(flow, arrival);
                self.acks.say(flow, &self.intake.journal, out);
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

    /// A client's segments come, and its connection has no record: the client waits for an acknowledgement that never
    /// comes, if the service has not heard of that. The word of it may have been lost with a control stream.
    fn has_no_record(&mut self, id: FlowId, now: Duration) {
        let few = self.intake.notices.len() < MAX_NOTICES;
        if few && self.unknown.comes_again(flow_low(id), now) {
            self.intake.notices.push_back(Notice::Unknown(flow_low(id)));
        }
    }
}

/// What the record takes of a segment; `None` of one that has no place in an open connection.
fn arrival<'a>(view: &SegmentView<'a>) -> Option<InstreamSegment<'a>> {
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
        // Of one in doubt what was answered is heard again before, whatever that was.
        heads_known: kind == SegmentKind::Doubted,
        doubted: view.heard(),
        server: (kind == SegmentKind::Turn).then_some(progress),
    })
}

/// What a segment tells of its client, whatever it carries.
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

/// Bytes have come, possibly beyond a hole: there more have come later than anywhere else. The
/// oldest place is forgotten, if there is no room: [`crate::link::acks`] has joined those of one range.
fn remember(flow: &mut Flow, arrival: &InstreamSegment<'_>) {
    if arrival.payload.is_empty() {
        return;
    }
    flow.newest.rotate_right(1);
    flow.newest[0] = Some(arrival.seq);
}
