//! Digests of what a server had said.
//!
//! Of a long answer only the head is recorded. A digest of all that was said by then tells whether a restarted server
//! has said the same again, before a request is given to it; and a server on another host, before its client hears
//! more. Who takes digests, and how, is of no interest here.
//!
//! Where the client began to speak a mark is kept. Of others the newest is enough that the client has heard; what it
//! has not heard yet it may have heard when its host stops.

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
    /// Twice the position, and one more where the client began to speak.
    table: Vec<(u64, Mark)>,
}

const fn position(key: u64) -> u64 {
    key >> 1
}

const fn is_kept(key: u64) -> bool {
    key & 1 == 1
}

impl Marks {
    pub(crate) const NONE: Self = Self { table: Vec::new() };

    pub(crate) fn iter(&self) -> impl Iterator<Item = Mark> {
        self.table.iter().map(|(_, mark)| *mark)
    }

    fn find(&self, at: u64) -> Result<usize, usize> {
        self.table
            .binary_search_by_key(&at, |(key, _)| position(*key))
    }

    /// All that lies before `at` had this digest, and the client began to speak there, or did not. Answers whether that
    /// is new.
    pub(crate) fn push(
        &mut self,
        (at, is_beginning): (u64, bool),
        mark: Mark,
        budget: &mut Budget<'_>,
    ) -> Result<bool, Unprotected> {
        let key = at << 1 | u64::from(is_beginning);
        match self.find(at) {
            Ok(known) => {
                let (before, known) = &mut self.table[known];
                *before |= key;
                Ok(std::mem::replace(known, mark) != mark)
            }
            Err(place) => {
                budget.reserve(&mut self.table, 1)?;
                self.table.insert(place, (key, mark));
                Ok(true)
            }
        }
    }

    /// The client did not speak here, but later. The mark stays until the client has heard what a newer mark is of: of
    /// what was said since there may be no mark.
    pub(crate) fn forget(&mut self, at: u64) {
        if let Ok(place) = self.find(at) {
            self.table[place].0 &= !1;
        }
    }

    /// The client begins to speak here.
    pub(crate) fn keep(&mut self, at: u64) {
        if let Ok(place) = self.find(at) {
            self.table[place].0 |= 1;
        }
    }

    /// The client has heard what lies before `heard`. A mark at `floor`, where the record begins, stays: without this
    /// mark the other marks cannot be compared with what is said from there on.
    pub(crate) fn on_ack(&mut self, heard: u64, floor: u64, budget: &mut Budget<'_>) {
        let passed = self
            .table
            .partition_point(|(key, _)| position(*key) <= heard);
        if let Some(newest) = passed.checked_sub(1).map(|newest| self.table[newest].0) {
            let is_needed = |key: u64| is_kept(key) || key >= newest || position(key) == floor;
            self.table.retain(|(key, _)| is_needed(*key));
            budget.shrink(&mut self.table);
        }
    }

    /// What the server said before this position is not said again any more.
    pub(crate) fn drop_before(&mut self, at: u64, budget: &mut Budget<'_>) {
        let gone = self.table.partition_point(|(key, _)| position(*key) < at);
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
