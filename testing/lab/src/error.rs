//! Errors of a lab, with the command that failed.

use std::io;
use std::process::ExitStatus;

use rustix::process::Pid;

use crate::pcap::PcapError;

/// Why a lab could not do an operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lab makes namespaces and raw sockets, which takes root.
    #[error("a lab needs root, to make network namespaces")]
    NotRoot,

    /// A program that the lab uses (`ip`, `ethtool`) ended with an error.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The program with arguments, and with the standard input if any.
        command: String,
        /// The exit status.
        status: ExitStatus,
        /// The text on standard error.
        stderr: String,
    },

    /// A system call, or the start of a program, failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// The attempted action.
        action: String,
        /// The system's error.
        source: io::Error,
    },

    /// An argument out of range, a name in use, an unknown interface.
    #[error("{0}")]
    Invalid(String),

    /// The host is powered off, or the lab has been removed.
    #[error("host {host} is off")]
    Off {
        /// The host's name.
        host: String,
    },

    /// Processes were still alive some seconds after SIGKILL.
    #[error("still alive in {namespace} after SIGKILL: {pids:?}")]
    Survivors {
        /// The namespace's name.
        namespace: String,
        /// The processes.
        pids: Vec<Pid>,
    },

    /// `tcpdump` ended before listening.
    #[error("tcpdump does not listen on {interface}: {stderr}")]
    CaptureNotListening {
        /// The interface to listen on.
        interface: String,
        /// The text of tcpdump on standard error.
        stderr: String,
    },

    /// The frame that marks the end of a capture did not arrive in the file, so frames before may be missing too.
    #[error("the end of the capture on {interface} did not reach its file")]
    CaptureUnfinished {
        /// The interface listened on.
        interface: String,
    },

    /// The file that tcpdump wrote cannot be read.
    #[error("cannot read the capture: {0}")]
    Pcap(#[from] PcapError),
}

/// Turns a system error into an [`Error::Io`] that names the attempted action.
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
