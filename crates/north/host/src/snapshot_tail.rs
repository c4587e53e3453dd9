//! What belongs to an image of a process that has stopped in its replay, and is not in it.

use north_abi::handover::{Ends, Entry};

use crate::{handover::HandoverError, handover_report::Heard};

/// What the process has said and clients may lack, and which connections it had open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its open connections, with their descriptors.
    pub open: Vec<(u32, Ends)>,
    pub(crate) heard: Heard,
}

impl Kept {
    /// As it is in a file.
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
        self.heard.to_bytes().into_iter().chain(open).collect()
    }

    /// From a file.
    ///
    /// # Errors
    /// It is none of these.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandoverError> {
        let mut heard = Heard::default();
        let at = heard.read(bytes);
        if at < bytes.len() {
            return Err(HandoverError::Malformed { at: at as u64 });
        }
        Ok(heard.of_image())
    }
}

#[cfg(test)]
mod tests;
