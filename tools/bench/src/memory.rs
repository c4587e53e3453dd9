//! The cost of idle connections in memory and time, and a kill with very many idle connections.
//!
//! The memory is that of [`super::usage`]. As a check, the kernel's allocations on the whole system are compared with
//! a plain run.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::Pid;

use super::Bench;
use super::clients::{Answers, Crowd};
use super::figure::{Aim, Figure};
use super::processors::used_by;
use super::recovery::{Times, kill_among, survivors};
use super::subject::{Mode, Server, Subject};
use super::usage::{Used, anonymous, kernel, processes};
use harness::quantile::quantile;

/// Number of connections.
pub(super) const CONNECTION_COUNT: usize = 10_000;
/// After this time the logger has emptied the ring, and sockets have shrunk their buffers.
const SETTLE_TIME: Duration = Duration::from_millis(1050);

/// Long enough to count ticks of 10 ms.
const IDLE_TIME: Duration = Duration::from_secs(4);

const IDLE_BOUND: &str = "serve tells the programs once a second that it lives, and the logger looks into the ring \
     every 50 ms";
const BOUND: &str = "a connection takes an entry in the map of flows and a record in the logger; the record keeps \
     the requests and 4 KiB of the last answer's beginning (--verify hash, --replay connection). \
     --replay request or --verify off keep less";

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let connections = CONNECTION_COUNT;
    let server = Server::nginx(bench);
    bench.say(format_args!("{connections} connections, plain"));
    let plain = {
        let subject = Subject::start(bench, &server, Mode::Plain)?;
        let before = kernel()?;
        let crowd = Crowd::gather(bench, connections)?;
        thread::sleep(SETTLE_TIME);
        let taken = kernel()? - before;
        drop(crowd);
        subject.stop()?;
        taken
    };
    bench.say(format_args!("{connections} connections, protected"));
    let mut subject = Subject::start(bench, &server, Mode::Protected("connection"))?;
    let (before, empty) = (kernel()?, Used::by(subject.pid())?);
    let mut crowd = Crowd::gather(bench, connections)?;
    thread::sleep(SETTLE_TIME);
    let full = Used::by(subject.pid())?;
    let taken = kernel()? - before;
    let idle = idle_percent(subject.pid())?;
    bench.say(format_args!("killed with {connections} connections"));
    let killed = kill_crowd(bench, &mut subject, &mut crowd)?;
    thread::sleep(SETTLE_TIME);
    let after = Used::by(subject.pid())?;
    drop(crowd);
    end(subject, &killed)?;

    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let how = format!(
        "with {connections} idle connections, each with one answered request, less the same without any: "
    );
    let mut figures = vec![
        one(
            "memory.connection",
            "bytes",
            each(full.total() - empty.total()),
            &format!("{how}anonymous memory of serve and logger, and BPF maps"),
        )
        .aim(Aim::AtMost(2048.0), BOUND),
        one(
            "memory.connection.processes",
            "bytes",
            each(full.anonymous - empty.anonymous),
            &format!("{how}anonymous memory of serve and logger"),
        ),
        one(
            "memory.connection.maps",
            "bytes",
            each(full.maps - empty.maps),
            &format!("{how}BPF maps"),
        ),
        one(
            "memory.connection.kernel",
            "bytes",
            each(taken - plain),
            &format!(
                "{how}what the kernel allocates (SUnreclaim, Percpu of /proc/meminfo), protected less plain: a check of the maps, as coarse as other programs make it"
            ),
        ),
        one(
            "memory.connection.recovered",
            "bytes",
            each(after.total() - empty.total()),
            &format!("{how}the same sum after a kill and one more request each"),
        ),
        one(
            "idle.cpu",
            "%",
            idle,
            &format!("of one CPU, serve and logger together, with {connections} idle connections"),
        )
        .aim(Aim::AtMost(2.0), IDLE_BOUND),
        one(
            "memory.fixed",
            "MiB",
            mib(empty.total()),
            "serve, logger and BPF maps (the ring to the logger is 32 MiB of it) without connections",
        ),
    ];
    figures.extend(killed.figures(&format!("recovery.{connections}")));
    Ok(figures)
}

/// The same with the record on another host.
pub(super) fn linked(bench: &Bench) -> Result<Vec<Figure>> {
    let connections = CONNECTION_COUNT;
    bench.say(format_args!(
        "{connections} connections, with a logger on another host"
    ));
    let mut subject = Subject::start(bench, &Server::nginx(bench), Mode::Linked(None))?;
    let logger = subject.logger_pid().context("no logger")?;
    let empty = (Used::by(subject.pid())?, anonymous(logger)?);
    let began = Instant::now();
    let mut crowd = Crowd::gather(bench, connections)?;
    let gathered = began.elapsed().as_secs_f64();
    thread::sleep(SETTLE_TIME);
    let full = (Used::by(subject.pid())?, anonymous(logger)?);
    let protected = subject.protected_connections()?;
    bench.say(format_args!("killed with {connections} connections"));
    let killed = kill_crowd(bench, &mut subject, &mut crowd)?;
    drop(crowd);
    end(subject, &killed)?;
    let how = format!(
        "with {connections} idle connections, each with one answered request, less the same without any: "
    );
    let mut figures = vec![
        survivors(
            "link.crowd.protected",
            connections,
            &[protected],
            "connections that serve says are protected: each was opened by the detour through the logger",
        ),
        one(
            "link.crowd.gathered",
            "1/s",
            whole(connections) / gathered,
            "connections opened one after another, with a request and its answer each",
        ),
        one(
            "link.memory.connection.logger",
            "bytes",
            each(full.1 - empty.1),
            &format!("{how}anonymous memory of the logger"),
        )
        .aim(Aim::AtMost(2048.0), BOUND),
        one(
            "link.memory.connection.serve",
            "bytes",
            each(full.0.total() - empty.0.total()),
            &format!("{how}anonymous memory of serve, and BPF maps, on the server's host"),
        ),
        one(
            "link.memory.fixed.logger",
            "MiB",
            empty.1 / f64::from(1 << 20),
            "anonymous memory of the logger with a service and without connections",
        ),
    ];
    figures.extend(killed.figures("link.crowd"));
    Ok(figures)
}

/// The crowd after a kill of the server.
struct Killed {
    times: Times,
    answers: Answers,
}

fn kill_crowd(bench: &Bench, subject: &mut Subject<'_>, crowd: &mut Crowd) -> Result<Killed> {
    let (event, answers) = kill_among(bench, subject, crowd)?;
    if let Some(why) = &answers.why {
        let answered = answers.after.len();
        bench.say(format_args!("{answered} connections answer: {why}"));
        let complaints = subject.complaints()?.join("; ");
        bench.say(format_args!("serve says: {complaints}"));
    }
    let times = Times::of(&event)?;
    Ok(Killed { times, answers })
}

/// Stops a server. Complaints of `serve` were printed already, if a client failed.
fn end(subject: Subject<'_>, killed: &Killed) -> Result<()> {
    if killed.answers.why.is_some() {
        subject.end()
    } else {
        subject.stop()
    }
}

impl Killed {
    fn figures(&self, name: &str) -> Vec<Figure> {
        let how = "a single kill with all connections open";
        let timings = format!("{how}; serve's own timings");
        let mut after = self.answers.after.clone();
        after.sort_by(f64::total_cmp);
        let pause = format!(
            "{how}, each of which asked at once; from the kill until it had its answer, of all of them"
        );
        let mut figures = vec![
            one(
                &format!("{name}.first_spliced_since_death"),
                "ms",
                self.times.first_spliced(),
                &timings,
            ),
            one(&format!("{name}.live"), "ms", self.times.live(), &timings),
            survivors(
                &format!("{name}.alive"),
                CONNECTION_COUNT,
                &[whole(after.len())],
                "those that answered a request that was sent right after the kill",
            ),
        ];
        for (part, quantile_of) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            let value = quantile(&after, quantile_of);
            figures.push(one(&format!("{name}.pause.{part}"), "ms", value, &pause));
        }
        figures
    }
}

fn one(name: &str, unit: &'static str, value: f64, how: &str) -> Figure {
    Figure::of(name, unit, &[value], how)
}

/// A sum over all connections, for each.
fn each(sum: f64) -> f64 {
    sum / whole(CONNECTION_COUNT)
}

fn whole(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The part of a CPU that serve and logger take while clients are idle, in per cent.
fn idle_percent(serve: Pid) -> Result<f64> {
    let taken = || -> Result<f64> {
        let of_each = processes(serve)?.into_iter().map(used_by);
        of_each.sum()
    };
    let before = taken()?;
    thread::sleep(IDLE_TIME);
    Ok((taken()? - before) / IDLE_TIME.as_secs_f64() * 100.0)
}
