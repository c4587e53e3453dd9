//! What the kernel reads without opening it first: files and directories around the trees.
//!
//! They are the same for all programs, most of which read the same of them. So the kernel is told (by `ENOSYS`) that
//! opening is nothing to ask for, keeps what it has read, and asks now and then whether it still is so. A file goes on
//! to be the one that it is when another one takes its name: it is held for as long as the kernel knows it by its
//! number.

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

/// By number.
#[derive(Debug)]
pub(crate) struct KernelCache {
    /// Open as no more than places.
    files: HashMap<u64, Arc<OwnedFd>>,
    /// What is being told of directories.
    listings: HashMap<u64, Vec<(OsString, Kind)>>,
}

impl KernelCache {
    pub(crate) fn new() -> Self {
        Self {
            files: HashMap::new(),
            listings: HashMap::new(),
        }
    }

    /// What is held of that number, as no more than a place.
    pub(crate) fn held(&self, number: u64) -> Option<Arc<OwnedFd>> {
        self.files.get(&number).cloned()
    }

    pub(crate) fn forget(&mut self, number: u64) {
        self.files.remove(&number);
        self.listings.remove(&number);
    }
}

impl State {
    /// The kernel is told of a file by this number. (One too many is found by its name.)
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

    /// Opens it for a single call.
    pub(crate) fn unopened(&mut self, node: INodeNo, flags: OFlags) -> Answer<OwnedFd> {
        if let Some(held) = self.unopened.files.get(&node.0) {
            return Ok(reopened(held, flags)?);
        }
        let path = self.place(node)?;
        Ok(self.tree.real.file(&path, flags)?)
    }

    /// What is in a directory, of which that much has been told: it is looked at when nothing has been.
    pub(crate) fn names(&mut self, node: INodeNo, told: u64) -> Answer<&[(OsString, Kind)]> {
        if told == 0 || !self.unopened.listings.contains_key(&node.0) {
            let path = self.path(node)?;
            let listing = self.tree.list(&path)?.into_iter().collect();
            self.unopened.listings.insert(node.0, listing);
        }
        Ok(&self.unopened.listings[&node.0])
    }
}
