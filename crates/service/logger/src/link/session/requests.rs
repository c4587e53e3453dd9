//! Requests of a service on the control stream.

use journal::{OutstreamSegment, Unprotected};
use protocol::{
    Digest, DigestSeed,
    control::{ErrorCode, Recorded, Request, Response},
    mirror::{FrameKind, MirrorFrame},
};

use wire::{FlowId, SeqNumber};

use super::Session;
use crate::{
    durable::entry::{Change, Entry},
    ingest::{Outcome, head},
    link::outbox::Outbox,
    rpc::{RpcHandler, pages},
};

impl Session {
    /// The responses to a request of the session's service, in order; the response to a barrier comes later from
    /// [`Outbox::drained`]. [`Request::Attach`] and [`Request::Rekey`] need randomness and are refused here.
    pub fn answer(
        &mut self,
        rpc: RpcHandler,
        request: &Request,
        out: &mut Outbox,
    ) -> Vec<Response> {
        match request {
            Request::Frames { bytes } => {
                self.frames(bytes, out);
                Vec::new()
            }
            Request::Barrier { token } => {
                // A recovery waits for this barrier.
                let hurries = self.ingest.journal.turns_are_held();
                out.barrier(self.instance, *token, hurries);
                Vec::new()
            }
            Request::Resume(resume) => {
                if resume.flow != FlowId::RESERVED && self.restore(resume) {
                    out.record(self.instance, &Entry::Opened(*resume));
                    self.recorded = out.recorded();
                } else {
                    self.too_many(resume.flow);
                }
                Vec::new()
            }
            Request::Unprotect { flow } => {
                if self.unprotect(*flow, Unprotected::Requested) {
                    out.record(self.instance, &Entry::Changed(*flow, Change::Unprotected));
                }
                Vec::new()
            }
            Request::Release { places } => {
                for (flow, to) in places {
                    self.release(*flow, *to, out);
                }
                Vec::new()
            }
            Request::DigestSeed(seed) => vec![Response::DigestSeed(self.digest_seed(*seed, out))],
            Request::HoldTurns { hold } => {
                self.hold_turns(*hold);
                out.record(self.instance, &Entry::TurnsHeld(*hold));
                Vec::new()
            }
            Request::Attach(_)
            | Request::Rekey
            | Request::Shutdown
            | Request::InUse { .. }
            | Request::Follow { .. }
            | Request::StoredImage { .. }
            | Request::ReadStoredImage { .. }
            | Request::Claim(_)
            | Request::GiveUp { .. }
            | Request::Lease(_) => {
                vec![Response::Error {
                    code: ErrorCode::BadRequest,
                    message: "this makes no sense here".into(),
                }]
            }
            Request::Connections => self.connections(),
            Request::Determinants { record, said } => vec![self.determinants(*record, said)],
            Request::TellDeterminants {
                record,
                process,
                from,
                bytes,
            } => {
                self.append_from_service(*record, *process, *from, bytes);
                Vec::new()
            }
            Request::ReadDeterminants {
                process,
                from,
                max_len,
            } => vec![self.determinant_bytes(*process, *from, *max_len)],
            Request::CutDeterminants { process, length } => {
                self.cut_determinants(*process, *length);
                Vec::new()
            }
            Request::TellImage { .. }
            | Request::CommitImage { .. }
            | Request::DropImage
            | Request::ReadImage { .. } => self.image(request).into_iter().collect(),
            Request::Statistics => {
                let mut answers = rpc.answer(&mut self.ingest, request);
                for answer in &mut answers {
                    if let Response::Statistics(statistics) = answer {
                        self.add_to(statistics);
                    }
                }
                answers
            }
            _ => rpc.answer(&mut self.ingest, request),
        }
    }

    /// The connections with a complete record, in the order of numbers.
    pub(crate) fn connections(&self) -> Vec<Response> {
        let mut all = Vec::new();
        let mut last = None;
        while let Some(flow) = self.ingest.journal.next_protected(last) {
            last = Some(flow);
            all.extend(self.recorded(flow));
        }
        pages(&all, Recorded::PER_MESSAGE, |connections, last| {
            Response::Connections { connections, last }
        })
    }

    /// A connection with a complete record.
    pub(super) fn recorded(&self, flow: FlowId) -> Option<Recorded> {
        let (beginning, progress) = (self.beginning(flow)?, self.progress(flow)?);
        Some(Recorded {
            beginning,
            acknowledged: progress.acknowledged,
            tsval: progress.timestamps.map_or(0, |seen| seen.value),
            tsecr: progress.timestamps.map_or(0, |seen| seen.echo),
        })
    }

    fn add_to(&self, statistics: &mut protocol::control::Statistics) {
        let link = &self.statistics;
        statistics.frames += link.datagrams;
        statistics.malformed_frames += link.malformed + link.bad_tags + link.damaged;
        statistics.unknown_flow_frames += link.unknown;
    }

    /// Handles frames as a ring holds frames, in a row. After an unreadable frame the next frame cannot be found.
    fn frames(&mut self, mut bytes: &[u8], out: &mut Outbox) {
        while !bytes.is_empty() {
            let Ok((frame, rest)) = MirrorFrame::first(bytes) else {
                self.statistics.malformed += 1;
                return;
            };
            let (this, _) = bytes.split_at(bytes.len() - rest.len());
            bytes = rest;
            match frame.kind {
                FrameKind::Closed(_) => {
                    self.flows.remove(frame.flow_id);
                    self.ingest.take(this);
                    let closed = Entry::Changed(frame.flow_id, Change::Closed);
                    out.record(self.instance, &closed);
                }
                FrameKind::Outstream { from, asked } => match head(&frame, from, asked) {
                    Some(head) => self.record_head(frame.flow_id, head, out),
                    None => self.ingest.malformed += 1,
                },
                FrameKind::Barrier { .. } => self.ingest.take(this),
                FrameKind::Digest => match frame.digest() {
                    Some(digest) => self.digest(frame.flow_id, digest, None, out),
                    None => self.ingest.malformed += 1,
                },
                // The link carries these frames.
                FrameKind::Instream | FrameKind::Opened { .. } => {
                    self.statistics.malformed += 1;
                }
            }
        }
    }

    /// The seed of the digests' key: the given seed, unless the records have digests with an earlier seed.
    fn digest_seed(&mut self, given: DigestSeed, out: &mut Outbox) -> DigestSeed {
        let known = self.digests.filter(|_| self.ingest.journal.has_marks());
        let seed = known.unwrap_or(given);
        if self.digests.replace(seed) != Some(seed) {
            out.record(self.instance, &Entry::DigestSeed(seed));
        }
        seed
    }

    /// Records the digest of the output so far. `speaks`: the client has received all of that output, and the
    /// server does not have the client's bytes from there on yet.
    pub(super) fn digest(
        &mut self,
        id: FlowId,
        digest: Digest,
        speaks: Option<SeqNumber>,
        out: &mut Outbox,
    ) {
        let Some(flow) = self.flows.get_mut(id) else {
            self.ingest.unknown += 1;
            return;
        };
        let received = flow.received_up_to(&digest, speaks);
        let outcome = self.ingest.digest(id, digest, (received, speaks));
        self.log_outcome(id, outcome, Some(Change::Digest(digest, speaks)), out);
    }

    /// Records a head, which often arrives by both the control stream and the link.
    pub(super) fn record_head(
        &mut self,
        flow: FlowId,
        head: OutstreamSegment<'_>,
        out: &mut Outbox,
    ) {
        let outcome = self.ingest.outstream(flow, &head);
        self.log_outcome(flow, outcome, Some(Change::Outstream(head)), out);
    }

    /// Logs the outcome for a record: `change` if the record has grown. The end of a record has a separate entry,
    /// because a later reading may have more memory.
    fn log_outcome(
        &mut self,
        flow: FlowId,
        outcome: Outcome,
        change: Option<Change<'_>>,
        out: &mut Outbox,
    ) {
        let change = match outcome {
            Outcome::Nothing => None,
            Outcome::Recorded => change,
            Outcome::GivenUp => Some(Change::Unprotected),
        };
        if let Some(change) = change {
            out.record(self.instance, &Entry::Changed(flow, change));
        }
    }
}
