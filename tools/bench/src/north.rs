//! A server with state: the cost of the determinant log, and the time of a recovery.

pub(super) mod checkpoints;
pub(super) mod images;
pub(super) mod other_servers;
pub(super) mod takeover;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Bench;
use super::figure::{Aim, Figure, column, ratios};
use super::recovery::kill;
use super::stage::PORT;
use super::subject::{Mode, Server, Subject, alternate};
use super::traffic::on_client;

/// The modes of redis, and the names of the figures.
const MODES: [(Mode, &str); 8] = [
    (Mode::Plain, "plain"),
    (Mode::Protected("connection"), "south"),
    (Mode::Linked(None), "linked"),
    (Mode::Wrapped, "recorded"),
    (Mode::CommittedHere, "loopback"),
    (Mode::Committed(0), "committed"),
    (Mode::Committed(250), "committed.250us"),
    (Mode::Committed(1000), "committed.1ms"),
];
/// Clients and commands in a row, with the aim for the speed that is left.
const LOADS: [(&str, &str, f64); 4] = [
    ("1", "1", 0.95),
    ("1", "16", 0.85),
    ("50", "1", 0.95),
    ("50", "16", 0.85),
];
/// Most latency that output commit may add to a command.
const ADDED_LATENCY_MS: f64 = 0.2;
/// Most waits for the logger in an iteration of the server's event loop.
const WAITS_PER_ITERATION: f64 = 1.0;
/// Bytes of a SET of redis-benchmark: `*3`, `SET`, a key of 16 bytes and a value of 3.
const REQUEST_BYTES: f64 = 45.0;
/// Pause before the next death, so that serve counts two deaths.
const DEATH_INTERVAL: Duration = Duration::from_millis(1100);

const COMMIT_BOUND: &str = "a round trip to the logger before the first answer of each turn of the server's loop, on \
     the same processors";
const BOUND: &str = "each call of the server is looked at by the preloaded library, and what it brought is copied into the record";

pub(super) fn speeds(bench: &Bench) -> Result<Vec<Figure>> {
    let server = Server::redis(bench);
    let mut figures = Vec::new();
    for (clients, pipeline, aim) in LOADS {
        figures.extend(speed(bench, &server, clients, pipeline, aim)?);
    }
    Ok(figures)
}

/// Commands a second: plainly, with the south side alone, and with a record of the server's own.
fn speed(
    bench: &Bench,
    server: &Server,
    clients: &str,
    pipeline: &str,
    aim: f64,
) -> Result<Vec<Figure>> {
    let commands = match (clients, pipeline) {
        ("1", "1") => bench.size("40000", "10000"),
        ("1", _) => bench.size("300000", "80000"),
        (_, "1") => bench.size("150000", "40000"),
        _ => bench.size("1000000", "200000"),
    };
    bench.say(format_args!(
        "redis-benchmark, {clients} clients, {pipeline} commands in a row"
    ));
    let modes = MODES.map(|(mode, _)| mode);
    // For a single client that waits for a round trip each time.
    let fewer = match pipeline {
        "1" => bench.size("8000", "2000"),
        _ => bench.size("80000", "20000"),
    };
    let runs = alternate(bench, &server.clone().pinned(), &modes, |subject| {
        let is_far = matches!(subject.mode, Mode::Committed(1..));
        let (warm_up, commands) = match (clients, pipeline) {
            ("1", _) if is_far => ("500", fewer),
            _ => ("5000", commands),
        };
        set(bench, clients, pipeline, warm_up)?;
        let before = commits(subject)?;
        let [speed, median] = set(bench, clients, pipeline, commands)?;
        let after = commits(subject)?;
        let [turns, waits] = [0, 1].map(|which| after[which] - before[which]);
        Ok([speed, median, waits / turns])
    })?;
    let less = match clients {
        "1" => format!(" (with a logger 250 µs away or more: {fewer})"),
        _ => String::new(),
    };
    let how = format!(
        "redis-benchmark -t set -c {clients} -P {pipeline} -n {commands}{less}, the second run"
    );
    let name = format!("north.redis.c{clients}.p{pipeline}");
    let speeds: Vec<Vec<f64>> = runs.iter().map(|runs| column(runs, 0)).collect();
    let medians: Vec<Vec<f64>> = runs.iter().map(|runs| column(runs, 1)).collect();
    let mut figures = Vec::new();
    for (which, (_, mode)) in MODES.into_iter().enumerate() {
        let speed = Figure::of(format!("{name}.{mode}"), "1/s", &speeds[which], &how);
        figures.push(speed);
        if which == 0 {
            continue;
        }
        let ratio = ratios(&speeds[0], &speeds[which]);
        let ratio = Figure::of(format!("{name}.{mode}.ratio"), "", &ratio, &how);
        let pairs = medians[0].iter().zip(&medians[which]);
        let added: Vec<f64> = pairs.map(|(plain, with)| with - plain).collect();
        let added = Figure::of(
            format!("{name}.{mode}.added"),
            "ms",
            &added,
            format!("{how}: what the median latency is longer than the plain server's"),
        );
        figures.extend(match mode {
            "recorded" => [ratio.aim(Aim::AtLeast(aim), BOUND), added],
            "committed" => [
                ratio.aim(Aim::AtLeast(aim), COMMIT_BOUND),
                added.aim(Aim::AtMost(ADDED_LATENCY_MS), COMMIT_BOUND),
            ],
            _ => [ratio, added],
        });
        if mode.starts_with("committed") {
            let waits = column(&runs[which], 2);
            let how = format!(
                "{how}: how often the server waited for the logger, by how often it looked what is ready"
            );
            let waits = Figure::of(format!("{name}.{mode}.waits"), "per turn", &waits, how);
            figures.push(match mode {
                "committed" => waits.aim(
                    Aim::AtMost(WAITS_PER_ITERATION),
                    "what is said in a turn leaves together",
                ),
                _ => waits,
            });
        }
    }
    Ok(figures)
}

/// SETs a second, and the median latency in milliseconds.
fn set(bench: &Bench, clients: &str, pipeline: &str, commands: &str) -> Result<[f64; 2]> {
    set_at(
        bench,
        bench.stage.address(PORT),
        clients,
        pipeline,
        commands,
    )
}

fn set_at(
    bench: &Bench,
    address: SocketAddr,
    clients: &str,
    pipeline: &str,
    commands: &str,
) -> Result<[f64; 2]> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let arguments = [
        "-h", &ip, "-p", &port, "-t", "set", "-c", clients, "-P", pipeline, "-n", commands, "--csv",
    ];
    let said = on_client(bench, "redis-benchmark", &arguments)?;
    let line = said.lines().find(|line| line.starts_with("\"SET\""));
    // The fields: name, SETs a second, and the latency: average, least, median and others.
    let field = |which| {
        let field =
            line.and_then(|line| line.split(',').nth(which)?.trim_matches('"').parse().ok());
        field.with_context(|| format!("redis-benchmark said {said}"))
    };
    Ok([field(1)?, field(4)?])
}

/// Bytes of the determinant log for each command, and the time of a recovery after so many commands.
pub(super) fn recovery(bench: &Bench) -> Result<Vec<Figure>> {
    let server = Server::redis(bench);
    let mut figures = Vec::new();
    for (pipeline, aim) in [("1", 12.0), ("16", 5.0)] {
        let commands = bench.size("200000", "50000");
        bench.say(format_args!(
            "a record of {commands} commands, {pipeline} in a row, and kills"
        ));
        let mut subject = Subject::start(bench, &server, Mode::Wrapped)?;
        let before = record(&subject)?;
        let [live_speed, _] = set(bench, "50", pipeline, commands)?;
        let count: f64 = commands.parse()?;
        let each = (record(&subject)? - before) / count - REQUEST_BYTES;
        let (mut live, mut replayed) = (Vec::new(), Vec::new());
        for _ in 0..bench.size(5, 2) {
            thread::sleep(DEATH_INTERVAL);
            let event = kill(&mut subject)?;
            ensure!(event["reset"] == 0, "connections were reset: {event}");
            live.push(timing(&event, "live_ms")?);
            let replay = timing(&event, "replayed_ms")? - timing(&event, "listening_ms")?;
            replayed.push(count / (replay / 1e3) / live_speed);
        }
        subject.stop()?;
        let how = format!("redis-benchmark -t set -c 50 -P {pipeline} -n {commands}");
        let name = format!("north.redis.p{pipeline}");
        let bytes = Figure::of(
            format!("{name}.record"),
            "bytes",
            &[each],
            format!(
                "{how}: the record's growth for each command, less the {REQUEST_BYTES} bytes of the command"
            ),
        );
        figures.push(bytes.aim(
            Aim::AtMost(aim),
            "a note for each turn, for each read, and for the clock",
        ));
        let live = Figure::of(
            format!("{name}.live"),
            "ms",
            &live,
            format!("SIGKILL after {how}: until live again, with all that was set"),
        );
        figures.push(live);
        let replay = Figure::of(
            format!("{name}.replay.ratio"),
            "",
            &replayed,
            format!(
                "{how}: the speed of the replay by the speed at which the record was made; from listening until replayed"
            ),
        );
        // Commands in a row are mostly the server's own work, which a replay does again.
        figures.push(match pipeline {
            "1" => replay.aim(
                Aim::AtLeast(5.0),
                "the server's own work is the same in a replay",
            ),
            _ => replay,
        });
    }
    Ok(figures)
}

fn timing(event: &Value, name: &str) -> Result<f64> {
    let value = event["timings"][name].as_f64();
    value.with_context(|| format!("no {name} in {event}"))
}

/// Iterations of the server's event loop until now, and waits for the logger; 0 in modes without output commit.
fn commits(subject: &Subject<'_>) -> Result<[f64; 2]> {
    if !matches!(subject.mode, Mode::Committed(_) | Mode::CommittedHere) {
        return Ok([0.0; 2]);
    }
    let status = subject.status()?;
    let count = |name| {
        let count = status["output_commit"][name].as_f64();
        count.with_context(|| format!("`outlive status` did not say commits: {status}"))
    };
    Ok([count("iterations")?, count("waits")?])
}

/// Bytes of the server's own record.
fn record(subject: &Subject<'_>) -> Result<f64> {
    let status = subject.status()?;
    let bytes = status["determinant_log_bytes"].as_f64();
    bytes.with_context(|| format!("`outlive status` did not say determinant_log_bytes: {status}"))
}
