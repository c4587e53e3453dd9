//! The first bytes of each response of the server.
//!
//! Heads are short (kilobytes) and far apart (a download lies between two of them), so each head is a separate vector
//! in a sorted table. Adjacent heads are joined. The byte that was recorded first stays: that byte was on the way to
//! the client.

use crate::error::Unprotected;
use crate::pool::Budget;
use crate::position::FIRST_POSITION;
use crate::spans::{Span, first_part};
use crate::statistics::{ByteCounts, differing};
use crate::{index, len64};

#[derive(Debug)]
struct Head {
    start: u64,
    bytes: Vec<u8>,
}

impl Span for Head {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.start + len64(self.bytes.len())
    }
}

/// The recorded parts of a connection's outstream.
#[derive(Debug)]
pub(crate) struct Heads {
    floor: u64,
    table: Vec<Head>,
}

impl Heads {
    pub(crate) const fn new() -> Self {
        Self::from(FIRST_POSITION)
    }

    /// Positions before `floor` are not recorded.
    pub(crate) const fn from(floor: u64) -> Self {
        Self {
            floor,
            table: Vec::new(),
        }
    }

    /// The first position that is kept.
    pub(crate) const fn start(&self) -> u64 {
        self.floor
    }

    /// The position and the bytes of each recorded part, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.table.iter().map(|head| (head.start, &*head.bytes))
    }

    /// The recorded bytes from `position` on without a gap; empty, if the byte at `position` is missing.
    pub(crate) fn at(&self, position: u64) -> &[u8] {
        let part = first_part(&self.table, position, u64::MAX);
        if part.known {
            let head = &self.table[part.index];
            &head.bytes[index(position - head.start)..]
        } else {
            &[]
        }
    }

    /// The recorded bytes before `position` without a gap, from `floor` on; empty, if the byte before `position` is
    /// missing.
    pub(crate) fn until(&self, position: u64, floor: u64) -> &[u8] {
        let before = self.table.partition_point(|head| head.start < position);
        let head = before.checked_sub(1).map(|i| &self.table[i]);
        let Some(head) = head.filter(|head| head.end() >= position && floor < position) else {
            return &[];
        };
        &head.bytes[index(floor.saturating_sub(head.start))..index(position - head.start)]
    }

    /// Records `payload`, which was sent at `position`.
    pub(crate) fn record(
        &mut self,
        position: u64,
        payload: &[u8],
        counts: &mut ByteCounts,
        budget: &mut Budget<'_>,
    ) -> Result<(), Unprotected> {
        let outside = index(self.floor.saturating_sub(position)).min(payload.len());
        counts.outside += len64(outside);
        let to = position + len64(payload.len());
        let (mut from, mut bytes) = (position + len64(outside), &payload[outside..]);
        while from < to {
            let part = first_part(&self.table, from, to);
            let (now, later) = bytes.split_at(index(part.end - from));
            if part.known {
                let head = &self.table[part.index];
                let known = &head.bytes[index(from - head.start)..][..now.len()];
                counts.duplicate += len64(now.len());
                counts.conflicting += differing(known, now);
            } else {
                self.insert(part.index, from, now, budget)?;
                counts.recorded += len64(now.len());
            }
            from = part.end;
            bytes = later;
        }
        Ok(())
    }

    /// Drops the bytes before `floor`.
    pub(crate) fn drop_before(&mut self, floor: u64, budget: &mut Budget<'_>) {
        self.floor = floor;
        let gone = self.table.partition_point(|head| head.end() <= floor);
        for head in self.table.drain(..gone) {
            budget.free(head.bytes);
        }
        if let Some(head) = self.table.first_mut().filter(|head| head.start < floor) {
            head.bytes.drain(..index(floor - head.start));
            head.start = floor;
        }
        if self.table.is_empty() {
            budget.free(std::mem::take(&mut self.table));
        }
    }

    /// Frees everything.
    pub(crate) fn clear(&mut self, budget: &mut Budget<'_>) {
        self.drop_before(u64::MAX, budget);
    }

    /// Puts `bytes` into the gap before the head `at`, and joins heads that touch.
    fn insert(
        &mut self,
        at: usize,
        start: u64,
        bytes: &[u8],
        budget: &mut Budget<'_>,
    ) -> Result<(), Unprotected> {
        let before = at.checked_sub(1).filter(|i| self.table[*i].end() == start);
        let at = match before {
            Some(before) => before,
            None => {
                budget.reserve(&mut self.table, 1)?;
                let bytes = Vec::new();
                self.table.insert(at, Head { start, bytes });
                at
            }
        };
        let head = &mut self.table[at].bytes;
        budget.reserve(head, bytes.len())?;
        head.extend_from_slice(bytes);
        self.join(at, budget)
    }

    /// Appends the head after `at` to the head `at`, if both touch.
    fn join(&mut self, at: usize, budget: &mut Budget<'_>) -> Result<(), Unprotected> {
        let end = self.table[at].end();
        let Some(next) = self.table.get_mut(at + 1).filter(|next| next.start == end) else {
            return Ok(());
        };
        let bytes = std::mem::take(&mut next.bytes);
        self.table.remove(at + 1);
        let head = &mut self.table[at].bytes;
        let reserved = budget.reserve(head, bytes.len());
        head.extend_from_slice(if reserved.is_ok() { &bytes } else { &[] });
        budget.free(bytes);
        reserved
    }

    #[cfg(test)]
    pub(crate) fn really_held(&self) -> usize {
        let bytes: usize = self.table.iter().map(|head| head.bytes.capacity()).sum();
        bytes + self.table.capacity() * size_of::<Head>()
    }
}

#[cfg(test)]
mod tests;
