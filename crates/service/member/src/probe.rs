//! The answers of a member to `outlive check --pool`: the settings of its host, and the responses of its own server.
//!
//! The address of the pool is on every member, so no other host can ask a chosen member's server. The member asks for
//! the check, over the loopback. A check connects to the port for claims, by TCP, with a key of the pool; question and
//! answer are lines of JSON. A thread of its own serves one check at a time: no check delays a lease or a revival.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use channel::{Channel, KeyRing, Received};
use http1::{BodyLength, HEAD_LEN_MAX, Method, parse_response, version::ObjectVersion};
use serde::{Deserialize, Serialize};
use supervise::local_addresses;

use crate::error::{MemberError, SystemContext};

/// Most objects of a question.
pub(crate) const TARGET_COUNT_MAX: usize = 64;
/// Longest question, bytes.
const QUESTION_BYTES_MAX: usize = 64 << 10;
/// Time of the peer for a question, and of the server for a response head.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
const LOOPBACK: &str = "lo";

/// A question to a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    /// Request targets.
    pub(crate) targets: Vec<String>,
}

/// The answer of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The host's TCP uses timestamps.
    pub(crate) has_timestamps: bool,
    /// The host's TCP uses SACK.
    pub(crate) has_sack: bool,
    /// Addresses of the pool on a device other than the loopback, each with the device.
    pub(crate) addresses_elsewhere: Vec<String>,
    /// In the order of the targets.
    pub(crate) responses: Vec<Response>,
}

/// The response of a member's server to a request for the first byte of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Response {
    /// No response, or one in doubt.
    Failed(String),
    /// The head.
    Head(Head),
}

/// A response head.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) complete_len: Option<u64>,
    pub(crate) etag: Option<String>,
    pub(crate) last_modified: Option<String>,
    /// The length of the body is not in the head: chunks follow.
    pub(crate) is_chunked: bool,
    /// The server compresses the object for a client that accepts gzip, and does not know the length beforehand.
    pub(crate) is_compressed_on_the_fly: bool,
}

/// Whether a request can have this target.
pub(crate) fn is_target(target: &str) -> bool {
    target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Answers checks, in a thread that ends with the process.
pub(crate) fn serve(
    listener: TcpListener,
    key_file: PathBuf,
    service: Vec<SocketAddr>,
) -> Result<(), MemberError> {
    let answer_all = move || {
        for stream in listener.incoming().flatten() {
            if let Err(error) = answer(stream, &key_file, &service) {
                tracing::debug!(%error, "a check was not answered");
            }
        }
    };
    std::thread::Builder::new()
        .name("checks".into())
        .spawn(answer_all)
        .doing("start a thread")?;
    Ok(())
}

fn answer(stream: TcpStream, key_file: &Path, service: &[SocketAddr]) -> io::Result<()> {
    let keys = Arc::new(KeyRing::load(key_file).map_err(io::Error::other)?);
    let deadline = Instant::now() + PEER_TIMEOUT;
    stream.set_write_timeout(Some(PEER_TIMEOUT))?;
    let mut channel = Channel::accept(stream, keys, Instant::now());
    let question: Question = receive(&mut channel, deadline)?;
    let local = local_addresses()?;
    let elsewhere = local.iter().filter(|local| {
        let is_of_pool = service.iter().any(|address| address.ip() == local.ip);
        is_of_pool && local.interface != LOOPBACK
    });
    let targets = question.targets.iter().take(TARGET_COUNT_MAX);
    let answer = Answer {
        has_timestamps: is_on("net/ipv4/tcp_timestamps"),
        has_sack: is_on("net/ipv4/tcp_sack"),
        addresses_elsewhere: elsewhere.map(ToString::to_string).collect(),
        responses: targets.map(|target| response(service, target)).collect(),
    };
    send(&mut channel, &answer)
}

fn is_on(setting: &str) -> bool {
    let value = fs::read_to_string(format!("/proc/sys/{setting}"));
    value.is_ok_and(|value| value.trim() != "0")
}

/// Receives a line of JSON.
pub(crate) fn receive<T: for<'a> Deserialize<'a>>(
    channel: &mut Channel<TcpStream>,
    deadline: Instant,
) -> io::Result<T> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || line.len() > QUESTION_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        channel.stream().set_read_timeout(Some(left))?;
        match channel.receive().map_err(io::Error::other)? {
            Received::Plain(bytes) => line.extend_from_slice(&bytes),
            Received::Nothing => {}
            Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

/// Sends a line of JSON.
pub(crate) fn send(channel: &mut Channel<TcpStream>, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    channel.say(&line).map_err(io::Error::other)?;
    channel.flush().map_err(io::Error::other)
}

fn response(service: &[SocketAddr], target: &str) -> Response {
    let asked = || -> io::Result<Head> {
        let Some(at) = service.first() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if !is_target(target) {
            return Err(io::Error::other("a target begins with / and has no blanks"));
        }
        let mut head = ask(*at, target, "Range: bytes=0-0\r\n")?.0;
        let (compressed, encoding) = ask(*at, target, "Accept-Encoding: gzip\r\n")?;
        head.is_compressed_on_the_fly = encoding.is_some() && compressed.is_chunked;
        Ok(head)
    };
    asked().map_or_else(|error| Response::Failed(error.to_string()), Response::Head)
}

/// Asks the server, with this field. Returns the content coding, too.
fn ask(at: SocketAddr, target: &str, field: &str) -> io::Result<(Head, Option<String>)> {
    let stream = TcpStream::connect_timeout(&at, SERVER_TIMEOUT)?;
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: {at}\r\n{field}Connection: close\r\n\r\n");
    io::Write::write_all(&mut &stream, request.as_bytes())?;
    let deadline = Instant::now() + SERVER_TIMEOUT;
    let mut bytes = Vec::new();
    loop {
        if let Some(head) = parse_response(&bytes, Method::Get).map_err(io::Error::other)? {
            let version = ObjectVersion::of(&head).map_err(io::Error::other)?;
            let found = Head {
                status: head.status,
                complete_len: version.complete_len,
                etag: version.etag,
                last_modified: version.last_modified,
                is_chunked: head.body == BodyLength::Chunked,
                is_compressed_on_the_fly: false,
            };
            return Ok((found, version.content_encoding));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || bytes.len() > HEAD_LEN_MAX {
            return Err(io::Error::other("no response head"));
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; HEAD_LEN_MAX];
        match io::Read::read(&mut &stream, &mut part)? {
            0 => return Err(io::Error::other("the server closes the connection")),
            len => bytes.extend_from_slice(&part[..len]),
        }
    }
}
