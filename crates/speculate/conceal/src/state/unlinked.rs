//! Files without a name.

use std::{os::fd::OwnedFd, sync::Arc};

use encapsulation::Identity;
use fuser::INodeNo;
use rustix::fs::OFlags;

use super::{Answer, Refusal, State};
use crate::store::reopened;

impl State {
    /// The file without a name: hidden, or still open in a process (fstat(2) comes without a handle).
    pub(super) fn kept(&self, node: INodeNo, identity: Option<Identity>) -> Option<Arc<OwnedFd>> {
        match identity {
            Some(Identity::Hidden(id)) => self.tree.hidden.file(id).ok(),
            _ => self.open_file(node),
        }
    }

    /// The open file of this inode; where the kernel does not name the handle, any file known by the inode's number.
    pub(super) fn open_file(&self, node: INodeNo) -> Option<Arc<OwnedFd>> {
        let mut open = self.files.values();
        let found = open.find(|open| open.node == node.0);
        let found = found.map(|open| Arc::clone(&open.file));
        found.or_else(|| self.unopened.held(node.0))
    }

    /// The old name is free.
    pub(super) fn is_nowhere(&mut self, node: INodeNo) -> Answer<bool> {
        let path = self.located(node)?;
        let there = self.tree.look(&path);
        Ok(there == Err(rustix::io::Errno::NOENT))
    }

    /// Opens the file once more by a descriptor in `/proc`, as for a shell's here-document.
    ///
    /// # Errors
    /// The refusal's: another process may have seen a file that no process has open for writing.
    pub(crate) fn open_nameless(
        &mut self,
        node: INodeNo,
        writes: bool,
        cut: bool,
        refusal: Refusal,
    ) -> Answer<Arc<OwnedFd>> {
        let identity = self.nodes.identity(node.0);
        if !self.is_nowhere(node)? {
            return Err(refusal);
        }
        let Some(file) = self.kept(node, identity) else {
            return Err(refusal);
        };
        if !writes && !cut {
            return Ok(Arc::new(reopened(&file, OFlags::RDONLY)?));
        }
        self.tree.may_change()?;
        let is_own = match (&self.tree.concealed, identity) {
            (None, _) => true,
            (Some(concealed), Some(Identity::Hidden(id))) => concealed.is_written(id),
            (Some(_), _) => false,
        };
        if !is_own {
            return Err(refusal);
        }
        let file = reopened(&file, OFlags::RDWR)?;
        if cut {
            rustix::fs::ftruncate(&file, 0)?;
        }
        Ok(Arc::new(file))
    }
}
