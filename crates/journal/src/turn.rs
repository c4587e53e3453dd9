//! Turns: where a client begins to speak after it has heard a whole answer.
//!
//! A server that keeps nothing between turns can be rebuilt from the last turn alone, so a new one
//! may be believed in only when the previous one is over beyond doubt. Every doubt (a hole, an
//! acknowledgement that is missing, an answer that was not recorded) keeps the turn as it is: the
//! record is then longer than it needs to be, and still right.

use crate::answer::{ends_with_interim, is_answer};
use crate::heads::Heads;
use crate::instream::Instream;
use crate::position::FIRST;
use crate::record::Arrival;

/// So many bytes of the outstream's end are searched for an interim response.
const LATELY: u64 = 4 << 10;

/// Where a turn begins, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) instream: u64,
    pub(crate) outstream: u64,
}

impl Turn {
    /// The first turn of a connection.
    pub(crate) const FIRST: Self = Self {
        instream: FIRST,
        outstream: FIRST,
    };

    /// The turn that begins with `arrival` at `instream`, when the server has sent everything up
    /// to `outstream`: `None` if this turn goes on. `spoken` is what it had sent when the client's
    /// last byte before this came: only who speaks after having heard something new begins a turn.
    /// (The first segment of a request may be in doubt, for example because a later one overtook
    /// it; those that follow must not be taken for the beginning in its place.)
    pub(crate) fn next(
        self,
        arrival: &Arrival<'_>,
        (instream, outstream): (u64, u64),
        spoken: u64,
        record: &Instream,
        heads: &Heads,
    ) -> Option<Self> {
        let continues_the_record = !arrival.payload.is_empty()
            && record.ends_at(instream)
            && arrival.server_ack == arrival.seq;
        // What is far behind is not what the client was waiting for.
        let lately = heads.until(
            outstream,
            self.outstream.max(outstream.saturating_sub(LATELY)),
        );
        let answered = outstream > spoken
            && arrival.client_ack == arrival.server_nxt
            && is_answer(heads.at(self.outstream))
            && !ends_with_interim(lately);
        (continues_the_record && answered).then_some(Self {
            instream,
            outstream,
        })
    }
}
