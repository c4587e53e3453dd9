//! An image of the server goes to a logger on another machine: one that was made just now, before it takes the place
//! of the record here; or the one that has it already, to a logger that has begun anew.
//!
//! So little of it is under way at a time that nothing else which goes there waits for it for long. The logger commits
//! it in one step, and says so. Whoever dies before: the record is what it was, here and there. Whoever dies between
//! that and our own commit: here it is the image before and all notes since, there the new image and the notes since,
//! and both make the same server. Notes that an image has the place of are nowhere but in the image, so they go before
//! the image does at neither end.

use checkpoint::{Image, Pack};
use protocol::control::Request;

use super::North;
use crate::{
    images::NewImage,
    logger_client::{ImageReply, ImageState, Streams},
};

/// Bytes of an image in one request, and bytes that may be unanswered.
const PIECE_BYTES: usize = 64 << 10;
const IN_FLIGHT_BYTES: u64 = 4 * PIECE_BYTES as u64;

/// An image on its way.
pub(super) struct Upload {
    pack: Pack,
    /// The record that it is of, and its number.
    of: (u64, u64),
    /// How far of the record it reaches.
    base: u64,
    /// So much of it was told, and so much is there, bytes.
    told: u64,
    there: u64,
    /// It was asked to be committed.
    is_asked: bool,
    /// Here it waits for that; `None`: it is in use.
    made: Option<NewImage>,
}

/// What became of an upload.
pub(crate) enum Uploaded {
    NotYet,
    /// It takes the place of the record here, too.
    New(Box<NewImage>),
    /// The logger has begun anew, and has the image again.
    Again,
    /// It could not be, and is no checkpoint.
    Failed(String),
    /// The logger has begun anew, and cannot have the image again.
    Never(String),
}

impl Upload {
    fn new(image: &Image, record: u64, base: u64) -> std::io::Result<Self> {
        Ok(Self {
            pack: Pack::of(image)?,
            of: (record, image.number),
            base,
            told: 0,
            there: 0,
            is_asked: false,
            made: None,
        })
    }

    /// From its beginning, on another stream.
    fn restart(&mut self) {
        (self.told, self.there, self.is_asked) = (0, 0, false);
    }

    /// What can be told now.
    fn requests(&mut self, processes: u32) -> std::io::Result<Vec<Request>> {
        let ((record, image), length) = (self.of, self.pack.length());
        let mut requests = Vec::new();
        while self.told < length && self.told - self.there < IN_FLIGHT_BYTES {
            let from = self.told;
            let bytes = self.pack.read(from, PIECE_BYTES)?;
            self.told += bytes.len() as u64;
            requests.push(Request::TellImage {
                record,
                image,
                length,
                from,
                bytes,
            });
        }
        if self.there == length && !self.is_asked {
            self.is_asked = true;
            requests.push(Request::CommitImage {
                record,
                image,
                base: self.base,
                processes,
            });
        }
        Ok(requests)
    }
}

/// Those of a service: one at a time.
#[derive(Default)]
pub(super) struct Uploads {
    now: Option<Upload>,
    /// The logger is to forget what it was told of one.
    drops: bool,
}

/// What there is here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here<'a> {
    pub(super) record: u64,
    /// Where the first process's stream begins, and the image that has the place of what is before.
    pub(super) base: u64,
    pub(super) last: Option<&'a Image>,
}

impl Uploads {
    pub(super) fn is_under_way(&self) -> bool {
        self.now.is_some()
    }

    /// One was made, of this record.
    pub(super) fn begin(&mut self, made: NewImage, record: u64) -> Result<(), String> {
        let image = made.image().ok_or("it is in use")?;
        let upload = Upload::new(image, record, made.end).map_err(|error| error.to_string())?;
        self.now = Some(Upload {
            made: Some(made),
            ..upload
        });
        Ok(())
    }

    /// What the logger is to be told now. An error inside: it cannot be read, and goes there no more.
    fn requests(&mut self, processes: u32) -> Result<Vec<Request>, Uploaded> {
        let drops = std::mem::take(&mut self.drops).then_some(Request::DropImage);
        let mut requests: Vec<_> = drops.into_iter().collect();
        if let Some(upload) = &mut self.now {
            match upload.requests(processes) {
                Ok(more) => requests.extend(more),
                Err(error) => {
                    self.drops = true;
                    return Err(self.end(error.to_string()));
                }
            }
        }
        Ok(requests)
    }

    /// The one that is on its way will not come there.
    fn end(&mut self, why: String) -> Uploaded {
        match self.now.take() {
            None => Uploaded::NotYet,
            Some(Upload { made: Some(_), .. }) => Uploaded::Failed(why),
            Some(_) => Uploaded::Never(why),
        }
    }

    /// The logger has said something of an image.
    fn on_reply(&mut self, reply: ImageReply) -> Uploaded {
        let Some(upload) = self.now.as_mut().filter(|one| one.of == reply.image) else {
            return Uploaded::NotYet; // of one that nobody waits for any more
        };
        match reply.state {
            ImageState::There(bytes) => {
                upload.there = bytes.min(upload.told);
                Uploaded::NotYet
            }
            ImageState::Kept => self.is_there(),
            ImageState::Refused(why) => self.end(why),
        }
    }

    fn is_there(&mut self) -> Uploaded {
        match self.now.take().map(|upload| upload.made) {
            None => Uploaded::NotYet,
            Some(Some(made)) => Uploaded::New(Box::new(made)),
            Some(None) => Uploaded::Again,
        }
    }

    /// There is another stream to the logger: what was under way is lost.
    fn restart(&mut self) {
        if let Some(upload) = &mut self.now {
            upload.restart();
        }
    }

    /// That is what the logger has. If it lacks what only the image has, that goes there again.
    fn compare(&mut self, there: &Streams, here: Here<'_>) -> Uploaded {
        if let Some(upload) = &self.now {
            let known = there.image.map(|image| (here.record, image.number));
            if Some(upload.of) == known {
                return self.is_there(); // and its answer was lost
            }
            if upload.of.0 == here.record {
                return Uploaded::NotYet;
            }
            self.stop();
        }
        let lacks = there.edition.is_some() && there.length(0) < here.base;
        let Some(last) = here.last.filter(|_| lacks) else {
            return Uploaded::NotYet;
        };
        match Upload::new(last, here.record, here.base) {
            Ok(upload) => {
                self.now = Some(upload);
                Uploaded::NotYet
            }
            Err(error) => Uploaded::Never(error.to_string()),
        }
    }

    /// One that was made just now is not wanted any more: the server has died.
    pub(super) fn stop_new(&mut self) {
        if self
            .now
            .as_ref()
            .is_some_and(|upload| upload.made.is_some())
        {
            self.stop();
        }
    }

    fn stop(&mut self) {
        self.drops |= self.now.take().is_some();
    }

    /// The record is another one, of which the logger has no image.
    pub(super) fn forget(&mut self) {
        self.now = None;
    }
}

impl North {
    /// What the logger is to be told of an image now. An error inside: it goes there no more.
    pub(crate) fn image_message(&mut self) -> Result<Vec<Request>, Uploaded> {
        let processes = self.memory.processes().end;
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(Vec::new());
        };
        let requests = checkpoints.uploads.requests(processes);
        requests.map_err(|uploaded| self.noted(uploaded))
    }

    /// The logger has said something of an image.
    pub(crate) fn handle_image_reply(&mut self, reply: ImageReply) -> Uploaded {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Uploaded::NotYet;
        };
        let uploaded = checkpoints.uploads.on_reply(reply);
        self.noted(uploaded)
    }

    /// There is another stream to the logger.
    pub(crate) fn restart_upload(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.uploads.restart();
        }
    }

    /// That is what the logger has.
    pub(crate) fn compare_image(&mut self, there: &Streams) -> Uploaded {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Uploaded::NotYet;
        };
        let here = Here {
            record: self.memory.record(),
            base: self.memory.base(0),
            last: checkpoints.images.last().map(|last| &last.image),
        };
        let uploaded = checkpoints.uploads.compare(there, here);
        self.noted(uploaded)
    }

    fn noted(&self, uploaded: Uploaded) -> Uploaded {
        if let Uploaded::Never(_) = uploaded {
            self.memory.logger_is_full(); // or what is said waits for ever
        }
        uploaded
    }
}

#[cfg(test)]
mod tests;
