//! The system's tools, with an error that contains their output.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::Error;
use crate::error::Doing;

/// Runs a command to the end.
pub(crate) fn run(command: &mut Command) -> Result<(), Error> {
    run_with_input(command, "")
}

/// Runs a command to the end with `input` as the standard input.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Result<(), Error> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .doing(|| format!("start `{}`", shown(command, "")))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that stops reading has failed and says why below.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .doing(|| format!("wait for `{}`", shown(command, "")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Command {
        command: shown(command, input),
        status: output.status,
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// The command as typed in a shell, with the input as a here-string.
fn shown(command: &Command, input: &str) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        let _ = write!(text, " {}", argument.to_string_lossy());
    }
    if !input.is_empty() {
        let _ = write!(text, " <<< \"{}\"", input.trim());
    }
    text
}
