//! State of a file system, and the operations of the kernel.

mod listing;
mod texts;
mod unlinked;

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    time::Duration,
};

use encapsulation::{
    Attributes, Content, Found, HiddenId, Identity, Kind, New, Refused, Stat, Time, TreePath,
};
use fuser::{BackingId, Errno, FileAttr, FileHandle, FopenFlags, INodeNo};
use rustix::fs::OFlags;

use crate::{
    attributes::attributes,
    base_tree::{coarse_time, stat_of},
    kernel_cache::KernelCache,
    nodes::{Nodes, ROOT_NODE},
    reveal,
    store::reopened,
    tree::{Opened, Tree},
};

/// Reason of an operation that was not performed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The program gets the error.
    Errno(Errno),
    /// The call waits until the operation is permitted.
    Waits(&'static str),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Errno(Errno::from_i32(errno.raw_os_error()))
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Error(errno) => errno.into(),
            Refused::Unconcealable(why) => Self::Waits(why),
        }
    }
}

use texts::Texts;

pub(crate) type Answer<T> = Result<T, Refusal>;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) nodes: Nodes,
    files: HashMap<u64, OpenFile>,
    pub(crate) unopened: KernelCache,
    /// Backing files of the kernel (FUSE passthrough), at most one for each node.
    backing: HashMap<u64, Weak<BackingId>>,
    /// Listings of open directories, after the first read.
    listings: HashMap<u64, Option<Vec<(OsString, Kind)>>>,
    next: u64,
    pub(crate) texts: Texts,
    /// Whether the encapsulation is only prepared: later answers may differ.
    pub(crate) is_spare: bool,
}

#[derive(Debug)]
pub(crate) struct OpenFile {
    node: u64,
    file: Arc<OwnedFd>,
    /// Backing file, kept as long as the file is open: then `file` is open for reading only.
    backing: Option<Arc<BackingId>>,
    /// A hidden file that is open for writing.
    written: Option<HiddenId>,
}

/// Arguments of a creation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CreateArguments {
    pub(crate) mode: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Validity of answers that the kernel may keep for ever.
pub(crate) const UNLIMITED: Duration = Duration::from_secs(1 << 30);
/// Validity of answers about files that other programs may change.
const SHORT_VALIDITY: Duration = Duration::from_secs(1);

impl State {
    /// Whether this is the file system of the surroundings, without concealment.
    pub(crate) fn is_around(&self) -> bool {
        self.tree.gate.is_real()
    }

    /// Validity of answers in the kernel's cache. Only this file system changes concealed files.
    pub(crate) fn validity(&self) -> Duration {
        match &self.tree.concealed {
            Some(_) if self.is_spare => Duration::ZERO,
            Some(_) if self.is_around() => SHORT_VALIDITY,
            Some(_) => UNLIMITED,
            None => Duration::ZERO,
        }
    }

    /// The same for the content of files.
    pub(crate) fn caching(&self) -> FopenFlags {
        match &self.tree.concealed {
            Some(_) => FopenFlags::FOPEN_KEEP_CACHE,
            None => FopenFlags::empty(),
        }
    }

    pub(crate) fn new(tree: Tree) -> Self {
        Self {
            tree,
            nodes: Nodes::new(),
            files: HashMap::new(),
            unopened: KernelCache::new(),
            backing: HashMap::new(),
            listings: HashMap::new(),
            next: 1,
            texts: Texts::default(),
            is_spare: false,
        }
    }

    pub(crate) fn path(&self, node: INodeNo) -> Answer<TreePath> {
        Ok(self.nodes.path(node.0).ok_or(Errno::ESTALE)?)
    }

    /// The path of a node, or the last known path. Of several names a valid one is preferred.
    fn located(&mut self, node: INodeNo) -> Answer<TreePath> {
        loop {
            let path = self.path(node)?;
            let Some(identity) = self.nodes.identity(node.0) else {
                return Ok(path);
            };
            let there = self.tree.look(&path).map(|found| found.stat);
            let is_it = |there: &Stat| there.identity == identity || there.kind == Kind::Directory;
            if there.is_ok_and(|there| is_it(&there)) || !self.nodes.is_elsewhere(node.0) {
                return Ok(path);
            }
        }
    }

    /// The path of a node. If another file is there now, the kernel looks up the name again. A removed file has no
    /// path.
    pub(crate) fn place(&mut self, node: INodeNo) -> Answer<TreePath> {
        let path = self.located(node)?;
        let there = self.tree.look(&path).map(|found| found.stat);
        match (there, self.nodes.identity(node.0)) {
            (Ok(there), Some(identity))
                if there.identity != identity && there.kind != Kind::Directory =>
            {
                Err(Errno::ESTALE.into())
            }
            (Err(rustix::io::Errno::NOENT), Some(_)) => Err(Errno::ESTALE.into()),
            _ => Ok(path),
        }
    }

    pub(crate) fn child(&self, parent: INodeNo, name: &OsStr) -> Answer<TreePath> {
        Ok(self.path(parent)?.join(name))
    }

    /// Attributes of a name, for an answer to the kernel.
    pub(crate) fn attributes_of(&mut self, parent: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        let path = self.child(parent, name)?;
        let found = self.tree.look(&path)?;
        let number = self.nodes.count_lookup(found.stat.identity, parent.0, name);
        if self.is_around() {
            self.hold(number, &found);
        }
        Ok(self.attributes(number, &found))
    }

    /// Handles `FUSE_FORGET` with this count.
    pub(crate) fn forget(&mut self, node: INodeNo, times: u64) {
        self.nodes.forget(node.0, times);
        if self.nodes.identity(node.0).is_none() {
            self.unopened.forget(node.0);
        }
    }

    fn attributes(&mut self, number: u64, found: &Found) -> FileAttr {
        self.nodes.described(number, &found.stat);
        let details = match self.tree.origin(&found.content) {
            Ok(Content::Base(path)) => self.tree.real.stat(&path).ok(),
            Ok(Content::Hidden(id)) => self
                .tree
                .hidden
                .file(id)
                .ok()
                .and_then(|file| rustix::fs::fstat(&*file).ok()),
            Ok(Content::Target(_) | Content::Names) | Err(_) => None,
        };
        attributes(number, &found.stat, details.as_ref())
    }

    /// Looks at a node.
    pub(crate) fn examine(
        &mut self,
        node: INodeNo,
        handle: Option<FileHandle>,
    ) -> Answer<FileAttr> {
        let open = handle.and_then(|handle| self.files.get(&handle.0));
        if let Some(open) = open {
            let stat = rustix::fs::fstat(&open.file)?;
            let mut seen = self.nodes.with_set(node.0, stat_of(&stat));
            seen.links = self.links(node).unwrap_or(seen.links);
            return Ok(attributes(node.0, &seen, Some(&stat)));
        }
        let identity = self.nodes.identity(node.0);
        let path = self.located(node)?;
        let found = self.tree.look(&path);
        match (found, identity) {
            (Ok(found), _) if node.0 == ROOT_NODE || Some(found.stat.identity) == identity => {
                Ok(self.attributes(node.0, &found))
            }
            (Ok(found), Some(Identity::Real { .. })) if found.stat.kind == Kind::Directory => {
                Ok(self.attributes(node.0, &found))
            }
            // The file has lost this name, or all names.
            (found, identity) => match (self.kept(node, identity), found) {
                (Some(file), _) => {
                    let stat = rustix::fs::fstat(file)?;
                    let seen = self.nodes.with_set(node.0, stat_of(&stat));
                    Ok(attributes(node.0, &seen, Some(&stat)))
                }
                (None, Err(error)) if error != rustix::io::Errno::NOENT => Err(error.into()),
                (None, found) => match (self.nodes.nameless(node.0), found, identity) {
                    (Some(directory), ..) => {
                        let seen = self.nodes.with_set(node.0, directory);
                        Ok(attributes(node.0, &seen, None))
                    }
                    (None, Ok(found), Some(Identity::Real { .. }) | None) => {
                        Ok(self.attributes(node.0, &found))
                    }
                    // The kernel looks up another name then.
                    _ => Err(Errno::ESTALE.into()),
                },
            },
        }
    }

    /// Link count of a hidden file as the encapsulation shows it: the real count is 0.
    fn links(&mut self, node: INodeNo) -> Option<u64> {
        let identity = self.nodes.identity(node.0)?;
        if !matches!(identity, Identity::Hidden(_)) || self.tree.concealed.is_none() {
            return None;
        }
        let path = self.located(node).ok()?;
        let found = self.tree.look(&path).ok()?;
        (found.stat.identity == identity).then_some(found.stat.links)
    }

    pub(crate) fn opened(
        &mut self,
        (node, writes): (u64, bool),
        file: Arc<OwnedFd>,
        backing: Option<Arc<BackingId>>,
    ) -> FileHandle {
        let written = match self.nodes.identity(node) {
            Some(Identity::Hidden(id)) if writes => Some(id),
            _ => None,
        };
        if let (Some(id), Some(concealed)) = (written, &mut self.tree.concealed) {
            concealed.opened(id);
        }
        let open = OpenFile {
            node,
            file,
            backing,
            written,
        };
        self.next += 1;
        self.files.insert(self.next, open);
        FileHandle(self.next)
    }

    /// Closes a file. The close of the returned file takes time.
    pub(crate) fn closed(&mut self, handle: FileHandle) -> Option<OpenFile> {
        let open = self.files.remove(&handle.0)?;
        if let (Some(id), Some(concealed)) = (open.written, &mut self.tree.concealed) {
            concealed.closed(id);
        }
        Some(open)
    }

    /// The backing file of the kernel.
    pub(crate) fn backing(
        &mut self,
        node: u64,
        new: impl FnOnce() -> std::io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        if let Some(backing) = self.backing.get(&node).and_then(Weak::upgrade) {
            return Some(backing);
        }
        let backing = Arc::new(new().ok()?);
        self.backing.insert(node, Arc::downgrade(&backing));
        Some(backing)
    }

    /// The file, for reading.
    pub(crate) fn file(&self, handle: FileHandle) -> Answer<Arc<OwnedFd>> {
        let open = self.files.get(&handle.0).ok_or(Errno::EBADF)?;
        Ok(Arc::clone(&open.file))
    }

    /// The file, for writing.
    pub(crate) fn writable(&self, handle: FileHandle) -> Answer<Arc<OwnedFd>> {
        let open = self.files.get(&handle.0).ok_or(Errno::EBADF)?;
        Ok(match open.backing {
            Some(_) => Arc::new(reopened(&open.file, OFlags::WRONLY)?),
            None => Arc::clone(&open.file),
        })
    }

    /// The clock for changes there. For a real change the real file system sets the date.
    pub(crate) fn now(&self, path: &TreePath) -> Answer<Time> {
        if self.tree.is_concealed() {
            return Ok(self.tree.hidden.now(path)?);
        }
        Ok(coarse_time())
    }

    /// The clock for an explicit date. Some file systems of the surroundings have no clock of their own.
    pub(crate) fn date(&self, path: &TreePath) -> Answer<Time> {
        match self.tree.hidden.now(path) {
            Err(_) if !self.tree.is_concealed() => Ok(coarse_time()),
            now => Ok(now?),
        }
    }

    /// Owner of a new file as in the kernel, and whether the directory passes its group on.
    fn new_at(&mut self, path: &TreePath, made: CreateArguments) -> Answer<(New, bool)> {
        let (parent, _) = path.split().ok_or(Errno::EEXIST)?;
        let stat = self.tree.look(&parent)?.stat;
        let inherits = stat.mode & 0o2000 != 0;
        let group = if inherits { stat.owner.1 } else { made.group };
        let new = New {
            id: self.tree.hidden.number(),
            mode: made.mode,
            owner: (made.user, group),
            now: self.now(path)?,
        };
        Ok((new, inherits))
    }

    pub(crate) fn create(
        &mut self,
        path: &TreePath,
        made: CreateArguments,
    ) -> Answer<Arc<OwnedFd>> {
        let (new, _) = self.new_at(path, made)?;
        Ok(self.tree.create(path, (new.mode, new.owner), new.now)?)
    }

    pub(crate) fn make_directory(&mut self, path: &TreePath, made: CreateArguments) -> Answer<()> {
        let (mut new, inherits) = self.new_at(path, made)?;
        new.mode |= if inherits { 0o2000 } else { 0 };
        Ok(self.tree.make_directory(path, new)?)
    }

    pub(crate) fn make_symlink(
        &mut self,
        path: &TreePath,
        target: OsString,
        made: CreateArguments,
    ) -> Answer<()> {
        let (new, _) = self.new_at(path, made)?;
        Ok(self.tree.make_symlink(path, target, new)?)
    }

    /// Makes a FIFO, socket or device.
    pub(crate) fn make_node(&mut self, path: &TreePath, made: CreateArguments) -> Answer<()> {
        use rustix::fs::FileType;
        match FileType::from_raw_mode(made.mode) {
            FileType::RegularFile => {
                let mode = made.mode & 0o7777;
                self.create(path, CreateArguments { mode, ..made })
                    .map(drop)
            }
            FileType::Fifo | FileType::Socket => {
                let (new, _) = self.new_at(path, made)?;
                Ok(self.tree.make_special(path, new)?)
            }
            // A device does not belong to the encapsulation.
            _ => Err(Errno::EPERM.into()),
        }
    }

    pub(crate) fn open(
        &mut self,
        path: &TreePath,
        writes: bool,
        cut: bool,
    ) -> Answer<Arc<OwnedFd>> {
        if !writes && !cut {
            let file = self.tree.read(path)?;
            self.texts.note(path, &file);
            return Ok(file);
        }
        match self.tree.write(path, cut)? {
            Opened::File(file) => Ok(file),
            Opened::Moved => Err(Errno::ESTALE.into()),
        }
    }

    /// The size first, because that needs a writable file.
    pub(crate) fn set(
        &mut self,
        node: INodeNo,
        handle: Option<FileHandle>,
        size: Option<u64>,
        set: &Attributes,
    ) -> Answer<()> {
        if let Some(size) = size {
            match handle {
                Some(_) if !self.tree.gate.is_open(self.tree.process) => {
                    return Err(Errno::EPERM.into());
                }
                // The kernel opened the file by itself: there is no handle.
                Some(_) if self.is_around() => {
                    rustix::fs::ftruncate(self.unopened(node, OFlags::WRONLY)?, size)?;
                }
                Some(handle) => rustix::fs::ftruncate(&*self.writable(handle)?, size)?,
                None => {
                    let path = self.place(node)?;
                    rustix::fs::ftruncate(&*self.open(&path, true, false)?, size)?;
                }
            }
        }
        if *set == Attributes::default() {
            return Ok(());
        }
        match (self.place(node), self.nodes.identity(node.0)) {
            (Ok(path), _) => Ok(self.tree.set_attributes(&path, set)?),
            // The file has no name any more.
            (Err(_), Some(Identity::Hidden(id))) => {
                let file = self.tree.hidden.file(id)?;
                Ok(reveal::set_attributes(&*file, set)?)
            }
            (Err(refusal), _) => match self.open_file(node) {
                // The file is not concealed, or never was.
                Some(file) if !self.tree.is_concealed() => {
                    self.tree.may_change()?;
                    Ok(reveal::set_attributes(&*file, set)?)
                }
                file if (file.is_some() || self.nodes.nameless(node.0).is_some())
                    && self.is_nowhere(node)? =>
                {
                    self.nodes.set(node.0, set);
                    Ok(())
                }
                _ => Err(refusal),
            },
        }
    }

    /// Whether an open writes, and whether the open truncates.
    pub(crate) fn flags(flags: OFlags) -> (bool, bool) {
        let writes = flags & OFlags::ACCMODE != OFlags::RDONLY;
        (writes, flags.contains(OFlags::TRUNC))
    }
}
