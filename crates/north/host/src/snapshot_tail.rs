//! Data that belongs to an image and is not in the image of the stopped process.

use north_abi::handover::{Ends, Entry};

use crate::{handover::HandoverError, handover_report::HandoverReport};

/// Output that clients may lack, and the connections that the process had open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotTail {
    /// Open connections with their descriptors.
    pub open: Vec<(u32, Ends)>,
    pub(crate) report: HandoverReport,
}

impl SnapshotTail {
    /// Encoded for a file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let open = self.open.iter().flat_map(|(fd, ends)| {
            let entry = Entry::Open {
                connection: 0,
                fd: *fd,
                ends: *ends,
            };
            entry.header()
        });
        self.report.to_bytes().into_iter().chain(open).collect()
    }

    /// Decodes a file.
    ///
    /// # Errors
    /// The file is malformed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandoverError> {
        let mut report = HandoverReport::default();
        let at = report.read(bytes);
        if at < bytes.len() {
            return Err(HandoverError::Malformed { at: at as u64 });
        }
        Ok(report.into_snapshot_tail())
    }
}

#[cfg(test)]
mod tests;
