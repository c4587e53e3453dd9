//! Common parts of several requests of the kernel.

use std::{ffi::OsStr, os::fd::OwnedFd, sync::Arc};

use encapsulation::{Refused, Time, TreePath};
use fuser::{Errno, FileHandle, INodeNo, ReplyEmpty, ReplyEntry, Request};
use rustix::fs::{OFlags, StatFs};

use super::replies::{empty, entry};
use crate::{
    concealment::Concealment,
    state::{Answer, State},
    tree::Tree,
};

impl Concealment {
    /// The file to read or write: the open file, or a file opened for this call.
    pub(super) fn file(
        &self,
        node: INodeNo,
        handle: FileHandle,
        flags: OFlags,
    ) -> Answer<Arc<OwnedFd>> {
        let mut state = self.answering();
        if state.is_around() {
            return Ok(Arc::new(state.unopened(node, flags)?));
        }
        if flags & OFlags::ACCMODE == OFlags::RDONLY {
            return state.file(handle);
        }
        state.writable(handle)
    }

    /// Whether that process may write to open files; a process without permission waits in open(2)
    /// ([`crate::syscall_gate`]). The kernel itself (0) writes data that a process has written to memory.
    pub(super) fn may_write(&self, process: u32) -> bool {
        process == 0 || self.state().tree.gate.is_open(process)
    }

    /// Makes a name, and replies with the entry.
    pub(super) fn make(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        reply: ReplyEntry,
        mut act: impl FnMut(&mut State, &TreePath) -> Answer<()> + Send + 'static,
    ) {
        let name = name.to_owned();
        let made = move |state: &mut State| {
            let path = state.child(parent, &name)?;
            act(state, &path)?;
            state.attributes_of(parent, &name)
        };
        self.attempt(request, reply, made, |_, state, reply, attributes_of| {
            entry(state, attributes_of, reply);
        });
    }

    /// A name is taken away.
    pub(super) fn remove(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        reply: ReplyEmpty,
        act: impl Fn(&mut Tree, &TreePath, Time) -> Result<(), Refused> + Send + 'static,
    ) {
        let name = name.to_owned();
        let removed = move |state: &mut State| {
            let path = state.child(parent, &name)?;
            let now = state.now(&path)?;
            Ok(act(&mut state.tree, &path, now)?)
        };
        self.attempt(request, reply, removed, |_, _, reply, done| {
            empty(done, reply);
        });
    }

    /// Copies bytes of an open file to another open file.
    pub(super) fn copy(
        &self,
        process: u32,
        (from, mut from_at): (FileHandle, u64),
        (to, mut to_at): (FileHandle, u64),
        length: u64,
    ) -> Answer<usize> {
        if !self.may_write(process) {
            return Err(Errno::EPERM.into());
        }
        let state = self.state();
        let (from, to) = (state.file(from)?, state.writable(to)?);
        drop(state);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let places = (Some(&mut from_at), Some(&mut to_at));
        Ok(rustix::fs::copy_file_range(
            &*from, places.0, &*to, places.1, length,
        )?)
    }

    /// The free space at the real place, because other file systems may be mounted in the tree.
    pub(super) fn room(&self, node: INodeNo) -> Answer<StatFs> {
        let state = self.state();
        let (path, real) = (state.path(node)?, Arc::clone(&state.tree.real));
        drop(state);
        Ok(rustix::fs::fstatfs(real.innermost(&path)?)?)
    }
}
