//! Lets it happen: starts the clients, kills the server and the logger, tells what is seen, and waits.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::Pid;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::demo::clients::{self, Kind, Outcome, Scene};
use crate::demo::record::Record;
use crate::demo::service::Told;
use crate::demo::stage::Stage;
use crate::demo::timeline::{Report, Timeline};
use crate::task::Interrupt;

/// From the moment that all connections are live again to the next kill, milliseconds.
const BETWEEN_KILLS: std::ops::Range<u64> = 600..1700;
/// nginx must listen by then.
const START_LIMIT: Duration = Duration::from_secs(15);
/// All clients must be done by then; who is not is broken.
const LIMIT: Duration = Duration::from_secs(90);
/// How often a signal to us is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// What the director is told.
pub(crate) enum Message {
    /// By `outlive serve`.
    Service(Told),
    /// `outlive serve` is gone.
    ServiceEnded,
    /// By the logger: an event, or something else.
    Logger(Result<Value, String>),
    /// By a client that has ended.
    Client(Outcome),
}

/// Why a wait is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    ItIsSo,
    Interrupted,
    TooLong,
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Nginx,
    Logger,
}

/// The one who directs.
pub(crate) struct Director<'a> {
    stage: &'a Stage,
    record: Option<&'a mut Record>,
    timeline: Timeline,
    messages: Receiver<Message>,
    interrupt: Interrupt,
    /// The kills to come, each with the time before it.
    plan: VecDeque<(Duration, Victim)>,
    /// nginx's master.
    master: Option<Pid>,
    /// Whether nginx serves.
    live: bool,
    /// The service has attached to the logger; and with records of before.
    recorded: bool,
    found: bool,
    next_kill: Option<Instant>,
    kills: Vec<Instant>,
    recoveries: usize,
    /// Uploads that the killed nginx has left half done.
    remains: Vec<PathBuf>,
    outcomes: Vec<Outcome>,
}

impl<'a> Director<'a> {
    pub(crate) fn new(
        stage: &'a Stage,
        record: Option<&'a mut Record>,
        timeline: Timeline,
        messages: Receiver<Message>,
        interrupt: Interrupt,
    ) -> Self {
        Self {
            stage,
            record,
            timeline,
            messages,
            interrupt,
            plan: VecDeque::new(),
            master: None,
            live: false,
            recorded: false,
            found: false,
            next_kill: None,
            kills: Vec::new(),
            recoveries: 0,
            remains: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// Directs to the end; nothing is returned when it was interrupted.
    pub(crate) fn direct(
        mut self,
        sender: Sender<Message>,
        seed: u64,
        kills: u32,
    ) -> Result<Option<Report>> {
        let with_logger = self.record.is_some();
        self.plan = plan(seed, kills, with_logger);
        let (kills_over, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let scene = Scene {
            stage: self.stage,
            kills_over: &kills_over,
            given_up: &given_up,
        };
        thread::scope(|scope| {
            let _end = EndOfClients(&scene);
            match self.wait(Instant::now() + START_LIMIT, Self::is_ready)? {
                Waited::ItIsSo => {}
                Waited::Interrupted => return Ok(None),
                Waited::TooLong => bail!("nginx does not listen"),
            }
            clients::start(scope, &scene, &sender);
            self.timeline.now("clients", "all are started");
            match self.watch(&kills_over)? {
                Waited::ItIsSo => {}
                Waited::Interrupted => return Ok(None),
                Waited::TooLong => self.timeline.now("TOO LONG", "who is not done is broken"),
            }
            Ok(Some(Report {
                outcomes: self.outcomes,
                kills: self.kills,
                wanted_kills: kills,
                recoveries: self.recoveries,
                logger: (with_logger && kills > 0).then_some(self.found),
            }))
        })
    }

    /// nginx serves, and what clients send is recorded where it should be.
    fn is_ready(&self) -> bool {
        self.live && (self.recorded || self.record.is_none())
    }

    /// The logger was killed and is not back yet.
    fn awaits_logger(&self) -> bool {
        self.record.is_some() && !self.recorded
    }

    /// Kills as planned, and waits for all clients.
    fn watch(&mut self, kills_over: &AtomicBool) -> Result<Waited> {
        let deadline = Instant::now() + LIMIT;
        self.set_next_kill();
        let waited = self.wait(deadline, |director| {
            director.is_ready() && director.plan.is_empty()
        })?;
        if waited != Waited::ItIsSo {
            return Ok(waited);
        }
        kills_over.store(true, Ordering::Relaxed);
        self.timeline.now(
            "no more",
            "kills; the clients finish, the idle ones ask again",
        );
        let all: usize = Kind::ALL.into_iter().map(Kind::connections).sum();
        self.wait(deadline, |director| director.outcomes.len() == all)
    }

    /// Does what is to be done until something is so.
    fn wait(&mut self, deadline: Instant, so: impl Fn(&Self) -> bool) -> Result<Waited> {
        while !so(self) {
            if self.interrupt.is_raised() {
                return Ok(Waited::Interrupted);
            }
            if Instant::now() > deadline {
                return Ok(Waited::TooLong);
            }
            if self.next_kill.is_some_and(|kill| kill <= Instant::now()) {
                self.kill()?;
            }
            let until = self
                .next_kill
                .map(|kill| kill.saturating_duration_since(Instant::now()));
            match self.messages.recv_timeout(until.unwrap_or(LOOK).min(LOOK)) {
                Ok(Message::Service(Told::Event(time, event))) => self.happened(time, &event),
                Ok(Message::Service(Told::Text(text))) => self.timeline.now("", &text),
                Ok(Message::Logger(Ok(event))) => self.logger_said(&event),
                Ok(Message::Logger(Err(text))) => self.timeline.now("", &text),
                Ok(Message::ServiceEnded) => bail!("`outlive serve` has ended by itself"),
                Ok(Message::Client(outcome)) => self.outcomes.push(outcome),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nobody is left to be heard"),
            }
        }
        Ok(Waited::ItIsSo)
    }

    fn set_next_kill(&mut self) {
        self.next_kill = self.plan.front().map(|(wait, _)| Instant::now() + *wait);
    }

    fn kill(&mut self) -> Result<()> {
        self.next_kill = None;
        match (self.plan.pop_front(), &self.record) {
            (Some((_, Victim::Logger)), Some(_)) => self.kill_logger(),
            (Some((_, Victim::Nginx)), _) => self.kill_nginx(),
            _ => Ok(()),
        }
    }

    fn kill_logger(&mut self) -> Result<()> {
        let Some(record) = &mut self.record else {
            return Ok(());
        };
        self.recorded = false;
        let pid = record.pid();
        let text = format!("SIGKILL to the logger, process {pid}; it is started again at once");
        self.timeline.kill(&text);
        record.kill()
    }

    fn kill_nginx(&mut self) -> Result<()> {
        self.live = false;
        let master = self.master.context("nginx's process is not known")?;
        self.remains = self.stage.bodies();
        self.kills.push(Instant::now());
        self.timeline.kill(&format!(
            "kill {}: SIGKILL to nginx, process {master}",
            self.kills.len()
        ));
        self.stage.server.kill(&[master])?;
        Ok(())
    }

    /// Tells of an event and does what follows from it. Events that are not a step, nor
    /// trouble, are not told.
    fn happened(&mut self, time: f64, event: &Value) {
        let tell = |what: &str, text: &str| self.timeline.at(time, what, text);
        match event["event"].as_str().unwrap_or_default() {
            "started" => tell("started", &format!("nginx, as process {}", event["pid"])),
            "protecting" => tell(
                "protecting",
                "connections to nginx will outlive it from now on",
            ),
            "died" => tell(
                "detected",
                &format!(
                    "nothing that the dying nginx says gets out ({})",
                    cause(event)
                ),
            ),
            "restarted" => tell("restarted", &format!("nginx, as process {}", event["pid"])),
            "spliced" => tell(
                "spliced",
                &format!(
                    "{} connections joined to the new nginx",
                    event["connections"]
                ),
            ),
            "serving" => {
                let again = event["replayed_bytes"].as_f64().unwrap_or(0.0) / 1e6;
                tell(
                    "replayed",
                    &format!("{again:.1} MB that clients had sent were given to it again"),
                );
                tell(
                    "live",
                    &format!(
                        "{} connections go on, {} are lost",
                        event["kept"], event["lost"]
                    ),
                );
            }
            "logger_in_use" => tell(
                "recorded",
                "by the logger: nothing is acknowledged that is not in its files",
            ),
            "logger_lost" => tell("waiting", "clients wait for the logger"),
            "logger_back" => tell("logger", "the logger answers again"),
            // We know why, and for how long.
            "trouble" if self.awaits_logger() => tell("waiting", "uploads, until it answers again"),
            "listening" | "verified" => {}
            other => tell(
                &other.to_uppercase(),
                event["message"].as_str().unwrap_or_default(),
            ),
        }
        self.follow(event);
    }

    /// Tells of an event of the logger.
    fn logger_said(&mut self, event: &Value) {
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        match event["event"].as_str().unwrap_or_default() {
            "restored" if event["connections"] != 0 => self.timeline.now(
                "read",
                &format!(
                    "records of {} connections, from its files",
                    event["connections"]
                ),
            ),
            "attached" => {
                let found = event["kept"] == true;
                if found {
                    self.timeline
                        .now("recorded", "again, and nothing is missing");
                }
                // nginx may have died meanwhile: then its recovery goes on.
                if found && self.live && self.next_kill.is_none() {
                    self.set_next_kill();
                }
                self.found |= found;
                self.recorded = true;
            }
            "log_failed" => self.timeline.now("LOG FAILED", &text("reason")),
            "trouble" => self.timeline.now("TROUBLE", &text("message")),
            _ => {}
        }
    }

    fn follow(&mut self, event: &Value) {
        match event["event"].as_str().unwrap_or_default() {
            "started" | "restarted" => self.master = event["pid"].as_i64().and_then(to_pid),
            "protecting" => self.live = true,
            "serving" => {
                self.live = true;
                self.recoveries += 1;
                self.remove_remains();
                self.set_next_kill();
            }
            _ => {}
        }
    }

    /// A killed nginx leaves its temporary files, and each may be 200 MB. Once the upload is
    /// complete their names may be taken again, but then there will be no more of them.
    fn remove_remains(&mut self) {
        for path in std::mem::take(&mut self.remains) {
            if !self.stage.file("uploaded").exists() {
                // One that is gone already is none to worry about.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// What the server died of: of our SIGKILL, one hopes.
fn cause(event: &Value) -> String {
    let cause = &event["cause"];
    match cause["kind"].as_str() {
        Some("signal") => format!("process {}: signal {}", cause["pid"], cause["signal"]),
        Some("status") => format!("process {}: exit status {}", cause["pid"], cause["status"]),
        _ => "it does not serve".to_owned(),
    }
}

/// Who is killed, and the waiting times before that.
///
/// The logger's death is in the middle, and nginx dies at the same moments with and without it.
fn plan(seed: u64, kills: u32, with_logger: bool) -> VecDeque<(Duration, Victim)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut wait = || Duration::from_millis(random.random_range(BETWEEN_KILLS));
    let mut plan: VecDeque<_> = (0..kills).map(|_| (wait(), Victim::Nginx)).collect();
    if with_logger && kills > 0 {
        plan.insert(plan.len() / 2, (wait(), Victim::Logger));
    }
    plan
}

fn to_pid(number: i64) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// Ends the clients that still run when the scope is left, however it is left: else it
/// would wait for them.
struct EndOfClients<'a>(&'a Scene<'a>);

impl Drop for EndOfClients<'_> {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Relaxed);
        let client = &self.0.stage.client;
        if let Err(error) = client.pids().and_then(|pids| client.kill(&pids)) {
            eprintln!("demo: the clients were not ended: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_plan() {
        assert_eq!(plan(7, 20, true), plan(7, 20, true));
        assert_ne!(plan(7, 20, false), plan(8, 20, false));
        assert_eq!(plan(7, 20, false).len(), 20);
    }

    #[test]
    fn the_logger_dies_once_and_before_the_last_death_of_nginx() {
        for kills in 1..5 {
            let without = plan(7, kills, false);
            let mut with = plan(7, kills, true);
            let at = with
                .iter()
                .position(|(_, victim)| *victim == Victim::Logger);
            let at = at.expect("it dies");
            assert!(at + 1 < with.len());
            with.remove(at);
            assert_eq!(with, without);
        }
        assert!(plan(7, 0, true).is_empty());
    }
}
