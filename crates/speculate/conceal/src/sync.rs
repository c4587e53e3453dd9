//! fsync(2) of concealed files: durable at the commit.
//!
//! A concealed file needs no durability. The request is stored with the hidden file, because another encapsulation
//! may reveal that file ([`Encapsulation::absorb`](encapsulation::Encapsulation::absorb)).

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use encapsulation::{Base as _, Effect, Encapsulation, Identity, Seen};
use fuser::{Errno, FileHandle, INodeNo, ReplyEmpty};
use rustix::fs::OFlags;

use crate::{
    base_tree::BaseTree,
    state::{Answer, State},
    store::Hidden,
};

impl State {
    /// The file to sync now, if any. `handle`: an open file.
    pub(crate) fn sync(
        &mut self,
        node: INodeNo,
        handle: Option<FileHandle>,
    ) -> Answer<Option<Arc<OwnedFd>>> {
        if !self.is_around() && self.tree.concealed.is_some() {
            if let Some(identity) = self.nodes.identity(node.0) {
                self.tree.hidden.sync_later(identity);
            }
            return Ok(None);
        }
        let file = match handle {
            None => {
                let path = match self.place(node) {
                    // The directory has no name any more, and is empty.
                    Err(_) if self.nodes.nameless(node.0).is_some() => return Ok(None),
                    path => path?,
                };
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                Arc::new(self.tree.real.file(&path, flags)?)
            }
            Some(_) if self.is_around() => Arc::new(self.unopened(node, OFlags::RDONLY)?),
            Some(handle) => self.file(handle)?,
        };
        Ok(Some(file))
    }
}

/// Revealed files with a stored request.
pub(crate) fn unsafe_yet(
    concealed: &Encapsulation,
    real: &BaseTree,
    hidden: &Hidden,
) -> Vec<Arc<OwnedFd>> {
    let wanted = hidden.to_sync();
    if wanted.is_empty() {
        return Vec::new();
    }
    let files = concealed
        .effects()
        .iter()
        .filter_map(|effect| match effect {
            Effect::Create { id, .. } | Effect::Replace { id, .. } => {
                let is_wanted = wanted.contains(&Identity::Hidden(*id));
                is_wanted.then(|| hidden.file(*id).ok()).flatten()
            }
            _ => None,
        });
    let times = concealed.directory_times();
    let directories = times.iter().filter_map(|(path, _)| {
        let Ok(Seen::There(stat)) = real.look(path) else {
            return None;
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let is_wanted = wanted.contains(&stat.identity);
        is_wanted.then(|| real.file(path, flags).ok().map(Arc::new))?
    });
    files.chain(directories).collect()
}

/// Syncs files. The files are visible already, and therefore an error is only logged.
pub(crate) fn make_safe(all: &[Arc<OwnedFd>]) {
    for file in all {
        if let Err(error) = rustix::fs::fsync(file) {
            tracing::warn!("committed files may not be durable: {error}");
        }
    }
}

/// Syncs a file and then answers; other answers go on meanwhile.
pub(crate) fn answer(file: Result<Option<Arc<OwnedFd>>, Errno>, reply: ReplyEmpty) {
    match file {
        Ok(None) => reply.ok(),
        Err(error) => reply.error(error),
        Ok(Some(file)) => {
            let asked = Arc::new(Mutex::new(Some((file, reply))));
            let there = Arc::clone(&asked);
            let begun = thread::Builder::new().spawn(move || answer_when_safe(&there));
            if begun.is_err() {
                // Without a thread, other answers wait.
                answer_when_safe(&asked);
            }
        }
    }
}

fn answer_when_safe(asked: &Mutex<Option<(Arc<OwnedFd>, ReplyEmpty)>>) {
    let taken = asked.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some((file, reply)) = taken else {
        return;
    };
    match rustix::fs::fsync(&file) {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(Errno::from_i32(error.raw_os_error())),
    }
}
