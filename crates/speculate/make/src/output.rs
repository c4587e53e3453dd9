//! Output of a command: kept until the commit, and then passed on.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, ErrorKind, Read as _, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    process::Stdio,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{command::Command, input::Input};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    pipe::{PipeFlags, pipe_with},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{
        LocalModes, OptionalActions, OutputModes, Winsize, tcgetattr, tcsetattr, tcsetwinsize,
    },
};

/// Largest single read from the command.
const READ_CHUNK_BYTES: usize = 64 * 1024;
/// Largest single write: a pipe that is ready has room for this many bytes (`PIPE_BUF`).
const WRITE_CHUNK_BYTES: usize = 4096;
/// Most output that is kept before the commit. A command with more output waits.
const HIDDEN_OUTPUT_BYTES: usize = 64 << 20;
/// Most output after the commit that the client has not read. A command with more output waits.
const UNREAD_OUTPUT_BYTES: usize = 1 << 20;
/// Time between two looks whether the output is still wanted.
const WRITE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output; both streams, if the two are one terminal or one file.
    Out,
    /// Standard error.
    Err,
}

impl Stream {
    fn place(self) -> usize {
        match self {
            Self::Out => 0,
            Self::Err => 1,
        }
    }
}

/// A piece of output.
type Chunk = (Stream, Arc<Vec<u8>>);

/// The output in order.
#[derive(Debug, Clone)]
pub struct Output(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<OutputState>,
    changed: Condvar,
}

#[derive(Debug)]
struct OutputState {
    /// Output before the commit, which stays available.
    kept_output: Vec<Chunk>,
    /// The command is committed.
    is_shown: bool,
    /// Output on the way to the client.
    queue: VecDeque<Chunk>,
    /// A chunk is just being written.
    is_writing: bool,
    /// The rest of that chunk is not wanted any more.
    is_abandoned: bool,
    /// Bytes that the client has not read.
    unread_bytes: usize,
    sources: Vec<(Stream, File)>,
    /// The descriptor stays open, because otherwise the terminal would hang up between two processes.
    terminal: Option<OwnedFd>,
}

/// Streams of a new command.
#[derive(Debug)]
pub struct ChildStreams {
    /// Standard input.
    pub input: Stdio,
    /// Standard output.
    pub out: Stdio,
    /// Errors.
    pub err: Stdio,
}

impl Output {
    /// Terminals or pipes like those of the user.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn open(command: &Command) -> io::Result<(Self, Input, ChildStreams)> {
        let terminal = command.terminal;
        let mut state = OutputState {
            kept_output: Vec::new(),
            is_shown: false,
            queue: VecDeque::new(),
            is_writing: false,
            is_abandoned: false,
            unread_bytes: 0,
            sources: Vec::new(),
            terminal: None,
        };
        let mut typed = Input::none();
        let slave = match terminal.iter().any(|it| *it) {
            true => {
                let (master, slave) = pseudo_terminal(command.size())?;
                typed = Input::new(master.try_clone()?.into(), &slave, true)?;
                let says = match terminal[1] {
                    true => Stream::Out,
                    false => Stream::Err,
                };
                state.sources.push((says, master.into()));
                state.terminal = Some(slave.try_clone()?);
                Some(slave)
            }
            false => None,
        };
        let mut end = |which: usize, stream: Stream| match (&slave, terminal[which]) {
            (Some(slave), true) => slave.try_clone(),
            _ => {
                let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&from, true)?;
                state.sources.push((stream, from.into()));
                Ok(to)
            }
        };
        let out = end(1, Stream::Out)?;
        let err = match command.is_joined {
            true => out.try_clone()?,
            false => end(2, Stream::Err)?,
        };
        let (input, typed) = match (&slave, terminal[0]) {
            (Some(slave), true) => (slave.try_clone()?.into(), typed),
            _ if command.reads_nothing => (Stdio::null(), Input::none()),
            // A reader waits: later input is not known.
            _ => {
                let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
                let typed = Input::new(to.into(), &from, false)?;
                (from.into(), typed)
            }
        };
        let this = Self(Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }));
        this.listen()?;
        let (out, err) = (out.into(), err.into());
        Ok((this, typed, ChildStreams { input, out, err }))
    }

    fn state(&self) -> MutexGuard<'_, OutputState> {
        self.0.state()
    }

    /// Reads output until no process has the streams open.
    fn listen(&self) -> io::Result<()> {
        let all = self.state();
        let sources = all.sources.iter().map(|(_, file)| file.try_clone());
        let mut sources = sources.collect::<io::Result<Vec<_>>>()?;
        drop(all);
        let shared = Arc::downgrade(&self.0);
        let listen = move || {
            while !sources.is_empty() {
                let mut polled: Vec<_> = sources
                    .iter()
                    .map(|source| PollFd::new(source, PollFlags::IN))
                    .collect();
                if poll(&mut polled, None).is_err() {
                    continue;
                }
                let over: Vec<_> = polled
                    .iter()
                    .map(|polled| {
                        let events = polled.revents();
                        !events.is_empty() && !events.contains(PollFlags::IN)
                    })
                    .collect();
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                // Both lists have the same order.
                let mut each = over.iter();
                sources.retain(|_| !*each.next().unwrap_or(&false));
                shared.read_and_drop_ended(&over);
            }
        };
        thread::Builder::new().name("output".into()).spawn(listen)?;
        Ok(())
    }

    /// Reads all output that is available.
    pub fn settle(&self) {
        self.state().read_available();
        self.0.changed.notify_all();
    }

    /// Writes all output, also later output, to these files, at the pace of the reader.
    pub fn show(&self, sinks: [File; 2]) {
        let mut state = self.state();
        state.read_available();
        state.is_shown = true;
        state.queue = state.kept_output.iter().cloned().collect();
        let is_all = state.queue.is_empty() && state.sources.is_empty();
        drop(state);
        self.0.changed.notify_all();
        if !is_all {
            let shared = Arc::clone(&self.0);
            thread::spawn(move || shared.write_queued(sinks.map(Some)));
        }
    }

    /// Whether the client has read all output that was shown, now or within this time.
    #[must_use]
    pub fn is_drained(&self, at_most: Duration) -> bool {
        let mut state = self.state();
        state.read_available();
        self.0.changed.notify_all();
        let goes_on = |state: &mut OutputState| state.is_under_way();
        let waited = self.0.changed.wait_timeout_while(state, at_most, goes_on);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        // There may be room for more output now.
        state.read_available();
        self.0.changed.notify_all();
        !state.is_under_way()
    }

    /// Drops output that the client has not read.
    pub fn abandon(&self) {
        let mut state = self.state();
        state.unread_bytes = 0;
        state.queue.clear();
        state.is_abandoned = state.is_writing;
    }

    /// Ends the output: no process can write any more.
    pub fn end(&self) {
        let mut state = self.state();
        state.read_up_to(usize::MAX);
        state.sources.clear();
        // The end of the terminal ends the reading thread.
        state.terminal = None;
        drop(state);
        self.0.changed.notify_all();
    }

    /// Writes the output before the commit to these files. The output stays available.
    pub fn repeat(&self, sinks: &mut [File; 2]) {
        let kept_output = self.state().kept_output.clone();
        for (stream, bytes) in kept_output {
            write_chunk(&sinks[stream.place()], &bytes, || false);
        }
    }

    /// Whether there is output before the commit.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.state().kept_output.is_empty()
    }

    /// Whether so much output waits for a commit that the command waits, too.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let state = self.state();
        !state.is_shown && state.unread_bytes >= state.limit()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, OutputState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads available output, and drops the ended sources. Returns when there is room for more.
    fn read_and_drop_ended(&self, over: &[bool]) {
        let mut state = self.state();
        state.read_available();
        let mut each = over.iter();
        state.sources.retain(|_| !*each.next().unwrap_or(&false));
        self.changed.notify_all();
        let is_full = |state: &mut OutputState| {
            state.unread_bytes >= state.limit() && !state.sources.is_empty()
        };
        drop(self.changed.wait_while(state, is_full));
    }

    fn write_queued(&self, mut sinks: [Option<File>; 2]) {
        while let Some((stream, bytes)) = self.next(&mut sinks) {
            if let Some(sink) = &sinks[stream.place()] {
                write_chunk(sink, &bytes, || self.state().is_abandoned);
            }
            let mut state = self.state();
            state.is_writing = false;
            if !std::mem::take(&mut state.is_abandoned) {
                state.unread_bytes = state.unread_bytes.saturating_sub(bytes.len());
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The next chunk, after a wait if necessary. Closes the sink of a stream that has ended; `None` after the end of
    /// both streams.
    fn next(&self, sinks: &mut [Option<File>; 2]) -> Option<Chunk> {
        let mut state = self.state();
        loop {
            if let Some(bytes) = state.queue.pop_front() {
                state.is_writing = true;
                return Some(bytes);
            }
            for stream in [Stream::Out, Stream::Err] {
                if !state.sources.iter().any(|(of, _)| *of == stream) {
                    sinks[stream.place()] = None;
                }
            }
            if sinks.iter().all(Option::is_none) {
                return None;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl OutputState {
    /// Most unread bytes before reading stops and the command waits.
    fn limit(&self) -> usize {
        match self.is_shown {
            true => UNREAD_OUTPUT_BYTES,
            false => HIDDEN_OUTPUT_BYTES,
        }
    }

    fn is_under_way(&self) -> bool {
        self.is_writing || !self.queue.is_empty()
    }

    fn read_available(&mut self) {
        self.read_up_to(self.limit());
    }

    fn read_up_to(&mut self, limit: usize) {
        let mut piece = vec![0; READ_CHUNK_BYTES];
        for which in 0..self.sources.len() {
            while self.unread_bytes < limit {
                let (stream, source) = &mut self.sources[which];
                let stream = *stream;
                match source.read(&mut piece) {
                    Ok(0) => break,
                    Ok(length) => self.store(stream, &piece[..length]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // Nothing is available now, or ever.
                    Err(_) => break,
                }
            }
        }
    }

    fn store(&mut self, stream: Stream, bytes: &[u8]) {
        self.unread_bytes += bytes.len();
        if self.is_shown {
            self.queue.push_back((stream, Arc::new(bytes.to_vec())));
        } else if let Some((last, kept_output)) = self.kept_output.last_mut()
            && *last == stream
            && let Some(kept_output) = Arc::get_mut(kept_output)
        {
            kept_output.extend(bytes);
        } else {
            self.kept_output.push((stream, Arc::new(bytes.to_vec())));
        }
    }
}

/// Writes a chunk. A reader that has gone misses the rest, and so does a reader of abandoned output.
fn write_chunk(sink: &File, mut bytes: &[u8], is_abandoned: impl Fn() -> bool) {
    let pause = Timespec::try_from(WRITE_POLL_INTERVAL).unwrap_or_default();
    while !bytes.is_empty() && !is_abandoned() {
        let polled = &mut [PollFd::new(sink, PollFlags::OUT)];
        if poll(polled, Some(&pause)).is_ok_and(|ready| ready == 0) {
            continue;
        }
        let mut to = sink;
        match to.write(&bytes[..bytes.len().min(WRITE_CHUNK_BYTES)]) {
            Ok(length) => bytes = &bytes[length..],
            // The terminal or pipe of the user may be nonblocking.
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(_) => return,
        }
    }
}

/// A terminal without echo or translation: the user's terminal at the end of the chain does both.
fn pseudo_terminal(size: Option<Winsize>) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = rustix::fs::open(name, flags, Mode::empty())?;
    let mut modes = tcgetattr(&slave)?;
    modes.output_modes -= OutputModes::OPOST;
    modes.local_modes -= LocalModes::ECHO;
    tcsetattr(&slave, OptionalActions::Now, &modes)?;
    if let Some(size) = size {
        tcsetwinsize(&slave, size)?;
    }
    rustix::io::ioctl_fionbio(master.as_fd(), true)?;
    Ok((master, slave))
}
