//! The socket on which a running program answers an operator: `outlive status`, `outlive events`, and requests.
//!
//! A client writes a line of JSON, a [`Question`]. The answer is a line of JSON; for events, a line for each event.
//! Only root can connect (the directory is 0700). The program closes the connection of a client that writes anything
//! else, or too much, or does not read.

#![forbid(unsafe_code)]

mod client;
mod events;

pub use client::{REPLY_TIMEOUT, ask, request, status_within};
pub use events::{EventRecord, Source};

use std::{
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use events::EventBuffer;

/// Longest question, bytes.
const QUESTION_BYTES_MAX: usize = 256;
/// Clients at the same time.
const CLIENT_COUNT_MAX: usize = 16;
/// Most bytes of answer that wait for a client.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Questions to a running program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub enum Question {
    /// The status.
    Status {
        /// With every connection.
        #[serde(default)]
        list: bool,
    },
    /// The latest events.
    Events {
        /// New events, too, until the client closes the connection.
        #[serde(default)]
        follow: bool,
    },
    /// A request that the program carries out.
    Request {
        /// The program's word for the effect.
        request: String,
        /// Name of the object of the request.
        name: String,
    },
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Why the request has no effect.
    pub refusal: Option<String>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    received: Vec<u8>,
    question: Option<Question>,
    answer: Vec<u8>,
    /// Number of the next event for this client.
    next_event: Option<u64>,
    /// The connection ends with the answer.
    is_answered: bool,
    is_gone: bool,
}

/// The listening socket, the connected clients, and the latest events.
#[derive(Debug)]
pub struct OperatorSocket {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Client>,
    events: EventBuffer,
}

impl OperatorSocket {
    /// Makes the socket, in the place of the socket of a program that was killed.
    ///
    /// # Errors
    /// The system refuses the socket.
    pub fn bind(path: PathBuf) -> io::Result<Self> {
        let _ = std::fs::remove_file(&path); // the caller has the lock of the directory
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            path,
            clients: Vec::new(),
            events: EventBuffer::default(),
        })
    }

    /// Adds all descriptors that the program waits for.
    pub fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.push(PollFd::from_borrowed_fd(
            self.listener.as_fd(),
            PollFlags::IN,
        ));
        fds.extend(self.clients.iter().map(|client| {
            let mut interest = PollFlags::IN;
            interest.set(PollFlags::OUT, !client.answer.is_empty());
            PollFd::from_borrowed_fd(client.stream.as_fd(), interest)
        }));
    }

    /// Keeps the line of an event. Frequent events do not displace rare events.
    pub fn push_event(&mut self, line: String, is_frequent: bool) {
        self.events.push(line, is_frequent);
    }

    /// Answers all requests that have arrived. `carry_out` gets the request and the name, and returns why there is no
    /// effect.
    pub fn carry_out(&mut self, mut carry_out: impl FnMut(&str, &str) -> Option<String>) {
        self.accept();
        for client in &mut self.clients {
            client.read();
            if let Some(Question::Request { request, name }) = &client.question {
                let refusal = carry_out(request, name);
                client.question = None;
                client.push(&serde_json::to_vec(&Done { refusal }).unwrap_or_default());
                client.is_answered = true;
            }
        }
    }

    /// Answers all other questions that have arrived, and sends new events. `status` is called at most once, with
    /// `true` if a client wants every connection.
    pub fn answer<S: Serialize>(&mut self, status: impl FnOnce(bool) -> Option<S>) {
        self.accept();
        let mut wanted = None;
        for client in &mut self.clients {
            client.read();
            if let Some(Question::Status { list }) = client.question {
                wanted = Some(list || wanted.unwrap_or(false));
            }
        }
        let status = wanted
            .and_then(status)
            .and_then(|status| serde_json::to_vec(&status).ok());
        for client in &mut self.clients {
            client.reply(&self.events, status.as_deref());
            client.write();
        }
        self.clients.retain(|client| !client.is_gone);
    }

    fn accept(&mut self) {
        // A call of accept(2) makes a socket before it finds that nobody waits.
        let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
        if !poll(&mut waiting, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return;
        }
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() < CLIENT_COUNT_MAX && stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client::new(stream));
            }
        }
    }
}

impl Drop for OperatorSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Client {
    const fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            received: Vec::new(),
            question: None,
            answer: Vec::new(),
            next_event: None,
            is_answered: false,
            is_gone: false,
        }
    }

    fn read(&mut self) {
        let mut bytes = [0; QUESTION_BYTES_MAX];
        match self.stream.read(&mut bytes) {
            Ok(len) if len > 0 && self.received.len() + len <= QUESTION_BYTES_MAX => {
                self.received.extend_from_slice(&bytes[..len]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.is_gone = true,
        }
        let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else {
            return;
        };
        let line: Vec<u8> = self.received.drain(..=end).collect();
        match serde_json::from_slice(&line) {
            Ok(question) => self.question = Some(question),
            Err(_) => self.is_gone = true,
        }
    }

    fn reply(&mut self, events: &EventBuffer, status: Option<&[u8]>) {
        match self.question.take() {
            None => {}
            // The program carries out no requests.
            Some(Question::Request { .. }) => self.is_gone = true,
            Some(Question::Status { .. }) => {
                self.push(status.unwrap_or(b"null"));
                self.is_answered = true;
            }
            Some(Question::Events { follow }) => {
                self.next_event = Some(0);
                self.is_answered = !follow;
            }
        }
        let Some(from) = self.next_event else { return };
        let (lines, next) = events.since(from);
        for line in lines {
            self.push(line.as_bytes());
        }
        self.next_event = Some(next);
    }

    fn push(&mut self, line: &[u8]) {
        self.answer.extend_from_slice(line);
        self.answer.push(b'\n');
        self.is_gone |= self.answer.len() > ANSWER_BYTES_MAX;
    }

    fn write(&mut self) {
        while !self.answer.is_empty() {
            match self.stream.write(&self.answer) {
                Ok(len) => {
                    self.answer.drain(..len);
                }
                Err(error) => {
                    self.is_gone |= error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            }
        }
        self.is_gone |= self.is_answered;
    }
}

#[cfg(test)]
mod tests;
