//! One connection of the server application: a function from what it has read to what it says,
//! whatever the pieces in which it reads.

use std::collections::VecDeque;

use crate::conversation::{Digest, LIFE_DIGITS, changed, of_life, pattern};

/// More unsent output than this, and nothing is read.
const OUTPUT_LIMIT: usize = 16 * 1024;

/// What of a request is being read.
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

/// One connection of the server.
#[derive(Debug)]
pub(crate) struct Session {
    reading: Reading,
    pub(crate) output: VecDeque<u8>,
    /// When the output is sent, the connection is closed.
    pub(crate) closing: bool,
    /// A request killed the server.
    pub(crate) poisoned: bool,
}

impl Session {
    pub(crate) fn new() -> Self {
        Self {
            reading: Reading::Line(Vec::new()),
            output: VecDeque::new(),
            closing: false,
            poisoned: false,
        }
    }

    pub(crate) fn wants_input(&self) -> bool {
        self.output.len() < OUTPUT_LIMIT && !self.poisoned
    }

    pub(crate) fn read(&mut self, bytes: &[u8], life: u32) {
        for byte in bytes {
            if !self.poisoned {
                self.step(*byte, life);
            }
        }
    }

    fn step(&mut self, byte: u8, life: u32) {
        match &mut self.reading {
            Reading::Line(line) if byte == b'\n' => {
                let line = std::mem::take(line);
                self.begin(&line, life);
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

    fn begin(&mut self, line: &[u8], life: u32) {
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
            Some(b'U') => self.reading = Reading::Upload(Digest::NONE),
            Some(b'L') => self.say(format!("{life:0LIFE_DIGITS$}\n").into_bytes()),
            Some(b'M') => self.say((0..n).map(|_| of_life(life)).collect()),
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
