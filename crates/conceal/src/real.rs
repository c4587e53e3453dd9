//! The real tree, as the base of encapsulations.

use std::{
    ffi::OsString,
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::Path,
};

use encapsulation::{Base, Identity, Kind, Listing, Seen, Stat, Time, TreePath};
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

/// A directory and all that is in it. It is held open, so that it is this one, whatever is mounted over it.
#[derive(Debug)]
pub struct Real {
    root: OwnedFd,
}

impl Real {
    /// The directory there.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { root })
    }

    /// Its root.
    #[must_use]
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// What is there, as the kernel tells it; symbolic links are not followed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stat(&self, path: &TreePath) -> Result<rustix::fs::Stat, Errno> {
        rustix::fs::statat(&self.root, path.as_path(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens the file there, which is in the tree, and reached without symbolic links.
    ///
    /// # Errors
    /// The kernel's.
    pub fn file(&self, path: &TreePath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(&self.root, path.as_path(), flags, Mode::empty(), resolve)
    }

    /// Where the symbolic link there leads.
    ///
    /// # Errors
    /// The kernel's.
    pub fn target(&self, path: &TreePath) -> Result<OsString, Errno> {
        let target = rustix::fs::readlinkat(&self.root, path.as_path(), Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }
}

impl Base for Real {
    fn look(&self, path: &TreePath) -> Result<Seen, Errno> {
        match self.stat(path) {
            Ok(stat) => Ok(Seen::There(stat_of(&stat))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Seen::Absent),
            Err(error) => Err(error),
        }
    }

    fn list(&self, path: &TreePath) -> Result<Listing, Errno> {
        let directory = self.file(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut listing = Listing::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match self.stat(&path.join(&name)) {
                    Ok(stat) => kind_of(FileType::from_raw_mode(stat.st_mode)),
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(error),
                },
                known => kind_of(known),
            };
            listing.insert(name, kind);
        }
        Ok(listing)
    }
}

/// What the kernel says, in the words of encapsulations.
#[must_use]
pub fn stat_of(stat: &rustix::fs::Stat) -> Stat {
    Stat {
        identity: Identity::Real {
            device: stat.st_dev,
            inode: stat.st_ino,
        },
        kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
        mode: stat.st_mode & 0o7777,
        owner: (stat.st_uid, stat.st_gid),
        links: stat.st_nlink,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn time(seconds: i64, nanoseconds: u64) -> Time {
    let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0);
    Time {
        seconds,
        nanoseconds,
    }
}

fn kind_of(kind: FileType) -> Kind {
    match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Special,
    }
}
