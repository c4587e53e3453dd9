//! An image of the server goes to a logger on another machine: one that was made just now, before it takes the place of the record
//! here; or the one that has it already, to a logger that has begun anew.
//!
//! So little of it is under way at a time that nothing else which goes there waits for it for long. The logger commits it in
//! one step, and says so. Whoever dies before: the record is what it was, here and there. Whoever dies between that and our own
//! commit: here it is the image before and all notes since, there the new image and the notes since, and both make the same
//! server. Notes that an image has the place of are nowhere but in the image, so they go before the image does at neither end.

use checkpoint::{Image, Pack};
use protocol::control::Request;

use super::North;
use crate::{
    images::Made,
    logger_client::{Is, OfImage, Streams},
};

/// So much is told at a time, and so much may be under way, bytes.
const PIECE: usize = 64 << 10;
const UNDER_WAY: u64 = 4 * PIECE as u64;

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
    made: Option<Made>,
}

/// What became of an upload.
pub(crate) enum Uploaded {
    NotYet,
    /// It takes the place of the record here, too.
    New(Box<Made>),
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
        while self.told < length && self.told - self.there < UNDER_WAY {
            let from = self.told;
            let bytes = self.pack.read(from, PIECE)?;
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

impl North {
    /// An image was made: it goes to the logger first.
    pub(super) fn upload(&mut self, made: Made) -> Result<(), String> {
        let (record, base) = (self.memory.record(), made.end);
        let image = made.image().ok_or("it is in use")?;
        let upload = Upload::new(image, record, base).map_err(|error| error.to_string())?;
        self.set_upload(Upload {
            made: Some(made),
            ..upload
        });
        Ok(())
    }

    fn set_upload(&mut self, upload: Upload) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.upload = Some(upload);
        }
    }

    fn uploading(&mut self) -> Option<&mut Upload> {
        self.checkpoints.as_mut()?.upload.as_mut()
    }

    /// What the logger is to be told of an image now.
    ///
    /// # Errors
    /// It cannot be read, and goes there no more.
    pub(crate) fn of_image(&mut self) -> Result<Vec<Request>, Uploaded> {
        let processes = self.memory.processes().end;
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(Vec::new());
        };
        let mut requests = Vec::new();
        if std::mem::take(&mut checkpoints.drops_upload) {
            requests.push(Request::DropImage);
        }
        if let Some(upload) = &mut checkpoints.upload {
            match upload.requests(processes) {
                Ok(more) => requests.extend(more),
                Err(error) => return Err(self.ends_upload(error.to_string())),
            }
        }
        Ok(requests)
    }

    /// The one that is on its way will not come there.
    fn ends_upload(&mut self, why: String) -> Uploaded {
        let upload = self.checkpoints.as_mut().and_then(|one| one.upload.take());
        match upload {
            None => Uploaded::NotYet,
            Some(Upload { made: Some(_), .. }) => Uploaded::Failed(why),
            Some(_) => {
                self.memory.logger_is_full(); // or what is said waits for ever
                Uploaded::Never(why)
            }
        }
    }

    /// The logger has said something of an image.
    pub(crate) fn hear_of_image(&mut self, said: OfImage) -> Uploaded {
        let Some(upload) = self.uploading().filter(|one| one.of == said.image) else {
            return Uploaded::NotYet; // of one that nobody waits for any more
        };
        match said.is {
            Is::There(bytes) => {
                upload.there = bytes;
                Uploaded::NotYet
            }
            Is::Kept => self.is_uploaded(),
            Is::Refused(why) => self.ends_upload(why),
        }
    }

    fn is_uploaded(&mut self) -> Uploaded {
        let upload = self.checkpoints.as_mut().and_then(|one| one.upload.take());
        match upload.map(|upload| upload.made) {
            None => Uploaded::NotYet,
            Some(Some(made)) => Uploaded::New(Box::new(made)),
            Some(None) => Uploaded::Again,
        }
    }

    /// There is another stream to the logger: what was under way is lost.
    pub(crate) fn restart_upload(&mut self) {
        if let Some(upload) = self.uploading() {
            upload.restart();
        }
    }

    /// This is what the logger has. If it lacks what only the image has, that goes there again.
    pub(crate) fn compare_image(&mut self, there: &Streams) -> Uploaded {
        let record = self.memory.record();
        let known = there.image.map(|image| (record, image.number));
        if let Some(upload) = self.uploading() {
            if Some(upload.of) == known {
                return self.is_uploaded(); // and its answer was lost
            }
            if upload.of.0 == record {
                return Uploaded::NotYet;
            }
            self.drop_upload();
        }
        let base = self.memory.base(0);
        let lacks = there.edition.is_some() && there.length(0) < base;
        let Some(last) = self.last_image().filter(|_| lacks) else {
            return Uploaded::NotYet;
        };
        match Upload::new(&last.image, record, base) {
            Ok(upload) => {
                self.set_upload(upload);
                Uploaded::NotYet
            }
            Err(error) => {
                self.memory.logger_is_full();
                Uploaded::Never(error.to_string())
            }
        }
    }

    /// One that was made just now is not wanted any more: the server has died.
    pub(super) fn drop_new_upload(&mut self) {
        if self.uploading().is_some_and(|upload| upload.made.is_some()) {
            self.drop_upload();
        }
    }

    fn drop_upload(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.drops_upload |= checkpoints.upload.take().is_some();
        }
    }
}
