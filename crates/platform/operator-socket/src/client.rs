//! The side of the operator.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde::de::DeserializeOwned;

use crate::{Done, Question};

/// Silence of the program after which a question fails.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks a running program; each line of the answer goes to `each` until `each` returns `false`.
///
/// # Errors
/// No program listens at `socket`; [`io::ErrorKind::WouldBlock`]: a program listens there, and is silent for
/// [`REPLY_TIMEOUT`].
pub fn ask(socket: &Path, question: Question, each: impl FnMut(&str) -> bool) -> io::Result<()> {
    ask_within(socket, question, REPLY_TIMEOUT, each)
}

/// The status without connections, after at most this silence.
///
/// # Errors
/// As [`ask`]; or the answer is no status.
pub fn status_within<S: DeserializeOwned>(socket: &Path, patience: Duration) -> io::Result<S> {
    let mut status = None;
    let question = Question::Status { list: false };
    ask_within(socket, question, patience, |line| {
        status = serde_json::from_str(line).ok().flatten();
        false
    })?;
    status.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Asks a running program for an effect.
///
/// # Errors
/// As [`ask`]; or the program does not know the request.
pub fn request(socket: &Path, request: &str, name: &str) -> io::Result<Done> {
    let mut done = None;
    let question = Question::Request {
        request: request.to_owned(),
        name: name.to_owned(),
    };
    ask(socket, question, |line| {
        done = serde_json::from_str(line).ok();
        false
    })?;
    done.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn ask_within(
    socket: &Path,
    question: Question,
    patience: Duration,
    mut each: impl FnMut(&str) -> bool,
) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    let mut line = serde_json::to_string(&question)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    line.clear();
    let follows = question == Question::Events { follow: true };
    let mut answer = BufReader::new(stream);
    loop {
        match answer.read_line(&mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                if !each(line.trim_end_matches('\n')) {
                    return Ok(());
                }
                line.clear();
            }
            // A part of a line stays in `line`.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && follows => {}
            Err(error) => return Err(error),
        }
    }
}
