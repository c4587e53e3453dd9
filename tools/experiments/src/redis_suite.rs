//! The redis project's own tests, as it runs them against a server of somebody else's: plainly, and while the server
//! is killed again and again. What passes plainly has to pass then.

mod said;
mod source;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use lab::{Host, Output, Process, Signal};

use harness::events::Events;
use harness::ground::Ground;
use harness::task::{Interrupt, Programs, ended, need_root};
use rustix::process::kill_process;
use said::Said;

const SERVICE: &str = "redis";
const PORT: u16 = 6379;
/// How long a server may take to be there, again, too.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the suite may say nothing; its own limit is 20 minutes.
const SILENCE: Duration = Duration::from_secs(180);
/// A client that connects in a replay sends its SYN again later and later: for so long the next kill waits for the
/// suite. The notes are long by its end, and it would connect in vain again and again.
const SLOWEST: Duration = Duration::from_secs(60);
/// It wants a port in vain that is taken on the suite's own host, which is not the server's here.
const NOT_HERE: &str = "CONFIG SET rollback on apply error";
/// How many names of tests are shown.
const SHOWN: usize = 20;
const LOOK: Duration = Duration::from_millis(20);

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
    let ground = Ground::build("redis-suite", SERVICE, &elsewhere, programs, interrupt)?;
    let stage = Stage {
        client: ground.lab.add_host_at("client", 1)?,
        server: ground.lab.add_host_at("server", 10)?,
        logger: ground.lab.add_host_at("logger", 20)?,
        ground,
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
    let removed = stage.ground.remove();
    let (plain, killed) = outcome?;
    removed?;
    let missing = plain.passed_but_not_in(&killed);
    for name in missing.iter().take(SHOWN) {
        println!("not under kills: {name}");
    }
    if missing.len() > SHOWN {
        println!("and {} more", missing.len() - SHOWN);
    }
    ensure!(plain.passed() > 0, "no test has passed plainly");
    Ok(missing.is_empty() && killed.is_whole)
}

/// Where it is done.
struct Stage {
    client: Host,
    server: Host,
    logger: Host,
    ground: Ground,
}

impl Stage {
    /// The suite where it may write, with the programs where it looks for them, and a directory for the server.
    fn prepare(&self, source: &Path) -> Result<()> {
        let suite = self.ground.file("suite");
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
        Ok(fs::create_dir(self.ground.file("data"))?)
    }

    /// One run of the suite, against a server that is killed that often.
    fn suite(&self, options: &Options, kills: Option<Duration>) -> Result<Said> {
        let logger = kills.filter(|_| options.logger);
        let logger = logger
            .map(|_| self.ground.start_logger(&self.logger, &[]))
            .transpose()?;
        let mut server = Redis::start(self, kills.is_some(), logger.is_some())?;
        let mut command = self.client.command("tclsh");
        command
            .current_dir(self.ground.file("suite"))
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
        let file = self.ground.file(name);
        let suite = self
            .client
            .spawn(&mut command, &Output::File(file.clone()))?;
        let began = Instant::now();
        let mut next = kills.map(|every| began + every);
        let mut served = SystemTime::now();
        while suite.wait_with_timeout(LOOK)?.is_none() {
            self.ground.interrupt.check()?;
            let said = fs::metadata(&file)?.modified()?;
            let silent = said.elapsed().unwrap_or_default();
            if silent > SILENCE || !server.is_there()? {
                suite.kill_group(Signal::KILL)?;
                break;
            }
            let goes_on = said > served || served.elapsed().unwrap_or_default() > SLOWEST;
            if goes_on && next.is_some_and(|next| Instant::now() >= next) {
                server.kill_main()?;
                served = SystemTime::now();
                next = kills.map(|every| Instant::now() + every);
            }
        }
        let mut said = Said::read(&file, began.elapsed(), server.kills)?;
        said.lost = server.stop()?;
        drop(logger);
        Ok(said)
    }

    fn ip(&self) -> String {
        self.server.address().ipv4().to_string()
    }

    fn keep(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        for name in ["plain.txt", "killed.txt", "events", "output"] {
            if self.ground.file(name).is_file() {
                fs::copy(self.ground.file(name), directory.join(name))?;
            }
        }
        Ok(())
    }
}

/// A redis as the suite wants it, plainly or under `outlive serve`.
struct Redis<'a> {
    stage: &'a Stage,
    process: Process,
    events: Option<Events>,
    kills: usize,
}

impl<'a> Redis<'a> {
    fn start(stage: &'a Stage, protected: bool, logger: bool) -> Result<Self> {
        let ground = &stage.ground;
        let (ip, data) = (stage.ip(), ground.file("data"));
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
                .command(&ground.programs.outlive.to_string_lossy());
            command
                .args(["serve", "--json", "--name", SERVICE, "--stateful=require"])
                .args(["--address", &format!("{ip}:{PORT}")])
                .arg("--run-dir")
                .arg(ground.directory());
            if logger {
                command.args(ground.logger_arguments(&stage.logger));
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
        let log = ground.file("events");
        let events = Events::in_file(log.clone())?;
        let output = Output::Files {
            stdout: ground.file("output"),
            stderr: log.clone(),
        };
        let process = stage.server.spawn(&mut command, &output)?;
        ground.await_listener(&stage.server, PORT, &process, &log)?;
        let mut events = protected.then_some(events);
        if let Some(events) = &mut events {
            events.wait_for("protecting", PATIENCE, &ground.interrupt)?;
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

    /// Kills the server, and returns when it serves again.
    fn kill_main(&mut self) -> Result<()> {
        let Some(events) = &mut self.events else {
            return Ok(());
        };
        let pid = events.server_pid()?;
        match kill_process(pid, Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => return Ok(()), // it has died by itself, and is back soon
            killed => killed?,
        }
        self.kills += 1;
        events.wait_for("serving", PATIENCE, &self.stage.ground.interrupt)?;
        Ok(())
    }

    /// Ends it, and says what it has lost.
    fn stop(self) -> Result<Vec<String>> {
        self.process.kill(Signal::TERM)?;
        let ended = self.process.wait_with_timeout(PATIENCE)?;
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
