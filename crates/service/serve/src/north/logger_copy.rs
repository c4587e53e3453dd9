//! The record at the logger, and here.

use std::{collections::HashMap, io};

use checkpoint::Unpack;
use north_host::{LogFeed, Memory, OtherVersion};
use protocol::control::KeptImage;

use super::{North, RECORD};
use crate::{
    error::{ServeError, SystemContext},
    logger_client::LoggerClient,
};

/// Most bytes of each stream that a logger has had at any time: output may depend on these bytes. A logger that loses
/// the records twice, the second time before having all bytes again, still lacks bytes.
#[derive(Debug, Default)]
pub(super) struct LoggerCopy {
    record: u64,
    streams: HashMap<u32, u64>,
    /// The running server writes a record of another version, until the logger knows that no host continues from that
    /// record. The server does not learn the keys of a later session: output would wait for ever.
    pub(super) other_version: Option<OtherVersion>,
}

impl LoggerCopy {
    /// The logger has this many bytes now. Returns the most bytes that a logger had.
    pub(super) fn add(&mut self, record: u64, streams: &[(u32, u64)]) -> Vec<(u32, u64)> {
        if self.record != record {
            (self.record, self.streams) = (record, HashMap::new());
        }
        for (process, length) in streams {
            let known = self.streams.entry(*process).or_default();
            *known = (*known).max(*length);
        }
        let all = self.streams.iter();
        all.map(|(process, length)| (*process, *length)).collect()
    }

    /// This many bytes of the record with this number may be at a logger.
    pub(super) fn begin(&mut self, record: u64, streams: &[(u32, u64)]) {
        (self.record, self.streams) = (record, streams.iter().copied().collect());
    }
}

impl North {
    /// A place for the image at the beginning of the record; `None`: without CRIU the image is of no use here.
    pub(crate) fn receive(&mut self, image: &KeptImage) -> Result<Option<Unpack>, ServeError> {
        let checkpoints = self.checkpoints.as_mut();
        checkpoints
            .map(|one| one.images.receive(image.number))
            .transpose()
    }

    /// The image is complete here.
    pub(crate) fn begins_with(&mut self, image: &KeptImage) -> Result<(), ServeError> {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.begins_with(image)?;
        }
        let KeptImage {
            number,
            base,
            processes,
            ..
        } = *image;
        let begun = self.memory.begins_with(number, base, processes);
        begun.doing("begin with the image that the logger has")
    }

    /// Fetch the record from the logger, behind the image at the beginning. An error inside: the memory here is too
    /// small.
    pub(crate) fn fetch(&self, logger: &mut LoggerClient) -> Result<io::Result<()>, ServeError> {
        // The record may have been cut since the last reply: another attempt was interrupted.
        for (process, length) in logger.determinants()?.streams {
            let mut feed = LogFeed::new(process);
            let mut fed = Ok(());
            let from = self.memory.base(process);
            logger.read_determinants(process, from, length, |bytes| {
                if fed.is_ok() {
                    fed = feed.take(&self.memory, bytes);
                }
            })?;
            if fed.is_err() {
                return Ok(fed);
            }
            // No output depends on the incomplete last determinant of the dead host.
            if feed.is_torn() {
                logger.cut_determinants(process, self.memory.length(process))?;
            }
        }
        Ok(Ok(()))
    }

    /// The record does not grow any more, or lacks input of the server: no other host must continue from this record.
    pub(crate) fn is_over(&self) -> bool {
        self.is_lost || !self.memory.is_recording()
    }

    /// Bytes of each stream that a logger has had; for a record that is over, more than any stream will have.
    pub(crate) fn told(&mut self) -> Vec<(u32, u64)> {
        if self.is_over() {
            return vec![(0, u64::MAX)];
        }
        let streams = self.streams(Memory::ever_stable);
        self.logger_copy.add(self.memory.record(), &streams)
    }

    /// Only the earlier `serve` knew the logger's copy: all output that was about to leave may have left.
    pub(super) fn assume_logger_has_all(&mut self) {
        let streams = self.streams(Memory::last_output);
        self.logger_copy.begin(self.memory.record(), &streams);
    }

    /// The logger has this many bytes of these streams, and no bytes of other streams.
    pub(crate) fn set_stable(&self, streams: &[(u32, u64)]) {
        if let Some(record) = &self.logger_copy.other_version {
            record.give_up();
        }
        let streams: HashMap<u32, u64> = streams.iter().copied().collect();
        for process in self.memory.processes() {
            let bytes = streams.get(&process).copied();
            self.memory.set_stable(process, bytes.unwrap_or(0));
        }
    }

    /// The streams, each with a number that is not 0.
    pub(crate) fn streams(&self, number: fn(&Memory, u32) -> u64) -> Vec<(u32, u64)> {
        let all = self.memory.processes();
        let numbered = all.map(|process| (process, number(&self.memory, process)));
        numbered.filter(|(_, number)| *number != 0).collect()
    }

    /// The next missing bytes with process and position. `heads` are the lengths of the streams, `there` the lengths at
    /// the logger. `None`: the logger has all bytes, except for bytes behind an image that the logger lacks.
    pub(crate) fn lacking(
        &self,
        heads: &[(u32, u64)],
        there: &[(u32, u64)],
    ) -> Result<Option<(u32, u64, Vec<u8>)>, ServeError> {
        /// Bytes of a stream in one request.
        const PIECE_BYTES: u64 = 1 << 20;
        let there: HashMap<u32, u64> = there.iter().copied().collect();
        let lacks = heads.iter().find_map(|(process, length)| {
            let from = there.get(process).copied().unwrap_or(0);
            (self.memory.base(*process) <= from && from < *length)
                .then(|| (*process, from, length - from))
        });
        let Some((process, from, more)) = lacks else {
            return Ok(None);
        };
        let mut bytes = vec![0; usize::try_from(more.min(PIECE_BYTES)).unwrap_or(0)];
        self.memory.read(process, from, &mut bytes).doing(RECORD)?;
        Ok(Some((process, from, bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_bytes_are_missing_until_logged_again() {
        let mut told = LoggerCopy::default();
        assert_eq!(told.add(1, &[(0, 150)]), [(0, 150)]);
        // The logger has lost the records, and has the image.
        assert_eq!(told.add(1, &[(0, 100)]), [(0, 150)]);
        assert_eq!(told.add(1, &[(0, 200)]), [(0, 200)]);
        assert_eq!(told.add(2, &[]), []);
        told.begin(3, &[(0, 70)]);
        assert_eq!(told.add(3, &[]), [(0, 70)]);
    }
}
