//! Records that are written together.

use crate::format::{RECORD_HEADER, record_header};

/// Largest record, bytes.
pub const MAX_RECORD: usize = 1 << 20;

/// Records that are written together. The batch holds the bytes in the form on disk, so there is no further copy.
/// Emptied and reused.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// The offset of each record, header included.
    records: Vec<usize>,
}

impl Batch {
    /// Adds the record that `write` appends to the given vector. Returns whether the record was added: a record
    /// above [`MAX_RECORD`] is left out.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; RECORD_HEADER]);
        write(&mut self.bytes);
        if self.bytes.len().saturating_sub(start + RECORD_HEADER) > MAX_RECORD {
            self.bytes.truncate(start);
            return false;
        }
        self.records.push(start);
        true
    }

    /// Bytes to write.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the batch has no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Empties the batch. The batch keeps memory up to `most` bytes.
    pub fn clear(&mut self, most: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(most);
        self.records.clear();
    }

    /// The bytes for `place` in the segment `number`.
    pub(crate) fn seal(&mut self, number: u64, place: u64) -> &[u8] {
        let ends = self.records.iter().skip(1).copied();
        let ends = ends.chain([self.bytes.len()]).collect::<Vec<_>>();
        for (start, end) in self.records.iter().zip(ends) {
            let (header, bytes) = self.bytes[*start..end].split_at_mut(RECORD_HEADER);
            let offset = u64::try_from(*start).unwrap_or(u64::MAX);
            header.copy_from_slice(&record_header(number, place + offset, bytes));
        }
        &self.bytes
    }
}
