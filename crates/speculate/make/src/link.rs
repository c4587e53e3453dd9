//! Words between those who want commands done, and the engine: lengths and words (postcard) over a socket, with the streams
//! of who asks.

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

/// Most that is said at a time: environments are long.
const MOST: u32 = 64 << 20;
/// What ends a command that is waited for.
const PASSED_ON: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
/// How long asking takes at most.
const ASKING: Duration = Duration::from_secs(10);
/// Standard input, output and errors.
pub const STREAMS: usize = 3;

/// What is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// That a command of a make is done, which is a job or the user's own.
    Run(Command),
    /// That a make of the user's is done.
    Make(Command),
    /// What the make that asks has taken over, now that it ends.
    Taken,
    /// How things are.
    Status,
    /// That the engine ends.
    Stop,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Who asks has to do it.
    Plainly(Plainly),
    /// It is done, and what it said has been said.
    Done(Status, Gain),
    /// What a make has taken over.
    Taken(Taken),
    /// How things are.
    Status(Standing),
    /// It ends, when what is its user's own has ended: so many.
    Ends(usize),
}

/// How something is done by who asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Plainly {
    /// What is in the environment, too.
    pub also: Vec<(String, String)>,
    /// What the user is told of that.
    pub why: Option<String>,
    /// Nothing of it is to be concealed: it is done where this process is, which sees everything as it is.
    pub beside: Option<u32>,
}

/// What was gained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Gain {
    /// What was revealed.
    pub effects: usize,
    /// How long that took, in microseconds.
    pub took: u64,
    /// How much longer its user would have waited for make at least, in microseconds: 0 if that cannot be said.
    pub saved: u64,
    /// How long processors have worked for it at least, in microseconds, as far as its user would have waited for that.
    pub worked: u64,
    /// It was still running when it was asked for.
    pub was_running: bool,
}

/// What a make of the user's has taken over, command by command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Taken {
    /// How many commands.
    pub commands: usize,
    /// How long processors have worked for them, in microseconds.
    pub worked: u64,
    /// How long was waited for them when they were asked for, in microseconds.
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

/// How things are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Standing {
    /// Makes and commands that run.
    pub running: usize,
    /// How many makes were begun unasked so far, or found to be of use still.
    pub begun: u64,
    /// Those that are finished, and not asked for yet.
    pub finished: usize,
    /// How long the make took that is finished, in microseconds; 0 if none is.
    pub took: u64,
    /// What waits until it may be done.
    pub waiting: Vec<Waits>,
    /// The makes that are expected, the likeliest first.
    pub expected: Vec<String>,
}

/// A process that waits until somebody asks for what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Its number.
    pub process: u32,
    /// What it runs.
    pub program: String,
    /// What would concern others.
    pub why: String,
    /// The file, if that is one, and can be told.
    pub file: Option<String>,
}

impl fmt::Display for Waits {
    /// Why, and the file: `outside of what is concealed: /root/.cargo/.package-cache`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        match &self.file {
            Some(file) => write!(f, ": {file}"),
            None => Ok(()),
        }
    }
}

/// Where an engine listens: a name that is no file, since those who ask see other files than it does.
///
/// # Errors
/// Names that are too long.
pub fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Listens there.
///
/// # Errors
/// The kernel's: `EADDRINUSE` if somebody does already.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&address(name)?)
}

/// To who listens there. Another user's is none: any name can be had by anybody.
///
/// # Errors
/// The kernel's, and if it is another user.
pub fn connect(name: &str) -> io::Result<UnixStream> {
    let there = UnixStream::connect_addr(&address(name)?)?;
    is_ours(&there)?;
    Ok(there)
}

/// Whether that user listens there.
#[must_use]
pub fn is_listening(name: &str, user: u32) -> bool {
    let there = address(name).and_then(|address| UnixStream::connect_addr(&address));
    let credentials = there.and_then(|there| Ok(socket_peercred(there)?));
    credentials.is_ok_and(|it| it.uid.as_raw() == user)
}

/// Asks who listens there, with this process' streams.
///
/// # Errors
/// If there is nobody, or there is no answer.
pub fn ask<T: DeserializeOwned>(name: &str, request: &impl Serialize) -> io::Result<T> {
    let mut there = connect(name)?;
    give(&there, &[stdin(), stdout(), stderr()])?;
    say(&mut there, request)?;
    hear(&mut there)
}

/// Has who listens there end. So many of its user's own go on: it ends with them. If there are none, it has ended when
/// this returns.
///
/// # Errors
/// Those of [`ask`].
pub fn stop(name: &str) -> io::Result<usize> {
    let mut there = connect(name)?;
    give(&there, &[stdin(), stdout(), stderr()])?;
    say(&mut there, &Request::Stop)?;
    let own = match hear(&mut there) {
        Ok(Reply::Ends(own)) => own,
        Ok(_) => return Err(io::Error::other("it says something else")),
        // It has ended before it heard this.
        Err(error) if is_nobody(&error) => 0,
        Err(error) => return Err(error),
    };
    if own == 0 {
        // Its end is closed by the kernel, with all that it has. That may be told as an error.
        let _ = there.read(&mut [0]);
    }
    Ok(own)
}

/// What this process is sent while it waits for an answer: that ends nothing then.
#[derive(Debug, Default)]
pub struct Sent {
    /// What was blocked before.
    before: Option<SigSet>,
    last: Option<u8>,
}

impl Sent {
    fn heed(&mut self) -> io::Result<SignalFd> {
        let all = heeded(&PASSED_ON).into_iter();
        let all: SigSet = all
            .filter_map(|number| signal::Signal::try_from(number).ok())
            .collect();
        self.before = Some(all.thread_swap_mask(SigmaskHow::SIG_BLOCK)?);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(SignalFd::with_flags(&all, flags)?)
    }

    /// Passes on what there is.
    fn pass_on(&mut self, from: &SignalFd, to: &mut UnixStream) {
        while let Ok(Some(signal)) = from.read_signal() {
            let number = u8::try_from(signal.ssi_signo).unwrap_or(0);
            self.last = Some(number);
            // Who does it may have ended just now.
            let _ = to.write_all(&[number]);
        }
    }

    /// From now on such signals end this process again. What it was sent before, if it was sent something.
    #[must_use]
    pub fn leave(self) -> Option<i32> {
        if let Some(before) = &self.before {
            // What has come since it was looked ends it here.
            let _ = before.thread_set_mask();
        }
        self.last.map(i32::from)
    }
}

/// As [`ask`], and what this thread is sent meanwhile (SIGHUP, SIGINT, SIGQUIT, SIGTERM) is passed on to what is done for it: no other one may heed
/// that.
///
/// # Errors
/// Those of [`ask`].
pub fn ask_and_stay<T: DeserializeOwned>(
    name: &str,
    request: &impl Serialize,
    sent: &mut Sent,
) -> io::Result<T> {
    let mut there = connect(name)?;
    let signals = sent.heed()?;
    give(&there, &[stdin(), stdout(), stderr()])?;
    say(&mut there, request)?;
    while !is_answered(&there, &signals) {
        sent.pass_on(&signals, &mut there);
    }
    hear(&mut there)
}

/// Waits until something is there of either: whether it is an answer.
fn is_answered(there: &UnixStream, signals: &SignalFd) -> bool {
    let mut polled = [
        PollFd::new(there, PollFlags::IN),
        PollFd::new(signals, PollFlags::IN),
    ];
    let _ = poll(&mut polled, None);
    !polled[0].revents().is_empty()
}

/// Of these signals those that this process does not ignore: who has begun it may have wanted that (`nohup`).
#[must_use]
pub fn heeded(signals: &[i32]) -> Vec<i32> {
    let is_ignored = |signal: &i32| {
        // SAFETY: all fields of the structure may be zero.
        let mut does: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: it is asked what is done, into a structure that lives as long as the call.
        let asked = unsafe { libc::sigaction(*signal, std::ptr::null(), &raw mut does) };
        asked == 0 && does.sa_sigaction == libc::SIG_IGN
    };
    let heeded = signals.iter().copied();
    heeded.filter(|signal| !is_ignored(signal)).collect()
}

/// Whether who was asked has ended, or was not there.
#[must_use]
pub fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    let kind = error.kind();
    matches!(
        kind,
        BrokenPipe | ConnectionRefused | ConnectionReset | UnexpectedEof
    )
}

/// Why there is no answer, in the words of who has asked.
#[must_use]
pub fn why(error: &io::Error) -> String {
    match is_nobody(error) {
        true => "it has ended".to_owned(),
        false => error.to_string(),
    }
}

/// What who asked has been sent since it was looked. One that is gone is as one that was interrupted.
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

/// Whether who asked does not wait any more.
#[must_use]
pub fn is_gone(asker: &UnixStream) -> bool {
    let polled = &mut [PollFd::new(asker, PollFlags::RDHUP)];
    poll(polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// What somebody asks, who is this user or root, and their streams.
///
/// # Errors
/// The kernel's, and if it is somebody else.
pub fn heed<T: DeserializeOwned>(asker: &mut UnixStream) -> io::Result<([OwnedFd; STREAMS], T)> {
    is_ours(asker)?;
    asker.set_read_timeout(Some(ASKING))?;
    let asked = (take(asker)?, hear(asker)?);
    asker.set_read_timeout(None)?;
    Ok(asked)
}

fn is_ours(other: &UnixStream) -> io::Result<()> {
    match socket_peercred(other)?.uid {
        Uid::ROOT => Ok(()),
        user if user == getuid() => Ok(()),
        user => Err(io::Error::other(format!("it is user {user}"))),
    }
}

/// Says something.
///
/// # Errors
/// The kernel's.
pub fn say(to: &mut UnixStream, words: &impl Serialize) -> io::Result<()> {
    let words = postcard::to_allocvec(words).map_err(io::Error::other)?;
    let length = u32::try_from(words.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_be_bytes())?;
    to.write_all(&words)
}

/// Hears something.
///
/// # Errors
/// The kernel's, and what is not understood.
pub fn hear<T: DeserializeOwned>(from: &mut UnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > MOST {
        return Err(io::Error::other("more than is ever said"));
    }
    let mut words = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut words)?;
    postcard::from_bytes(&words).map_err(io::Error::other)
}

/// Gives somebody one's streams.
///
/// # Errors
/// The kernel's.
pub fn give(to: &UnixStream, streams: &[BorrowedFd<'_>; STREAMS]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
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

/// Takes somebody's streams.
///
/// # Errors
/// The kernel's, and if there are none.
pub fn take(from: &UnixStream) -> io::Result<[OwnedFd; STREAMS]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
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
    let missing = |_| io::Error::other("who asks gave no streams");
    streams.try_into().map_err(missing)
}
