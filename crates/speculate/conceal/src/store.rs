//! Hidden files: without a name, on the file system of the tree in which they may become visible. The kernel removes
//! a hidden file with its last descriptor.

use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    ffi::OsString,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use encapsulation::{HiddenId, Identity, Refused, Stat, Store, Time, TreePath};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW},
    io::Errno,
};

use crate::{
    base_tree::{BaseTree, made, stat_of},
    copy,
    reveal::{own, set_attributes},
};

/// All hidden files of a tree.
#[derive(Debug)]
pub struct Hidden {
    tree: Arc<BaseTree>,
    /// Opened for reading only: the kernel executes no file that is open for writing.
    files: Mutex<HashMap<HiddenId, Arc<OwnedFd>>>,
    /// A file of each file system, for the clock of that file system.
    clocks: Mutex<HashMap<OsString, OwnedFd>>,
    /// Files and directories with a stored fsync.
    to_sync: Mutex<HashSet<Identity>>,
    next: AtomicU64,
}

impl Hidden {
    /// An empty store.
    #[must_use]
    pub fn new(tree: Arc<BaseTree>) -> Self {
        Self {
            tree,
            files: Mutex::default(),
            clocks: Mutex::default(),
            to_sync: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    /// A new number.
    pub fn number(&self) -> HiddenId {
        HiddenId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A new, empty file that may become visible at `path`, open for reading and writing.
    ///
    /// # Errors
    /// The errors of the kernel; `EOPNOTSUPP` on a file system without `O_TMPFILE`.
    pub fn create(
        &self,
        path: &TreePath,
        mode: u32,
        owner: (u32, u32),
    ) -> Result<(HiddenId, Arc<OwnedFd>), Errno> {
        let file = self.unnamed(path)?;
        set_attributes(&file, &own(owner, Some(mode)))?;
        let (id, kept) = (self.number(), reopened(&file, OFlags::RDONLY)?);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.insert(id, Arc::new(kept));
        Ok((id, Arc::new(file)))
    }

    /// The file of this number, open for reading.
    ///
    /// # Errors
    /// `EIO` for an unknown number.
    pub fn file(&self, id: HiddenId) -> Result<Arc<OwnedFd>, Errno> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(&id).cloned().ok_or(Errno::IO)
    }

    /// Opens the file once more, with the flags of a program.
    ///
    /// # Errors
    /// The errors of the kernel, and of [`Hidden::file`].
    pub fn open(&self, id: HiddenId, flags: OFlags) -> Result<OwnedFd, Errno> {
        reopened(&*self.file(id)?, flags)
    }

    /// Gives the file a free name in a directory of the tree. The kernel gives no name to a file that has lost the last
    /// name: of a file that had a name before, a copy gets the name.
    ///
    /// # Errors
    /// The errors of the kernel: `EEXIST`…
    pub fn link(&self, id: HiddenId, directory: impl AsFd, name: &Path) -> Result<(), Errno> {
        let directory = directory.as_fd();
        let mut file = self.file(id)?;
        if self.tree.is_revealed(&rustix::fs::fstat(&*file)?) {
            file = self.made_again(id, &file, directory)?;
        }
        let from = name_of(file.as_fd());
        rustix::fs::linkat(CWD, from, directory, name, AtFlags::SYMLINK_FOLLOW)?;
        self.tree.reveal(&rustix::fs::fstat(&*file)?, id);
        Ok(())
    }

    /// Puts a copy with the same content and attributes in the file's place.
    fn made_again(
        &self,
        id: HiddenId,
        before: &OwnedFd,
        directory: BorrowedFd<'_>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let new = rustix::fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR)?;
        // The offset is at the start of the file.
        copy::content(&reopened(before, OFlags::RDONLY)?, &new, true).map_err(|refused| {
            match refused {
                Refused::Error(errno) => errno,
                Refused::Unconcealable(_) => Errno::PERM,
            }
        })?;
        let stat = rustix::fs::fstat(before)?;
        let as_before = stat_of(&stat);
        let attributes = own(as_before.owner, Some(as_before.mode)).at(as_before.modified);
        set_attributes(&new, &attributes)?;
        let kept = Arc::new(reopened(&new, OFlags::RDONLY)?);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.insert(id, Arc::clone(&kept));
        // The tree no longer holds the old file.
        self.tree.forget(&stat);
        Ok(kept)
    }

    /// Whether the file still has the content of its creation. A user may have written to a visible file.
    ///
    /// # Errors
    /// The errors of the kernel, and of [`Hidden::file`].
    pub(crate) fn is_as_made(&self, id: HiddenId) -> Result<bool, Errno> {
        let stat = rustix::fs::fstat(&*self.file(id)?)?;
        Ok(!self.tree.is_written(&stat))
    }

    /// Stores the visible FIFO or socket.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn keep(&self, id: HiddenId, made: OwnedFd) -> Result<(), Errno> {
        self.tree.reveal(&rustix::fs::fstat(&made)?, id);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // The tree no longer holds an earlier copy.
        if let Some(before) = files.insert(id, Arc::new(made)) {
            self.tree.forget(&rustix::fs::fstat(&*before)?);
        }
        Ok(())
    }

    /// The clock of the file system with `path`. Never before the date of an earlier change there, unlike the clocks
    /// that programs read.
    ///
    /// # Errors
    /// The errors of [`Hidden::create`].
    pub fn now(&self, path: &TreePath) -> Result<Time, Errno> {
        let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        let root = path.names().next().ok_or(Errno::PERM)?.to_owned();
        let clock = match clocks.entry(root) {
            Entry::Occupied(clock) => clock.into_mut(),
            Entry::Vacant(none) => none.insert(self.unnamed(path)?),
        };
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let both = Timestamps {
            last_access: now,
            last_modification: now,
        };
        rustix::fs::futimens(&*clock, &both)?;
        Ok(stat_of(&rustix::fs::fstat(&*clock)?).modified)
    }

    /// Creates the file in the innermost existing directory of the path, without following a real symbolic link:
    /// other file systems may be mounted in the tree.
    fn unnamed(&self, path: &TreePath) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let parent = path.split().map(|(parent, _)| parent);
        let parent = parent.filter(|parent| parent.split().is_some());
        let directory = self
            .tree
            .innermost(&parent.unwrap_or_else(|| path.clone()))?;
        rustix::fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR)
    }

    /// Drops files with numbers below `before`, except needed files and files with a name.
    pub fn keep_only(&self, before: HiddenId, needed: &BTreeSet<HiddenId>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|id, file| {
            let is_needed = *id >= before || needed.contains(id);
            let stat = match rustix::fs::fstat(&**file) {
                Ok(stat) if !is_needed && stat.st_nlink == 0 => stat,
                _ => return true,
            };
            self.tree.forget(&stat);
            false
        });
        self.wanted_safe().retain(|what| match what {
            Identity::Hidden(id) => files.contains_key(id),
            Identity::Real { .. } => true,
        });
    }

    /// Stores an fsync.
    pub(crate) fn sync_later(&self, what: Identity) {
        self.wanted_safe().insert(what);
    }

    /// Files with a stored fsync.
    pub(crate) fn to_sync(&self) -> HashSet<Identity> {
        self.wanted_safe().clone()
    }

    fn wanted_safe(&self) -> MutexGuard<'_, HashSet<Identity>> {
        self.to_sync.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the file.
    pub fn forget(&self, id: HiddenId) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.remove(&id)
            && let Ok(stat) = rustix::fs::fstat(&*file)
        {
            self.tree.forget(&stat);
        }
    }
}

impl Store for Hidden {
    fn stat(&self, id: HiddenId) -> Result<Stat, Errno> {
        let stat = stat_of(&rustix::fs::fstat(self.file(id)?.as_fd())?);
        // The mode of the creation.
        let stat = Stat { links: 1, ..stat };
        Ok(made(stat, id))
    }
}

/// Opens the file again, with other flags.
///
/// # Errors
/// The errors of the kernel.
pub(crate) fn reopened(file: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, name_of(file.as_fd()), flags, Mode::empty())
}

/// Opens the file for reading only: the kernel executes no file that is open for writing.
pub(crate) fn read_only(file: &Arc<OwnedFd>) -> Arc<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(file).unwrap_or(OFlags::RDONLY);
    if flags & OFlags::ACCMODE == OFlags::RDONLY {
        return Arc::clone(file);
    }
    reopened(file, OFlags::RDONLY).map_or_else(|_| Arc::clone(file), Arc::new)
}

/// A path that opens the file again.
pub(crate) fn name_of(file: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
