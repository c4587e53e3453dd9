//! A record that comes from elsewhere, in pieces that end anywhere.

use std::io;

use north_abi::Record;

use crate::{Memory, framing::each_whole};

/// The way of one process's stream into the memory file: whole records only, since whoever replays it may be there
/// already.
#[derive(Debug)]
pub struct Feed {
    process: u32,
    /// The beginning of a record.
    torn: Vec<u8>,
}

impl Feed {
    /// Of the process with this number.
    #[must_use]
    pub fn new(process: u32) -> Self {
        Self {
            process,
            torn: Vec::new(),
        }
    }

    /// The next bytes of the stream.
    ///
    /// # Errors
    /// There is no room for them.
    pub fn take(&mut self, memory: &Memory, bytes: &[u8]) -> io::Result<()> {
        self.torn.extend_from_slice(bytes);
        // Where there is something else the replay will find it, and say so.
        let learn = |_, record: &Record<'_>| memory.learn(self.process, record);
        let whole = each_whole(&self.torn, learn).unwrap_or(self.torn.len());
        memory.append(self.process, &self.torn[..whole])?;
        self.torn.drain(..whole);
        Ok(())
    }

    /// Where the next bytes of the stream belong.
    #[must_use]
    pub fn position(&self, memory: &Memory) -> u64 {
        memory.length(self.process) + self.torn.len() as u64
    }

    /// Is there more than whole records?
    #[must_use]
    pub fn is_torn(&self) -> bool {
        !self.torn.is_empty()
    }
}
