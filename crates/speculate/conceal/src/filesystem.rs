//! The file system of an encapsulation, for the requests of the kernel.
//!
//! Each encapsulation has a superblock. The kernel may cache answers without a time limit, because no other program
//! changes the concealed tree. (The surroundings can change, and the kernel caches their answers only for a moment.)
//! Therefore the kernel asks for each name once, and that request counts as the read of the name. (Directories are read
//! by `READDIR`, never by `READDIRPLUS`, which would count as a read of every name in the directory.) The first write
//! to a file makes another file: the kernel learns that the name is stale, and looks up the name again.
//!
//! A call that cannot be concealed gets no answer until the call may be performed: the caller waits in the call.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    time::SystemTime,
};

use encapsulation::{Attributes, Kind};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};

use crate::{
    attributes::{file_type, nothing, time_of},
    concealment::Concealment,
    state::State,
    sync,
    tree::Tree,
};

mod operations;
mod replies;

use replies::{attr, empty, made, said};

impl Filesystem for Concealment {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        if self.state().is_around() {
            let _ = config.add_capabilities(InitFlags::FUSE_AUTO_INVAL_DATA);
            return Ok(());
        }
        let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(2).is_ok()
        {
            self.pass_through();
        }
        Ok(())
    }

    /// Also called after a panic of a thread of the file system.
    fn destroy(&mut self) {
        self.end();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.answering();
        let long = state.validity();
        match said(state.attributes_of(parent, name)) {
            Ok(attributes) => reply.entry(&long, &attributes, Generation(0)),
            // Number 0: the kernel may remember the absence.
            Err(error) if i32::from(error) == i32::from(Errno::ENOENT) && !long.is_zero() => {
                // In the surroundings no event tells the kernel to ask for all names again.
                if !state.is_around() {
                    state.nodes.absence_sent(parent.0, name);
                }
                reply.entry(&long, &nothing(), Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.answering().forget(node, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let mut state = self.answering();
        let found = said(state.examine(node, handle));
        attr(&state, found, reply);
    }

    fn setattr(
        &self,
        request: &Request,
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
        let set = move |state: &mut State| {
            let at = |state: &State, time| match time {
                TimeOrNow::Now => state.date(&state.path(node)?),
                TimeOrNow::SpecificTime(at) => Ok(time_of(at)),
            };
            let set = Attributes {
                mode: mode.map(|mode| mode & 0o7777),
                user,
                group,
                read: read.map(|time| at(state, time)).transpose()?,
                modified: modified.map(|time| at(state, time)).transpose()?,
            };
            state.set(node, handle, size, &set)?;
            state.examine(node, handle)
        };
        self.attempt(request, reply, set, |_, state, reply, found| {
            attr(state, found, reply);
        });
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let mut state = self.answering();
        let path = state.place(node);
        let target = path.and_then(|path| Ok(state.tree.target(&path)?));
        match said(target) {
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
        let made = made(request, mode);
        self.make(request, (parent, name), reply, move |state, path| {
            state.make_node(path, made)
        });
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
        let made = made(request, mode & 0o7777);
        self.make(request, (parent, name), reply, move |state, path| {
            state.make_directory(path, made)
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let made = made(request, 0o777);
        let target = OsString::from(target);
        self.make(request, (parent, name), reply, move |state, path| {
            state.make_symlink(path, target.clone(), made)
        });
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.make(
            request,
            (new_parent, new_name),
            reply,
            move |state, path| {
                let (from, now) = (state.place(node)?, state.now(path)?);
                Ok(state.tree.link(&from, path, now)?)
            },
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(request, (parent, name), reply, Tree::unlink);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(request, (parent, name), reply, Tree::remove_directory);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let exchange = flags.contains(rustix::fs::RenameFlags::EXCHANGE);
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let rename = move |state: &mut State| {
            let from = state.child(parent, &name)?;
            let to = state.child(new_parent, &new_name)?;
            let now = state.now(&to)?;
            state.tree.rename(&from, &to, flags, now)?;
            let (from, to) = ((parent.0, &*name), (new_parent.0, &*new_name));
            state.nodes.moved(from, to, exchange);
            Ok(())
        };
        self.attempt(request, reply, rename, |_, _, reply, done| {
            empty(done, reply)
        });
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.state().is_around() {
            return reply.error(Errno::ENOSYS);
        }
        let (writes, cut) = State::flags(OFlags::from_bits_retain(flags.0.cast_unsigned()));
        let open = move |state: &mut State| match state.place(node) {
            Ok(path) => state.open(&path, writes, cut),
            Err(refusal) => state.open_nameless(node, writes, cut, refusal),
        };
        self.attempt(
            request,
            reply,
            open,
            move |this, state, reply: ReplyOpen, opened| match opened {
                Ok(file) => replies::opened(this, state, reply, (node, writes), file),
                Err(error) => reply.error(error),
            },
        );
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        if self.state().is_around() {
            // The kernel makes the file by `mknod`, and opens the file without a request.
            return reply.error(Errno::ENOSYS);
        }
        let (writes, _) = State::flags(OFlags::from_bits_retain(flags.cast_unsigned()));
        let (made, name) = (made(request, mode & 0o7777), name.to_owned());
        let create = move |state: &mut State| {
            let path = state.child(parent, &name)?;
            let file = state.create(&path, made)?;
            Ok((file, state.attributes_of(parent, &name)?))
        };
        self.attempt(
            request,
            reply,
            create,
            move |this, state, reply: ReplyCreate, created| match created {
                Ok((file, found)) => replies::created(this, state, reply, (&found, writes), file),
                Err(error) => reply.error(error),
            },
        );
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match said(self.file(node, handle, OFlags::RDONLY)) {
            Ok(file) => replies::read(&file, offset, size, reply),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if !self.may_write(request.pid()) {
            return reply.error(Errno::EPERM);
        }
        let file = self.file(node, handle, OFlags::WRONLY);
        let written = file.and_then(|file| Ok(rustix::io::pwrite(&*file, data, offset)?));
        match said(written) {
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
        let closed = self.answering().closed(handle);
        drop(closed);
        reply.ok();
    }

    fn fsync(&self, _: &Request, node: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let file = self.answering().sync(node, Some(handle));
        sync::answer(said(file), reply);
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let directory = self.answering().sync(node, None);
        sync::answer(said(directory), reply);
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut state = self.answering();
        if state.is_around() {
            return reply.error(Errno::ENOSYS);
        }
        match said(state.open_directory(node)) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
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
        let mut state = self.answering();
        let listing = match said(if state.is_around() {
            state.names(node, offset)
        } else {
            state.listing(node, handle, offset)
        }) {
            Ok(listing) => listing,
            Err(error) => return reply.error(error),
        };
        let own = [".", ".."].map(|name| (OsString::from(name), Kind::Directory));
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
        self.answering().list_sent(handle);
        reply.ok();
    }

    fn statfs(&self, _: &Request, node: INodeNo, reply: ReplyStatfs) {
        match said(self.room(node)) {
            Ok(room) => replies::room(&room, reply),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        from_at: u64,
        _: INodeNo,
        to: FileHandle,
        to_at: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if self.state().is_around() {
            return reply.error(Errno::ENOSYS);
        }
        match said(self.copy(request.pid(), (from, from_at), (to, to_at), length)) {
            Ok(copied) => reply.written(copied.try_into().unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if !self.may_write(request.pid()) {
            return reply.error(Errno::EPERM);
        }
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let file = self.file(node, handle, OFlags::WRONLY);
        let done = file.and_then(|file| Ok(rustix::fs::fallocate(&*file, mode, offset, length)?));
        empty(said(done), reply);
    }

    // There are no extended attributes and no access control lists: the kernel asks only once.

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
}
