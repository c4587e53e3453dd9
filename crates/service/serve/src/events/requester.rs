//! The requester of an operation.

use std::{fmt, fs, process};

use rustix::{net::sockopt, process::getuid};
use serde::Serialize;

/// Requests that change the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// `outlive switchover`.
    Switchover,
    /// `outlive restart`.
    Restart,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switchover => "switchover",
            Self::Restart => "restart",
        })
    }
}

/// A process, and the owner of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Requester {
    /// User of the process.
    pub uid: u32,
    /// User at the login, before any change of the user (sudo, su); `None`: no login.
    pub login_uid: Option<u32>,
    /// The process.
    pub pid: u32,
    /// Command of the process.
    pub command: String,
}

/// `loginuid` of a process without a login.
const LOGIN_UID_UNSET: u32 = u32::MAX;
/// Longest command in an event, characters.
const COMMAND_CHARS_MAX: usize = 200;

impl Requester {
    /// The process at the other end of a control socket.
    pub(crate) fn at(socket: impl std::os::fd::AsFd) -> Option<Self> {
        let peer = sockopt::socket_peercred(socket).ok()?;
        let pid = peer.pid.as_raw_pid().unsigned_abs();
        Some(Self::of(peer.uid.as_raw(), pid))
    }

    /// This process.
    pub(crate) fn ourselves() -> Self {
        Self::of(getuid().as_raw(), process::id())
    }

    fn of(uid: u32, pid: u32) -> Self {
        let login = fs::read_to_string(format!("/proc/{pid}/loginuid")).unwrap_or_default();
        let login_uid = login
            .trim()
            .parse()
            .ok()
            .filter(|uid| *uid != LOGIN_UID_UNSET);
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = words.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        let command = words.join(" ");
        Self {
            uid,
            login_uid,
            pid,
            command: command.chars().take(COMMAND_CHARS_MAX).collect(),
        }
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uid {
            0 => write!(f, "root")?,
            uid => write!(f, "user {uid}")?,
        }
        if let Some(login) = self.login_uid.filter(|login| *login != self.uid) {
            write!(f, ", who logged in as user {login}")?;
        }
        write!(f, " (pid {}: {})", self.pid, self.command)
    }
}
