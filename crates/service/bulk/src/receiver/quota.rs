//! Most bytes of all files below a receiver's directory, unfinished files with them.

use std::sync::{Mutex, MutexGuard};

use protocol::bulk::Reason;

use crate::{
    directory::{Directory, Rejection},
    locks::locked,
};

/// The bytes that files have, or get.
#[derive(Debug)]
pub(super) struct Quota {
    /// `None`: as many as there is space.
    most: Option<u64>,
    bytes: Mutex<Bytes>,
}

#[derive(Debug, Default)]
struct Bytes {
    used: u64,
    /// Of these, bytes that files are about to get: no count of the files finds them.
    pending: u64,
    counts: u64,
}

/// A moment: how often the files were counted before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment(u64);

impl Quota {
    pub(super) fn new(most: Option<u64>, directory: &Directory) -> Self {
        let used = match most {
            Some(_) => directory.used_bytes(),
            None => 0,
        };
        Self {
            most,
            bytes: Mutex::new(Bytes {
                used,
                ..Bytes::default()
            }),
        }
    }

    /// Files get so many bytes more by `write`. After a failure the bytes count until the files are counted anew: some
    /// may have been written.
    pub(super) fn grow<T>(
        &self,
        bytes: u64,
        directory: &Directory,
        write: impl FnOnce() -> Result<T, Rejection>,
    ) -> Result<T, Rejection> {
        self.take(bytes, directory)?;
        let written = write();
        let mut all = self.lock();
        all.pending = all.pending.saturating_sub(bytes);
        written
    }

    fn take(&self, bytes: u64, directory: &Directory) -> Result<(), Rejection> {
        let mut all = self.lock();
        let most = self.most.unwrap_or(u64::MAX);
        let mut wanted = all.used.saturating_add(bytes);
        if wanted > most {
            // Other programs may have removed files.
            let counted = directory.used_bytes();
            all.used = counted.saturating_add(all.pending);
            all.counts += 1;
            wanted = all.used.saturating_add(bytes);
        }
        if wanted > most {
            let used = all.used;
            let detail = format!(
                "{bytes} more bytes are needed, and of {most} bytes {used} are used (--quota)"
            );
            return Err(Rejection::new(Reason::NoSpace, detail));
        }
        all.used = wanted;
        all.pending = all.pending.saturating_add(bytes);
        Ok(())
    }

    pub(super) fn moment(&self) -> Moment {
        Moment(self.lock().counts)
    }

    /// A file has so many bytes less, by a change since that moment: a count since then may know of it.
    pub(super) fn give_back(&self, bytes: u64, since: Moment) {
        let mut all = self.lock();
        if all.counts == since.0 {
            all.used = all.used.saturating_sub(bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Bytes> {
        locked(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn bytes_beyond_the_quota_are_refused_until_files_are_removed() {
        let files = tempfile::tempdir().expect("a directory");
        let directory = Directory::open(files.path()).expect("a directory");
        fs::create_dir(files.path().join("below")).expect("a directory");
        fs::write(files.path().join("below/old"), [0; 60]).expect("space");
        let quota = Quota::new(Some(100), &directory);
        let grow = |bytes| quota.grow(bytes, &directory, || Ok(()));
        let refused = quota.grow(40, &directory, || {
            // All are taken.
            grow(1)
        });
        assert_eq!(refused.expect_err("no room").reason, Reason::NoSpace);
        // These 40 bytes were never written.
        assert_eq!(grow(40), Ok(()));
        fs::remove_file(files.path().join("below/old")).expect("it is there");
        assert_eq!(grow(100), Ok(()), "the other file is gone");
        let moment = quota.moment();
        quota.give_back(30, moment);
        assert_eq!(grow(30), Ok(()));
        // A count since that moment knows of a change before, which must not count twice.
        assert_eq!(grow(100), Ok(()), "the files were counted");
        quota.give_back(100, moment);
        fs::write(files.path().join("new"), [0; 100]).expect("space");
        let refused = grow(1).expect_err("no room");
        assert_eq!(refused.reason, Reason::NoSpace);
        let unlimited = Quota::new(None, &directory);
        assert_eq!(unlimited.grow(u64::MAX - 1, &directory, || Ok(())), Ok(()));
    }
}
