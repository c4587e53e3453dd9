//! A server with state: what its processes were told is recorded in memory that outlives them, and its next life
//! replays that before it is given its clients' connections (`ft-tcp-infocom-2001`, III.B; the wrap itself is in
//! `north-shim`).

mod checkpoints;
mod deaths;
mod files;
mod grafting;
mod opened;
mod uploading;
mod with_logger;

use std::{
    collections::{BTreeMap, HashMap},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use north_host::{
    ConnectionReport, Divergence, Ends, Handover, HandoverError, Library, Memory, Message, Which,
    layout::{
        Committed, FILE_FD, Failure, HANDOVER_FD, Hold, LIBRARY_FD, LOGGER_SOCKET_FD, Mode,
        Restless, SOCKET_FD,
    },
};
use protocol::control::Edition;
use rand::Rng as _;
use supervise::{
    Announce, Cgroup, Command, Server,
    mounts::{self, Mount},
};
use wire::{FlowId, FlowKey};

use crate::{
    config::ServeConfig,
    error::{ServeError, SystemContext},
    images::Images,
};
use checkpoints::Checkpoints;
use deaths::{Crash, Culprit};
pub(crate) use files::Files;
pub(crate) use grafting::{ends, positions};
use opened::Opened;
pub(crate) use opened::{Joining, Outgoing};
pub(crate) use uploading::Uploaded;
use with_logger::Told;

/// What the server's processes share with us.
pub(crate) struct North {
    /// Where the memory file is, and how many bytes of records it is for.
    room: Mount,
    bytes: u64,
    shim: Library,
    memory: Memory,
    handover: Handover,
    /// What a process that has replayed its record has said of its connections.
    passed: HashMap<(Ends, Which), ConnectionReport>,
    /// The sockets that were made for them.
    made: HashMap<u32, TcpStream>,
    /// Those that it has opened itself, and how many of them go on as clients' do.
    opened: Opened,
    /// What it has read, and what another one may have the name of by now.
    files: Files,
    /// What a life has said while it followed.
    unheard: Vec<(Message, Option<OwnedFd>)>,
    /// It has said something that was not looked at.
    has_news: bool,
    rejoined: usize,
    /// There is no record from which the next life could be rebuilt.
    is_lost: bool,
    /// It was told that helper threads are not waited for.
    is_restless: bool,
    /// The present life has a record to replay, and is not at its end.
    replays: bool,
    /// The present life has followed that of another host, and has not gone on yet.
    follows: bool,
    /// When it had.
    back_at: Option<Duration>,
    /// The last life has ended in a crash, of this child if it was one.
    crash: Option<(Crash, Option<u32>)>,
    /// What the server may have crashed of, and how often it has crashed again of that.
    deaths: BTreeMap<Option<Culprit>, u32>,
    /// Where images of the server take the place of its record.
    checkpoints: Option<Checkpoints>,
    /// What has been with a logger.
    told: Told,
    /// Where its processes say how far they have noted what they read, if there is such a place.
    notes: Option<OwnedFd>,
}

/// What became of a replay.
pub(crate) enum Replayed {
    NotYet,
    Whole,
    /// What was passed on makes no sense.
    Not(String),
}

impl North {
    /// An empty record, for at most so many bytes.
    pub(crate) fn new(run_dir: &Path, bytes: u64) -> Result<Self, ServeError> {
        let room = room(run_dir, bytes)?;
        Ok(Self::with(empty(&room)?, room, bytes, shared()?))
    }

    /// Where images of the server are to take the place of its record, they do. One that is missing has the record
    /// with it.
    pub(crate) fn with_images(
        mut self,
        config: &ServeConfig,
        run_dir: &Path,
    ) -> Result<Self, ServeError> {
        self.take_images(config, run_dir)?;
        Ok(self)
    }

    /// The same.
    pub(crate) fn take_images(
        &mut self,
        config: &ServeConfig,
        run_dir: &Path,
    ) -> Result<(), ServeError> {
        self.has_images(Images::wanted(config, run_dir)?);
        Ok(())
    }

    fn has_images(&mut self, wanted: Option<Images>) {
        if let Some(mut images) = wanted {
            if let Err(error) = images.take_up(self.memory.image()) {
                tracing::warn!(%error, "the last checkpoint is lost");
                self.is_lost = true;
            }
            self.checkpoints = Some(Checkpoints::of(images, self.memory.length(0)));
        } else if self.memory.image() != 0 {
            self.is_lost = true;
        }
    }

    fn with(
        memory: Memory,
        room: Mount,
        bytes: u64,
        (shim, handover): (Library, Handover),
    ) -> Self {
        Self {
            room,
            bytes,
            shim,
            memory,
            handover,
            passed: HashMap::new(),
            made: HashMap::new(),
            opened: Opened::default(),
            files: Files::default(),
            unheard: Vec::new(),
            has_news: false,
            rejoined: 0,
            is_lost: false,
            is_restless: false,
            replays: false,
            follows: false,
            back_at: None,
            crash: None,
            deaths: BTreeMap::new(),
            checkpoints: None,
            told: Told::default(),
            notes: None,
        }
    }

    /// The record that an earlier `serve` has begun. Without it the server's state is lost with its process. If that
    /// fails everything stays as it was, but for a record that is of no use.
    pub(crate) fn adopt(config: &ServeConfig, run_dir: &Path) -> Result<Self, ServeError> {
        let (images, bytes) = (Images::wanted(config, run_dir)?, config.limits.total);
        let Some(room) = mounts::memory_left(run_dir) else {
            let mut north = Self::new(run_dir, bytes)?;
            north.is_lost = true;
            north.has_images(images);
            return Ok(north);
        };
        let memory = match Memory::leftover(room.path()) {
            Some(memory) => Ok((memory, false)),
            None => beside(&room, bytes).map(|memory| (memory, true)),
        };
        match memory.and_then(|memory| Ok((memory, shared()?))) {
            Ok(((memory, is_lost), shared)) => {
                let mut north = Self::with(memory, room, bytes, shared);
                north.is_lost = is_lost;
                north.has_images(images);
                north.may_have_been_told();
                Ok(north)
            }
            Err(error) => {
                room.leave();
                Err(error)
            }
        }
    }

    /// A record with this number, of which the logger has all there is.
    pub(crate) fn inherited(run_dir: &Path, bytes: u64, record: u64) -> Result<Self, ServeError> {
        let room = room(run_dir, bytes)?;
        let memory = Memory::create(room.path(), record).doing(RECORD)?;
        Ok(Self::with(memory, room, bytes, shared()?))
    }

    /// They may say there how far they have noted what they read.
    pub(crate) fn gives_notes(&mut self, notes: BorrowedFd<'_>) {
        if self.notes.is_none() {
            self.notes = notes.try_clone_to_owned().ok();
        }
    }

    /// What the processes share with us.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// There is no record from which the earlier life could be rebuilt.
    pub(crate) fn is_gone(&mut self) {
        self.is_lost = true;
    }

    /// Leave the record for whoever comes next.
    pub(crate) fn leave(self) {
        self.room.leave();
    }

    /// Readable when a process has something to say.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        self.handover.supervisor_socket()
    }

    /// Start the server: it replays what there is. `shipping` is its way to the logger, where there is one.
    pub(crate) fn start(
        &mut self,
        command: &Command,
        cgroup: &Cgroup,
        shipping: Option<BorrowedFd<'_>>,
        announce: Announce<'_>,
    ) -> Result<Server, ServeError> {
        let mut inherited = vec![(self.memory.as_fd(), FILE_FD)];
        inherited.extend(
            self.handover
                .process_socket()
                .map(|socket| (socket, SOCKET_FD)),
        );
        inherited.push((self.handover.file(), HANDOVER_FD));
        if let Some(checkpoints) = self
            .checkpoints
            .as_mut()
            .filter(|one| one.images.last().is_some())
        {
            let given: Vec<_> = inherited.iter().map(|(fd, _)| *fd).collect();
            return checkpoints.restore(&given, shipping);
        }
        inherited.push((self.shim.as_fd(), LIBRARY_FD));
        inherited.extend(shipping.map(|socket| (socket, LOGGER_SOCKET_FD)));
        let command = checkpoint::room::preloaded(command.clone());
        Ok(command.start_with(cgroup, &inherited, announce)?)
    }

    /// The life that has followed another host's is this host's now.
    pub(crate) fn goes_on(&mut self, hold: Hold) {
        self.memory.hold(hold);
        (self.follows, self.replays) = (true, true);
    }

    /// Hear what a life that follows has said of its connections, and which files it asks for. All else is for when it
    /// goes on.
    pub(crate) fn listen(&mut self) -> Result<(), HandoverError> {
        self.handover.read_entries()?;
        self.has_news |= self.handover.receive_messages()?;
        for (message, descriptor) in self.handover.take_requests() {
            self.unheard.extend(self.files.hear(message, descriptor));
        }
        Ok(())
    }

    /// What is kept of that, bytes.
    pub(crate) fn held(&self) -> usize {
        self.handover.report_bytes()
    }

    /// So much of it is with the clients of these connections; there are no others.
    pub(crate) fn forget(&mut self, received: &HashMap<Ends, u64>) {
        self.handover.forget(received);
    }

    /// Is there no record from which the present life was rebuilt?
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The connections of the life that was lost are gone: what begins now is recorded again.
    pub(crate) fn begins_anew(&mut self) {
        self.is_lost = false;
    }

    /// What the server has done that cannot be replayed, in words; `None`: nothing.
    pub(crate) fn is_not_replayable(&self) -> Option<String> {
        let failure = self.memory.divergence()?.failure;
        let unknown = || "the server made a call that cannot be replayed".to_owned();
        (failure == Some(Failure::NotSupported))
            .then(|| self.memory.reason().unwrap_or_else(unknown))
    }

    /// Why the last replay was given up.
    pub(crate) fn divergence(&self) -> Option<Divergence> {
        self.memory.divergence()
    }

    /// Why nothing is recorded any more; `None`: everything is.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        Some(match self.memory.ended()? {
            Mode::Full => "the record has reached --limit-total",
            Mode::LoggerFull => "the logger has no room (--limit-total, on both hosts)",
            Mode::Crowded => "too many processes (at most 16384)",
            Mode::Record | Mode::Off => "recording was given up",
        })
    }

    /// The same, if it was not told yet.
    pub(crate) fn has_ended(&mut self) -> Option<&'static str> {
        let ended = self.ended().filter(|_| !self.is_lost)?;
        self.is_lost = true;
        Some(ended)
    }

    /// Why helper threads are not waited for any more, if it was not told yet of this record.
    pub(crate) fn is_restless(&mut self) -> Option<&'static str> {
        let reason = self.memory.restless().filter(|_| !self.is_restless)?;
        self.is_restless = true;
        Some(match reason {
            Restless::Runs => "one has run for five seconds after it was woken",
            Restless::TooMany => "there are more than sixteen",
            Restless::Unseen => "what they do cannot be seen (is /proc mounted?)",
        })
    }

    /// It can be replayed by nobody.
    pub(crate) fn give_up(&self) {
        self.memory.give_up();
    }

    /// How large the record is.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.memory
            .processes()
            .map(|process| self.memory.length(process) - self.memory.base(process))
            .sum()
    }

    /// What output commit has cost.
    pub(crate) fn committed(&self) -> Committed {
        self.memory.page().commits.so_far()
    }

    /// Has the present life anything left to replay? (It records by now.)
    pub(crate) fn replays(&self) -> bool {
        self.replays
    }

    /// Is anything recorded?
    pub(crate) fn has_record(&self) -> bool {
        self.memory.length(0) > 0
    }

    /// Is it the program that is recorded that listens to clients?
    pub(crate) fn has_listener(&self) -> bool {
        self.memory.has_listener()
    }

    /// What the server has said: that it has replayed its record, or that it has opened or closed a connection.
    pub(crate) fn look(&mut self, now: Duration) -> Result<Replayed, ServeError> {
        match self.handover.receive_messages() {
            Ok(has_news) if has_news || self.has_news => {}
            Ok(_) => return Ok(Replayed::NotYet),
            Err(HandoverError::Io(error)) => return Err(error).doing(RECORD),
            Err(error) => return Ok(Replayed::Not(error.to_string())),
        }
        self.hear_others();
        if !self.replays || !self.handover.has_reports_of(&self.memory.begun()) {
            return Ok(Replayed::NotYet);
        }
        let passed = match self.handover.take() {
            Ok(passed) => passed,
            Err(error) => return Ok(Replayed::Not(error.to_string())),
        };
        // Of several with the same ends, of which nobody knows which they are, the one that is open, or the last one.
        let (closed, open): (Vec<_>, Vec<_>) = passed
            .clients
            .into_iter()
            .partition(|one| one.position.is_closed);
        let clients = closed.into_iter().chain(open);
        let named = |one: ConnectionReport| ((one.position.ends, one.position.which), one);
        self.passed = clients.map(named).collect();
        self.opened.pass(passed.opened);
        (self.replays, self.back_at) = (false, Some(now));
        self.follows = false;
        Ok(Replayed::Whole)
    }

    /// What they say of files and of connections that the server has opened.
    fn hear_others(&mut self) {
        self.has_news = false;
        let before = std::mem::take(&mut self.unheard);
        for (message, descriptor) in before.into_iter().chain(self.handover.take_requests()) {
            if let (Message::ReadCursors { .. }, Some(answer)) = (message, &descriptor) {
                if let Some(notes) = &self.notes {
                    files::give(notes.as_fd(), answer);
                }
                continue;
            }
            if let Some((message, descriptor)) = self.files.hear(message, descriptor) {
                self.opened.hear(message, descriptor);
            }
        }
    }

    /// The next connection that the server has opened and that is to go on as its clients' do; to be answered.
    pub(crate) fn joins(&mut self) -> Option<Joining> {
        self.opened.joins()
    }

    /// By which number it will, if it does. `false`: nobody has heard that.
    pub(crate) fn answer(&mut self, joining: Joining, flow: Option<(FlowKey, FlowId)>) -> bool {
        self.opened.answer(joining, flow)
    }

    /// The processes are dead: those connections that one was told of as going on so, and that it had no time to note.
    pub(crate) fn unjoin(&mut self) -> Vec<(FlowKey, FlowId)> {
        let memory = &self.memory;
        // Where the record cannot be read nobody goes on with anything.
        let is_noted = |process, flow: FlowId| memory.has_joined(process, flow.0).unwrap_or(true);
        self.opened.unjoin(is_noted)
    }

    /// The server is about to be ended, and with it what it has opened.
    pub(crate) fn ends(&mut self) {
        self.memory.is_ending();
        // Nobody is to wait for an answer while we wait for the server's end.
        if self.handover.stop_listening().is_ok() && self.handover.receive_messages().is_ok() {
            self.hear_others();
        }
        self.opened.let_go();
    }
}

/// What a life has besides its record.
fn shared() -> Result<(Library, Handover), ServeError> {
    let library = Library::new().doing(RECORD)?;
    Ok((library, Handover::new().doing(RECORD)?))
}

/// Where there is room for so many bytes of records.
fn room(run_dir: &Path, bytes: u64) -> Result<Mount, ServeError> {
    Ok(mounts::memory(run_dir, room_for(bytes))?)
}

fn room_for(bytes: u64) -> u64 {
    bytes + 2 * Memory::OVERHEAD
}

/// An empty record beside one that is of no use, and that the server has, with all its memory, for as long as it lives.
fn beside(room: &Mount, bytes: u64) -> Result<Memory, ServeError> {
    Memory::remove(room.path()).doing(RECORD)?;
    let used = room.used().doing(RECORD)?;
    room.resize(used + room_for(bytes))?;
    empty(room)
}

/// An empty record.
fn empty(room: &Mount) -> Result<Memory, ServeError> {
    Memory::create(room.path(), new_number()).doing(RECORD)
}

/// One that no other record has.
fn new_number() -> u64 {
    rand::rng().random_range(Edition::WITHOUT + 1..=u64::MAX)
}

const RECORD: &str = "keep a record of what the server is told";
