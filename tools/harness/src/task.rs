//! The common parts of every task: an end on signals, an exit status, and the programs to run.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A flag that a signal raises; long work checks the flag.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

/// A signal asked us to stop.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupt {
    /// For as long as we run: some send a signal twice.
    pub fn on_signals() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// Whether a signal came.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Interrupted`], from the first signal on.
    pub fn check(&self) -> Result<()> {
        if self.is_raised() {
            return Err(Interrupted.into());
        }
        Ok(())
    }
}

/// The exit status of a task. An error is printed. `result` tells whether the task passed.
pub fn ended(name: &str, result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("{name}: interrupted; everything is removed");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// # Errors
/// We are not root.
pub fn need_root() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "it needs root: it makes network namespaces and loads BPF programs"
    );
    Ok(())
}

/// The given program, or the program of that name beside this program.
pub fn program(given: Option<PathBuf>, name: &str) -> Result<PathBuf> {
    let path = match given {
        Some(path) => path,
        None => std::env::current_exe()
            .context("cannot find out where this program is")?
            .with_file_name(name),
    };
    path.canonicalize()
        .with_context(|| format!("no {}: build it with `make build`", path.display()))
}

/// The directory of downloads: `given`, or the directory `name` in the user's cache.
pub fn cache(given: Option<PathBuf>, name: &str) -> Result<PathBuf> {
    let directory = given.or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        Some(cache.or_else(home)?.join("outlive").join(name))
    });
    let directory = directory.context("there is no home for a cache: set XDG_CACHE_HOME")?;
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory.canonicalize()?)
}

/// The programs for the labs of bench and paper.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The `outlive` to run.
    pub outlive: PathBuf,
    /// Servers of our own.
    pub reference_server: PathBuf,
}

impl Programs {
    /// With the given `outlive`, or the `outlive` beside this program.
    pub fn find(outlive: Option<PathBuf>) -> Result<Self> {
        Ok(Self {
            outlive: program(outlive, "outlive")?,
            reference_server: program(None, "reference-server")?,
        })
    }

    /// The CRIU that `make criu` has built, if a build was needed; otherwise the system's.
    pub fn criu(&self) -> PathBuf {
        self.built("criu/criu").unwrap_or_else(|| "criu".into())
    }

    /// The watchexec that `make rivals` has built; else the system's.
    pub fn watchexec(&self) -> PathBuf {
        let built = self.built("rivals/bin/watchexec");
        built.unwrap_or_else(|| "watchexec".into())
    }

    fn built(&self, name: &str) -> Option<PathBuf> {
        let built = self.reference_server.ancestors().nth(2)?.join(name);
        built.exists().then_some(built)
    }
}
