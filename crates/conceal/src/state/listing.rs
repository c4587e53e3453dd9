//! What is told of directories that are open.

use std::ffi::OsString;

use encapsulation::Kind;
use fuser::{Errno, FileHandle, INodeNo};

use super::{Answer, State};

impl State {
    pub(crate) fn list(&mut self, node: INodeNo) -> Answer<FileHandle> {
        let listing = self.names_in(node)?;
        self.next += 1;
        self.listings.insert(self.next, (listing, false));
        Ok(FileHandle(self.next))
    }

    fn names_in(&mut self, node: INodeNo) -> Answer<Vec<(OsString, Kind)>> {
        let path = self.path(node)?;
        Ok(self.tree.list(&path)?.into_iter().collect())
    }

    /// From its beginning once more (rewinddir(3)) it is told as it is then.
    pub(crate) fn listing(
        &mut self,
        node: INodeNo,
        handle: FileHandle,
        told: u64,
    ) -> Answer<&[(OsString, Kind)]> {
        let has_begun = self.listings.get(&handle.0).ok_or(Errno::EBADF)?.1;
        let again = if told == 0 && has_begun {
            Some(self.names_in(node)?)
        } else {
            None
        };
        let (listing, has_begun) = self.listings.get_mut(&handle.0).ok_or(Errno::EBADF)?;
        *has_begun = true;
        if let Some(again) = again {
            *listing = again;
        }
        Ok(listing)
    }

    pub(crate) fn told_all(&mut self, handle: FileHandle) {
        self.listings.remove(&handle.0);
    }
}
