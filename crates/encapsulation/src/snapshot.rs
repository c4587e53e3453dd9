//! What an encapsulation has made of its base so far, as the base of others (its *output*, their *input
//! encapsulation*).

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    Base, Found, Listing, Seen, Store, TreePath,
    layer::{Directory, Spot},
};

/// The tree as one encapsulation saw it at one moment: what it changes later is not in it.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) root: Arc<Directory>,
    pub(crate) base: Arc<dyn Base + Send + Sync>,
    pub(crate) store: Arc<dyn Store + Send + Sync>,
}

impl Snapshot {
    /// What is there, and where its content is.
    ///
    /// # Errors
    /// Those of the base.
    pub fn find(&self, path: &TreePath) -> Result<Option<Found>, Errno> {
        Ok(self.root.look(path, &*self.base, &*self.store)?.0)
    }
}

impl Base for Snapshot {
    fn look(&self, path: &TreePath) -> Result<Seen, Errno> {
        let (found, _) = self.root.look(path, &*self.base, &*self.store)?;
        Ok(found.map_or(Seen::Absent, |found| Seen::There(found.stat)))
    }

    fn list(&self, path: &TreePath) -> Result<Listing, Errno> {
        match self.root.walk(path) {
            Spot::Nothing => Err(Errno::NOENT),
            Spot::Leaf(_) => Err(Errno::NOTDIR),
            Spot::Base(path) => self.base.list(&path),
            Spot::Directory(directory) => Ok(directory.list(&*self.base)?.0),
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}
