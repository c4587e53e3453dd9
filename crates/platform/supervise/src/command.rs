//! The command of a server, and the start of the server.
//!
//! The server is not modified and keeps its output: environment, standard streams and limits are inherited. Three
//! things differ from a plain start, all set up in the child before exec. The server is in the service's cgroup from
//! the first instruction. The server leads a new session: Ctrl-C on the terminal reaches only the supervisor, and the
//! end of the terminal does not reach the server. No signal is blocked.

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::birth::{Announce, Birth};
use crate::cgroup::Cgroup;
use crate::server::Server;

/// Where execvp(3) looks when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A failed start of a server, with advice.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// There is no program in the command.
    #[error("no command to run; give it after `--`")]
    Empty,
    /// A bare name is in no directory of PATH.
    #[error(
        "no directory of PATH ({path}) has {program:?}: install the program, or give the full path",
        path = path.display()
    )]
    NotFound {
        /// The name as given.
        program: OsString,
        /// The PATH that was searched.
        path: OsString,
    },
    /// A path leads nowhere.
    #[error("there is no file {path}; check the path for typing errors")]
    NoSuchFile {
        /// The path as given.
        path: PathBuf,
    },
    /// The file may not be executed.
    #[error("{path} is not executable; run `chmod +x {path}` if this is a program")]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// The path leads to a directory.
    #[error("{path} is a directory; give the path of a program")]
    IsDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The working directory is none.
    #[error("the working directory {path} does not exist or is no directory; create the directory")]
    WorkingDirectory {
        /// The path as given.
        path: PathBuf,
    },
    /// The program exists, but its interpreter does not.
    #[error(
        "{path} cannot begin: its interpreter (the one after `#!`, or the ELF loader) \
         does not exist; install it"
    )]
    NoInterpreter {
        /// The program.
        path: PathBuf,
    },
    /// The cgroup of the service takes no processes.
    #[error("cannot start a process in {path}: {source}; was the cgroup removed?")]
    Cgroup {
        /// The cgroup's directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Starting failed for another reason.
    #[error("cannot start {path}: {source}")]
    Start {
        /// The program.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// A command: a program, the arguments and the working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    argv: Vec<OsString>,
    working_directory: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    has_fixed_addresses: bool,
    namespaces: i32,
}

/// Namespaces of a sandbox: [`Command::isolated`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// PID and mount namespaces.
    Open,
    /// PID, mount, network and IPC namespaces.
    Closed,
}

impl Command {
    /// A command from arguments; the first argument names the program.
    #[must_use]
    pub fn new<A: Into<OsString>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            working_directory: None,
            variables: Vec::new(),
            has_fixed_addresses: false,
            namespaces: 0,
        }
    }

    /// Starts the command as the first process of new namespaces. All processes there end with the first process.
    #[must_use]
    pub fn isolated(mut self, isolation: Isolation) -> Self {
        self.namespaces = libc::CLONE_NEWPID | libc::CLONE_NEWNS;
        if isolation == Isolation::Closed {
            self.namespaces |= libc::CLONE_NEWNET | libc::CLONE_NEWIPC;
        }
        self
    }

    /// The memory of the program is at the same addresses in each run (`ADDR_NO_RANDOMIZE`, personality(2)), if the
    /// system allows the setting.
    #[must_use]
    pub fn fixed_addresses(mut self) -> Self {
        self.has_fixed_addresses = true;
        self
    }

    /// Adds a variable to the environment of the program.
    #[must_use]
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Runs the program in `path` instead of the caller's working directory. A relative path of the program still
    /// refers to the caller's working directory.
    #[must_use]
    pub fn working_directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.working_directory = Some(path.into());
        self
    }

    /// Starts the program in `cgroup`. Returns when the program has begun to run.
    ///
    /// # Errors
    ///
    /// When there is no such program (see [`resolve`]), or the program cannot be run. In this case no process is left.
    pub fn start(&self, cgroup: &Cgroup) -> Result<Server, SpawnError> {
        self.start_with(cgroup, &[], &mut |_| Ok(()))
    }

    /// As [`Command::start`]; the program also has these descriptors under the given numbers. `announce` gets the
    /// process number before the program begins.
    ///
    /// # Errors
    ///
    /// As [`Command::start`]; also when descriptor numbers exceed the limit, and the errors of `announce`.
    pub fn start_with(
        &self,
        cgroup: &Cgroup,
        inherited: &[(BorrowedFd<'_>, RawFd)],
        announce: Announce<'_>,
    ) -> Result<Server, SpawnError> {
        let home = cgroup.new_life().map_err(|source| SpawnError::Cgroup {
            path: cgroup.path().to_owned(),
            source,
        })?;
        self.start_at(Some(&home), inherited, announce)
    }

    /// The same in our own cgroup.
    ///
    /// # Errors
    ///
    /// As [`Command::start_with`].
    pub fn start_beside(
        &self,
        inherited: &[(BorrowedFd<'_>, RawFd)],
    ) -> Result<Server, SpawnError> {
        self.start_at(None, inherited, &mut |_| Ok(()))
    }

    fn start_at(
        &self,
        home: Option<&File>,
        inherited: &[(BorrowedFd<'_>, RawFd)],
        announce: Announce<'_>,
    ) -> Result<Server, SpawnError> {
        let (argv0, arguments) = self.argv.split_first().ok_or(SpawnError::Empty)?;
        let program = resolve(argv0)?;
        let directory = self.working_directory.as_deref();
        if let Some(path) = directory.filter(|path| !path.is_dir()) {
            let path = path.to_owned();
            return Err(SpawnError::WorkingDirectory { path });
        }
        let argv = [argv0]
            .into_iter()
            .chain(arguments)
            .map(OsString::as_os_str);
        let born = Birth::new(&program, argv, directory, &self.variables)
            .map(|birth| birth.with_fixed_addresses(self.has_fixed_addresses))
            .map(|birth| birth.with_namespaces(self.namespaces))
            .and_then(|birth| birth.start(home, inherited, announce));
        match born {
            Ok(born) => Ok(Server::watch(born)),
            // The program itself was found a moment ago.
            Err(e) if e.kind() == io::ErrorKind::NotFound && program.exists() => {
                Err(SpawnError::NoInterpreter { path: program })
            }
            Err(source) => Err(SpawnError::Start {
                path: program,
                source,
            }),
        }
    }
}

/// Finds the program that execvp(3) would run for `argv0`, as an absolute path. A name with a slash is a path; another
/// name is looked up in PATH.
///
/// # Errors
///
/// [`SpawnError::NotFound`], [`SpawnError::NoSuchFile`], [`SpawnError::NotExecutable`],
/// [`SpawnError::IsDirectory`]; [`SpawnError::Empty`] for an empty name.
pub fn resolve(argv0: &OsStr) -> Result<PathBuf, SpawnError> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    resolve_in(argv0, &path)
}

fn resolve_in(argv0: &OsStr, path: &OsStr) -> Result<PathBuf, SpawnError> {
    if argv0.is_empty() {
        return Err(SpawnError::Empty);
    }
    if argv0.as_bytes().contains(&b'/') {
        return check(Path::new(argv0));
    }
    // Like execvp, the search continues after a file that cannot be run. The error is returned only if no later file
    // can be run.
    let mut refused = None;
    for directory in std::env::split_paths(path) {
        // An empty element of PATH means the working directory.
        let candidate = Path::new(".").join(directory).join(argv0);
        match check(&candidate) {
            Err(SpawnError::NoSuchFile { .. }) => {}
            Err(error) => refused = refused.or(Some(error)),
            found => return found,
        }
    }
    Err(refused.unwrap_or_else(|| SpawnError::NotFound {
        program: argv0.to_owned(),
        path: path.to_owned(),
    }))
}

/// Whether `path` is a program; returns the absolute name of a program.
fn check(path: &Path) -> Result<PathBuf, SpawnError> {
    let absolute = std::path::absolute(path);
    let (Ok(metadata), Ok(absolute)) = (path.metadata(), absolute) else {
        let path = path.to_owned();
        return Err(SpawnError::NoSuchFile { path });
    };
    if metadata.is_dir() {
        return Err(SpawnError::IsDirectory { path: absolute });
    }
    if !metadata.is_file() || access(&absolute, Access::EXEC_OK).is_err() {
        return Err(SpawnError::NotExecutable { path: absolute });
    }
    Ok(absolute)
}
