//! Turns: where a client begins to speak after it has heard a whole answer.
//!
//! A server that keeps nothing between turns can be rebuilt from the last turn alone, so a new one
//! may be believed in only when the previous one is over beyond doubt. Every doubt (a hole, an
//! acknowledgement that is missing, an answer that was not recorded) keeps the turn as it is: the
//! record is then longer than it needs to be, and still right.

use crate::heads::Heads;
use crate::instream::Instream;
use crate::position::FIRST;
use crate::record::Arrival;

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
        let answered = outstream > spoken
            && arrival.client_ack == arrival.server_nxt
            && is_final(heads.at(self.outstream));
        (continues_the_record && answered).then_some(Self {
            instream,
            outstream,
        })
    }
}

/// Whether `answer` is one: it is known how it begins, and not as an interim response of HTTP/1.x
/// (RFC 9112, 4 and RFC 9110, 15.2), which precedes the answer. What is too short to tell is taken
/// for the beginning of an interim response.
fn is_final(answer: &[u8]) -> bool {
    // `None` is any character: the minor version.
    const INTERIM: [Option<u8>; 10] = [
        Some(b'H'),
        Some(b'T'),
        Some(b'T'),
        Some(b'P'),
        Some(b'/'),
        Some(b'1'),
        Some(b'.'),
        None,
        Some(b' '),
        Some(b'1'),
    ];
    let differs = |(byte, expected): (&u8, &Option<u8>)| expected.is_some_and(|e| e != *byte);
    answer.iter().zip(&INTERIM).any(differs)
}

#[cfg(test)]
mod tests;
