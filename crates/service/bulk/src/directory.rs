//! The directory of a receiver. A whole file appears under the file's name. An unfinished file lies in a directory for
//! such files, where the next attempt finds the part. No link is followed, and no name leads out of the directory.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use protocol::bulk::{Reason, RelativePath};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, Timespec,
        Timestamps, UTIME_OMIT, fchmod, flock, fstatvfs, fsync, ftruncate, futimens, mkdirat,
        openat, openat2, renameat_with, statat, unlinkat,
    },
    io::Errno,
};

use crate::BulkError;

mod entries;

/// The directory for unfinished files.
const STAGING_NAME: &str = ".outlive-partial";
/// Most bytes of a file's name that the name of its unfinished part repeats, for people.
const READABLE_LEN_MAX: usize = 100;
/// Attempts to lock a part that other transfers finish at the same time.
const LOCK_ATTEMPTS: u32 = 100;

/// Why a receiver does not take an offer, or cannot store the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: Reason,
    pub(crate) detail: String,
}

impl Rejection {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { reason, detail }
    }

    pub(crate) fn of_storage(doing: &str, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Reason::NoSpace,
            _ => Reason::Storage,
        };
        Self::new(reason, format!("{doing}: {error}"))
    }
}

/// What a file gets with its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) permissions: u16,
    pub(crate) modified_ns: u64,
    /// On the disk, name included, before the sender hears of it.
    pub(crate) is_durable: bool,
    /// Another file of this name is replaced.
    pub(crate) replaces: bool,
}

/// A directory in which names appear.
#[derive(Debug)]
pub(crate) struct Directory {
    root: OwnedFd,
    path: PathBuf,
    /// Permission bits that new files do not get (umask).
    withheld: Mode,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Self, BulkError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty());
        let root = root.map_err(|error| BulkError::Directory {
            path: path.display().to_string(),
            source: error.into(),
        })?;
        let withheld = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(withheld);
        Ok(Self {
            root,
            path: path.to_owned(),
            withheld,
        })
    }

    /// Bytes that a file may still get.
    pub(crate) fn free_bytes(&self) -> Result<u64, Rejection> {
        let stat = fstatvfs(&self.root).map_err(|error| Rejection::of_storage("statvfs", error))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// The unfinished file of this name, which no other transfer writes. It may have bytes of an earlier attempt.
    pub(crate) fn partial(
        &self,
        name: &RelativePath,
        replaces: bool,
    ) -> Result<Partial, Rejection> {
        self.check_place(name, replaces)?;
        let part = part_name(name);
        let failed = |error: io::Error| Rejection::of_storage("open an unfinished file", error);
        for _ in 0..LOCK_ATTEMPTS {
            let staging = self.staging()?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match openat(&staging, &part, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => file,
                // Another transfer has removed the empty directory.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed(error.into())),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(Rejection::new(Reason::Busy, "")),
                Err(error) => return Err(failed(error.into())),
            }
            let file = File::from(file);
            let there = statat(&staging, &part, AtFlags::SYMLINK_NOFOLLOW);
            let own = file.metadata().map_err(failed)?;
            // Another transfer may have given the file its name before the lock.
            if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (own.dev(), own.ino())) {
                return Ok(Partial {
                    file,
                    staging,
                    part,
                });
            }
        }
        Err(Rejection::new(Reason::Busy, ""))
    }

    /// The file gets its name.
    ///
    /// Returns the bytes of the file that is replaced.
    pub(crate) fn commit(
        &self,
        partial: &Partial,
        name: &RelativePath,
        attributes: Attributes,
    ) -> Result<u64, Rejection> {
        let failed = |doing| move |error: Errno| Rejection::of_storage(doing, error);
        let (above, base) = name.split();
        let parent = self.directory(above.unwrap_or_default())?;
        self.set_attributes(&partial.file, attributes)?;
        let flags = match attributes.replaces {
            true => RenameFlags::empty(),
            false => RenameFlags::NOREPLACE,
        };
        let base = OsStr::from_bytes(base);
        let replaced = self.len_of(&parent, base);
        let renamed = renameat_with(&partial.staging, &partial.part, &parent, base, flags);
        if renamed.is_err() {
            // The next attempt must be able to open the part, which is not older than this one.
            let _ = fchmod(&partial.file, Mode::from_raw_mode(0o600));
            let _ = partial.file.set_modified(SystemTime::now());
        }
        match renamed {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(Rejection::new(Reason::Taken, name.to_string())),
            Err(Errno::ISDIR | Errno::NOTEMPTY) => {
                return Err(Rejection::new(
                    Reason::Taken,
                    format!("{name} is a directory"),
                ));
            }
            Err(Errno::XDEV) => {
                let detail = format!(
                    "{name} lies on another file system than {}",
                    self.path.display()
                );
                return Err(Rejection::new(Reason::Place, detail));
            }
            Err(error) => return Err(failed("rename")(error)),
        }
        if attributes.is_durable {
            self.sync_path(above.unwrap_or_default())?;
        }
        self.remove_staging_if_empty();
        Ok(replaced)
    }

    /// Permissions and time; with `is_durable` bytes and attributes are on the disk.
    pub(crate) fn set_attributes(
        &self,
        file: &File,
        attributes: Attributes,
    ) -> Result<(), Rejection> {
        let failed = |doing| move |error: Errno| Rejection::of_storage(doing, error);
        let permissions = permissions_of(attributes).difference(self.withheld);
        fchmod(file, permissions).map_err(failed("set permissions"))?;
        futimens(file, &times_of(attributes)).map_err(failed("set the time"))?;
        match attributes.is_durable {
            true => fsync(file).map_err(failed("fsync")),
            false => Ok(()),
        }
    }

    /// The file of this name, if there is a regular one.
    pub(crate) fn existing(&self, name: &RelativePath) -> Option<File> {
        let (above, base) = name.split();
        let parent = self.find_directory(above.unwrap_or_default()).ok()??;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&parent, OsStr::from_bytes(base), flags, Mode::empty()).ok()?;
        let file = File::from(file);
        file.metadata().is_ok_and(|it| it.is_file()).then_some(file)
    }

    /// Bytes of all files below the directory, unfinished ones with them. Links are not followed, and a directory that
    /// the receiver may not read has no bytes.
    pub(crate) fn used_bytes(&self) -> u64 {
        let mut sum: u64 = 0;
        let mut directories = vec![self.path.clone()];
        while let Some(directory) = directories.pop() {
            let entries = fs::read_dir(&directory).inspect_err(|error| {
                tracing::warn!(directory = %directory.display(), %error, "files are not counted");
            });
            for entry in entries.into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => directories.push(entry.path()),
                    Ok(metadata) if metadata.is_file() => sum = sum.saturating_add(metadata.len()),
                    _ => {}
                }
            }
        }
        sum
    }

    /// Whether the file still has this name.
    pub(crate) fn is_named(&self, name: &RelativePath, file: &File) -> bool {
        let (above, base) = name.split();
        let Ok(Some(parent)) = self.find_directory(above.unwrap_or_default()) else {
            return false;
        };
        let there = statat(&parent, OsStr::from_bytes(base), AtFlags::SYMLINK_NOFOLLOW);
        let there = there.ok().map(|it| (it.st_dev, it.st_ino));
        there.is_some() && there == file.metadata().ok().map(|it| (it.dev(), it.ino()))
    }

    /// Bytes of the file with this name; 0 for anything else.
    fn len_of(&self, parent: &OwnedFd, base: &OsStr) -> u64 {
        match statat(parent, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                u64::try_from(stat.st_size).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Removes a part that nobody goes on with.
    pub(crate) fn discard(&self, partial: &Partial) {
        let _ = unlinkat(&partial.staging, &partial.part, AtFlags::empty());
        self.remove_staging_if_empty();
    }

    /// Removes parts that nobody has written for so long. Returns how many.
    pub(crate) fn expire(&self, age: Duration, now: SystemTime) -> io::Result<usize> {
        let staging = self.path.join(STAGING_NAME);
        let entries = match fs::read_dir(&staging) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut removed = 0;
        let is_old = |it: &fs::Metadata| {
            let modified = it.modified().unwrap_or(now);
            now.duration_since(modified).is_ok_and(|since| since >= age)
        };
        for entry in entries {
            let path = entry?.path();
            let there = fs::symlink_metadata(&path);
            // A link that never got its name.
            if there.is_ok_and(|it| it.is_symlink() && is_old(&it)) {
                let _ = fs::remove_file(&path);
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            // A part that has its name since is gone, or is another part.
            let Ok(file) = openat(CWD, &path, flags, Mode::empty()).map(File::from) else {
                continue;
            };
            let own = file.metadata()?;
            // Not while a transfer has the lock.
            if !own.is_file()
                || !is_old(&own)
                || flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
            {
                continue;
            }
            let there = fs::symlink_metadata(&path);
            let is_same = |it: &fs::Metadata| (it.dev(), it.ino()) == (own.dev(), own.ino());
            if there.is_ok_and(|it| is_same(&it)) && fs::remove_file(&path).is_ok() {
                removed += 1;
            }
        }
        self.remove_staging_if_empty();
        Ok(removed)
    }

    fn staging(&self) -> Result<OwnedFd, Rejection> {
        match mkdirat(&self.root, STAGING_NAME, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Rejection::of_storage("create a directory", error)),
        }
        self.open_beneath(self.root.as_fd(), STAGING_NAME.as_bytes())
    }

    fn remove_staging_if_empty(&self) {
        let _ = unlinkat(&self.root, STAGING_NAME, AtFlags::REMOVEDIR);
    }

    fn check_name(name: &RelativePath) -> Result<(), Rejection> {
        let first = name.as_bytes().split(|byte| *byte == b'/').next();
        match first == Some(STAGING_NAME.as_bytes()) {
            true => {
                let detail = format!("{STAGING_NAME} is for unfinished files");
                Err(Rejection::new(Reason::Place, detail))
            }
            false => Ok(()),
        }
    }

    /// Whether a file could get this name. Makes no directory.
    fn check_place(&self, name: &RelativePath, replaces: bool) -> Result<(), Rejection> {
        Self::check_name(name)?;
        let (above, base) = name.split();
        let Some(parent) = self.find_directory(above.unwrap_or_default())? else {
            return Ok(());
        };
        let base = OsStr::from_bytes(base);
        match statat(&parent, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                let detail = format!("{name} is a directory");
                Err(Rejection::new(Reason::Taken, detail))
            }
            Ok(_) if !replaces => Err(Rejection::new(Reason::Taken, name.to_string())),
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Rejection::of_storage("look up a name", error)),
        }
    }

    /// The directory with this path below the root, made if it is missing.
    fn directory(&self, path: &[u8]) -> Result<OwnedFd, Rejection> {
        self.walk(path, |parent, component| {
            let name = OsStr::from_bytes(component);
            match mkdirat(parent, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => self.open_beneath(parent.as_fd(), component),
                Err(error) => Err(Rejection::of_storage("create a directory", error)),
            }
        })
    }

    /// The directory with this path below the root.
    fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Rejection> {
        self.walk(path, |parent, component| {
            self.open_beneath(parent.as_fd(), component)
        })
    }

    /// `None`: a directory of the path is missing. A file in the way, or a link, is an error.
    fn find_directory(&self, path: &[u8]) -> Result<Option<OwnedFd>, Rejection> {
        let mut is_missing = false;
        let found = self.walk(path, |parent, component| {
            let name = OsStr::from_bytes(component);
            let there = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
            is_missing = there.err() == Some(Errno::NOENT);
            self.open_beneath(parent.as_fd(), component)
        });
        match found {
            Ok(directory) => Ok(Some(directory)),
            Err(_) if is_missing => Ok(None),
            Err(rejection) => Err(rejection),
        }
    }

    /// Goes down from the root, a component by a component.
    fn walk(
        &self,
        path: &[u8],
        mut step: impl FnMut(&OwnedFd, &[u8]) -> Result<OwnedFd, Rejection>,
    ) -> Result<OwnedFd, Rejection> {
        let root = self.root.try_clone();
        let mut at = root.map_err(|error| Rejection::of_storage("open a directory", error))?;
        for component in path.split(|byte| *byte == b'/').filter(|it| !it.is_empty()) {
            at = step(&at, component)?;
        }
        Ok(at)
    }

    /// The names in all directories of the path are on the disk.
    pub(crate) fn sync_path(&self, path: &[u8]) -> Result<(), Rejection> {
        let synced =
            |it: &OwnedFd| fsync(it).map_err(|error| Rejection::of_storage("fsync", error));
        let last = self.walk(path, |parent, component| {
            synced(parent)?;
            self.open_beneath(parent.as_fd(), component)
        })?;
        synced(&last)
    }

    fn open_beneath(
        &self,
        parent: rustix::fd::BorrowedFd<'_>,
        component: &[u8],
    ) -> Result<OwnedFd, Rejection> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let name = OsStr::from_bytes(component);
        openat2(parent, name, flags, Mode::empty(), resolve).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR | Errno::XDEV => {
                let detail = format!("{} is no directory of its own", name.display());
                Rejection::new(Reason::Place, detail)
            }
            error => Rejection::of_storage("open a directory", error),
        })
    }
}

/// An unfinished file, locked.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) file: File,
    staging: OwnedFd,
    part: String,
}

impl Partial {
    /// Gives the file its size, and drops the rest of a longer file.
    pub(crate) fn resize(&self, size: u64) -> Result<(), Rejection> {
        ftruncate(&self.file, size).map_err(|error| Rejection::of_storage("set the size", error))
    }
}

/// The name of an unfinished file: readable for people, and different for each path.
fn part_name(name: &RelativePath) -> String {
    let readable = String::from_utf8_lossy(name.split().1);
    let readable = readable
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c));
    let readable: String = readable.take(READABLE_LEN_MAX).collect();
    let hash = blake3::hash(name.as_bytes()).to_hex();
    format!("{readable}.{}", &hash[..32])
}

/// The lowest nine bits: no set-user-ID.
fn permissions_of(attributes: Attributes) -> Mode {
    Mode::from_raw_mode(u32::from(attributes.permissions) & 0o777)
}

fn times_of(attributes: Attributes) -> Timestamps {
    const SECOND_NS: u64 = 1_000_000_000;
    let omitted = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_OMIT,
    };
    Timestamps {
        last_access: omitted,
        last_modification: match attributes.modified_ns {
            // Of a stream: now.
            0 => omitted,
            _ => Timespec {
                tv_sec: i64::try_from(attributes.modified_ns / SECOND_NS).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(attributes.modified_ns % SECOND_NS).unwrap_or(0),
            },
        },
    }
}

#[cfg(test)]
mod tests;
