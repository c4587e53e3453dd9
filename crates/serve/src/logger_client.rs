//! Our side of the logger process: starting it, asking it, hearing from it.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Command, Stdio},
    time::Duration,
};

use protocol::{
    UnprotectedReason,
    control::{Decoder, FlowSummary, Request, Response, encode},
};
use recovery::ReplayMode;
use wire::{FlowId, SeqNumber};

use crate::{
    config::ServeConfig,
    error::{ServeError, SystemContext},
};

/// The hidden verb by which our own binary becomes the logger process.
pub const LOGGER_VERB: &str = "logger-process";

/// How long an answer may take before the logger counts as dead.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the logger says unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Drained(u64),
    Unprotected(FlowId, UnprotectedReason),
}

/// Recorded parts of an outstream, each with its place.
pub(crate) type Ranges = Vec<(SeqNumber, Vec<u8>)>;

/// A piece of an instream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) flow: FlowId,
    pub(crate) from: SeqNumber,
    pub(crate) len: u32,
}

/// The logger process and the socket to it.
#[derive(Debug)]
pub(crate) struct LoggerClient {
    child: Child,
    socket: UnixStream,
    decoder: Decoder<Response>,
    said: VecDeque<Said>,
}

impl LoggerClient {
    /// Start the process and wait until it reads the ring.
    pub(crate) fn start(config: &ServeConfig, pins: &std::path::Path) -> Result<Self, ServeError> {
        let (ours, theirs) = UnixStream::pair().doing("make a socket to the logger")?;
        ours.set_read_timeout(Some(PATIENCE))
            .doing("set a time limit")?;
        ours.set_write_timeout(Some(PATIENCE))
            .doing("set a time limit")?;
        let binary = std::env::current_exe().doing("find our own binary")?;
        let mode = match config.replay {
            ReplayMode::Connection => "connection",
            ReplayMode::Turn => "turn",
        };
        let child = Command::new(binary)
            .arg(LOGGER_VERB)
            .arg("--pins")
            .arg(pins)
            .arg("--per-connection")
            .arg(config.limits.per_connection.to_string())
            .arg("--total")
            .arg(config.limits.total.to_string())
            .arg("--connections")
            .arg(config.max_connections.to_string())
            .arg("--replay")
            .arg(mode)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .doing("start the logger process")?;
        let mut client = Self {
            child,
            socket: ours,
            decoder: Decoder::default(),
            said: VecDeque::new(),
        };
        client.ask(&Request::Hello {
            service: config.name.clone(),
        })?;
        Ok(client)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Has the process ended?
    pub(crate) fn is_dead(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Has it said something unasked that nobody has heard?
    pub(crate) fn has_said(&self) -> bool {
        !self.said.is_empty()
    }

    /// What it said unasked, oldest first.
    pub(crate) fn said(&mut self) -> Option<Said> {
        self.said.pop_front()
    }

    /// Read what it says by itself; call when the socket is readable.
    pub(crate) fn listen(&mut self) -> Result<(), ServeError> {
        self.read_some()?;
        while let Some(response) = self.decoder.pull()? {
            self.note(&response);
        }
        Ok(())
    }

    fn read_some(&mut self) -> Result<(), ServeError> {
        let mut buffer = [0u8; 64 * 1024];
        let read = loop {
            match self.socket.read(&mut buffer) {
                // A socket with a time limit is not read on after a signal (signal(7)).
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        match read {
            Ok(0) => Err(ServeError::Logger("it closed the connection".into())),
            Ok(n) => {
                self.decoder.feed(&buffer[..n]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(ServeError::Logger(
                format!("no answer within {} s", PATIENCE.as_secs()),
            )),
            Err(error) => Err(ServeError::Logger(error.to_string())),
        }
    }

    fn note(&mut self, response: &Response) -> bool {
        let said = match response {
            Response::Drained { token } => Said::Drained(*token),
            Response::Unprotected { flow, reason } => Said::Unprotected(*flow, *reason),
            _ => return false,
        };
        self.said.push_back(said);
        true
    }

    fn say(&mut self, request: &Request) -> Result<(), ServeError> {
        self.say_all([request.clone()])
    }

    /// In one piece: the logger may wait for us to read its first answer before it reads on.
    fn say_all(&mut self, requests: impl IntoIterator<Item = Request>) -> Result<(), ServeError> {
        let mut out = Vec::new();
        for request in requests {
            encode(&request, &mut out)?;
        }
        self.socket
            .write_all(&out)
            .map_err(|error| ServeError::Logger(error.to_string()))
    }

    fn next_answer(&mut self) -> Result<Response, ServeError> {
        loop {
            match self.decoder.pull()? {
                Some(Response::Error { message, .. }) => return Err(ServeError::NotKnown(message)),
                Some(response) => {
                    if !self.note(&response) {
                        return Ok(response);
                    }
                }
                None => self.read_some()?,
            }
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Response, ServeError> {
        self.say(request)?;
        self.next_answer()
    }

    /// Does it answer?
    pub(crate) fn ping(&mut self) -> Result<(), ServeError> {
        match self.ask(&Request::Hello {
            service: String::new(),
        })? {
            Response::Hello { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// What is known of every connection.
    pub(crate) fn summaries(&mut self) -> Result<Vec<FlowSummary>, ServeError> {
        self.say(&Request::Summaries)?;
        let mut all = Vec::new();
        loop {
            match self.next_answer()? {
                Response::Summaries { summaries, last } => {
                    all.extend(summaries);
                    if last {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Recorded instream bytes, for each of these; fewer than asked for only at the end of a record,
    /// and `None` of a connection that is not known (any more).
    pub(crate) fn read(&mut self, pieces: &[Piece]) -> Result<Vec<Option<Vec<u8>>>, ServeError> {
        self.say_all(pieces.iter().map(|piece| Request::Read {
            flow: piece.flow,
            from: piece.from,
            max_len: piece.len,
        }))?;
        let answers = pieces.iter().map(|_| match self.next_answer() {
            Ok(Response::Data { bytes, .. }) => Ok(Some(bytes)),
            Ok(other) => Err(unexpected(&other)),
            Err(ServeError::NotKnown(_)) => Ok(None),
            Err(error) => Err(error),
        });
        answers.collect()
    }

    /// The recorded outstream of each of these; `None` of one that is not known (any more).
    pub(crate) fn heads(&mut self, flows: &[FlowId]) -> Result<Vec<Option<Ranges>>, ServeError> {
        let questions = flows.iter();
        self.say_all(questions.map(|flow| Request::OutstreamHeads { flow: *flow }))?;
        let answers = flows.iter().map(|_| match self.heads_of_one() {
            Ok(ranges) => Ok(Some(ranges)),
            Err(ServeError::NotKnown(_)) => Ok(None),
            Err(error) => Err(error),
        });
        answers.collect()
    }

    fn heads_of_one(&mut self) -> Result<Ranges, ServeError> {
        let mut all = Vec::new();
        loop {
            match self.next_answer()? {
                Response::OutstreamHeads { ranges, last, .. } => {
                    all.extend(ranges);
                    if last {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// The connection's record is of no use any more.
    pub(crate) fn unprotect(&mut self, flow: FlowId) -> Result<(), ServeError> {
        self.say(&Request::Unprotect { flow })
    }

    /// From now on no turn begins and nothing of a record is dropped; or turns begin again.
    pub(crate) fn hold_turns(&mut self, hold: bool) -> Result<(), ServeError> {
        self.say(&Request::HoldTurns { hold })
    }

    /// Counts of the record.
    pub(crate) fn statistics(&mut self) -> Result<protocol::control::Statistics, ServeError> {
        match self.ask(&Request::Statistics)? {
            Response::Statistics(statistics) => Ok(statistics),
            other => Err(unexpected(&other)),
        }
    }

    /// End the process.
    pub(crate) fn shut_down(mut self) {
        if self.say(&Request::Shutdown).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }

    /// It does not behave: end it, whatever it does.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unexpected(response: &Response) -> ServeError {
    ServeError::Logger(format!("unexpected answer {response:?}"))
}
