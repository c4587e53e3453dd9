//! The record that processes of another version still write.

use std::{fs, fs::File, io, path::Path, sync::atomic::Ordering};

use north_abi::layout::{MAGIC, VERSION};

use super::{FILE_NAME, Memory};

/// Name of the file beside a new record, until the processes have ended.
const FORMER_FILE_NAME: &str = "record.former";

/// A record of another version. Only the first fields of the page have the same meaning in all versions, so the record
/// can be ended, and not read.
#[derive(Debug)]
pub struct OtherVersion(Memory);

impl OtherVersion {
    /// The record in this directory, if another version has begun that record, or the record that was set aside.
    #[must_use]
    pub fn leftover(directory: &Path) -> Option<Self> {
        let open = |name| {
            let file = File::options()
                .read(true)
                .write(true)
                .open(directory.join(name));
            Memory::open(file.ok()?).ok()
        };
        if let Some(former) = open(FORMER_FILE_NAME) {
            return Some(Self(former));
        }
        let memory = open(FILE_NAME)?;
        let page = memory.page();
        let is_record = page.magic.load(Ordering::Acquire) == MAGIC;
        let version = page.version.load(Ordering::Acquire);
        (is_record && version != VERSION).then_some(Self(memory))
    }

    /// Makes room for a new record in this directory. The running processes have the record that was there first: a
    /// later `serve` still finds that record.
    ///
    /// # Errors
    /// The file cannot be renamed.
    pub fn set_aside(directory: &Path) -> io::Result<()> {
        let former = directory.join(FORMER_FILE_NAME);
        if former.try_exists()? {
            return Memory::remove(directory);
        }
        match fs::rename(directory.join(FILE_NAME), former) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the record that was set aside: its processes have ended.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(directory: &Path) -> io::Result<()> {
        match fs::remove_file(directory.join(FORMER_FILE_NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
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

    #[test]
    fn record_is_found_beside_new_records_until_removed() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path();
        let running = Memory::create(path, 7).unwrap();
        running.page().version.store(VERSION + 1, Ordering::Release);
        for record in [8, 9] {
            OtherVersion::set_aside(path).unwrap();
            Memory::create(path, record).unwrap();
            running.page().mode.store(0, Ordering::Release);
            OtherVersion::leftover(path).unwrap().give_up();
            assert!(!running.is_recording());
            let new = Memory::leftover(path).unwrap();
            assert!(new.is_recording());
            assert_eq!(new.record(), record);
        }
        OtherVersion::remove(path).unwrap();
        assert!(OtherVersion::leftover(path).is_none());
        OtherVersion::remove(path).unwrap();
    }

    #[test]
    fn unfinished_file_is_no_record() {
        let directory = tempfile::tempdir().unwrap();
        File::create(directory.path().join(FILE_NAME)).unwrap();
        assert!(OtherVersion::leftover(directory.path()).is_none());
        assert!(Memory::leftover(directory.path()).is_none());
    }
}
