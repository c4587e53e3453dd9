//! The process: a ring and a socket.

use std::{
    cell::RefCell,
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

use dataplane::{DataplaneError, PinDirectory, Ring};
use journal::{Limits, ReplayMode};
use protocol::control::{ControlError, Decoder, Request, Response, encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{desk::Desk, intake::Intake};

/// The ring's writer wakes us only when much waits; otherwise we look by ourselves, this often
/// while frames come ...
const BUSY_INTERVAL: Duration = Duration::from_millis(5);
/// ... and this often when none do. What waits meanwhile is safe where it is.
const IDLE_INTERVAL: Duration = Duration::from_millis(50);
/// How often memory is given back that no connection needs any more.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);
/// Whoever fills the ring runs in softirqs and cannot wait for us: what finds no room is dropped, and
/// the client's TCP takes that for congestion. So we go first.
const NICE: i32 = -20;
/// Frames taken before we look whether `serve` asks for something: a fast upload fills the ring as
/// fast as we read it.
const AT_A_TIME: usize = 256;

/// Bytes of answers that are given before we look into the ring again.
const MUCH: usize = 1 << 20;

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
    /// `serve` said something that is not the control protocol.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Keep the record until `serve` says that it is enough, or is gone.
///
/// # Errors
/// The ring or the socket fails, or the peer does not speak the protocol.
pub fn run(config: &LoggerConfig, mut socket: UnixStream) -> Result<(), LoggerError> {
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::warn!(%error, "uploads may be slow: cannot raise the logger's priority");
    }
    let intake = RefCell::new(Intake::new(config.limits, config.mode));
    let ring = Ring::mirror(&config.pins, |bytes| intake.borrow_mut().take(bytes))?;
    let desk = Desk::new(std::process::id());
    let mut requests = Decoder::<Request>::default();
    let mut trimmed = Instant::now();
    loop {
        let taken = ring.consume_at_most(AT_A_TIME)?;
        let mut intake = intake.borrow_mut();
        if trimmed.elapsed() >= TRIM_INTERVAL {
            intake.journal.trim();
            trimmed = Instant::now();
        }
        let mut out = Vec::new();
        for notice in std::mem::take(&mut intake.notices) {
            encode(&Response::from(notice), &mut out)?;
        }
        while out.len() < MUCH
            && let Some(request) = requests.pull()?
        {
            if request == Request::Shutdown {
                return Ok(());
            }
            for answer in desk.answer(&mut intake, &request) {
                encode(&answer, &mut out)?;
            }
        }
        drop(intake);
        socket.write_all(&out)?;
        let pause = match taken {
            _ if out.len() >= MUCH => Duration::ZERO, // there may be more questions
            AT_A_TIME.. => Duration::ZERO,
            0 => IDLE_INTERVAL,
            _ => BUSY_INTERVAL,
        };
        if wait(&ring, &socket, pause)? {
            let mut buffer = [0u8; 16 * 1024];
            match socket.read(&mut buffer)? {
                0 => return Ok(()), // serve is gone
                n => requests.feed(&buffer[..n]),
            }
        }
    }
}

/// Wait for frames, a request, or `interval`; true: a request.
fn wait(ring: &Ring<'_>, socket: &UnixStream, interval: Duration) -> io::Result<bool> {
    let ring = ring.as_fd();
    let mut fds = [
        PollFd::new(&ring, PollFlags::IN),
        PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
    ];
    let timeout = Timespec::try_from(interval).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => Ok(!fds[1].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
