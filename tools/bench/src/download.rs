//! A download over a connection of its own, with a comparison of every byte and without a second try.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::clients::read_some;

/// The result of a download.
#[derive(Debug)]
pub(super) struct Download {
    /// The field `X-Server` of the response.
    pub(super) server: Option<String>,
    pub(super) ended: Instant,
    /// The longest time without a byte.
    pub(super) silence: Duration,
    pub(super) outcome: Result<()>,
}

impl Download {
    /// Downloads the object by this request. A silence of `patience` is a failure.
    pub(super) fn run(
        address: SocketAddr,
        request: &str,
        object: &[u8],
        patience: Duration,
    ) -> Self {
        let mut response = Response::default();
        let mut silence = Duration::ZERO;
        let outcome = receive(
            address,
            request,
            object,
            patience,
            &mut response,
            &mut silence,
        );
        Self {
            server: response.field("X-Server"),
            ended: Instant::now(),
            silence,
            outcome,
        }
    }
}

fn receive(
    address: SocketAddr,
    request: &str,
    object: &[u8],
    patience: Duration,
    response: &mut Response,
    silence: &mut Duration,
) -> Result<()> {
    let mut last = Instant::now();
    let mut stream = connect(address, patience)?;
    stream.write_all(request.as_bytes())?;
    let mut buffer = vec![0; 64 << 10];
    let mut have = 0;
    while have < object.len() {
        let read = read_some(&mut stream, &mut buffer);
        let read = read.with_context(|| format!("silence after {have} bytes"))?;
        ensure!(read > 0, "closed after {have} bytes");
        let now = Instant::now();
        *silence = (*silence).max(now - std::mem::replace(&mut last, now));
        let body = response.body(&buffer[..read])?;
        let expected = object.get(have..have + body.len());
        ensure!(expected == Some(body), "other bytes after {have}");
        have += body.len();
    }
    Ok(())
}

pub(super) fn connect(address: SocketAddr, patience: Duration) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Bytes that tell their own position: each word of 4 bytes is its index.
pub(super) fn object(size: usize) -> Vec<u8> {
    let words = (0..u32::try_from(size / 4).unwrap_or(0)).map(u32::to_be_bytes);
    words.flatten().collect()
}

/// The header of a response, until the header is complete.
#[derive(Debug, Default)]
pub(super) struct Response {
    header: Vec<u8>,
    whole: bool,
}

impl Response {
    /// The part of `bytes` that belongs to the body.
    pub(super) fn body<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        if self.whole {
            return Ok(bytes);
        }
        let before = self.header.len();
        self.header.extend_from_slice(bytes);
        let end = self
            .header
            .windows(4)
            .position(|end| end == b"\r\n\r\n")
            .map(|end| end + 4);
        let Some(end) = end else {
            return Ok(&[]);
        };
        self.whole = true;
        self.header.truncate(end);
        let line = String::from_utf8_lossy(&self.header);
        let line = line.lines().next().unwrap_or_default();
        ensure!(line.starts_with("HTTP/1.1 200 "), "{line}");
        Ok(&bytes[end - before..])
    }

    /// The value of a field.
    fn field(&self, name: &str) -> Option<String> {
        let header = String::from_utf8_lossy(&self.header);
        let mut fields = header.lines().filter_map(|line| line.split_once(": "));
        fields
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_header_is_no_body() -> Result<()> {
        let mut answer = Response::default();
        assert_eq!(answer.body(b"HTTP/1.1 200 OK\r\nA: b\r\n\r")?, b"");
        assert_eq!(answer.body(b"\nxyz")?, b"xyz");
        assert_eq!(answer.body(b"\r\n\r\n")?, b"\r\n\r\n");
        assert_eq!(answer.field("a").as_deref(), Some("b"));
        assert_eq!(answer.field("c"), None);
        let mut other = Response::default();
        assert!(other.body(b"HTTP/1.1 503 No server\r\n\r\n").is_err());
        Ok(())
    }
}
