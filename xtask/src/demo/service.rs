//! `outlive serve` on the server host, and what it tells.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::demo::director::Message;
use crate::demo::stage::Stage;
use crate::janitor::Janitor;

/// How long `serve` may take to stop nginx and itself.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// A line that `serve` printed.
pub(crate) enum Told {
    /// An event: its time, in seconds since 1970, and all that it says.
    Event(f64, Value),
    /// Something else, for instance an error of nginx.
    Text(String),
}

/// The running `outlive serve`. Dropping it stops it, too.
pub(crate) struct Service {
    child: Child,
    outlive: PathBuf,
    name: String,
    run_directory: TempDir,
    janitor: Option<Janitor>,
    stopped: bool,
}

impl Service {
    /// Starts nginx under `serve`, which is given these flags and tells `director` what happens.
    pub(crate) fn start(
        stage: &Stage,
        outlive: &Path,
        flags: &[String],
        director: Sender<Message>,
    ) -> Result<Self> {
        let name = "demo".to_owned();
        let run_directory = tempfile::Builder::new().prefix("outlive-demo-").tempdir()?;
        // Before there is anything to clean.
        let janitor = Janitor::start(outlive, run_directory.path(), &name)?;
        let address = stage.server.address();
        let mut child = stage
            .server
            .command(&outlive.to_string_lossy())
            .args(["serve", "--json", "--name", &name])
            .args(["--address", &format!("{}:80", address.ipv4())])
            .args(["--address", &format!("[{}]:80", address.ipv6())])
            .arg("--run-dir")
            .arg(run_directory.path())
            .args(flags)
            .args(["--", "nginx", "-g", "daemon off;", "-e"])
            .arg(stage.scratch("error.log"))
            .arg("-c")
            .arg(stage.configuration())
            // A terminal's interrupt is for us, who stop it in order.
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", outlive.display()))?;
        if let Some(stderr) = child.stderr.take() {
            thread::spawn(move || pass_on(stderr, &director));
        }
        let outlive = outlive.to_owned();
        Ok(Self {
            child,
            outlive,
            name,
            run_directory,
            janitor: Some(janitor),
            stopped: false,
        })
    }

    /// Stops `serve` and nginx with SIGTERM, and sees to it that nothing of them is left.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.stopped, true) {
            return Ok(());
        }
        let in_order = self.terminate()?;
        if !in_order {
            self.child.kill()?;
            self.child.wait()?;
        }
        // The directory is ours; what was in it, `serve` has removed.
        let left = std::fs::read_dir(self.run_directory.path())?;
        let left: Vec<_> = left.flatten().map(|entry| entry.path()).collect();
        if !left.is_empty() {
            self.clean()?;
        }
        if let Some(janitor) = self.janitor.take() {
            janitor.dismiss();
        }
        ensure!(
            in_order,
            "`outlive serve` did not end on SIGTERM, and was killed"
        );
        ensure!(
            left.is_empty(),
            "`outlive serve` has left something in its run directory: {left:?}"
        );
        Ok(())
    }

    /// Whether it has ended in time.
    fn terminate(&mut self) -> Result<bool> {
        // Not waited for yet, so the number is its own.
        let pid = Pid::from_child(&self.child);
        let deadline = Instant::now() + STOP_LIMIT;
        if self.child.try_wait()?.is_none() {
            kill_process(pid, Signal::TERM)?;
        }
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
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
            .arg(&self.name)
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

/// Reads until `serve` and all of its children have closed their standard error.
fn pass_on(stderr: ChildStderr, director: &Sender<Message>) {
    for line in BufReader::new(stderr).split(b'\n') {
        let Ok(line) = line else { break };
        if director.send(Message::Service(parse(&line))).is_err() {
            // Nobody listens any more, but serve must be able to write.
            continue;
        }
    }
    let _ = director.send(Message::ServiceEnded);
}

fn parse(line: &[u8]) -> Told {
    let event = serde_json::from_slice::<Value>(line).ok();
    let time = event.as_ref().and_then(|event| event["time"].as_f64());
    match (event, time) {
        (Some(event), Some(time)) => Told::Event(time, event),
        _ => Told::Text(String::from_utf8_lossy(line).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_a_time_and_the_rest_is_text() {
        let Told::Event(time, event) = parse(br#"{"time":2.5,"event":"died"}"#) else {
            panic!("not an event");
        };
        assert!((time - 2.5).abs() < 1e-9);
        assert_eq!(event["event"], "died");
        for line in ["nginx: [emerg] x", "{}", "7", "{\"time\":\"x\"}", ""] {
            assert!(matches!(parse(line.as_bytes()), Told::Text(text) if text == line));
        }
    }
}
