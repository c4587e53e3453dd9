//! Replies to the kernel.

use std::{cell::RefCell, io, os::fd::OwnedFd, sync::Arc};

use fuser::{
    BackingId, Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr,
    ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, Request,
};
use rustix::fs::StatFs;

use crate::{
    concealment::Concealment,
    state::{Answer, CreateArguments, Refusal, State},
    store::read_only,
};

/// Registers an open file. If possible, the kernel reads and writes the file by itself, through a separate descriptor
/// for each opener, with the opener's access.
fn kept(
    this: &Concealment,
    state: &mut State,
    (node, writes): (u64, bool),
    file: Arc<OwnedFd>,
    new: impl FnOnce(&OwnedFd) -> io::Result<BackingId>,
) -> (FileHandle, Option<Arc<BackingId>>) {
    if this.passes_through() {
        let file = read_only(&file);
        if let Some(backing) = state.backing(node, || new(&file)) {
            let handle = state.opened((node, writes), file, Some(Arc::clone(&backing)));
            return (handle, Some(backing));
        }
    }
    (state.opened((node, writes), file, None), None)
}

/// A file was opened.
pub(super) fn opened(
    this: &Concealment,
    state: &mut State,
    reply: ReplyOpen,
    (node, writes): (INodeNo, bool),
    file: Arc<OwnedFd>,
) {
    let kept = kept(this, state, (node.0, writes), file, |file| {
        reply.open_backing(file)
    });
    match kept {
        (handle, Some(backing)) => {
            reply.opened_passthrough(handle, FopenFlags::empty(), &backing);
        }
        (handle, None) => reply.opened(handle, state.caching()),
    }
}

/// A file was made, and is open.
pub(super) fn created(
    this: &Concealment,
    state: &mut State,
    reply: ReplyCreate,
    (found, writes): (&FileAttr, bool),
    file: Arc<OwnedFd>,
) {
    let new = |file: &OwnedFd| reply.open_backing(file);
    let kept = kept(this, state, (found.ino.0, writes), file, new);
    let (validity, generation, none) = (state.validity(), Generation(0), FopenFlags::empty());
    match kept {
        (handle, Some(backing)) => {
            reply.created_passthrough(&validity, found, generation, handle, none, &backing);
        }
        (handle, None) => reply.created(&validity, found, generation, handle, none),
    }
}

thread_local! {
    /// New memory is expensive: the kernel makes new memory page by page, which takes longer than reading a file into
    /// the memory.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Replies with `size` bytes from `offset` on, or with all bytes up to the end.
pub(super) fn read(file: &OwnedFd, offset: u64, size: u32, reply: ReplyData) {
    let size = size.try_into().unwrap_or(0);
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        match fill(file, offset, &mut buffer[..size]) {
            Ok(have) => reply.data(&buffer[..have]),
            Err(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
        }
    });
}

fn fill(file: &OwnedFd, offset: u64, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        let at = offset + u64::try_from(have).unwrap_or(0);
        match rustix::io::pread(file, &mut buffer[have..], at) {
            Ok(0) => break,
            Ok(more) => have += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(have)
}

/// The result of a request that never waits.
pub(super) fn said<T>(answer: Answer<T>) -> Result<T, Errno> {
    answer.map_err(|refusal| match refusal {
        Refusal::Errno(errno) => errno,
        Refusal::Waits(_) => Errno::EPERM,
    })
}

pub(super) fn made(request: &Request, mode: u32) -> CreateArguments {
    CreateArguments {
        mode,
        user: request.uid(),
        group: request.gid(),
    }
}

pub(super) fn entry(state: &State, attributes_of: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match attributes_of {
        Ok(attributes) => reply.entry(&state.validity(), &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

pub(super) fn attr(state: &State, found: Result<FileAttr, Errno>, reply: ReplyAttr) {
    match found {
        Ok(found) => reply.attr(&state.validity(), &found),
        Err(error) => reply.error(error),
    }
}

pub(super) fn empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Replies with the free space.
pub(super) fn room(s: &StatFs, reply: ReplyStatfs) {
    reply.statfs(
        s.f_blocks,
        s.f_bfree,
        s.f_bavail,
        s.f_files,
        s.f_ffree,
        s.f_bsize.try_into().unwrap_or(4096),
        s.f_namelen.try_into().unwrap_or(255),
        s.f_frsize.try_into().unwrap_or(4096),
    );
}
