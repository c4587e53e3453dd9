//! Images of a service's server: the stored images, and the image in production ([`ShadowReplay`]).

use std::{
    collections::BTreeSet, fs, io, os::unix::fs::symlink, path::Path, thread, time::Duration,
};

use checkpoint::{Criu, Image, ProcessSource, Sandbox, SandboxReport, Store, Unpack};
use north_host::{Handover, Library, LogSection, Memory, Message, Position, SnapshotTail};
use rand::Rng as _;

use crate::{
    clock,
    config::ServeConfig,
    error::{ServeError, SystemContext},
    north::Files,
};

/// Directory of the images in a service's directory, or a link to the directory.
pub(crate) const DIRECTORY: &str = "images";

/// Standstill of a shadow replay after which the replay is given up.
const REPLAY_STALL_TIMEOUT: Duration = Duration::from_secs(60);

const IMAGES: &str = "keep images of the server";

/// Images of a service.
#[derive(Debug)]
pub(crate) struct Images {
    criu: Criu,
    store: Store,
    /// The image from which the next incarnation starts, with the state that belongs to the image.
    last: Option<CurrentImage>,
}

/// The image in use.
#[derive(Debug)]
pub(crate) struct CurrentImage {
    pub(crate) image: Image,
    pub(crate) kept: SnapshotTail,
    /// Size in bytes.
    pub(crate) bytes: u64,
}

impl Images {
    /// Images as configured; `None`: no checkpoints are configured.
    pub(crate) fn wanted(config: &ServeConfig, run_dir: &Path) -> Result<Option<Self>, ServeError> {
        let Some(wanted) = &config.checkpoints else {
            return Ok(None);
        };
        let criu = Criu::find(&wanted.criu)?;
        let here = run_dir.join(DIRECTORY);
        if let Some(directory) = &wanted.directory {
            let there = directory.join(config.run_dir.host_name(&config.name));
            let there = std::path::absolute(there).doing(IMAGES)?;
            Store::new(there.clone()).doing(IMAGES)?;
            if fs::read_link(&here).ok().as_ref() != Some(&there) {
                remove(run_dir).doing(IMAGES)?;
                symlink(&there, &here).doing(IMAGES)?;
            }
        }
        let store = Store::new(fs::canonicalize(&here).unwrap_or(here)).doing(IMAGES)?;
        Ok(Some(Self {
            criu,
            store,
            last: None,
        }))
    }

    /// Take up the image with this number; 0: no image. All other images are left-overs.
    pub(crate) fn take_up(&mut self, number: u64) -> Result<(), ServeError> {
        self.last = None;
        if number != 0 {
            let (image, kept) = self.store.find(number).doing(IMAGES)?;
            let bytes = image.bytes().doing(IMAGES)?;
            self.last = Some(CurrentImage { image, kept, bytes });
        }
        self.store.remove_others(number).doing(IMAGES)
    }

    /// The place of the images, for images that come ahead of their use.
    pub(crate) fn into_store(self) -> Store {
        self.store
    }

    /// A place for the image with this number from a logger. All other images are left-overs.
    pub(crate) fn receive(&mut self, number: u64) -> Result<Unpack, ServeError> {
        self.forget()?;
        Ok(Unpack::into(self.store.begin(number).doing(IMAGES)?))
    }

    /// There is none any more that the next incarnation could begin with.
    pub(crate) fn forget(&mut self) -> Result<(), ServeError> {
        self.take_up(0)
    }

    pub(crate) fn last(&self) -> Option<&CurrentImage> {
        self.last.as_ref()
    }

    pub(crate) fn criu(&self) -> &Criu {
        &self.criu
    }

    /// Begin an image of the present record. `positions` are the positions of the clients.
    pub(crate) fn start_shadow_replay(
        &self,
        memory: &Memory,
        mut positions: Vec<Position>,
    ) -> io::Result<ShadowReplay> {
        let number = rand::rng().random_range(1..=u64::MAX);
        let image = self.store.begin(number)?;
        let section = memory.log_section()?;
        let end = section.end;
        let copying =
            thread::Builder::new().spawn(move || copy(&section, number, &mut positions))?;
        Ok(ShadowReplay {
            image: Some(image),
            end,
            began: clock::now(),
            stage: Stage::CopiesRecord(Some(copying)),
        })
    }

    /// The image is complete: the record before the image's end is not needed any more.
    pub(crate) fn replace(
        &mut self,
        memory: &Memory,
        mut made: NewImage,
    ) -> Result<(), ServeError> {
        let Some(last) = made.last.take() else {
            return Ok(());
        };
        let number = last.image.number;
        let given_back = memory.is_in_image(number, made.end);
        self.last = Some(last); // whatever became of the memory
        given_back.doing(IMAGES)?;
        self.store.remove_others(number).doing(IMAGES)
    }
}

/// Remove all images in a service's directory.
pub(crate) fn remove(run_dir: &Path) -> io::Result<()> {
    let here = run_dir.join(DIRECTORY);
    match fs::read_link(&here) {
        Ok(there) => {
            if there.is_dir() {
                Store::new(there)?.remove()?;
            }
            fs::remove_file(here)
        }
        Err(_) if here.is_dir() => Store::new(here)?.remove(),
        Err(_) => Ok(()),
    }
}

type Copied = io::Result<(Memory, Vec<Position>)>;

fn copy(section: &LogSection, number: u64, positions: &mut Vec<Position>) -> Copied {
    let memory = section.copy_log(number, positions)?;
    Ok((memory, std::mem::take(positions)))
}

/// A checkpoint in progress: a replay beside the server. Drop removes the files.
pub(crate) struct ShadowReplay {
    /// `None`: the image is complete, and has another owner.
    image: Option<Image>,
    /// Position in the record at which the image is made.
    pub(crate) end: u64,
    began: Duration,
    stage: Stage,
}

/// Stages of a checkpoint.
enum Stage {
    /// The record is copied.
    CopiesRecord(Option<thread::JoinHandle<Copied>>),
    /// The shadow replay runs on the copy.
    Replays(ReplayRun),
    /// The shadow replay has stopped, and CRIU dumps the process.
    Dumps(Sandbox, SnapshotTail),
    /// The image is restored as a test.
    Tries(Sandbox, SnapshotTail),
}

struct ReplayRun {
    room: Sandbox,
    memory: Memory,
    handover: Handover,
    positions: Vec<Position>,
    has_stopped: bool,
    /// Lag at the last change, bytes, and the time of that change.
    behind: (u64, Duration),
}

/// A complete image. Drop removes an image that is not in use.
pub(crate) struct NewImage {
    /// `None`: the image is in use.
    last: Option<CurrentImage>,
    /// Position in the record at which the image was made.
    pub(crate) end: u64,
    /// Time to make the image.
    pub(crate) took: Duration,
}

impl NewImage {
    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.bytes)
    }

    /// The files.
    pub(crate) fn image(&self) -> Option<&Image> {
        self.last.as_ref().map(|last| &last.image)
    }
}

#[cfg(test)]
impl NewImage {
    /// This image, of a record up to there.
    pub(crate) fn of(image: Image, end: u64) -> Self {
        let (kept, bytes) = (SnapshotTail::default(), 0);
        Self {
            last: Some(CurrentImage { image, kept, bytes }),
            end,
            took: Duration::ZERO,
        }
    }

    /// The image is in use from now on.
    pub(crate) fn used(mut self) -> Option<Image> {
        self.last.take().map(|last| last.image)
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        if let Some(last) = self.last.take() {
            remove_image(&last.image);
        }
    }
}

impl ShadowReplay {
    /// Takes the next step, if a step is due. Returns the complete image. `files` are the files that the server has
    /// read.
    ///
    /// # Errors
    /// Why no image can be made.
    pub(crate) fn poll(
        &mut self,
        images: &Images,
        config: &ServeConfig,
        files: &mut Files,
    ) -> Result<Option<NewImage>, String> {
        let Some(image) = &self.image else {
            return Ok(None);
        };
        match &mut self.stage {
            Stage::CopiesRecord(copying) => {
                if !copying
                    .as_ref()
                    .is_some_and(thread::JoinHandle::is_finished)
                {
                    return Ok(None);
                }
                let copied = copying.take().and_then(|copying| copying.join().ok());
                let copied = copied.ok_or("its record could not be copied")?;
                let (memory, positions) =
                    copied.map_err(|error| format!("its record could not be copied: {error}"))?;
                let replay = ReplayRun::begin(images, config, memory, positions);
                self.stage = Stage::Replays(replay.map_err(|error| error.to_string())?);
            }
            Stage::Replays(replay) => {
                if let Some(kept) = replay.poll(files)? {
                    image.keep(&kept).map_err(|error| error.to_string())?;
                    let asked = replay.room.dump(&image.directory);
                    asked.map_err(|error| error.to_string())?;
                    let Stage::Replays(replay) =
                        std::mem::replace(&mut self.stage, Stage::CopiesRecord(None))
                    else {
                        return Ok(None);
                    };
                    self.stage = Stage::Dumps(replay.room, kept);
                }
            }
            Stage::Dumps(room, kept) => {
                if sandbox_reply(room)? == Some(SandboxReport::Dumped) {
                    let way = ProcessSource::Image(image.number, &image.directory);
                    let room = Sandbox::open(images.criu(), way, &[]);
                    let room = room.map_err(|error| error.to_string())?;
                    self.stage = Stage::Tries(room, std::mem::take(kept));
                }
            }
            Stage::Tries(room, kept) => {
                if sandbox_reply(room)? == Some(SandboxReport::Resumed) {
                    let bytes = image.bytes().map_err(|error| error.to_string())?;
                    let kept = std::mem::take(kept);
                    let image = self.image.take();
                    let last = image.map(|image| CurrentImage { image, kept, bytes });
                    return Ok(last.map(|last| NewImage {
                        last: Some(last),
                        end: self.end,
                        took: clock::now().saturating_sub(self.began),
                    }));
                }
            }
        }
        Ok(None)
    }
}

impl Drop for ShadowReplay {
    fn drop(&mut self) {
        if let Some(image) = self.image.take() {
            remove_image(&image);
        }
    }
}

/// The next image removes the directory if this attempt fails.
fn remove_image(image: &Image) {
    let _ = fs::remove_dir_all(&image.directory);
}

/// Reply of the sandbox, or the sandbox's failure.
fn sandbox_reply(room: &mut Sandbox) -> Result<Option<SandboxReport>, String> {
    match room.report() {
        Ok(Some((SandboxReport::Failed(why), _))) => Err(why),
        Ok(said) => Ok(said.map(|(said, _)| said)),
        Err(error) => Err(error.to_string()),
    }
}

impl ReplayRun {
    fn begin(
        images: &Images,
        config: &ServeConfig,
        memory: Memory,
        positions: Vec<Position>,
    ) -> Result<Self, ServeError> {
        let mut handover = match images.last() {
            Some(last) => Handover::of(&last.kept),
            None => Handover::new(),
        }
        .doing(IMAGES)?;
        let room = {
            use std::os::fd::AsFd as _;
            let socket = handover.process_socket();
            let given = [Some(memory.as_fd()), socket, Some(handover.file())];
            let mut given: Vec<_> = given.into_iter().flatten().collect();
            match images.last() {
                None => {
                    let library = Library::new().doing(IMAGES)?;
                    given.push(library.as_fd());
                    Sandbox::open(
                        images.criu(),
                        ProcessSource::Command(&config.command),
                        &given,
                    )?
                }
                Some(CurrentImage { image, .. }) => {
                    let way = ProcessSource::Image(image.number, &image.directory);
                    Sandbox::open(images.criu(), way, &given)?
                }
            }
        };
        handover.has_begun();
        Ok(Self {
            room,
            memory,
            handover,
            positions,
            has_stopped: false,
            behind: (u64::MAX, clock::now()),
        })
    }

    /// The replay has advanced within [`REPLAY_STALL_TIMEOUT`].
    fn makes_progress(&mut self) -> bool {
        // The lag is 0 until the process runs: every change counts as progress.
        let (behind, now) = (self.memory.lag(), clock::now());
        if behind != self.behind.0 {
            self.behind = (behind, now);
        }
        now.saturating_sub(self.behind.1) < REPLAY_STALL_TIMEOUT
    }

    /// The state that belongs to the image, once the shadow replay has stopped at the intended position.
    fn poll(&mut self, files: &mut Files) -> Result<Option<SnapshotTail>, String> {
        if let Some(divergence) = self.memory.divergence() {
            return Err(format!("its rehearsal went another way: {divergence}"));
        }
        // A shadow replay that starts from an image reports the start first.
        sandbox_reply(&mut self.room)?;
        self.handover
            .receive_messages()
            .map_err(|error| error.to_string())?;
        for (message, descriptor) in self.handover.take_requests() {
            match files.on_message(message, descriptor) {
                None => {}
                Some((Message::Paused { .. }, _)) => self.has_stopped = true,
                Some(_) => return Err("its rehearsal has connections to others".into()),
            }
        }
        if self.handover.has_reports_of(&BTreeSet::from([0])) {
            return Err("its rehearsal did not stop".into());
        }
        if !self.handover.is_over().map_err(|error| error.to_string())? {
            return self
                .makes_progress()
                .then_some(None)
                .ok_or_else(|| "its rehearsal does not go on".to_owned());
        }
        if !self.has_stopped {
            return Err("its rehearsal has ended".into());
        }
        let kept = self.handover.snapshot_tail(&self.positions);
        kept.map(Some).map_err(|error| error.to_string())
    }
}
