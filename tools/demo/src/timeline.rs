//! Output of the demo.

use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::clients::{Kind, Outcome, Served};
use crate::server::Server;

/// Prints a line. A closed standard output does not end the demo: the exit status may be the only result that is
/// wanted.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints events with their times.
pub(crate) struct Timeline {
    /// Seconds since 1970, as in the events of `serve`.
    began: f64,
    killed: Option<f64>,
}

impl Timeline {
    /// Prints the plan of the demo.
    pub(crate) fn begin(kills: u32, with_logger: bool, seed: u64) -> Self {
        let connections: usize = Kind::ALL.into_iter().map(at_a_time).sum();
        say(&format!(
            "An unmodified nginx, redis and mosquitto run under `outlive serve`, each with its own; {connections} TCP connections at a time from another host use them: a 200 MB download, a 200 MB upload, 200 small requests, slow and idle ones; redis-benchmark, which counts; publishers and subscribers."
        ));
        say(&format!(
            "They are killed with SIGKILL {kills} times in all, each time at a random moment (seed {seed}; again: make demo ARGS='{}--seed {seed}'), and started again by outlive.",
            if with_logger { "" } else { "--no-logger " }
        ));
        if with_logger {
            say(
                "What clients send is recorded by `outlive logger` on a third host before it is acknowledged, and what redis and mosquitto were told before they answer; that is killed, too.",
            );
            say(
                "In the middle the host that serves loses its power. Another one, with `outlive standby`, takes all three over; the dead one comes back as the new standby.",
            );
        }
        say(
            "No client may notice: every byte must be right, each command done once, each message delivered once, and no connection made anew. Below: seconds since the beginning, and milliseconds since the last death.",
        );
        say("");
        Self {
            began: now(),
            killed: None,
        }
    }

    /// Prints an event of this moment.
    pub(crate) fn now(&self, what: &str, text: &str) {
        self.at(now(), what, text);
    }

    /// Prints a kill of this moment.
    pub(crate) fn kill(&mut self, what: &str, text: &str) {
        let time = now();
        self.killed = Some(time);
        self.at(time, what, text);
    }

    /// Prints an event of `time`, seconds since 1970.
    pub(crate) fn at(&self, time: f64, what: &str, text: &str) {
        let since_kill = self
            .killed
            .map(|killed| format!("{:+.1} ms", (time - killed) * 1e3));
        let since_kill = since_kill.unwrap_or_default();
        say(&format!(
            "{:8.3} s {since_kill:>11}  {what:<10} {text}",
            time - self.began
        ));
    }
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// Result of the demo.
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
    /// Times of the deaths, by server or host.
    pub(crate) deaths: Vec<(Instant, Server)>,
    /// Number of planned deaths.
    pub(crate) wanted_deaths: usize,
    /// Number of recoveries.
    pub(crate) recoveries: usize,
    /// Whether the logger was to be killed, and whether the records came back.
    pub(crate) logger: Option<bool>,
    /// Whether a host was to lose power, and whether that host came back as a standby.
    pub(crate) returned: Option<bool>,
}

impl Report {
    /// Prints the result. `true` if every connection worked under all these kills.
    pub(crate) fn print(&self) -> bool {
        say("");
        say(&format!(
            "{:26} {:>11} {:>6} {:>11} {:>13}",
            "", "connections", "deaths", "bytes", "longest pause"
        ));
        for kind in Kind::ALL {
            self.print_kind(kind);
        }
        let mut complaints: Vec<_> = self
            .outcomes
            .iter()
            .filter_map(|outcome| Some((outcome.kind, outcome.result.as_ref().err()?)))
            .map(|(kind, error)| format!("BROKEN: {}: {error:#}", kind.title()))
            .collect();
        let (made, broken) = self.connections();
        let wanted = self.wanted_deaths;
        let recovered = self.deaths.len() == wanted && self.recoveries == wanted;
        let kept = self.logger != Some(false);
        if !kept {
            complaints.push("FAILED: the logger has not come back with its records".to_owned());
        }
        let returned = self.returned != Some(false);
        if !returned {
            complaints
                .push("FAILED: the host without power has not come back as a standby".to_owned());
        }
        if !recovered {
            complaints.push(format!(
                "FAILED: {wanted} deaths of servers were wanted, {} happened, {} were recovered from",
                self.deaths.len(),
                self.recoveries
            ));
        }
        complaints.iter().for_each(|complaint| say(complaint));
        for server in [Server::Redis, Server::Mosquitto] {
            self.print_counts(server);
        }
        say(&format!(
            "demo: {} connections, {broken} broken, {} bytes identical, longest pause {} ms",
            made + broken,
            bytes(self.outcomes.iter()),
            longest(self.outcomes.iter())
                .unwrap_or_default()
                .as_millis(),
        ));
        broken == 0 && recovered && kept && returned
    }

    /// Numbers of connections that worked, and that did not.
    fn connections(&self) -> (usize, usize) {
        let made = served(self.outcomes.iter()).map(|served| served.connections);
        let served = |kind| served(self.of(kind)).count();
        let broken = Kind::ALL.map(|kind| (kind.clients() - served(kind)) * kind.at_a_time());
        (made.sum(), broken.iter().sum())
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Outcome> {
        let is_one = move |outcome: &&Outcome| outcome.kind == kind;
        self.outcomes.iter().filter(is_one)
    }

    /// Prints the counts of the clients that worked.
    fn print_counts(&self, server: Server) {
        let of_server = Kind::ALL.into_iter().filter(|kind| kind.server() == server);
        let counts = of_server.flat_map(|kind| {
            let served = served(self.of(kind));
            served.map(move |served| kind.counted(served.count))
        });
        let counts: Vec<String> = counts.collect();
        if !counts.is_empty() {
            say(&format!("{server}: {}", counts.join("; ")));
        }
    }

    fn print_kind(&self, kind: Kind) {
        let of_kind = || self.of(kind);
        let of_server = |server| server == kind.server();
        let deaths = of_kind()
            .map(|o| {
                let deaths = self.deaths.iter();
                deaths
                    .filter(|(at, server)| of_server(*server) && (o.began..o.ended).contains(at))
                    .count()
            })
            .min()
            .unwrap_or(0);
        let connections = served(of_kind()).map(|served| served.connections);
        let connections = connections.sum::<usize>();
        let bytes = match bytes(of_kind()) {
            0 => "-".to_owned(),
            bytes => bytes.to_string(),
        };
        let pause =
            longest(of_kind()).map_or("-".to_owned(), |pause| format!("{} ms", pause.as_millis()));
        say(&format!(
            "{:26} {:>11} {:>6} {:>11} {:>13}  {}",
            kind.title(),
            connections,
            deaths,
            bytes,
            pause,
            kind.pause(),
        ));
    }
}

/// Connections of that kind of client at a time.
fn at_a_time(kind: Kind) -> usize {
    kind.clients() * kind.at_a_time()
}

/// Results of the clients that worked.
fn served<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> impl Iterator<Item = &'a Served> {
    outcomes.filter_map(|outcome| outcome.result.as_ref().ok())
}

fn bytes<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> u64 {
    served(outcomes).map(|served| served.bytes).sum()
}

fn longest<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<Duration> {
    served(outcomes).filter_map(|served| served.pause).max()
}
