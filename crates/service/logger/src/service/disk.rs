//! Segments of the log as files of a directory.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use wal::Storage;

const SUFFIX: &str = ".segment";
const LOCK: &str = "lock";

/// A directory that belongs to one logger at a time. The files hold input of clients: only the owner has access.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    directory: File,
    current: Option<File>,
    /// A file was made or removed since the last sync of the directory.
    changed: bool,
    /// Locked for the lifetime of this value.
    _lock: File,
}

impl Disk {
    /// Makes the directory if necessary, and locks the directory.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let lock = writable()
            .create(true)
            .truncate(false)
            .open(path.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another process has the lock")
            }
            error => error.into(),
        })?;
        Ok(Self {
            path: path.to_owned(),
            directory: File::open(path)?,
            current: None,
            changed: true,
            _lock: lock,
        })
    }

    /// Removes all segments, as far as possible.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.current = None;
        for number in self.list()? {
            self.remove(number)?;
        }
        self.directory.sync_all()
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.path.join(name(number) + SUFFIX)
    }

    fn current(&mut self) -> io::Result<&mut File> {
        let missing = || io::Error::other("no segment is written to");
        self.current.as_mut().ok_or_else(missing)
    }
}

/// A segment's number, as in the name of its file.
pub(super) fn name(number: u64) -> String {
    format!("{number:016x}")
}

/// The number of the segment with this file name; `None` for any other file, such as a file with another spelling of a
/// number: the reader [finds](name) a segment by number.
fn number(file: &str) -> Option<u64> {
    let digits = file.strip_suffix(SUFFIX)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (name(number) == digits).then_some(number)
}

fn writable() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

impl Storage for Disk {
    type Error = io::Error;

    fn list(&mut self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            numbers.extend(entry?.file_name().to_str().and_then(number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read(&mut self, number: u64) -> io::Result<Vec<u8>> {
        fs::read(self.segment(number))
    }

    fn sync_old(&mut self, number: u64) -> io::Result<()> {
        File::open(self.segment(number))?.sync_all()
    }

    fn create(&mut self, number: u64) -> io::Result<()> {
        let path = self.segment(number);
        self.changed = true;
        self.current = Some(writable().create_new(true).open(&path)?);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.current()?.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.current()?.sync_data()?;
        if self.changed {
            self.directory.sync_all()?;
            self.changed = false;
        }
        Ok(())
    }

    fn remove(&mut self, number: u64) -> io::Result<()> {
        self.changed = true;
        fs::remove_file(self.segment(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_segment_only_by_the_name_that_it_was_given() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut disk = Disk::open(directory.path()).expect("a disk");
        for number in [0, 0x1a, u64::MAX] {
            disk.create(number).expect("made");
        }
        for other in [
            "000000000000001A",
            "+00000000000001b",
            "1c",
            "0000000000000001d",
            "10000000000000000",
            "",
        ] {
            let path = directory.path().join(format!("{other}{SUFFIX}"));
            fs::write(path, "else").expect("written");
        }
        let all = disk.list().expect("listed");
        assert_eq!(all, [0, 0x1a, u64::MAX]);
        for number in all {
            disk.read(number).expect("it is found");
        }
    }
}
