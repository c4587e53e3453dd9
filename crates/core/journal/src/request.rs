//! Requests: where a client begins to send after receiving a whole response.
//!
//! A server without state between requests can be rebuilt from the last request alone. So a new request begins only
//! when the previous request is over beyond doubt. Every doubt (a gap, a missing acknowledgement, an unrecorded
//! response) continues the old request: the record is then longer than necessary, and still right.
//!
//! The output of the server may arrive by another way than the client's input, and later. Then a request that may have
//! begun is a [`Candidate`] until the response before is known.

use crate::answer::{ends_with_interim, is_answer};
use crate::heads::Heads;
use crate::instream::Instream;
use crate::len64;
use crate::position::FIRST_POSITION;
use crate::record::{InstreamSegment, ServerProgress};

/// Bytes at the end of the outstream that are searched for an interim response.
const INTERIM_SEARCH_BYTES: u64 = 4 << 10;

/// Where a request begins, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) instream: u64,
    pub(crate) outstream: u64,
}

impl Request {
    /// The first request of a connection.
    pub(crate) const FIRST: Self = Self {
        instream: FIRST_POSITION,
        outstream: FIRST_POSITION,
    };

    /// Whether this request can begin with `arrival`, as far as the client's side tells, if the client has received
    /// new output since the last byte before: only a client that sends after new output begins a request. (The first
    /// segment of a request may be in doubt, for example because a later segment overtook the first; the following
    /// segments must not be taken for the beginning instead.)
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

    /// Whether the server has answered `previous` before this request.
    pub(crate) fn follows(self, previous: Self, heads: &Heads) -> bool {
        // The client was not waiting for output that is far behind.
        let from = previous
            .outstream
            .max(self.outstream.saturating_sub(INTERIM_SEARCH_BYTES));
        let lately = heads.until(self.outstream, from);
        is_answer(heads.at(previous.outstream)) && !ends_with_interim(lately)
    }
}

/// A request that began, if the output before was a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) turn: Request,
    /// The end of the output when the client sent last before this request.
    pub(crate) spoken: u64,
}

impl Candidate {
    /// Whether the output in between is recorded: all of a short response, the head of a long response. Heads begin
    /// where the client sends, and arrive in order.
    pub(crate) fn is_decidable(&self, heads: &Heads) -> bool {
        let known = len64(heads.at(self.spoken).len());
        known >= INTERIM_SEARCH_BYTES || self.spoken + known >= self.turn.outstream
    }
}

/// The oldest and the newest candidate. Candidates between both are not kept: if the newest is a request, the others
/// need not be known; if not, the request is longer than necessary.
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
