//! The protocol between clients of the engine and the engine: lengths and messages (postcard) over a socket, with the
//! streams of the client.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::Duration,
};

use nix::sys::{
    signal::{self, SigSet, SigmaskHow},
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg, sockopt::socket_peercred,
    },
    process::{Signal, Uid, getuid},
    stdio::{stderr, stdin, stdout},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::command::{Command, Status};

/// Largest message: environments are long.
const MOST_MESSAGE_BYTES: u32 = 64 << 20;
/// Signals that end a command with a waiting user.
const PASSED_ON: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
/// Longest time of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Standard input, output and errors.
pub const STREAM_COUNT: usize = 3;

/// A request to the engine.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Run a command of a make, which is a job or the make of a user.
    Run(Command),
    /// Run a make of the user.
    Make(Command),
    /// Report the commands that the asking make has taken over, at the end of that make.
    Taken,
    /// Report the state of the watcher.
    Status,
    /// Stop the engine.
    Stop,
}

/// An answer of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The client runs the command.
    PlainRun(PlainRun),
    /// The command is done, and all output was written.
    Done(Status, Gain),
    /// The commands that a make has taken over.
    Taken(Taken),
    /// The state of the watcher.
    Status(WatcherStatus),
    /// The engine stops when this number of commands of the user has ended.
    Ends(usize),
}

/// The way in which the client runs a command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlainRun {
    /// Further variables of the environment.
    pub also: Vec<(String, String)>,
    /// Message to the user.
    pub why: Option<String>,
    /// The process whose mounts the command gets, with the real files: the engine conceals no effect of this command.
    pub beside: Option<u32>,
}

/// The gain of a speculation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Gain {
    /// Number of revealed outputs.
    pub effects: usize,
    /// Duration of the reveal, microseconds.
    pub took: u64,
    /// Least further time that the user would have waited for make, microseconds; 0 if unknown.
    pub saved: u64,
    /// Least time that processors have worked, microseconds, within the time that the user would have waited.
    pub worked: u64,
    /// Whether the command was still running at the request.
    pub was_running: bool,
}

/// The commands that a make of the user has taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Taken {
    /// Number of commands.
    pub commands: usize,
    /// Processor time of these commands, microseconds.
    pub worked: u64,
    /// Time that the user waited for these commands, microseconds.
    pub waited: u64,
}

impl fmt::Display for Taken {
    /// `took over 57 commands; saved 258.1ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commands = if self.commands == 1 {
            "command"
        } else {
            "commands"
        };
        write!(f, "took over {} {commands}", self.commands)?;
        let saved = Duration::from_micros(self.worked.saturating_sub(self.waited));
        match saved.as_millis() {
            0 => Ok(()),
            _ => write!(f, "; saved {saved:.1?}"),
        }
    }
}

/// The state of a watcher.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WatcherStatus {
    /// Running makes and commands.
    pub running: usize,
    /// Number of speculative makes that began, or that were found to be valid still.
    pub begun: u64,
    /// Finished makes without a request yet.
    pub finished: usize,
    /// Duration of the finished make, microseconds; 0 without a finished make.
    pub took: u64,
    /// Processes that wait for a request.
    pub waiting: Vec<WaitingProcess>,
    /// The expected makes, with the likeliest first.
    pub expected: Vec<String>,
}

/// A process that waits for a request of the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingProcess {
    /// The process number.
    pub process: u32,
    /// The program.
    pub program: String,
    /// The reason: the effect outside of the concealed trees.
    pub why: String,
    /// The file, if the effect is on a known file.
    pub file: Option<String>,
}

impl fmt::Display for WaitingProcess {
    /// The reason and the file: `outside of what is concealed: /root/.cargo/.package-cache`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        match &self.file {
            Some(file) => write!(f, ": {file}"),
            None => Ok(()),
        }
    }
}

/// The address of an engine: an abstract name, since clients may see other files than the engine.
///
/// # Errors
/// A name that is too long.
pub fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Listens at the address of an engine.
///
/// # Errors
/// The errors of the kernel: `EADDRINUSE` if another process listens there.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&address(name)?)
}

/// Connects to the engine, and refuses an engine of another user: any process can take any name.
///
/// # Errors
/// The errors of the kernel, and an engine of another user.
pub fn connect(name: &str) -> io::Result<UnixStream> {
    let there = UnixStream::connect_addr(&address(name)?)?;
    is_ours(&there)?;
    Ok(there)
}

/// Whether an engine of that user listens there.
#[must_use]
pub fn is_listening(name: &str, user: u32) -> bool {
    let there = address(name).and_then(|address| UnixStream::connect_addr(&address));
    let credentials = there.and_then(|there| Ok(socket_peercred(there)?));
    credentials.is_ok_and(|it| it.uid.as_raw() == user)
}

/// Sends a request with the streams of this process.
///
/// # Errors
/// No engine, or no answer.
pub fn ask<T: DeserializeOwned>(name: &str, request: &impl Serialize) -> io::Result<T> {
    let mut there = connect(name)?;
    send_streams(&there, &[stdin(), stdout(), stderr()])?;
    send(&mut there, request)?;
    receive(&mut there)
}

/// Stops the engine. The engine ends with the last of the commands of the user, whose number is returned. With no such
/// command, the engine has ended on return.
///
/// # Errors
/// The errors of [`ask`].
pub fn stop(name: &str) -> io::Result<usize> {
    let mut there = connect(name)?;
    send_streams(&there, &[stdin(), stdout(), stderr()])?;
    send(&mut there, &Request::Stop)?;
    let own = match receive(&mut there) {
        Ok(Reply::Ends(own)) => own,
        Ok(_) => return Err(io::Error::other("the engine answers another request")),
        // The engine had ended before the request came.
        Err(error) if is_disconnected(&error) => 0,
        Err(error) => return Err(error),
    };
    if own == 0 {
        // The kernel closes the other end when the engine has ended, which may look like an error.
        let _ = there.read(&mut [0]);
    }
    Ok(own)
}

/// Signals to this process during a request: these end no process then.
#[derive(Debug, Default)]
pub struct SignalRelay {
    /// The mask before.
    before: Option<SigSet>,
    last: Option<u8>,
}

impl SignalRelay {
    fn block_signals(&mut self) -> io::Result<SignalFd> {
        let all = unignored_signals(&PASSED_ON).into_iter();
        let all: SigSet = all
            .filter_map(|number| signal::Signal::try_from(number).ok())
            .collect();
        self.before = Some(all.thread_swap_mask(SigmaskHow::SIG_BLOCK)?);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(SignalFd::with_flags(&all, flags)?)
    }

    /// Passes the pending signals on.
    fn pass_on(&mut self, from: &SignalFd, to: &mut UnixStream) {
        while let Ok(Some(signal)) = from.read_signal() {
            let number = u8::try_from(signal.ssi_signo).unwrap_or(0);
            self.last = Some(number);
            // The command may have ended just now.
            let _ = to.write_all(&[number]);
        }
    }

    /// Restores the mask, so that such signals end this process again. Returns the last signal, if there was any.
    #[must_use]
    pub fn leave(self) -> Option<i32> {
        if let Some(before) = &self.before {
            // A signal since the last look ends this process here.
            let _ = before.thread_set_mask();
        }
        self.last.map(i32::from)
    }
}

/// As [`ask`], and passes signals to this thread (SIGHUP, SIGINT, SIGQUIT, SIGTERM) on to the command. No other thread
/// may handle these signals.
///
/// # Errors
/// The errors of [`ask`].
pub fn ask_with_signals<T: DeserializeOwned>(
    name: &str,
    request: &impl Serialize,
    sent: &mut SignalRelay,
) -> io::Result<T> {
    let mut there = connect(name)?;
    let signals = sent.block_signals()?;
    send_streams(&there, &[stdin(), stdout(), stderr()])?;
    send(&mut there, request)?;
    while !is_answered(&there, &signals) {
        sent.pass_on(&signals, &mut there);
    }
    receive(&mut there)
}

/// Waits for an answer or a signal. `true`: an answer.
fn is_answered(there: &UnixStream, signals: &SignalFd) -> bool {
    let mut polled = [
        PollFd::new(there, PollFlags::IN),
        PollFd::new(signals, PollFlags::IN),
    ];
    let _ = poll(&mut polled, None);
    !polled[0].revents().is_empty()
}

/// The signals that this process does not ignore: the parent may want an ignored signal (`nohup`).
#[must_use]
pub fn unignored_signals(signals: &[i32]) -> Vec<i32> {
    let is_ignored = |signal: &i32| {
        // SAFETY: all fields of the structure may be zero.
        let mut does: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes the present action to a structure that lives as long as the call.
        let asked = unsafe { libc::sigaction(*signal, std::ptr::null(), &raw mut does) };
        asked == 0 && does.sa_sigaction == libc::SIG_IGN
    };
    let unignored_signals = signals.iter().copied();
    unignored_signals
        .filter(|signal| !is_ignored(signal))
        .collect()
}

/// Whether the engine has ended, or was never there.
#[must_use]
pub fn is_disconnected(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    let kind = error.kind();
    matches!(
        kind,
        BrokenPipe | ConnectionRefused | ConnectionReset | UnexpectedEof
    )
}

/// The reason for a missing answer, in the words of a client.
#[must_use]
pub fn why(error: &io::Error) -> String {
    match is_disconnected(error) {
        true => "it has ended".to_owned(),
        false => error.to_string(),
    }
}

/// A signal that the client has passed on since the last look. A client that is gone counts as interrupted.
pub fn signals(asker: &mut UnixStream) -> Vec<Signal> {
    let mut numbers = [0; 16];
    let flags = RecvFlags::DONTWAIT;
    match recv(&*asker, &mut numbers, flags) {
        Ok((_, 0)) => vec![Signal::INT],
        Ok((_, length)) => numbers[..length]
            .iter()
            .filter_map(|number| Signal::from_named_raw(i32::from(*number)))
            .collect(),
        Err(_) => Vec::new(),
    }
}

/// Whether the client has stopped waiting.
#[must_use]
pub fn is_gone(asker: &UnixStream) -> bool {
    let polled = &mut [PollFd::new(asker, PollFlags::RDHUP)];
    poll(polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Receives a request of this user or of root, and the streams of the client.
///
/// # Errors
/// The errors of the kernel, and a client of another user.
pub fn receive_request<T: DeserializeOwned>(
    asker: &mut UnixStream,
) -> io::Result<([OwnedFd; STREAM_COUNT], T)> {
    is_ours(asker)?;
    asker.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let asked = (receive_streams(asker)?, receive(asker)?);
    asker.set_read_timeout(None)?;
    Ok(asked)
}

fn is_ours(other: &UnixStream) -> io::Result<()> {
    match socket_peercred(other)?.uid {
        Uid::ROOT => Ok(()),
        user if user == getuid() => Ok(()),
        user => Err(io::Error::other(format!(
            "the other process belongs to user {user}"
        ))),
    }
}

/// Sends a message.
///
/// # Errors
/// The errors of the kernel.
pub fn send(to: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let message = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_be_bytes())?;
    to.write_all(&message)
}

/// Receives a message.
///
/// # Errors
/// The errors of the kernel, and a message that cannot be decoded.
pub fn receive<T: DeserializeOwned>(from: &mut UnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > MOST_MESSAGE_BYTES {
        return Err(io::Error::other("the message is too long"));
    }
    let mut message = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut message)?;
    postcard::from_bytes(&message).map_err(io::Error::other)
}

/// Sends the streams.
///
/// # Errors
/// The errors of the kernel.
pub fn send_streams(to: &UnixStream, streams: &[BorrowedFd<'_>; STREAM_COUNT]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAM_COUNT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(streams));
    sendmsg(
        to,
        &[IoSlice::new(&[0])],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives the streams.
///
/// # Errors
/// The errors of the kernel, and a message without streams.
pub fn receive_streams(from: &UnixStream) -> io::Result<[OwnedFd; STREAM_COUNT]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAM_COUNT))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(
        from,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        flags,
    )?;
    let mut streams = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            streams.extend(given);
        }
    }
    let missing = |_| io::Error::other("the client sent no streams");
    streams.try_into().map_err(missing)
}
