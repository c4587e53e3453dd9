//! Requests that wait for their turn ([`objects::queue`]).

use std::{cell::RefCell, os::fd::BorrowedFd, rc::Rc, time::Duration};

use dataplane::{MemberPlane, ObjectRing};
use objects::{
    plane::SegmentCopy,
    queue::{self, ServerTerms},
};
use wire::FlowKey;

use super::Member;
use crate::{clock, error::MemberError, records::Records, revivals::owned};

/// Shortest round: in a round, the programs limit the copies of each client.
const ROUND_MIN: Duration = Duration::from_millis(250);

/// The ring of bytes that wait.
pub(super) struct Queued {
    ring: ObjectRing<'static>,
    copied: Rc<RefCell<Vec<SegmentCopy>>>,
    /// When the next round may begin. `None`: no client has used anything of this round.
    next_round: Option<Duration>,
}

impl Queued {
    pub(super) fn of(plane: &MemberPlane) -> Result<Self, MemberError> {
        let copied: Rc<RefCell<Vec<SegmentCopy>>> = Rc::default();
        let into = Rc::clone(&copied);
        Ok(Self {
            ring: plane.queued(move |copy| into.borrow_mut().push(owned(copy)))?,
            copied,
            next_round: None,
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Member {
    /// Bytes of clients that wait for their turn: behind all other copies.
    pub(super) fn queue_copies(&mut self, now: Duration) -> Result<(), MemberError> {
        let queued = &mut self.rings.queued;
        queued.ring.consume()?;
        let copied: Vec<SegmentCopy> = queued.copied.borrow_mut().drain(..).collect();
        if queued.next_round.is_some_and(|at| at <= now) {
            queued.next_round = None;
            self.plane.next_queue_round()?;
        }
        if !copied.is_empty() {
            queued.next_round.get_or_insert(now + ROUND_MIN);
        }
        for copy in copied {
            if self.budget.allows_queued(now) {
                self.queue(&copy, now)?;
            }
        }
        Ok(())
    }

    /// Bytes of a client wait for their turn.
    fn queue(&mut self, copy: &SegmentCopy, now: Duration) -> Result<(), MemberError> {
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
                .on_repetition(&self.plane, copy.key, segment.seq());
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
