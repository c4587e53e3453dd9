//! The socket on which a running balancer answers: a client writes a line of JSON, and gets a line of JSON.
//!
//! Only root can connect (the directory is 0700). The balancer closes the connection of a client that writes anything
//! else, or too much, or does not read.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr},
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
    error::{BalanceError, SystemContext},
    run_directory,
};

/// Longest question, bytes.
const QUESTION_BYTES_MAX: usize = 256;
/// Clients at the same time.
const CLIENT_COUNT_MAX: usize = 16;
/// Silence of the balancer after which a question fails.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Questions to a running balancer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub(crate) enum Question {
    /// State of the pool.
    Status {},
    /// The member gets no new connections.
    Drain {
        /// The name of the member.
        member: String,
    },
    /// The operator confirms the death of a member that no balancer may declare dead.
    ConfirmDead {
        /// The name of the member.
        member: String,
    },
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Why the request has no effect.
    pub(crate) refusal: Option<String>,
}

/// State of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The name of the pool.
    pub pool: String,
    /// Addresses that clients connect to.
    pub service: Vec<SocketAddr>,
    /// Addresses that members connect to.
    pub listen: Vec<SocketAddr>,
    /// How connections are spread: `maglev` or `mod`.
    pub hash: String,
    /// Epoch of the table.
    pub epoch: u64,
    /// Where several balancers keep the table. `None`: the pool has one balancer.
    #[serde(default)]
    pub register: Option<String>,
    /// Why the register does not answer.
    #[serde(default)]
    pub register_failure: Option<String>,
    /// Number of the balancers whose leases the members need; 0 without a register.
    #[serde(default)]
    pub balancers: usize,
    /// The members need the leases of this balancer.
    #[serde(default)]
    pub grants: bool,
    /// Shortest and longest lease, milliseconds.
    pub lease_ms: [u64; 2],
    /// All living members.
    pub members: Vec<MemberStatus>,
    /// Packets handed to members.
    pub packets: u64,
    /// Of these: ICMP errors about connections.
    pub icmp_packets: u64,
    /// Dropped fragments of segments.
    pub dropped_fragments: u64,
    /// Segments dropped because there was no member.
    pub dropped_without_member: u64,
}

/// State of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The name of the member.
    pub name: String,
    /// Where packets reach the member.
    pub address: IpAddr,
    /// The member is in the table.
    pub in_table: bool,
    /// The member has a control stream.
    pub connected: bool,
    /// The member gets no new connections.
    pub draining: bool,
    /// The member is silent, and no balancer may declare it dead.
    #[serde(default)]
    pub unknown: bool,
    /// Time since the newest message, milliseconds.
    pub silent_ms: u64,
    /// Packets handed to the member.
    pub packets: u64,
}

#[derive(Debug)]
struct Asker {
    stream: UnixStream,
    question: Vec<u8>,
}

/// The listening socket and the connected clients.
#[derive(Debug)]
pub(crate) struct StatusSocket {
    listener: UnixListener,
    path: PathBuf,
    askers: Vec<Asker>,
}

impl StatusSocket {
    pub(crate) fn bind(path: PathBuf) -> Result<Self, BalanceError> {
        let _ = std::fs::remove_file(&path); // of a balancer that was killed; the lock is ours
        let doing = "make the status socket";
        let listener = UnixListener::bind(&path).doing(doing)?;
        listener.set_nonblocking(true).doing(doing)?;
        Ok(Self {
            listener,
            path,
            askers: Vec::new(),
        })
    }

    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let askers = self.askers.iter().map(|asker| asker.stream.as_fd());
        let all = std::iter::once(self.listener.as_fd()).chain(askers);
        fds.extend(all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    }

    /// Answers all questions that have arrived.
    pub(crate) fn answer(&mut self, mut answer: impl FnMut(&Question) -> Option<String>) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.askers.len() < CLIENT_COUNT_MAX && stream.set_nonblocking(true).is_ok() {
                self.askers.push(Asker {
                    stream,
                    question: Vec::new(),
                });
            }
        }
        let (mut asked, mut waiting) = (Vec::new(), Vec::new());
        for mut asker in self.askers.drain(..) {
            match asker.read() {
                Some(Some(question)) => asked.push((asker, question)),
                Some(None) => waiting.push(asker),
                None => {}
            }
        }
        self.askers = waiting;
        for (mut asker, question) in asked {
            if let Some(text) = answer(&question) {
                // The answer is smaller than the socket's buffer.
                let _ = asker.stream.write_all(format!("{text}\n").as_bytes());
            }
        }
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Asker {
    /// The question, if complete; `None`: the client is gone, or asks nothing that we know.
    fn read(&mut self) -> Option<Option<Question>> {
        let mut bytes = [0; QUESTION_BYTES_MAX];
        match self.stream.read(&mut bytes) {
            Ok(0) => return None,
            Ok(len) => self.question.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(None),
            Err(_) => return None,
        }
        let end = self.question.iter().position(|byte| *byte == b'\n');
        match end {
            Some(end) => {
                let question = serde_json::from_slice(&self.question[..end]);
                Some(Some(question.ok()?))
            }
            None => (self.question.len() < QUESTION_BYTES_MAX).then_some(None),
        }
    }
}

/// Asks a running balancer for the state of its pool.
///
/// # Errors
/// No balancer of this name runs, or the balancer does not answer.
pub fn ask(run_dir: &Path, name: &str) -> Result<Status, BalanceError> {
    put(run_dir, name, &Question::Status {})
}

/// A member of a running balancer gets no new connections.
///
/// # Errors
/// As [`ask`]; the pool has no such member, or no other member gets connections.
pub fn drain(run_dir: &Path, name: &str, member: &str) -> Result<(), BalanceError> {
    let member = member.to_owned();
    request(run_dir, name, &Question::Drain { member })
}

/// Confirms the death of a member that no balancer may declare dead.
///
/// # Errors
/// As [`ask`]; the pool has no such member, or the member has a lease.
pub fn confirm_dead(run_dir: &Path, name: &str, member: &str) -> Result<(), BalanceError> {
    let member = member.to_owned();
    request(run_dir, name, &Question::ConfirmDead { member })
}

fn request(run_dir: &Path, name: &str, question: &Question) -> Result<(), BalanceError> {
    let Done { refusal } = put(run_dir, name, question)?;
    match refusal {
        None => Ok(()),
        Some(reason) => Err(BalanceError::NotDone(reason)),
    }
}

fn put<T: for<'de> Deserialize<'de>>(
    run_dir: &Path,
    name: &str,
    question: &Question,
) -> Result<T, BalanceError> {
    let doing = "ask the balancer";
    let stream = match UnixStream::connect(run_directory::socket(run_dir, name)) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Err(BalanceError::NotRunning(name.to_owned()));
        }
        Err(error) => return Err(error).doing(doing),
    };
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).doing(doing)?;
    let mut line = serde_json::to_string(question)
        .map_err(io::Error::other)
        .doing(doing)?;
    line.push('\n');
    (&stream).write_all(line.as_bytes()).doing(doing)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).doing(doing)?;
    serde_json::from_str(&answer)
        .map_err(io::Error::other)
        .doing(doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status {
            pool: "pool".into(),
            service: vec!["10.0.0.10:80".parse().expect("an address")],
            listen: Vec::new(),
            hash: "maglev".into(),
            epoch: 7,
            register: None,
            register_failure: None,
            balancers: 0,
            grants: true,
            lease_ms: [25, 250],
            members: Vec::new(),
            packets: 1,
            icmp_packets: 0,
            dropped_fragments: 0,
            dropped_without_member: 0,
        }
    }

    #[test]
    fn question_is_answered_and_nonsense_is_not() {
        let run_dir = tempfile::tempdir().expect("a directory");
        let directory = run_directory::directory(run_dir.path(), "pool");
        std::fs::create_dir_all(directory).expect("a directory");
        let absent = ask(run_dir.path(), "pool");
        assert!(matches!(absent, Err(BalanceError::NotRunning(_))));
        let path = run_directory::socket(run_dir.path(), "pool");
        let mut socket = StatusSocket::bind(path.clone()).expect("a socket");
        let mut stranger = UnixStream::connect(&path).expect("connected");
        stranger.write_all(b"GET / HTTP/1.1\n").expect("room");
        let asker = std::thread::scope(|scope| {
            let run_dir = run_dir.path();
            let asker = scope.spawn(move || ask(run_dir, "pool"));
            while !asker.is_finished() {
                socket.answer(|question| {
                    assert_eq!(*question, Question::Status {});
                    serde_json::to_string(&status()).ok()
                });
                std::thread::yield_now();
            }
            asker.join().expect("no panic")
        });
        assert_eq!(asker.expect("an answer"), status());
        assert_eq!(stranger.read(&mut [0; 8]).expect("the end"), 0);
    }
}
