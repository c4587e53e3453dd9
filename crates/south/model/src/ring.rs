//! Two bounded containers of the kernel: the ring buffer, which refuses a record without space, and
//! the hash map that evicts the least recently used entry.

use std::collections::{BTreeMap, VecDeque};

/// Header that the kernel puts before each record of a ring.
const RECORD_HEADER: usize = 8;

/// Records on the way to user space. Space is accounted as in a BPF ring buffer: each record has a
/// header and is rounded up to 8 bytes, and one byte of the ring always stays free.
#[derive(Debug, Clone)]
pub(crate) struct Ring<T> {
    records: VecDeque<(usize, T)>,
    used: usize,
    capacity: usize,
}

impl<T> Ring<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            records: VecDeque::new(),
            used: 0,
            capacity,
        }
    }

    /// Whether there is room for a record of `size` bytes.
    pub(crate) fn has_room(&self, size: usize) -> bool {
        self.used + room_for(size) < self.capacity
    }

    /// Appends a record of `size` bytes. False: there is no space, and the ring is unchanged.
    pub(crate) fn push(&mut self, size: usize, record: T) -> bool {
        let room = self.has_room(size);
        if room {
            self.used += room_for(size);
            self.records.push_back((room_for(size), record));
        }
        room
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let (size, record) = self.records.pop_front()?;
        self.used -= size;
        Some(record)
    }
}

fn room_for(size: usize) -> usize {
    (size + RECORD_HEADER).next_multiple_of(8)
}

/// A map of at most `capacity` entries; the least recently used entry is evicted.
#[derive(Debug, Clone)]
pub(crate) struct LruMap<K, V> {
    entries: BTreeMap<K, (u64, V)>,
    by_use: BTreeMap<u64, K>,
    uses: u64,
    capacity: usize,
}

impl<K: Ord + Copy, V> LruMap<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            capacity,
        }
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.remove(&key);
        if self.entries.len() >= self.capacity
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
        if self.capacity > 0 {
            self.uses += 1;
            self.by_use.insert(self.uses, key);
            self.entries.insert(key, (self.uses, value));
        }
    }

    /// Look up, which is a use.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (used, value) = self.entries.get_mut(key)?;
        self.uses += 1;
        self.by_use.remove(used);
        self.by_use.insert(self.uses, *key);
        *used = self.uses;
        Some(value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let (used, value) = self.entries.remove(key)?;
        self.by_use.remove(&used);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All entries by key, which is no use.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let entries = self.entries.iter_mut();
        entries.map(|(key, (_, value))| (key, value))
    }
}

#[cfg(test)]
mod tests;
