//! The server that is measured: plain, or under `outlive serve`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Output, Pid, Process, Signal};
use serde_json::Value;

use super::Bench;
use super::stage::{PORT, SERVICE};
use harness::events::Events;

/// Longest time until a server listens or ends.
const SERVER_TIMEOUT: Duration = Duration::from_secs(20);

/// How a server is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Plain,
    /// Under `outlive serve`, with this `--replay`; the record is in a logger process on the same host.
    Protected(&'static str),
    /// Under `outlive serve --logger`, over a link of so many bits per second, or without a limit.
    Linked(Option<u64>),
    /// As `Linked(None)`, with this `--ack`.
    LinkedBy(&'static str),
    /// Under `outlive serve --stateful=require`, with the record on the same host.
    Wrapped,
    /// As `Wrapped`, with `--checkpoint-at` so many bytes.
    Checkpointed(u64),
    /// As `Wrapped`, with a logger on a separate host, at so many microseconds of round trip besides the lab's own
    /// delay. Output waits for output commit.
    Committed(u32),
    /// As `Committed`, with the logger on the server's host, by address.
    CommittedHere,
}

impl Mode {
    /// Whether the server has a determinant log.
    fn is_north(self) -> bool {
        matches!(
            self,
            Self::Wrapped | Self::Checkpointed(_) | Self::Committed(_) | Self::CommittedHere
        )
    }

    /// The mode in the names of figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Protected(_) => "protected",
            Self::Wrapped | Self::Checkpointed(_) => "wrapped",
            Self::Committed(_) | Self::CommittedHere => "committed",
            Self::Linked(_) | Self::LinkedBy(_) => "linked",
        }
    }
}

/// A server and the port.
#[derive(Debug, Clone)]
pub(super) struct Server {
    command: Vec<OsString>,
    port: u16,
    is_pinned: bool,
}

impl Server {
    pub(super) fn of(command: Vec<OsString>, port: u16) -> Self {
        Self {
            command,
            port,
            is_pinned: false,
        }
    }

    pub(super) fn nginx(bench: &Bench) -> Self {
        Self::nginx_with(bench, "nginx.conf")
    }

    /// With another configuration of the stage's directory.
    pub(super) fn nginx_with(bench: &Bench, configuration: &str) -> Self {
        let mut command = nginx_command(bench.stage.testbed.directory());
        command.pop();
        command.push(bench.stage.file(configuration).into());
        Self::of(command, PORT)
    }

    pub(super) fn iperf3(bench: &Bench) -> Self {
        let port = 5201;
        let ip = bench.stage.address(port).ip().to_string();
        let command = ["iperf3", "-4", "-s", "-B", &ip].map(Into::into).into();
        Self::of(command, port)
    }

    /// redis without files.
    pub(super) fn redis(bench: &Bench) -> Self {
        Self::of(redis_command(bench.stage.address(PORT)), PORT)
    }

    /// Pinned to a CPU, with the client on another CPU: the scheduler's choice of CPUs for two busy processes makes a
    /// larger difference than the measured effect.
    pub(super) fn pinned(mut self) -> Self {
        self.is_pinned = several_cpus();
        self
    }

    /// The command line of the server. A server with state must be the named program, not `taskset`: such a server is
    /// pinned after the start.
    fn command(&self, mode: Mode) -> Vec<OsString> {
        let mut command = self.command.clone();
        if self.is_pinned && !mode.is_north() {
            command.splice(0..0, ["taskset", "-c", "0"].map(OsString::from));
        }
        command
    }

    /// A hidden verb of this program.
    pub(super) fn own(bench: &Bench, verb: &str) -> Self {
        Self::own_with(bench, verb, &[])
    }

    /// The same with more arguments.
    pub(super) fn own_with(bench: &Bench, verb: &str, more: &[&str]) -> Self {
        let address = bench.stage.address(PORT).to_string();
        let mut command = vec![
            bench.stage.testbed.programs.reference_server.clone().into(),
            verb.into(),
            address.into(),
        ];
        command.extend(more.iter().map(Into::into));
        Self::of(command, PORT)
    }
}

/// redis without files.
pub(super) fn redis_command(address: SocketAddr) -> Vec<OsString> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let words = [
        "redis-server",
        "--bind",
        &ip,
        "--port",
        &port,
        "--save",
        "",
        "--protected-mode",
        "no",
    ];
    words.map(OsString::from).into()
}

/// nginx with the configuration that is in a directory.
pub(super) fn nginx_command(directory: &Path) -> Vec<OsString> {
    let mut command: Vec<OsString> = ["nginx", "-g", "daemon off;", "-e"].map(Into::into).into();
    command.push(directory.join("error.log").into());
    command.push("-c".into());
    command.push(directory.join("nginx.conf").into());
    command
}

/// Is there a CPU for the client besides the server's?
pub(super) fn several_cpus() -> bool {
    thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)
}

/// A running server.
pub(super) struct Subject<'a> {
    bench: &'a Bench,
    process: Process,
    /// The logger, on the logger's host.
    logger: Option<Process>,
    pub(super) mode: Mode,
    protected: bool,
    events: Events,
}

impl<'a> Subject<'a> {
    /// Starts the server, and returns when the server listens and has the protection of the mode.
    pub(super) fn start(bench: &'a Bench, server: &Server, mode: Mode) -> Result<Self> {
        let stage = &bench.stage;
        let rate = match mode {
            Mode::Linked(rate) => Some(rate),
            Mode::LinkedBy(_) | Mode::Committed(_) | Mode::CommittedHere => Some(None),
            Mode::Plain | Mode::Protected(_) | Mode::Wrapped | Mode::Checkpointed(_) => None,
        };
        let logger_host = match mode {
            Mode::CommittedHere => &stage.server,
            _ => &stage.logger,
        };
        let logger = match rate {
            Some(rate) => {
                stage.set_log_rate(rate)?;
                stage.set_log_round_trip(match mode {
                    Mode::Committed(round_trip) => round_trip,
                    _ => 0,
                })?;
                Some(stage.testbed.start_logger(logger_host, &[])?)
            }
            None => None,
        };
        let mut arguments = Vec::new();
        if let Mode::Protected(replay) = mode {
            arguments.extend(["--replay".to_owned(), replay.to_owned()]);
        }
        if let Mode::LinkedBy(strategy) = mode {
            arguments.extend(["--ack".to_owned(), strategy.to_owned()]);
        }
        if mode.is_north() {
            arguments.push("--stateful=require".to_owned());
        }
        if let Mode::Checkpointed(bytes) = mode {
            arguments.push(format!("--checkpoint-at={bytes}"));
            arguments.push(format!(
                "--criu={}",
                stage.testbed.programs.criu().display()
            ));
        }
        if logger.is_some() {
            arguments.extend(stage.testbed.logger_arguments(logger_host));
        }
        let protected = mode != Mode::Plain;
        let started = server.command(mode);
        let mut command = if protected {
            let outlive = &stage.testbed.programs.outlive;
            let mut command = stage.server.command(&outlive.to_string_lossy());
            command
                .args(["serve", "--json", "--name", SERVICE])
                .args(["--address", &stage.address(server.port).to_string()])
                .arg("--run-dir")
                .arg(stage.testbed.directory())
                .args(arguments)
                .arg("--")
                .arg(&started[0]);
            command
        } else {
            stage.server.command(&started[0].to_string_lossy())
        };
        command.args(&started[1..]);
        let log = stage.file("events");
        let events = Events::in_file(log.clone())?;
        let output = Output::Files {
            stdout: stage.file("output"),
            stderr: log.clone(),
        };
        let process = stage.server.spawn(&mut command, &output)?;
        let mut subject = Self {
            bench,
            process,
            logger,
            mode,
            protected,
            events,
        };
        stage
            .testbed
            .await_listener(&stage.server, server.port, &subject.process, &log)?;
        if protected {
            subject.wait_for("protecting", SERVER_TIMEOUT)?;
        }
        if server.is_pinned && mode.is_north() {
            pin(subject.server_pid()?)?;
        }
        Ok(subject)
    }

    /// The main process that was started: the server's, or `serve`'s.
    pub(super) fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// `serve`, in a protected mode.
    pub(super) fn serve_pid(&self) -> Option<Pid> {
        self.protected.then(|| self.pid())
    }

    /// The logger on a separate host.
    pub(super) fn logger_pid(&self) -> Option<Pid> {
        self.logger.as_ref().map(Process::pid)
    }

    /// Waits for the next event of that name.
    pub(super) fn wait_for(&mut self, name: &str, patience: Duration) -> Result<Value> {
        self.events.wait_for(name, patience, &self.bench.interrupt)
    }

    /// The server's present main process, under `serve`.
    pub(super) fn server_pid(&self) -> Result<Pid> {
        self.events.server_pid()
    }

    /// Events of `serve` about a connection that was unprotected or reset.
    pub(super) fn complaints(&self) -> Result<Vec<String>> {
        Ok(complaints(&self.events.all()?))
    }

    /// How many connections `serve` says are open and protected.
    pub(super) fn protected_connections(&self) -> Result<f64> {
        let status = self.status()?;
        let field = |name: &str| {
            let count = status[name].as_f64();
            count.with_context(|| format!("`outlive status` did not say {name}: {status}"))
        };
        Ok(field("connections")? - field("unprotected")?)
    }

    /// The output of `outlive status --json`.
    pub(super) fn status(&self) -> Result<Value> {
        let testbed = &self.bench.stage.testbed;
        let mut command = Command::new(&testbed.programs.outlive);
        command.args(["status", "--json", SERVICE, "--run-dir"]);
        let output = command.arg(testbed.directory()).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("`outlive status` said {said}"))
    }

    /// Stops the subject with SIGTERM, with any complaints.
    ///
    /// # Errors
    /// The process does not end.
    pub(super) fn end(&self) -> Result<()> {
        self.process.kill(Signal::TERM)?;
        let ended = self.process.wait_with_timeout(SERVER_TIMEOUT)?;
        ensure!(ended.is_some(), "the server does not end on SIGTERM");
        Ok(())
    }

    /// Stops the subject with SIGTERM.
    ///
    /// # Errors
    /// The process does not end; or a connection was unprotected for a time.
    pub(super) fn stop(self) -> Result<()> {
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

/// Pins all threads of a process to the first processor.
fn pin(process: Pid) -> Result<()> {
    let process = process.as_raw_nonzero().to_string();
    let mut taskset = Command::new("taskset");
    let output = taskset.args(["-a", "-p", "-c", "0", &process]).output()?;
    ensure!(output.status.success(), "taskset failed: {output:?}");
    Ok(())
}

/// Events about connections that were unprotected or reset.
pub(super) fn complaints(events: &[Value]) -> Vec<String> {
    let bad = [
        "unprotected",
        "connection_reset",
        "logger_lost",
        "logger_restarted",
        "warning",
        "start_failed",
        "recording_stopped",
        "checkpoint_failed",
    ];
    let bad = |event: &&Value| bad.iter().any(|name| event["event"] == *name);
    let message = |event: &Value| event["message"].as_str().unwrap_or("?").to_owned();
    events.iter().filter(bad).map(message).collect()
}

/// Time of a plain server from the start until the server listens, in milliseconds.
pub(super) fn own_start(bench: &Bench, server: &Server) -> Result<f64> {
    let began = Instant::now();
    let subject = Subject::start(bench, server, Mode::Plain)?;
    let took = began.elapsed();
    subject.stop()?;
    Ok(took.as_secs_f64() * 1e3)
}

/// Runs the server in each mode in turn, round by round, and measures each run. The result has a list for each mode,
/// with the figures of each run.
pub(super) fn alternate<const N: usize>(
    bench: &Bench,
    server: &Server,
    modes: &[Mode],
    measure: impl FnMut(&Subject<'_>) -> Result<[f64; N]>,
) -> Result<Vec<Vec<[f64; N]>>> {
    alternate_for(bench, bench.rounds, server, modes, measure)
}

/// The same for another number of rounds.
pub(super) fn alternate_for<const N: usize>(
    bench: &Bench,
    rounds: usize,
    server: &Server,
    modes: &[Mode],
    mut measure: impl FnMut(&Subject<'_>) -> Result<[f64; N]>,
) -> Result<Vec<Vec<[f64; N]>>> {
    let mut measured = vec![Vec::new(); modes.len()];
    for _ in 0..rounds {
        for (mode, runs) in modes.iter().zip(&mut measured) {
            bench.interrupt.check()?;
            let subject = Subject::start(bench, server, *mode)?;
            runs.push(measure(&subject).with_context(|| format!("{mode:?}"))?);
            subject.stop().with_context(|| format!("{mode:?}"))?;
        }
    }
    Ok(measured)
}
