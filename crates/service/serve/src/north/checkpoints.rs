//! Checkpoints: images of the server replace the record.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    time::Duration,
};

use checkpoint::{ProcessSource, Sandbox, SandboxReport};
use protocol::control::KeptImage;
use south_model::Flow;
use supervise::{Cgroup, Pid, Server};
use wire::FlowKey;

use super::{North, image_upload::Uploads, positions};
use crate::{
    CheckpointStatus, clock,
    config::ServeConfig,
    error::ServeError,
    events::Event,
    images::{CurrentImage, Images, NewImage, ShadowReplay},
};

/// Failed attempts in a row to start a process from an image, after which the image is given up.
const RESTORE_ATTEMPTS: u32 = 3;

/// State of the checkpoints.
pub(super) struct Checkpoints {
    pub(super) images: Images,
    /// The image in production.
    rehearsal: Option<ShadowReplay>,
    /// Images in transfer to the logger.
    pub(super) uploads: Uploads,
    /// The sandbox in which the server starts from an image.
    room: Option<Sandbox>,
    /// Number of failures.
    failures: u32,
    /// Length of the record at the beginning of the last checkpoint, and the time of the beginning.
    begun: (u64, Duration),
}

impl Checkpoints {
    pub(super) fn of(images: Images, length: u64) -> Self {
        Self {
            images,
            rehearsal: None,
            uploads: Uploads::default(),
            room: None,
            failures: 0,
            begun: (length, clock::now()),
        }
    }

    /// The record begins with this image, which has come from a logger.
    pub(super) fn begins_with(&mut self, image: &KeptImage) -> Result<(), ServeError> {
        self.begun = (image.base, clock::now());
        self.images.take_up(image.number)
    }

    /// Stops the production of an image, and the start of a process from an image.
    pub(super) fn stop(&mut self) {
        (self.rehearsal, self.room) = (None, None);
        self.uploads.stop_new();
    }

    /// The server starts without an image.
    pub(super) fn forget(&mut self) -> Result<(), ServeError> {
        self.images.forget()?;
        self.begun = (0, clock::now());
        self.uploads.forget();
        self.stop();
        self.failures = 0;
        Ok(())
    }

    /// Start the server from the last image. The server gets the standard streams of `serve`.
    pub(super) fn restore(
        &mut self,
        given: &[BorrowedFd<'_>],
        shipping: Option<BorrowedFd<'_>>,
    ) -> Result<Server, ServeError> {
        let lost = || io::Error::other("there is no image");
        let last = self
            .images
            .last()
            .ok_or_else(lost)
            .map_err(checkpoint::SandboxError::from)?;
        let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
        let mut given = given.to_vec();
        given.extend([input.as_fd(), output.as_fd(), error.as_fd()]);
        given.extend(shipping);
        let way = ProcessSource::Service(last.image.number, &last.image.directory);
        let mut room = Sandbox::open(self.images.criu(), way, &given)?;
        let first = room.first();
        self.room = Some(room);
        let gone = || io::Error::other("its first process is gone");
        Ok(first
            .ok_or_else(gone)
            .map_err(checkpoint::SandboxError::from)?)
    }
}

impl North {
    /// The image with which the next incarnation begins.
    pub(super) fn last_image(&self) -> Option<&CurrentImage> {
        self.checkpoints.as_ref()?.images.last()
    }

    /// The last checkpoint, for the status.
    pub(crate) fn checkpoint(&self) -> Option<CheckpointStatus> {
        self.last_image().map(|last| CheckpointStatus {
            record_bytes: self.memory.base(0),
            image_bytes: last.bytes,
        })
    }

    /// Why the next incarnation cannot start from the last image; `None`: no obstacle.
    pub(crate) fn torn_image(&self) -> Option<String> {
        let error = self.last_image()?.image.check().err()?;
        Some(format!(
            "the server's last checkpoint is damaged: its state is lost, and so are its connections: {error}"
        ))
    }

    /// Is something done beside the server that is to be looked at?
    pub(crate) fn is_busy(&self) -> bool {
        let checkpoints = self.checkpoints.as_ref();
        checkpoints.is_some_and(|one| one.rehearsal.is_some() || one.room.is_some())
    }

    /// Is a checkpoint in production or in transfer?
    pub(crate) fn is_shadow_replaying(&self) -> bool {
        let checkpoints = self.checkpoints.as_ref();
        checkpoints.is_some_and(|one| one.rehearsal.is_some() || one.uploads.is_under_way())
    }

    /// Is a checkpoint due?
    pub(crate) fn checkpoint_is_due(&self, config: &ServeConfig, now: Duration) -> bool {
        let (Some(wanted), Some(checkpoints)) = (&config.checkpoints, &self.checkpoints) else {
            return false;
        };
        let (length, at) = checkpoints.begun;
        let more = self.memory.length(0).saturating_sub(length);
        let is_large = wanted.at.is_some_and(|bytes| more >= bytes);
        let is_old = wanted
            .every
            .is_some_and(|every| now.saturating_sub(at) >= every);
        more > 0 && (is_large || is_old)
    }

    /// Begin a checkpoint. `flows` are the server's connections.
    pub(crate) fn start_shadow_replay(&mut self, flows: &[(FlowKey, Flow)]) -> Result<(), String> {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(());
        };
        checkpoints.begun = (self.memory.length(0), clock::now());
        let begun = checkpoints
            .images
            .start_shadow_replay(&self.memory, positions(flows));
        let begun = begun.map_err(|error| error.to_string())?;
        // After that: all children that started before the image's end are known now.
        if self.memory.has_children_at_work() {
            return Err("the server has children that are at work, or have had clients".into());
        }
        checkpoints.rehearsal = Some(begun);
        Ok(())
    }

    /// Continue the checkpoint.
    ///
    /// # Errors
    /// Why no image can be made.
    pub(crate) fn poll_shadow_replay(
        &mut self,
        config: &ServeConfig,
    ) -> Result<Option<Event>, String> {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(None);
        };
        let Some(rehearsal) = &mut checkpoints.rehearsal else {
            return Ok(None);
        };
        let made = match rehearsal.poll(&checkpoints.images, config, &mut self.files) {
            Ok(None) => return Ok(None),
            Ok(Some(made)) => made,
            Err(why) => {
                checkpoints.rehearsal = None;
                return Err(why);
            }
        };
        checkpoints.rehearsal = None;
        if config.link.is_some() {
            let record = self.memory.record();
            return checkpoints.uploads.begin(made, record).map(|()| None);
        }
        self.replace(made).map(Some)
    }

    /// The image replaces the record before the image's end.
    ///
    /// # Errors
    /// Why the image cannot replace the record.
    pub(crate) fn replace(&mut self, made: NewImage) -> Result<Event, String> {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Err("there are none to be made".into());
        };
        let told = Event::Checkpointed {
            record_bytes: made.end,
            image_bytes: made.bytes(),
            released_bytes: made.end.saturating_sub(self.memory.base(0)),
            left_bytes: self.memory.length(0).saturating_sub(made.end),
            took_ms: u64::try_from(made.took.as_millis()).unwrap_or(u64::MAX),
        };
        let replaced = checkpoints.images.replace(&self.memory, made);
        replaced.map_err(|error| error.to_string())?;
        Ok(told)
    }

    /// Stops the checkpoint in production, and removes the parts.
    pub(crate) fn stop_shadow_replay(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.rehearsal = None;
            checkpoints.uploads.stop_new();
        }
    }

    /// The process that was started from an image, as soon as the process runs.
    ///
    /// # Errors
    /// Why no process runs.
    pub(crate) fn poll_restored_process(
        &mut self,
        first: Option<Pid>,
        cgroup: &Cgroup,
    ) -> Result<Option<Pid>, String> {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(None);
        };
        let Some(room) = &mut checkpoints.room else {
            return Ok(None);
        };
        let why = match room.report() {
            Ok(None) => return Ok(None),
            Ok(Some((SandboxReport::Resumed, pid))) => {
                let all: Vec<Pid> = first.into_iter().chain(pid).collect();
                let taken = cgroup.take_in(&all).map_err(|error| error.to_string());
                match taken.and_then(|()| room.go().map_err(|error| error.to_string())) {
                    Err(why) => why,
                    Ok(()) => {
                        (checkpoints.room, checkpoints.failures) = (None, 0);
                        return Ok(pid);
                    }
                }
            }
            Ok(Some((SandboxReport::Failed(why), _))) => why,
            Ok(Some((SandboxReport::Dumped, _))) => "its room makes no sense".to_owned(),
            Err(error) => error.to_string(),
        };
        checkpoints.room = None;
        checkpoints.failures += 1;
        let message = format!("the server could not be made from its last checkpoint: {why}");
        if checkpoints.failures < RESTORE_ATTEMPTS {
            return Err(message);
        }
        self.is_lost = true;
        Err(format!(
            "{message}. It is given up: the server's state is lost, and so are its connections"
        ))
    }
}
