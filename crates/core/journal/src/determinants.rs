//! What the processes of a server with state were told, each process's stream from its beginning on
//! (`ft-tcp-infocom-2001`, III.B: the log of what was read and of what else was not the server's own doing).
//!
//! The streams belong together: a part of them that ends anywhere can be replayed, one that lacks something in its
//! middle cannot. So there are no holes, and where there is no room for more all of it goes.
//!
//! An image of the first process takes the place of what is before its end in that one's stream, in one step
//! ([`Determinants::commit_image`]): before it, the record is the image before and all since; after it, the new image
//! and what comes behind that. What has come of an image that was not committed is no part of the record, and the
//! first to go.

use std::collections::BTreeMap;

use crate::image::{Image, ImageError, Upload};
use crate::stream::Stream;

/// Nothing of the record is kept any more: there was no room for what came.
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
    /// So much of the streams was with somebody before who has it no more.
    said: BTreeMap<u32, u64>,
    /// What the stream of the first process begins behind.
    image: Option<Image>,
    /// One that is on its way.
    upload: Option<Upload>,
}

/// Of what may be held, this part is left to other things by an image: it must not take the room of clients' bytes.
const SHARE_WITHOUT_IMAGE: u64 = 8;
/// Longest stream, bytes.
const STREAM_BYTES_MAX: u64 = 1 << 48;

impl Determinants {
    /// The number of the record, if there is one.
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

    /// What comes from now on belongs to the record with this number; what is kept of another one is dropped.
    pub fn begin(&mut self, record: u64) {
        if self.record != Some(record) && self.over != Some(record) {
            *self = Self {
                record: Some(record),
                drops: self.drops + 1,
                ..Self::default()
            };
        }
    }

    /// So much of this record's streams was with somebody before, and things may have been said on its account.
    pub fn was_said(&mut self, record: u64, streams: &[(u32, u64)]) {
        if self.record == Some(record) {
            for (process, length) in streams {
                let known = self.said.entry(*process).or_default();
                *known = (*known).max(*length);
            }
        }
    }

    /// Is as much of it here as was anywhere before? Where there is less, what was said already would be forgotten.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let length = |process| self.streams.get(process).map_or(0, Stream::length);
        let mut said = self.said.iter();
        said.all(|(process, said)| length(process) >= *said)
    }

    /// The record is over: nothing of it is kept, nor taken.
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

    /// Bytes of a stream, of which some may be here and some before them missing. `most` is what may be held.
    /// Tells how long the stream is now; `None`: they belong to another record.
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
            self.drop_upload(); // the record is worth more than one that may come
        }
        if self.held() > most {
            self.end(record);
            return Err(NoRoom);
        }
        Ok(Some(length))
    }

    /// What is behind the first `length` bytes of a stream is dropped.
    pub fn cut(&mut self, process: u32, length: u64) {
        let stream = self.streams.get_mut(&process);
        if let Some(stream) = stream.filter(|stream| length < stream.length()) {
            self.held -= stream.cut(length);
            self.drops += 1;
            // Who cuts it knows that nothing was said on account of the rest.
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

    /// The next bytes of an image of the record's first process, `length` bytes long, from its first on. `most` is
    /// what may be held. Tells how much of it is there.
    ///
    /// # Errors
    /// Why it is not taken. Nothing is left of it then.
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
        // Each time: others take room meanwhile.
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

    /// With a whole image of so many bytes besides all else.
    fn has_room_for(&self, length: u64, most: u64) -> bool {
        let come = self.upload.as_ref().map_or(0, Upload::held);
        let others = self.held() - come;
        let needed = others.saturating_add(Upload::held_in_the_end(length));
        needed <= most - most / SHARE_WITHOUT_IMAGE
    }

    /// What has come of an image that is not part of the record is not wanted.
    pub fn drop_upload(&mut self) {
        self.upload = None;
    }

    /// From now on the record is this image, which has come as a whole, and what the stream of the first process has
    /// from `base` on. There were so many `processes`. Who says so again is told the same.
    ///
    /// # Errors
    /// It is not here as a whole, or the record does not go on with it. All is as it was.
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
            self.drop_upload(); // that was told again
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

    /// So many bytes of a stream at the most, fewer at its end; none of what an image has the place of.
    #[must_use]
    pub fn read(&self, process: u32, from: u64, most: usize) -> Vec<u8> {
        let stream = self.streams.get(&process);
        stream.map_or_else(Vec::new, |stream| stream.read(from, most))
    }
}

#[cfg(test)]
mod tests;
