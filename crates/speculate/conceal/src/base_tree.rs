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

/// Directories and all that is in them. They are held open, so that they are these, whatever is mounted over them.
///
/// Together they are one tree, in whose root they are called `0`, `1` and so on: an encapsulation may change what is in
/// several places.
#[derive(Debug)]
pub struct BaseTree {
    roots: Vec<Root>,
    /// Files that encapsulations have made, and that are visible now: they are still the same. By device and inode,
    /// which are not used again for as long as they are held open.
    /// And when they were changed last before.
    revealed: Mutex<HashMap<(u64, u64), (HiddenId, Time)>>,
}

#[derive(Debug)]
struct Root {
    /// What it is called in the tree.
    name: OsString,
    /// Where it is.
    at: PathBuf,
    directory: OwnedFd,
}

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct RootedPath<'a> {
    root: BorrowedFd<'a>,
    /// The directory, if it is not that one. It is held open, so that it is this, whatever takes its place.
    within: Option<OwnedFd>,
    /// `.`, if it is the root of a tree.
    pub(crate) name: &'a Path,
}

/// As the directory.
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
    /// The directories there.
    ///
    /// # Errors
    /// If one cannot be opened.
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

    /// Where the directories are, with what they are called in the tree.
    pub fn places(&self) -> impl Iterator<Item = (&OsStr, &Path)> {
        self.roots
            .iter()
            .map(|root| (root.name.as_os_str(), root.at.as_path()))
    }

    /// Where a path of the tree really is.
    #[must_use]
    pub fn path_of(&self, path: &TreePath) -> PathBuf {
        let root = path.names().next().and_then(|name| self.root(name).ok());
        let whole = || {
            let below = path.names().skip(1).collect::<PathBuf>();
            Some(root?.at.join(below))
        };
        whole().unwrap_or_else(|| path.as_path().to_owned())
    }

    /// Where something is changed: symbolic links on the way there, which were none when a program went it, are not
    /// followed.
    ///
    /// # Errors
    /// `EPERM` for the root of the tree, which is none of the directories; `ENOENT` if there is no such directory.
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

    /// The directory of these that it is in, and the path from there.
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

    /// A file that was made as this has become visible.
    pub(crate) fn reveal(&self, file: &rustix::fs::Stat, id: HiddenId) {
        let modified = time(file.st_mtime, file.st_mtime_nsec);
        self.revealed()
            .insert((file.st_dev, file.st_ino), (id, modified));
    }

    /// Whether it was made by an encapsulation, and is or was visible.
    pub(crate) fn is_revealed(&self, file: &rustix::fs::Stat) -> bool {
        self.revealed().contains_key(&(file.st_dev, file.st_ino))
    }

    /// Whether it is that, and somebody has written to it since.
    pub(crate) fn is_written(&self, file: &rustix::fs::Stat) -> bool {
        let modified = time(file.st_mtime, file.st_mtime_nsec);
        let revealed = self.revealed();
        let known = revealed.get(&(file.st_dev, file.st_ino));
        known.is_some_and(|(_, known)| *known != modified)
    }

    /// An encapsulation has given it a date: nobody has written to it.
    pub(crate) fn dated(&self, before: &rustix::fs::Stat, now: &rustix::fs::Stat) {
        let modified = |stat: &rustix::fs::Stat| time(stat.st_mtime, stat.st_mtime_nsec);
        if let Some((_, known)) = self.revealed().get_mut(&(now.st_dev, now.st_ino))
            && *known == modified(before)
        {
            *known = modified(now);
        }
    }

    /// It is not held open any more: another file may be called so.
    pub(crate) fn forget(&self, file: &rustix::fs::Stat) {
        self.revealed().remove(&(file.st_dev, file.st_ino));
    }

    fn root(&self, name: &OsStr) -> Result<&Root, Errno> {
        let root = self.roots.iter().find(|root| root.name == name);
        root.ok_or(Errno::NOENT)
    }

    /// What is there, as the kernel tells it; a symbolic link is not followed. (One on the way is: it is looked at,
    /// too, and what is only looked at may be wrong for a moment.)
    ///
    /// # Errors
    /// The kernel's.
    pub fn stat(&self, path: &TreePath) -> Result<rustix::fs::Stat, Errno> {
        let (root, path) = self.at(path)?;
        rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens the file there, which is in the tree, and reached without symbolic links.
    ///
    /// # Errors
    /// The kernel's.
    pub fn file(&self, path: &TreePath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (root, path) = self.at(path)?;
        beneath(root, path, flags)
    }

    /// The directory that is really there, or the innermost one on the way there that is.
    ///
    /// # Errors
    /// The kernel's, and as [`BaseTree::place`].
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

    /// Where the symbolic link there leads.
    ///
    /// # Errors
    /// The kernel's.
    pub fn target(&self, path: &TreePath) -> Result<OsString, Errno> {
        let link = self.file(path, OFlags::PATH)?;
        let target = rustix::fs::readlinkat(link, "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }
}

impl BaseTree {
    /// What is there. A file that was changed in the very tick of the clock in which it is looked at may be changed
    /// again in that tick, and nobody could tell by its times: the tick is let pass.
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
    /// What is there, in the words of encapsulations.
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
                    // Somebody has written to it.
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

/// Of a file that an encapsulation has made. A name more or less changes its inode, not what it holds.
#[must_use]
pub(crate) fn made(stat: Stat, id: HiddenId) -> Stat {
    Stat {
        identity: Identity::Hidden(id),
        changed: Time::default(),
        ..stat
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

/// The time of most file systems' clocks.
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
