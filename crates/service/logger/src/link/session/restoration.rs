//! Rebuilding a record from a log.

use journal::{InstreamSegment, OutstreamSegment, Position, State, Unprotected};
use protocol::{Digest, DigestSeed, control::Resume};
use wire::{FlowId, SeqNumber};

use super::Session;
use crate::link::{flows::Flow, progress::Progress};

impl Session {
    /// Adds a connection whose record begins there. Returns whether the limits allow the connection.
    pub(crate) fn restore(&mut self, resume: &Resume) -> bool {
        let before = self.flows.remove(resume.flow);
        let at = Position {
            instream: resume.instream,
            outstream: resume.outstream,
        };
        let (client_isn, server_isn) = (resume.client_isn, resume.server_isn);
        let journal = &mut self.ingest.journal;
        let resumed = journal.resume(resume.flow, client_isn, server_isn, at);
        if resumed.is_ok() {
            let mut flow = Flow::new(resume);
            flow.is_half_open = false;
            let isns = (client_isn, server_isn);
            if let Some(same) = before.filter(|f| (f.client_isn, f.server_isn) == isns) {
                flow.progress.join(&same.progress);
            }
            self.flows.insert(flow);
        }
        resumed.is_ok()
    }

    pub(crate) fn restore_instream(&mut self, flow: FlowId, arrival: &InstreamSegment<'_>) {
        // The restored journal refuses the same segments as before.
        let _ = self.ingest.journal.instream(flow, arrival);
    }

    /// Unprotects the connection if the release fails for want of memory: the missing bytes would be missing
    /// forever.
    pub(crate) fn restore_released(&mut self, flow: FlowId, to: SeqNumber) {
        self.ingest.journal.release(flow, to);
        if self.is_missing(flow, to) {
            self.unprotect(flow, Unprotected::TotalLimit);
        }
    }

    pub(crate) fn restore_acknowledged(&mut self, flow: FlowId, ack: SeqNumber) {
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.progress.acknowledge(flow.server_isn + 1, ack);
            flow.progress.on_logged();
        }
    }

    pub(crate) fn restore_progress(&mut self, flow: FlowId, progress: &Progress) {
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.progress.join(progress);
        }
    }

    pub(crate) fn restore_outstream(&mut self, flow: FlowId, head: &OutstreamSegment<'_>) {
        let _ = self.ingest.journal.outstream(flow, head);
    }

    /// A copy keeps all digests: the log has the places where the client began to send after the digests.
    pub(crate) fn restore_digest(
        &mut self,
        id: FlowId,
        digest: Digest,
        speaks: Option<SeqNumber>,
        is_copy: bool,
    ) {
        let flow = self.flows.get(id).filter(|_| !is_copy);
        let received = flow.map(|flow| flow.received_up_to(&digest, speaks));
        self.ingest
            .digest(id, digest, (received.unwrap_or(digest.base), speaks));
    }

    /// Seed of the digests' key, if known.
    pub(crate) const fn digests(&self) -> Option<DigestSeed> {
        self.digests
    }

    pub(crate) const fn restore_digest_seed(&mut self, seed: DigestSeed) {
        self.digests = Some(seed);
    }

    pub(crate) fn hold_turns(&mut self, hold: bool) {
        self.ingest.journal.hold_turns(hold);
    }

    /// Unprotects a connection. Returns whether the connection had a record.
    pub(crate) fn unprotect(&mut self, flow: FlowId, reason: Unprotected) -> bool {
        self.ingest.journal.unprotect(flow, reason)
    }

    pub(crate) fn close(&mut self, flow: FlowId) {
        self.flows.remove(flow);
        self.ingest.journal.close(flow);
    }

    /// The connection `resume` gets the record of `copy`.
    pub(crate) fn end_copy(
        &mut self,
        resume: &Resume,
        copy: FlowId,
        places: (Position, [SeqNumber; 4], [SeqNumber; 2]),
        beginnings: Vec<Position>,
    ) {
        let copied = self.flows.remove(copy);
        let (turn, answers, asked) = places;
        let journal = &mut self.ingest.journal;
        journal.restore_turn(copy, turn, answers);
        journal.restore_asked(copy, asked);
        journal.restore_beginnings(copy, beginnings.into_iter());
        if !self.ingest.journal.replace(resume.flow, copy) {
            return;
        }
        self.flows.remove(resume.flow);
        let mut flow = Flow::new(resume);
        flow.is_half_open = false;
        if let Some(copied) = copied {
            flow.progress.join(&copied.progress);
        }
        self.flows.insert(flow);
    }

    /// The whole log has been read. Notices from the reading are dropped.
    pub(crate) fn restored(&mut self) {
        self.ingest.notices.clear();
    }

    /// Number of connections with a record.
    pub(crate) fn protected(&self) -> usize {
        let statistics = self.ingest.journal.statistics();
        statistics.connections - statistics.unprotected
    }

    /// Where the record of a connection begins.
    pub(crate) fn beginning(&self, id: FlowId) -> Option<Resume> {
        let flow = self.flows.get(id)?;
        let State::Protected(record) = self.ingest.journal.summary(id)?.state else {
            return None;
        };
        Some(Resume {
            flow: id,
            key: flow.key,
            client_isn: flow.client_isn,
            server_isn: flow.server_isn,
            instream: record.start.instream,
            outstream: record.start.outstream,
            handshake: flow.handshake,
        })
    }

    /// The client's progress.
    pub(crate) fn progress(&self, id: FlowId) -> Option<&Progress> {
        self.flows.get(id).map(|flow| &flow.progress)
    }
}
