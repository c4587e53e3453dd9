//! The record that processes of another version still write.

use std::{fs::File, path::Path, sync::atomic::Ordering};

use north_abi::layout::{MAGIC, VERSION};

use super::{FILE_NAME, Memory};

/// A record of another version. Only the first fields of the page have the same meaning in all versions, so the record
/// can be ended, and not read.
#[derive(Debug)]
pub struct OtherVersion(Memory);

impl OtherVersion {
    /// The record in this directory, if another version has begun that record.
    #[must_use]
    pub fn leftover(directory: &Path) -> Option<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(directory.join(FILE_NAME));
        let memory = Memory::open(file.ok()?).ok()?;
        let page = memory.page();
        let is_record = page.magic.load(Ordering::Acquire) == MAGIC;
        let version = page.version.load(Ordering::Acquire);
        (is_record && version != VERSION).then_some(Self(memory))
    }

    /// As [`Memory::give_up`]: no process writes to the record or waits for a logger any more.
    pub fn give_up(&self) {
        self.0.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_other_version_is_ended_and_not_read() {
        // Other file systems have no files of this size.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(OtherVersion::leftover(directory.path()).is_none());
        let memory = Memory::create(directory.path(), 7).unwrap();
        assert!(OtherVersion::leftover(directory.path()).is_none());
        for version in [VERSION - 1, VERSION + 1] {
            memory.page().version.store(version, Ordering::Release);
            memory.page().mode.store(0, Ordering::Release);
            assert!(Memory::leftover(directory.path()).is_none());
            let other = OtherVersion::leftover(directory.path()).unwrap();
            assert!(memory.is_recording());
            other.give_up();
            assert!(!memory.is_recording());
        }
    }
}
