//! The part of the determinant log that a shadow replay replays.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::atomic::Ordering};

use north_abi::{handover::Position, layout::stream_offset};

use super::Memory;

/// The determinants for a shadow replay.
#[derive(Debug)]
pub struct LogSection {
    pub(super) file: File,
    pub(super) base: u64,
    /// End of the section, bytes.
    pub end: u64,
}

impl LogSection {
    /// Copies the section to a memory file of its own, for a shadow replay that stops at the end and becomes the
    /// image with this number.
    ///
    /// # Errors
    /// No memory is left.
    pub fn copy_log(&self, image: u64, positions: &mut [Position]) -> io::Result<Memory> {
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
