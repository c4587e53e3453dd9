//! Questions of an operator to a running member.

use std::{io, path::Path};

use operator_socket::{Question, ask as ask_socket};

use crate::{
    error::{MemberError, SystemContext},
    remains,
    status::Status,
};

const DOING: &str = "ask the member";

/// Asks a running member for its state; with every connection if `list` is true.
///
/// # Errors
/// No member of this name runs, or the member does not answer.
pub fn ask(run_dir: &Path, name: &str, list: bool) -> Result<Status, MemberError> {
    let mut status = None;
    ask_for(run_dir, name, Question::Status { list }, |line| {
        status = serde_json::from_str(line).ok();
        false
    })?;
    status
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
        .doing(DOING)
}

/// Asks a running member for its latest events, as lines of JSON; each line goes to `each` until `each` returns
/// `false`.
///
/// # Errors
/// As [`ask`].
pub fn ask_events(
    run_dir: &Path,
    name: &str,
    follow: bool,
    each: impl FnMut(&str) -> bool,
) -> Result<(), MemberError> {
    ask_for(run_dir, name, Question::Events { follow }, each)
}

fn ask_for(
    run_dir: &Path,
    name: &str,
    question: Question,
    each: impl FnMut(&str) -> bool,
) -> Result<(), MemberError> {
    let asked = ask_socket(&remains::socket(run_dir, name), question, each);
    asked.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            MemberError::NotRunning(name.to_owned())
        }
        _ => MemberError::System {
            what: DOING,
            source: error,
        },
    })
}
