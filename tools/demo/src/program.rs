//! An unmodified program on the clients' host.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use lab::Host;

use crate::clients::Scene;
use crate::raised;

/// A running program, which is killed when this value is dropped.
pub(crate) struct Program {
    name: String,
    child: Child,
}

impl Program {
    /// Starts the program. The demo reads the output, and the end brings standard error.
    pub(crate) fn start(scene: &Scene<'_>, name: &str, arguments: &[&str]) -> Result<Self> {
        Self::on(&scene.stage.client, scene.given_up, name, arguments)
    }

    /// The same on any host.
    pub(crate) fn on(
        host: &Host,
        given_up: &AtomicBool,
        name: &str,
        arguments: &[&str],
    ) -> Result<Self> {
        let mut command = host.command(name);
        command.args(arguments).stdout(Stdio::piped());
        Self::spawn(given_up, name, &mut command)
    }

    /// Starts the program. The demo writes the input, and a file gets the output.
    pub(crate) fn with_input(
        scene: &Scene<'_>,
        name: &str,
        arguments: &[&str],
        output: &Path,
    ) -> Result<Self> {
        let mut command = scene.stage.client.command(name);
        command.args(arguments).stdin(Stdio::piped());
        command.stdout(std::fs::File::create(output)?);
        Self::spawn(scene.given_up, name, &mut command)
    }

    fn spawn(given_up: &AtomicBool, name: &str, command: &mut Command) -> Result<Self> {
        let child = command
            .process_group(0)
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let name = name.to_owned();
        let this = Self { name, child };
        // Asked after the start: all programs are killed after the flag has been raised.
        ensure!(!raised(given_up), "given up");
        Ok(this)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The output of the program. Can be taken once.
    pub(crate) fn output(&mut self) -> Result<ChildStdout> {
        let output = self.child.stdout.take();
        output.with_context(|| format!("{} has no output", self.name))
    }

    /// The input of the program, until this value is dropped. Can be taken once.
    pub(crate) fn input(&mut self) -> Result<ChildStdin> {
        let input = self.child.stdin.take();
        input.with_context(|| format!("{} has no input", self.name))
    }

    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills the program. Earlier output stays readable.
    pub(crate) fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// Waits for a successful end, and returns standard error.
    pub(crate) fn finish(mut self) -> Result<String> {
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut said)?;
        }
        let status = self.child.wait()?;
        let (name, why) = (&self.name, said.trim());
        ensure!(status.success(), "{name} failed ({status}): {why}");
        Ok(said)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
