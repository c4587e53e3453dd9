//! Sorted lists of disjoint stretches of a stream.
//!
//! Two tables have this form: the ranges that arrived out of order, and the heads of the outstream. Both use
//! [`first_part`] to decide, stretch by stretch, which bytes of a segment are new.

use crate::error::Unprotected;
use crate::pool::Budget;
use std::ops::Range;

/// A connection with more gaps at a time is given up. A receive buffer of 6 MiB (the kernel's default bound) full of
/// 1448-byte segments, with every second segment lost, has about half as many gaps.
pub(crate) const MAX_RANGES: usize = 4096;

/// A stretch of a stream.
pub(crate) trait Span {
    /// The first position.
    fn start(&self) -> u64;
    /// The position after the last.
    fn end(&self) -> u64;
}

impl Span for Range<u64> {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.end
    }
}

/// The first part of a stretch: either all of the part is in the list, or no position of the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Whether the part is in the list.
    pub(crate) known: bool,
    /// The index of the span around the part, or the index for an insertion.
    pub(crate) index: usize,
    /// The position after the last.
    pub(crate) end: u64,
}

/// The first part of the stretch from `from` to `to`, which is not empty.
pub(crate) fn first_part<S: Span>(spans: &[S], from: u64, to: u64) -> Part {
    let index = spans.partition_point(|span| span.end() <= from);
    let (known, end) = match spans.get(index) {
        Some(span) if span.start() <= from => (true, span.end()),
        Some(span) => (false, span.start()),
        None => (false, to),
    };
    Part {
        known,
        index,
        end: end.min(to),
    }
}

/// The ranges that arrived beyond a gap: sorted ranges that neither overlap nor touch.
#[derive(Debug)]
pub(crate) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    pub(crate) const EMPTY: Self = Self(Vec::new());

    pub(crate) fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The position after the last that is known.
    pub(crate) fn end(&self) -> Option<u64> {
        self.0.last().map(|range| range.end)
    }

    /// How many positions are in the ranges.
    pub(crate) fn covered(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Adds `range`, which is not empty.
    pub(crate) fn insert(
        &mut self,
        range: Range<u64>,
        budget: &mut Budget<'_>,
    ) -> Result<(), Unprotected> {
        let from = self.0.partition_point(|known| known.end < range.start);
        let to = self.0.partition_point(|known| known.start <= range.end);
        if from == to {
            if self.0.len() == MAX_RANGES {
                return Err(Unprotected::Fragmented);
            }
            budget.reserve(&mut self.0, 1)?;
            self.0.insert(from, range);
        } else {
            let start = range.start.min(self.0[from].start);
            let end = range.end.max(self.0[to - 1].end);
            self.0[from] = start..end;
            self.0.drain(from + 1..to);
        }
        Ok(())
    }

    /// Removes the ranges that `stable` reaches or has passed, and returns the end of the contiguous bytes.
    pub(crate) fn absorb(&mut self, stable: u64, budget: &mut Budget<'_>) -> u64 {
        let reached = self.0.partition_point(|range| range.start <= stable);
        let end = self.0.drain(..reached).next_back().map_or(0, |r| r.end);
        if self.0.is_empty() {
            self.clear(budget);
        }
        stable.max(end)
    }

    /// Frees everything.
    pub(crate) fn clear(&mut self, budget: &mut Budget<'_>) {
        budget.free(std::mem::take(&mut self.0));
    }

    #[cfg(test)]
    pub(crate) fn really_held(&self) -> usize {
        self.0.capacity() * size_of::<Range<u64>>()
    }
}

#[cfg(test)]
mod tests;
