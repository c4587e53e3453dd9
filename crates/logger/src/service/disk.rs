//! Segments as files of a directory.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use segments::Storage;

const SUFFIX: &str = ".segment";
const LOCK: &str = "lock";

/// A directory that belongs to one logger at a time. Its files hold what clients sent: only the
/// owner can read them.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    directory: File,
    current: Option<File>,
    /// A file was made or removed since the directory was last synced.
    changed: bool,
    /// Held for as long as this lives.
    _lock: File,
}

impl Disk {
    /// Makes the directory if it is not there, and takes it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let lock = writable()
            .create(true)
            .truncate(false)
            .open(path.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another logger uses this directory",
            ),
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

    /// Removes all segments, as far as that is possible.
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
            let name = entry?.file_name();
            let digits = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            let digits = digits.filter(|digits| digits.len() == 16);
            numbers.extend(digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()));
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
