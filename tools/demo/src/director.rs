//! Controls the demo: starts the clients, kills servers, logger and active host, prints events, and waits.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::clients::{self, Kind, Outcome, Scene};
use crate::condition::Conditions;
use crate::narration;
use crate::plan::{Victim, plan};
use crate::record::Record;
use crate::server::Server;
use crate::servers::Servers;
use crate::service::{OutputLine, Source};
use crate::stage::Stage;
use crate::timeline::{Report, Timeline};
use harness::task::Interrupt;

/// Time from the takeover to the return of power at the dead host.
const POWER_IS_OFF: Duration = Duration::from_millis(700);
/// Longest time until the servers listen and the standbys wait.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Longest time of the demo: a client that is not done by then is broken.
const RUN_LIMIT: Duration = Duration::from_secs(90);
/// Time between two looks for a signal to the demo.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A message to the director.
pub(crate) enum Message {
    /// An output line of `outlive serve` or `outlive standby`.
    Service(Source, OutputLine),
    /// An event or another line of the logger.
    Logger(Result<Value, String>),
    /// The end of a client.
    Client(Outcome),
}

/// Reason of the end of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    ItIsSo,
    Interrupted,
    TooLong,
}

/// The kills.
#[derive(Default)]
struct Kills {
    /// Kills to come, each with the time before.
    plan: VecDeque<(Duration, Victim)>,
    /// Whether the kills have begun.
    have_begun: bool,
    next: Option<Instant>,
    /// Number of killed servers.
    count: u32,
}

/// The power of the hosts.
#[derive(Default)]
struct Power {
    /// Whether a host is without power.
    is_off: bool,
    /// Time at which that host gets power again.
    on_at: Option<Instant>,
    /// Whether that host is a standby again.
    returned: bool,
}

/// The director.
pub(crate) struct Director<'a> {
    stage: &'a Stage,
    servers: &'a mut Servers,
    record: Option<&'a mut Record>,
    timeline: Timeline,
    messages: Receiver<Message>,
    interrupt: Interrupt,
    kills: Kills,
    conditions: Conditions,
    power: Power,
    deaths: Vec<(Instant, Server)>,
    recoveries: usize,
    /// Unfinished uploads of killed nginx processes.
    remains: Vec<PathBuf>,
    outcomes: Vec<Outcome>,
}

impl<'a> Director<'a> {
    pub(crate) fn new(
        stage: &'a Stage,
        servers: &'a mut Servers,
        record: Option<&'a mut Record>,
        timeline: Timeline,
        messages: Receiver<Message>,
        interrupt: Interrupt,
    ) -> Self {
        Self {
            stage,
            servers,
            record,
            timeline,
            messages,
            interrupt,
            kills: Kills::default(),
            conditions: Conditions::default(),
            power: Power::default(),
            deaths: Vec::new(),
            recoveries: 0,
            remains: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// Runs the demo to the end; nothing is returned after an interruption.
    pub(crate) fn direct(
        mut self,
        sender: Sender<Message>,
        seed: u64,
        kills: u32,
    ) -> Result<Option<Report>> {
        let with_logger = self.record.is_some();
        self.kills.plan = plan(seed, kills, with_logger);
        let all_die = with_logger && kills > 0;
        let of_host = if all_die { Server::ALL.len() } else { 0 };
        let (kills_over, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let scene = Scene {
            stage: self.stage,
            kills_over: &kills_over,
            given_up: &given_up,
        };
        thread::scope(|scope| {
            let _end = EndOfClients(&scene);
            let deadline = Instant::now() + START_LIMIT;
            let mut started = self.wait(deadline, Self::is_live)?;
            if started == Waited::ItIsSo {
                self.servers.stand_by()?;
                started = self.wait(deadline, Self::is_ready)?;
            }
            match started {
                Waited::ItIsSo => {}
                Waited::Interrupted => return Ok(None),
                Waited::TooLong => bail!("a server does not listen, or has no standby"),
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
                wanted_deaths: usize::try_from(kills)? + of_host,
                deaths: self.deaths,
                recoveries: self.recoveries,
                logger: all_die.then_some(self.conditions.all(|one| one.found)),
                returned: all_die.then_some(self.power.returned),
            }))
        })
    }

    /// Whether all servers serve with complete records.
    fn is_live(&self) -> bool {
        let with_logger = self.record.is_some();
        self.conditions.all(|one| one.is_live(with_logger))
    }

    /// Whether a standby would take over, too.
    fn is_ready(&self) -> bool {
        let with_logger = self.record.is_some();
        self.conditions.all(|one| one.is_ready(with_logger))
    }

    /// Kills as planned, and waits for all clients.
    fn watch(&mut self, kills_over: &AtomicBool) -> Result<Waited> {
        let deadline = Instant::now() + RUN_LIMIT;
        self.kills.have_begun = true;
        let waited = self.wait(deadline, |director| {
            director.is_ready() && director.kills.plan.is_empty()
        })?;
        if waited != Waited::ItIsSo {
            return Ok(waited);
        }
        kills_over.store(true, Ordering::Relaxed);
        self.timeline.now(
            "no more",
            "kills; the clients finish, the idle ones ask again",
        );
        let all: usize = Kind::ALL.into_iter().map(Kind::clients).sum();
        self.wait(deadline, |director| director.outcomes.len() == all)
    }

    /// Handles messages until a condition holds.
    fn wait(&mut self, deadline: Instant, so: impl Fn(&Self) -> bool) -> Result<Waited> {
        while !so(self) {
            if self.interrupt.is_raised() {
                return Ok(Waited::Interrupted);
            }
            if Instant::now() > deadline {
                return Ok(Waited::TooLong);
            }
            let due = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
            if due(self.power.on_at) {
                self.give_power_back()?;
            }
            if due(self.kills.next) {
                self.kill()?;
            }
            let next = [self.kills.next, self.power.on_at]
                .into_iter()
                .flatten()
                .min();
            let until = next.map(|at| at.saturating_duration_since(Instant::now()));
            match self.messages.recv_timeout(
                until
                    .unwrap_or(SIGNAL_POLL_INTERVAL)
                    .min(SIGNAL_POLL_INTERVAL),
            ) {
                Ok(Message::Service(source, narrated)) => {
                    self.on_service_output(source, narrated)?
                }
                Ok(Message::Logger(Ok(event))) => self.on_logger_event(&event),
                Ok(Message::Logger(Err(text))) => self.timeline.now("", &text),
                Ok(Message::Client(outcome)) => self.outcomes.push(outcome),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nobody is left to be heard"),
            }
            self.set_next_kill();
        }
        Ok(Waited::ItIsSo)
    }

    fn set_next_kill(&mut self) {
        if self.kills.have_begun && self.kills.next.is_none() && self.is_ready() {
            self.kills.next = self
                .kills
                .plan
                .front()
                .map(|(wait, _)| Instant::now() + *wait);
        }
    }

    fn kill(&mut self) -> Result<()> {
        self.kills.next = None;
        match (self.kills.plan.pop_front(), &self.record) {
            (Some((_, Victim::Logger)), Some(_)) => self.kill_logger(),
            (Some((_, Victim::Host)), Some(_)) => self.power_off(),
            (Some((_, Victim::Server(server))), _) => self.kill_server(server),
            _ => Ok(()),
        }
    }

    fn kill_logger(&mut self) -> Result<()> {
        let Some(record) = &mut self.record else {
            return Ok(());
        };
        for condition in self.conditions.each() {
            condition.recorded = false;
        }
        let pid = record.pid();
        let text = format!("SIGKILL to the logger, process {pid}; it is started again at once");
        self.timeline.kill("killed", &text);
        record.kill()
    }

    fn kill_server(&mut self, server: Server) -> Result<()> {
        let main = self.conditions[server].main;
        let main = main.with_context(|| format!("{server}'s process is not known"))?;
        self.kills.count += 1;
        let kills = self.kills.count;
        self.die(
            &[server],
            "killed",
            &format!("kill {kills}: SIGKILL to {server}, process {main}"),
        );
        self.servers.kill(main)
    }

    /// Takes the power from the active host. No process learns that: the host falls silent.
    fn power_off(&mut self) -> Result<()> {
        let host = self.servers.serving().name().to_owned();
        self.die(
            &Server::ALL,
            "power off",
            &format!("{host}, its servers, serve, all that they knew"),
        );
        for condition in self.conditions.each() {
            (condition.stands_by, condition.leased) = (false, false);
        }
        self.power.is_off = true;
        self.servers.power_off()
    }

    /// Notes the deaths of these servers, alone or with the host.
    fn die(&mut self, servers: &[Server], what: &str, text: &str) {
        let now = Instant::now();
        for &server in servers {
            self.conditions[server].dies();
            self.deaths.push((now, server));
            if server == Server::Nginx {
                self.remains = self.stage.bodies();
            }
        }
        self.timeline.kill(what, text);
    }

    fn give_power_back(&mut self) -> Result<()> {
        (self.power.is_off, self.power.on_at) = (false, None);
        self.timeline.now(
            "power on",
            "the host that was dead; it is to stand by now, for all servers",
        );
        self.servers.stand_by()?;
        self.power.returned = true;
        Ok(())
    }

    fn on_service_output(&mut self, source: Source, narrated: OutputLine) -> Result<()> {
        let Some(serves) = self.servers.serves(source) else {
            return Ok(()); // the last words of a host without power
        };
        let (host, server) = (self.stage.servers[source.host].name(), source.server);
        let condition = &mut self.conditions[server];
        match narrated {
            OutputLine::Event(time, event) => {
                let scene = narration::Scene {
                    server,
                    host,
                    takes_over: serves && self.power.is_off && !condition.live,
                    awaits_logger: self.record.is_some() && !condition.recorded,
                };
                for (what, text) in narration::of_serve(&event, &scene) {
                    self.timeline.at(time, &what, &text);
                }
                if serves {
                    condition.follow(&event);
                    if event["event"] == "serving" {
                        self.recovered(server);
                    }
                } else if event["event"] == "standby_started" {
                    condition.stands_by = true;
                }
            }
            OutputLine::Text(text) => self.timeline.now("", &text),
            OutputLine::Ended => bail!("`outlive` for {server} on {host} has ended by itself"),
        }
        Ok(())
    }

    fn on_logger_event(&mut self, event: &Value) {
        // Another host that attaches has an event of `serve` for this.
        let line = narration::of_logger(event).filter(|_| !self.power.is_off);
        if let Some((what, text)) = line {
            self.timeline.now(what, &text);
        }
        let of = |server: &Server| event["service"] == server.name();
        if event["event"] == "attached"
            && let Some(server) = Server::ALL.into_iter().find(of)
        {
            let condition = &mut self.conditions[server];
            condition.found |= event["kept"] == true;
            condition.recorded = true;
        }
    }

    /// Notes that a server serves again.
    fn recovered(&mut self, server: Server) {
        self.recoveries += 1;
        if server == Server::Nginx {
            self.remove_remains();
        }
        if self.power.is_off && self.conditions.all(|one| one.live) {
            self.power.on_at = Some(Instant::now() + POWER_IS_OFF);
        }
    }

    /// A killed nginx leaves temporary files of up to 200 MB each. After a complete upload the names may be used
    /// again, but there are no more uploads then.
    fn remove_remains(&mut self) {
        for path in std::mem::take(&mut self.remains) {
            if !self.stage.file("uploaded").exists() {
                // A file that is gone already is no error.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Ends the remaining clients at the end of the scope, which would otherwise wait for them.
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
