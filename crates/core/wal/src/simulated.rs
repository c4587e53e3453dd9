//! A storage in memory that crashes as disks do: any part of the unsynced data may survive.
//!
//! A write is divided into sectors. After a crash each unsynced sector is there, reads as zeros, or lies behind the
//! end of the file: the caller's random numbers decide. Files that were made or removed without a sync may be there
//! or not.

use std::collections::BTreeMap;

/// The unit that a disk writes as a whole, bytes.
pub const SECTOR: usize = 512;

/// A failure of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An injected failure.
    #[error("the storage failed")]
    Injected,
    /// The storage is full.
    #[error("the storage is full")]
    Full,
    /// The file does not exist, or exists already.
    #[error("no such file, or one too many")]
    NoFile,
}

#[derive(Debug, Clone, Default)]
struct File {
    bytes: Vec<u8>,
    /// Number of durable bytes.
    synced: usize,
    /// The name is durable.
    named: bool,
    /// Removed, but the removal is not durable yet.
    removed: bool,
}

/// A storage in memory.
#[derive(Debug, Clone, Default)]
pub struct Simulated {
    files: BTreeMap<u64, File>,
    current: Option<u64>,
    /// Number of operations before the first failure.
    fails_after: Option<u64>,
    /// Limit of all files together, bytes.
    room: Option<usize>,
}

impl Simulated {
    /// All changes fail after this number of operations; `None`: no failure.
    pub const fn fail_after(&mut self, operations: Option<u64>) {
        self.fails_after = operations;
    }

    /// Limits the size of all files together, in bytes.
    pub const fn limit(&mut self, room: Option<usize>) {
        self.room = room;
    }

    /// Bytes of all files.
    #[must_use]
    pub fn len(&self) -> usize {
        let there = self.files.values().filter(|file| !file.removed);
        there.map(|file| file.bytes.len()).sum()
    }

    /// Whether all files are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The host crashes. `draw` returns a random number below the argument.
    pub fn crash(&mut self, mut draw: impl FnMut(usize) -> usize) {
        self.files.retain(|_, file| {
            let exists = match (file.named, file.removed) {
                (true, false) => true,
                (false, true) => false,
                _ => draw(2) == 0,
            };
            tear(file, &mut draw);
            file.removed = false;
            file.named = true;
            exists
        });
        self.current = None;
        self.fails_after = None;
    }

    /// The process ends and the host goes on: all written bytes are there.
    pub fn restart(&mut self) {
        self.files.retain(|_, file| !file.removed);
        self.current = None;
        self.fails_after = None;
    }

    /// Changes a byte of a file, as a broken disk does.
    pub fn damage(&mut self, number: u64, at: usize) {
        let file = self.files.get_mut(&number);
        if let Some(byte) = file.and_then(|file| file.bytes.get_mut(at)) {
            *byte ^= 0x10;
        }
    }

    fn change(&mut self) -> Result<(), Failure> {
        match &mut self.fails_after {
            Some(0) => Err(Failure::Injected),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn current(&mut self) -> Result<&mut File, Failure> {
        let number = self.current.ok_or(Failure::NoFile)?;
        self.files.get_mut(&number).ok_or(Failure::NoFile)
    }
}

/// Leaves some sectors of the unsynced bytes.
fn tear(file: &mut File, draw: &mut impl FnMut(usize) -> usize) {
    let len = file.bytes.len();
    let unsynced = len - file.synced;
    // A disk writes the length apart from the content.
    let new_len = file.synced + draw(unsynced + 1);
    file.bytes.truncate(new_len);
    let mut at = file.synced;
    while at < new_len {
        let end = ((at / SECTOR + 1) * SECTOR).min(new_len);
        if draw(3) == 0 {
            file.bytes[at..end].fill(0);
        }
        at = end;
    }
    file.synced = new_len;
}

impl crate::Storage for Simulated {
    type Error = Failure;

    fn list(&mut self) -> Result<Vec<u64>, Failure> {
        let there = self.files.iter().filter(|(_, file)| !file.removed);
        Ok(there.map(|(number, _)| *number).collect())
    }

    fn read(&mut self, number: u64) -> Result<Vec<u8>, Failure> {
        let file = self.files.get(&number).filter(|file| !file.removed);
        file.map(|file| file.bytes.clone()).ok_or(Failure::NoFile)
    }

    fn sync_old(&mut self, number: u64) -> Result<(), Failure> {
        self.change()?;
        let file = self.files.get_mut(&number).ok_or(Failure::NoFile)?;
        file.synced = file.bytes.len();
        file.named = true;
        Ok(())
    }

    fn create(&mut self, number: u64) -> Result<(), Failure> {
        self.change()?;
        let removed = self.files.get(&number).is_none_or(|file| file.removed);
        if !removed {
            return Err(Failure::NoFile);
        }
        self.files.insert(number, File::default());
        self.current = Some(number);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let room = self
            .room
            .map_or(usize::MAX, |room| room.saturating_sub(self.len()));
        let fails = self.change().is_err();
        let written = match fails {
            // A failed write may have written a part.
            true => bytes.len() / 2,
            false => bytes.len().min(room),
        };
        let file = self.current()?;
        file.bytes.extend_from_slice(&bytes[..written]);
        match fails {
            true => Err(Failure::Injected),
            false if written < bytes.len() => Err(Failure::Full),
            false => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<(), Failure> {
        self.change()?;
        let file = self.current()?;
        file.synced = file.bytes.len();
        file.named = true;
        self.files.retain(|_, file| !file.removed);
        Ok(())
    }

    fn remove(&mut self, number: u64) -> Result<(), Failure> {
        self.change()?;
        let file = self.files.get_mut(&number).ok_or(Failure::NoFile)?;
        file.removed = true;
        Ok(())
    }
}
