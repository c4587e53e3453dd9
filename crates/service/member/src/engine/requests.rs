//! Requests that wait for their turn ([`objects::queue`]).

use std::time::Duration;

use objects::{
    plane::SegmentCopy,
    queue::{self, ServerTerms},
};
use wire::FlowKey;

use super::Member;
use crate::{clock, error::MemberError, records::Records};

impl Member {
    /// Bytes of a client wait for their turn.
    pub(super) fn queue(&mut self, copy: &SegmentCopy, now: Duration) -> Result<(), MemberError> {
        let Some(segment) = copy.segment() else {
            return Ok(());
        };
        let Some(flow) = self.plane.flow(copy.key)? else {
            return Ok(());
        };
        let is_repetition = self.queues.add(copy.key, &flow, &segment, now);
        // The programs tell of repetitions of the request under way.
        if is_repetition && !segment.seq().before(flow.turn.request_end) {
            self.revivals
                .keep_close(&self.plane, copy.key, segment.seq());
        }
        Ok(())
    }

    /// A response has left whose end the next request waits for.
    pub(super) fn hasten(&self, key: FlowKey) -> Result<(), MemberError> {
        if !self.queues.knows(&key) {
            return Ok(());
        }
        if let Some(flow) = self.plane.flow(key)? {
            let called = Vec::from_iter(queue::call(key, &flow));
            self.revivals
                .as_server(&self.plane, flow.interface, &called);
        }
        Ok(())
    }

    /// Requests whose turn has come.
    pub(super) fn pass_requests(&mut self) -> Result<(), MemberError> {
        let plane = &self.plane;
        let server = ServerTerms {
            incarnation: self.service.rules.incarnation,
            has_store: self.records.as_ref().is_some_and(Records::has_store),
        };
        let passed = self
            .queues
            .take_due(clock::now(), server, |key| plane.flow(key))?;
        for passed in passed {
            self.revivals.pass_queued(&self.plane, &passed);
        }
        Ok(())
    }
}
