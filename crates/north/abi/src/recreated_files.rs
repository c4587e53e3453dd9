//! Files that a replay has recreated. The record has the inodes of the files before. Records and files are of one
//! host.

use core::sync::atomic::{AtomicU64, Ordering};

/// Recreated files at once.
const RECREATED_FILES_MAX: usize = 256;

/// Whether the replay that recreated a file has completed the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    /// Complete.
    Yes,
    /// Not yet complete.
    No,
    /// The replay ended before; another replay recreates the file.
    Never,
}

/// The present inode is stored above the state bits.
const INODE_SHIFT: u32 = 2;
const STATE_INCOMPLETE: u64 = 0;
const STATE_COMPLETE: u64 = 1;
const STATE_ABANDONED: u64 = 2;
const STATE_MASK: u64 = 3;

#[derive(Debug, Default)]
#[repr(C)]
struct File {
    /// Inode in the record; 0: this place is free.
    then: AtomicU64,
    /// Present inode above [`INODE_SHIFT`] bits of state.
    now: AtomicU64,
}

/// Recreated files of a host.
#[derive(Debug)]
#[repr(C)]
pub struct RemadeFiles([File; RECREATED_FILES_MAX]);

impl Default for RemadeFiles {
    fn default() -> Self {
        Self(core::array::from_fn(|_| File::default()))
    }
}

impl RemadeFiles {
    /// A file is about to be recreated. A file beyond the limit is not remembered, and a later replay does not find it.
    pub fn begin(&self, then: u64, now: u64) {
        let place = self.0.iter().find(|file| {
            let known = file.then.load(Ordering::Relaxed);
            known == then
                || known == 0
                    && file
                        .then
                        .compare_exchange(0, then, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
        });
        if let Some(file) = place {
            file.now
                .store(now << INODE_SHIFT | STATE_INCOMPLETE, Ordering::Release);
        }
    }

    /// These files are complete.
    pub fn are_whole(&self, all: &[u64]) {
        for file in &self.0 {
            let now = file.now.load(Ordering::Acquire) >> INODE_SHIFT;
            if now != 0 && all.contains(&now) {
                file.now
                    .store(now << INODE_SHIFT | STATE_COMPLETE, Ordering::Release);
            }
        }
    }

    /// Before another replay: incomplete files are abandoned.
    pub fn are_left(&self) {
        for file in &self.0 {
            let now = file.now.load(Ordering::Acquire);
            if now >> INODE_SHIFT != 0 && now & STATE_MASK == STATE_INCOMPLETE {
                file.now.store(now | STATE_ABANDONED, Ordering::Release);
            }
        }
    }

    /// State of the file with inode `then` in the record, if its inode is `now`.
    #[must_use]
    pub fn find(&self, then: u64, now: u64) -> Option<Whole> {
        let mut all = self.0.iter();
        let file = all.find(|file| then != 0 && file.then.load(Ordering::Acquire) == then)?;
        match file.now.load(Ordering::Acquire) {
            known if known >> INODE_SHIFT != now => None,
            known => match known & STATE_MASK {
                STATE_COMPLETE => Some(Whole::Yes),
                STATE_ABANDONED => Some(Whole::Never),
                _ => Some(Whole::No),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recreated_file_is_found_with_state() {
        let files = RemadeFiles::default();
        assert_eq!(files.find(0, 0), None);
        files.begin(7, 70);
        files.begin(8, 80);
        assert_eq!(files.find(7, 70), Some(Whole::No));
        assert_eq!(files.find(7, 80), None);
        files.are_whole(&[70]);
        assert_eq!(files.find(7, 70), Some(Whole::Yes));
        assert_eq!(files.find(8, 80), Some(Whole::No));
        files.are_left();
        assert_eq!(files.find(7, 70), Some(Whole::Yes));
        assert_eq!(files.find(8, 80), Some(Whole::Never));
        files.begin(7, 71);
        assert_eq!(
            (files.find(7, 70), files.find(7, 71)),
            (None, Some(Whole::No))
        );
    }

    #[test]
    fn file_beyond_limit_is_unknown() {
        let files = RemadeFiles::default();
        for number in 1..=RECREATED_FILES_MAX as u64 + 1 {
            files.begin(number, number + 1000);
        }
        assert_eq!(files.find(1, 1001), Some(Whole::No));
        let last = RECREATED_FILES_MAX as u64 + 1;
        assert_eq!(files.find(last, last + 1000), None);
    }
}
