//! A server under `outlive serve`, and queries of its state.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use lab::{Host, Output, Pid, Process, Signal};
use serde_json::Value;

use crate::leftovers::Before;
use crate::servers::Server;
use crate::{EVENT_TIMEOUT, Scene, binaries};

/// How long we sleep between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// On a busy machine a logger is slow now and then. A logger that is merely slow is not lost, but in tests of a loss
/// ([`crate::loggers::SHORT_LOGGER_TIMEOUT`]).
const TOLERANT_LOGGER_TIMEOUT: &str = "--logger-timeout=20s";

/// A running `outlive serve --json`.
///
/// Drop stops `serve` by SIGTERM and asserts a status of 0 and no leftovers. When the test has failed already, drop
/// prints the log of `serve` instead.
#[derive(Debug)]
pub struct Protected {
    process: Process,
    /// Killed processes: dropping a process ends its process group, and the logger process belongs to that group.
    former: Vec<Process>,
    at: At,
    said: PathBuf,
    before: Before,
    stopped: bool,
}

/// Name and place of a service.
#[derive(Debug)]
struct At {
    verb: &'static str,
    host: Host,
    run_dir: PathBuf,
    name: String,
    environment: Vec<(String, String)>,
    /// The command between, which runs `outlive`; empty for none.
    within: &'static [&'static str],
    /// The program `outlive`.
    binary: PathBuf,
}

impl At {
    fn spawn(&self, server: &Server, flags: &[&str], said: &Path) -> Process {
        let outlive = &self.binary;
        let mut command = match self.within {
            [] => self.host.command(&outlive.to_string_lossy()),
            [first, others @ ..] => {
                let mut within = self.host.command(first);
                within.args(others).arg(outlive);
                within
            }
        };
        command.args([self.verb, "--json", "--name", &self.name, "--run-dir"]);
        command.arg(&self.run_dir);
        command.envs(self.environment.iter().cloned());
        command.envs(server.environment.iter().copied());
        for address in &server.addresses {
            command.args(["--address", &address.to_string()]);
        }
        let has = |name: &str| flags.iter().any(|flag| flag.starts_with(name));
        if has("--logger") && !has("--logger-timeout") {
            command.arg(TOLERANT_LOGGER_TIMEOUT);
        }
        command.args(flags).arg("--").args(&server.command);
        let output = Output::Files {
            stdout: said.with_extension("out"),
            stderr: said.to_owned(),
        };
        self.host
            .spawn(&mut command, &output)
            .expect("outlive starts")
    }
}

impl At {
    fn listens_on(&self, addresses: &[SocketAddr]) -> bool {
        let mut list = self.host.command("ss");
        let list = list.args(["-H", "-l", "-t", "-n"]).output();
        let list = String::from_utf8(list.expect("ss").stdout).expect("UTF-8");
        let local = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        let listens: Vec<String> = list.lines().filter_map(local).collect();
        addresses.iter().all(|address| {
            let any = |name: &str| format!("{name}:{}", address.port());
            let names = [address.to_string(), any("*"), any("0.0.0.0"), any("[::]")];
            names.iter().any(|name| listens.contains(name))
        })
    }
}

/// Output of an `outlive` verb.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Exit status.
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Answer {
    /// The lines of the standard output as JSON.
    ///
    /// # Panics
    /// When a line is not JSON.
    #[must_use]
    pub fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        self.stdout.lines().map(parse).collect()
    }
}

impl Protected {
    pub(crate) fn begin(
        scene: &Scene,
        server: &Server,
        name: String,
        flags: &[&str],
        within: &'static [&'static str],
    ) -> Self {
        let at = At {
            verb: "serve",
            host: scene.server.clone(),
            run_dir: scene.run_dir(),
            name,
            environment: Vec::new(),
            within,
            binary: binaries::outlive(),
        };
        Self::start_at(at, server, flags)
    }

    pub(crate) fn start(
        scene: &Scene,
        server: &Server,
        name: String,
        flags: &[&str],
        within: &'static [&'static str],
    ) -> Self {
        let this = Self::begin(scene, server, name, flags, within);
        this.wait_for("protecting", 1);
        // The server listens on at least one of the addresses.
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while !this.at.listens_on(&server.addresses) {
            assert!(Instant::now() < deadline, "it listens where it is to");
            thread::sleep(POLL_INTERVAL);
        }
        this
    }

    /// Starts `outlive standby` for the same service on another host.
    #[must_use]
    pub fn standby(&self, scene: &Scene, host: &Host, server: &Server, flags: &[&str]) -> Self {
        let at = At {
            verb: "standby",
            host: host.clone(),
            run_dir: scene.directory().join(format!("run-{}", host.name())),
            name: self.at.name.clone(),
            environment: Vec::new(),
            within: &[],
            binary: binaries::outlive(),
        };
        Self::start_at(at, server, flags)
    }

    /// Starts `outlive serve` on another host, under this name, and waits for nothing.
    #[must_use]
    pub fn elsewhere(
        scene: &Scene,
        (host, name): (&Host, &str),
        server: &Server,
        flags: &[&str],
    ) -> Self {
        let at = At {
            verb: "serve",
            host: host.clone(),
            run_dir: scene.directory().join(format!("run-{}", host.name())),
            name: name.to_owned(),
            environment: Vec::new(),
            within: &[],
            binary: binaries::outlive(),
        };
        Self::start_at(at, server, flags)
    }

    fn start_at(at: At, server: &Server, flags: &[&str]) -> Self {
        let before = Before::look(&at.host, &at.name, &at.run_dir);
        // An earlier `serve` on this host has an event file of its own.
        let said = (1..).map(|number| {
            let name = format!("{}.{number}.events", at.name);
            at.run_dir.with_extension(name)
        });
        let said = said.into_iter().find(|path| !path.exists());
        let said = said.expect("a name is left");
        let process = at.spawn(server, flags, &said);
        Self {
            process,
            former: Vec::new(),
            at,
            said,
            before,
            stopped: false,
        }
    }

    /// SIGKILL to `serve` alone, and waits for the end of `serve`. The server lives on.
    ///
    /// # Panics
    /// When `serve` does not die.
    #[track_caller]
    pub fn kill_serve_itself(&self) {
        self.kill_serve(Signal::KILL);
        assert!(
            self.ended(EVENT_TIMEOUT).is_some(),
            "serve survived SIGKILL"
        );
    }

    /// Starts another `serve` of the same name, after [`Protected::kill_serve_itself`]. From then on only the events
    /// of the new `serve` are visible.
    ///
    /// # Panics
    /// When the new `serve` does not adopt the service.
    #[track_caller]
    pub fn succeed(&mut self, scene: &Scene, server: &Server, flags: &[&str]) -> Value {
        self.begin_succession(scene, server, flags);
        self.wait_for("adopted", 1)
    }

    /// As [`Protected::succeed`], without waiting.
    pub fn begin_succession(&mut self, scene: &Scene, server: &Server, flags: &[&str]) {
        let number = self.former.len() + 1;
        self.said = self.said.with_extension(format!("events-{number}"));
        let linked = scene.linked(flags);
        let linked: Vec<&str> = linked.iter().map(String::as_str).collect();
        let flags = [flags, &linked].concat();
        let new = self.at.spawn(server, &flags, &self.said);
        self.former.push(std::mem::replace(&mut self.process, new));
    }

    /// From now on `outlive` is this program.
    pub fn set_binary(&mut self, outlive: PathBuf) {
        self.at.binary = outlive;
    }

    /// Powers the server's host off and on: the host has lost all state. A real system would start `serve` again:
    /// [`Protected::begin_anew`].
    ///
    /// # Panics
    /// When leftovers of the earlier instance cannot be removed.
    #[track_caller]
    pub fn lose_power(&self) {
        self.power_off();
        self.power_on();
    }

    /// Powers the server's host off.
    ///
    /// # Panics
    /// When a process survives there.
    #[track_caller]
    pub fn power_off(&self) {
        self.at.host.power_off().expect("power off");
        assert!(
            self.ended(EVENT_TIMEOUT).is_some(),
            "serve survived its host"
        );
    }

    /// Powers the server's host on.
    ///
    /// # Panics
    /// When leftovers of the earlier instance cannot be removed.
    #[track_caller]
    pub fn power_on(&self) {
        self.at.host.power_on().expect("power on");
        // A lab's hosts share the kernel and the file system: `clean` removes the leftovers that a reboot would remove.
        let cleaned = self.outlive("clean", &["--kill", &self.at.name]);
        assert_eq!(cleaned.status, Some(0), "{cleaned:?}");
    }

    /// Adds a variable to the environment of each later start.
    pub fn add_environment(&mut self, name: &str, value: &str) {
        let pair = (name.to_owned(), value.to_owned());
        self.at.environment.push(pair);
    }

    /// Starts the service again with this verb, `serve` or `standby`. From then on only new events are visible.
    pub fn begin_as(&mut self, verb: &'static str, server: &Server, flags: &[&str]) {
        self.at.verb = verb;
        self.stopped = false;
        self.begin_anew(server, flags);
    }

    /// Starts `serve` again after [`Protected::lose_power`]. From then on only new events are visible.
    pub fn begin_anew(&mut self, server: &Server, flags: &[&str]) {
        let number = self.former.len() + 1;
        self.said = self.said.with_extension(format!("events-{number}"));
        self.before = Before::look(&self.at.host, &self.at.name, &self.at.run_dir);
        let new = self.at.spawn(server, flags, &self.said);
        self.former.push(std::mem::replace(&mut self.process, new));
    }

    /// The host of `serve`.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.at.host
    }

    /// The service's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.at.name
    }

    /// The service's directory in the run directory of its host.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.at.run_dir.join(&self.at.name)
    }

    /// The process of `serve` itself.
    #[must_use]
    pub fn serve_pid(&self) -> Pid {
        self.process.pid()
    }

    /// The standard error of `serve`: the events, and all other output of `serve` and the server.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.said).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The events so far.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        let said = self.log();
        // The last line may be half written; the server may write there too.
        let complete = said.rsplit_once('\n').map_or("", |(lines, _)| lines);
        complete
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|value| value["event"].is_string())
            .collect()
    }

    /// The events of one kind so far.
    #[must_use]
    pub fn events_of(&self, kind: &str) -> Vec<Value> {
        let mut events = self.events();
        events.retain(|event| event["event"] == kind);
        events
    }

    /// Asserts that no event of this kind was printed.
    ///
    /// # Panics
    /// When there is such an event.
    #[track_caller]
    pub fn assert_none_of(&self, kind: &str) {
        assert!(self.events_of(kind).is_empty(), "{}", self.log());
    }

    /// Waits for the `number`-th event (from 1) of a kind and returns it.
    ///
    /// # Panics
    /// When the event does not come within [`EVENT_TIMEOUT`], or `serve` ends.
    #[track_caller]
    pub fn wait_for(&self, kind: &str, number: usize) -> Value {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let over = self.ended(Duration::ZERO).is_some();
            if let Some(event) = self.events_of(kind).get(number - 1) {
                return event.clone();
            }
            if over || Instant::now() > deadline {
                let why = if over {
                    "serve ended"
                } else {
                    "it took too long"
                };
                panic!("no event {kind} number {number}: {why}\n{}", self.log());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until the service has recovered from `deaths` deaths in all.
    ///
    /// # Panics
    /// As [`Protected::wait_for`].
    #[track_caller]
    pub fn wait_serving(&self, recoveries: usize) -> Value {
        self.wait_for("serving", recoveries)
    }

    /// The server's main process, of the latest incarnation in the events.
    ///
    /// # Panics
    /// When the server was never started.
    #[must_use]
    #[track_caller]
    pub fn main_pid(&self) -> Pid {
        let kinds = ["started", "restarted", "adopted", "replica_promoted"];
        let started = |event: &&Value| kinds.iter().any(|kind| event["event"] == *kind);
        let events = self.events();
        let last = events.iter().rev().find(started).expect("it was started");
        let pid = last["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).expect("a process number")
    }

    /// The children of the main process.
    #[must_use]
    #[track_caller]
    pub fn worker_pids(&self) -> Vec<Pid> {
        children_of(self.main_pid())
    }

    /// Grandchildren of the main process.
    #[must_use]
    #[track_caller]
    pub fn grandchild_pids(&self) -> Vec<Pid> {
        self.worker_pids()
            .into_iter()
            .flat_map(children_of)
            .collect()
    }

    /// Sends a signal to the main process.
    ///
    /// # Panics
    /// When there is no such process.
    #[track_caller]
    pub fn kill_main(&self, signal: Signal) {
        let pid = self.main_pid();
        lab::signal(pid, signal)
            .unwrap_or_else(|error| panic!("kill {pid}: {error}\n{}", self.log()));
    }

    /// Sends a signal to one child of the main process.
    ///
    /// # Panics
    /// When the main process has no child.
    #[track_caller]
    pub fn kill_worker(&self, signal: Signal) {
        let workers = self.worker_pids();
        let worker = workers.first().expect("the server has a worker");
        lab::signal(*worker, signal).expect("the worker lives");
    }

    /// Sends a signal to `serve` itself.
    ///
    /// # Panics
    /// When that fails.
    pub fn kill_serve(&self, signal: Signal) {
        self.process.kill(signal).expect("a signal to serve");
    }

    /// Sends a signal to the process group of `serve`, as a terminal does.
    ///
    /// # Panics
    /// When the signal cannot be sent.
    pub fn kill_serve_group(&self, signal: Signal) {
        self.process
            .kill_group(signal)
            .expect("a signal to serve's group");
    }

    /// The exit status of `serve`; `None` when `serve` still runs after `timeout`.
    ///
    /// # Panics
    /// When the system does not report the status.
    #[must_use]
    pub fn ended(&self, timeout: Duration) -> Option<ExitStatus> {
        self.process.wait_with_timeout(timeout).expect("wait")
    }

    /// Runs another verb of `outlive` on the server's host, with the run directory.
    ///
    /// # Panics
    /// When the command cannot be started.
    #[must_use]
    pub fn outlive(&self, verb: &str, arguments: &[&str]) -> Answer {
        let mut command = self.at.host.command("timeout");
        let limit = EVENT_TIMEOUT.as_secs().to_string();
        command.args(["-k", "1", &limit]).arg(&self.at.binary);
        command.arg(verb).args(arguments);
        command.env("OUTLIVE_RUN_DIR", &self.at.run_dir);
        let output = crate::scene::run(&mut command);
        Answer {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Stops `serve` by SIGTERM.
    ///
    /// # Panics
    /// When `serve` does not end with status 0 or leaves a resource.
    #[track_caller]
    pub fn stop(mut self) {
        self.terminate();
    }

    /// Asserts that `serve` has left no process, cgroup, pin, mount or interface after its end.
    ///
    /// # Panics
    /// When `serve` has left a resource.
    #[track_caller]
    pub fn assert_nothing_left(&mut self) {
        self.stopped = true;
        let left = self.before.left(&self.at.host);
        assert!(left.is_empty(), "serve left {left:#?}\n{}", self.log());
    }

    #[track_caller]
    fn terminate(&mut self) {
        self.kill_serve(Signal::TERM);
        self.stopped = true;
        let ended = self.ended(EVENT_TIMEOUT);
        let code = ended.and_then(|status| status.code());
        assert_eq!(code, Some(0), "serve ended {ended:?}:\n{}", self.log());
        self.assert_nothing_left();
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        if !thread::panicking() {
            if !self.stopped {
                self.terminate();
            }
            return;
        }
        eprintln!("--- serve of {} said:\n{}---", self.at.name, self.log());
        // Whatever went wrong, the next test finds a clean machine.
        let _ = self.process.kill_group(Signal::TERM);
        if self
            .process
            .wait_with_timeout(POLL_INTERVAL * 5000)
            .is_err()
        {
            eprintln!("serve cannot be waited for");
        }
        let _ = self.process.kill_group(Signal::KILL);
        let _ = self.process.wait_with_timeout(EVENT_TIMEOUT);
        if self.at.host.power_on().is_ok() {
            let cleaned = self.outlive("clean", &["--kill", &self.at.name]);
            eprintln!("--- clean: {cleaned:?}");
        }
    }
}

/// The children of a process.
#[must_use]
pub fn children_of(pid: Pid) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}
