//! Turns: where a client begins to speak after it has heard a whole answer.
//!
//! A server that keeps nothing between turns can be rebuilt from the last turn alone, so a new one
//! may be believed in only when the previous one is over beyond doubt. Every doubt (a hole, an
//! acknowledgement that is missing, an answer that was not recorded) keeps the turn as it is: the
//! record is then longer than it needs to be, and still right.
//!
//! What the server said may come by another way than what the client said, and later. Then a turn
//! that may have begun is a [`Candidate`] until the answer before it is known.

use crate::answer::{ends_with_interim, is_answer};
use crate::heads::Heads;
use crate::instream::Instream;
use crate::len64;
use crate::position::FIRST_POSITION;
use crate::record::{InstreamSegment, ServerProgress};

/// Bytes at the end of the outstream that are searched for an interim response.
const INTERIM_SEARCH_BYTES: u64 = 4 << 10;

/// Where a turn begins, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) instream: u64,
    pub(crate) outstream: u64,
}

impl Request {
    /// The first turn of a connection.
    pub(crate) const FIRST: Self = Self {
        instream: FIRST_POSITION,
        outstream: FIRST_POSITION,
    };

    /// Whether this turn can begin with `arrival`, as far as the client's side tells, if the client has heard
    /// something new since its last byte before this: only who speaks after that begins a turn. (The first
    /// segment of a request may be in doubt, for example because a later one overtook it; those that follow
    /// must not be taken for the beginning in its place.)
    pub(crate) fn may_begin(
        self,
        arrival: &InstreamSegment<'_>,
        server: ServerProgress,
        record: &Instream,
    ) -> bool {
        let continues_the_record = !arrival.payload.is_empty()
            && record.ends_at(self.instream)
            && server.ack == arrival.seq;
        continues_the_record && arrival.client_ack == server.nxt
    }

    /// Whether the server has answered `previous` before this turn.
    pub(crate) fn follows(self, previous: Self, heads: &Heads) -> bool {
        // What is far behind is not what the client was waiting for.
        let from = previous
            .outstream
            .max(self.outstream.saturating_sub(INTERIM_SEARCH_BYTES));
        let lately = heads.until(self.outstream, from);
        is_answer(heads.at(previous.outstream)) && !ends_with_interim(lately)
    }
}

/// A turn that began, if what the server had said before it was an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) turn: Request,
    /// What the server had sent when the client spoke last before it.
    pub(crate) spoken: u64,
}

impl Candidate {
    /// Whether what the server said in between is recorded: all of it or, of a long one, its head.
    /// Heads are begun where the client speaks, and come in order.
    pub(crate) fn is_decidable(&self, heads: &Heads) -> bool {
        let known = len64(heads.at(self.spoken).len());
        known >= INTERIM_SEARCH_BYTES || self.spoken + known >= self.turn.outstream
    }
}

/// The oldest and the newest candidate. Those between them are not waited for: if the newest is
/// one, they need not be known, and if it is not, the turn is longer than it needs to be.
#[derive(Debug)]
pub(crate) struct Candidates {
    oldest: Option<Candidate>,
    newest: Option<Candidate>,
}

impl Candidates {
    pub(crate) const NONE: Self = Self {
        oldest: None,
        newest: None,
    };

    pub(crate) const fn push(&mut self, candidate: Candidate) {
        if self.oldest.is_none() {
            self.oldest = Some(candidate);
        } else {
            self.newest = Some(candidate);
        }
    }

    pub(crate) const fn first(&self) -> Option<Candidate> {
        self.oldest
    }

    pub(crate) const fn pop_first(&mut self) {
        self.oldest = self.newest.take();
    }
}
