//! A server with state. The input of the server's processes is recorded in memory that outlives the processes. The next
//! incarnation replays the record before the handover of the client connections (`ft-tcp-infocom-2001`, III.B; the wrap
//! itself is in `north-shim`).

mod checkpoints;
mod deaths;
mod files;
mod graft;
mod image_upload;
mod logger_copy;
mod upstream;

use std::{
    collections::{BTreeMap, HashMap},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use north_host::{
    ConnectionReport, Divergence, Ends, Handover, HandoverError, Library, Memory, Message,
    OtherVersion, Which,
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
pub(crate) use graft::{ends, positions};
pub(crate) use image_upload::Uploaded;
use logger_copy::LoggerCopy;
use upstream::Upstream;
pub(crate) use upstream::{OutboundRequest, Outgoing};

/// Determinant log and handover of a server with state.
pub(crate) struct North {
    memory_mount: Mount,
    /// Limit of the determinant log, bytes.
    bytes: u64,
    shim: Library,
    memory: Memory,
    handover: Handover,
    /// Client connections as a process reported them after the replay.
    passed: HashMap<(Ends, Which), ConnectionReport>,
    /// Grafted sockets of these connections.
    made: HashMap<u32, TcpStream>,
    /// Connections that the server has opened.
    upstream: Upstream,
    /// Files that the server has read: the names may belong to other files by now.
    files: Files,
    /// Messages of a replica, until its promotion.
    pending_messages: Vec<(Message, Option<OwnedFd>)>,
    /// Some messages are unread.
    has_messages: bool,
    rejoined: usize,
    /// No determinant log can rebuild the next incarnation.
    is_lost: bool,
    /// The warning about helper threads was emitted.
    threads_not_awaited: bool,
    /// The present incarnation is replaying.
    replays: bool,
    /// The present incarnation is a replica.
    follows: bool,
    /// End of the replay.
    replayed_at: Option<Duration>,
    /// Crash of the last incarnation, and the process of a crashed child.
    crash: Option<(Crash, Option<u32>)>,
    /// Number of crashes by suspected cause.
    deaths: BTreeMap<Option<Culprit>, u32>,
    /// `None` without checkpoints.
    checkpoints: Option<Checkpoints>,
    logger_copy: LoggerCopy,
    /// Map of the read cursors, if the data plane has such a map.
    read_cursors: Option<OwnedFd>,
}

/// Result of a replay.
pub(crate) enum Replayed {
    NotYet,
    Whole,
    /// The handover is inconsistent.
    Not(String),
}

impl North {
    /// An empty record of at most `bytes` bytes.
    pub(crate) fn new(run_dir: &Path, bytes: u64) -> Result<Self, ServeError> {
        let memory_mount = mount_memory(run_dir, bytes)?;
        Ok(Self::with(
            empty(&memory_mount)?,
            memory_mount,
            bytes,
            shared()?,
        ))
    }

    /// With checkpoints configured, images of the server replace the record. If an image is missing, the record is
    /// lost, too.
    pub(crate) fn with_images(
        mut self,
        config: &ServeConfig,
        run_dir: &Path,
    ) -> Result<Self, ServeError> {
        self.take_images(config, run_dir)?;
        Ok(self)
    }

    /// As [`Self::with_images`].
    pub(crate) fn take_images(
        &mut self,
        config: &ServeConfig,
        run_dir: &Path,
    ) -> Result<(), ServeError> {
        self.set_images(Images::wanted(config, run_dir)?);
        Ok(())
    }

    fn set_images(&mut self, wanted: Option<Images>) {
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
        memory_mount: Mount,
        bytes: u64,
        (shim, handover): (Library, Handover),
    ) -> Self {
        Self {
            memory_mount,
            bytes,
            shim,
            memory,
            handover,
            passed: HashMap::new(),
            made: HashMap::new(),
            upstream: Upstream::default(),
            files: Files::default(),
            pending_messages: Vec::new(),
            has_messages: false,
            rejoined: 0,
            is_lost: false,
            threads_not_awaited: false,
            replays: false,
            follows: false,
            replayed_at: None,
            crash: None,
            deaths: BTreeMap::new(),
            checkpoints: None,
            logger_copy: LoggerCopy::default(),
            read_cursors: None,
        }
    }

    /// The record of an earlier `serve`. Without a record, the server's state is lost with the server's process. If the
    /// adoption fails, everything stays as before, except for a record that is of no use.
    pub(crate) fn adopt(config: &ServeConfig, run_dir: &Path) -> Result<Self, ServeError> {
        let (images, bytes) = (Images::wanted(config, run_dir)?, config.limits.total);
        let Some(memory_mount) = mounts::memory_left(run_dir) else {
            let mut north = Self::new(run_dir, bytes)?;
            north.is_lost = true;
            north.set_images(images);
            return Ok(north);
        };
        let other_version = OtherVersion::leftover(memory_mount.path());
        let memory = match Memory::leftover(memory_mount.path()) {
            Some(memory) => Ok((memory, false)),
            None => beside(&memory_mount, bytes).map(|memory| (memory, true)),
        };
        match memory.and_then(|memory| Ok((memory, shared()?))) {
            Ok(((memory, is_lost), shared)) => {
                let mut north = Self::with(memory, memory_mount, bytes, shared);
                north.is_lost = is_lost || other_version.is_some();
                north.set_images(images);
                north.assume_logger_has_all();
                if let Some(record) = other_version.as_ref().filter(|_| config.link.is_none()) {
                    record.give_up();
                }
                north.logger_copy.other_version = other_version;
                Ok(north)
            }
            Err(error) => {
                memory_mount.leave();
                Err(error)
            }
        }
    }

    /// A record with this number, of which the logger has all there is.
    pub(crate) fn inherited(run_dir: &Path, bytes: u64, record: u64) -> Result<Self, ServeError> {
        let memory_mount = mount_memory(run_dir, bytes)?;
        let memory = Memory::create(memory_mount.path(), record).doing(RECORD)?;
        Ok(Self::with(memory, memory_mount, bytes, shared()?))
    }

    /// Gives the processes a map for their read cursors.
    pub(crate) fn set_read_cursors(&mut self, notes: BorrowedFd<'_>) {
        if self.read_cursors.is_none() {
            self.read_cursors = notes.try_clone_to_owned().ok();
        }
    }

    /// The shared memory of the processes.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// No determinant log can rebuild the earlier incarnation.
    pub(crate) fn mark_lost(&mut self) {
        self.is_lost = true;
    }

    /// Leave the record for the next `serve`.
    pub(crate) fn leave(self) {
        self.memory_mount.leave();
    }

    /// Readable when a process has something to say.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        self.handover.supervisor_socket()
    }

    /// Start the server, which replays the record. `shipping` is the server's socket to the logger, if there is a
    /// remote logger.
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
        let command = checkpoint::sandbox::preloaded(command.clone());
        Ok(command.start_with(cgroup, &inherited, announce)?)
    }

    /// The replica becomes the server of this host.
    pub(crate) fn promote(&mut self, hold: Hold) {
        self.memory.hold(hold);
        (self.follows, self.replays) = (true, true);
    }

    /// Reads the connections that a replica reports and the files that a replica asks for. All other messages wait for
    /// the promotion.
    pub(crate) fn listen(&mut self) -> Result<(), HandoverError> {
        self.handover.read_entries()?;
        self.has_messages |= self.handover.receive_messages()?;
        for (message, descriptor) in self.handover.take_requests() {
            self.pending_messages
                .extend(self.files.on_message(message, descriptor));
        }
        Ok(())
    }

    /// Retained output of a replica, bytes.
    pub(crate) fn held(&self) -> usize {
        self.handover.report_bytes()
    }

    /// The clients have received the output up to these positions; connections that are not in `received` are gone.
    pub(crate) fn forget(&mut self, received: &HashMap<Ends, u64>) {
        self.handover.forget(received);
    }

    /// Is there no record from which the present incarnation was rebuilt?
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The connections of the lost incarnation are gone: the new record is complete again.
    pub(crate) fn restart_record(&mut self) {
        self.is_lost = false;
    }

    /// Description of a call of the server that cannot be replayed; `None`: no such call.
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

    /// Why recording has stopped; `None`: recording goes on.
    pub(crate) fn end_reason(&self) -> Option<&'static str> {
        if self.logger_copy.other_version.is_some() {
            return Some(OTHER_VERSION);
        }
        Some(match self.memory.ended()? {
            Mode::Full => "the record has reached --limit-total",
            Mode::LoggerFull => "the logger has no room (--limit-total, on both hosts)",
            Mode::Crowded => "too many processes (at most 16384)",
            Mode::Record | Mode::Off => "recording was given up",
        })
    }

    /// [`Self::end_reason`], if not reported before.
    pub(crate) fn take_end_reason(&mut self) -> Option<&'static str> {
        let ended = self.end_reason().filter(|_| !self.is_lost)?;
        self.is_lost = true;
        Some(ended)
    }

    /// Why helper threads are not awaited any more, if not reported before for this record.
    pub(crate) fn threads_not_awaited(&mut self) -> Option<&'static str> {
        let reason = self
            .memory
            .restless()
            .filter(|_| !self.threads_not_awaited)?;
        self.threads_not_awaited = true;
        Some(match reason {
            Restless::Runs => "one has run for five seconds after it was woken",
            Restless::TooMany => "there are more than sixteen",
            Restless::Unseen => "what they do cannot be seen (is /proc mounted?)",
        })
    }

    /// Marks the record as not replayable.
    pub(crate) fn give_up(&self) {
        self.memory.give_up();
    }

    /// Size of the record.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.memory
            .processes()
            .map(|process| self.memory.length(process) - self.memory.base(process))
            .sum()
    }

    /// Count and time of output commits.
    pub(crate) fn committed(&self) -> Committed {
        self.memory.page().commits.so_far()
    }

    /// Is the present incarnation replaying? (Afterwards the incarnation records.)
    pub(crate) fn replays(&self) -> bool {
        self.replays
    }

    /// Is anything recorded?
    pub(crate) fn has_record(&self) -> bool {
        self.memory.length(0) > 0
    }

    /// Is the recorded program the listener for clients?
    pub(crate) fn has_listener(&self) -> bool {
        self.memory.has_listener()
    }

    /// Handles messages of the server: end of the replay, an upstream connection that was opened or closed.
    pub(crate) fn poll(&mut self, now: Duration) -> Result<Replayed, ServeError> {
        match self.handover.receive_messages() {
            Ok(has_messages) if has_messages || self.has_messages => {}
            Ok(_) => return Ok(Replayed::NotYet),
            Err(HandoverError::Io(error)) => return Err(error).doing(RECORD),
            Err(error) => return Ok(Replayed::Not(error.to_string())),
        }
        self.handle_messages();
        if !self.replays || !self.handover.has_reports_of(&self.memory.begun()) {
            return Ok(Replayed::NotYet);
        }
        let passed = match self.handover.take() {
            Ok(passed) => passed,
            Err(error) => return Ok(Replayed::Not(error.to_string())),
        };
        // Several connections may have the same ends, and cannot be told apart: an open connection wins, else the last.
        let (closed, open): (Vec<_>, Vec<_>) = passed
            .clients
            .into_iter()
            .partition(|one| one.position.is_closed);
        let clients = closed.into_iter().chain(open);
        let named = |one: ConnectionReport| ((one.position.ends, one.position.which), one);
        self.passed = clients.map(named).collect();
        self.upstream.pass(passed.opened);
        (self.replays, self.replayed_at) = (false, Some(now));
        self.follows = false;
        Ok(Replayed::Whole)
    }

    /// Handles messages about files and upstream connections.
    fn handle_messages(&mut self) {
        self.has_messages = false;
        let before = std::mem::take(&mut self.pending_messages);
        for (message, descriptor) in before.into_iter().chain(self.handover.take_requests()) {
            if let (Message::ReadCursors { .. }, Some(answer)) = (message, &descriptor) {
                if let Some(notes) = &self.read_cursors {
                    files::give(notes.as_fd(), answer);
                }
                continue;
            }
            if let Some((message, descriptor)) = self.files.on_message(message, descriptor) {
                self.upstream.on_message(message, descriptor);
            }
        }
    }

    /// The next upstream connection that shall continue as client connections do; the process awaits an answer.
    pub(crate) fn next_outbound(&mut self) -> Option<OutboundRequest> {
        self.upstream.next_outbound()
    }

    /// Answers with the flow of the connection; `None`: no flow. `false`: the answer was not delivered.
    pub(crate) fn answer(
        &mut self,
        joining: OutboundRequest,
        flow: Option<(FlowKey, FlowId)>,
    ) -> bool {
        self.upstream.answer(joining, flow)
    }

    /// The processes are dead: adopted connections whose adoption no process had time to record.
    pub(crate) fn unjoin(&mut self) -> Vec<(FlowKey, FlowId)> {
        let memory = &self.memory;
        // Without a readable record no incarnation continues any connection.
        let is_noted = |process, flow: FlowId| memory.has_joined(process, flow.0).unwrap_or(true);
        self.upstream.unjoin(is_noted)
    }

    /// The server is about to be ended, and the upstream connections with the server.
    pub(crate) fn ends(&mut self) {
        self.memory.is_ending();
        // No process shall wait for an answer while `serve` waits for the server's end.
        if self.handover.stop_listening().is_ok() && self.handover.receive_messages().is_ok() {
            self.handle_messages();
        }
        self.upstream.let_go();
    }
}

/// The shim and the handover of an incarnation.
fn shared() -> Result<(Library, Handover), ServeError> {
    let library = Library::new().doing(RECORD)?;
    Ok((library, Handover::new().doing(RECORD)?))
}

/// Mounts memory for this many bytes of records.
fn mount_memory(run_dir: &Path, bytes: u64) -> Result<Mount, ServeError> {
    Ok(mounts::memory(run_dir, mount_bytes(bytes))?)
}

fn mount_bytes(bytes: u64) -> u64 {
    bytes + 2 * Memory::OVERHEAD
}

/// An empty record beside a record that is of no use. The server keeps the old record, with all the memory, as long as
/// the server lives.
fn beside(memory_mount: &Mount, bytes: u64) -> Result<Memory, ServeError> {
    OtherVersion::set_aside(memory_mount.path()).doing(RECORD)?;
    let used = memory_mount.used().doing(RECORD)?;
    memory_mount.resize(used + mount_bytes(bytes))?;
    empty(memory_mount)
}

/// An empty record.
fn empty(memory_mount: &Mount) -> Result<Memory, ServeError> {
    Memory::create(memory_mount.path(), new_number()).doing(RECORD)
}

/// A random number for a new record.
fn new_number() -> u64 {
    rand::rng().random_range(Edition::WITHOUT + 1..=u64::MAX)
}

const OTHER_VERSION: &str = "another version of outlive made the record, and only that version can replay it: the next start of the server (a crash, outlive restart) resets all connections and begins a new record";

const RECORD: &str = "keep a record of what the server is told";
