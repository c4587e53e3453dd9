//! Hidden files: without a name, on the file system of the tree that they may become visible in. They are gone when
//! nobody holds them any more, whoever dies.

use std::{
    collections::HashMap,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use encapsulation::{HiddenId, Identity, Stat, Store, Time, TreePath};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
};

use crate::real::{Real, stat_of};

/// All hidden files of a tree.
#[derive(Debug)]
pub struct Hidden {
    tree: Arc<Real>,
    files: Mutex<HashMap<HiddenId, Arc<OwnedFd>>>,
    next: AtomicU64,
}

impl Hidden {
    /// None yet.
    #[must_use]
    pub fn new(tree: Arc<Real>) -> Self {
        Self {
            tree,
            files: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    /// A number that was never used.
    pub fn number(&self) -> HiddenId {
        HiddenId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A new, empty file.
    ///
    /// # Errors
    /// The kernel's; `EOPNOTSUPP` where the file system of the tree has no files without names.
    pub fn create(&self, mode: u32, owner: (u32, u32)) -> Result<(HiddenId, Arc<OwnedFd>), Errno> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let path = format!("/proc/self/fd/{}", self.tree.root().as_raw_fd());
        let file = rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
        let stat = rustix::fs::fstat(&file)?;
        if (stat.st_uid, stat.st_gid) != owner {
            let user = Some(rustix::fs::Uid::from_raw(owner.0));
            let group = Some(rustix::fs::Gid::from_raw(owner.1));
            rustix::fs::fchown(&file, user, group)?;
        }
        rustix::fs::fchmod(&file, Mode::from_bits_truncate(mode))?;
        let (id, file) = (self.number(), Arc::new(file));
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.insert(id, Arc::clone(&file));
        Ok((id, file))
    }

    /// The file of this number.
    ///
    /// # Errors
    /// `EIO`, if there is none.
    pub fn file(&self, id: HiddenId) -> Result<Arc<OwnedFd>, Errno> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(&id).cloned().ok_or(Errno::IO)
    }

    /// Opened once more, as a program asks for it.
    ///
    /// # Errors
    /// The kernel's, and as [`Hidden::file`].
    pub fn open(&self, id: HiddenId, flags: OFlags) -> Result<OwnedFd, Errno> {
        let file = self.file(id)?;
        rustix::fs::openat(
            CWD,
            name_of(file.as_fd()),
            flags | OFlags::CLOEXEC,
            Mode::empty(),
        )
    }

    /// Gives it a name in the tree, where there is none yet.
    ///
    /// # Errors
    /// The kernel's: `EEXIST`…
    pub fn link(&self, id: HiddenId, to: &TreePath) -> Result<(), Errno> {
        let file = self.file(id)?;
        let from = name_of(file.as_fd());
        let follow = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(CWD, from, self.tree.root(), to.as_path(), follow)
    }

    /// Nobody needs it any more.
    pub fn forget(&self, id: HiddenId) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.remove(&id);
    }
}

impl Store for Hidden {
    fn stat(&self, id: HiddenId) -> Result<Stat, Errno> {
        let stat = stat_of(&rustix::fs::fstat(self.file(id)?.as_fd())?);
        Ok(Stat {
            identity: Identity::Hidden(id),
            // A name more or less changes the inode, not what it holds.
            changed: Time::default(),
            links: 1,
            ..stat
        })
    }
}

fn name_of(file: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
