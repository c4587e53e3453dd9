//! What a command says: kept until somebody may hear it, and from then on passed on.

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

/// Which of the two: standard output, or errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output; both of them, where they are one terminal, or go to the same place.
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

/// What was said at a time.
type Chunk = (Stream, Arc<Vec<u8>>);

/// What was said, in order.
#[derive(Debug, Clone)]
pub struct Output(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<OutputState>,
    changed: Condvar,
}

#[derive(Debug)]
struct OutputState {
    /// Until it may be heard. It stays known.
    kept_output: Vec<Chunk>,
    /// It may be heard.
    is_shown: bool,
    /// On its way to who hears it.
    queue: VecDeque<Chunk>,
    /// Something is just being said.
    is_writing: bool,
    /// Nobody waits for the rest of it.
    is_abandoned: bool,
    /// How much there is that nobody has heard.
    unread_bytes: usize,
    sources: Vec<(Stream, File)>,
    /// Kept, so that the terminal does not hang up between two processes.
    terminal: Option<OwnedFd>,
}

/// What a command is begun with.
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
    /// For a command that is given terminals, or pipes, as its user has them.
    ///
    /// # Errors
    /// The kernel's.
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
            // Who reads waits: what would come is not known.
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

    /// Hears what is said until nobody can say more.
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
                // Both have them in the same order.
                let mut each = over.iter();
                sources.retain(|_| !*each.next().unwrap_or(&false));
                shared.read_and_drop_ended(&over);
            }
        };
        thread::Builder::new().name("output".into()).spawn(listen)?;
        Ok(())
    }

    /// What was said until now, of which nothing is still under way.
    pub fn settle(&self) {
        self.state().read_available();
        self.0.changed.notify_all();
    }

    /// Says all that was said to these, and what will be said, too: at the pace of who listens, for whom nobody waits
    /// here.
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

    /// Whether all that was said has been heard by those that it was shown to, or is within that time.
    #[must_use]
    pub fn is_drained(&self, at_most: Duration) -> bool {
        let mut state = self.state();
        state.read_available();
        self.0.changed.notify_all();
        let goes_on = |state: &mut OutputState| state.is_under_way();
        let waited = self.0.changed.wait_timeout_while(state, at_most, goes_on);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        // There was no room for it before, perhaps.
        state.read_available();
        self.0.changed.notify_all();
        !state.is_under_way()
    }

    /// Nobody waits any more for what was said and has not been heard.
    pub fn abandon(&self) {
        let mut state = self.state();
        state.unread_bytes = 0;
        state.queue.clear();
        state.is_abandoned = state.is_writing;
    }

    /// Nobody will say more.
    pub fn end(&self) {
        let mut state = self.state();
        state.read_up_to(usize::MAX);
        state.sources.clear();
        // With it ends who listens.
        state.terminal = None;
        drop(state);
        self.0.changed.notify_all();
    }

    /// Says all that was said before it was shown to these; it stays known.
    pub fn repeat(&self, sinks: &mut [File; 2]) {
        let kept_output = self.state().kept_output.clone();
        for (stream, bytes) in kept_output {
            write_chunk(&sinks[stream.place()], &bytes, || false);
        }
    }

    /// Whether anything was said that nobody has heard yet.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.state().kept_output.is_empty()
    }

    /// Whether so much was said that nobody has heard that who says more waits.
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

    /// Hears what there is; those sources are over. Returns when more may be heard.
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

    /// What is to be said next, when there is something. Who reads where nobody can say more is told of the end;
    /// `None` if all are.
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
    /// How much may be unheard before nothing more is listened to: who says it waits then.
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
                    // Nothing more is there now, or ever.
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

/// Who does not listen any more misses it, and so does who does not listen until it is in vain.
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
            // The user's terminal or pipe may be one that does not wait.
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(_) => return,
        }
    }
}

/// A terminal that adds nothing to what is said and typed: that is done by the one that it is said to in the end.
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
