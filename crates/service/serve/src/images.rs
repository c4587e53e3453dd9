//! Images of a service's server: those there are, and the one that is being made ([`Rehearsal`]).

use std::{
    collections::BTreeSet, fs, io, os::unix::fs::symlink, path::Path, thread, time::Duration,
};

use checkpoint::{Criu, Image, Room, Said, Store, Unpack, Way};
use north_host::{Handover, Library, Memory, Message, Position, ShadowReplay, SnapshotTail};
use rand::Rng as _;

use crate::{
    clock,
    config::ServeConfig,
    error::{ServeError, SystemContext},
    north::Files,
};

/// The directory of the images in a service's directory, or a link to it.
pub(crate) const DIRECTORY: &str = "images";

/// A rehearsal that has replayed nothing more for so long waits for something that does not come.
const STANDSTILL: Duration = Duration::from_secs(60);

const IMAGES: &str = "keep images of the server";

/// Those of one service.
#[derive(Debug)]
pub(crate) struct Images {
    criu: Criu,
    store: Store,
    /// The one with which the next life begins, and what belongs to it.
    last: Option<Last>,
}

/// An image that is whole.
#[derive(Debug)]
pub(crate) struct Last {
    pub(crate) image: Image,
    pub(crate) kept: SnapshotTail,
    /// How large it is, bytes.
    pub(crate) bytes: u64,
}

impl Images {
    /// As it is wanted; `None`: it is not.
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

    /// Take up the image with this number; 0: there is none. All others are rests.
    pub(crate) fn take_up(&mut self, number: u64) -> Result<(), ServeError> {
        self.last = None;
        if number != 0 {
            let (image, kept) = self.store.find(number).doing(IMAGES)?;
            let bytes = image.bytes().doing(IMAGES)?;
            self.last = Some(Last { image, kept, bytes });
        }
        self.store.remove_others(number).doing(IMAGES)
    }

    /// A place for the image with this number, which comes from elsewhere. All others are rests.
    pub(crate) fn receive(&mut self, number: u64) -> Result<Unpack, ServeError> {
        self.forget()?;
        Ok(Unpack::into(self.store.begin(number).doing(IMAGES)?))
    }

    /// There is none any more that the next life could begin with.
    pub(crate) fn forget(&mut self) -> Result<(), ServeError> {
        self.take_up(0)
    }

    pub(crate) fn last(&self) -> Option<&Last> {
        self.last.as_ref()
    }

    pub(crate) fn criu(&self) -> &Criu {
        &self.criu
    }

    /// Begin to make one of what the record has now. `positions` is how far clients are.
    pub(crate) fn rehearse(
        &self,
        memory: &Memory,
        mut positions: Vec<Position>,
    ) -> io::Result<Rehearsal> {
        let number = rand::rng().random_range(1..=u64::MAX);
        let image = self.store.begin(number)?;
        let score = memory.shadow_replay()?;
        let end = score.end;
        let copying = thread::Builder::new().spawn(move || copy(&score, number, &mut positions))?;
        Ok(Rehearsal {
            image: Some(image),
            end,
            began: clock::now(),
            step: Step::Copies(Some(copying)),
        })
    }

    /// It is whole, and the record before its end not needed any more.
    pub(crate) fn replace(&mut self, memory: &Memory, mut made: Made) -> Result<(), ServeError> {
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

/// Remove what there may be of images in a service's directory.
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

fn copy(score: &ShadowReplay, number: u64, positions: &mut Vec<Position>) -> Copied {
    let memory = score.copy_log(number, positions)?;
    Ok((memory, std::mem::take(positions)))
}

/// An image that is being made. Dropping it leaves nothing.
pub(crate) struct Rehearsal {
    /// `None`: it is whole, and somebody else's.
    image: Option<Image>,
    /// How far of the record it reaches.
    pub(crate) end: u64,
    began: Duration,
    step: Step,
}

/// What it is at.
enum Step {
    /// The record is copied.
    Copies(Option<thread::JoinHandle<Copied>>),
    /// The rehearsal replays the copy.
    Plays(Play),
    /// It has stopped, and CRIU makes an image of it.
    Dumps(Room, SnapshotTail),
    /// The image is made a process again, to see that it can be.
    Tries(Room, SnapshotTail),
}

struct Play {
    room: Room,
    memory: Memory,
    handover: Handover,
    positions: Vec<Position>,
    has_stopped: bool,
    /// How much it had left when it last had less, bytes, and when that was.
    behind: (u64, Duration),
}

/// An image that is whole. Dropping it before it is in use leaves nothing.
pub(crate) struct Made {
    /// `None`: it is in use.
    last: Option<Last>,
    /// How far of the record it reaches.
    pub(crate) end: u64,
    /// How long it took.
    pub(crate) took: Duration,
}

impl Made {
    /// How large it is, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.bytes)
    }

    /// It itself.
    pub(crate) fn image(&self) -> Option<&Image> {
        self.last.as_ref().map(|last| &last.image)
    }
}

#[cfg(test)]
impl Made {
    /// This image, of a record up to there.
    pub(crate) fn of(image: Image, end: u64) -> Self {
        let (kept, bytes) = (SnapshotTail::default(), 0);
        Self {
            last: Some(Last { image, kept, bytes }),
            end,
            took: Duration::ZERO,
        }
    }

    /// It is in use.
    pub(crate) fn used(mut self) -> Option<Image> {
        self.last.take().map(|last| last.image)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(last) = self.last.take() {
            remove_image(&last.image);
        }
    }
}

impl Rehearsal {
    /// What follows, if anything does now. With the image when it is whole. `files` are those that the server has read.
    ///
    /// # Errors
    /// Why there will be none.
    pub(crate) fn poll(
        &mut self,
        images: &Images,
        config: &ServeConfig,
        files: &mut Files,
    ) -> Result<Option<Made>, String> {
        let Some(image) = &self.image else {
            return Ok(None);
        };
        match &mut self.step {
            Step::Copies(copying) => {
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
                let play = Play::begin(images, config, memory, positions);
                self.step = Step::Plays(play.map_err(|error| error.to_string())?);
            }
            Step::Plays(play) => {
                if let Some(kept) = play.poll(files)? {
                    image.keep(&kept).map_err(|error| error.to_string())?;
                    let asked = play.room.dump(&image.directory);
                    asked.map_err(|error| error.to_string())?;
                    let Step::Plays(play) = std::mem::replace(&mut self.step, Step::Copies(None))
                    else {
                        return Ok(None);
                    };
                    self.step = Step::Dumps(play.room, kept);
                }
            }
            Step::Dumps(room, kept) => {
                if heard(room)? == Some(Said::Dumped) {
                    let way = Way::Image(image.number, &image.directory);
                    let room = Room::open(images.criu(), way, &[]);
                    let room = room.map_err(|error| error.to_string())?;
                    self.step = Step::Tries(room, std::mem::take(kept));
                }
            }
            Step::Tries(room, kept) => {
                if heard(room)? == Some(Said::Resumed) {
                    let bytes = image.bytes().map_err(|error| error.to_string())?;
                    let kept = std::mem::take(kept);
                    let image = self.image.take();
                    let last = image.map(|image| Last { image, kept, bytes });
                    return Ok(last.map(|last| Made {
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

impl Drop for Rehearsal {
    fn drop(&mut self) {
        if let Some(image) = self.image.take() {
            remove_image(&image);
        }
    }
}

/// If not now, then by the next one.
fn remove_image(image: &Image) {
    let _ = fs::remove_dir_all(&image.directory);
}

/// What the room says; an error, if that it is of no use.
fn heard(room: &mut Room) -> Result<Option<Said>, String> {
    match room.said() {
        Ok(Some((Said::Failed(why), _))) => Err(why),
        Ok(said) => Ok(said.map(|(said, _)| said)),
        Err(error) => Err(error.to_string()),
    }
}

impl Play {
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
                    Room::open(images.criu(), Way::Command(&config.command), &given)?
                }
                Some(Last { image, .. }) => {
                    let way = Way::Image(image.number, &image.directory);
                    Room::open(images.criu(), way, &given)?
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

    /// Has it come further lately?
    fn goes_on(&mut self) -> bool {
        // Before its process is there it is not behind at all.
        let (behind, now) = (self.memory.lag(), clock::now());
        if behind != self.behind.0 {
            self.behind = (behind, now);
        }
        now.saturating_sub(self.behind.1) < STANDSTILL
    }

    /// What belongs to the image, when the rehearsal has stopped where it should.
    fn poll(&mut self, files: &mut Files) -> Result<Option<SnapshotTail>, String> {
        if let Some(divergence) = self.memory.divergence() {
            return Err(format!("its rehearsal went another way: {divergence}"));
        }
        // One that is made from an image says so first.
        heard(&mut self.room)?;
        self.handover
            .receive_messages()
            .map_err(|error| error.to_string())?;
        for (message, descriptor) in self.handover.take_requests() {
            match files.hear(message, descriptor) {
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
                .goes_on()
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
