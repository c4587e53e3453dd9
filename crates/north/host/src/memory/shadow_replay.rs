//! What a rehearsal has to replay.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::atomic::Ordering};

use north_abi::{handover::Position, layout::stream_offset};

use super::Memory;

/// What a rehearsal has to replay.
#[derive(Debug)]
pub struct Score {
    pub(super) file: File,
    pub(super) base: u64,
    /// Where it ends.
    pub end: u64,
}

impl Score {
    /// A copy of it, in memory of its own, for a rehearsal that stops at its end and becomes the image with this
    /// number.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn copy(&self, image: u64, positions: &mut [Position]) -> io::Result<Memory> {
        let memory = Memory::new()?;
        let mut piece = vec![0; 1 << 20];
        let mut at = self.base;
        while at < self.end {
            let length = usize::try_from(self.end - at).unwrap_or(usize::MAX);
            let piece = &mut piece[..length.min(1 << 20)];
            self.file.read_exact_at(piece, stream_offset(0) + at)?;
            memory.file.write_all_at(piece, stream_offset(0) + at)?;
            at += piece.len() as u64;
        }
        let page = memory.page();
        page.processes.0[0].base.store(self.base, Ordering::Release);
        page.processes.0[0].head.store(self.end, Ordering::Release);
        page.image.store(image, Ordering::Release);
        page.pause_at.store(self.end, Ordering::Release);
        memory.to_be_replayed(positions)?;
        Ok(memory)
    }
}
