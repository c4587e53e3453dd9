//! Exit codes, all in one place.
//!
//! 0 done; 1 the masked thing failed; 2 usage; 3 not supported here; 4 internal. A verb that wraps
//! a command would pass its status on; `serve` outlives its command, so it does not.

use std::process::ExitCode;

use serve::ServeError;

/// How an invocation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The server, or what was asked about, failed.
    Failed,
    Usage,
    Unsupported,
    Internal,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Done => 0,
            Outcome::Failed => 1,
            Outcome::Usage => 2,
            Outcome::Unsupported => 3,
            Outcome::Internal => 4,
        })
    }
}

/// Say what went wrong, and whose fault it was.
pub(crate) fn failed(error: &ServeError) -> Outcome {
    eprintln!("outlive: {error}");
    match error.fault() {
        serve::Fault::User => Outcome::Usage,
        serve::Fault::Host => Outcome::Unsupported,
        serve::Fault::Server => Outcome::Failed,
        serve::Fault::Ours => Outcome::Internal,
    }
}
