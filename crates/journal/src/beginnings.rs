//! Where a client began to speak, each time after it had heard all that its server had said.
//!
//! A restarted server must have said again what a client had heard before it is given what the client
//! said to that: else a request would be executed for a client to which something else was said
//! (`recovery::replay`). That needs all beginnings of a record, and not only the last turn's; and
//! whether the server's answer was an interim one does not matter.

use crate::error::Unprotected;
use crate::pool::Budget;
use crate::position::seq_at;
use crate::summary::Place;
use crate::turn::Turn;
use wire::SeqNumber;

/// Positions take half as much room as the numbers of a connection whose initial ones are 0: no replay is longer than
/// half of the sequence space.
const ZERO: SeqNumber = SeqNumber(0);

/// The beginnings in one record, in order.
#[derive(Debug)]
pub(crate) struct Beginnings {
    table: Vec<Place>,
    /// What the server had said at the newest one, or where the record begins.
    newest: u64,
}

impl Beginnings {
    /// None yet, of a record that begins where the server is at `outstream`.
    pub(crate) const fn from(outstream: u64) -> Self {
        Self {
            table: Vec::new(),
            newest: outstream,
        }
    }

    /// Each as if both initial sequence numbers were 0.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Place> {
        self.table.iter().copied()
    }

    /// The client speaks, and has heard something since it last began to.
    pub(crate) fn push(&mut self, at: Turn, budget: &mut Budget<'_>) -> Result<(), Unprotected> {
        if at.outstream <= self.newest {
            return Ok(());
        }
        budget.reserve(&mut self.table, 1)?;
        self.table.push(Place {
            instream: seq_at(ZERO, at.instream),
            outstream: seq_at(ZERO, at.outstream),
        });
        self.newest = at.outstream;
        Ok(())
    }

    /// What the client said before `instream` is not in the record any more.
    pub(crate) fn drop_before(&mut self, instream: u64, budget: &mut Budget<'_>) {
        let start = seq_at(ZERO, instream);
        let is_gone = |at: &&Place| at.instream.at_or_before(start);
        let gone = self.table.iter().take_while(is_gone).count();
        self.table.drain(..gone);
        if self.table.is_empty() {
            budget.free(std::mem::take(&mut self.table));
        }
    }

    /// Frees everything.
    pub(crate) fn clear(&mut self, budget: &mut Budget<'_>) {
        budget.free(std::mem::take(&mut self.table));
    }

    #[cfg(test)]
    pub(crate) fn really_held(&self) -> usize {
        self.table.capacity() * size_of::<Place>()
    }
}

#[cfg(test)]
mod tests;
