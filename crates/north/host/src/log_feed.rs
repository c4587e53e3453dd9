//! Determinants from another host, in pieces of any length.

use std::io;

use north_abi::Record;

use crate::{Memory, framing::each_whole_record};

/// Feeds the stream of one process into the memory file, in whole records: a replica may replay at the same time.
#[derive(Debug)]
pub struct LogFeed {
    process: u32,
    /// Start of an incomplete record.
    torn: Vec<u8>,
}

impl LogFeed {
    /// A feed of the process with this number.
    #[must_use]
    pub fn new(process: u32) -> Self {
        Self {
            process,
            torn: Vec::new(),
        }
    }

    /// Feeds the next bytes of the stream.
    ///
    /// # Errors
    /// The memory file is full.
    pub fn take(&mut self, memory: &Memory, bytes: &[u8]) -> io::Result<()> {
        self.torn.extend_from_slice(bytes);
        // The replay finds and reports malformed records.
        let learn = |_, record: &Record<'_>| memory.learn(self.process, record);
        let whole = each_whole_record(&self.torn, learn).unwrap_or(self.torn.len());
        memory.append(self.process, &self.torn[..whole])?;
        self.torn.drain(..whole);
        Ok(())
    }

    /// Position of the next bytes in the stream.
    #[must_use]
    pub fn position(&self, memory: &Memory) -> u64 {
        memory.length(self.process) + self.torn.len() as u64
    }

    /// Whether the stream ends in an incomplete record.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        !self.torn.is_empty()
    }
}
