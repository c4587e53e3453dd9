//! Files and directories of the surroundings that the kernel reads without an open.
//!
//! All programs see the same surroundings, and most programs read the same files. Therefore the kernel learns (by
//! `ENOSYS`) that an open needs no request, caches the content, and checks now and then whether the content is still
//! valid. A renamed file stays the same file, because the file is held open while the kernel knows the node number.

use std::{collections::HashMap, ffi::OsString, os::fd::OwnedFd, sync::Arc};

use encapsulation::{Found, Kind};
use fuser::INodeNo;
use rustix::{
    fs::OFlags,
    process::{Resource, getrlimit},
};

use crate::{
    state::{Answer, State},
    store::reopened,
};

/// Held files take at most this fraction (1/n) of the descriptors of this process.
const DESCRIPTOR_SHARE: u64 = 2;

/// By node number.
#[derive(Debug)]
pub(crate) struct KernelCache {
    /// Opened with `O_PATH`.
    files: HashMap<u64, Arc<OwnedFd>>,
    /// Directory listings on the way to the kernel.
    listings: HashMap<u64, Vec<(OsString, Kind)>>,
}

impl KernelCache {
    pub(crate) fn new() -> Self {
        Self {
            files: HashMap::new(),
            listings: HashMap::new(),
        }
    }

    /// The held file of a node, opened with `O_PATH`.
    pub(crate) fn held(&self, number: u64) -> Option<Arc<OwnedFd>> {
        self.files.get(&number).cloned()
    }

    pub(crate) fn forget(&mut self, number: u64) {
        self.files.remove(&number);
        self.listings.remove(&number);
    }
}

impl State {
    /// Holds a file that the kernel learns by this number. (Without a free descriptor, the name finds the file.)
    pub(crate) fn hold(&mut self, number: u64, found: &Found) {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / DESCRIPTOR_SHARE;
        let is_full = self.unopened.files.len() as u64 >= most;
        if found.stat.kind != Kind::File || is_full || self.unopened.files.contains_key(&number) {
            return;
        }
        let Ok(path) = self.path(INodeNo(number)) else {
            return;
        };
        if let Ok(file) = self.tree.real.file(&path, OFlags::PATH)
            && rustix::fs::fstat(&file)
                .is_ok_and(|stat| crate::base_tree::stat_of(&stat).identity == found.stat.identity)
        {
            self.unopened.files.insert(number, Arc::new(file));
        }
    }

    /// Opens the file for a single call.
    pub(crate) fn unopened(&mut self, node: INodeNo, flags: OFlags) -> Answer<OwnedFd> {
        if let Some(held) = self.unopened.files.get(&node.0) {
            return Ok(reopened(held, flags)?);
        }
        let path = self.place(node)?;
        Ok(self.tree.real.file(&path, flags)?)
    }

    /// The listing of a directory from this offset on. An offset of 0 reads the directory anew.
    pub(crate) fn names(&mut self, node: INodeNo, told: u64) -> Answer<&[(OsString, Kind)]> {
        if told == 0 || !self.unopened.listings.contains_key(&node.0) {
            let path = self.path(node)?;
            let listing = self.tree.list(&path)?.into_iter().collect();
            self.unopened.listings.insert(node.0, listing);
        }
        Ok(&self.unopened.listings[&node.0])
    }
}
