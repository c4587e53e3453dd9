//! The file system of an encapsulation, as the kernel asks for it.
//!
//! It is one superblock for one encapsulation: the kernel may remember for ever what it was told, since nobody else
//! changes what is seen here; so each name is asked for once, which is when it counts as read. (Directories are asked
//! for with `READDIR`, never `READDIRPLUS`: that would count every name in them.) A file that is written to for the
//! first time becomes another one: the kernel is told that it is stale, and looks it up again.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use encapsulation::{
    Attributes, Content, Effect, Encapsulation, Found, Identity, Kind, New, Refused, Stat, Time,
    TreePath,
};
use fuser::{
    BackingId, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use crate::{
    nodes::{Nodes, ROOT},
    real::{Real, stat_of},
    reveal,
    store::Hidden,
    tree::{Opened, Tree},
};

/// The kernel may remember it.
const EVER: Duration = Duration::from_secs(1 << 30);
/// It may not.
const NEVER: Duration = Duration::ZERO;

/// The file system of one encapsulation. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Concealing {
    state: Arc<Mutex<State>>,
    passthrough: bool,
}

#[derive(Debug)]
struct State {
    tree: Tree,
    nodes: Nodes,
    files: HashMap<u64, OpenFile>,
    /// The files that the kernel reads and writes by itself, by node: there can be one of each.
    backing: HashMap<u64, Weak<BackingId>>,
    listings: HashMap<u64, Vec<(OsString, Kind)>>,
    next: u64,
}

#[derive(Debug)]
struct OpenFile {
    file: Arc<OwnedFd>,
    /// Kept for as long as it is open.
    _backing: Option<Arc<BackingId>>,
}

/// Why something was not revealed.
#[derive(Debug, thiserror::Error)]
pub enum MandateError {
    /// What it has read is not what it was.
    #[error("an input has changed: {0:?}")]
    Stale(encapsulation::Stale),
    /// It has been mandated before.
    #[error("it has been mandated already")]
    Already,
    /// An effect could not be carried out; those before it have been.
    #[error("could not carry out {0:?}: {1}")]
    Impossible(Effect, rustix::io::Errno),
}

impl Concealing {
    /// Of an encapsulation above that tree.
    #[must_use]
    pub fn new(encapsulation: Encapsulation, real: Arc<Real>, hidden: Arc<Hidden>) -> Self {
        let concealed = Some(encapsulation);
        let tree = Tree {
            real,
            hidden,
            concealed,
        };
        let state = State {
            tree,
            nodes: Nodes::new(),
            files: HashMap::new(),
            backing: HashMap::new(),
            listings: HashMap::new(),
            next: 1,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            passthrough: false,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows all that was concealed, if what was read is as it was; from then on nothing is concealed.
    ///
    /// # Errors
    /// If it cannot be. When something was shown before that, it stays.
    pub fn mandate(&self) -> Result<usize, MandateError> {
        let mut state = self.state();
        let Some(concealed) = state.tree.concealed.take() else {
            return Err(MandateError::Already);
        };
        if let Err(stale) = concealed.check() {
            state.tree.concealed = Some(concealed);
            return Err(MandateError::Stale(stale));
        }
        let effects = concealed.effects();
        let (real, hidden) = (&state.tree.real, &state.tree.hidden);
        reveal::reveal(effects, real, hidden)
            .map_err(|(which, errno)| MandateError::Impossible(effects[which].clone(), errno))?;
        reveal::set_directory_times(&concealed.directory_times(), real);
        Ok(effects.len())
    }
}

type Answer<T> = Result<T, Errno>;

impl State {
    fn path(&self, node: INodeNo) -> Answer<TreePath> {
        self.nodes.path(node.0).ok_or(Errno::ESTALE)
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> Answer<TreePath> {
        Ok(self.path(parent)?.join(name))
    }

    /// Tell the kernel of what is there.
    fn told(&mut self, parent: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        let path = self.child(parent, name)?;
        let found = self.tree.look(&path).map_err(errno)?;
        let number = self.nodes.told(found.stat.identity, parent.0, name);
        self.attributes(number, &found)
    }

    fn attributes(&self, number: u64, found: &Found) -> Answer<FileAttr> {
        let details = match &found.content {
            Content::Base(path) => self.tree.real.stat(path).ok(),
            Content::Hidden(id) => self
                .tree
                .hidden
                .file(*id)
                .ok()
                .and_then(|file| rustix::fs::fstat(&*file).ok()),
            Content::Target(_) | Content::Names => None,
        };
        Ok(attributes(number, &found.stat, details.as_ref()))
    }

    /// What the kernel asks for by number.
    fn examine(&mut self, node: INodeNo, handle: Option<FileHandle>) -> Answer<FileAttr> {
        let open = handle.and_then(|handle| self.files.get(&handle.0));
        if let Some(open) = open {
            let stat = rustix::fs::fstat(&open.file).map_err(errno)?;
            return Ok(attributes(node.0, &stat_of(&stat), Some(&stat)));
        }
        let identity = self.nodes.identity(node.0);
        let path = self.path(node)?;
        let found = self.tree.examine(&path).map_err(errno);
        match (found, identity) {
            (Ok(found), _) if node.0 == ROOT || Some(found.stat.identity) == identity => {
                self.attributes(node.0, &found)
            }
            (Ok(found), Some(Identity::Real { .. })) if found.stat.kind == Kind::Directory => {
                self.attributes(node.0, &found)
            }
            // It has no name any more, or not this one.
            (_, Some(Identity::Hidden(id))) => {
                let file = self.tree.hidden.file(id).map_err(errno)?;
                let stat = rustix::fs::fstat(&*file).map_err(errno)?;
                Ok(attributes(node.0, &stat_of(&stat), Some(&stat)))
            }
            (Ok(found), _) => self.attributes(node.0, &found),
            (Err(error), _) => Err(error),
        }
    }

    fn opened(&mut self, file: Arc<OwnedFd>, backing: Option<Arc<BackingId>>) -> FileHandle {
        self.next += 1;
        let open = OpenFile {
            file,
            _backing: backing,
        };
        self.files.insert(self.next, open);
        FileHandle(self.next)
    }

    /// What the kernel reads and writes by itself.
    fn backing(
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

    fn file(&self, handle: FileHandle) -> Answer<&Arc<OwnedFd>> {
        Ok(&self.files.get(&handle.0).ok_or(Errno::EBADF)?.file)
    }

    /// Who owns what is made there, as the kernel would have it.
    fn new_owner(&mut self, parent: &TreePath, request: &Request) -> Answer<((u32, u32), bool)> {
        let stat = self.tree.look(parent).map_err(errno)?.stat;
        let inherits = stat.mode & 0o2000 != 0;
        let group = if inherits {
            stat.owner.1
        } else {
            request.gid()
        };
        Ok(((request.uid(), group), inherits))
    }

    fn new(&mut self, parent: INodeNo, mode: u32, request: &Request) -> Answer<(New, bool)> {
        let parent = self.path(parent)?;
        let (owner, inherits) = self.new_owner(&parent, request)?;
        let (id, now) = (self.tree.hidden.number(), now());
        Ok((
            New {
                id,
                mode,
                owner,
                now,
            },
            inherits,
        ))
    }
}

impl Filesystem for Concealing {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        self.passthrough = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(2).is_ok();
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.state().told(parent, name) {
            Ok(attributes) => reply.entry(&EVER, &attributes, Generation(0)),
            // Number 0: the kernel may remember that there is nothing.
            Err(error) if i32::from(error) == i32::from(Errno::ENOENT) => {
                reply.entry(&EVER, &nothing(), Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.state().nodes.forgotten(node.0, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.state().examine(node, handle) {
            Ok(found) if found.kind == FileType::Directory => reply.attr(&NEVER, &found),
            Ok(found) => reply.attr(&EVER, &found),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        read: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = Attributes {
            mode: mode.map(|mode| mode & 0o7777),
            user,
            group,
            read: read.map(time_of),
            modified: modified.map(time_of),
        };
        let mut state = self.state();
        let done = state.set(node, handle, size, &set);
        match done.and_then(|()| state.examine(node, handle)) {
            Ok(found) => reply.attr(&EVER, &found),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let mut state = self.state();
        let target = state
            .path(node)
            .and_then(|path| state.tree.target(&path).map_err(errno));
        match target {
            Ok(target) => reply.data(target.as_encoded_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        let mut state = self.state();
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let made = state.child(parent, name).and_then(|path| match kind {
            rustix::fs::FileType::RegularFile => {
                let (new, _) = state.new(parent, mode & 0o7777, request)?;
                let with = (new.mode, new.owner);
                let created = state.tree.create(&path, with, new.now);
                created.map(drop).map_err(refusal)
            }
            rustix::fs::FileType::Fifo | rustix::fs::FileType::Socket => {
                let (new, _) = state.new(parent, mode, request)?;
                state.tree.make_special(&path, new).map_err(refusal)
            }
            // A device is not the encapsulation's own.
            _ => Err(Errno::EPERM),
        });
        entry(made.and_then(|()| state.told(parent, name)), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let mut state = self.state();
        let made = state
            .new(parent, mode & 0o7777, request)
            .and_then(|(mut new, inherits)| {
                new.mode |= if inherits { 0o2000 } else { 0 };
                let path = state.child(parent, name)?;
                state.tree.make_directory(&path, new).map_err(refusal)
            });
        entry(made.and_then(|()| state.told(parent, name)), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.state();
        let path = state.child(parent, name);
        empty(
            path.and_then(|path| state.tree.unlink(&path, now()).map_err(refusal)),
            reply,
        );
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.state();
        let path = state.child(parent, name);
        let gone = path.and_then(|path| state.tree.remove_directory(&path, now()).map_err(refusal));
        empty(gone, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let mut state = self.state();
        let made = state.new(parent, 0o777, request).and_then(|(new, _)| {
            let path = state.child(parent, name)?;
            state
                .tree
                .make_symlink(&path, target.into(), new)
                .map_err(refusal)
        });
        entry(made.and_then(|()| state.told(parent, name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let exchange = flags.contains(rustix::fs::RenameFlags::EXCHANGE);
        let mut state = self.state();
        let renamed = state.child(parent, name).and_then(|from| {
            let to = state.child(new_parent, new_name)?;
            state.tree.rename(&from, &to, flags, now()).map_err(refusal)
        });
        if renamed.is_ok() {
            state
                .nodes
                .moved((parent.0, name), (new_parent.0, new_name), exchange);
        }
        empty(renamed, reply);
    }

    fn link(
        &self,
        _: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let mut state = self.state();
        let linked = state.path(node).and_then(|from| {
            let to = state.child(new_parent, new_name)?;
            state.tree.link(&from, &to, now()).map_err(refusal)
        });
        entry(
            linked.and_then(|()| state.told(new_parent, new_name)),
            reply,
        );
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mut state = self.state();
        let opened = state.path(node).and_then(|path| {
            let kept = flags_of(flags);
            if flags.acc_mode() == OpenAccMode::O_RDONLY && !kept.contains(OFlags::TRUNC) {
                return state.tree.read(&path).map_err(errno);
            }
            match state
                .tree
                .write(&path, kept.contains(OFlags::TRUNC))
                .map_err(refusal)?
            {
                Opened::File(file) => Ok(file),
                Opened::Moved => Err(Errno::ESTALE),
            }
        });
        let file = match opened {
            Ok(file) => file,
            Err(error) => return reply.error(error),
        };
        let backing = self
            .passthrough
            .then(|| state.backing(node.0, || reply.open_backing(&*file)));
        match backing.flatten() {
            Some(backing) => {
                let handle = state.opened(file, Some(Arc::clone(&backing)));
                reply.opened_passthrough(handle, FopenFlags::empty(), &backing);
            }
            None => {
                let handle = state.opened(file, None);
                reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE);
            }
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.state();
        let created = state
            .new(parent, mode & 0o7777, request)
            .and_then(|(new, _)| {
                let path = state.child(parent, name)?;
                let with = (new.mode, new.owner);
                let kept = flags_of(OpenFlags(flags));
                let file = state
                    .tree
                    .create(&path, with, kept, new.now)
                    .map_err(refusal)?;
                Ok((file, state.told(parent, name)?))
            });
        let (file, found) = match created {
            Ok(created) => created,
            Err(error) => return reply.error(error),
        };
        let node = found.ino.0;
        let backing = self
            .passthrough
            .then(|| state.backing(node, || reply.open_backing(&*file)));
        let generation = Generation(0);
        match backing.flatten() {
            Some(backing) => {
                let handle = state.opened(file, Some(Arc::clone(&backing)));
                let none = FopenFlags::empty();
                reply.created_passthrough(&EVER, &found, generation, handle, none, &backing);
            }
            None => {
                let handle = state.opened(file, None);
                reply.created(&EVER, &found, generation, handle, FopenFlags::empty());
            }
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.state();
        let mut buffer = vec![0; size.try_into().unwrap_or(0)];
        let read = state.file(handle).and_then(|file| {
            let mut have = 0;
            while have < buffer.len() {
                let at = offset + u64::try_from(have).unwrap_or(0);
                match rustix::io::pread(file, &mut buffer[have..], at).map_err(errno)? {
                    0 => break,
                    more => have += more,
                }
            }
            Ok(have)
        });
        match read {
            Ok(read) => reply.data(&buffer[..read]),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let state = self.state();
        let written = state
            .file(handle)
            .and_then(|file| rustix::io::pwrite(file, data, offset).map_err(errno));
        match written {
            Ok(written) => reply.written(written.try_into().unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        // Closed outside: that may take time.
        let closed = self.state().files.remove(&handle.0);
        drop(closed);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // What nobody sees need not be safe.
        reply.ok();
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut state = self.state();
        let listed = state
            .path(node)
            .and_then(|path| state.tree.list(&path).map_err(errno));
        match listed {
            Ok(listing) => {
                state.next += 1;
                let handle = state.next;
                state.listings.insert(handle, listing.into_iter().collect());
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let state = self.state();
        let Some(listing) = state.listings.get(&handle.0) else {
            return reply.error(Errno::EBADF);
        };
        let own = [
            (OsString::from("."), Kind::Directory),
            (OsString::from(".."), Kind::Directory),
        ];
        let all = own.iter().chain(listing).zip(1..);
        for ((name, kind), next) in all.skip(offset.try_into().unwrap_or(usize::MAX)) {
            // Numbers are told by a look: here any will do.
            if reply.add(INodeNo(node.0 + next), next, file_type(*kind, None), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.state().listings.remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let state = self.state();
        match rustix::fs::fstatfs(state.tree.real.root()) {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize.try_into().unwrap_or(4096),
                s.f_namelen.try_into().unwrap_or(255),
                s.f_frsize.try_into().unwrap_or(4096),
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }
}

impl State {
    /// Size first, as it takes a file that can be written to.
    fn set(
        &mut self,
        node: INodeNo,
        handle: Option<FileHandle>,
        size: Option<u64>,
        set: &Attributes,
    ) -> Answer<()> {
        if let Some(size) = size {
            let open = handle.and_then(|handle| self.files.get(&handle.0));
            match open {
                Some(open) => rustix::fs::ftruncate(&open.file, size).map_err(errno)?,
                None => {
                    let path = self.path(node)?;
                    match self.tree.write(&path, false).map_err(refusal)? {
                        Opened::File(file) => rustix::fs::ftruncate(&file, size).map_err(errno)?,
                        Opened::Moved => return Err(Errno::ESTALE),
                    }
                }
            }
        }
        if *set == Attributes::default() {
            return Ok(());
        }
        let identity = self.nodes.identity(node.0);
        let path = self.path(node)?;
        let there = self.tree.look(&path).map_err(errno);
        match (there, identity) {
            (Ok(found), _) if node.0 == ROOT || Some(found.stat.identity) == identity => {
                self.tree.set_attributes(&path, set).map_err(refusal)
            }
            (_, Some(Identity::Hidden(id))) => {
                let file = self.tree.hidden.file(id).map_err(errno)?;
                reveal::set_attributes(&*file, set).map_err(errno)
            }
            (Ok(_), _) => self.tree.set_attributes(&path, set).map_err(refusal),
            (Err(error), _) => Err(error),
        }
    }
}

fn entry(told: Answer<FileAttr>, reply: ReplyEntry) {
    match told {
        Ok(attributes) => reply.entry(&EVER, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn empty(done: Answer<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_i32(errno.raw_os_error())
}

fn refusal(refused: Refused) -> Errno {
    match refused {
        Refused::Error(error) => errno(error),
        // For now.
        Refused::Unconcealable(_) => Errno::EPERM,
    }
}

/// Those that mean something where the file really is.
fn flags_of(flags: OpenFlags) -> OFlags {
    let kept = OFlags::from_bits_retain(flags.0.cast_unsigned());
    let mut kept = kept & (OFlags::ACCMODE | OFlags::TRUNC | OFlags::APPEND | OFlags::NOATIME);
    // The kernel knows where the end is, and reads what it writes around.
    kept.remove(OFlags::NOATIME);
    kept
}

fn now() -> Time {
    time_of(TimeOrNow::Now)
}

fn time_of(time: TimeOrNow) -> Time {
    let at = match time {
        TimeOrNow::Now => SystemTime::now(),
        TimeOrNow::SpecificTime(at) => at,
    };
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => Time {
            seconds: since.as_secs().try_into().unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let whole = before.subsec_nanos() == 0;
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            Time {
                seconds: -seconds - i64::from(!whole),
                nanoseconds: if whole {
                    0
                } else {
                    1_000_000_000 - before.subsec_nanos()
                },
            }
        }
    }
}

fn system_time(time: Time) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    match u64::try_from(time.seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanoseconds,
        Err(_) => UNIX_EPOCH - Duration::from_secs(time.seconds.unsigned_abs()) + nanoseconds,
    }
}

fn file_type(kind: Kind, mode: Option<u32>) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Special => match mode.map(rustix::fs::FileType::from_raw_mode) {
            Some(rustix::fs::FileType::Socket) => FileType::Socket,
            Some(rustix::fs::FileType::BlockDevice) => FileType::BlockDevice,
            Some(rustix::fs::FileType::CharacterDevice) => FileType::CharDevice,
            _ => FileType::NamedPipe,
        },
    }
}

/// What the kernel is to be told; `details` is what it says itself of what is below, where there is something.
fn attributes(number: u64, stat: &Stat, details: Option<&rustix::fs::Stat>) -> FileAttr {
    let changed = details.map_or(stat.modified, |below| Time {
        seconds: below.st_ctime,
        nanoseconds: below.st_ctime_nsec.try_into().unwrap_or(0),
    });
    let read = details.map_or(stat.modified, |below| Time {
        seconds: below.st_atime,
        nanoseconds: below.st_atime_nsec.try_into().unwrap_or(0),
    });
    let changed = system_time(changed);
    FileAttr {
        ino: INodeNo(number),
        size: stat.size,
        blocks: details.map_or(0, |below| below.st_blocks.try_into().unwrap_or(0)),
        atime: system_time(read),
        mtime: system_time(stat.modified),
        ctime: changed,
        crtime: changed,
        kind: file_type(stat.kind, details.map(|below| below.st_mode)),
        perm: u16::try_from(stat.mode & 0o7777).unwrap_or(0),
        nlink: stat.links.try_into().unwrap_or(u32::MAX),
        uid: stat.owner.0,
        gid: stat.owner.1,
        rdev: details.map_or(0, |below| below.st_rdev.try_into().unwrap_or(0)),
        blksize: 4096,
        flags: 0,
    }
}

/// Nothing, for the kernel to remember.
fn nothing() -> FileAttr {
    let stat = Stat {
        identity: Identity::Real {
            device: 0,
            inode: 0,
        },
        kind: Kind::File,
        mode: 0,
        owner: (0, 0),
        links: 0,
        size: 0,
        modified: Time::default(),
        changed: Time::default(),
    };
    attributes(0, &stat, None)
}
