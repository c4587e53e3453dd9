//! Listings of open directories.

use std::ffi::OsString;

use encapsulation::Kind;
use fuser::{FileHandle, INodeNo};
use rustix::io::Errno;

use super::{Answer, State};

impl State {
    /// A new handle has no listing yet.
    pub(crate) fn open_directory(&mut self, node: INodeNo) -> Answer<FileHandle> {
        let path = self.path(node)?;
        if let Err(errno) = self.tree.look(&path)
            && self.nodes.nameless(node.0).is_none()
        {
            return Err(errno.into());
        }
        self.next += 1;
        self.listings.insert(self.next, None);
        Ok(FileHandle(self.next))
    }

    fn names_in(&mut self, node: INodeNo) -> Answer<Vec<(OsString, Kind)>> {
        let path = self.path(node)?;
        match self.tree.list(&path) {
            // The directory has no name any more, and has no entries.
            Err(Errno::NOENT) if self.nodes.nameless(node.0).is_some() => Ok(Vec::new()),
            listing => Ok(listing?.into_iter().collect()),
        }
    }

    /// The listing of an open directory. A read from the beginning (rewinddir(3)) makes a new listing.
    pub(crate) fn listing(
        &mut self,
        node: INodeNo,
        handle: FileHandle,
        attributes_of: u64,
    ) -> Answer<&[(OsString, Kind)]> {
        let known = self.listings.get(&handle.0);
        let has_begun = known.ok_or(fuser::Errno::EBADF)?.is_some();
        if attributes_of == 0 || !has_begun {
            let listing = self.names_in(node)?;
            self.listings.insert(handle.0, Some(listing));
        }
        let known = self.listings.get(&handle.0).and_then(Option::as_ref);
        Ok(known.ok_or(fuser::Errno::EBADF)?)
    }

    pub(crate) fn list_sent(&mut self, handle: FileHandle) {
        self.listings.remove(&handle.0);
    }
}
