//! Parts of a tree that come in a message: small files, directories, links.

use std::{
    ffi::OsStr,
    io::{Read as _, Write as _},
    os::unix::ffi::OsStrExt as _,
};

use protocol::bulk::{Entry, EntryKind, Reason, RelativePath};
use rustix::{
    fs::{
        AtFlags, Mode, RenameFlags, fchmod, fstat, fsync, futimens, mkdirat, readlinkat,
        renameat_with, symlinkat, unlinkat,
    },
    io::Errno,
};

use super::{Attributes, Directory, Rejection, permissions_of, times_of};

impl Directory {
    /// Stores a part of a tree. Returns the bytes that a file had which is replaced.
    pub(crate) fn store(&self, entry: &Entry, attributes: Attributes) -> Result<u64, Rejection> {
        match &entry.kind {
            EntryKind::File { bytes } => self.store_file(&entry.name, bytes, attributes),
            EntryKind::Directory => self.make_directory(&entry.name).map(|()| 0),
            EntryKind::DirectoryEnd => self.end_directory(&entry.name, attributes).map(|()| 0),
            EntryKind::Link { target } => self.make_link(&entry.name, target, attributes),
        }
    }

    fn store_file(
        &self,
        name: &RelativePath,
        bytes: &[u8],
        attributes: Attributes,
    ) -> Result<u64, Rejection> {
        let partial = match self.partial(name, attributes.replaces) {
            // The sender repeats a part whose answer was lost.
            Err(Rejection {
                reason: Reason::Taken,
                ..
            }) if self.is_equal(name, bytes) => return Ok(0),
            partial => partial?,
        };
        let stored = partial.resize(0).and_then(|()| {
            let written = (&partial.file).write_all(bytes);
            written.map_err(|error| Rejection::of_storage("write", error))?;
            self.commit(&partial, name, attributes)
        });
        if stored.is_err() {
            self.discard(&partial);
        }
        stored
    }

    fn is_link_to(&self, name: &RelativePath, target: &[u8]) -> bool {
        let (above, base) = name.split();
        let Ok(Some(parent)) = self.find_directory(above.unwrap_or_default()) else {
            return false;
        };
        let there = readlinkat(&parent, OsStr::from_bytes(base), Vec::new());
        there.is_ok_and(|there| there.as_bytes() == target)
    }

    fn is_equal(&self, name: &RelativePath, bytes: &[u8]) -> bool {
        let mut there = Vec::new();
        let file = self.existing(name);
        file.is_some_and(|mut file| file.read_to_end(&mut there).is_ok() && there == bytes)
    }

    /// For the owner alone until [`Self::end_directory`].
    fn make_directory(&self, name: &RelativePath) -> Result<(), Rejection> {
        Self::check_name(name)?;
        let (above, base) = name.split();
        let parent = self.directory(above.unwrap_or_default())?;
        match mkdirat(&parent, OsStr::from_bytes(base), Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Rejection::of_storage("create a directory", error)),
        }
        let directory = self.open_directory(name.as_bytes())?;
        let failed = |error: Errno| Rejection::of_storage("set permissions", error);
        let mode = Mode::from_raw_mode(fstat(&directory).map_err(failed)?.st_mode);
        // Of an earlier transfer: a directory without these permissions takes no file.
        match mode.contains(Mode::RWXU) {
            true => Ok(()),
            false => fchmod(&directory, mode | Mode::RWXU).map_err(failed),
        }
    }

    fn end_directory(&self, name: &RelativePath, attributes: Attributes) -> Result<(), Rejection> {
        Self::check_name(name)?;
        let failed = |doing| move |error: Errno| Rejection::of_storage(doing, error);
        let directory = self.open_directory(name.as_bytes())?;
        let permissions = permissions_of(attributes).difference(self.withheld);
        fchmod(&directory, permissions).map_err(failed("set permissions"))?;
        futimens(&directory, &times_of(attributes)).map_err(failed("set the time"))?;
        if attributes.is_durable {
            fsync(&directory).map_err(failed("fsync"))?;
            self.sync_path(name.split().0.unwrap_or_default())?;
        }
        Ok(())
    }

    fn make_link(
        &self,
        name: &RelativePath,
        target: &[u8],
        attributes: Attributes,
    ) -> Result<u64, Rejection> {
        let checked = name.check_link(target);
        checked.map_err(|error| Rejection::new(Reason::Place, format!("{name}: {error}")))?;
        // The lock of the name.
        let partial = match self.partial(name, attributes.replaces) {
            // As for files.
            Err(Rejection {
                reason: Reason::Taken,
                ..
            }) if self.is_link_to(name, target) => return Ok(0),
            partial => partial?,
        };
        let (above, base) = name.split();
        let parent = self.directory(above.unwrap_or_default())?;
        let link = format!("{}.link", partial.part);
        let _ = unlinkat(&partial.staging, &link, AtFlags::empty());
        let made = symlinkat(OsStr::from_bytes(target), &partial.staging, &link);
        let base = OsStr::from_bytes(base);
        let replaced = self.len_of(&parent, base);
        let flags = match attributes.replaces {
            true => RenameFlags::empty(),
            false => RenameFlags::NOREPLACE,
        };
        let made = made.and_then(|()| {
            renameat_with(&partial.staging, &link, &parent, base, flags).inspect_err(|_| {
                let _ = unlinkat(&partial.staging, &link, AtFlags::empty());
            })
        });
        self.discard(&partial);
        match made {
            Ok(()) if attributes.is_durable => {
                self.sync_path(above.unwrap_or_default()).map(|()| replaced)
            }
            Ok(()) => Ok(replaced),
            Err(Errno::EXIST) => Err(Rejection::new(Reason::Taken, name.to_string())),
            Err(error) => Err(Rejection::of_storage("make a link", error)),
        }
    }
}
