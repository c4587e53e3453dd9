//! Upload of an image of the server to a logger on another machine: of a new image, before the image replaces the
//! record here; or of the image in use, to a logger that has lost the records.
//!
//! Only a small part of the image is in flight at a time, to keep the delay of other messages to the logger short. The
//! logger commits the image in a single step, and reports the commit. After a death before the commit, the record is
//! unchanged, here and at the logger. After a death between the logger's commit and the commit here, this host has the
//! image before and all determinants since, and the logger has the new image and the determinants since. Both make the
//! same server. Neither end drops determinants before the image is there: afterwards only the image has their effect.

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

/// An image in transfer.
pub(super) struct Upload {
    pack: Pack,
    /// Number of the record, and number of the image.
    of: (u64, u64),
    /// Position in the record at which the image was made.
    base: u64,
    /// Bytes sent, and bytes acknowledged.
    told: u64,
    there: u64,
    /// The commit was requested.
    is_asked: bool,
    /// The new image, which waits for the commit; `None`: the image is in use here.
    made: Option<NewImage>,
}

/// State of an upload.
pub(crate) enum Uploaded {
    NotYet,
    /// The logger has the new image: the image replaces the record here, too.
    New(Box<NewImage>),
    /// The logger had lost the records, and has the image again.
    Again,
    /// The upload failed, and the image is no checkpoint.
    Failed(String),
    /// The logger has lost the records, and cannot get the image again.
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

    /// Starts again at the beginning, on another control stream.
    fn restart(&mut self) {
        (self.told, self.there, self.is_asked) = (0, 0, false);
    }

    /// The requests that may be sent now.
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

/// Uploads of a service, at most a single upload at a time.
#[derive(Default)]
pub(super) struct Uploads {
    now: Option<Upload>,
    /// The logger must drop the bytes of an unfinished image.
    drops: bool,
}

/// Record and image of this host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here<'a> {
    pub(super) record: u64,
    /// Beginning of the first process's stream, and the image that replaces everything before.
    pub(super) base: u64,
    pub(super) last: Option<&'a Image>,
}

impl Uploads {
    pub(super) fn is_under_way(&self) -> bool {
        self.now.is_some()
    }

    /// A new image of this record was made.
    pub(super) fn begin(&mut self, made: NewImage, record: u64) -> Result<(), String> {
        let image = made.image().ok_or("it is in use")?;
        let upload = Upload::new(image, record, made.end).map_err(|error| error.to_string())?;
        self.now = Some(Upload {
            made: Some(made),
            ..upload
        });
        Ok(())
    }

    /// Requests for the logger now. An error inside: the image cannot be read, and is not sent any more.
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

    /// The present upload will not succeed.
    fn end(&mut self, why: String) -> Uploaded {
        match self.now.take() {
            None => Uploaded::NotYet,
            Some(Upload { made: Some(_), .. }) => Uploaded::Failed(why),
            Some(_) => Uploaded::Never(why),
        }
    }

    /// Handles the logger's reply about an image.
    fn on_reply(&mut self, reply: ImageReply) -> Uploaded {
        let Some(upload) = self.now.as_mut().filter(|one| one.of == reply.image) else {
            return Uploaded::NotYet; // an upload that was given up
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

    /// The control stream is a new stream: everything in flight is lost.
    fn restart(&mut self) {
        if let Some(upload) = &mut self.now {
            upload.restart();
        }
    }

    /// Compares with the state of the logger. If the logger lacks the image, the upload starts again.
    fn compare(&mut self, there: &Streams, here: Here<'_>) -> Uploaded {
        if let Some(upload) = &self.now {
            let known = there.image.map(|image| (here.record, image.number));
            if Some(upload.of) == known {
                return self.is_there(); // the answer was lost
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

    /// The server has died: a new image in transfer is not wanted any more.
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

    /// The record is a new record, of which the logger has no image.
    pub(super) fn forget(&mut self) {
        self.now = None;
    }
}

impl North {
    /// Requests about an image for the logger now. An error inside: the image is not sent any more.
    pub(crate) fn image_message(&mut self) -> Result<Vec<Request>, Uploaded> {
        let processes = self.memory.processes().end;
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(Vec::new());
        };
        let requests = checkpoints.uploads.requests(processes);
        requests.map_err(|uploaded| self.noted(uploaded))
    }

    /// Handles the logger's reply about an image.
    pub(crate) fn handle_image_reply(&mut self, reply: ImageReply) -> Uploaded {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Uploaded::NotYet;
        };
        let uploaded = checkpoints.uploads.on_reply(reply);
        self.noted(uploaded)
    }

    /// The control stream to the logger is a new stream.
    pub(crate) fn restart_upload(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.uploads.restart();
        }
    }

    /// Compares with the state of the logger.
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
            self.memory.logger_is_full(); // or output would wait for ever
        }
        uploaded
    }
}

#[cfg(test)]
mod tests;
