//! Memory, and the accounts of memory.
//!
//! Every growing part of a record (chunks, heads, both tables) is charged here before the allocation, at the real
//! capacity. The other memory of a connection has a fixed size, and is bounded by the number of connections.
//!
//! Full-size chunks that are given back wait in a free list for the next connection. Without the list, a busy service
//! would ask the allocator, and so the kernel, for the same pages again and again; and a page that the kernel must
//! clear costs more than the copy into the page. The list yields at the total limit: memory in use and the free list
//! together never exceed the limit. Chunks that no connection has needed for a while are freed, half at a time
//! ([`Pool::trim`]).

use crate::error::Unprotected;
use crate::len64;

/// Size of a full chunk, in bytes.
pub(crate) const FULL_CHUNK: usize = 64 * 1024;

/// A table shrinks when the capacity exceeds this multiple of the length.
const SHRINK_ABOVE_RATIO: usize = 8;

/// The most chunks freed at a time: the kernel needs a while for each.
const TRIM_AT_MOST: usize = 1024;

/// All memory of a journal.
#[derive(Debug)]
pub(crate) struct Pool {
    total: u64,
    in_use: u64,
    free: Vec<Vec<u8>>,
    /// The shortest length of the free list since the last trim: the number of chunks that were not needed.
    spare: usize,
}

impl Pool {
    pub(crate) const fn new(total: u64) -> Self {
        Self {
            total,
            in_use: 0,
            free: Vec::new(),
            spare: 0,
        }
    }

    /// Limits the memory from now on. Memory in use stays, even above the limit.
    pub(crate) fn set_total(&mut self, total: u64) {
        self.total = total;
        self.shrink();
    }

    /// Bytes held by connections.
    pub(crate) const fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Bytes held by the free list.
    pub(crate) const fn idle(&self) -> u64 {
        len64(self.free.len() * FULL_CHUNK)
    }

    /// Frees half of the chunks that were not needed since the last call, [`TRIM_AT_MOST`] at most.
    pub(crate) fn trim(&mut self) {
        let kept = self.free.len() - self.spare.div_ceil(2).min(TRIM_AT_MOST);
        self.free.truncate(kept);
        self.spare = kept;
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let chunk = self.free.pop();
        self.spare = self.spare.min(self.free.len());
        chunk
    }

    fn charge(&mut self, bytes: u64) -> Result<(), Unprotected> {
        self.in_use = self
            .in_use
            .checked_add(bytes)
            .filter(|after| *after <= self.total)
            .ok_or(Unprotected::TotalLimit)?;
        self.shrink();
        Ok(())
    }

    /// The free list must not exceed the rest of the limit.
    fn shrink(&mut self) {
        while self.idle() > self.total.saturating_sub(self.in_use) && self.take().is_some() {}
    }

    fn recycle(&mut self, mut chunk: Vec<u8>) {
        let idle = self.idle() + len64(FULL_CHUNK);
        if chunk.capacity() == FULL_CHUNK && idle <= self.total.saturating_sub(self.in_use) {
            chunk.clear();
            self.free.push(chunk);
        }
    }
}

/// The part of the pool that a connection may take.
#[derive(Debug)]
pub(crate) struct Budget<'a> {
    pub(crate) pool: &'a mut Pool,
    /// Bytes that the connection holds.
    pub(crate) held: &'a mut u64,
    /// Bytes that the connection may hold.
    pub(crate) limit: u64,
}

impl Budget<'_> {
    /// An empty vector with room for `size` bytes.
    pub(crate) fn chunk(&mut self, size: usize) -> Result<Vec<u8>, Unprotected> {
        self.charge(len64(size))?;
        let recycled = if size == FULL_CHUNK {
            self.pool.take()
        } else {
            None
        };
        Ok(recycled.unwrap_or_else(|| Vec::with_capacity(size)))
    }

    /// Makes room for `additional` elements: exactly that at first, then by doubling.
    pub(crate) fn reserve<T>(
        &mut self,
        vector: &mut Vec<T>,
        additional: usize,
    ) -> Result<(), Unprotected> {
        let needed = vector.len() + additional;
        if needed <= vector.capacity() {
            return Ok(());
        }
        let capacity = needed.max(2 * vector.capacity());
        self.charge(Self::size_of::<T>(capacity - vector.capacity()))?;
        vector.reserve_exact(capacity - vector.len());
        Ok(())
    }

    /// Takes a chunk back.
    pub(crate) fn give_back(&mut self, chunk: Vec<u8>) {
        self.discharge(len64(chunk.capacity()));
        self.pool.recycle(chunk);
    }

    /// Takes the first `count` elements out of a table, and frees the table when none is left.
    pub(crate) fn drop_first<T>(&mut self, table: &mut Vec<T>, count: usize) {
        table.drain(..count);
        if table.is_empty() {
            self.free(std::mem::take(table));
        }
    }

    /// Gives back the room of a table that has become much too large.
    pub(crate) fn shrink<T>(&mut self, table: &mut Vec<T>) {
        let before = table.capacity();
        if before > SHRINK_ABOVE_RATIO * table.len() {
            table.shrink_to(2 * table.len());
            self.discharge(Self::size_of::<T>(before - table.capacity()));
        }
    }

    /// Frees a table.
    pub(crate) fn free<T>(&mut self, table: Vec<T>) {
        self.discharge(Self::size_of::<T>(table.capacity()));
    }

    const fn size_of<T>(elements: usize) -> u64 {
        len64(elements * size_of::<T>())
    }

    fn charge(&mut self, bytes: u64) -> Result<(), Unprotected> {
        let after = self
            .held
            .checked_add(bytes)
            .filter(|after| *after <= self.limit)
            .ok_or(Unprotected::ConnectionLimit)?;
        self.pool.charge(bytes)?;
        *self.held = after;
        Ok(())
    }

    fn discharge(&mut self, bytes: u64) {
        *self.held -= bytes;
        self.pool.in_use -= bytes;
    }
}

#[cfg(test)]
mod tests;
