//! The server that is measured: plain, or under `outlive serve`.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{Output, Pid, Process, Signal};
use serde_json::Value;

use super::Bench;
use super::stage::{PORT, SERVICE};

/// How long a server may take to listen, or to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often we look for an event.
const LOOK: Duration = Duration::from_millis(2);

/// How a server is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Plain,
    /// Under `outlive serve`, with this `--replay`.
    Protected(&'static str),
}

/// A server and its port.
#[derive(Debug, Clone)]
pub(super) struct Server {
    command: Vec<OsString>,
    port: u16,
}

impl Server {
    pub(super) fn nginx(bench: &Bench) -> Self {
        let mut command: Vec<OsString> =
            ["nginx", "-g", "daemon off;", "-e"].map(Into::into).into();
        command.push(bench.stage.file("error.log").into());
        command.push("-c".into());
        command.push(bench.stage.file("nginx.conf").into());
        Self {
            command,
            port: PORT,
        }
    }

    pub(super) fn iperf3(bench: &Bench) -> Self {
        let port = 5201;
        let ip = bench.stage.address(port).ip().to_string();
        let command = ["iperf3", "-4", "-s", "-B", &ip].map(Into::into).into();
        Self { command, port }
    }

    /// Kept on one CPU, as its client is on another: where the scheduler happens to put two busy
    /// processes makes more of a difference than what is to be measured.
    pub(super) fn pinned(mut self) -> Self {
        if several_cpus() {
            self.command
                .splice(0..0, ["taskset", "-c", "0"].map(OsString::from));
        }
        self
    }

    /// A hidden verb of this program.
    pub(super) fn own(bench: &Bench, verb: &str) -> Self {
        let address = bench.stage.address(PORT).to_string();
        let command = vec![
            bench.stage.xtask.clone().into(),
            verb.into(),
            address.into(),
        ];
        Self {
            command,
            port: PORT,
        }
    }
}

/// Is there a CPU for the client besides the server's?
pub(super) fn several_cpus() -> bool {
    thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)
}

/// A running server.
pub(super) struct Subject<'a> {
    bench: &'a Bench,
    process: Process,
    protected: bool,
    log: PathBuf,
    /// Events read so far.
    events: Vec<Value>,
    /// Those that were asked for already.
    passed: usize,
}

impl<'a> Subject<'a> {
    /// Starts it, and returns when it listens.
    pub(super) fn start(bench: &'a Bench, server: &Server, mode: Mode) -> Result<Self> {
        Self::begin(bench, server, mode, &[])
    }

    /// The same, with more arguments for `serve`.
    pub(super) fn begin(
        bench: &'a Bench,
        server: &Server,
        mode: Mode,
        more: &[&str],
    ) -> Result<Self> {
        let stage = &bench.stage;
        let log = stage.file("events");
        fs::write(&log, "")?;
        let mut command = match mode {
            Mode::Plain => stage.server.command(&server.command[0].to_string_lossy()),
            Mode::Protected(_) => stage.server.command(&stage.outlive.to_string_lossy()),
        };
        if let Mode::Protected(replay) = mode {
            command
                .args(["serve", "--json", "--name", SERVICE, "--replay", replay])
                .args(["--address", &stage.address(server.port).to_string()])
                .arg("--run-dir")
                .arg(stage.run_directory())
                .args(more)
                .arg("--")
                .arg(&server.command[0]);
        }
        command.args(&server.command[1..]);
        let output = Output::Files {
            stdout: stage.file("output"),
            stderr: log.clone(),
        };
        let process = stage.server.spawn(&mut command, &output)?;
        let protected = mode != Mode::Plain;
        let mut subject = Self {
            bench,
            process,
            protected,
            log,
            events: Vec::new(),
            passed: 0,
        };
        subject.wait_for_listener(server.port)?;
        if protected {
            subject.wait_for("protecting", PATIENCE)?;
        }
        Ok(subject)
    }

    /// The main process that was started: the server's, or `serve`'s.
    pub(super) fn pid(&self) -> Pid {
        self.process.pid()
    }

    fn wait_for_listener(&self, port: u16) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        self.bench.stage.server.enter(|| {
            while !listens(port) {
                self.bench.interrupt.check()?;
                if self.process.wait_with_timeout(Duration::ZERO)?.is_some() {
                    bail!("the server ended: {}", fs::read_to_string(&self.log)?);
                }
                ensure!(Instant::now() < deadline, "nobody listens on port {port}");
                thread::sleep(Duration::from_micros(100));
            }
            Ok(())
        })?
    }

    /// Waits for the next event of that name.
    pub(super) fn wait_for(&mut self, name: &str, patience: Duration) -> Result<Value> {
        let deadline = Instant::now() + patience;
        loop {
            self.read_events()?;
            while let Some(event) = self.events.get(self.passed) {
                self.passed += 1;
                if event["event"] == name {
                    return Ok(event.clone());
                }
            }
            self.bench.interrupt.check()?;
            if Instant::now() > deadline {
                let told = fs::read_to_string(&self.log).unwrap_or_default();
                let tail: String = told.lines().rev().take(5).collect::<Vec<_>>().join("\n");
                bail!(
                    "no event `{name}` within {} s; the last: {tail}",
                    patience.as_secs()
                );
            }
            thread::sleep(LOOK);
        }
    }

    fn read_events(&mut self) -> Result<()> {
        let text = fs::read(&self.log)?;
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        let lines = text[..whole].split(|byte| *byte == b'\n');
        self.events = lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        Ok(())
    }

    /// The server's present main process, under `serve`.
    pub(super) fn server_pid(&mut self) -> Result<Pid> {
        self.read_events()?;
        let started = |event: &&Value| event["event"] == "started" || event["event"] == "restarted";
        let event = self.events.iter().rev().find(started);
        event
            .and_then(|event| i32::try_from(event["pid"].as_i64()?).ok())
            .and_then(Pid::from_raw)
            .context("serve has not said which process the server is")
    }

    /// Lines of what `serve` told that say that a connection was not protected or was lost.
    pub(super) fn complaints(&mut self) -> Result<Vec<String>> {
        self.read_events()?;
        let bad = [
            "unprotected",
            "lost",
            "logger_restarted",
            "trouble",
            "start_failed",
        ];
        let bad = |event: &&Value| bad.iter().any(|name| event["event"] == *name);
        let message = |event: &Value| event["message"].as_str().unwrap_or("?").to_owned();
        Ok(self.events.iter().filter(bad).map(message).collect())
    }

    /// Stops it with SIGTERM, whatever it has complained of.
    ///
    /// # Errors
    /// It does not end.
    pub(super) fn end(&self) -> Result<()> {
        self.process.kill(Signal::TERM)?;
        let ended = self.process.wait_with_timeout(PATIENCE)?;
        ensure!(ended.is_some(), "the server does not end on SIGTERM");
        Ok(())
    }

    /// Stops it with SIGTERM.
    ///
    /// # Errors
    /// It does not end; or a connection was not protected all the time.
    pub(super) fn stop(mut self) -> Result<()> {
        self.end()?;
        if self.protected {
            let complaints = self.complaints()?;
            ensure!(
                complaints.is_empty(),
                "serve says: {}",
                complaints.join("; ")
            );
        }
        Ok(())
    }
}

/// Whether somebody listens on that port, on the calling thread's host.
pub(crate) fn listens(port: u16) -> bool {
    let local = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            // 0A is LISTEN.
            fields.next().is_some_and(|field| field.ends_with(&local))
                && fields.nth(1) == Some("0A")
        })
    })
}

/// How long a plain server takes from its start until it listens, in milliseconds.
pub(super) fn own_start(bench: &Bench, server: &Server) -> Result<f64> {
    let began = Instant::now();
    let subject = Subject::start(bench, server, Mode::Plain)?;
    let took = began.elapsed();
    subject.stop()?;
    Ok(took.as_secs_f64() * 1e3)
}

/// Runs the server in each mode in turn, round by round, and measures it. The answer has a
/// list for each mode, with the figures of each run.
pub(super) fn alternate<const N: usize>(
    bench: &Bench,
    server: &Server,
    modes: &[Mode],
    mut measure: impl FnMut() -> Result<[f64; N]>,
) -> Result<Vec<Vec<[f64; N]>>> {
    let mut measured = vec![Vec::new(); modes.len()];
    for _ in 0..bench.rounds {
        for (mode, runs) in modes.iter().zip(&mut measured) {
            bench.interrupt.check()?;
            let subject = Subject::start(bench, server, *mode)?;
            runs.push(measure().with_context(|| format!("{mode:?}"))?);
            subject.stop().with_context(|| format!("{mode:?}"))?;
        }
    }
    Ok(measured)
}
