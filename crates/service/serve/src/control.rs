//! The socket on which a running `serve` answers `outlive status` and `outlive events`.
//!
//! A client writes one line of JSON, a [`Question`]. The answer is a line of JSON; for events, a line for each event,
//! as long as the client stays. Only root can connect (the directory is 0700). `serve` closes the connection of a
//! client that writes anything else, or too much, or does not read.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::{
    error::{ServeError, SystemContext},
    events::{EventBuffer, Request, Requester},
    status::Status,
};

/// Longest question, bytes.
const MAX_QUESTION: usize = 4096;
/// Silence of `serve` after which a request fails: longer than any work of `serve` except for stopping.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// Most bytes of answer that wait for a client.
const MAX_BACKLOG: usize = 4 << 20;

/// Questions to a running `serve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub enum Question {
    /// Status of the service.
    Status {
        /// With every connection.
        #[serde(default)]
        list: bool,
    },
    /// Events up to now.
    Events {
        /// And go on telling.
        #[serde(default)]
        follow: bool,
    },
    /// End the server and start the server again. The answer, a [`Restarted`], comes when the server serves again.
    Restart {},
    /// Let the standby serve. The answer, a [`Switchover`], comes when this host does not serve any more.
    Switchover {},
}

/// The outcome of [`Question::Switchover`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switchover {
    /// The standby serves, or will in a moment.
    Done,
    /// The switchover was not tried.
    Refused(String),
}

/// Outcome of [`Question::Restart`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restarted {
    /// The new server serves.
    Restarted {
        /// Connections that go on.
        recovered: usize,
        /// Connections that were reset.
        reset: usize,
    },
    /// The restart was not tried.
    Refused(String),
    /// The new server has not come up.
    Failed(String),
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    question: Incoming,
    asked: Option<Result<Question, String>>,
    answer: Vec<u8>,
    /// Number of the next report for this client.
    next_report: Option<u64>,
    /// Hang up when the answer is out.
    last: bool,
    gone: bool,
    /// The request of this client was passed on.
    is_known: bool,
}

/// The listening socket and the connected clients.
#[derive(Debug, Default)]
pub(crate) struct Control {
    listener: Option<UnixListener>,
    path: PathBuf,
    clients: Vec<Client>,
    /// New requests that change the service, with the requesters.
    asked: Vec<(Request, Requester)>,
}

impl Control {
    pub(crate) fn bind(path: &Path) -> Result<Self, ServeError> {
        let _ = std::fs::remove_file(path); // of a serve that was killed; the lock is ours
        let listener = UnixListener::bind(path).doing("make the control socket")?;
        listener
            .set_nonblocking(true)
            .doing("make the control socket")?;
        Ok(Self {
            listener: Some(listener),
            path: path.to_owned(),
            clients: Vec::new(),
            asked: Vec::new(),
        })
    }

    /// Everything to be waited for.
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.extend(
            self.listener
                .iter()
                .map(|l| PollFd::from_borrowed_fd(l.as_fd(), PollFlags::IN)),
        );
        fds.extend(self.clients.iter().map(|client| {
            let out = if client.answer.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            };
            PollFd::from_borrowed_fd(client.stream.as_fd(), PollFlags::IN | out)
        }));
    }

    /// Accept new clients and read their questions. Returns whether a client wants the status, and whether with every
    /// connection.
    pub(crate) fn receive(&mut self) -> Option<bool> {
        while let Some(Ok((stream, _))) = self.listener.as_ref().map(UnixListener::accept) {
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client::new(stream));
            }
        }
        let mut wanted = None;
        for client in &mut self.clients {
            client.read();
            self.asked.extend(client.request());
            if let Some(Ok(Question::Status { list })) = client.asked {
                wanted = Some(list || wanted.unwrap_or(false));
            }
        }
        wanted
    }

    /// Requests since the last call, with the requesters.
    pub(crate) fn asked(&mut self) -> Vec<(Request, Requester)> {
        std::mem::take(&mut self.asked)
    }

    /// Whether a client waits for a switchover.
    pub(crate) fn wants_move(&self) -> bool {
        self.clients.iter().any(Client::wants_move)
    }

    /// Whether a client waits for a restart.
    pub(crate) fn wants_restart(&self) -> bool {
        self.clients.iter().any(Client::wants_restart)
    }

    /// Answers all requests for a restart.
    pub(crate) fn answer_restart(&mut self, answer: &Restarted) {
        for client in &mut self.clients {
            if client.wants_restart() {
                client.answer_at_last(answer);
            }
        }
    }

    /// Answers that the switchover was refused, with the reason.
    pub(crate) fn refuse_move(&mut self, why: &str) {
        self.answer_switchover(&Switchover::Refused(why.to_owned()));
    }

    /// Answers that the switchover is done. Call after [`Self::close`].
    pub(crate) fn moved(&mut self) {
        self.answer_switchover(&Switchover::Done);
        self.clients.clear();
    }

    fn answer_switchover(&mut self, answer: &Switchover) {
        for client in self.clients.iter_mut().filter(|one| one.wants_move()) {
            client.answer_at_last(answer);
        }
    }

    /// Answer questions, and send new events to followers.
    pub(crate) fn reply(&mut self, events: &EventBuffer, status: Option<&Status>) {
        for client in &mut self.clients {
            client.answer(events, status);
            client.report(events);
            client.write();
        }
        self.clients.retain(|client| !client.gone);
    }

    /// Remove the socket, and close all connections except those that await a switchover.
    pub(crate) fn close(&mut self) {
        self.clients.retain(Client::wants_move);
        self.listener = None;
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Bytes that a client has written and that are not parsed yet.
#[derive(Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
}

impl Incoming {
    /// Takes more bytes; returns whether the buffer had room.
    fn feed(&mut self, bytes: &[u8]) -> bool {
        let has_room = self.bytes.len() + bytes.len() <= MAX_QUESTION;
        if has_room {
            self.bytes.extend(bytes);
        }
        has_room
    }

    /// The next question, or the reason why the line is not a question.
    fn pull(&mut self) -> Option<Result<Question, String>> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        Some(serde_json::from_slice(&line).map_err(|error| error.to_string()))
    }
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            question: Incoming::default(),
            asked: None,
            answer: Vec::new(),
            next_report: None,
            last: false,
            gone: false,
            is_known: false,
        }
    }

    fn read(&mut self) {
        let mut buffer = [0u8; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(n) if n > 0 && self.question.feed(&buffer[..n]) => {}
                Ok(_) => {
                    self.gone = true;
                    return;
                }
                Err(error) => {
                    self.gone = error.kind() != io::ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        if let Some(question) = self.question.pull() {
            self.asked = Some(question);
        }
    }

    /// The request of this client, returned only once.
    fn request(&mut self) -> Option<(Request, Requester)> {
        let request = match self.asked {
            _ if self.is_known => return None,
            Some(Ok(Question::Switchover {})) => Request::Switchover,
            Some(Ok(Question::Restart {})) => Request::Restart,
            _ => return None,
        };
        self.is_known = true;
        Some((request, Requester::at(&self.stream)?))
    }

    fn wants_move(&self) -> bool {
        matches!(self.asked, Some(Ok(Question::Switchover {})))
    }

    fn wants_restart(&self) -> bool {
        matches!(self.asked, Some(Ok(Question::Restart {})))
    }

    /// Of a question that had to wait.
    fn answer_at_last(&mut self, answer: &impl Serialize) {
        self.asked = None;
        self.say(answer);
        self.last = true;
        self.write();
    }

    fn answer(&mut self, events: &EventBuffer, status: Option<&Status>) {
        match self.asked.take() {
            None => {}
            waits @ Some(Ok(Question::Switchover {} | Question::Restart {})) => self.asked = waits,
            Some(Ok(Question::Status { .. })) => {
                self.say(&status);
                self.last = true;
            }
            Some(Ok(Question::Events { follow })) => {
                self.next_report = Some(0);
                self.report(events);
                self.last = !follow;
            }
            Some(Err(error)) => {
                self.say(&serde_json::json!({ "error": error }));
                self.last = true;
            }
        }
    }

    fn report(&mut self, events: &EventBuffer) {
        let Some(from) = self.next_report else { return };
        let (new, next) = events.since(from);
        for report in new {
            self.say(report);
        }
        self.next_report = Some(next);
    }

    fn say(&mut self, what: &impl Serialize) {
        if let Ok(line) = serde_json::to_vec(what) {
            self.answer.extend(line);
            self.answer.push(b'\n');
        }
        self.gone |= self.answer.len() > MAX_BACKLOG;
    }

    fn write(&mut self) {
        while !self.answer.is_empty() {
            match self.stream.write(&self.answer) {
                Ok(n) => {
                    self.answer.drain(..n);
                }
                Err(error) => {
                    self.gone |= error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            }
        }
        self.gone |= self.last;
    }
}

/// Ask a running `serve`; each line of the answer goes to `each` until `each` returns `false`. A restart or a
/// switchover may take long: the wait lasts as long as the `serve` answers other questions.
///
/// # Errors
/// No `serve` listens at `socket`; [`io::ErrorKind::WouldBlock`]: a `serve` listens there, and is silent for
/// [`REPLY_TIMEOUT`].
pub fn ask(socket: &Path, question: Question, each: impl FnMut(&str) -> bool) -> io::Result<()> {
    let stream = UnixStream::connect(socket)?;
    let lives = || match question {
        Question::Status { .. } | Question::Events { follow: false } => false,
        Question::Events { follow: true } => true,
        Question::Restart {} | Question::Switchover {} => {
            status_within(socket, REPLY_TIMEOUT).is_ok()
        }
    };
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    exchange(stream, question, each, lives)
}

/// [`ask`] for a status without connections, with at most `patience` of silence.
///
/// # Errors
/// No `serve` answers at `socket` in this time, or the answer is no status.
pub fn status_within(socket: &Path, patience: Duration) -> io::Result<Status> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    let mut status = None;
    let each = |line: &str| {
        status = serde_json::from_str::<Option<Status>>(line).ok().flatten();
        false
    };
    exchange(stream, Question::Status { list: false }, each, || false)?;
    status.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `goes_on` is called after each read timeout of the stream, and decides whether to wait on.
fn exchange(
    mut stream: UnixStream,
    question: Question,
    mut each: impl FnMut(&str) -> bool,
    goes_on: impl Fn() -> bool,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(&question)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    line.clear();
    let mut answer = BufReader::new(stream);
    loop {
        match answer.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                let text = std::str::from_utf8(&line).map_err(io::Error::other)?;
                if !each(text.trim_end_matches('\n')) {
                    return Ok(());
                }
                line.clear();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && goes_on() => {}
            Err(error) => return Err(error),
        }
    }
}

/// Properties that hold for every byte string; each function panics if the property does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties {
    use super::{Incoming, MAX_QUESTION, Question};

    /// Reads any bytes as a client's input. Input in pieces gives the same questions as the whole input, and each
    /// question survives encoding as a line. The first byte of `bytes` chooses the size of the pieces.
    ///
    /// # Panics
    ///
    /// If the property does not hold.
    pub fn questions(bytes: &[u8]) {
        let Some((size, stream)) = bytes.split_first() else {
            return;
        };
        let stream = &stream[..stream.len().min(MAX_QUESTION)];
        let all = asked(stream, MAX_QUESTION);
        assert_eq!(asked(stream, usize::from(*size) + 1), all);
        assert_eq!(
            all.len(),
            stream.iter().filter(|byte| **byte == b'\n').count()
        );
        for question in all.into_iter().flatten() {
            let mut line = serde_json::to_vec(&question).expect("it can be said");
            line.push(b'\n');
            assert_eq!(asked(&line, MAX_QUESTION), [Ok(question)]);
        }
        let mut full = Incoming::default();
        assert!(full.feed(stream) && !full.feed(&[b' '; MAX_QUESTION + 1]));
        assert_eq!(full.bytes, stream);
    }

    fn asked(stream: &[u8], size: usize) -> Vec<Result<Question, String>> {
        let (mut incoming, mut all) = (Incoming::default(), Vec::new());
        for piece in stream.chunks(size) {
            assert!(incoming.feed(piece), "it is short");
            all.extend(std::iter::from_fn(|| incoming.pull()));
        }
        assert!(!incoming.bytes.contains(&b'\n'));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Question, String> {
        let mut incoming = Incoming::default();
        assert!(incoming.feed(format!("{text}\n").as_bytes()));
        incoming.pull().expect("a line")
    }

    #[test]
    fn request_with_unknown_field_is_rejected() {
        assert_eq!(
            asked(r#"{"ask":"switchover"}"#),
            Ok(Question::Switchover {})
        );
        let list = true;
        let status = asked(r#"{"ask":"status","list":true}"#);
        assert_eq!(status, Ok(Question::Status { list }));
        for more in [
            r#"{"ask":"switchover","only_if":"idle"}"#,
            r#"{"ask":"status","lists":true}"#,
            r#"{"ask":"events","follow":1}"#,
            r#"{"ask":"status","ask":"switchover"}"#,
        ] {
            assert!(asked(more).is_err(), "{more}");
        }
    }

    #[test]
    fn fuzz_seeds_hold() {
        let seeds =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds/control_socket");
        for seed in std::fs::read_dir(seeds).expect("seeds") {
            let seed = std::fs::read(seed.expect("a seed").path()).expect("a seed");
            properties::questions(&seed);
        }
    }
}
