//! Requests of peers.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::format::Format;

/// Time limit of a whole request, and of a whole answer.
const PEER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest head of a request, bytes, and most fields in the head.
const MAX_HEAD_BYTES: usize = 8192;
const MAX_FIELDS: usize = 64;

/// The kind of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Metrics(Format),
    Health,
    /// A path that the endpoint does not have.
    Other,
    /// A method other than GET and HEAD.
    Method,
    /// Bytes that are no request.
    Nonsense,
}

/// A stream that a peer cannot hold for longer than [`PEER_TIMEOUT`], however slowly the peer reads or writes.
pub(crate) struct Timed<'a> {
    stream: &'a mut TcpStream,
    deadline: Instant,
}

impl<'a> Timed<'a> {
    pub(crate) fn new(stream: &'a mut TcpStream) -> Self {
        Self::until(stream, Instant::now() + PEER_TIMEOUT)
    }

    pub(crate) fn until(stream: &'a mut TcpStream, deadline: Instant) -> Self {
        Self { stream, deadline }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Reads a request. A peer that is too slow, or sends too much, is given up. Returns also whether the peer wants only
/// the head of the answer.
pub(crate) fn read(stream: &mut TcpStream) -> io::Result<(Wanted, bool)> {
    let mut stream = Timed::new(stream);
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        if let Some(wanted) = parse(&head) {
            return Ok(wanted);
        }
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => head.extend_from_slice(&piece[..len]),
        }
    }
}

/// `None`: there must be more.
pub(crate) fn parse(head: &[u8]) -> Option<(Wanted, bool)> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Partial) if head.len() <= MAX_HEAD_BYTES => None,
        Ok(httparse::Status::Complete(_)) => {
            let only_head = request.method == Some("HEAD");
            let path = request.path.unwrap_or_default();
            let path = path.split_once('?').map_or(path, |(path, _)| path);
            let accepts = request.headers.iter();
            let accepts = accepts.filter(|field| field.name.eq_ignore_ascii_case("accept"));
            let accepts: Vec<_> = accepts
                .map(|field| String::from_utf8_lossy(field.value))
                .collect();
            let accept = accepts.join(",");
            let wanted = match (request.method, path) {
                (Some("GET" | "HEAD"), "/metrics") => Wanted::Metrics(Format::accepted(&accept)),
                (Some("GET" | "HEAD"), "/health") => Wanted::Health,
                (Some("GET" | "HEAD"), _) => Wanted::Other,
                _ => Wanted::Method,
            };
            Some((wanted, only_head))
        }
        Ok(httparse::Status::Partial) | Err(_) => Some((Wanted::Nonsense, false)),
    }
}
