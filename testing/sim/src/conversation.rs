//! The requests of clients, and the right responses.
//!
//! A connection is a list of requests. The right responses are computed here from the whole list. The server's code
//! ([`crate::session`]) is separate, and reads the bytes in pieces.

use crate::length32;

/// A request. On the wire: a letter, a decimal length, a line end, the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// `G`: so many bytes of a pattern.
    Get(u32),
    /// `C`: the same, and then the server closes.
    GetAndClose(u32),
    /// `E`: the body comes back, changed, during the upload.
    Echo(Vec<u8>),
    /// `P`: a digest of the complete body.
    Put(Vec<u8>),
    /// `U`: the body ends where the client's stream ends; the response is a digest, and the server closes.
    Upload(Vec<u8>),
    /// `K`: so many bytes of a pattern, at once. The server may then half-close, and reads the body to the end of the
    /// client's stream.
    Keep(u32, Vec<u8>),
    /// `L`: which life of the server this is; another answer after a crash.
    Life,
    /// `M`: so many bytes, each of which tells the incarnation.
    Lives(u32),
    /// `T`: the number of earlier tickets of all clients, and a digest of all input that the server has read by then,
    /// including order and pieces.
    Ticket,
    /// `X`: this request kills the server.
    Poison,
}

/// Digits of the answer to [`Request::Life`].
pub(crate) const INCARNATION_DIGITS: usize = 8;
/// Length of the answer to [`Request::Ticket`].
pub(crate) const TICKET_LENGTH: usize = 8 + 1 + 16 + 1;

impl Request {
    /// The bytes on the wire.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (letter, number, body): (char, u32, &[u8]) = match self {
            Self::Get(n) => ('G', *n, &[]),
            Self::GetAndClose(n) => ('C', *n, &[]),
            Self::Echo(body) => ('E', length32(body.len()), body),
            Self::Put(body) => ('P', length32(body.len()), body),
            Self::Upload(body) => ('U', 0, body),
            Self::Keep(n, body) => ('K', *n, body),
            Self::Life => ('L', 0, &[]),
            Self::Lives(n) => ('M', *n, &[]),
            Self::Ticket => ('T', 0, &[]),
            Self::Poison => ('X', 0, &[]),
        };
        [format!("{letter}{number}\n").as_bytes(), body].concat()
    }

    /// The right response; zeros where the response does not depend on this client alone.
    pub(crate) fn answer(&self) -> Vec<u8> {
        match self {
            Self::Get(n) | Self::GetAndClose(n) | Self::Keep(n, _) => {
                (0..*n).map(|i| pattern(*n, i)).collect()
            }
            Self::Echo(body) => (0..).zip(body).map(|(i, byte)| changed(*byte, i)).collect(),
            Self::Put(body) | Self::Upload(body) => digest_line(body),
            Self::Life => [&[0; INCARNATION_DIGITS][..], b"\n"].concat(),
            Self::Lives(n) => vec![0; crate::index(*n)],
            Self::Ticket => vec![0; TICKET_LENGTH],
            Self::Poison => Vec::new(),
        }
    }

    /// Whether no request can follow on the connection.
    pub(crate) const fn is_last(&self) -> bool {
        matches!(
            self,
            Self::GetAndClose(_) | Self::Upload(_) | Self::Keep(..) | Self::Poison
        )
    }
}

/// Byte `i` of the answer to a request for `n` bytes.
pub(crate) const fn pattern(n: u32, i: u32) -> u8 {
    let mixed = (i ^ n.rotate_left(16)).wrapping_mul(0x9e37_79b1);
    mixed.to_le_bytes()[3]
}

/// Each byte of an answer that tells of a life of the server.
pub(crate) const fn byte_of_incarnation(incarnation: u32) -> u8 {
    incarnation.to_le_bytes()[0]
}

/// Byte `i` of an echo.
pub(crate) const fn changed(byte: u8, i: u32) -> u8 {
    byte.wrapping_add(i.wrapping_mul(31).to_le_bytes()[0]) ^ 0x5a
}

/// FNV-1a, the hash of a byte stream that comes in pieces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Digest {
    hash: u64,
    length: u64,
}

impl Digest {
    pub(crate) const NONE: Self = Self {
        hash: 0xcbf2_9ce4_8422_2325,
        length: 0,
    };

    pub(crate) fn add(&mut self, byte: u8) {
        self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.length += 1;
    }

    pub(crate) fn add_all(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add(*byte));
    }

    pub(crate) const fn hash(self) -> u64 {
        self.hash
    }

    pub(crate) fn line(self) -> Vec<u8> {
        format!("{} {:016x}\n", self.length, self.hash).into_bytes()
    }
}

/// The answer to [`Request::Ticket`].
pub(crate) fn ticket(number: u32, heard: Digest) -> Vec<u8> {
    format!("{number:08} {:016x}\n", heard.hash).into_bytes()
}

fn digest_line(body: &[u8]) -> Vec<u8> {
    let mut digest = Digest::NONE;
    for byte in body {
        digest.add(*byte);
    }
    digest.line()
}
