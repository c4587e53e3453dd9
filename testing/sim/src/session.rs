//! A connection of the server application: a function from input to output, for any pieces of the input. Only tickets
//! also depend on the input of other clients, and on time.

use std::collections::VecDeque;

use wire::FlowKey;

use crate::conversation::{
    Digest, INCARNATION_DIGITS, byte_of_incarnation, changed, pattern, ticket,
};

/// More unsent output than this, and nothing is read.
const OUTPUT_LIMIT: usize = 16 * 1024;

/// The part of a request that is being read.
#[derive(Debug)]
enum Reading {
    Line(Vec<u8>),
    Echo {
        at: u32,
        length: u32,
    },
    Put {
        left: u32,
        digest: Digest,
    },
    Upload(Digest),
    /// The conversation is over.
    Nothing,
}

/// The state that all connections of a server share.
#[derive(Debug)]
pub(crate) struct Common {
    /// The incarnation of the server.
    incarnation: u32,
    tickets: u32,
    /// All input that was read, of all clients.
    heard: Digest,
}

impl Common {
    pub(crate) const fn new(incarnation: u32) -> Self {
        Self {
            incarnation,
            tickets: 0,
            heard: Digest::NONE,
        }
    }

    /// These bytes were read at once.
    pub(crate) fn hears(&mut self, from: FlowKey, bytes: &[u8]) {
        self.heard.add_all(&from.client().port().to_be_bytes());
        self.heard.add_all(&bytes.len().to_be_bytes());
        self.heard.add_all(bytes);
    }

    fn ticket(&mut self) -> Vec<u8> {
        self.tickets += 1;
        ticket(self.tickets, self.heard)
    }
}

/// A connection of the server.
#[derive(Debug)]
pub(crate) struct Session {
    reading: Reading,
    pub(crate) output: VecDeque<u8>,
    /// No output before this time, ns.
    pub(crate) speaks_at: u64,
    /// When the output is sent, the connection is closed.
    pub(crate) closing: bool,
    /// The server half-closes early.
    pub(crate) is_early: bool,
    /// And the end after that, and more is read.
    pub(crate) half_closed: bool,
    /// A request killed the server.
    pub(crate) poisoned: bool,
}

impl Session {
    pub(crate) fn new() -> Self {
        Self {
            reading: Reading::Line(Vec::new()),
            output: VecDeque::new(),
            speaks_at: 0,
            closing: false,
            is_early: false,
            half_closed: false,
            poisoned: false,
        }
    }

    pub(crate) fn wants_input(&self) -> bool {
        self.output.len() < OUTPUT_LIMIT && !self.poisoned
    }

    pub(crate) fn read(&mut self, bytes: &[u8], common: &mut Common) {
        for byte in bytes {
            if !self.poisoned {
                self.step(*byte, common);
            }
        }
    }

    fn step(&mut self, byte: u8, common: &mut Common) {
        match &mut self.reading {
            Reading::Line(line) if byte == b'\n' => {
                let line = std::mem::take(line);
                self.begin(&line, common);
            }
            Reading::Line(line) => line.push(byte),
            Reading::Echo { at, length } => {
                self.output.push_back(changed(byte, *at));
                *at += 1;
                if at == length {
                    self.reading = Reading::Line(Vec::new());
                }
            }
            Reading::Put { left, digest } => {
                digest.add(byte);
                *left -= 1;
                if *left == 0 {
                    let line = digest.line();
                    self.say(line);
                }
            }
            Reading::Upload(digest) => digest.add(byte),
            Reading::Nothing => {}
        }
    }

    fn begin(&mut self, line: &[u8], common: &mut Common) {
        let incarnation = common.incarnation;
        let number = std::str::from_utf8(line.get(1..).unwrap_or_default());
        let n: u32 = number.ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        match line.first() {
            Some(b'G' | b'C') => {
                self.say((0..n).map(|i| pattern(n, i)).collect());
                if line.first() == Some(&b'C') {
                    self.finish();
                }
            }
            Some(b'E') if n > 0 => self.reading = Reading::Echo { at: 0, length: n },
            Some(b'P') if n > 0 => {
                self.reading = Reading::Put {
                    left: n,
                    digest: Digest::NONE,
                }
            }
            Some(b'K') => {
                self.say((0..n).map(|i| pattern(n, i)).collect());
                self.reading = Reading::Nothing;
                self.is_early = true;
            }
            Some(b'U') => self.reading = Reading::Upload(Digest::NONE),
            Some(b'L') => self.say(format!("{incarnation:0INCARNATION_DIGITS$}\n").into_bytes()),
            Some(b'M') => self.say((0..n).map(|_| byte_of_incarnation(incarnation)).collect()),
            Some(b'T') => {
                let ticket = common.ticket();
                self.say(ticket);
            }
            Some(b'X') => self.poisoned = true,
            _ => self.finish(),
        }
    }

    fn say(&mut self, answer: Vec<u8>) {
        self.output.extend(answer);
        self.reading = Reading::Line(Vec::new());
    }

    fn finish(&mut self) {
        self.reading = Reading::Nothing;
        self.closing = true;
    }

    /// The client has closed its side.
    pub(crate) fn end_of_input(&mut self) {
        if let Reading::Upload(digest) = self.reading {
            self.say(digest.line());
        }
        self.finish();
    }
}
