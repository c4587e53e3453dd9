//! The process: a ring and a socket.

use std::{
    cell::RefCell,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

use dataplane::{DataplaneError, PinDirectory, Ring};
use journal::{Limits, ReplayMode};
use protocol::control::{
    Agreed, ControlError, Decoder, Opening, Request, Response, Role, VERSIONS, encode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{ingest::Ingest, rpc::RpcHandler};

/// The ring's writer wakes us only when much waits; otherwise we look by ourselves, this often
/// while frames come ...
const BUSY_INTERVAL: Duration = Duration::from_millis(5);
/// ... and this often when none do. What waits meanwhile is safe where it is.
const IDLE_INTERVAL: Duration = Duration::from_millis(50);
/// How often memory is given back that no connection needs any more.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);
/// Whoever fills the ring runs in softirqs and cannot wait for us: what finds no room is dropped, and
/// the client's TCP takes that for congestion. So we go first.
const LOGGER_NICE: i32 = -20;
/// Frames taken before we look whether `serve` asks for something: a fast upload fills the ring as
/// fast as we read it.
const AT_A_TIME: usize = 256;

/// How long we go on for nobody. The programs stop recording some seconds after `serve` has died, and
/// then the record is of no use any more.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of answers that are given before we look into the ring again.
const REPLY_BYTES_PER_PASS: usize = 1 << 20;

/// What the logger of a service is told at its start.
#[derive(Debug, Clone)]
pub struct LoggerConfig {
    /// Where the service's ring is pinned.
    pub pins: PinDirectory,
    /// What the record may hold.
    pub limits: Limits,
    /// How much of a connection is kept.
    pub mode: ReplayMode,
}

/// Why the logger ended.
#[derive(Debug, thiserror::Error)]
pub enum LoggerError {
    /// The ring cannot be read.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    /// The socket to `serve` failed.
    #[error("the connection to serve failed: {0}")]
    Socket(#[from] io::Error),
    /// A program that has connected speaks no version of the control protocol that this program speaks.
    #[error(transparent)]
    NotAgreed(ControlError),
    /// `serve` said something that is not the control protocol.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Keep the record until `serve` says that it is enough. `listener` is where it connects; one that
/// dies may be followed by another, who finds the records as they are. When nobody comes for
/// 30 seconds, this ends, too.
///
/// # Errors
/// The ring or the socket fails, or the peer does not speak the protocol.
pub fn run(config: &LoggerConfig, listener: &UnixListener) -> Result<(), LoggerError> {
    if let Err(error) = rustix::process::setpriority_process(None, LOGGER_NICE) {
        tracing::warn!(%error, "uploads may be slow: cannot raise the logger's priority");
    }
    listener.set_nonblocking(true)?;
    let ingest = RefCell::new(Ingest::new(config.limits, config.mode));
    let ring = Ring::mirror(&config.pins, |bytes| ingest.borrow_mut().take(bytes))?;
    let rpc = RpcHandler::new(std::process::id());
    let mut serve = Serve::Gone(Instant::now());
    let mut trimmed = Instant::now();
    loop {
        let taken = ring.consume_at_most(AT_A_TIME)?;
        let mut ingest = ingest.borrow_mut();
        if trimmed.elapsed() >= TRIM_INTERVAL {
            ingest.journal.trim();
            trimmed = Instant::now();
        }
        let answered = match &mut serve {
            Serve::Gone(since) if since.elapsed() >= ORPHAN_TIMEOUT => return Ok(()),
            Serve::Gone(_) => 0,
            Serve::Here(here) => match here.answer(&rpc, &mut ingest) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(()),
                // Another version has come, or a stranger: the records wait for the right one.
                Err(LoggerError::Socket(_) | LoggerError::NotAgreed(_)) => {
                    serve = Serve::Gone(Instant::now());
                    0
                }
                Err(error) => return Err(error),
            },
        };
        drop(ingest);
        let pause = match taken {
            _ if answered >= REPLY_BYTES_PER_PASS => Duration::ZERO, // there may be more questions
            AT_A_TIME.. => Duration::ZERO,
            0 => IDLE_INTERVAL,
            _ => BUSY_INTERVAL,
        };
        if wait(&ring, serve.as_fd(listener), pause)? {
            serve = serve.hear(listener)?;
        }
    }
}

/// Whom the record is kept for.
enum Serve {
    Here(Here),
    /// It has died, or not come yet.
    Gone(Instant),
}

/// A `serve` that is connected.
struct Here {
    socket: UnixStream,
    requests: Decoder<Request>,
}

impl Serve {
    /// What becomes readable when there is something to hear.
    fn as_fd<'a>(&'a self, listener: &'a UnixListener) -> BorrowedFd<'a> {
        match self {
            Self::Here(here) => here.socket.as_fd(),
            Self::Gone(_) => listener.as_fd(),
        }
    }

    /// Hear it, or the next one that comes.
    fn hear(self, listener: &UnixListener) -> Result<Self, LoggerError> {
        match self {
            Self::Gone(since) => match listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nonblocking(false)?;
                    Ok(Self::Here(Here {
                        socket,
                        requests: Decoder::at_opening(VERSIONS),
                    }))
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Self::Gone(since)),
                Err(error) => Err(error.into()),
            },
            Self::Here(mut here) => {
                let mut buffer = [0u8; 16 * 1024];
                match here.socket.read(&mut buffer) {
                    Ok(n) if n > 0 => {
                        here.requests.feed(&buffer[..n]);
                        Ok(Self::Here(here))
                    }
                    Ok(_) | Err(_) => Ok(Self::Gone(Instant::now())),
                }
            }
        }
    }
}

impl Here {
    /// The terms of the stream; `None`: the opening of `serve` has not arrived.
    fn open(&mut self) -> Result<Option<Agreed>, LoggerError> {
        let known = self.requests.agreed();
        if known.is_some() {
            return Ok(known);
        }
        let opened = self.requests.open();
        if let Ok(Some(_)) | Err(ControlError::NoCommonVersion { .. }) = opened {
            self.socket
                .write_all(&Opening::of(Role::Answers).encode())?;
        }
        opened.map_err(LoggerError::NotAgreed)
    }

    /// Say what there is to say, and answer what was asked. Tells how many bytes that took; `None`:
    /// it is enough.
    fn answer(
        &mut self,
        rpc: &RpcHandler,
        ingest: &mut Ingest,
    ) -> Result<Option<usize>, LoggerError> {
        let Some(agreed) = self.open()? else {
            return Ok(Some(0));
        };
        let mut out = Vec::new();
        for notice in std::mem::take(&mut ingest.notices) {
            encode(&Response::from(notice), agreed, &mut out)?;
        }
        while out.len() < REPLY_BYTES_PER_PASS
            && let Some(request) = self.requests.pull()?
        {
            if request == Request::Shutdown {
                return Ok(None);
            }
            for answer in rpc.answer(ingest, &request) {
                encode(&answer, agreed, &mut out)?;
            }
        }
        self.socket.write_all(&out)?;
        Ok(Some(out.len()))
    }
}

/// Wait for frames, for `serve`, or `interval`; true: for `serve`.
fn wait(ring: &Ring<'_>, serve: BorrowedFd<'_>, interval: Duration) -> io::Result<bool> {
    let ring = ring.as_fd();
    let mut fds = [
        PollFd::new(&ring, PollFlags::IN),
        PollFd::from_borrowed_fd(serve, PollFlags::IN),
    ];
    let timeout = Timespec::try_from(interval).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => Ok(!fds[1].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
