//! Bytes by position, in chunks.
//!
//! The chunks are laid out from `base` on: 256 bytes, then each time as much as all chunks before (256, 512, 1 KiB …)
//! up to the full size, 64 KiB. A short request therefore costs a few hundred bytes, and a long upload costs no
//! copying. The chunk of a position follows from arithmetic, without a search.
//!
//! Chunks exist where bytes were written. The table is sorted. Without gaps, the chunk with number `n` is the `n`-th
//! entry; only bytes beyond a gap need a search. A chunk is a vector with a fixed capacity that never reallocates: an
//! append needs no zeroed memory.

use crate::error::Unprotected;
use crate::pool::{Budget, FULL_CHUNK};
use crate::statistics::differing;
use crate::{index, len64};
use std::ops::Range;

/// Size of the first chunk, in bytes.
const FIRST_CHUNK: usize = 256;

/// Where a position lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Location {
    /// The number of the chunk.
    number: u64,
    /// The size of that chunk.
    size: usize,
    /// The offset in the chunk.
    within: usize,
}

impl Location {
    /// Where the byte lies that is `offset` bytes after the base.
    fn of(offset: u64) -> Self {
        let (first, full) = (len64(FIRST_CHUNK), len64(FULL_CHUNK));
        let doublings = u64::from(full.ilog2() - first.ilog2());
        let (number, size, start) = if offset >= full {
            (doublings + offset / full, full, offset - offset % full)
        } else if offset >= first {
            let power = offset.ilog2();
            let size = 1 << power;
            (u64::from(power - first.ilog2()) + 1, size, size)
        } else {
            (0, first, 0)
        };
        Self {
            number,
            size: index(size),
            within: index(offset - start),
        }
    }
}

#[derive(Debug)]
struct Chunk {
    number: u64,
    bytes: Vec<u8>,
}

impl Chunk {
    /// Writes `bytes`, which fit, at `within`. Skipped bytes read as zeros until a later write.
    fn put(&mut self, within: usize, bytes: &[u8]) {
        if self.bytes.len() < within {
            self.bytes.resize(within, 0);
        }
        let inside = bytes.len().min(self.bytes.len() - within);
        let (over, beyond) = bytes.split_at(inside);
        self.bytes[within..within + inside].copy_from_slice(over);
        self.bytes.extend_from_slice(beyond);
    }
}

/// Bytes by position. The caller knows which bytes were written.
#[derive(Debug)]
pub(crate) struct Chunks {
    base: u64,
    table: Vec<Chunk>,
}

impl Chunks {
    pub(crate) const fn new(base: u64) -> Self {
        Self {
            base,
            table: Vec::new(),
        }
    }

    /// The lowest position that can be written.
    pub(crate) const fn base(&self) -> u64 {
        self.base
    }

    /// Writes `bytes` at `position`, which is not below the base.
    pub(crate) fn write(
        &mut self,
        mut position: u64,
        mut bytes: &[u8],
        budget: &mut Budget<'_>,
    ) -> Result<(), Unprotected> {
        while !bytes.is_empty() {
            let location = Location::of(position - self.base);
            let room = location.size - location.within;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chunk(location, budget)?.put(location.within, now);
            position += len64(now.len());
            bytes = later;
        }
        Ok(())
    }

    /// The number of `bytes` that differ from the bytes written at `position`.
    pub(crate) fn differing(&self, position: u64, bytes: &[u8]) -> u64 {
        let mut rest = bytes;
        self.slices(position, bytes.len())
            .map(|written| {
                let (now, later) = rest.split_at(written.len());
                rest = later;
                differing(written, now)
            })
            .sum()
    }

    /// The `length` bytes from `position` on, all of which were written, in order.
    pub(crate) fn slices(&self, position: u64, length: usize) -> impl Iterator<Item = &[u8]> {
        let mut offset = position - self.base;
        let mut rest = length;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let Location {
                number,
                size,
                within,
            } = Location::of(offset);
            // Written bytes have a chunk: a number without a chunk would be a broken table.
            let chunk = &self.table[self.find(number).unwrap_or(usize::MAX)];
            let now = rest.min(size - within);
            offset += len64(now);
            rest -= now;
            Some(&chunk.bytes[within..within + now])
        })
    }

    /// Frees everything and begins anew at `base`.
    pub(crate) fn restart(&mut self, base: u64, budget: &mut Budget<'_>) {
        self.base = base;
        let mut table = std::mem::take(&mut self.table);
        for chunk in table.drain(..) {
            budget.give_back(chunk.bytes);
        }
        budget.free(table);
    }

    /// Restarts at `base` with the bytes of `kept` (all of them written, in order), and frees the rest. Without memory
    /// for both at a time, the call changes no byte.
    pub(crate) fn move_to(
        &mut self,
        base: u64,
        kept: impl Iterator<Item = Range<u64>>,
        budget: &mut Budget<'_>,
    ) -> Result<(), Unprotected> {
        let mut moved = Self::new(base);
        for Range { start, end } in kept {
            let mut position = start;
            for slice in self.slices(start, index(end.saturating_sub(start))) {
                if let Err(no_room) = moved.write(position, slice, budget) {
                    moved.restart(base, budget);
                    return Err(no_room);
                }
                position += len64(slice.len());
            }
        }
        self.restart(base, budget);
        *self = moved;
        Ok(())
    }

    /// The chunk at `location`, made if missing.
    fn chunk(
        &mut self,
        location: Location,
        budget: &mut Budget<'_>,
    ) -> Result<&mut Chunk, Unprotected> {
        let at = match self.find(location.number) {
            Ok(at) => at,
            Err(at) => {
                budget.reserve(&mut self.table, 1)?;
                let bytes = budget.chunk(location.size)?;
                let number = location.number;
                self.table.insert(at, Chunk { number, bytes });
                at
            }
        };
        Ok(&mut self.table[at])
    }

    /// The index of the chunk with this number, or the index for an insertion.
    fn find(&self, number: u64) -> Result<usize, usize> {
        let direct = index(number);
        match self.table.get(direct) {
            Some(chunk) if chunk.number == number => Ok(direct),
            _ => self.table.binary_search_by_key(&number, |c| c.number),
        }
    }

    #[cfg(test)]
    pub(crate) fn really_held(&self) -> usize {
        let bytes: usize = self.table.iter().map(|c| c.bytes.capacity()).sum();
        bytes + self.table.capacity() * size_of::<Chunk>()
    }
}

#[cfg(test)]
mod tests;
