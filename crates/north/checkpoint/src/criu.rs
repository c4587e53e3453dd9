//! CRIU: the program that makes images of processes, and restores processes from images.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The oldest version that was tested.
const OLDEST_VERSION: (u32, u32) = (4, 0);

/// A usable CRIU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Criu {
    path: PathBuf,
}

/// CRIU is unusable, or failed.
#[derive(Debug, thiserror::Error)]
pub enum CriuError {
    /// The program does not exist.
    #[error(
        "checkpoints need CRIU, and the program {0:?} does not exist: install CRIU, build CRIU (make criu), or give the path (--criu PATH)"
    )]
    NotFound(PathBuf),
    /// The version is too old.
    #[error(
        "checkpoints need CRIU {}.{} or newer, and {path:?} is {found}: build CRIU (make criu) and give the path (--criu PATH)",
        OLDEST_VERSION.0, OLDEST_VERSION.1
    )]
    TooOld {
        /// Path of the program.
        path: PathBuf,
        /// The version that CRIU printed.
        found: String,
    },
    /// `criu check` failed: the kernel or the privileges are not sufficient.
    #[error("CRIU cannot work here: {0}; `criu check` tells more")]
    NotUsable(String),
    /// The program could not be run.
    #[error("CRIU could not be run: {0}")]
    Io(#[from] io::Error),
    /// A run of CRIU failed.
    #[error("CRIU could not {what}: {why}")]
    Failed {
        /// The task.
        what: &'static str,
        /// The first errors of the log.
        why: String,
    },
}

/// Options for dump and restore. No terminal is involved. Cgroups are the supervisor's choice. A socket that is
/// connected to a named socket, such as the socket of the system log, is connected again.
const COMMON_OPTIONS: [&str; 7] = [
    "-v2",
    "--shell-job",
    "--ext-unix-sk",
    "--file-locks",
    "--manage-cgroups=ignore",
    "--network-lock=skip",
    "--ghost-limit=64M",
];

impl Criu {
    /// Finds CRIU by path or name, and checks version and usability.
    ///
    /// # Errors
    /// CRIU is missing, too old, or unusable on this host.
    pub fn find(path: &Path) -> Result<Self, CriuError> {
        let found = supervise::resolve(path.as_os_str());
        let path = found.map_err(|_| CriuError::NotFound(path.to_owned()))?;
        let said = Command::new(&path).arg("--version").output()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        if version(&said).is_none_or(|version| version < OLDEST_VERSION) {
            let found = said.lines().next().unwrap_or("of no version").to_owned();
            return Err(CriuError::TooOld { path, found });
        }
        let checked = Command::new(&path).arg("check").output()?;
        if !checked.status.success() {
            let said = [checked.stdout, checked.stderr].concat();
            return Err(CriuError::NotUsable(errors(&String::from_utf8_lossy(
                &said,
            ))));
        }
        Ok(Self { path })
    }

    /// The CRIU of an earlier [`Self::find`].
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Path of the executable.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an image of the process. The process ends.
    pub(crate) fn dump(&self, pid: u32, into: &Path) -> Result<(), CriuError> {
        let pid = pid.to_string();
        self.run("make an image", "dump", into, &["--tree", &pid])
    }

    /// Restores the process of an image, as a child of the first process of the namespace.
    pub(crate) fn restore(&self, from: &Path) -> Result<(), CriuError> {
        let what = "make a process of an image";
        self.run(what, "restore", from, &["--restore-detached"])
    }

    fn run(
        &self,
        what: &'static str,
        verb: &str,
        image: &Path,
        arguments: &[&str],
    ) -> Result<(), CriuError> {
        let file = format!("{verb}.log");
        let status = Command::new(&self.path)
            .arg(verb)
            .arg("--images-dir")
            .arg(image)
            .arg("--work-dir")
            .arg(image)
            .arg("--log-file")
            .arg(&file)
            .args(COMMON_OPTIONS)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if status.success() {
            return Ok(());
        }
        let said = fs::read(image.join(file)).unwrap_or_default();
        let why = errors(&String::from_utf8_lossy(&said));
        Err(CriuError::Failed { what, why })
    }
}

/// Parses the version from a line such as `Version: 4.2.1`.
fn version(said: &str) -> Option<(u32, u32)> {
    let number = said
        .lines()
        .find_map(|line| line.strip_prefix("Version:"))?;
    let mut parts = number.trim().split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// The first errors of a log. Later errors are consequences.
fn errors(log: &str) -> String {
    const MAX_ERRORS: usize = 2;
    let lines = log.lines().filter(|line| line.contains("Error"));
    let first: Vec<&str> = lines.take(MAX_ERRORS).map(|line| line.trim()).collect();
    if first.is_empty() {
        return "it did not say why".to_owned();
    }
    first.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criu_versions_are_parsed() {
        assert_eq!(version("Version: 3.17.1\n"), Some((3, 17)));
        assert_eq!(version("Version: 4.2.1\nGitID: x\n"), Some((4, 2)));
        assert_eq!(version("Version: 4.2-1\n"), None);
        assert_eq!(version(""), None);
        assert!(Some((3, 17)) < Some(OLDEST_VERSION));
    }

    #[test]
    fn missing_or_foreign_criu_is_reported() {
        let missing = Criu::find(Path::new("/nowhere/criu")).expect_err("missing");
        assert!(missing.to_string().contains("make criu"), "{missing}");
        let other = Criu::find(Path::new("true")).expect_err("no criu");
        assert!(matches!(other, CriuError::TooOld { .. }), "{other}");
    }

    #[test]
    fn first_errors_are_reported() {
        let log = "(0.1) fine\n(0.2) Error (a.c:1): this\n(0.3) Error (b.c:2): that\n(0.4) Error (c.c:3): so\n";
        assert_eq!(
            errors(log),
            "(0.2) Error (a.c:1): this; (0.3) Error (b.c:2): that"
        );
        assert_eq!(errors("nothing"), "it did not say why");
    }
}
