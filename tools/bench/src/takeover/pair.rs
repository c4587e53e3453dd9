//! A service on two hosts, at an address that belongs to neither host: an active host and a standby.

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

/// The hosts that can serve: the stage's server, and another host with the same two links.
pub(crate) struct Hosts([Host; 2]);

impl Hosts {
    /// Adds the second host, or finds the host of an earlier measurement.
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

/// The protected server.
pub(crate) enum Served {
    Nginx,
    /// redis with state, and a hot or a cold standby.
    Redis {
        hot: bool,
    },
    /// redis with state and a cold standby, and a checkpoint for so many bytes of record.
    CheckpointedRedis {
        at: u64,
    },
    /// A hidden verb of this program.
    Own(&'static str),
}

/// The service, with the logger. A drop kills all processes.
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
    /// Starts a logger that grants leases of `lease_ms` milliseconds, or adaptive leases, and the service on the first
    /// host. Returns when the service is protected. No standby runs.
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
        if let Served::CheckpointedRedis { at } = served {
            arguments.push("--stateful=require".into());
            arguments.push(format!("--checkpoint-at={at}").into());
            let criu = stage.testbed.programs.criu();
            arguments.push(format!("--criu={}", criu.display()).into());
        }
        arguments.push("--".into());
        arguments.extend(match served {
            Served::Redis { .. } | Served::CheckpointedRedis { .. } => redis_command(address()?),
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

    /// Starts the standby on the other host; returns when the active host knows the standby.
    pub(crate) fn stand_by(&mut self) -> Result<()> {
        self.start_member(1, "standby")?;
        self.await_standby()
    }

    /// Returns when the other host stands by, and the active host knows the standby.
    pub(crate) fn await_standby(&mut self) -> Result<()> {
        self.wait_for(1, "standby_started")?;
        loop {
            if self.wait_for(0, "lease_required")?["required"] == true {
                return Ok(());
            }
        }
    }

    /// Takes the power from the active host; the other host is to serve.
    pub(crate) fn power_off(&mut self) -> Result<()> {
        let off = power_off(&self.members[0].host);
        self.members[0].life = None;
        self.members.swap(0, 1);
        off
    }

    /// Returns the power: that host becomes the standby. The hosts of a lab share kernel and files, so the call
    /// removes by hand the files that a reboot would have removed.
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

    /// `outlive switchover`: the other host serves when the call returns, and this host stands by soon.
    pub(crate) fn hand_over(&mut self) -> Result<Value> {
        let output = self.outlive("switchover", 0).output()?;
        ensure!(output.status.success(), "`outlive switchover`: {output:?}");
        self.members.swap(0, 1);
        self.wait_for(0, "serving")
    }

    /// Milliseconds of the lease that are left, as the active host reports. `None`: no report.
    pub(crate) fn lease_left(&self) -> Result<Option<f64>> {
        let status = self.status(0)?;
        let words = status["lease"].as_str().unwrap_or_default();
        let left = words
            .split_once("for ")
            .and_then(|(_, rest)| rest.split_once(" ms more"));
        Ok(left.and_then(|(left, _)| left.parse().ok()))
    }

    /// The output of `outlive status --json` on the active host (0), or on the standby (1).
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
        self.wait_for_within(which, name, STEP_TIMEOUT)
    }

    /// As [`Self::wait_for`], for so long.
    pub(crate) fn wait_for_within(
        &mut self,
        which: usize,
        name: &str,
        longest: Duration,
    ) -> Result<Value> {
        let deadline = Instant::now() + longest;
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

    /// Whether an active host was superseded while the host lived: the lease was not renewed in time.
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

    /// Events of the present runs of both hosts about connections that were unprotected or reset.
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

    /// Stops both hosts with SIGTERM, the standby first: otherwise the standby would take over.
    pub(crate) fn stop(mut self) -> Result<()> {
        for which in [1, 0] {
            match &self.members[which].life {
                Some(life) => {
                    life.process.kill(Signal::TERM)?;
                    let ended = life.process.wait_with_timeout(STEP_TIMEOUT)?;
                    let host = self.members[which].host.name();
                    ensure!(ended.is_some(), "outlive on {host} does not end on SIGTERM");
                }
                // The host has lost power, and has not come back.
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
