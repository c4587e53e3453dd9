//! `outlive serve` or `outlive standby` for one server on one host, and its output.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::Host;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::director::Message;
use crate::server::Server;
use crate::stage::Stage;
use harness::janitor::Janitor;

/// Longest time until the service has stopped.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// A line of output.
pub(crate) enum OutputLine {
    /// An event with its time in seconds since 1970.
    Event(f64, Value),
    /// Another line, for instance an error of the server.
    Text(String),
    /// The service and all its children have ended.
    Ended,
}

/// The source of a line: server, host and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) host: usize,
    pub(crate) server: Server,
    life: u32,
}

/// A service on a host. Dropping this value stops the service.
pub(crate) struct Service {
    host: Host,
    outlive: PathBuf,
    /// All arguments but the verb.
    arguments: Vec<OsString>,
    director: Sender<Message>,
    run_directory: TempDir,
    janitor: Option<Janitor>,
    source: Source,
    running: Option<Child>,
}

impl Service {
    /// A service for a server on that host, with these arguments, not running yet.
    pub(crate) fn prepare(
        stage: &Stage,
        host: usize,
        server: Server,
        outlive: &Path,
        flags: &[String],
        director: Sender<Message>,
    ) -> Result<Self> {
        let run_directory = tempfile::Builder::new().prefix("outlive-demo-").tempdir()?;
        // Before there is anything to clean.
        let janitor = Janitor::start(outlive, run_directory.path(), server.name())?;
        let mut arguments: Vec<OsString> =
            ["--json", "--name", server.name()].map(Into::into).into();
        for address in server.addresses(stage) {
            arguments.extend(["--address".into(), address.to_string().into()]);
        }
        arguments.extend(["--run-dir".into(), run_directory.path().into()]);
        arguments.extend(flags.iter().map(Into::into));
        arguments.extend(server.flags().iter().map(Into::into));
        arguments.push("--".into());
        arguments.extend(server.command(stage).into_iter().map(Into::into));
        Ok(Self {
            host: stage.servers[host].clone(),
            outlive: outlive.to_owned(),
            arguments,
            director,
            run_directory,
            janitor: Some(janitor),
            source: Source {
                host,
                server,
                life: 0,
            },
            running: None,
        })
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The source of the present output.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Starts the service with that verb.
    pub(crate) fn start(&mut self, verb: &str) -> Result<()> {
        let mut child = self
            .host
            .command(&self.outlive.to_string_lossy())
            .arg(verb)
            .args(&self.arguments)
            // A terminal's interrupt is for the demo, which stops the service in order.
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.outlive.display()))?;
        self.source.life += 1;
        if let Some(stderr) = child.stderr.take() {
            let (director, source) = (self.director.clone(), self.source);
            thread::spawn(move || pass_on(stderr, source, &director));
        }
        self.running = Some(child);
        Ok(())
    }

    /// Takes the power from the host, if the host has power: unread output is lost.
    pub(crate) fn power_off(&mut self) -> Result<()> {
        self.source.life += 1;
        self.host.power_off()?;
        if let Some(mut child) = self.running.take() {
            child.wait()?;
        }
        Ok(())
    }

    /// Gives power to the host, if missing. The hosts of a lab share kernel and files, so the call also removes the
    /// files that a reboot would have removed.
    pub(crate) fn power_on(&self) -> Result<()> {
        self.host.power_on()?;
        self.clean()
    }

    /// Stops service and server with SIGTERM, and cleans up.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(janitor) = self.janitor.take() else {
            return Ok(());
        };
        // Otherwise the host has no power, and the files of the service remain.
        let runs = self.running.is_some();
        let in_order = self.terminate()?;
        // The demo owns the directory; `outlive` has removed the content.
        let left = std::fs::read_dir(self.run_directory.path())?;
        let left: Vec<_> = left.flatten().map(|entry| entry.path()).collect();
        if !left.is_empty() {
            self.clean()?;
        }
        janitor.dismiss();
        let (server, host) = (self.source.server, self.host.name());
        ensure!(
            in_order,
            "`outlive` for {server} on {host} did not end on SIGTERM, and was killed"
        );
        ensure!(
            left.is_empty() || !runs,
            "`outlive` for {server} on {host} has left something in its run directory: {left:?}"
        );
        Ok(())
    }

    /// Whether the service has ended in time.
    fn terminate(&mut self) -> Result<bool> {
        let Some(mut child) = self.running.take() else {
            return Ok(true);
        };
        // The child has not been waited for, so the number is not reused.
        let pid = Pid::from_child(&child);
        let deadline = Instant::now() + STOP_LIMIT;
        if child.try_wait()?.is_none() {
            kill_process(pid, Signal::TERM)?;
        }
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(true)
    }

    fn clean(&self) -> Result<()> {
        let status = Command::new(&self.outlive)
            .args(["clean", "--kill", "--run-dir"])
            .arg(self.run_directory.path())
            .arg(self.source.server.name())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "`outlive clean` failed ({status})");
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("demo: {error:#}");
        }
    }
}

/// Reads until the service and all its children have closed standard error.
fn pass_on(stderr: ChildStderr, source: Source, director: &Sender<Message>) {
    for line in BufReader::new(stderr).split(b'\n') {
        let Ok(line) = line else { break };
        // After the demo no thread receives messages, but the service must be able to write.
        let _ = director.send(Message::Service(source, parse(&line)));
    }
    let _ = director.send(Message::Service(source, OutputLine::Ended));
}

fn parse(line: &[u8]) -> OutputLine {
    let event = serde_json::from_slice::<Value>(line).ok();
    let time = event
        .as_ref()
        .and_then(|event| event["time_unix_us"].as_f64().map(|us| us / 1e6));
    match (event, time) {
        (Some(event), Some(time)) => OutputLine::Event(time, event),
        _ => OutputLine::Text(String::from_utf8_lossy(line).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_lines_have_time_others_are_text() {
        let OutputLine::Event(time, event) = parse(br#"{"time_unix_us":2500000,"event":"died"}"#)
        else {
            panic!("not an event");
        };
        assert!((time - 2.5).abs() < 1e-9);
        assert_eq!(event["event"], "died");
        for line in [
            "nginx: [emerg] x",
            "{}",
            "7",
            "{\"time_unix_us\":\"x\"}",
            "",
        ] {
            assert!(matches!(parse(line.as_bytes()), OutputLine::Text(text) if text == line));
        }
    }
}
