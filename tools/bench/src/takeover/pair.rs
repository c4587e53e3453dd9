//! A service on two hosts, at an address that is no host's own: one serves, the other stands by.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Address, Host, Output, Pid, Process, Signal};
use serde_json::Value;

use crate::Bench;
use crate::stage::{PORT, SERVICE, power_off};
use crate::subject::{complaints, nginx_command, redis_command};
use harness::events::Events;
use harness::janitor::Janitor;
use harness::nginx;

/// Longest time of a step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks for events that should not happen.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The name of the second host.
const OTHER: &str = "other";

/// The hosts that can serve: the stage's server, and another one with the same two links.
pub(crate) struct Hosts([Host; 2]);

impl Hosts {
    /// They stay for the next measurement.
    pub(crate) fn of(bench: &Bench) -> Result<Self> {
        let lab = &bench.stage.testbed.lab;
        let there = lab.hosts().into_iter().find(|host| host.name() == OTHER);
        if let Some(other) = there {
            return Ok(Self([bench.stage.server.clone(), other]));
        }
        let other = lab.add_host_at(OTHER, 40)?;
        lab.add_link(&other, "eth1", Address::new(1, 40)?)?;
        let directory = bench.stage.file("pair");
        fs::create_dir(&directory)?;
        symlink(bench.stage.file("www"), directory.join("www"))?;
        let text = nginx::configuration(&directory, &[address()?]);
        fs::write(directory.join("nginx.conf"), text)?;
        Ok(Self([bench.stage.server.clone(), other]))
    }
}

/// Where clients find the service.
pub(crate) fn address() -> Result<SocketAddr> {
    Ok(SocketAddr::new(Address::new(0, 100)?.ipv4().into(), PORT))
}

/// What is served.
pub(crate) enum Served {
    Nginx,
    /// With its state, and a standby that follows or does not.
    Redis {
        hot: bool,
    },
    /// A hidden verb of this program.
    Own(&'static str),
}

/// The service, with its logger. Dropping it kills it.
pub(crate) struct Pair<'a> {
    bench: &'a Bench,
    arguments: Vec<OsString>,
    /// Who serves is the first.
    members: [Member; 2],
    logger: Process,
}

struct Member {
    host: Host,
    run_directory: PathBuf,
    // Dropped in this order.
    life: Option<Run>,
    janitor: Option<Janitor>,
    lives: usize,
}

struct Run {
    process: Process,
    events: Events,
}

impl<'a> Pair<'a> {
    /// Starts a logger that grants leases of so many milliseconds, or as it sees fit, and the service on the first
    /// host; returns when it is protected. Nobody stands by.
    pub(crate) fn start(
        bench: &'a Bench,
        hosts: &Hosts,
        served: &Served,
        lease_ms: Option<u64>,
    ) -> Result<Self> {
        let stage = &bench.stage;
        stage.set_log_rate(None)?;
        let lease = lease_ms.map(|lease_ms| format!("--lease={lease_ms}ms"));
        let lease: Vec<&str> = lease.iter().map(String::as_str).collect();
        let logger = stage.testbed.start_logger(&stage.logger, &lease)?;
        let mut arguments: Vec<OsString> = ["--json", "--name", SERVICE].map(Into::into).into();
        arguments.extend(["--address".into(), address()?.to_string().into()]);
        arguments.extend(["--address-device", "eth0"].map(OsString::from));
        let log = stage.testbed.logger_arguments(&stage.logger);
        arguments.extend(log.into_iter().map(OsString::from));
        if let Served::Redis { hot } = served {
            arguments.push("--stateful=require".into());
            arguments.extend(hot.then(|| "--hot".into()));
        }
        arguments.push("--".into());
        arguments.extend(match served {
            Served::Redis { .. } => redis_command(address()?),
            Served::Nginx => nginx_command(&stage.file("pair")),
            Served::Own(verb) => vec![
                stage.testbed.programs.reference_server.clone().into(),
                verb.into(),
                address()?.to_string().into(),
            ],
        });
        let [first, second] = &hosts.0;
        let mut pair = Self {
            bench,
            arguments,
            members: [
                Member::new(bench, first.clone())?,
                Member::new(bench, second.clone())?,
            ],
            logger,
        };
        pair.start_member(0, "serve")?;
        pair.wait_for(0, "protecting")?;
        Ok(pair)
    }

    /// The other host stands by from now on, and the one that serves knows it.
    pub(crate) fn stand_by(&mut self) -> Result<()> {
        self.start_member(1, "standby")?;
        self.await_standby()
    }

    /// Returns when the other host stands by, and the one that serves knows it.
    pub(crate) fn await_standby(&mut self) -> Result<()> {
        self.wait_for(1, "standby_started")?;
        loop {
            if self.wait_for(0, "lease_required")?["required"] == true {
                return Ok(());
            }
        }
    }

    /// Takes the power from the host that serves; the other one is to serve.
    pub(crate) fn power_off(&mut self) -> Result<()> {
        let off = power_off(&self.members[0].host);
        self.members[0].life = None;
        self.members.swap(0, 1);
        off
    }

    /// Gives it back: that host stands by. The hosts of a lab share kernel and files: what a restart would have
    /// emptied is removed by hand.
    pub(crate) fn come_back(&mut self) -> Result<()> {
        self.members[1].host.power_on()?;
        self.clean(1)?;
        self.stand_by()
    }

    fn clean(&self, which: usize) -> Result<()> {
        let mut clean = self.outlive("clean", which);
        let output = clean.args(["--kill", SERVICE]).output()?;
        ensure!(output.status.success(), "`outlive clean`: {output:?}");
        Ok(())
    }

    /// `outlive switchover`: the other host serves when it returns, and this one stands by soon.
    pub(crate) fn hand_over(&mut self) -> Result<Value> {
        let output = self.outlive("switchover", 0).output()?;
        ensure!(output.status.success(), "`outlive switchover`: {output:?}");
        self.members.swap(0, 1);
        self.wait_for(0, "serving")
    }

    /// How many milliseconds of the lease are left to the host that serves, as it says. `None`: it does not.
    pub(crate) fn lease_left(&self) -> Result<Option<f64>> {
        let status = self.status(0)?;
        let words = status["lease"].as_str().unwrap_or_default();
        let left = words
            .split_once("for ")
            .and_then(|(_, rest)| rest.split_once(" ms more"));
        Ok(left.and_then(|(left, _)| left.parse().ok()))
    }

    /// What `outlive status --json` says on the host that serves (0), or stands by (1).
    pub(crate) fn status(&self, which: usize) -> Result<Value> {
        let output = self.outlive("status", which).arg("--json").output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("`outlive status` said {said}"))
    }

    fn outlive(&self, verb: &str, which: usize) -> Command {
        let mut command = Command::new(&self.bench.stage.testbed.programs.outlive);
        command.args([verb, "--run-dir"]);
        command.arg(&self.members[which].run_directory);
        command
    }

    /// The next event of that name on the host that serves (0), or stands by (1).
    pub(crate) fn wait_for(&mut self, which: usize, name: &str) -> Result<Value> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            let life = self.members[which].life.as_mut().context("it is off")?;
            let interrupt = &self.bench.interrupt;
            match life.events.wait_for(name, WATCH_INTERVAL, interrupt) {
                Err(error) if Instant::now() < deadline => {
                    interrupt.check()?;
                    ensure!(!self.has_moved()?, "it has moved by itself: {error:#}");
                }
                result => return result,
            }
        }
    }

    /// Whether a host that was to serve has fallen silent while it lived: its lease was not prolonged in time.
    pub(crate) fn has_moved(&self) -> Result<bool> {
        let lives = self.members.iter().filter_map(|one| one.life.as_ref());
        let events = lives.map(|life| life.events.all());
        let events: Vec<Value> = events.collect::<Result<Vec<_>>>()?.concat();
        Ok(events.iter().any(|event| event["event"] == "superseded"))
    }

    /// All events of the present life of the host that serves (0), or stands by (1).
    pub(crate) fn events(&self, which: usize) -> Result<Vec<Value>> {
        let life = self.members[which].life.as_ref().context("it is off")?;
        life.events.all()
    }

    /// What the present lives of both say of connections that were not protected or were lost.
    pub(crate) fn complaints(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for member in &self.members {
            if let Some(life) = &member.life {
                let host = member.host.name();
                let complaints = complaints(&life.events.all()?).into_iter();
                all.extend(complaints.map(|one| format!("{host}: {one}")));
            }
        }
        Ok(all)
    }

    /// `outlive` on the host that serves (0), or stands by (1).
    pub(crate) fn pid(&self, which: usize) -> Result<Pid> {
        let life = self.members[which].life.as_ref().context("it is off")?;
        Ok(life.process.pid())
    }

    pub(crate) fn logger_pid(&self) -> Pid {
        self.logger.pid()
    }

    fn start_member(&mut self, which: usize, verb: &str) -> Result<()> {
        let stage = &self.bench.stage;
        let member = &mut self.members[which];
        member.lives += 1;
        let (host, life) = (member.host.name(), member.lives);
        let log = stage.file(&format!("events-{host}-{life}"));
        let events = Events::in_file(log.clone())?;
        let output = Output::Files {
            stdout: stage.file("output"),
            stderr: log,
        };
        let mut command = member
            .host
            .command(&stage.testbed.programs.outlive.to_string_lossy());
        command.args([verb, "--run-dir"]);
        command.arg(&member.run_directory).args(&self.arguments);
        let process = member.host.spawn(&mut command, &output)?;
        member.life = Some(Run { process, events });
        Ok(())
    }

    /// Stops both with SIGTERM, who stands by first: else it would serve.
    pub(crate) fn stop(mut self) -> Result<()> {
        for which in [1, 0] {
            match &self.members[which].life {
                Some(life) => {
                    life.process.kill(Signal::TERM)?;
                    let ended = life.process.wait_with_timeout(STEP_TIMEOUT)?;
                    let host = self.members[which].host.name();
                    ensure!(ended.is_some(), "outlive on {host} does not end on SIGTERM");
                }
                // It has lost its power, and not come back.
                None => self.clean(which)?,
            }
        }
        for member in &mut self.members {
            if let Some(janitor) = member.janitor.take() {
                janitor.dismiss();
            }
            fs::remove_dir_all(&member.run_directory)?;
        }
        Ok(())
    }
}

impl Member {
    fn new(bench: &Bench, host: Host) -> Result<Self> {
        let run_directory = bench.stage.file(&format!("run-{}", host.name()));
        fs::create_dir_all(&run_directory)?;
        host.power_on()?; // whatever was before
        let outlive = &bench.stage.testbed.programs.outlive;
        let janitor = Some(Janitor::start(outlive, &run_directory, SERVICE)?);
        Ok(Self {
            host,
            run_directory,
            life: None,
            janitor,
            lives: 0,
        })
    }
}
