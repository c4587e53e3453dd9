//! Hashes of a server's output.
//!
//! Of a long response only the head is recorded. A hash of the whole output so far tells whether a restarted server
//! has repeated the output, before the server gets a request; and likewise for a server on another host, before the
//! client receives more. This module does not compute hashes.
//!
//! A mark at a place where the client began to send is kept. Of the other marks below the client's acknowledgement,
//! the newest is enough. Marks beyond stay, because the client may have received that output by the time the host
//! stops.

use crate::error::Unprotected;
use crate::pool::Budget;
use wire::SeqNumber;

/// The hash of an outstream from `base` up to before `next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The first byte.
    pub base: SeqNumber,
    /// The byte after the last.
    pub next: SeqNumber,
    /// The hash.
    pub digest: [u64; 2],
}

/// The marks of a record, in order.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Twice the position, plus 1 where the client began to send.
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

    /// Adds the hash of the output before `at`, and whether the client began to send there. Returns whether the hash is
    /// new.
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

    /// The client did not send here, but later. The mark stays until the client has received the output of a newer
    /// mark: the output since may have no mark.
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

    /// The client has received the output before `heard`. A mark at `floor`, where the record begins, stays: without
    /// this mark the other marks cannot be compared with the output from there on.
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

    /// A replay no longer repeats the output before this position.
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
