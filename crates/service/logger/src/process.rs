//! The process: a ring and a socket.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::OpenOptionsExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use dataplane::{DataplaneError, PinDirectory, Ring};
use journal::{Limits, ReplayMode};
use protocol::{
    control::{Agreed, ControlError, Decoder, Opening, Request, Response, Role, VERSIONS, encode},
    mirror::FrameError,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, fcntl_lock},
};

use crate::{ingest::Ingest, rpc::RpcHandler};

/// Poll interval while frames arrive: the ring's writer wakes the logger only when many frames wait.
const BUSY_INTERVAL: Duration = Duration::from_millis(5);
/// Poll interval while no frames arrive. Waiting frames are safe in the ring.
const IDLE_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of freeing unused memory.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);
/// The programs fill the ring in softirqs and cannot wait: a frame without space is dropped, and the client's TCP
/// takes the loss for congestion. So the logger gets a high priority.
const LOGGER_NICE: i32 = -20;
/// Frames per pass before requests of `serve`: a fast upload fills the ring as fast as the logger reads.
const AT_A_TIME: usize = 256;

/// Lifetime without a `serve`. The programs stop recording some seconds after the death of `serve`, and the record
/// is useless afterwards.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of responses per pass before the next look into the ring.
const REPLY_BYTES_PER_PASS: usize = 1 << 20;

/// Configuration of the logger of a service.
#[derive(Debug, Clone)]
pub struct LoggerConfig {
    /// The pins of the service's ring.
    pub pins: PinDirectory,
    /// The file whose lock the reader of the ring holds: a ring has a single reader.
    pub lock: PathBuf,
    /// Limits of the record.
    pub limits: Limits,
    /// The replay start, which decides how much of a connection is kept.
    pub mode: ReplayMode,
}

/// Why the logger ended.
#[derive(Debug, thiserror::Error)]
pub enum LoggerError {
    /// The ring cannot be read.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    /// Another process reads the ring, or the lock cannot be taken.
    #[error("cannot become the reader of the ring: {path}: {error}", path = .path.display())]
    Lock {
        /// The lock.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// A frame in the ring cannot be read. The frame may be a barrier for which a recovery waits; so the process
    /// ends, and `serve` starts another logger.
    #[error("the programs wrote a frame that this logger does not read: {0}")]
    Frame(FrameError),
    /// The socket on which `serve` connects failed.
    #[error("the socket for serve failed: {0}")]
    Socket(#[from] io::Error),
}

/// Why the logger ends a stream.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("the connection failed: {0}")]
    Socket(#[from] io::Error),
    /// No common version, or bytes that are not the control protocol.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Keeps the record until `serve` sends [`Request::Shutdown`]. `listener` accepts the connection of `serve`. After
/// the death of a `serve` the next `serve` finds the records unchanged. Without a `serve` for 30 seconds, the
/// function returns.
///
/// # Errors
/// The ring or the socket fails, or another process reads the ring.
pub fn run(config: &LoggerConfig, listener: &UnixListener) -> Result<(), LoggerError> {
    if let Err(error) = rustix::process::setpriority_process(None, LOGGER_NICE) {
        tracing::warn!(%error, "uploads may be slow: cannot raise the logger's priority");
    }
    listener.set_nonblocking(true)?;
    let _lock = take_lock(&config.lock)?;
    let ingest = RefCell::new(Ingest::new(config.limits, config.mode));
    let ring = Ring::mirror(&config.pins, |bytes| ingest.borrow_mut().take(bytes))?;
    let rpc = RpcHandler::new(std::process::id());
    let mut serve = Serve::Gone(Instant::now());
    let mut trimmed = Instant::now();
    loop {
        let taken = consume(&ingest, |most| ring.consume_at_most(most))?;
        let mut ingest = ingest.borrow_mut();
        if trimmed.elapsed() >= TRIM_INTERVAL {
            ingest.journal.trim();
            trimmed = Instant::now();
        }
        if let Serve::Gone(since) = &serve
            && since.elapsed() >= ORPHAN_TIMEOUT
        {
            return Ok(());
        }
        let Some(answered) = serve.answer(&rpc, &mut ingest) else {
            return Ok(());
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

/// Takes frames from the ring. Returns the number of frames.
fn consume(
    ingest: &RefCell<Ingest>,
    mut ring: impl FnMut(usize) -> Result<usize, DataplaneError>,
) -> Result<usize, LoggerError> {
    let taken = ring(AT_A_TIME)?;
    let Some(error) = ingest.borrow_mut().unreadable.take() else {
        return Ok(taken);
    };
    // All connections lose their records now: the next process needs none of these frames.
    while ring(AT_A_TIME)? == AT_A_TIME {}
    Err(LoggerError::Frame(error))
}

/// The record lock (fcntl(2)) belongs to this process: a stopped process keeps the lock, a killed process does not,
/// and the kernel reports the owner's process number.
fn take_lock(path: &Path) -> Result<File, LoggerError> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let taken = options.open(path).and_then(|file| {
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    });
    taken.map_err(|error| LoggerError::Lock {
        path: path.to_owned(),
        error,
    })
}

/// The `serve` that uses the record.
enum Serve {
    Here(Here),
    /// Dead, or not connected yet.
    Gone(Instant),
}

/// A connected `serve`.
struct Here {
    socket: UnixStream,
    requests: Decoder<Request>,
}

impl Serve {
    /// The descriptor that becomes readable on a request or a connection.
    fn as_fd<'a>(&'a self, listener: &'a UnixListener) -> BorrowedFd<'a> {
        match self {
            Self::Here(here) => here.socket.as_fd(),
            Self::Gone(_) => listener.as_fd(),
        }
    }

    /// Sends the notices and the responses. Returns the number of bytes; `None`: `serve` asked for the end.
    fn answer(&mut self, rpc: &RpcHandler, ingest: &mut Ingest) -> Option<usize> {
        let Self::Here(here) = self else {
            return Some(0);
        };
        match here.answer(rpc, ingest) {
            Ok(answered) => answered,
            // Another version, or a foreign program. The records wait for the right `serve`.
            Err(error) => {
                tracing::warn!(%error, "the stream of a serve has ended");
                *self = Self::Gone(Instant::now());
                Some(0)
            }
        }
    }

    /// Reads from `serve`, or accepts the next `serve`.
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
    fn open(&mut self) -> Result<Option<Agreed>, StreamError> {
        let known = self.requests.agreed();
        if known.is_some() {
            return Ok(known);
        }
        let opened = self.requests.open();
        if let Ok(Some(_)) | Err(ControlError::NoCommonVersion { .. }) = opened {
            self.socket
                .write_all(&Opening::of(Role::Answers).encode())?;
        }
        Ok(opened?)
    }

    /// As [`Serve::answer`].
    fn answer(
        &mut self,
        rpc: &RpcHandler,
        ingest: &mut Ingest,
    ) -> Result<Option<usize>, StreamError> {
        let Some(agreed) = self.open()? else {
            return Ok(Some(0));
        };
        let mut out = Vec::new();
        for notice in std::mem::take(&mut ingest.notices) {
            encode(&Response::from(notice), agreed, &mut out)?;
        }
        let mut pulled = Ok(None);
        while out.len() < REPLY_BYTES_PER_PASS {
            pulled = self.requests.pull();
            let Ok(Some(request)) = &pulled else {
                break;
            };
            if *request == Request::Shutdown {
                return Ok(None);
            }
            for answer in rpc.answer(ingest, request) {
                encode(&answer, agreed, &mut out)?;
            }
        }
        // Also before a malformed message: notices are sent only once.
        self.socket.write_all(&out)?;
        pulled?;
        Ok(Some(out.len()))
    }
}

/// Waits for frames, for `serve`, or for `interval`. True: `serve` is ready.
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

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use protocol::mirror::{self, FrameKind, MirrorFrame};
    use wire::FlowId;

    use super::*;

    fn ingest() -> Ingest {
        let limits = Limits {
            per_connection: 1 << 20,
            total: 1 << 20,
            connections: 10,
        };
        Ingest::new(limits, ReplayMode::Connection)
    }

    fn barrier(token: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let frame = MirrorFrame::<&[u8]>::of(FrameKind::Barrier { token }, FlowId(0));
        frame.encode(mirror::VERSION, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn unreadable_barrier_ends_the_process() {
        let unknown = mirror::VERSIONS.newest() + 1;
        let mut frames = vec![barrier(1); 3 * AT_A_TIME];
        frames[1][4] = unknown;
        let ingest = RefCell::new(ingest());
        let mut ring = frames.iter();
        let mut read = |most| {
            let taken = ring.by_ref().take(most);
            Ok(taken.map(|frame| ingest.borrow_mut().take(frame)).count())
        };
        let error = consume(&ingest, &mut read).unwrap_err();
        let expected = FrameError::UnknownVersion(unknown);
        assert!(matches!(error, LoggerError::Frame(error) if error == expected));
        assert_eq!(consume(&ingest, &mut read).unwrap(), 0, "the ring is empty");
    }

    #[test]
    fn malformed_message_ends_only_the_stream() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("socket");
        let listener = UnixListener::bind(&at).unwrap();
        let (mut ingest, rpc) = (ingest(), RpcHandler::new(7));
        let mut serve = Serve::Gone(Instant::now());
        let opening = Opening::of(Role::Asks).encode();
        let mut ask = |request: &[u8], token: u64| {
            let mut socket = UnixStream::connect(&at).unwrap();
            socket.write_all(&opening).unwrap();
            socket.write_all(request).unwrap();
            ingest.take(&barrier(token));
            for _ in 0..2 {
                let heard = std::mem::replace(&mut serve, Serve::Gone(Instant::now()));
                serve = heard.hear(&listener).unwrap();
            }
            assert!(
                serve.answer(&rpc, &mut ingest).is_some(),
                "the process ends"
            );
            let is_here = matches!(serve, Serve::Here(_));
            serve = Serve::Gone(Instant::now());
            let mut answers = Decoder::<Response>::at_opening(VERSIONS);
            let mut bytes = Vec::new();
            socket.read_to_end(&mut bytes).unwrap();
            answers.feed(&bytes);
            assert_eq!(answers.pull(), Ok(Some(Response::Drained { token })));
            (is_here, answers.pull().unwrap())
        };
        let too_short = 0u32.to_le_bytes();
        assert_eq!(ask(&too_short, 1), (false, None));
        let mut request = Vec::new();
        let hello = Request::Hello {
            service: "web".into(),
            frames: mirror::VERSIONS,
        };
        encode(&hello, Agreed::OWN, &mut request).unwrap();
        let answer = Response::Hello {
            pid: 7,
            frames: mirror::VERSION,
        };
        assert_eq!(ask(&request, 2), (true, Some(answer)));
    }

    #[test]
    fn second_reader_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let lock = directory.path().join("lock");
        let python = "import fcntl, sys\n\
                      file = open(sys.argv[1], 'w')\n\
                      fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n\
                      print(flush=True)\n\
                      sys.stdin.read()";
        let mut reader = Command::new("/usr/bin/python3");
        reader.args(["-c", python]).arg(&lock);
        let mut reader = reader
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(reader.stdout.take().unwrap());
        told.read_line(&mut String::new()).unwrap();
        let error = take_lock(&lock).unwrap_err();
        assert!(matches!(error, LoggerError::Lock { .. }), "{error}");
        drop(reader.stdin.take());
        reader.wait().unwrap();
        take_lock(&lock).unwrap();
    }
}
