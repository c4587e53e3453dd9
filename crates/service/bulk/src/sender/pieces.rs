//! The data of an item, where it travels in the control stream.

use std::{io::Read, os::unix::fs::FileExt};

use blast::{BlastRanges, Layout};
use protocol::bulk::{ContentHash, PIECE_LEN_MAX};

use super::{Input, Item};
use crate::BulkError;

/// The bytes of an item, one after the other. A piece lies in one blast.
pub(super) struct Pieces<'a> {
    item: &'a mut Item,
    layout: Layout,
    position: u64,
    hasher: blake3::Hasher,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(item: &'a mut Item, layout: Layout) -> Self {
        Self {
            item,
            layout,
            position: 0,
            hasher: blake3::Hasher::new(),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, BulkError> {
        let position = self.position;
        let in_blast = self.layout.blast_bytes() - position % self.layout.blast_bytes();
        let most = usize::try_from(in_blast)
            .unwrap_or(PIECE_LEN_MAX)
            .min(PIECE_LEN_MAX);
        let mut bytes = vec![0; most];
        let len = match &mut self.item.input {
            Input::File(file) => {
                let rest = self.item.size.unwrap_or(0) - position;
                let len = most.min(usize::try_from(rest).unwrap_or(most));
                let read = file.read_exact_at(&mut bytes[..len], position);
                read.map_err(|_| BulkError::SourceChanged)?;
                len
            }
            Input::Stream(input) => read_some(input, &mut bytes).map_err(BulkError::Source)?,
        };
        if len == 0 {
            return Ok(None);
        }
        bytes.truncate(len);
        self.hasher.update(&bytes);
        self.position += u64::try_from(len).unwrap_or(0);
        Ok(Some((position, bytes)))
    }

    pub(super) fn is_present(&self, position: u64, present: &BlastRanges) -> bool {
        let blast = position / self.layout.blast_bytes();
        self.item.size.is_some() && u32::try_from(blast).is_ok_and(|it| present.contains(it))
    }

    pub(super) fn end(&self) -> (u64, ContentHash) {
        (
            self.position,
            ContentHash(*self.hasher.finalize().as_bytes()),
        )
    }
}

/// The bytes that are there; 0 at the end.
fn read_some(input: &mut dyn Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match input.read(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
