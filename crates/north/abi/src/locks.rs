//! Locks of a process on parts of files (fcntl(2), flock(2)).

/// Owner of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The process (`F_SETLK`): the lock ends when the process closes the file by any descriptor.
    Process,
    /// The open file description (`F_OFD_SETLK`): all processes with this open file have the lock.
    OpenFile,
    /// The open file description, for the whole file (`flock`).
    Whole,
}

/// Kind of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Excludes exclusive locks of other owners.
    Shared,
    /// Excludes all locks of other owners.
    Exclusive,
}

/// A locked part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// Device and inode, or other numbers that identify the file.
    pub file: [u64; 2],
    /// Descriptor of the lock call.
    pub fd: i32,
    /// Owner of the lock.
    pub owner: Owner,
    /// First byte.
    pub start: i64,
    /// End of the part, exclusive; `i64::MAX`: no end.
    pub end: i64,
    /// Kind of the lock.
    pub how: How,
}

/// Size of an encoded lock range, bytes.
pub const LOCK_RANGE_BYTES: usize = 16;
/// Payload of the determinant after a failed unlock.
pub const UNLOCK_FAILED_PAYLOAD: &[u8] = &[1];
/// Payload of an implicit unlock: by close(2), or by a conversion of the lock.
pub const IMPLICIT_UNLOCK_PAYLOAD: &[u8] = &[2];

impl Lock {
    const NONE: Self = Self {
        file: [0; 2],
        fd: -1,
        owner: Owner::Process,
        start: 0,
        end: 0,
        how: How::Shared,
    };

    /// The range for a record: empty for the whole file.
    #[must_use]
    pub fn payload<'a>(&self, room: &'a mut [u8; LOCK_RANGE_BYTES]) -> &'a [u8] {
        if (self.start, self.end) == (0, i64::MAX) {
            return &[];
        }
        room[..LOCK_RANGE_BYTES / 2].copy_from_slice(&self.start.to_le_bytes());
        room[LOCK_RANGE_BYTES / 2..].copy_from_slice(&self.end.to_le_bytes());
        room
    }

    /// The same lock with the range of a record ([`Self::payload`]).
    #[must_use]
    pub fn placed(&self, payload: &[u8]) -> Self {
        let number = |at: usize| {
            let bytes = payload
                .get(at..at + LOCK_RANGE_BYTES / 2)?
                .try_into()
                .ok()?;
            Some(i64::from_le_bytes(bytes))
        };
        let (start, end) = match (number(0), number(LOCK_RANGE_BYTES / 2)) {
            (Some(start), Some(end)) => (start, end),
            _ => (0, i64::MAX),
        };
        Self {
            start,
            end,
            ..*self
        }
    }

    /// The parts of the lock before and after a range.
    fn without(&self, start: i64, end: i64) -> [Self; 2] {
        let before = Self {
            end: self.end.min(start),
            ..*self
        };
        let behind = Self {
            start: self.start.max(end),
            ..*self
        };
        [before, behind]
    }
}

/// Locks. No two locks of one owner overlap.
#[derive(Debug)]
pub struct Locks<const MOST: usize> {
    all: [Lock; MOST],
    count: usize,
}

impl<const MOST: usize> Default for Locks<MOST> {
    fn default() -> Self {
        Self {
            all: [Lock::NONE; MOST],
            count: 0,
        }
    }
}

impl<const MOST: usize> Locks<MOST> {
    /// All locks.
    #[must_use]
    pub fn all(&self) -> &[Lock] {
        &self.all[..self.count]
    }

    /// Locks or unlocks the range of `lock`, in place of the locks that overlap and of which `is_its_owner` is true.
    /// `false`: the table was full, and is no longer correct.
    #[must_use]
    pub fn set(
        &mut self,
        lock: &Lock,
        is_locked: bool,
        is_its_owner: impl Fn(&Lock) -> bool,
    ) -> bool {
        let mut place = 0;
        let mut has_room = true;
        while let Some(known) = self.all().get(place).copied() {
            let is_apart = known.end <= lock.start || lock.end <= known.start;
            if is_apart || !is_its_owner(&known) {
                place += 1;
                continue;
            }
            self.count -= 1;
            self.all.swap(place, self.count);
            // The remaining parts do not overlap `lock`, so the loop may meet them again.
            for rest in known.without(lock.start, lock.end) {
                has_room &= self.add(rest);
            }
        }
        if is_locked {
            has_room &= self.add(*lock);
        }
        has_room
    }

    fn add(&mut self, lock: Lock) -> bool {
        if lock.start >= lock.end {
            return true;
        }
        let place = self.all.get_mut(self.count);
        let has_room = place.map(|place| *place = lock).is_some();
        self.count += usize::from(has_room);
        has_room
    }

    /// Keeps the locks for which `is_kept` is true. `is_kept` may change the descriptor.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&mut Lock) -> bool) {
        let mut place = 0;
        while place < self.count {
            if is_kept(&mut self.all[place]) {
                place += 1;
            } else {
                self.count -= 1;
                self.all.swap(place, self.count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    const BYTES: i64 = 12;

    fn lock() -> impl Strategy<Value = (Lock, bool)> {
        let parts = (0..2u64, 0..BYTES, 1..=BYTES);
        (parts, any::<bool>(), any::<bool>()).prop_map(|((file, start, length), shared, is)| {
            let how = if shared { How::Shared } else { How::Exclusive };
            let lock = Lock {
                file: [file, 0],
                fd: 3,
                owner: Owner::Process,
                start,
                end: (start + length).min(BYTES),
                how,
            };
            (lock, is)
        })
    }

    proptest! {
        /// The locks agree with a model that has one lock for each byte.
        #[test]
        fn last_lock_of_each_byte_counts(asked in prop::collection::vec(lock(), 0..40)) {
            let mut locks = Locks::<64>::default();
            let mut bytes = BTreeMap::new();
            for (lock, is_locked) in asked {
                let has_room = locks.set(&lock, is_locked, |known| known.file == lock.file);
                prop_assert!(has_room);
                for byte in lock.start..lock.end {
                    bytes.remove(&(lock.file, byte));
                    if is_locked {
                        bytes.insert((lock.file, byte), lock.how);
                    }
                }
                let mut found = BTreeMap::new();
                for known in locks.all() {
                    for byte in known.start..known.end {
                        let other = found.insert((known.file, byte), known.how);
                        prop_assert_eq!(other, None, "twice");
                    }
                }
                prop_assert_eq!(found, bytes.clone());
            }
        }
    }

    #[test]
    fn lock_payload_has_range() {
        let parts = [(0, i64::MAX), (0, 1), (7, i64::MAX), (i64::MIN, 3)];
        for (start, end) in parts {
            let lock = Lock {
                start,
                end,
                ..Lock::NONE
            };
            let mut room = [0; LOCK_RANGE_BYTES];
            let payload = lock.payload(&mut room);
            assert_eq!(payload.is_empty(), (start, end) == (0, i64::MAX));
            assert_eq!(Lock::NONE.placed(payload), lock);
        }
    }

    /// A full table is reported.
    #[test]
    fn full_lock_table_refuses_lock() {
        let mut locks = Locks::<2>::default();
        let lock = |start, end| Lock {
            start,
            end,
            ..Lock::NONE
        };
        assert!(locks.set(&lock(0, 9), true, |_| true));
        assert!(locks.set(&lock(3, 6), false, |_| true), "two");
        assert!(!locks.set(&lock(3, 6), true, |_| true), "three");
        assert!(!locks.set(&lock(1, 2), false, |_| true), "three");
    }

    #[test]
    fn retained_locks_keep_changes() {
        let mut locks = Locks::<4>::default();
        for fd in 0..4 {
            let lock = Lock {
                fd,
                end: 1,
                ..Lock::NONE
            };
            assert!(locks.set(&lock, true, |known| known.fd == fd));
        }
        locks.retain(|lock| {
            lock.fd += 10;
            lock.fd % 2 == 0
        });
        let mut left: Vec<i32> = locks.all().iter().map(|lock| lock.fd).collect();
        left.sort_unstable();
        assert_eq!(left, [10, 12]);
    }
}
