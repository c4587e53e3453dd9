//! The places at which a client began to speak after having heard all output of the server.
//!
//! A restarted server must have repeated the output before a place when the server gets the input behind that place:
//! else the server would execute a request for a client that had received another response (`recovery::replay`). A
//! replay needs all places of a record, not the last request's alone. Interim responses count as responses here.

use crate::error::Unprotected;
use crate::pool::Budget;
use crate::position::seq_at;
use crate::request::Request;
use crate::summary::Position;
use wire::SeqNumber;

/// A position takes half the room as a sequence number of a connection with the initial number 0: no replay is longer
/// than half of the sequence space.
const ZERO: SeqNumber = SeqNumber(0);

/// The beginnings of a record, in order.
#[derive(Debug)]
pub(crate) struct Beginnings {
    table: Vec<Position>,
    /// The end of the output at the newest place, or at the beginning of the record.
    newest: u64,
}

impl Beginnings {
    /// No places, for a record that begins at `outstream`.
    pub(crate) const fn from(outstream: u64) -> Self {
        Self {
            table: Vec::new(),
            newest: outstream,
        }
    }

    /// The places, as if both initial sequence numbers were 0.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Position> {
        self.table.iter().copied()
    }

    /// The client sends at this place. The place counts if the client has received output since the place before. A
    /// place before with the same instream position is replaced, because the client sent no byte there. Returns the
    /// outstream position of a replaced place.
    pub(crate) fn push(
        &mut self,
        at: Request,
        budget: &mut Budget<'_>,
    ) -> Result<Option<u64>, Unprotected> {
        if at.outstream <= self.newest {
            return Ok(None);
        }
        let instream = seq_at(ZERO, at.instream);
        let same = self
            .table
            .last_mut()
            .filter(|last| last.instream == instream);
        if let Some(last) = same {
            last.outstream = seq_at(ZERO, at.outstream);
            return Ok(Some(std::mem::replace(&mut self.newest, at.outstream)));
        }
        budget.reserve(&mut self.table, 1)?;
        self.table.push(Position {
            instream,
            outstream: seq_at(ZERO, at.outstream),
        });
        self.newest = at.outstream;
        Ok(None)
    }

    /// Whether the client sent at a time when the output ended at `outstream`.
    pub(crate) fn has(&self, outstream: u64) -> bool {
        let wanted = seq_at(ZERO, outstream);
        // Newest first: mostly the newest place matches.
        let mut newest = self.table.iter().rev().map(|at| at.outstream);
        newest.find(|at| at.at_or_before(wanted)) == Some(wanted)
    }

    /// The input before `instream` has left the record.
    pub(crate) fn drop_before(&mut self, instream: u64, budget: &mut Budget<'_>) {
        let start = seq_at(ZERO, instream);
        let is_gone = |at: &&Position| at.instream.at_or_before(start);
        let gone = self.table.iter().take_while(is_gone).count();
        budget.drop_first(&mut self.table, gone);
    }

    /// Frees everything.
    pub(crate) fn clear(&mut self, budget: &mut Budget<'_>) {
        budget.free(std::mem::take(&mut self.table));
    }

    #[cfg(test)]
    pub(crate) fn really_held(&self) -> usize {
        self.table.capacity() * size_of::<Position>()
    }
}

#[cfg(test)]
mod tests;
