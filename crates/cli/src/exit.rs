//! Exit codes, all in a single place. The codes are those of `sysexits.h`: a program that restarts `outlive` learns
//! whether a restart helps.
//!
//! | | | again? |
//! |---|---|---|
//! | 0 | done | |
//! | 1 | the server, or the subject of the question, failed | yes |
//! | 64 | the command line is wrong | no |
//! | 69 | a resource is missing: an address, a device, a logger | later |
//! | 70 | an internal error | yes |
//! | 71 | this host or kernel cannot do it | no |
//! | 75 | another program is in the way: a port in use, another `serve` | later |
//! | 77 | no permission: privileges, a key that a logger does not know | no |
//! | 78 | the configuration is wrong, or impossible | no |
//!
//! The units in `packaging/systemd` restart on 1, 69, 70 and 75. A verb that wraps a command would pass on the
//! command's status; `serve` outlives the command, and therefore has its own status.

use std::{process::ExitCode, thread, time::Duration};

use serve::{Fault, ServeError};

use crate::stdout;

/// How an invocation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The server, or the subject of the question, failed.
    Failed,
    Usage,
    /// A resource is missing, and may exist later.
    Unavailable,
    Internal,
    Unsupported,
    /// Something is in the way, and may not be later.
    NotNow,
    NoPermission,
    Config,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Done => 0,
            Outcome::Failed => 1,
            Outcome::Usage => 64,
            Outcome::Unavailable => 69,
            Outcome::Internal => 70,
            Outcome::Unsupported => 71,
            Outcome::NotNow => 75,
            Outcome::NoPermission => 77,
            Outcome::Config => 78,
        })
    }
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Config => Self::Config,
            Fault::Missing => Self::Unavailable,
            Fault::InTheWay => Self::NotNow,
            Fault::Permission => Self::NoPermission,
            Fault::Host => Self::Unsupported,
            Fault::Server => Self::Failed,
            Fault::Ours => Self::Internal,
        }
    }
}

/// Prints the error, and returns the outcome by the fault.
pub(crate) fn failed(error: &ServeError) -> Outcome {
    stdout::fail(error.code(), error);
    match error {
        // Mistakes in the command line.
        ServeError::NoService { .. } | ServeError::NeverGranted(_) => Outcome::Usage,
        _ => error.fault().into(),
    }
}

/// Delay before a unit with a temporary failure exits: a service manager restarts at once, and gives up soon.
const UNIT_RESTART_DELAY: Duration = Duration::from_secs(5);

impl Outcome {
    /// Outcome of options that exclude each other: the options may be in a file.
    pub(crate) const fn of_options(in_file: bool) -> Self {
        if in_file { Self::Config } else { Self::Usage }
    }

    /// Outcome of a service under a service manager, after a delay if only time can help.
    pub(crate) fn of_service(self) -> Self {
        let waits = matches!(self, Self::Unavailable | Self::NotNow);
        if waits && std::env::var_os("NOTIFY_SOCKET").is_some() {
            thread::sleep(UNIT_RESTART_DELAY);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_restart_after_temporary_failures() {
        let units = [
            include_str!("../../../packaging/systemd/outlive@.service"),
            include_str!("../../../packaging/systemd/outlive-logger.service"),
            include_str!("../../../packaging/systemd/outlive-receive.service"),
        ];
        for unit in units {
            let line = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key));
            let prevented = line("RestartPreventExitStatus=").expect("it is there");
            let prevented: Vec<ExitCode> = prevented
                .split_whitespace()
                .map(|code| ExitCode::from(code.parse::<u8>().expect("a number")))
                .collect();
            let all = [
                Outcome::Failed,
                Outcome::Usage,
                Outcome::Unavailable,
                Outcome::Internal,
                Outcome::Unsupported,
                Outcome::NotNow,
                Outcome::NoPermission,
                Outcome::Config,
            ];
            let useless = all.into_iter().filter(|outcome| {
                use Outcome::{Failed, Internal, NotNow, Unavailable};
                !matches!(outcome, Failed | Unavailable | Internal | NotNow)
            });
            let useless: Vec<ExitCode> = useless.map(ExitCode::from).collect();
            assert_eq!(format!("{prevented:?}"), format!("{useless:?}"));
        }
    }
}
