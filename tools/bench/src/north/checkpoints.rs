//! A checkpoint replaces the determinant log: the pause for the clients, the size of image and log, and the recovery
//! time from image and from log.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::takeover::count;
use super::{DEATH_INTERVAL, timing};
use crate::Bench;
use crate::figure::{Figure, column};
use crate::recovery::kill;
use crate::stage::PORT;
use crate::subject::{Mode, Server, Subject};
use crate::traffic::on_client;

/// Longest time of a checkpoint.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which a client is watched without a checkpoint.
const BASELINE_TIME: Duration = Duration::from_secs(3);

/// The content of redis.
struct Load {
    name: &'static str,
    /// The arguments for redis-benchmark.
    keys: &'static str,
    length: &'static str,
    commands: &'static str,
    /// More of the record than that takes, bytes.
    at: u64,
}

const SMALL: Load = Load {
    name: "small",
    keys: "1",
    length: "3",
    commands: "200000",
    at: 20 << 20,
};
const LARGE: Load = Load {
    name: "large",
    keys: "200000",
    length: "1000",
    commands: "200000",
    at: 256 << 20,
};
const QUICK: Load = Load {
    name: "quick",
    keys: "20000",
    length: "100",
    commands: "20000",
    at: 8 << 20,
};

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for load in bench.size(&[SMALL, LARGE][..], &[QUICK][..]) {
        bench.say(format_args!(
            "a checkpoint after {} commands ({})",
            load.commands, load.name
        ));
        let mut runs = Vec::new();
        for _ in 0..bench.size(5, 1) {
            bench.interrupt.check()?;
            runs.push(checkpoint(bench, load)?);
        }
        figures.extend(figures_of(load, &runs));
    }
    Ok(figures)
}

/// In the order of [`FIGURES`].
type Run = [f64; FIGURES.len()];

const FIGURES: [(&str, &str, &str); 8] = [
    (
        "quiet",
        "ms",
        "the longest that a client who counts has waited in 3 s before",
    ),
    ("pause", "ms", "the same while the checkpoint is made"),
    (
        "made",
        "ms",
        "from its beginning until it has been tried, and counts",
    ),
    ("image", "bytes", "its size"),
    ("record.before", "bytes", "the record when it counts"),
    ("record.after", "bytes", "what of that is left"),
    ("live.replayed", "ms", "SIGKILL before it: until live again"),
    ("live.restored", "ms", "SIGKILL after it: until live again"),
];

fn checkpoint(bench: &Bench, load: &Load) -> Result<Run> {
    let mode = Mode::Checkpointed(load.at);
    let mut subject = Subject::start(bench, &Server::redis(bench), mode)?;
    fill(bench, load)?;
    let replayed = live(&mut subject)?;
    let (quiet, ()) = watched(bench, || {
        thread::sleep(BASELINE_TIME);
        Ok(())
    })?;
    let record = subject.status()?["determinant_log_bytes"].as_u64();
    let record = record.context("`outlive status` did not say determinant_log_bytes")?;
    overflow(bench, load.at, record)?;
    let (pause, made) = watched(bench, || {
        subject.wait_for("checkpointed", CHECKPOINT_TIMEOUT)
    })?;
    let field = |name: &str| -> Result<f64> {
        let value = made[name].as_f64();
        value.with_context(|| format!("no {name} in {made}"))
    };
    let left = field("left_bytes")?;
    let restored = live(&mut subject)?;
    let run = [
        quiet,
        pause,
        field("took_ms")?,
        field("image_bytes")?,
        field("released_bytes")? + left,
        left,
        replayed,
        restored,
    ];
    subject.stop()?;
    Ok(run)
}

fn fill(bench: &Bench, load: &Load) -> Result<()> {
    let address = bench.stage.address(PORT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let arguments = [
        "-h",
        &ip,
        "-p",
        &port,
        "-t",
        "set",
        "-c",
        "50",
        "-P",
        "16",
        "-n",
        load.commands,
        "-r",
        load.keys,
        "-d",
        load.length,
        "-q",
    ];
    on_client(bench, "redis-benchmark", &arguments).map(drop)
}

/// Sends the bytes that are missing until a checkpoint is due, at once.
fn overflow(bench: &Bench, at: u64, record: u64) -> Result<()> {
    let missing = at.checked_sub(record);
    let missing = missing.with_context(|| format!("{record} bytes are more than {at}"))?;
    let value = vec![b'x'; usize::try_from(missing)? + (1 << 20)];
    let to = bench.stage.address(PORT);
    let mut stream = bench.stage.client.enter(|| TcpStream::connect(to))??;
    stream.set_read_timeout(Some(CHECKPOINT_TIMEOUT))?;
    write!(
        stream,
        "*3\r\n$3\r\nSET\r\n$8\r\noverflow\r\n${}\r\n",
        value.len()
    )?;
    stream.write_all(&value)?;
    stream.write_all(b"\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    ensure!(&answer == b"+OK\r\n", "redis said {answer:?}");
    Ok(())
}

/// Kills the server, and waits for the end of the recovery: milliseconds.
fn live(subject: &mut Subject<'_>) -> Result<f64> {
    thread::sleep(DEATH_INTERVAL);
    let event: Value = kill(subject)?;
    ensure!(event["reset"] == 0, "connections were reset: {event}");
    let live = timing(&event, "live_ms")?;
    thread::sleep(DEATH_INTERVAL);
    Ok(live)
}

/// Runs `what` while a client counts. Returns the longest wait of the client, in milliseconds, and the result of
/// `what`.
fn watched<T>(bench: &Bench, what: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let to = bench.stage.address(PORT);
    let stream = bench.stage.client.enter(|| TcpStream::connect(to))??;
    let ends = &AtomicBool::new(false);
    let (done, waited) = thread::scope(|scope| {
        let client = scope.spawn(|| count(stream, ends));
        let done = what();
        ends.store(true, Ordering::Relaxed);
        (done, client.join())
    });
    let waited = waited.map_err(|_| anyhow::anyhow!("the client has panicked"))?;
    Ok((waited?, done?))
}

fn figures_of(load: &Load, runs: &[Run]) -> Vec<Figure> {
    let Load {
        name,
        keys,
        length,
        commands,
        ..
    } = load;
    let how = format!(
        "redis-benchmark -t set -c 50 -P 16 -n {commands} -r {keys} -d {length}, then one SET of what was missing until \
         the checkpoint was due"
    );
    let figures = (0..).zip(FIGURES);
    let figures = figures.map(|(index, (what, unit, words))| {
        let name = format!("north.checkpoint.{name}.{what}");
        Figure::of(name, unit, &column(runs, index), format!("{how}: {words}"))
    });
    figures.collect()
}
