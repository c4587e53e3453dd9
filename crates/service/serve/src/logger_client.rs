//! The side of `serve` towards a logger: start of a logger process on this host, requests, and messages from the
//! logger.

mod determinants;
mod frames;
mod reader_lock;
mod stream;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use channel::{Channel, Key, KeyRing};
use protocol::{
    UnprotectedReason,
    control::{
        Agreed, Attach, Claim, Decoder, Edition, ErrorCode, LeaseAnswer, LeaseRequest, Opening,
        RecordSummary, Recorded, Request, Response, Resume, Role, VERSIONS, encode,
    },
    link::LinkKeys,
    mirror,
};
use recovery::{Beginning, ReplayMode};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use south_model::{Digest, DigestSeed};
use wire::{FlowId, SeqNumber};

pub(crate) use self::determinants::{
    ImageReply, ImageState, PIECE_BYTES, READ_AHEAD_BYTES, Streams, read_stored_image, stored_image,
};
use self::stream::Stream;
use crate::{
    config::ServeConfig,
    error::{ServeError, SystemContext},
    link::AttachRequest,
};

/// The hidden verb by which our own binary becomes the logger process.
pub const LOGGER_VERB: &str = "logger-process";

/// Time for an answer before the logger process counts as dead.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// [`ANSWER_TIMEOUT`] while no connection is protected yet: on a busy machine a process may start slowly. The end of
/// the process is noticed at once.
pub(crate) const FIRST_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two looks at whether the process has ended.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time from SIGKILL to the end of a process. The heartbeat stops meanwhile.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The socket of the logger process, in a service's directory.
pub(crate) const SOCKET: &str = "logger.sock";
/// The lock of the process that reads the ring, in a service's directory.
pub(crate) const READER_LOCK: &str = "logger.lock";

/// Messages that the logger sends without a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoggerMessage {
    Drained(u64),
    Unprotected(FlowId, UnprotectedReason),
    /// The logger receives segments of a flow without a record. Holds the low half of the flow's number.
    Unknown(u32),
    /// Answer to this host's lease request.
    Lease(LeaseAnswer),
    /// Names of the active host and of a standby; version of the determinants of the active host.
    Hosts(String, String, u32),
    /// The determinants that follow belong to this edition, from the beginning.
    Followed(Option<Edition>),
    /// More of the stream of a process, from that place on.
    Grown(u32, u64, Vec<u8>),
    /// State of an image upload.
    Image(ImageReply),
}

/// Reply of a logger on another machine to an attach request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attached {
    /// The records of this instance are still there.
    pub(crate) kept: bool,
    /// Number of the session to which these records belong, as the logger was told; 0: no number was told.
    pub(crate) session: u64,
    /// Seed of the digest key of these records.
    pub(crate) digests: Option<DigestSeed>,
    pub(crate) keys: LinkKeys,
}

/// Recorded parts of an outstream with sequence numbers.
pub(crate) type Ranges = Vec<(SeqNumber, Vec<u8>)>;

/// Recorded outstream, beginnings of requests, and digests of the outstream.
pub(crate) type Heads = (Ranges, Vec<Beginning>, Vec<Digest>);

/// Adds to each beginning the digest of the outstream up to that place, if the logger has this digest.
fn compared_with(mut beginnings: Vec<Beginning>, digests: &[Digest]) -> Vec<Beginning> {
    let mut digests = digests.iter().peekable();
    for beginning in &mut beginnings {
        let before = |digest: &&Digest| digest.next.before(beginning.heard);
        while digests.next_if(before).is_some() {}
        let here = |digest: &&Digest| digest.next == beginning.heard;
        beginning.said = digests.next_if(here).copied();
    }
    beginnings
}

/// A piece of an instream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) flow: FlowId,
    pub(crate) from: SeqNumber,
    pub(crate) len: u32,
}

/// Where a logger runs, and which process is the parent.
enum Process {
    /// A child of ours.
    Child(Child),
    /// A child of a `serve` that has died.
    Adopted(OwnedFd),
    /// On another machine.
    Elsewhere,
}

/// A logger, and the control stream to the logger.
pub(crate) struct LoggerClient {
    process: Process,
    /// The digests of the logger have another key than the digests of this service, or no key.
    has_other_key: bool,
    /// The agreed version of mirror frames.
    pub(crate) mirror_version: u8,
    /// The agreed version of the log link; 0 without a link.
    link_version: u8,
    pid: u32,
    stream: Stream,
    /// The terms of the stream.
    agreed: Agreed,
    decoder: Decoder<Response>,
    messages: VecDeque<LoggerMessage>,
}

impl LoggerClient {
    /// Start the process and wait until the process reads the ring, `timeout` at most. Another reader of the ring is
    /// ended before, and loses the records.
    pub(crate) fn start(
        config: &ServeConfig,
        pins: &Path,
        timeout: Duration,
    ) -> Result<Self, ServeError> {
        let directory = config.run_dir.service(&config.name);
        reader_lock::end_holder(&directory)?;
        let at = directory.join(SOCKET);
        let _ = std::fs::remove_file(&at); // of a dead logger process
        let listener = UnixListener::bind(&at).doing("make a socket for the logger")?;
        let binary = supervise::own_binary().doing("find our own binary")?;
        let mode = match config.replay {
            ReplayMode::Connection => "connection",
            ReplayMode::Request => "request",
        };
        let child = Command::new(binary)
            .arg(LOGGER_VERB)
            .arg("--pins")
            .arg(pins)
            .arg("--lock")
            .arg(directory.join(READER_LOCK))
            .arg("--per-connection")
            .arg(config.limits.per_connection.to_string())
            .arg("--total")
            .arg(config.limits.total.to_string())
            .arg("--connections")
            .arg(config.max_connections.to_string())
            .arg("--replay")
            .arg(mode)
            .stdin(Stdio::from(OwnedFd::from(listener)))
            // A terminal signals a whole group: SIGHUP, or SIGINT for Ctrl-C. `serve` survives SIGHUP, and ends the
            // logger itself after SIGINT.
            .process_group(0)
            .spawn()
            .doing("start the logger process")?;
        let mut client = Self::connect(&at, &config.name, timeout)?;
        let patience = client.stream.set_patience(ANSWER_TIMEOUT);
        patience.doing("talk to the logger process")?;
        client.process = Process::Child(child);
        Ok(client)
    }

    /// Take over the process of a dead `serve`, with the records; `None`: the process is gone.
    pub(crate) fn adopt(config: &ServeConfig) -> Option<Self> {
        let at = config.run_dir.service(&config.name).join(SOCKET);
        let mut client = Self::connect(&at, &config.name, ANSWER_TIMEOUT).ok()?;
        let pid = Pid::from_raw(i32::try_from(client.pid).ok()?)?;
        client.process = Process::Adopted(pidfd_open(pid, PidfdFlags::empty()).ok()?);
        Some(client)
    }

    /// Whether the process has an older version of a format than this program. The next version of this program may
    /// have no version in common with the process.
    pub(crate) fn is_older(&self) -> bool {
        self.agreed.version() < VERSIONS.newest() || self.mirror_version < mirror::VERSION
    }

    fn connect(at: &Path, service: &str, timeout: Duration) -> Result<Self, ServeError> {
        let socket = UnixStream::connect(at).doing("connect to the logger process")?;
        let stream = Stream::local(socket, timeout).doing("connect to the logger process")?;
        let mut client = Self::open(stream)?;
        let (service, frames) = (service.to_owned(), mirror::VERSIONS);
        match client.ask(&Request::Hello { service, frames })? {
            Response::Hello {
                pid,
                frames: chosen,
            } if frames.contains(chosen) => {
                client.pid = pid;
                client.mirror_version = chosen;
            }
            other => return Err(unexpected(&other)),
        }
        Ok(client)
    }

    /// Claim the addresses of the service at the logger, if `asks` has a claim, and attach. The last part of the result
    /// is that of [`Self::claiming`].
    ///
    /// # Errors
    /// Errors of [`Self::claiming`], and a refusal by the logger.
    pub(crate) fn attaching(
        self,
        asks: &AttachRequest,
    ) -> Result<(Self, Attached, Option<String>), ServeError> {
        let AttachRequest {
            claim,
            attach,
            digests,
        } = asks;
        let (client, beside) = match claim {
            Some(claim) => self.claiming(claim)?,
            None => (self, None),
        };
        let (mut client, attached) = client.attach(attach.clone())?;
        let told = digests.map(|seed| client.send_digest_seed(seed));
        let digests = told.transpose()?;
        let attached = Attached {
            digests,
            ..attached
        };
        Ok((client, attached, beside))
    }

    fn attach(mut self, attach: Attach) -> Result<(Self, Attached), ServeError> {
        let offered = (attach.link, attach.frames);
        match self.ask(&Request::Attach(attach)) {
            Ok(Response::Attached {
                pid,
                kept,
                session,
                keys,
                frames,
            }) if offered.0.contains(keys.version) && offered.1.contains(frames) => {
                self.pid = pid;
                self.mirror_version = frames;
                self.link_version = keys.version;
                let attached = Attached {
                    kept,
                    session,
                    digests: None,
                    keys,
                };
                Ok((self, attached))
            }
            Ok(other) => Err(unexpected(&other)),
            Err(ServeError::NotKnown(why)) => Err(ServeError::Logger(why)),
            Err(error) => Err(error),
        }
    }

    /// Sends the seed of this service's digest key; returns the seed of the digests in the records.
    fn send_digest_seed(&mut self, seed: DigestSeed) -> Result<DigestSeed, ServeError> {
        match self.ask(&Request::DigestSeed(seed))? {
            Response::DigestSeed(seed) => Ok(seed),
            other => Err(unexpected(&other)),
        }
    }

    /// From now on digests are neither sent to the logger nor requested.
    pub(crate) fn without_digests(&mut self) {
        self.has_other_key = true;
    }

    /// Connect to a logger on another machine before the service has records there.
    pub(crate) fn call(
        at: SocketAddr,
        key_file: &Path,
        patience: Duration,
    ) -> Result<Self, ServeError> {
        let keys = KeyRing::load(key_file)?; // the file may have changed
        Self::dial(at, keys.first(), patience)
    }

    /// Call a logger on another machine that knows this key.
    pub(crate) fn dial(at: SocketAddr, key: &Key, patience: Duration) -> Result<Self, ServeError> {
        let channel = Channel::connect(at, key, patience, patience)
            .map_err(|error| ServeError::LoggerUnreachable { at, error })?;
        // The heart must beat, whatever the operator allows.
        let stream = Stream::remote(channel, patience.min(ANSWER_TIMEOUT));
        let stream = stream.doing("talk to the logger")?;
        Self::open(stream)
    }

    /// Claim the addresses of the service at the logger. Returns in words which other service has an address too, if
    /// the logger tolerates this because the service serves already.
    ///
    /// # Errors
    /// [`ServeError::AddressClaimed`]: another service has an address.
    pub(crate) fn claiming(mut self, claim: &Claim) -> Result<(Self, Option<String>), ServeError> {
        match self.ask(&Request::Claim(claim.clone())) {
            Ok(Response::Claimed { beside }) => Ok((self, Some(beside).filter(|b| !b.is_empty()))),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(error),
        }
    }

    /// Sends the versions that this program supports, and waits for the versions of the logger.
    fn open(mut stream: Stream) -> Result<Self, ServeError> {
        stream.write(&Opening::of(Role::Asks).encode())?;
        let mut decoder = Decoder::at_opening(VERSIONS);
        let agreed = loop {
            if let Some(agreed) = decoder.open()? {
                break agreed;
            }
            let read = stream.read(&mut decoder);
            read.map_err(ServeError::into_first_reply_error)?;
        };
        Ok(Self {
            process: Process::Elsewhere,
            has_other_key: false,
            mirror_version: mirror::VERSION,
            link_version: 0,
            pid: 0,
            stream,
            agreed,
            decoder,
            messages: VecDeque::new(),
        })
    }

    /// Process number of the logger on the logger's machine.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Has the process of ours ended?
    pub(crate) fn is_dead(&mut self) -> bool {
        match &mut self.process {
            Process::Child(child) => !matches!(child.try_wait(), Ok(None)),
            // The stream shows the end of these processes.
            Process::Adopted(_) | Process::Elsewhere => false,
        }
    }

    /// Key that the logger has accepted, if the logger is on another machine.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.stream.key()
    }

    /// Bytes that wait until the logger can take more.
    pub(crate) fn queued(&self) -> usize {
        self.stream.queued()
    }

    /// Is a message queued?
    pub(crate) fn has_message(&self) -> bool {
        !self.messages.is_empty()
    }

    /// The oldest queued message.
    pub(crate) fn next_message(&mut self) -> Option<LoggerMessage> {
        self.messages.pop_front()
    }

    /// Read messages of the logger, and write queued bytes; call when the stream is ready.
    pub(crate) fn listen(&mut self) -> Result<(), ServeError> {
        self.stream.listen(&mut self.decoder)?;
        while let Some(response) = self.decoder.pull()? {
            let _ = self.note(response); // no request is open
        }
        Ok(())
    }

    /// Queues a message that came without a request; returns the answer to a request.
    fn note(&mut self, response: Response) -> Option<Response> {
        let said = match response {
            Response::Drained { token } => LoggerMessage::Drained(token),
            Response::Unprotected { flow, reason } => LoggerMessage::Unprotected(flow, reason),
            Response::Unknown { flow_low } => LoggerMessage::Unknown(flow_low),
            Response::Lease(answer) => LoggerMessage::Lease(answer),
            Response::Hosts {
                serves,
                stands_by,
                determinants,
            } => LoggerMessage::Hosts(serves, stands_by, determinants),
            Response::Followed { edition } => LoggerMessage::Followed(edition),
            Response::Grown {
                process,
                from,
                bytes,
            } => LoggerMessage::Grown(process, from, bytes),
            Response::ImageTaken {
                record,
                image,
                there,
            } => image_message(record, image, ImageState::There(there)),
            Response::ImageKept { record, image } => image_message(record, image, ImageState::Kept),
            Response::ImageRefused { record, image, why } => {
                image_message(record, image, ImageState::Refused(why))
            }
            answer => return Some(answer),
        };
        self.messages.push_back(said);
        None
    }

    fn send(&mut self, request: &Request) -> Result<(), ServeError> {
        self.send_all([request.clone()])
    }

    /// A single write: the logger may stop reading until `serve` has read the first answer.
    fn send_all(&mut self, requests: impl IntoIterator<Item = Request>) -> Result<(), ServeError> {
        let mut out = Vec::new();
        for request in requests {
            encode(&request, self.agreed, &mut out)?;
        }
        self.stream.write(&out)
    }

    fn next_answer(&mut self) -> Result<Response, ServeError> {
        match self.next_response()? {
            Response::Error { code, message } => Err(refused(code, message)),
            response => Ok(response),
        }
    }

    fn next_response(&mut self) -> Result<Response, ServeError> {
        loop {
            match self.decoder.pull()? {
                Some(response) => {
                    if let Some(answer) = self.note(response) {
                        return Ok(answer);
                    }
                }
                None => self.stream.read(&mut self.decoder)?,
            }
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Response, ServeError> {
        self.send(request)?;
        self.next_answer()
    }

    /// Checks that the logger answers.
    pub(crate) fn ping(&mut self) -> Result<(), ServeError> {
        match self.ask(&Request::Hello {
            service: String::new(),
            frames: mirror::VERSIONS,
        })? {
            Response::Hello { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Summaries of the records of all connections.
    pub(crate) fn summaries(&mut self) -> Result<Vec<RecordSummary>, ServeError> {
        self.send(&Request::Summaries)?;
        self.pages(|response| match response {
            Response::Summaries { summaries, last } => Ok((summaries, last)),
            other => Err(other),
        })
    }

    /// The connections that have a whole record.
    pub(crate) fn connections(&mut self) -> Result<Vec<Recorded>, ServeError> {
        self.send(&Request::Connections)?;
        self.pages(|response| match response {
            Response::Connections { connections, last } => Ok((connections, last)),
            other => Err(other),
        })
    }

    /// Recorded instream bytes, for each of these; fewer than asked for only at the end of a record,
    /// and `None` of a connection that is not known (any more).
    pub(crate) fn read(&mut self, pieces: &[Piece]) -> Result<Vec<Option<Vec<u8>>>, ServeError> {
        self.send_all(pieces.iter().map(|piece| Request::Read {
            flow: piece.flow,
            from: piece.from,
            max_len: piece.len,
        }))?;
        let answers = pieces.iter().map(|_| match self.next_answer() {
            Ok(Response::Data { bytes, .. }) => Ok(Some(bytes)),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => known(Err(error)),
        });
        answers.collect()
    }

    /// The recorded outstream of each connection, and the beginnings of requests; `None` for a connection that the
    /// logger does not know (any more).
    pub(crate) fn heads(&mut self, flows: &[FlowId]) -> Result<Vec<Option<Heads>>, ServeError> {
        let takes_digests = !self.has_other_key;
        let questions = flows.iter().flat_map(|flow| {
            let flow = *flow;
            let digests = takes_digests.then_some(Request::Digests { flow });
            [
                Request::OutstreamHeads { flow },
                Request::Beginnings { flow },
            ]
            .into_iter()
            .chain(digests)
        });
        self.send_all(questions)?;
        let answers = flows.iter().map(|_| {
            let ranges = known(self.ranges_of_one())?;
            let beginnings = known(self.beginnings_of_one())?;
            let digests = match takes_digests {
                true => known(self.digests_of_one())?.unwrap_or_default(),
                false => Vec::new(),
            };
            let beginnings = beginnings.map(|all| compared_with(all, &digests));
            Ok(ranges
                .zip(beginnings)
                .map(|(ranges, beginnings)| (ranges, beginnings, digests)))
        });
        answers.collect()
    }

    fn ranges_of_one(&mut self) -> Result<Ranges, ServeError> {
        self.pages(|response| match response {
            Response::OutstreamHeads { ranges, last, .. } => Ok((ranges, last)),
            other => Err(other),
        })
    }

    fn beginnings_of_one(&mut self) -> Result<Vec<Beginning>, ServeError> {
        let places = self.pages(|response| match response {
            Response::Beginnings { places, last, .. } => Ok((places, last)),
            other => Err(other),
        })?;
        let beginning = |(instream, heard)| Beginning {
            instream,
            heard,
            said: None,
        };
        Ok(places.into_iter().map(beginning).collect())
    }

    fn digests_of_one(&mut self) -> Result<Vec<Digest>, ServeError> {
        self.pages(|response| match response {
            Response::Digests { digests, last, .. } => Ok((digests, last)),
            other => Err(other),
        })
    }

    /// All of an answer that comes in several messages: of each the part, and whether that is the last.
    fn pages<T>(
        &mut self,
        part_of: impl Fn(Response) -> Result<(Vec<T>, bool), Response>,
    ) -> Result<Vec<T>, ServeError> {
        let mut all = Vec::new();
        loop {
            let (part, last) = part_of(self.next_answer()?).map_err(|other| unexpected(&other))?;
            all.extend(part);
            if last {
                return Ok(all);
            }
        }
    }

    /// The connection's record is of no use any more.
    pub(crate) fn unprotect(&mut self, flow: FlowId) -> Result<(), ServeError> {
        self.send(&Request::Unprotect { flow })
    }

    /// Hold: no request begins, and no part of a record is dropped. `false`: requests begin again.
    pub(crate) fn hold_turns(&mut self, hold: bool) -> Result<(), ServeError> {
        self.send(&Request::HoldTurns { hold })
    }

    /// Counts of the record.
    pub(crate) fn statistics(&mut self) -> Result<protocol::control::Statistics, ServeError> {
        match self.ask(&Request::Statistics)? {
            Response::Statistics(statistics) => Ok(statistics),
            other => Err(unexpected(&other)),
        }
    }

    /// New keys for the link.
    pub(crate) fn rekey(&mut self) -> Result<LinkKeys, ServeError> {
        match self.ask(&Request::Rekey)? {
            // The programs and the server's processes write the agreed version.
            Response::Keys(keys) if keys.version == self.link_version => Ok(keys),
            other => Err(unexpected(&other)),
        }
    }

    /// Mirror frames, whole ones of any versions, at most [`protocol::control::MAX_DATA`] bytes.
    pub(crate) fn frames(&mut self, frames: &[u8]) -> Result<(), ServeError> {
        let pieces = frames::translated(frames, self.mirror_version, !self.has_other_key);
        self.send_all(pieces.into_iter().map(|bytes| Request::Frames { bytes }))
    }

    /// Asks the logger to answer when everything sent before is recorded.
    pub(crate) fn barrier(&mut self, token: u64) -> Result<(), ServeError> {
        self.send(&Request::Barrier { token })
    }

    /// Tells the logger that the service uses this logger, in this session of the service.
    pub(crate) fn in_use(&mut self, session: u64) -> Result<(), ServeError> {
        self.send(&Request::InUse { session })
    }

    /// Sends a lease request. The answer comes as a message.
    pub(crate) fn ask_for_lease(&mut self, request: LeaseRequest) -> Result<(), ServeError> {
        self.send(&Request::Lease(request))
    }

    /// The record of a connection begins here.
    pub(crate) fn resume(&mut self, resume: Resume) -> Result<(), ServeError> {
        self.send(&Request::Resume(resume))
    }

    /// End of the service: a logger process of this host ends, a logger on another machine drops the records.
    pub(crate) fn shut_down(mut self) -> Option<Unended> {
        let said = self
            .send(&Request::Shutdown)
            .and_then(|()| self.stream.finish());
        if said.is_err() {
            return self.kill();
        }
        let Process::Child(child) = &mut self.process else {
            return None;
        };
        let until = Instant::now() + ANSWER_TIMEOUT;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                return self.kill(); // hung, or stopped by a signal
            }
            std::thread::sleep(EXIT_POLL_INTERVAL);
        }
        None
    }

    /// End a logger process that does not behave, in whichever state.
    pub(crate) fn kill(&mut self) -> Option<Unended> {
        match std::mem::replace(&mut self.process, Process::Elsewhere) {
            Process::Child(mut child) => {
                let _ = child.kill();
                return reap(child, KILL_TIMEOUT);
            }
            Process::Adopted(pidfd) => {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
            Process::Elsewhere => {}
        }
        None
    }
}

/// End the logger process of a dead `serve`, if the process exists.
pub(crate) fn end_left_over(directory: &Path) {
    if let Ok(client) = LoggerClient::connect(&directory.join(SOCKET), "", ANSWER_TIMEOUT) {
        client.shut_down();
    } else if let Err(error) = reader_lock::end_holder(directory) {
        tracing::warn!(%error, "a logger process stays");
    }
}

/// A logger process that was killed, and has not ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the logger process {0} was killed and does not end: the process waits in the kernel for a disk or another file system (state D). outlive no longer waits for this process"
)]
pub(crate) struct Unended(u32);

/// Wait for the end of the process, `most` at most. A process that has not ended by then does no more work, and the
/// wait goes on in a thread.
fn reap(mut child: Child, most: Duration) -> Option<Unended> {
    let until = Instant::now() + most;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= until {
            let unended = Unended(child.id());
            // The thread prevents a zombie. Without the thread the zombie stays until this process ends.
            let _ = std::thread::Builder::new().spawn(move || child.wait());
            return Some(unended);
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    }
    None
}

fn image_message(record: u64, image: u64, state: ImageState) -> LoggerMessage {
    let image = (record, image);
    LoggerMessage::Image(ImageReply { image, state })
}

/// `None` if the logger does not know the connection.
fn known<T>(answer: Result<T, ServeError>) -> Result<Option<T>, ServeError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(ServeError::NotKnown(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The operator says that the host which holds this service is gone for good. Returns the epoch that is over.
pub(crate) fn give_up(mut client: LoggerClient, service: &str) -> Result<u32, ServeError> {
    let service = service.to_owned();
    client.send(&Request::GiveUp { service })?;
    match client.next_response()? {
        Response::GivenUp { epoch } => Ok(epoch),
        Response::Error { code, message } => Err(match code {
            ErrorCode::UnknownFlow => ServeError::NeverGranted(message),
            code => refused(code, message),
        }),
        other => Err(unexpected(&other)),
    }
}

fn refused(code: ErrorCode, message: String) -> ServeError {
    match code {
        ErrorCode::StillServed => ServeError::StillServed(message),
        ErrorCode::StillWritten => ServeError::StillWritten(message),
        ErrorCode::Taken => ServeError::AddressClaimed(message),
        ErrorCode::NoCommonVersion => ServeError::NoCommonVersion(message),
        _ => ServeError::NotKnown(message),
    }
}

fn unexpected(response: &Response) -> ServeError {
    ServeError::Logger(format!("unexpected answer {response:?}"))
}

#[cfg(test)]
mod tests;
