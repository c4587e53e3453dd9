//! A client beyond curl: fetches a file, is silent during the kills, and fetches another file over the same
//! connection.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::clients::{Scene, Served};
use crate::raised;
use crate::server::Server;
use crate::stage::small;

/// Time between two looks at flags.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// More than the header of a response has, bytes.
const HEADER_LIMIT: usize = 8192;

/// Two small files, one before the first kill and one after the last.
pub(crate) fn run(scene: &Scene<'_>, number: usize) -> Result<Served> {
    let to = scene.stage.addresses(Server::Nginx)[0];
    let mut stream = scene.stage.client.enter(|| TcpStream::connect(to))??;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    stream.set_nodelay(true)?;
    let (first, before) = fetch(&mut stream, scene, 2 * number)?;
    while !raised(scene.kills_over) {
        ensure!(!raised(scene.given_up), "given up");
        thread::sleep(POLL_INTERVAL);
    }
    let (second, after) = fetch(&mut stream, scene, 2 * number + 1)?;
    Ok(Served::on_one(first + second, Some(before.max(after))))
}

/// Fetches a small file, and returns the time of that.
fn fetch(stream: &mut TcpStream, scene: &Scene<'_>, file: usize) -> Result<(u64, Duration)> {
    let name = small(file);
    let expected = fs::read(scene.stage.file(&name))?;
    let began = Instant::now();
    stream.write_all(format!("GET /{name} HTTP/1.1\r\nHost: demo\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let body = loop {
        if let Some(body) = header_end(&answer) {
            break body;
        }
        ensure!(
            answer.len() < HEADER_LIMIT,
            "the answer's header does not end"
        );
        read_some(stream, &mut answer, scene.given_up)?;
    };
    ensure!(
        answer.starts_with(b"HTTP/1.1 200 "),
        "the answer is not 200"
    );
    let length = content_length(&answer[..body]).context("the answer has no length")?;
    ensure!(
        length == expected.len(),
        "{length} bytes instead of {}",
        expected.len()
    );
    while answer.len() < body + length {
        read_some(stream, &mut answer, scene.given_up)?;
    }
    let took = began.elapsed();
    ensure!(
        answer[body..] == expected,
        "a small file is not what it should be"
    );
    Ok((u64::try_from(length)?, took))
}

fn read_some(stream: &mut TcpStream, to: &mut Vec<u8>, given_up: &AtomicBool) -> Result<()> {
    let mut buffer = [0; 16 << 10];
    loop {
        ensure!(!raised(given_up), "given up");
        match stream.read(&mut buffer) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(length) => {
                to.extend_from_slice(&buffer[..length]);
                return Ok(());
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(error.into()),
            },
        }
    }
}

/// Offset of the body, when the header is complete.
fn header_end(answer: &[u8]) -> Option<usize> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some(end + 4)
}

fn content_length(header: &[u8]) -> Option<usize> {
    let header = std::str::from_utf8(header).ok()?;
    header.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_length_is_parsed() {
        let answer = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 12\r\n\r\nbody";
        let body = header_end(answer).unwrap();
        assert_eq!(&answer[body..], b"body");
        assert_eq!(content_length(&answer[..body]), Some(12));
        assert_eq!(header_end(b"HTTP/1.1 200 OK\r\n\r"), None);
        assert_eq!(content_length(b"HTTP/1.1 200 OK\r\n\r\n"), None);
        assert_eq!(content_length(b"Content-Length: many\r\n"), None);
    }
}
