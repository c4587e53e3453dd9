//! The redis project's own tests, as the suite runs against an external server: plainly, and while the server is
//! killed again and again. A test that passes plainly has to pass under kills.

mod source;
mod suite_output;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use lab::{Host, Output, Process, Signal};

use harness::events::Events;
use harness::task::{Interrupt, Programs, ended, need_root};
use harness::testbed::Testbed;
use rustix::process::kill_process;
use suite_output::SuiteOutput;

const SERVICE: &str = "redis";
const PORT: u16 = 6379;
/// Longest time until a server is there, also after a kill.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time without output of the suite, which has its own limit of 20 minutes.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(180);
/// A client that connects in a replay retransmits the SYN later and later: the next kill waits this long for the
/// suite. The determinant log is long by the end of the suite, and otherwise the client would connect in vain again
/// and again.
const RECONNECT_TIME: Duration = Duration::from_secs(60);
/// This test expects an error from a port that is taken on the suite's own host. The server is on another host here.
const NOT_HERE: &str = "CONFIG SET rollback on apply error";
/// Most names of tests that are shown.
const SHOWN_TESTS: usize = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Options of `make redis-suite`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory of an unpacked source of redis [default: 7.0.15 from Debian's archive, kept in the user's cache]
    #[arg(long, value_name = "DIRECTORY")]
    source: Option<PathBuf>,
    /// URL of Debian's archive
    #[arg(long, value_name = "URL", default_value = "http://deb.debian.org")]
    mirror: String,
    /// Run only this unit, as in unit/type/list; repeat this option for more
    #[arg(long, value_name = "UNIT")]
    only: Vec<String>,
    /// Leave this unit out; repeat this option for more
    #[arg(long, value_name = "UNIT")]
    without: Vec<String>,
    /// Least time between two kills, in seconds; between two kills the suite prints a line, or is silent for a minute
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    every: f64,
    /// Keep the record with a logger on another host
    #[arg(long)]
    logger: bool,
    /// Path of the `outlive` to use [default: beside this program]
    #[arg(long, value_name = "FILE")]
    outlive: Option<PathBuf>,
    /// Directory of the output of the suite and of `outlive serve` [default: no output is kept]
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
}

/// Runs both. The exit status is 0 when all that passes plainly passes under kills.
pub(crate) fn main(options: &Options) -> ExitCode {
    ended("redis-suite", run(options))
}

fn run(options: &Options) -> Result<bool> {
    need_root()?;
    for (program, package) in [
        ("tclsh", "tcl"),
        ("redis-server", "redis-server"),
        ("curl", "curl"),
    ] {
        let there = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|directory| directory.join(program).is_file());
        ensure!(
            there,
            "there is no {program}: install the package {package}"
        );
    }
    let source = source::get(options.source.as_deref(), &options.mirror)?;
    let interrupt = Interrupt::on_signals()?;
    let programs = Programs::find(options.outlive.clone())?;
    let elsewhere = std::env::temp_dir();
    let testbed = Testbed::build("redis-suite", SERVICE, &elsewhere, programs, interrupt)?;
    let stage = Stage {
        client: testbed.lab.add_host_at("client", 1)?,
        server: testbed.lab.add_host_at("server", 10)?,
        logger: testbed.lab.add_host_at("logger", 20)?,
        testbed,
    };
    let outcome = stage.prepare(&source).and_then(|()| {
        println!("plainly:");
        let plain = stage.suite(options, None)?;
        println!("  {plain}");
        println!("with a kill every {} s:", options.every);
        let every = Duration::try_from_secs_f64(options.every).context("--every")?;
        let killed = stage.suite(options, Some(every))?;
        println!("  {killed}");
        Ok((plain, killed))
    });
    if let Some(directory) = &options.keep {
        stage.keep(directory)?;
    }
    let removed = stage.testbed.remove();
    let (plain, killed) = outcome?;
    removed?;
    let missing = plain.passed_but_not_in(&killed);
    for name in missing.iter().take(SHOWN_TESTS) {
        println!("not under kills: {name}");
    }
    if missing.len() > SHOWN_TESTS {
        println!("and {} more", missing.len() - SHOWN_TESTS);
    }
    ensure!(plain.passed() > 0, "no test has passed plainly");
    Ok(missing.is_empty() && killed.is_whole)
}

/// The hosts and files of the runs.
struct Stage {
    client: Host,
    server: Host,
    logger: Host,
    testbed: Testbed,
}

impl Stage {
    /// Copies the suite to a writable place, with the programs where the suite expects them, and makes a directory for
    /// the server.
    fn prepare(&self, source: &Path) -> Result<()> {
        let suite = self.testbed.file("suite");
        fs::create_dir_all(suite.join("src"))?;
        let mut copy = Command::new("cp");
        copy.arg("-r")
            .args(["tests", "redis.conf", "sentinel.conf", "utils"].map(|name| source.join(name)));
        ensure!(
            copy.arg(&suite).status()?.success(),
            "cannot copy {}",
            source.display()
        );
        for name in ["redis-server", "redis-cli", "redis-benchmark"] {
            symlink(
                Path::new("/usr/bin").join(name),
                suite.join("src").join(name),
            )?;
        }
        Ok(fs::create_dir(self.testbed.file("data"))?)
    }

    /// A run of the suite, against a server that is killed at this interval.
    fn suite(&self, options: &Options, kills: Option<Duration>) -> Result<SuiteOutput> {
        let logger = kills.filter(|_| options.logger);
        let logger = logger
            .map(|_| self.testbed.start_logger(&self.logger, &[]))
            .transpose()?;
        let mut server = Redis::start(self, kills.is_some(), logger.is_some())?;
        let mut command = self.client.command("tclsh");
        command
            .current_dir(self.testbed.file("suite"))
            .env("TERM", "dumb") // no colours
            .args(["tests/test_helper.tcl", "--host", &self.ip()])
            .args(["--port", &PORT.to_string(), "--tags", "-slow", "--durable"])
            .args(["--skiptest", NOT_HERE]);
        for unit in &options.only {
            command.args(["--single", unit]);
        }
        for unit in &options.without {
            command.args(["--skipunit", unit]);
        }
        let name = if kills.is_some() {
            "killed.txt"
        } else {
            "plain.txt"
        };
        let file = self.testbed.file(name);
        let suite = self
            .client
            .spawn(&mut command, &Output::File(file.clone()))?;
        let began = Instant::now();
        let mut next = kills.map(|every| began + every);
        let mut served = SystemTime::now();
        while suite.wait_with_timeout(POLL_INTERVAL)?.is_none() {
            self.testbed.interrupt.check()?;
            let last_output = fs::metadata(&file)?.modified()?;
            let silent = last_output.elapsed().unwrap_or_default();
            if silent > SILENCE_TIMEOUT || !server.is_there()? {
                suite.kill_group(Signal::KILL)?;
                break;
            }
            let goes_on =
                last_output > served || served.elapsed().unwrap_or_default() > RECONNECT_TIME;
            if goes_on && next.is_some_and(|next| Instant::now() >= next) {
                server.kill_main()?;
                served = SystemTime::now();
                next = kills.map(|every| Instant::now() + every);
            }
        }
        let mut summary = SuiteOutput::read(&file, began.elapsed(), server.kills)?;
        summary.lost = server.stop()?;
        drop(logger);
        Ok(summary)
    }

    fn ip(&self) -> String {
        self.server.address().ipv4().to_string()
    }

    fn keep(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        for name in ["plain.txt", "killed.txt", "events", "output"] {
            if self.testbed.file(name).is_file() {
                fs::copy(self.testbed.file(name), directory.join(name))?;
            }
        }
        Ok(())
    }
}

/// A redis as the suite needs, plainly or under `outlive serve`.
struct Redis<'a> {
    stage: &'a Stage,
    process: Process,
    events: Option<Events>,
    kills: usize,
}

impl<'a> Redis<'a> {
    fn start(stage: &'a Stage, protected: bool, logger: bool) -> Result<Self> {
        let testbed = &stage.testbed;
        let (ip, data) = (stage.ip(), testbed.file("data"));
        for entry in fs::read_dir(&data)? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?
            } else {
                fs::remove_file(path)?
            };
        }
        let mut command = if protected {
            let mut command = stage
                .server
                .command(&testbed.programs.outlive.to_string_lossy());
            command
                .args(["serve", "--json", "--name", SERVICE, "--stateful=require"])
                .args(["--address", &format!("{ip}:{PORT}")])
                .arg("--run-dir")
                .arg(testbed.directory());
            if logger {
                command.args(testbed.logger_arguments(&stage.logger));
            }
            command.args(["--", "redis-server"]);
            command
        } else {
            stage.server.command("redis-server")
        };
        command
            .args(["--bind", &ip, "--port", &PORT.to_string(), "--dir"])
            .arg(&data)
            .args(["--protected-mode", "no", "--save", ""])
            .args(["--enable-debug-command", "yes"]);
        let log = testbed.file("events");
        let events = Events::in_file(log.clone())?;
        let output = Output::Files {
            stdout: testbed.file("output"),
            stderr: log.clone(),
        };
        let process = stage.server.spawn(&mut command, &output)?;
        testbed.await_listener(&stage.server, PORT, &process, &log)?;
        let mut events = protected.then_some(events);
        if let Some(events) = &mut events {
            events.wait_for("protecting", SERVER_TIMEOUT, &testbed.interrupt)?;
        }
        Ok(Self {
            stage,
            process,
            events,
            kills: 0,
        })
    }

    fn is_there(&self) -> Result<bool> {
        Ok(self.process.wait_with_timeout(Duration::ZERO)?.is_none())
    }

    /// Kills the server, and returns when the server serves again.
    fn kill_main(&mut self) -> Result<()> {
        let Some(events) = &mut self.events else {
            return Ok(());
        };
        let pid = events.server_pid()?;
        match kill_process(pid, Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => return Ok(()), // the server has died already, and will be back soon
            killed => killed?,
        }
        self.kills += 1;
        events.wait_for("serving", SERVER_TIMEOUT, &self.stage.testbed.interrupt)?;
        Ok(())
    }

    /// Ends the server, and returns the reported losses.
    fn stop(self) -> Result<Vec<String>> {
        self.process.kill(Signal::TERM)?;
        let ended = self.process.wait_with_timeout(SERVER_TIMEOUT)?;
        ensure!(ended.is_some(), "the server does not end on SIGTERM");
        let Some(events) = self.events else {
            return Ok(Vec::new());
        };
        let bad = [
            "unprotected",
            "connection_reset",
            "warning",
            "start_failed",
            "recording_stopped",
        ];
        let bad = |event: &&serde_json::Value| bad.iter().any(|name| event["event"] == *name);
        let message =
            |event: &serde_json::Value| event["message"].as_str().unwrap_or("?").to_owned();
        Ok(events.all()?.iter().filter(bad).map(message).collect())
    }
}
