//! A storage in memory that crashes as disks do: what was not made durable is there in any part.
//!
//! A write is divided into sectors. After a crash each sector of what was not synced is there, or
//! reads as zeros, or lies behind the end of the file, as a number decides that the caller draws.
//! Files that were made or removed and not synced may be there or not.

use std::collections::BTreeMap;

/// What a disk writes as a whole.
pub const SECTOR: usize = 512;

/// A failure of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// As it was told to.
    #[error("the storage failed")]
    Injected,
    /// There is no room.
    #[error("the storage is full")]
    Full,
    /// There is no such file, or there is one already.
    #[error("no such file, or one too many")]
    NoFile,
}

#[derive(Debug, Clone, Default)]
struct File {
    bytes: Vec<u8>,
    /// So many of them are durable.
    synced: usize,
    /// Its name is.
    named: bool,
    /// It was removed, which is not durable yet.
    removed: bool,
}

/// A storage in memory.
#[derive(Debug, Clone, Default)]
pub struct Simulated {
    files: BTreeMap<u64, File>,
    current: Option<u64>,
    /// Operations that succeed before one fails.
    fails_after: Option<u64>,
    /// Bytes that all files may have.
    room: Option<usize>,
}

impl Simulated {
    /// After so many operations that change something all fail.
    pub const fn fail_after(&mut self, operations: Option<u64>) {
        self.fails_after = operations;
    }

    /// All files together may have so many bytes.
    pub const fn limit(&mut self, room: Option<usize>) {
        self.room = room;
    }

    /// Bytes of all files.
    #[must_use]
    pub fn len(&self) -> usize {
        let there = self.files.values().filter(|file| !file.removed);
        there.map(|file| file.bytes.len()).sum()
    }

    /// Whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The host crashes. `draw` gives a number below the one that it is asked for.
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

    /// The process ends and the host goes on: everything that was written is there.
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

/// Leaves some sectors of what was not synced.
fn tear(file: &mut File, draw: &mut impl FnMut(usize) -> usize) {
    let len = file.bytes.len();
    let unsynced = len - file.synced;
    // The length is written apart from the content.
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
            // A part of it may have been written.
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
