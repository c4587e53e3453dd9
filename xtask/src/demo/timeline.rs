//! What is printed while it happens, and in the end.

use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::demo::clients::{Kind, Outcome};

/// Prints a line. When nobody reads any more, the demo goes on: its exit status may be all
/// that is wanted.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints what happens, with its time.
pub(crate) struct Timeline {
    /// Seconds since 1970, as in the events of `serve`.
    began: f64,
    killed: Option<f64>,
}

impl Timeline {
    /// Says what will happen, in a few lines.
    pub(crate) fn begin(kills: u32, with_logger: bool, seed: u64) -> Self {
        let connections: usize = Kind::ALL.into_iter().map(Kind::connections).sum();
        say(&format!(
            "An unmodified nginx runs under `outlive serve`; {connections} TCP connections from another host use it: a 200 MB download, a 200 MB upload, 200 small requests, slow and idle ones."
        ));
        say(&format!(
            "nginx is killed with SIGKILL {kills} times, each time at a random moment (seed {seed}; again: make demo ARGS='{}--seed {seed}'), and started again by outlive.",
            if with_logger { "" } else { "--no-logger " }
        ));
        if with_logger {
            say(
                "What clients send is recorded by `outlive logger` on a third host before it is acknowledged; that is killed, too.",
            );
            say(
                "In the middle the host that serves loses its power. Another one, with `outlive standby`, takes over; the dead one comes back as the new standby.",
            );
        }
        say(
            "No client may notice: every byte must be right, and no connection made anew. Below: seconds since the beginning, and milliseconds since the last death.",
        );
        say("");
        Self {
            began: now(),
            killed: None,
        }
    }

    /// Something happens now.
    pub(crate) fn now(&self, what: &str, text: &str) {
        self.at(now(), what, text);
    }

    /// Something is killed now.
    pub(crate) fn kill(&mut self, what: &str, text: &str) {
        let time = now();
        self.killed = Some(time);
        self.at(time, what, text);
    }

    /// Something happened at `time`, seconds since 1970.
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

/// How the demo went.
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
    /// When the server died: it was killed, or its host.
    pub(crate) deaths: Vec<Instant>,
    /// How often it had to.
    pub(crate) wanted_deaths: usize,
    /// How often it served again.
    pub(crate) recoveries: usize,
    /// The logger was to be killed as well, and whether it found its records again.
    pub(crate) logger: Option<bool>,
    /// A host was to lose its power, and whether it came back as a standby.
    pub(crate) returned: Option<bool>,
}

impl Report {
    /// Prints it. True (it passed) if each connection did what it had to, under all those kills.
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
        let expected: usize = Kind::ALL.into_iter().map(Kind::connections).sum();
        let broken = expected - (self.outcomes.len() - complaints.len());
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
                "FAILED: {wanted} deaths of nginx were wanted, {} happened, {} were recovered from",
                self.deaths.len(),
                self.recoveries
            ));
        }
        complaints.iter().for_each(|complaint| say(complaint));
        say(&format!(
            "demo: {expected} connections, {broken} broken, {} bytes identical, longest pause {} ms",
            bytes(self.outcomes.iter()),
            longest(self.outcomes.iter())
                .unwrap_or_default()
                .as_millis(),
        ));
        broken == 0 && recovered && kept && returned
    }

    fn print_kind(&self, kind: Kind) {
        let of_kind = || {
            self.outcomes
                .iter()
                .filter(move |outcome| outcome.kind == kind)
        };
        let deaths = of_kind()
            .map(|o| {
                self.deaths
                    .iter()
                    .filter(|death| (o.began..o.ended).contains(*death))
                    .count()
            })
            .min()
            .unwrap_or(0);
        let pause =
            longest(of_kind()).map_or("-".to_owned(), |pause| format!("{} ms", pause.as_millis()));
        say(&format!(
            "{:26} {:>11} {:>6} {:>11} {:>13}  {}",
            kind.title(),
            kind.connections(),
            deaths,
            bytes(of_kind()),
            pause,
            kind.pause(),
        ));
    }
}

fn bytes<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> u64 {
    outcomes
        .filter_map(|outcome| Some(outcome.result.as_ref().ok()?.bytes))
        .sum()
}

fn longest<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<Duration> {
    outcomes
        .filter_map(|outcome| outcome.result.as_ref().ok()?.pause)
        .max()
}
