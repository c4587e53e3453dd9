//! The walk along a path, as the thread with the path would go.
//!
//! A lookup by the kernel for this process would lead elsewhere: symbolic links would begin at the root of this
//! process, and `/proc/self` would be this process.

use std::{
    ffi::OsString,
    fs,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};

use crate::{
    members::Members,
    processes::{line, process_of},
};

/// Symbolic links that the kernel follows in a path (`MAXSYMLINKS`).
const MAX_SYMLINKS: usize = 40;
const PROC_SUPER_MAGIC: u64 = 0x9fa0; // PROC_SUPER_MAGIC

/// The target of a path.
#[derive(Debug)]
pub(super) enum Target {
    There {
        file: OwnedFd,
        /// Reached by a descriptor of an own process that is open for writing.
        is_written: bool,
    },
    /// The last name is missing in this directory.
    Nothing(OwnedFd),
    /// A property of another process: its root or its descriptors.
    Elsewhere,
}

/// A path, and the rules of a thread's lookup.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathLookup<'a> {
    pub(super) directory: i32,
    pub(super) path: &'a Path,
    /// A link at the end of the path is followed, too.
    pub(super) follows: bool,
    /// The directory is the root.
    pub(super) is_rooted: bool,
}

/// Directory of a process in `/proc`.
fn of(thread: u32) -> PathBuf {
    Path::new("/proc").join(thread.to_string())
}

/// Start of a thread's path, as reachable from this process.
pub(super) fn start(thread: u32, directory: i32, path: &Path) -> PathBuf {
    match directory {
        _ if path.is_absolute() => of(thread).join("root"),
        libc::AT_FDCWD => of(thread).join("cwd"),
        descriptor => of(thread).join("fd").join(descriptor.to_string()),
    }
}

/// Opens a path by `O_PATH`: no data is read or written.
pub(super) fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Path of a descriptor of this process.
pub(super) fn place(file: &OwnedFd) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// The process that something in `/proc` is of.
pub(super) fn process_in(place: &Path) -> Option<i32> {
    let below = place.strip_prefix("/proc").ok()?;
    below.iter().next()?.to_str()?.parse().ok()
}

pub(super) fn is_of_processes(file: &OwnedFd) -> bool {
    let kind = rustix::fs::fstatfs(file).map(|about| about.f_type);
    kind.is_ok_and(|kind| u64::try_from(kind) == Ok(PROC_SUPER_MAGIC))
}

/// Goes there.
pub(super) fn walk(thread: u32, members: Members, lookup: PathLookup<'_>) -> Result<Target, Errno> {
    let here = open(&start(thread, lookup.directory, lookup.path))?;
    let root = match lookup.is_rooted {
        true => reopen_path(&here)?,
        false => open(&of(thread).join("root"))?,
    };
    let mut walk = Walk {
        thread,
        members,
        root,
        here,
        left: Vec::new(),
        links: 0,
        is_written: false,
    };
    walk.push(lookup.path);
    // `link/` is what the link leads to.
    let follows = lookup.follows || lookup.path.as_os_str().as_encoded_bytes().ends_with(b"/");
    while let Some(name) = walk.left.pop() {
        if let Some(target) = walk.step(&name, follows)? {
            return Ok(target);
        }
    }
    Ok(Target::There {
        file: walk.here,
        is_written: walk.is_written,
    })
}

struct Walk {
    thread: u32,
    members: Members,
    root: OwnedFd,
    here: OwnedFd,
    /// The remaining names, the next name last.
    left: Vec<OsString>,
    links: usize,
    is_written: bool,
}

impl Walk {
    fn push(&mut self, path: &Path) {
        let names = path.components().rev();
        let names = names.filter(|it| matches!(it, Component::Normal(_) | Component::ParentDir));
        self.left.extend(names.map(|it| it.as_os_str().to_owned()));
    }

    /// Goes a name further. Returns the target if the path ends there.
    fn step(&mut self, name: &OsString, follows: bool) -> Result<Option<Target>, Errno> {
        let is_last = self.left.is_empty();
        if name == ".." {
            if !is_same(&self.here, &self.root)? {
                self.here = at(&self.here, name, OFlags::empty())?;
            }
            return Ok(None);
        }
        let found = match at(&self.here, name, OFlags::NOFOLLOW) {
            Err(Errno::NOENT) if is_last => {
                return Ok(Some(Target::Nothing(reopen_path(&self.here)?)));
            }
            found => found?,
        };
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
        if !kind.is_symlink() || (is_last && !follows) {
            self.here = found;
            return Ok(None);
        }
        self.links += 1;
        if self.links > MAX_SYMLINKS {
            return Err(Errno::LOOP);
        }
        self.follow(name, &found)
    }

    fn follow(&mut self, name: &OsString, link: &OwnedFd) -> Result<Option<Target>, Errno> {
        let place = is_of_processes(link).then(|| place(link)).flatten();
        let place = place.unwrap_or_default();
        if let Some(process) = process_in(&place) {
            // The link has no text, but leads to a property of the process.
            if !self.members.has(process.cast_unsigned()) {
                return Ok(Some(Target::Elsewhere));
            }
            self.is_written = self.left.is_empty() && is_open_to_write(&place);
            self.here = at(&self.here, name, OFlags::empty())?;
            return Ok(None);
        }
        let target = match place.to_str() {
            Some("/proc/self") => self.process()?,
            Some("/proc/thread-self") => self.process()?.join("task").join(self.thread.to_string()),
            _ => {
                let target = rustix::fs::readlinkat(link, "", Vec::new())?;
                OsString::from_vec(target.into_bytes()).into()
            }
        };
        if target.is_absolute() {
            self.here = reopen_path(&self.root)?;
        }
        self.push(&target);
        Ok(None)
    }

    fn process(&self) -> Result<PathBuf, Errno> {
        Ok(process_of(self.thread)?.as_raw_pid().to_string().into())
    }
}

fn at(directory: &OwnedFd, name: &OsString, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

fn reopen_path(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(directory, 0)
}

fn is_same(one: impl AsFd, other: impl AsFd) -> Result<bool, Errno> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Whether the place is a descriptor in `/proc` that is open for writing.
fn is_open_to_write(place: &Path) -> bool {
    let Some((process, number)) = place.parent().zip(place.file_name()) else {
        return false;
    };
    if process.file_name() != Some("fd".as_ref()) {
        return false;
    }
    let flags = line(process.with_file_name("fdinfo").join(number), "flags:");
    let flags = flags
        .ok()
        .and_then(|flags| i32::from_str_radix(&flags, 8).ok());
    flags
        .is_some_and(|flags| flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY)
}
