//! The real trees, as the base of encapsulations.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use encapsulation::{Base, Content, HiddenId, Identity, Kind, Listing, Seen, Stat, Time, TreePath};
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
    time::{ClockId, clock_gettime},
};

/// Time between two looks at the kernel's clock, which ticks every one to ten milliseconds.
const CLOCK_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Most looks, for files that change all the time or have a time in the future.
const CLOCK_POLL_LIMIT: usize = 16;

/// Directories with all files below. The directories are held open, independent of later mounts.
///
/// Together the directories are one tree, with the names `0`, `1` and so on in the root: an encapsulation may change
/// files in several directories.
#[derive(Debug)]
pub struct BaseTree {
    roots: Vec<Root>,
    /// Visible files of encapsulations, by device and inode, and their last change before that. The numbers stay
    /// unique while the files are held open.
    revealed: Mutex<HashMap<(u64, u64), (HiddenId, Time)>>,
}

#[derive(Debug)]
struct Root {
    /// The name in the tree.
    name: OsString,
    /// The real path.
    at: PathBuf,
    directory: OwnedFd,
}

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct RootedPath<'a> {
    root: BorrowedFd<'a>,
    /// The directory, if it is not the root. The directory is held open, independent of later renames.
    within: Option<OwnedFd>,
    /// `.` for the root of a tree.
    pub(crate) name: &'a Path,
}

/// The descriptor of the directory.
impl AsFd for RootedPath<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.within.as_ref().map_or(self.root, OwnedFd::as_fd)
    }
}

fn beneath(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

impl BaseTree {
    /// Opens these directories.
    ///
    /// # Errors
    /// A directory cannot be opened.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Errno> {
        let open = |(number, at): (usize, &PathBuf)| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(CWD, at, flags, Mode::empty())?;
            Ok(Root {
                name: number.to_string().into(),
                at: at.clone(),
                directory,
            })
        };
        let roots = paths.iter().enumerate().map(open);
        let roots = roots.collect::<Result<_, Errno>>()?;
        Ok(Self {
            roots,
            revealed: Mutex::default(),
        })
    }

    /// Names and paths of the directories.
    pub fn places(&self) -> impl Iterator<Item = (&OsStr, &Path)> {
        self.roots
            .iter()
            .map(|root| (root.name.as_os_str(), root.at.as_path()))
    }

    /// The real path of a path of the tree.
    #[must_use]
    pub fn path_of(&self, path: &TreePath) -> PathBuf {
        let root = path.names().next().and_then(|name| self.root(name).ok());
        let whole = || {
            let below = path.names().skip(1).collect::<PathBuf>();
            Some(root?.at.join(below))
        };
        whole().unwrap_or_else(|| path.as_path().to_owned())
    }

    /// The place of a change. A directory of the path that has become a symbolic link is not followed.
    ///
    /// # Errors
    /// `EPERM` for the root of the tree, which is no real directory; `ENOENT` for an unknown directory.
    pub(crate) fn place<'a>(&'a self, path: &'a TreePath) -> Result<RootedPath<'a>, Errno> {
        let (root, path) = self.at(path)?;
        let name = path.file_name().map_or(path, Path::new);
        let within = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => {
                let opened = beneath(root, parent, OFlags::PATH | OFlags::DIRECTORY);
                let gone = |errno| {
                    if errno == Errno::LOOP {
                        Errno::NOENT
                    } else {
                        errno
                    }
                };
                Some(opened.map_err(gone)?)
            }
            _ => None,
        };
        Ok(RootedPath { root, within, name })
    }

    /// The directory that contains a path, and the rest of the path.
    fn at<'a>(&'a self, path: &'a TreePath) -> Result<(BorrowedFd<'a>, &'a Path), Errno> {
        let name = path.names().next().ok_or(Errno::PERM)?;
        let root = self.root(name)?;
        let below = path.as_path().strip_prefix(name).map_err(|_| Errno::IO)?;
        let below = if below.as_os_str().is_empty() {
            Path::new(".")
        } else {
            below
        };
        Ok((root.directory.as_fd(), below))
    }

    fn revealed(&self) -> MutexGuard<'_, HashMap<(u64, u64), (HiddenId, Time)>> {
        self.revealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a hidden file that has become visible.
    pub(crate) fn reveal(&self, file: &rustix::fs::Stat, id: HiddenId) {
        let modified = time(file.st_mtime, file.st_mtime_nsec);
        self.revealed()
            .insert((file.st_dev, file.st_ino), (id, modified));
    }

    /// Whether an encapsulation made the file, which is or was visible.
    pub(crate) fn is_revealed(&self, file: &rustix::fs::Stat) -> bool {
        self.revealed().contains_key(&(file.st_dev, file.st_ino))
    }

    /// Whether such a file was written to since.
    pub(crate) fn is_written(&self, file: &rustix::fs::Stat) -> bool {
        let modified = time(file.st_mtime, file.st_mtime_nsec);
        let revealed = self.revealed();
        let known = revealed.get(&(file.st_dev, file.st_ino));
        known.is_some_and(|(_, known)| *known != modified)
    }

    /// Notes a new date from an encapsulation, which is no write.
    pub(crate) fn dated(&self, before: &rustix::fs::Stat, now: &rustix::fs::Stat) {
        let modified = |stat: &rustix::fs::Stat| time(stat.st_mtime, stat.st_mtime_nsec);
        if let Some((_, known)) = self.revealed().get_mut(&(now.st_dev, now.st_ino))
            && *known == modified(before)
        {
            *known = modified(now);
        }
    }

    /// Forgets a file that is not held open any more: its numbers may be reused.
    pub(crate) fn forget(&self, file: &rustix::fs::Stat) {
        self.revealed().remove(&(file.st_dev, file.st_ino));
    }

    fn root(&self, name: &OsStr) -> Result<&Root, Errno> {
        let root = self.roots.iter().find(|root| root.name == name);
        root.ok_or(Errno::NOENT)
    }

    /// Attributes from the kernel. A symbolic link at the end is not followed, but links on the way are: a lookup may
    /// be wrong for a moment.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn stat(&self, path: &TreePath) -> Result<rustix::fs::Stat, Errno> {
        let (root, path) = self.at(path)?;
        rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens a file of the tree, without following symbolic links.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn file(&self, path: &TreePath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (root, path) = self.at(path)?;
        beneath(root, path, flags)
    }

    /// Opens a directory, or the innermost existing directory of the path.
    ///
    /// # Errors
    /// The errors of the kernel, and of [`BaseTree::place`].
    pub(crate) fn innermost(&self, path: &TreePath) -> Result<OwnedFd, Errno> {
        let mut at = path.clone();
        loop {
            match self.file(&at, OFlags::PATH | OFlags::DIRECTORY) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => {}
                done => return done,
            }
            at = at.split().ok_or(Errno::NOENT)?.0;
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn target(&self, path: &TreePath) -> Result<OsString, Errno> {
        let link = self.file(path, OFlags::PATH)?;
        let target = rustix::fs::readlinkat(link, "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }
}

impl BaseTree {
    /// Attributes that later changes must alter. A file with a change in the present clock tick could change again in
    /// that tick with the same time. Therefore this function waits for the next tick.
    fn settled(&self, path: &TreePath) -> Result<rustix::fs::Stat, Errno> {
        let mut stat = self.stat(path)?;
        for _ in 0..CLOCK_POLL_LIMIT {
            let changed = time(stat.st_ctime, stat.st_ctime_nsec);
            let is_over = changed < coarse_time();
            if is_over || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                break;
            }
            thread::sleep(CLOCK_POLL_INTERVAL);
            stat = self.stat(path)?;
        }
        Ok(stat)
    }
}

impl BaseTree {
    /// The file as an encapsulation sees it.
    fn seen(
        &self,
        path: &TreePath,
        stat: impl FnOnce(&Self, &TreePath) -> Result<rustix::fs::Stat, Errno>,
    ) -> Result<Seen, Errno> {
        if path.split().is_none() {
            return Ok(Seen::There(ROOT_STAT));
        }
        match stat(self, path) {
            Ok(stat) => {
                let revealed = self.revealed().get(&(stat.st_dev, stat.st_ino)).copied();
                let stat = stat_of(&stat);
                Ok(Seen::There(match revealed {
                    None => stat,
                    Some((id, modified)) if modified == stat.modified => made(stat, id),
                    // Another program has written to the file.
                    Some((id, _)) => Stat {
                        changed: stat.modified,
                        ..made(stat, id)
                    },
                }))
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Seen::Absent),
            Err(error) => Err(error),
        }
    }
}

impl Base for BaseTree {
    fn look(&self, path: &TreePath) -> Result<Seen, Errno> {
        self.seen(path, Self::settled)
    }

    fn look_to_compare(&self, path: &TreePath) -> Result<Seen, Errno> {
        self.seen(path, Self::stat)
    }

    fn content(&self, path: &TreePath) -> Result<Content, Errno> {
        Ok(Content::Base(path.clone()))
    }

    fn list(&self, path: &TreePath) -> Result<Listing, Errno> {
        if path.split().is_none() {
            let names = self.roots.iter().map(|root| root.name.clone());
            return Ok(names.map(|name| (name, Kind::Directory)).collect());
        }
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

/// The directory with all trees, which no program sees: the trees are mounted at their places.
const ROOT_STAT: Stat = Stat {
    identity: Identity::Real {
        device: 0,
        inode: 0,
    },
    kind: Kind::Directory,
    mode: 0o755,
    owner: (0, 0),
    links: 2,
    size: 0,
    modified: Time {
        seconds: 0,
        nanoseconds: 0,
    },
    changed: Time {
        seconds: 0,
        nanoseconds: 0,
    },
};

/// Attributes of a file of an encapsulation. A new name changes the inode's times, but not the content.
#[must_use]
pub(crate) fn made(stat: Stat, id: HiddenId) -> Stat {
    Stat {
        identity: Identity::Hidden(id),
        changed: Time::default(),
        ..stat
    }
}

/// Converts the kernel's attributes.
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

/// The coarse clock, which most file systems use.
pub(crate) fn coarse_time() -> Time {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    time(now.tv_sec, now.tv_nsec.cast_unsigned())
}

fn kind_of(kind: FileType) -> Kind {
    match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        _ => Kind::Device,
    }
}
