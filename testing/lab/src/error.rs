//! Errors of a lab, with the command that failed.

use std::io;
use std::process::ExitStatus;

use rustix::process::Pid;

use crate::pcap::PcapError;

/// Why a lab could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lab makes namespaces and raw sockets, which takes root.
    #[error("a lab needs root, to make network namespaces")]
    NotRoot,

    /// A program that the lab uses (`ip`, `ethtool`) ended with an error.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The program with its arguments, and its standard input if it got any.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote to standard error.
        stderr: String,
    },

    /// A system call, or the start of a program, failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done.
        action: String,
        /// What the system said.
        source: io::Error,
    },

    /// An argument outside its range, a name that is taken, an unknown interface.
    #[error("{0}")]
    Invalid(String),

    /// The host is powered off, or its lab has been removed.
    #[error("host {host} is off")]
    Off {
        /// The host's name.
        host: String,
    },

    /// Processes were still alive some seconds after their SIGKILL.
    #[error("still alive in {namespace} after SIGKILL: {pids:?}")]
    Survivors {
        /// The namespace's name.
        namespace: String,
        /// The processes.
        pids: Vec<Pid>,
    },

    /// `tcpdump` ended before it listened.
    #[error("tcpdump does not listen on {interface}: {stderr}")]
    CaptureNotListening {
        /// The interface to listen on.
        interface: String,
        /// What tcpdump wrote to standard error.
        stderr: String,
    },

    /// The frame that marks the end of a capture did not arrive in its file, so
    /// frames before it may be missing too.
    #[error("the end of the capture on {interface} did not reach its file")]
    CaptureUnfinished {
        /// The interface listened on.
        interface: String,
    },

    /// The file that tcpdump wrote cannot be read.
    #[error("cannot read the capture: {0}")]
    Pcap(#[from] PcapError),
}

/// Turns a system error into an [`Error::Io`] that says what was being done.
pub(crate) trait Doing<T> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| Error::Io {
            action: action(),
            source: error.into(),
        })
    }
}
