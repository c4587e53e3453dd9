//! The bytes of one client.
//!
//! Everything from `chunks.base()` to `stable` is recorded, without a gap. Beyond `stable` are the ranges that arrived
//! ahead of missing bytes. When the gap closes, these ranges become stable at once, for the bytes are in place
//! already.
//!
//! On overlap the byte that was recorded first stays. A TCP receiver keeps the bytes in the queue, and the server may
//! have read acknowledged bytes already.

use crate::chunks::Chunks;
use crate::error::Unprotected;
use crate::pool::Budget;
use crate::position::FIRST_POSITION;
use crate::spans::{Ranges, first_part};
use crate::statistics::ByteCounts;
use crate::{index, len64};
use std::ops::Range;

/// The recorded instream of a connection.
#[derive(Debug)]
pub(crate) struct Instream {
    chunks: Chunks,
    stable: u64,
    ahead: Ranges,
    fin: Option<u64>,
}

impl Instream {
    pub(crate) const fn new() -> Self {
        Self::from(FIRST_POSITION)
    }

    /// A record that begins at this position.
    pub(crate) const fn from(start: u64) -> Self {
        Self {
            chunks: Chunks::new(start),
            stable: start,
            ahead: Ranges::EMPTY,
            fin: None,
        }
    }

    /// The first position that is kept.
    pub(crate) const fn start(&self) -> u64 {
        self.chunks.base()
    }

    /// The first position that holds no byte of the contiguous record.
    pub(crate) const fn data_end(&self) -> u64 {
        self.stable
    }

    /// The first position behind all recorded bytes, also beyond a gap.
    pub(crate) fn newest_end(&self) -> u64 {
        self.ahead.end().unwrap_or(self.stable)
    }

    /// The lowest position that is not in the record: as `data_end`, but a FIN takes a position too (RFC 9293, 3.4),
    /// and counts when everything before the FIN is recorded.
    pub(crate) fn stable(&self) -> u64 {
        self.stable + u64::from(self.fin == Some(self.stable))
    }

    /// The position of the client's FIN, if the FIN has arrived.
    pub(crate) const fn fin(&self) -> Option<u64> {
        self.fin
    }

    /// Whether a byte at `position` would be the next byte, with no known byte beyond.
    pub(crate) fn ends_at(&self, position: u64) -> bool {
        position == self.stable && self.ahead.is_empty() && self.fin.is_none()
    }

    /// Whether bytes or a FIN beyond a gap are known.
    pub(crate) fn has_hole(&self) -> bool {
        !self.ahead.is_empty() || self.fin.is_some_and(|fin| fin > self.stable)
    }

    /// The range beyond a gap around `position`.
    pub(crate) fn range_of(&self, position: u64) -> Option<Range<u64>> {
        let part = first_part(self.ahead.as_slice(), position, u64::MAX);
        part.known
            .then(|| self.ahead.as_slice()[part.index].clone())
    }

    /// Bytes beyond a gap.
    pub(crate) fn bytes_beyond_gap(&self) -> u64 {
        self.ahead.covered()
    }

    /// Records `payload`, which arrived at `position`.
    pub(crate) fn record(
        &mut self,
        position: u64,
        payload: &[u8],
        counts: &mut ByteCounts,
        budget: &mut Budget<'_>,
    ) -> Result<(), Unprotected> {
        let from = position.max(self.start());
        let end = position + len64(payload.len());
        let to = end.min(self.fin.unwrap_or(u64::MAX));
        if from >= to {
            counts.outside += len64(payload.len());
            return Ok(());
        }
        counts.outside += (from - position) + (end - to);
        let kept = &payload[index(from - position)..index(to - position)];

        let (known, rest) = kept.split_at(index(self.stable.saturating_sub(from)).min(kept.len()));
        self.compare(from, known, counts);
        if rest.is_empty() {
            return Ok(());
        }
        let from = to - len64(rest.len());
        self.fill(from, rest, counts, budget)?;
        if from == self.stable {
            self.stable = self.ahead.absorb(to, budget);
            Ok(())
        } else {
            self.ahead.insert(from..to, budget)
        }
    }

    /// Records the FIN of the client at `position`. Answers false if that contradicts the record.
    pub(crate) fn record_fin(&mut self, position: u64) -> bool {
        match self.fin {
            Some(fin) => fin == position,
            None if position < self.newest_end() => false,
            None => {
                self.fin = Some(position);
                true
            }
        }
    }

    /// The `length` bytes from `position` on, in order. All must be stable.
    pub(crate) fn slices(&self, position: u64, length: usize) -> impl Iterator<Item = &[u8]> {
        self.chunks.slices(position, length)
    }

    /// The first recorded bytes from `position` on, as far as they are contiguous in memory.
    pub(crate) fn recorded_from(&self, position: u64) -> Option<(u64, &[u8])> {
        let position = position.max(self.start());
        let range = if position < self.stable {
            position..self.stable
        } else {
            let ranges = self.ahead.as_slice();
            let next = ranges.get(first_part(ranges, position, u64::MAX).index)?;
            next.start.max(position)..next.end
        };
        let length = index(range.end - range.start);
        let bytes = self.slices(range.start, length).next()?;
        Some((range.start, bytes))
    }

    /// Drops the bytes before `position`, recorded or not; `position` is at most the position of the FIN. The bytes
    /// behind are moved: without memory for the move, the call changes no byte.
    pub(crate) fn drop_before(
        &mut self,
        position: u64,
        budget: &mut Budget<'_>,
    ) -> Result<(), Unprotected> {
        let stable = self.stable.max(position);
        let ahead = self.ahead.as_slice().iter();
        let ahead = ahead.map(|range| range.start.max(position)..range.end.max(position));
        let kept = std::iter::once(position..stable).chain(ahead);
        self.chunks.move_to(position, kept, budget)?;
        self.stable = self.ahead.absorb(stable, budget);
        Ok(())
    }

    /// Frees everything.
    pub(crate) fn clear(&mut self, budget: &mut Budget<'_>) {
        self.ahead.clear(budget);
        self.chunks.restart(self.stable, budget);
    }

    /// Writes the new bytes of `bytes`, which lie beyond `stable` and before a FIN.
    fn fill(
        &mut self,
        mut from: u64,
        mut bytes: &[u8],
        counts: &mut ByteCounts,
        budget: &mut Budget<'_>,
    ) -> Result<(), Unprotected> {
        let to = from + len64(bytes.len());
        while from < to {
            let part = first_part(self.ahead.as_slice(), from, to);
            let (now, later) = bytes.split_at(index(part.end - from));
            if part.known {
                self.compare(from, now, counts);
            } else {
                self.chunks.write(from, now, budget)?;
                counts.recorded += len64(now.len());
            }
            from = part.end;
            bytes = later;
        }
        Ok(())
    }

    fn compare(&self, position: u64, bytes: &[u8], counts: &mut ByteCounts) {
        counts.duplicate += len64(bytes.len());
        counts.conflicting += self.chunks.differing(position, bytes);
    }

    #[cfg(test)]
    pub(crate) fn really_held(&self) -> usize {
        self.chunks.really_held() + self.ahead.really_held()
    }
}
