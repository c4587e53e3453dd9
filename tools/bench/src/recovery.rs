//! From SIGKILL to live, step by step.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::Signal;
use rustix::process::kill_process;
use serde_json::Value;

use super::Bench;
use super::clients::{Answers, Crowd};
use super::figure::{Aim, Figure};
use super::subject::{Mode, Server, Subject, own_start};
use harness::quantile::quantile;

/// Longest time of a recovery.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// serve starts a server of this age again without a pause.
const BACKOFF_RESET_TIME: Duration = Duration::from_millis(1050);

const BOUND: &str = "the dead server's processes must be gone and its sockets destroyed before the new one may \
     start; what takes longest is in the steps of this table";

/// A step of a recovery, and the field of the event at the end of the step. A step begins where the step before ends.
const STEPS: [(&str, &str); 7] = [
    ("detection", "detected_ms"),
    ("clearing", "cleared_ms"),
    ("restart", "restarted_ms"),
    ("listening", "listening_ms"),
    ("first_splice", "first_spliced_ms"),
    ("splice", "spliced_ms"),
    ("replay", "live_ms"),
];

/// The times of a recovery, each from the death, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times([f64; STEPS.len()]);

impl Times {
    /// From a `serving` event.
    pub(super) fn of(event: &Value) -> Result<Self> {
        let mut times = [0.0; STEPS.len()];
        for (time, (_, field)) in times.iter_mut().zip(STEPS) {
            let value = event["timings"][field].as_f64();
            *time = value.with_context(|| format!("no {field} in {event}"))?;
        }
        Ok(Self(times))
    }

    pub(super) fn first_spliced(self) -> f64 {
        self.0[4]
    }

    pub(super) fn live(self) -> f64 {
        self.0[6]
    }

    /// How long each step took.
    fn steps(self) -> [f64; STEPS.len()] {
        let mut before = 0.0;
        self.0
            .map(|time| time - std::mem::replace(&mut before, time))
    }
}

/// Kills the server with SIGKILL and waits until the server serves again.
pub(super) fn kill(subject: &mut Subject<'_>) -> Result<Value> {
    kill_process(subject.server_pid()?, Signal::KILL)?;
    subject.wait_for("serving", RECOVERY_TIMEOUT)
}

/// As [`kill`], with a crowd whose clients all send a request while the server is dead. The answers have the time from
/// the kill.
pub(super) fn kill_among(
    bench: &Bench,
    subject: &mut Subject<'_>,
    crowd: &mut Crowd,
) -> Result<(Value, Answers)> {
    kill_process(subject.server_pid()?, Signal::KILL)?;
    let answers = crowd.ask_all(bench)?;
    Ok((subject.wait_for("serving", RECOVERY_TIMEOUT)?, answers))
}

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let server = Server::nginx(bench);
    let starts: Vec<f64> = (0..bench.size(10, 3))
        .map(|_| own_start(bench, &server))
        .collect::<Result<_>>()?;
    let start = Figure::of(
        "recovery.own_start",
        "ms",
        &starts,
        "nginx, plain, from its start until it listens",
    );
    let own = start.value;
    let mut figures = vec![start];
    for (connections, kills) in bench.size(
        [(1, 20), (100, 20), (1000, 20)],
        [(1, 3), (100, 2), (1000, 2)],
    ) {
        figures.extend(with_connections(bench, &server, connections, kills, own)?);
    }
    Ok(figures)
}

fn with_connections(
    bench: &Bench,
    server: &Server,
    connections: usize,
    kills: usize,
    own_start: f64,
) -> Result<Vec<Figure>> {
    bench.say(format_args!(
        "{kills} kills with {connections} idle connections"
    ));
    let mut subject = Subject::start(bench, server, Mode::Protected("connection"))?;
    let mut all = Vec::new();
    let mut alive = Vec::new();
    for kill_number in 1..=kills {
        let mut crowd = Crowd::gather(bench, connections)?;
        thread::sleep(BACKOFF_RESET_TIME);
        all.push(Times::of(&kill(&mut subject)?)?);
        let (answer, why) = crowd.alive(bench)?;
        if let Some(why) = why {
            bench.say(format_args!(
                "kill {kill_number}: {answer} of {connections} connections answer: {why}"
            ));
            bench.say(format_args!(
                "serve says: {}",
                subject.complaints()?.join("; ")
            ));
        }
        alive.push(f64::from(u32::try_from(answer)?));
    }
    if alive
        .iter()
        .all(|count| *count == f64::from(u32::try_from(connections).unwrap_or(0)))
    {
        subject.stop()?;
    } else {
        // The complaints of serve were printed.
        subject.end()?;
    }
    Ok(figures(connections, &all, &alive, own_start))
}

fn figures(connections: usize, all: &[Times], alive: &[f64], own_start: f64) -> Vec<Figure> {
    let name = |what: &str| format!("recovery.{connections}.{what}");
    let how = format!(
        "SIGKILL of nginx's master with {connections} idle connections, each with one answered request; serve's own timings"
    );
    let mut figures = Vec::new();
    for (index, (step, _)) in STEPS.iter().enumerate() {
        let values: Vec<f64> = all.iter().map(|times| times.steps()[index]).collect();
        figures.push(Figure::of(name(step), "ms", &values, &how));
    }
    let live: Vec<f64> = all.iter().map(|times| times.live()).collect();
    figures.push(Figure::of(name("live"), "ms", &live, &how));
    let first: Vec<f64> = all
        .iter()
        .map(|times| times.first_spliced() - own_start)
        .collect();
    let what = format!(
        "{how}: until the first connection is spliced, less the server's own start of {own_start:.1} ms"
    );
    figures
        .push(Figure::of(name("first_spliced"), "ms", &first, what).aim(Aim::AtMost(50.0), BOUND));
    figures.push(survivors(
        &name("alive"),
        connections,
        alive,
        "those that answered one more request after the kill; the least of all kills",
    ));
    figures
}

/// The least number of connections that answered after a kill; none may be missing.
pub(super) fn survivors(name: &str, connections: usize, alive: &[f64], how: &str) -> Figure {
    let mut sorted = alive.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut figure = Figure::of(name, "connections", alive, how);
    figure.value = quantile(&sorted, 0.0);
    let all = f64::from(u32::try_from(connections).unwrap_or(u32::MAX));
    figure
        .aim(Aim::AtLeast(all), "connections were lost: a defect")
        .promise()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn steps_are_times_between_timings() -> Result<()> {
        let event = json!({ "timings": {
            "detected_ms": 1.0, "cleared_ms": 3.0, "restarted_ms": 6.0, "listening_ms": 10.0,
            "first_spliced_ms": 15.0, "spliced_ms": 21.0, "live_ms": 28.0,
        }});
        let times = Times::of(&event)?;
        assert_eq!(times.steps(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!((times.first_spliced(), times.live()), (15.0, 28.0));
        Ok(())
    }

    #[test]
    fn event_without_timings_is_an_error() {
        assert!(Times::of(&json!({ "event": "serving" })).is_err());
    }

    #[test]
    fn single_lost_connection_breaks_promise() {
        assert_eq!(
            survivors("x", 10, &[10.0, 9.0, 10.0], "").met(),
            Some(false)
        );
        assert_eq!(survivors("x", 10, &[10.0, 10.0], "").met(), Some(true));
    }
}
