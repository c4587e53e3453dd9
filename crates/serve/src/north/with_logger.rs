//! The record at the logger, and here.

use std::{collections::HashMap, io};

use checkpoint::Unpack;
use protocol::control::KeptImage;
use wrap::{Feed, Memory};

use super::{North, RECORD};
use crate::{
    error::{ServeError, SystemContext},
    logger_client::LoggerClient,
};

impl North {
    /// A place for this image, with which it begins; `None`: without CRIU it is of no use here.
    pub(crate) fn receive(&mut self, image: &KeptImage) -> Result<Option<Unpack>, ServeError> {
        let checkpoints = self.checkpoints.as_mut();
        checkpoints
            .map(|one| one.images.receive(image.number))
            .transpose()
    }

    /// It is there.
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
        self.memory.begins_with(number, base, processes);
        Ok(())
    }

    /// Fetch it from there, behind the image with which it begins. An error inside: there is no room for it here.
    pub(crate) fn fetch(&self, logger: &mut LoggerClient) -> Result<io::Result<()>, ServeError> {
        // It may have been cut since it was asked for: another attempt was interrupted.
        for (process, length) in logger.determinants()?.streams {
            let mut feed = Feed::new(process);
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
            // Nothing was said that depended on what the dead host had begun to say to the logger.
            if feed.is_torn() {
                logger.cut_determinants(process, self.memory.length(process))?;
            }
        }
        Ok(Ok(()))
    }

    /// So much of the streams is with the logger, and nothing of others.
    pub(crate) fn is_with_the_logger(&self, streams: &[(u32, u64)]) {
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

    /// The next bytes, with their place, of streams that are as long as `heads` says, of which the logger has so many; `None`: it
    /// has all, but for what is behind an image that it does not have.
    pub(crate) fn lacking(
        &self,
        heads: &[(u32, u64)],
        there: &[(u32, u64)],
    ) -> Result<Option<(u32, u64, Vec<u8>)>, ServeError> {
        /// So much is told at a time, bytes.
        const PIECE: u64 = 1 << 20;
        let there: HashMap<u32, u64> = there.iter().copied().collect();
        let lacks = heads.iter().find_map(|(process, length)| {
            let from = there.get(process).copied().unwrap_or(0);
            (self.memory.base(*process) <= from && from < *length)
                .then(|| (*process, from, length - from))
        });
        let Some((process, from, more)) = lacks else {
            return Ok(None);
        };
        let mut bytes = vec![0; usize::try_from(more.min(PIECE)).unwrap_or(0)];
        self.memory.read(process, from, &mut bytes).doing(RECORD)?;
        Ok(Some((process, from, bytes)))
    }
}
