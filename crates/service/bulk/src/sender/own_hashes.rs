//! Hashes of the source.

use std::{
    collections::BTreeMap,
    fs::File,
    sync::{atomic::AtomicBool, mpsc},
};

use blast::Layout;
use protocol::bulk::{BlastHash, ContentHash};

use super::{Input, Item};
use crate::{BulkError, hashes};

/// `None`: nobody wants the hash any more.
pub(super) fn hash_of(
    file: &File,
    size: u64,
    gives_up: &AtomicBool,
) -> std::io::Result<Option<ContentHash>> {
    let (tell, below) = mpsc::channel();
    let _ = tell.send(size);
    hashes::of_growing(file, size, &below, gives_up)
}

/// Hashes of the source's blasts, each made once.
pub(super) struct OwnHashes<'a> {
    file: Option<&'a File>,
    layout: Layout,
    pub(super) size: u64,
    known: BTreeMap<u32, BlastHash>,
}

impl<'a> OwnHashes<'a> {
    pub(super) fn new(item: &'a Item, layout: Layout) -> Self {
        Self {
            file: match &item.input {
                Input::File(file) => Some(file),
                Input::Stream(_) => None,
            },
            layout,
            size: item.size.unwrap_or(0),
            known: BTreeMap::new(),
        }
    }

    pub(super) fn is_equal(&mut self, blast: u32, hash: BlastHash) -> Result<bool, BulkError> {
        let Some(file) = self.file else {
            return Ok(false);
        };
        if blast >= self.layout.blasts(self.size)? {
            return Err(BulkError::OutOfOrder);
        }
        let own = match self.known.get(&blast) {
            Some(known) => *known,
            None => {
                let own = hashes::of_blast(file, &self.layout, self.size, blast);
                let own = own.map_err(BulkError::Source)?;
                self.known.insert(blast, own);
                own
            }
        };
        Ok(own == hash)
    }
}
