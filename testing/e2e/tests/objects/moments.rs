//! Clients that a failure finds at an exact moment of a connection.

use std::io::{self, ErrorKind, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use e2e::arrange::{run, wait_until};
use e2e::clients::read_some;
use e2e::pool::Pool;
use e2e::servers::SERVER_PORT;
use e2e::sockets::dial;
use e2e::{assert_same_bytes, pattern};
use lab::Host;
use rustix::net::sockopt::set_socket_recv_buffer_size;

/// Size of `/medium`.
pub(crate) const MEDIUM_FILE_BYTES: usize = 400_000;
/// A receive buffer that keeps the window shut behind about a segment.
const SMALL_BUFFER_BYTES: usize = 2304;
/// Bytes of a header field with which the head needs more than one segment, and no timestamp can tell its length.
const LONG_FIELD_BYTES: usize = 3000;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The client has sent nothing.
    Connected,
    /// The server has the request, and has not answered.
    Asked,
    /// The response was sent, and no segment of it has arrived.
    AnswerLost,
    /// The same, and the client has sent its FIN behind the request. (nginx closes when a FIN comes before the end of
    /// a long response.)
    HalfClosed,
    /// The client's window is shut behind the first bytes of the body.
    FirstBytes,
    /// The client has a part of the body.
    Middle,
    /// The client has everything, and its acknowledgements were lost.
    AckLost,
    /// The client has the whole response and the server's FIN.
    Ended,
    /// The client has a whole response, and the connection stays.
    Idle,
    /// The client has a part of a body behind a head that is too long for a timestamp.
    LongHead,
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) moment: Moment,
    /// The member that serves the connection at first.
    pub(crate) member: usize,
    stream: TcpStream,
    got: Vec<u8>,
}

/// Adds `/medium`, older than any download.
pub(crate) fn add_medium_file(pool: &Pool) {
    let path = pool.scene.write("www/medium", pattern(MEDIUM_FILE_BYTES));
    let file = std::fs::File::options().write(true).open(path);
    let old = std::time::SystemTime::now() - Duration::from_secs(86_400);
    file.and_then(|file| file.set_modified(old))
        .expect("an older file");
}

/// The member on whose host a client's connection is.
pub(crate) fn owner(pool: &Pool, client: SocketAddr) -> usize {
    let mut found = None;
    wait_until("a member has the connection", || {
        let has = |host: &Host| host.is_on() && line_of(host, client).is_some();
        found = (0..pool.members.len()).find(|&it| has(&pool.members[it].program.host));
        found.is_some()
    });
    found.expect("a member")
}

/// Receive queue and send queue of the server's socket.
fn queues(host: &Host, client: SocketAddr) -> Option<(u64, u64)> {
    let line = line_of(host, client)?;
    let mut words = line.split_whitespace().skip(1);
    let mut number = || words.next()?.parse().ok();
    Some((number()?, number()?))
}

fn line_of(host: &Host, client: SocketAddr) -> Option<String> {
    let sockets = run(host, "ss -Htan");
    let text = client.to_string();
    let line = sockets
        .lines()
        .find(|line| line.split_whitespace().any(|word| word == text));
    line.map(str::to_owned)
}

impl Client {
    /// A connection that this member serves.
    pub(crate) fn at(pool: &Pool, address: SocketAddr, member: usize, moment: Moment) -> Self {
        loop {
            let client = Self::connected(pool, address, moment);
            if client.member == member {
                return client;
            }
        }
    }

    /// A connection that any member serves.
    pub(crate) fn connected(pool: &Pool, address: SocketAddr, moment: Moment) -> Self {
        let dialled = dial(&pool.scene.client, address, None, |socket| {
            if moment == Moment::FirstBytes {
                set_socket_recv_buffer_size(socket, SMALL_BUFFER_BYTES).expect("a buffer");
            }
        });
        let stream = dialled.expect("a connection");
        Self {
            moment,
            member: owner(pool, stream.local_addr().expect("an address")),
            stream,
            got: Vec::new(),
        }
    }

    /// A connection that has just begun, of any member.
    pub(crate) fn of(pool: &Pool, stream: TcpStream) -> Self {
        Self {
            moment: Moment::Connected,
            member: owner(pool, stream.local_addr().expect("an address")),
            stream,
            got: Vec::new(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.stream.local_addr().expect("an address")
    }

    fn path(&self) -> &'static str {
        match self.moment {
            Moment::AnswerLost
            | Moment::FirstBytes
            | Moment::AckLost
            | Moment::HalfClosed
            | Moment::Ended => "/small/9",
            Moment::Idle => "/small/3",
            Moment::Middle => "/big.bin",
            Moment::Connected | Moment::Asked | Moment::LongHead => "/medium",
        }
    }

    /// Whether the connection ends with the response.
    fn closes(&self) -> bool {
        matches!(self.moment, Moment::Ended | Moment::HalfClosed)
    }

    pub(crate) fn ask(&self) {
        self.try_to_ask().expect("a request");
    }

    fn try_to_ask(&self) -> io::Result<()> {
        let path = self.path();
        let pad = match self.moment {
            Moment::LongHead => format!("?pad={}", "x".repeat(LONG_FIELD_BYTES)),
            _ => String::new(),
        };
        let close = if self.closes() {
            "Connection: close\r\n"
        } else {
            ""
        };
        let request =
            format!("GET {path}{pad} HTTP/1.1\r\nHost: pool:{SERVER_PORT}\r\n{close}\r\n");
        (&self.stream).write_all(request.as_bytes())
    }

    /// Brings the connection to its moment, for moments that need no fault. `part`: bytes that a client reads of a
    /// body.
    pub(crate) fn go(&mut self, part: usize) {
        match self.moment {
            Moment::Connected
            | Moment::Asked
            | Moment::AnswerLost
            | Moment::HalfClosed
            | Moment::AckLost => {}
            Moment::FirstBytes => {
                self.ask();
                let mut byte = [0];
                self.stream.peek(&mut byte).expect("a first byte");
            }
            Moment::Middle | Moment::LongHead => {
                self.ask();
                while self.got.len() < part {
                    let len = self.read().expect("a part of the body");
                    assert_ne!(
                        len,
                        0,
                        "{:?}: the end after {} bytes",
                        self.moment,
                        self.got.len()
                    );
                }
            }
            Moment::Idle => {
                self.ask();
                self.response().expect("a response");
            }
            Moment::Ended => {
                self.ask();
                let mut all = vec![0; 1 << 16];
                wait_until("everything has arrived", || {
                    let len = self.stream.peek(&mut all).expect("bytes");
                    is_whole(&all[..len])
                });
            }
        }
    }

    /// The server has the request in its queue.
    pub(crate) fn await_asked(&self, pool: &Pool) {
        let host = &pool.members[self.member].program.host;
        wait_until("the request has arrived", || {
            queues(host, self.address()).is_some_and(|(received, _)| received > 0)
        });
    }

    /// The server has sent an answer that was not acknowledged.
    pub(crate) fn await_answer_sent(&self, pool: &Pool) {
        let host = &pool.members[self.member].program.host;
        wait_until("the answer was sent", || {
            queues(host, self.address()).is_some_and(|(_, sent)| sent > 0)
        });
        if self.moment == Moment::HalfClosed {
            self.stream.shutdown(Shutdown::Write).expect("a FIN");
        }
    }

    /// The client has the whole response.
    pub(crate) fn await_answer(&self) {
        let mut all = vec![0; 1 << 16];
        wait_until("everything has arrived", || {
            let len = self.stream.peek(&mut all).expect("bytes");
            is_whole(&all[..len])
        });
    }

    fn read(&mut self) -> io::Result<usize> {
        let mut buffer = vec![0; 1 << 16];
        let len = read_some(&self.stream, &mut buffer)?;
        self.got.extend_from_slice(&buffer[..len]);
        Ok(len)
    }

    /// Reads a response to the end, and compares the body.
    fn response(&mut self) -> io::Result<()> {
        while !is_whole(&self.got) {
            if self.read()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        let (head, body) = split(&self.got).expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let expected = pattern(body.len());
        assert_same_bytes(&format!("{:?}", self.moment), &expected, body);
        self.got.clear();
        Ok(())
    }

    /// Takes the connection to a proper end: the rest of the response, a further response, and both FINs.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        match self.moment {
            Moment::Connected => self.try_to_ask()?,
            Moment::Idle => {}
            Moment::LongHead => {
                // No member looks for an unprotected client of a dead host: its next segment is answered with a reset.
                // An empty line before the next request has no meaning (RFC 9112, 2.2).
                self.stream.write_all(b"\r\n")?;
                self.response()?;
            }
            _ => self.response()?,
        }
        if !self.closes() {
            if self.moment == Moment::Connected {
                self.response()?;
            }
            self.moment = Moment::Idle;
            self.try_to_ask()?;
            self.response()?;
        }
        if self.moment != Moment::HalfClosed {
            self.stream.shutdown(Shutdown::Write)?;
        }
        match self.read()? {
            0 => Ok(()),
            more => panic!("{:?}: {more} bytes more", self.moment),
        }
    }
}

/// The text of a head, and the bytes behind it.
pub(crate) fn split(bytes: &[u8]) -> Option<(String, &[u8])> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    Some((head, &bytes[end..]))
}

fn is_whole(bytes: &[u8]) -> bool {
    let Some((head, body)) = split(bytes) else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().expect("a length"))
    });
    let length: usize = length.expect("a length");
    assert!(body.len() <= length, "more than a response: {head}");
    body.len() == length
}
