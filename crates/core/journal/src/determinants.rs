//! The determinants of a server with state: the stream of each process, from the beginning of the process on
//! (`ft-tcp-infocom-2001`, III.B: the log of all input, and of all other nondeterministic events).
//!
//! The streams belong together: a prefix of the streams can be replayed, streams with a gap cannot. So the streams
//! have no gaps, and without memory for more bytes the whole record is dropped.
//!
//! A checkpoint image of the first process replaces the prefix of that process's stream, in one step
//! ([`Determinants::commit_image`]): before the step, the record is the previous image and all bytes since; after the
//! step, the new image and the bytes behind. The uploaded part of an uncommitted image is no part of the record, and
//! is dropped first.

use std::collections::BTreeMap;

use crate::image::{Image, ImageError, Upload};
use crate::stream::Stream;

/// The record was dropped: there was no memory for the bytes that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the determinant log is full")]
pub struct NoRoom;

/// The streams of a service's processes.
#[derive(Debug, Default)]
pub struct Determinants {
    record: Option<u64>,
    streams: BTreeMap<u32, Stream>,
    /// No more is taken of the record with this number.
    over: Option<u64>,
    held: u64,
    /// How often something was dropped.
    drops: u64,
    /// Bytes of each stream that an earlier logger had, and lost.
    said: BTreeMap<u32, u64>,
    /// The image that replaces the prefix of the first process's stream.
    image: Option<Image>,
    /// An image during the upload.
    upload: Option<Upload>,
}

/// An image leaves this part of the limit free (1/8), so that client data keeps memory.
const SHARE_WITHOUT_IMAGE: u64 = 8;
/// Longest stream, bytes.
const STREAM_BYTES_MAX: u64 = 1 << 48;

impl Determinants {
    /// The number of the record, if there is a record.
    #[must_use]
    pub fn record(&self) -> Option<u64> {
        self.record
    }

    /// The streams: number of the process, and length in bytes.
    pub fn streams(&self) -> impl Iterator<Item = (u32, u64)> {
        let streams = self.streams.iter();
        streams.map(|(process, stream)| (*process, stream.length()))
    }

    /// Memory that is held, that of images included, bytes.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held + self.held_by_images()
    }

    /// Memory of images, bytes.
    #[must_use]
    pub fn held_by_images(&self) -> u64 {
        let whole = self.image.as_ref().map_or(0, Image::held);
        whole + self.upload.as_ref().map_or(0, Upload::held)
    }

    /// Begins the record with this number. A record with another number is dropped.
    pub fn begin(&mut self, record: u64) {
        if self.record != Some(record) && self.over != Some(record) {
            *self = Self {
                record: Some(record),
                drops: self.drops + 1,
                ..Self::default()
            };
        }
    }

    /// An earlier logger had this much of the record's streams, and the server may have sent output on that account.
    pub fn was_said(&mut self, record: u64, streams: &[(u32, u64)]) {
        if self.record == Some(record) {
            for (process, length) in streams {
                let known = self.said.entry(*process).or_default();
                *known = (*known).max(*length);
            }
        }
    }

    /// Whether the streams are as long as at any earlier logger. Shorter streams would forget output that was sent.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let length = |process| self.streams.get(process).map_or(0, Stream::length);
        let mut said = self.said.iter();
        said.all(|(process, said)| length(process) >= *said)
    }

    /// Ends the record: all bytes are dropped, and no more bytes are accepted.
    pub fn end(&mut self, record: u64) {
        if self.record == Some(record) {
            *self = Self {
                over: Some(record),
                drops: self.drops + 1,
                ..Self::default()
            };
        }
    }

    /// Has this record ended?
    #[must_use]
    pub fn is_over(&self, record: u64) -> bool {
        self.over == Some(record)
    }

    /// Appends bytes at `offset` of a stream. Some of the bytes may be here already, and bytes before `offset` may be
    /// missing. `most` bounds the memory, in bytes. Returns the length of the stream now; `None`: the bytes belong to
    /// another record.
    ///
    /// # Errors
    /// [`NoRoom`]: the record has ended.
    pub fn append(
        &mut self,
        record: u64,
        process: u32,
        offset: u64,
        bytes: &[u8],
        most: u64,
    ) -> Result<Option<u64>, NoRoom> {
        if self.record != Some(record) {
            return if self.is_over(record) {
                Err(NoRoom)
            } else {
                Ok(None)
            };
        }
        let stream = self.streams.entry(process).or_default();
        let known = stream.length().checked_sub(offset);
        let known = known.and_then(|known| usize::try_from(known).ok());
        if let Some(new) = known.and_then(|known| bytes.get(known..)) {
            self.held += stream.append(new);
        }
        let length = stream.length();
        if self.held() > most {
            self.drop_upload(); // the record is worth more than an image that may arrive
        }
        if self.held() > most {
            self.end(record);
            return Err(NoRoom);
        }
        Ok(Some(length))
    }

    /// Drops the bytes behind the first `length` bytes of a stream.
    pub fn cut(&mut self, process: u32, length: u64) {
        let stream = self.streams.get_mut(&process);
        if let Some(stream) = stream.filter(|stream| length < stream.length()) {
            self.held -= stream.cut(length);
            self.drops += 1;
            // The caller knows that no output depends on the dropped bytes.
            self.said
                .entry(process)
                .and_modify(|said| *said = length.min(*said));
        }
    }

    /// How often something that was kept was dropped: as long as that is the same, the streams have only grown.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.drops
    }

    /// Takes the next bytes of an image of the record's first process. The image has `length` bytes. `most` bounds the
    /// memory, in bytes. Returns the number of bytes that are here.
    ///
    /// # Errors
    /// The reason of a refusal. The upload is dropped then.
    pub fn take_image(
        &mut self,
        record: u64,
        (image, length): (u64, u64),
        from: u64,
        bytes: &[u8],
        most: u64,
    ) -> Result<u64, ImageError> {
        if self.record != Some(record) {
            return Err(ImageError::OtherRecord);
        }
        if from == 0 {
            self.upload = Some(Upload::new(image, length));
        }
        // Checked for each part: the streams grow meanwhile.
        if !self.has_room_for(length, most) {
            self.drop_upload();
            return Err(ImageError::NoRoom);
        }
        let taken = match &mut self.upload {
            Some(upload) if upload.is(image, length) => upload.take(from, bytes),
            _ => return Err(ImageError::Torn),
        };
        if taken.is_err() {
            self.drop_upload();
        }
        taken
    }

    /// Whether a whole image of `length` bytes fits beside all other bytes.
    fn has_room_for(&self, length: u64, most: u64) -> bool {
        let come = self.upload.as_ref().map_or(0, Upload::held);
        let others = self.held() - come;
        let needed = others.saturating_add(Upload::held_in_the_end(length));
        needed <= most - most / SHARE_WITHOUT_IMAGE
    }

    /// Drops an uncommitted image.
    pub fn drop_upload(&mut self) {
        self.upload = None;
    }

    /// The record becomes this image, which is complete, and the bytes of the first process's stream from `base` on.
    /// The server had started `processes` processes. A repeated call succeeds again.
    ///
    /// # Errors
    /// The image is incomplete, or the record does not continue at `base`. The record is unchanged.
    pub fn commit_image(
        &mut self,
        record: u64,
        image: u64,
        base: u64,
        processes: u32,
    ) -> Result<(), ImageError> {
        if self.record != Some(record) {
            return Err(ImageError::OtherRecord);
        }
        if image == 0 || base > STREAM_BYTES_MAX {
            return Err(ImageError::Impossible);
        }
        if self
            .image
            .as_ref()
            .is_some_and(|known| known.is(image, base))
        {
            self.drop_upload(); // a repeated message
            return Ok(());
        }
        let before = self.streams.get(&0).map_or(0, Stream::base);
        let whole = self.upload.take_if(|upload| upload.is_whole(image));
        let whole = whole.filter(|_| base >= before).ok_or(ImageError::Torn)?;
        self.image = Some(whole.commit(base, processes));
        self.held -= self.streams.entry(0).or_default().release(base);
        self.drops += 1;
        Ok(())
    }

    /// The image that the record begins with.
    #[must_use]
    pub fn image(&self) -> Option<&Image> {
        self.image.as_ref()
    }

    /// At most `most` bytes of a stream, fewer at the end; no bytes that an image replaces.
    #[must_use]
    pub fn read(&self, process: u32, from: u64, most: usize) -> Vec<u8> {
        let stream = self.streams.get(&process);
        stream.map_or_else(Vec::new, |stream| stream.read(from, most))
    }
}

#[cfg(test)]
mod tests;
