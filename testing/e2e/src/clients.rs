//! Clients: plain sockets that give up rather than hang, HTTP enough for the tests, curl.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Output;

use crate::{EVENT_TIMEOUT, Scene};

/// Reads exactly `length` bytes.
///
/// # Panics
/// When fewer bytes come; the message holds their number.
#[must_use]
#[track_caller]
pub fn read_exactly(mut stream: &TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut got = 0;
    while got < length {
        match read_some(&mut stream, &mut bytes[got..]) {
            Ok(0) => panic!("the connection ended after {got} of {length} bytes"),
            Ok(more) => got += more,
            Err(error) => panic!("after {got} of {length} bytes: {error}"),
        }
    }
    bytes
}

/// Reads the bytes that have come. A signal or a debugger that stops the process interrupts a read with a time limit
/// (signal(7)): the connection is not affected, and the read is repeated.
///
/// # Errors
/// Errors of the connection.
pub fn read_some(mut stream: impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            heard => return heard,
        }
    }
}

/// Reads until the other end has closed.
///
/// # Panics
/// When the connection is reset or silent for [`EVENT_TIMEOUT`].
#[must_use]
#[track_caller]
pub fn read_to_end(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        panic!("after {} bytes: {error}", bytes.len());
    }
    bytes
}

/// Reads until the connection is reset.
///
/// # Panics
/// When the connection ends otherwise, or is silent for [`EVENT_TIMEOUT`].
#[track_caller]
pub fn is_reset(stream: &TcpStream) {
    let mut buffer = [0; 4096];
    loop {
        match read_some(stream, &mut buffer) {
            Ok(0) => panic!("a proper end, not a reset"),
            // Data sent before the reset.
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
                return;
            }
        }
    }
}

/// Writes everything.
///
/// # Panics
/// When that fails.
#[track_caller]
pub fn write(mut stream: &TcpStream, bytes: &[u8]) {
    if let Err(error) = stream.write_all(bytes) {
        panic!("write {} bytes: {error}", bytes.len());
    }
}

/// Sends a FIN and waits for the server's FIN: afterwards both FINs have been on the wire.
///
/// # Panics
/// When the server sends data or does not close.
#[track_caller]
pub fn finish(stream: &TcpStream) {
    stream.shutdown(Shutdown::Write).expect("a FIN");
    let more = read_to_end(stream);
    assert!(more.is_empty(), "{} bytes more than expected", more.len());
}

/// An HTTP response.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The status line and the header lines, without `Date`.
    pub head: Vec<String>,
    /// The content.
    pub body: Vec<u8>,
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} and {} bytes", self.head, self.body.len())
    }
}

/// A connection for consecutive HTTP/1.1 requests.
#[derive(Debug)]
pub struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    /// On an open connection.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// The connection.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Sends a GET request.
    ///
    /// # Panics
    /// When the request cannot be sent.
    #[track_caller]
    pub fn ask(&self, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n");
        write(self.stream(), request.as_bytes());
    }

    /// Fetches a path.
    ///
    /// # Panics
    /// When there is no proper response.
    #[track_caller]
    pub fn get(&mut self, path: &str) -> Response {
        self.ask(path);
        self.response(|_| ())
    }

    /// Reads a response; `progress` is called with the number of body bytes read so far.
    ///
    /// # Panics
    /// When no valid response comes.
    #[track_caller]
    pub fn response(&mut self, mut progress: impl FnMut(usize)) -> Response {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            let length = self.stream.read_line(&mut line).expect("a header line");
            assert_ne!(length, 0, "the connection ended within a header: {head:?}");
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            head.push(line.to_owned());
        }
        let number = |line: &String| line.split(' ').nth(1)?.parse().ok();
        let status = head.first().and_then(number).expect("a status line");
        let length = head.iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim())
        });
        let length = length.map_or(0, |text| text.parse().expect("a length"));
        head.retain(|line| !line.to_ascii_lowercase().starts_with("date:"));
        let mut body = vec![0; length];
        let mut got = 0;
        while got < length {
            progress(got);
            // In steps: `progress` is called at the expected offset.
            let end = length.min(got + 16_384);
            match read_some(&mut self.stream, &mut body[got..end]) {
                Ok(0) => panic!("the connection ended after {got} of {length} bytes"),
                Ok(more) => got += more,
                Err(error) => panic!("after {got} of {length} bytes: {error}"),
            }
        }
        progress(length);
        Response { status, head, body }
    }

    /// Reads until the server closes.
    ///
    /// # Panics
    /// When the connection ends otherwise.
    #[must_use]
    #[track_caller]
    pub fn rest(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).expect("a proper end");
        bytes
    }
}

/// Runs curl on the client's host, silent but for errors, and without retries.
///
/// # Panics
/// When curl cannot be started.
#[must_use]
pub fn curl(scene: &Scene, arguments: &[&str]) -> Output {
    // Longer than 31 s: by then a client without an answer has retransmitted a SYN five times.
    let limit = EVENT_TIMEOUT.as_secs().to_string();
    let mut all = vec!["-q", "-sS", "--max-time", &limit];
    all.extend(arguments);
    scene.on_client("curl", &all)
}
