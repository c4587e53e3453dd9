//! Images of the server at a remote logger: images are uploaded, and a host that takes over fetches the last image.

use std::time::Duration;

use checkpoint::Unpack;
use protocol::control::KeptImage;

use super::Service;
use crate::{
    clock,
    error::{ServeError, SystemContext as _},
    events::Code,
    logger_client::{ImageReply, LoggerClient, PIECE_BYTES, READ_AHEAD_BYTES},
    north::{North, Uploaded},
};

/// Time in which more of an image is asked for before the loop goes on: the heart must beat.
const FETCH_STEP_TIME: Duration = Duration::from_millis(200);
/// Bytes under way in the first step.
const FIRST_AHEAD_BYTES: u64 = 1 << 20;

const UNPACK: &str = "unpack the server's last checkpoint";

/// Result of fetching an image.
pub(super) enum Fetched {
    /// The image is here, and the record begins with the image.
    Whole,
    /// The logger does not answer.
    Silent,
    /// The image cannot be fetched, or is of no use here.
    Not(String),
}

impl Service {
    /// Tell the logger more of the image that goes there.
    pub(super) fn upload_image(&mut self) -> Result<(), ServeError> {
        if self.resources.logger.client().is_none() {
            return Ok(()); // a logger that is back gets the image from the beginning
        }
        match self.north.as_mut().map(North::image_message) {
            None => Ok(()),
            Some(Ok(requests)) if requests.is_empty() => Ok(()),
            Some(Ok(requests)) => {
                let told = self.ask_logger(|logger| logger.send_image(requests));
                told.map(drop)
            }
            Some(Err(uploaded)) => self.end_upload(uploaded),
        }
    }

    /// Handles a reply of the logger about an image.
    pub(super) fn handle_image_reply(&mut self, said: ImageReply) -> Result<(), ServeError> {
        let Some(north) = &mut self.north else {
            return Ok(());
        };
        match north.handle_image_reply(said) {
            Uploaded::NotYet => self.upload_image(),
            uploaded => self.end_upload(uploaded),
        }
    }

    /// After a loss of records the logger lacks the determinants behind the image, or the image in use. Or the logger
    /// must learn that the record is over.
    fn end_upload(&mut self, uploaded: Uploaded) -> Result<(), ServeError> {
        self.handle_upload(uploaded)?;
        self.compare_determinants()
    }

    pub(super) fn handle_upload(&mut self, uploaded: Uploaded) -> Result<(), ServeError> {
        match uploaded {
            Uploaded::NotYet | Uploaded::Again => Ok(()),
            Uploaded::New(made) => {
                let replaced = self.north.as_mut().map(|north| north.replace(*made));
                self.report_checkpoint(replaced.transpose())
            }
            Uploaded::Failed(reason) => self.report_checkpoint(Err(reason)),
            Uploaded::Never(why) => {
                let message = format!(
                    "the logger has begun anew, and cannot be given the server's last checkpoint again: {why}"
                );
                self.warn(Code::ImageNotSent, message);
                Ok(())
            }
        }
    }

    /// Fetch the image with which the record begins.
    pub(super) fn fetch_image(
        &mut self,
        north: &mut North,
        image: &KeptImage,
    ) -> Result<Fetched, ServeError> {
        let ahead = self.standby.images.take();
        if ahead.is_some_and(|ahead| ahead.take(image.number)) {
            return Ok(taken_up(north, image));
        }
        let unpack = match north.receive(image) {
            Ok(Some(unpack)) => unpack,
            Ok(None) => {
                return Ok(Fetched::Not(
                    "the service was served with checkpoints, and this host makes none: give all hosts the same options (--checkpoint-at, --checkpoint-every, --criu)".into(),
                ));
            }
            Err(error) => return Ok(Fetched::Not(error.to_string())),
        };
        Ok(match self.fill(unpack, image)? {
            None => Fetched::Silent,
            Some(Ok(())) => taken_up(north, image),
            Some(Err(error)) => Fetched::Not(error.to_string()),
        })
    }

    /// `None`: the logger does not answer. An error inside: the image cannot be unpacked here, or is no image.
    fn fill(
        &mut self,
        mut unpack: Unpack,
        image: &KeptImage,
    ) -> Result<Option<Result<(), ServeError>>, ServeError> {
        let (mut from, mut ahead) = (0, FIRST_AHEAD_BYTES);
        while from < image.length {
            let until = clock::now() + FETCH_STEP_TIME;
            let mut taken = Ok(());
            let read = |logger: &mut LoggerClient| {
                logger.read_image(image.number, from..image.length, ahead, |bytes| {
                    if taken.is_ok() {
                        taken = unpack.take(bytes);
                    }
                    taken.is_ok() && clock::now() < until
                })
            };
            let Some(to) = self.ask_logger(read)? else {
                return Ok(None);
            };
            if taken.is_err() {
                return Ok(Some(taken.doing(UNPACK)));
            }
            // Bytes under way must have arrived before the loop goes on: on a slow network these are few.
            ahead = (to - from).clamp(PIECE_BYTES, READ_AHEAD_BYTES);
            from = to;
            self.heartbeat()?;
            self.answer_control();
            if self.should_stop() {
                return Ok(None);
            }
        }
        Ok(Some(unpack.finish().map(drop).doing(UNPACK)))
    }
}

/// The image is here.
fn taken_up(north: &mut North, image: &KeptImage) -> Fetched {
    match north.begins_with(image) {
        Ok(()) => Fetched::Whole,
        Err(error) => Fetched::Not(error.to_string()),
    }
}
