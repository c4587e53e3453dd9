//! A lab that outlives the command that made the lab.
//!
//! A background process, the holder, keeps the [`Lab`](crate::Lab) and executes requests from a unix socket: a JSON
//! [`Request`] in a line, with an [`Answer`] or a [`Refusal`] back. Commands on a host do not go through the holder: a
//! command enters the host's namespace by itself ([`exec`]) and stays when the starting command is gone.
//!
//! A lab of the name `x` has the directory `x` in the directory of all labs, with the holder's socket, the holder's
//! messages (`log`), and in `hosts` a directory for each host, for the services of `outlive` there. All of this goes
//! with the lab, and also when the holder is killed (the lab's janitor does this).

mod holder;
mod message;
mod plan;

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use holder::hold;
pub use message::{
    Answer, Change, HostStatus, LinkStatus, Refusal, Request, Status, Target, WayStatus,
};
pub use plan::{Layout, Planned, plan};

use crate::Error;
use crate::error::Doing;
use crate::janitor::Janitor;
use crate::namespace::Namespace;

/// Where a lab of some name is.
#[derive(Clone, Debug)]
pub struct Place {
    name: String,
    directory: PathBuf,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// There is no lab of that name.
    #[error("no lab is called {0}: `outlive lab up` makes a lab")]
    NoLab(String),
    /// The lab exists, but the holder has died. [`Place::clear`] removes the remains.
    #[error(
        "the process that held lab {0} has died; `outlive lab down` removes the rest of the lab"
    )]
    Dead(String),
    /// The holder refused the request, for this reason.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The holder went away in the middle, or does not speak our language.
    #[error("cannot talk to the process that holds the lab: {0}")]
    Io(#[from] io::Error),
}

impl Place {
    /// The place of lab `name` in the directory of all labs.
    ///
    /// # Errors
    /// [`Error::Invalid`] when that cannot be a name: letters, digits, `-` and `_` can.
    pub fn new(labs: &Path, name: &str) -> Result<Self, Error> {
        crate::lab::check_name(name)?;
        Ok(Self {
            name: name.to_owned(),
            directory: labs.join(name),
        })
    }

    /// The places of all labs, also of labs whose holder has died.
    #[must_use]
    pub fn all(labs: &Path) -> Vec<Self> {
        let entries = fs::read_dir(labs).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut all: Vec<_> = names
            .filter_map(|name| Self::new(labs, &name).ok())
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The lab's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lab's files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file with the holder's messages.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// The file with the prefix of the lab's namespace names.
    fn prefix(&self) -> PathBuf {
        self.directory.join("prefix")
    }

    /// Takes the place: no other process can until the lab is gone. Only the owner may read the directory.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is a lab of that name; [`Error::Io`].
    pub fn take(&self) -> Result<(), Error> {
        let path = self.directory.display();
        if let Some(labs) = self.directory.parent() {
            fs::create_dir_all(labs).doing(|| format!("make {}", labs.display()))?;
        }
        match fs::DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(Error::Invalid(format!(
                    "there is a lab {} already, in {path}: take it down first, or choose \
                     another --name",
                    self.name
                )))
            }
            made => made.doing(|| format!("make {path}")),
        }
    }

    /// Asks the holder.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask(&self, request: &Request) -> Result<Answer, AskError> {
        let mut stream =
            UnixStream::connect(self.socket()).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => AskError::Io(error),
                _ if self.directory.exists() => AskError::Dead(self.name.clone()),
                _ => AskError::NoLab(self.name.clone()),
            })?;
        let mut line = serde_json::to_string(request).map_err(io::Error::from)?;
        line.push('\n');
        stream.write_all(line.as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        let answer: Result<Answer, Refusal> =
            serde_json::from_str(&answer).map_err(io::Error::from)?;
        Ok(answer?)
    }

    /// Removes the remains of a dead holder, if the janitor has not: hosts, processes, files.
    ///
    /// # Errors
    /// [`Error::Io`] when the janitor cannot be started; [`Error::Invalid`] when it did not
    /// succeed.
    pub fn clear(&self, outlive: &Path) -> Result<(), Error> {
        // Without a prefix, the holder died before making any namespace.
        if let Ok(prefix) = fs::read_to_string(self.prefix()) {
            drop(Janitor::start(&prefix, &self.directory, Some(outlive))?);
        } else {
            let _ = fs::remove_dir_all(&self.directory);
        }
        if self.directory.exists() {
            let path = self.directory.display();
            return Err(Error::Invalid(format!("{path} could not be removed")));
        }
        Ok(())
    }
}

/// Why a command did not start on a host.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The host cannot be entered: the host is off, or the process is not root.
    #[error(transparent)]
    Namespace(Error),
    /// The command cannot be run, or there is none of that name.
    #[error(transparent)]
    Command(io::Error),
}

/// Becomes `command`, in the namespace of that name. Returns only if that fails.
#[must_use]
pub fn exec(namespace: &str, command: &mut Command) -> ExecError {
    let entered = Namespace::open(namespace).and_then(|found| {
        found
            .join()
            .doing(|| format!("enter namespace {namespace}"))
    });
    match entered {
        Ok(()) => ExecError::Command(command.exec()),
        Err(error) => ExecError::Namespace(error),
    }
}
