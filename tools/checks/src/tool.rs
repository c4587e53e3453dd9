//! Runs the programs that a step consists of.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Where the programs are, and the directory that cargo builds in.
pub(crate) struct Tools {
    cargo: OsString,
    pub(crate) target: PathBuf,
}

impl Tools {
    /// From the environment: `CARGO`, `CARGO_TARGET_DIR`. The working directory is the checkout.
    ///
    /// # Errors
    /// If this is no checkout.
    pub(crate) fn find() -> Result<Self> {
        let here = std::env::current_dir().context("no working directory")?;
        ensure!(
            here.join("Cargo.lock").is_file(),
            "{} is no checkout of outlive: there is no Cargo.lock",
            here.display()
        );
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        Ok(Self {
            cargo: std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            target: here.join(target),
        })
    }

    /// The command `cargo`; the environment names the binaries that the tests run.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.cargo);
        command.args(arguments);
        command.env("OUTLIVE_BIN", self.outlive());
        command.env("OUTLIVE_NEXT_BIN", self.next_version());
        command
    }

    /// The program under test.
    pub(crate) fn outlive(&self) -> PathBuf {
        self.target.join("debug/outlive")
    }

    /// The same program with the next version of the formats.
    pub(crate) fn next_version(&self) -> PathBuf {
        self.target.join("next-version/outlive")
    }

    /// [`Tools::cargo`] without one capability.
    pub(crate) fn cargo_without(&self, capability: &str, arguments: &[&str]) -> Command {
        let cargo = self.cargo(arguments);
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set=-{capability}"));
        command
            .arg("--")
            .arg(cargo.get_program())
            .args(cargo.get_args());
        let variables = cargo.get_envs();
        command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// A script of `packaging/`.
    pub(crate) fn script(&self, name: &str) -> Command {
        let mut command = Command::new(Path::new("packaging").join(name));
        command.env("CARGO_TARGET_DIR", &self.target);
        command
    }
}

/// Runs a command to the end, and returns whether the command succeeded.
///
/// # Errors
/// If the command cannot be started.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let name = command.get_program().to_os_string();
    let status = command.status();
    let status = status.with_context(|| format!("{} cannot be run", Path::new(&name).display()))?;
    Ok(status.success())
}
