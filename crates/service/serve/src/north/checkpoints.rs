//! Images of the server take the place of its record.

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

/// What is known of them.
pub(super) struct Checkpoints {
    pub(super) images: Images,
    /// The one that is being made.
    rehearsal: Option<ShadowReplay>,
    /// Those on their way to the logger.
    pub(super) uploads: Uploads,
    /// The server, while it is made from one.
    room: Option<Sandbox>,
    /// How often that has failed.
    failures: u32,
    /// How long the record was when the last one was begun, and when that was.
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

    /// The record begins with this one, which has come from elsewhere.
    pub(super) fn begins_with(&mut self, image: &KeptImage) -> Result<(), ServeError> {
        self.begun = (image.base, clock::now());
        self.images.take_up(image.number)
    }

    /// What is being made, be it an image or a process of one, is not any more.
    pub(super) fn stop(&mut self) {
        (self.rehearsal, self.room) = (None, None);
        self.uploads.stop_new();
    }

    /// The server begins anew, without any.
    pub(super) fn forget(&mut self) -> Result<(), ServeError> {
        self.images.forget()?;
        self.begun = (0, clock::now());
        self.uploads.forget();
        self.stop();
        self.failures = 0;
        Ok(())
    }

    /// Make the server from the last image. Our own standard streams are its.
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

    /// The same, as it is told.
    pub(crate) fn checkpoint(&self) -> Option<CheckpointStatus> {
        self.last_image().map(|last| CheckpointStatus {
            record_bytes: self.memory.base(0),
            image_bytes: last.bytes,
        })
    }

    /// Why the next incarnation cannot begin with the last image, if it cannot.
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

    /// Is a checkpoint being made, or on its way?
    pub(crate) fn is_shadow_replaying(&self) -> bool {
        let checkpoints = self.checkpoints.as_ref();
        checkpoints.is_some_and(|one| one.rehearsal.is_some() || one.uploads.is_under_way())
    }

    /// Is it time for one?
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

    /// Begin one. `flows` are the server's connections.
    pub(crate) fn start_shadow_replay(&mut self, flows: &[(FlowKey, Flow)]) -> Result<(), String> {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(());
        };
        checkpoints.begun = (self.memory.length(0), clock::now());
        let begun = checkpoints
            .images
            .start_shadow_replay(&self.memory, positions(flows));
        let begun = begun.map_err(|error| error.to_string())?;
        // After that: of those who were begun before the image's end all are known now.
        if self.memory.has_children_at_work() {
            return Err("the server has children that are at work, or have had clients".into());
        }
        checkpoints.rehearsal = Some(begun);
        Ok(())
    }

    /// Go on with it.
    ///
    /// # Errors
    /// Why there will be none.
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

    /// The image takes the place of the record before its end.
    ///
    /// # Errors
    /// What is left of that.
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

    /// The one that is being made is given up: nothing is left of it.
    pub(crate) fn stop_shadow_replay(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.rehearsal = None;
            checkpoints.uploads.stop_new();
        }
    }

    /// The process that was made from an image, when it goes on.
    ///
    /// # Errors
    /// Why there is none.
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
