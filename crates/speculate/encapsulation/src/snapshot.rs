//! The present tree of an encapsulation, as the base of other encapsulations (the *output* of the former, the *input
//! encapsulation* of the latter).

use std::{collections::BTreeSet, sync::Arc};

use rustix::io::Errno;

use crate::{
    Base, Content, Found, HiddenId, Listing, Seen, Store, TreePath,
    layer::{Directory, LinkCounts, Location},
};

/// The tree as an encapsulation saw the tree at a moment, without later changes.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) root: Arc<Directory>,
    pub(crate) names: Arc<LinkCounts>,
    pub(crate) base: Arc<dyn Base + Send + Sync>,
    pub(crate) store: Arc<dyn Store + Send + Sync>,
}

impl Snapshot {
    /// The entry at a path, with the place of its content.
    ///
    /// # Errors
    /// Errors of the base.
    pub fn find(&self, path: &TreePath) -> Result<Option<Found>, Errno> {
        let (found, _) = self.root.look(path, &*self.base, &*self.store)?;
        Ok(found.map(|found| self.names.counted(found)))
    }
}

impl Base for Snapshot {
    fn look(&self, path: &TreePath) -> Result<Seen, Errno> {
        let found = self.find(path)?;
        Ok(found.map_or(Seen::Absent, |found| Seen::There(found.stat)))
    }

    fn look_to_compare(&self, path: &TreePath) -> Result<Seen, Errno> {
        let (found, _) = self
            .root
            .look(path, &ComparingBase(&*self.base), &*self.store)?;
        let found = found.map(|found| self.names.counted(found));
        Ok(found.map_or(Seen::Absent, |found| Seen::There(found.stat)))
    }

    fn content(&self, path: &TreePath) -> Result<Content, Errno> {
        match self.find(path)?.ok_or(Errno::NOENT)?.content {
            Content::Base(path) => self.base.content(&path),
            own => Ok(own),
        }
    }

    fn list(&self, path: &TreePath) -> Result<Listing, Errno> {
        match self.root.walk(path) {
            Location::EmptyBase => Err(Errno::NOENT),
            Location::Leaf(_) => Err(Errno::NOTDIR),
            Location::Base(path) => self.base.list(&path),
            Location::Directory(directory) => Ok(directory.list(&*self.base)?.0),
        }
    }

    fn hidden(&self, into: &mut BTreeSet<HiddenId>) {
        self.root.hidden(into);
        self.base.hidden(into);
    }
}

/// A base with lookups for comparison.
struct ComparingBase<'a>(&'a dyn Base);

impl Base for ComparingBase<'_> {
    fn look(&self, path: &TreePath) -> Result<Seen, Errno> {
        self.0.look_to_compare(path)
    }

    fn list(&self, path: &TreePath) -> Result<Listing, Errno> {
        self.0.list(path)
    }

    fn content(&self, path: &TreePath) -> Result<Content, Errno> {
        self.0.content(path)
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}
