//! Files that were not there any more, and that a replay has made again: the record knows them by the inodes that they
//! had then. It is of one host, as its files are.

use core::sync::atomic::{AtomicU64, Ordering};

/// Files at once that are remembered.
const MOST: usize = 256;

/// The replay that has made it has come to its end, and everything is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    /// It has.
    Yes,
    /// It has not yet.
    No,
    /// That replay ended before: another one makes the file anew.
    Never,
}

/// How the inode that a file has now is kept beside whether it is whole.
const SHIFT: u32 = 2;
const NOT_YET: u64 = 0;
const YES: u64 = 1;
const NEVER: u64 = 2;
const STATES: u64 = 3;

#[derive(Debug, Default)]
#[repr(C)]
struct File {
    /// Its inode as the record has it; 0: this place is free.
    then: AtomicU64,
    /// The one that it has now above [`SHIFT`] bits that say whether it is whole.
    now: AtomicU64,
}

/// The files.
#[derive(Debug)]
#[repr(C)]
pub struct RemadeFiles([File; MOST]);

impl Default for RemadeFiles {
    fn default() -> Self {
        Self(core::array::from_fn(|_| File::default()))
    }
}

impl RemadeFiles {
    /// This one is about to be written again. Where there is no room it is not remembered: another replay will not
    /// find it.
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
            file.now.store(now << SHIFT | NOT_YET, Ordering::Release);
        }
    }

    /// These are as they are to be.
    pub fn are_whole(&self, all: &[u64]) {
        for file in &self.0 {
            let now = file.now.load(Ordering::Acquire) >> SHIFT;
            if now != 0 && all.contains(&now) {
                file.now.store(now << SHIFT | YES, Ordering::Release);
            }
        }
    }

    /// Another replay is about to begin: what is not whole by now will never be.
    pub fn are_left(&self) {
        for file in &self.0 {
            let now = file.now.load(Ordering::Acquire);
            if now >> SHIFT != 0 && now & STATES == NOT_YET {
                file.now.store(now | NEVER, Ordering::Release);
            }
        }
    }

    /// Is the file that was that one then this one now?
    #[must_use]
    pub fn find(&self, then: u64, now: u64) -> Option<Whole> {
        let mut all = self.0.iter();
        let file = all.find(|file| then != 0 && file.then.load(Ordering::Acquire) == then)?;
        match file.now.load(Ordering::Acquire) {
            known if known >> SHIFT != now => None,
            known => match known & STATES {
                YES => Some(Whole::Yes),
                NEVER => Some(Whole::Never),
                _ => Some(Whole::No),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_made_again_is_known_and_whether_it_is_whole() {
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
    fn what_there_is_no_room_for_is_not_known() {
        let files = RemadeFiles::default();
        for number in 1..=MOST as u64 + 1 {
            files.begin(number, number + 1000);
        }
        assert_eq!(files.find(1, 1001), Some(Whole::No));
        let last = MOST as u64 + 1;
        assert_eq!(files.find(last, last + 1000), None);
    }
}
