//! Lets it happen: starts the clients, kills the server, tells what is seen, and waits.

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

/// The one who directs.
pub(crate) struct Director<'a> {
    stage: &'a Stage,
    timeline: Timeline,
    messages: Receiver<Message>,
    interrupt: Interrupt,
    /// Waiting times before the kills to come.
    plan: VecDeque<Duration>,
    /// nginx's master.
    master: Option<Pid>,
    /// Whether nginx serves.
    live: bool,
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
        timeline: Timeline,
        messages: Receiver<Message>,
        interrupt: Interrupt,
    ) -> Self {
        Self {
            stage,
            timeline,
            messages,
            interrupt,
            plan: VecDeque::new(),
            master: None,
            live: false,
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
        self.plan = plan(seed, kills);
        let (kills_over, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let scene = Scene {
            stage: self.stage,
            kills_over: &kills_over,
            given_up: &given_up,
        };
        thread::scope(|scope| {
            let _end = EndOfClients(&scene);
            match self.wait(Instant::now() + START_LIMIT, |director| director.live)? {
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
            }))
        })
    }

    /// Kills the server as planned, and waits for all clients.
    fn watch(&mut self, kills_over: &AtomicBool) -> Result<Waited> {
        let deadline = Instant::now() + LIMIT;
        self.set_next_kill();
        let waited = self.wait(deadline, |director| {
            director.live && director.plan.is_empty()
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
                Ok(Message::ServiceEnded) => bail!("`outlive serve` has ended by itself"),
                Ok(Message::Client(outcome)) => self.outcomes.push(outcome),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nobody is left to be heard"),
            }
        }
        Ok(Waited::ItIsSo)
    }

    fn set_next_kill(&mut self) {
        self.next_kill = self.plan.front().map(|wait| Instant::now() + *wait);
    }

    fn kill(&mut self) -> Result<()> {
        self.next_kill = None;
        self.plan.pop_front();
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
            "listening" | "verified" => {}
            other => tell(
                &other.to_uppercase(),
                event["message"].as_str().unwrap_or_default(),
            ),
        }
        self.follow(event);
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

/// The waiting times before the kills.
fn plan(seed: u64, kills: u32) -> VecDeque<Duration> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..kills)
        .map(|_| Duration::from_millis(random.random_range(BETWEEN_KILLS)))
        .collect()
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
        assert_eq!(plan(7, 20), plan(7, 20));
        assert_ne!(plan(7, 20), plan(8, 20));
        assert_eq!(plan(7, 20).len(), 20);
    }
}
