//! Digests of what a server had said.
//!
//! Of a long answer only the head is recorded. A digest of all that was said by then tells whether a restarted server has
//! said the same again, before a request is given to it. Who takes digests, and how, is of no interest here.

use crate::error::Unprotected;
use crate::pool::Budget;
use wire::SeqNumber;

/// The digest of an outstream from `base` up to before `next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The first byte.
    pub base: SeqNumber,
    /// The byte after the last.
    pub next: SeqNumber,
    /// The digest.
    pub digest: [u64; 2],
}

/// The marks in one record, in order.
#[derive(Debug)]
pub(crate) struct Marks {
    table: Vec<(u64, Mark)>,
}

impl Marks {
    pub(crate) const NONE: Self = Self { table: Vec::new() };

    pub(crate) fn iter(&self) -> impl Iterator<Item = Mark> {
        self.table.iter().map(|(_, mark)| *mark)
    }

    /// All that lies before `position` had this digest. Answers whether that is new.
    pub(crate) fn push(
        &mut self,
        position: u64,
        mark: Mark,
        budget: &mut Budget<'_>,
    ) -> Result<bool, Unprotected> {
        match self.table.binary_search_by_key(&position, |(at, _)| *at) {
            Ok(known) => {
                let known = &mut self.table[known].1;
                Ok(std::mem::replace(known, mark) != mark)
            }
            Err(place) => {
                budget.reserve(&mut self.table, 1)?;
                self.table.insert(place, (position, mark));
                Ok(true)
            }
        }
    }

    /// What the server said before this position is not said again any more.
    pub(crate) fn drop_before(&mut self, position: u64, budget: &mut Budget<'_>) {
        let gone = self.table.partition_point(|(at, _)| *at < position);
        budget.drop_first(&mut self.table, gone);
    }

    /// Frees everything.
    pub(crate) fn clear(&mut self, budget: &mut Budget<'_>) {
        budget.free(std::mem::take(&mut self.table));
    }

    #[cfg(test)]
    pub(crate) fn really_held(&self) -> usize {
        self.table.capacity() * size_of::<(u64, Mark)>()
    }
}

#[cfg(test)]
mod tests;
