//! Power-off of the host of a server with state: the time until another host has the state, by a cold or a hot
//! standby.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::set_at;
use crate::Bench;
use crate::figure::{Aim, Figure, column};
use crate::takeover::{Hosts, Pair, Served, address, now};

/// The required time of a hot standby, milliseconds from the death of the other host.
const AIM_MS: f64 = 100.0;
const BOUND: &str = "the lease must be over before another host may speak, and that is most of it";
/// The lease is short when the holder has asked steadily for a while, milliseconds: the shortest by default is 50.
const SHORT_LEASE_MS: f64 = 50.0;
/// How long that may take.
const UNTIL_STEADY: Duration = Duration::from_secs(90);
/// A shorter lease, milliseconds. The lease must be stable for a minute, with all hosts on two processors.
const SHORT_LEASE: u64 = 40;
const SHORT_BOUND: &str =
    "besides the lease: client, two hosts and the logger share two processors";
/// The standby has caught up when the lag is at most the traffic of the watching client at any time.
const CAUGHT_UP_BYTES: u64 = 10_000;
/// Longest time of a replay.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(60);
const SETTLE_TIME: Duration = Duration::from_millis(300);

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let hosts = Hosts::of(bench)?;
    let mut figures = Vec::new();
    for commands in bench.size(&["1000", "100000", "400000"][..], &["1000", "50000"][..]) {
        for (hot, how) in [(false, "cold"), (true, "hot")] {
            bench.say(format_args!("power-offs after {commands} commands, {how}"));
            let mut pair = start(bench, &hosts, hot, None)?;
            let runs = power_offs(bench, &mut pair, commands, hot, hot)?;
            pair.stop()?;
            figures.extend(figures_of(commands, how, None, &runs));
        }
    }
    figures.extend(with_short_lease(bench, &hosts)?);
    Ok(figures)
}

/// Hot, and with hardly a lease to wait for.
fn with_short_lease(bench: &Bench, hosts: &Hosts) -> Result<Vec<Figure>> {
    const COMMANDS: &str = "1000";
    bench.say(format_args!("power-offs with a lease of {SHORT_LEASE} ms"));
    let mut pair = start(bench, hosts, true, Some(SHORT_LEASE))?;
    let runs = power_offs(bench, &mut pair, COMMANDS, true, false);
    let moved = pair.has_moved()?;
    pair.stop()?;
    if moved {
        bench.say("the service has moved by itself: this machine is too busy for that");
        return Ok(Vec::new());
    }
    Ok(figures_of(COMMANDS, "short", Some(SHORT_LEASE), &runs?))
}

fn start<'a>(bench: &'a Bench, hosts: &Hosts, hot: bool, lease: Option<u64>) -> Result<Pair<'a>> {
    Pair::start(bench, hosts, &Served::Redis { hot }, lease)
}

/// Milliseconds since the power-off: until another host may send, until that host serves, and the longest wait of a
/// client.
type Times = [f64; 3];

fn power_offs(
    bench: &Bench,
    pair: &mut Pair<'_>,
    commands: &str,
    hot: bool,
    becomes_steady: bool,
) -> Result<Vec<Times>> {
    pair.stand_by()?;
    set_at(bench, address()?, "50", "1", commands)?;
    let mut runs = Vec::new();
    for _ in 0..bench.size(5, 2) {
        bench.interrupt.check()?;
        if hot {
            await_follower(bench, pair)?;
        }
        if becomes_steady {
            await_steadiness(bench, pair)?;
        }
        runs.push(power_off(bench, pair)?);
        pair.come_back()?;
    }
    Ok(runs)
}

/// Returns when the standby's server has replayed the log of the other server.
fn await_follower(bench: &Bench, pair: &Pair<'_>) -> Result<()> {
    let began = Instant::now();
    while pair.status(1)?["replica"]["lag_bytes"]
        .as_u64()
        .is_none_or(|behind| behind > CAUGHT_UP_BYTES)
    {
        bench.interrupt.check()?;
        ensure!(
            began.elapsed() < REPLAY_TIMEOUT,
            "the standby does not catch up"
        );
        thread::sleep(SETTLE_TIME / 10);
    }
    Ok(())
}

/// Returns when the logger grants short leases, because the holder asks steadily.
fn await_steadiness(bench: &Bench, pair: &Pair<'_>) -> Result<()> {
    let began = Instant::now();
    let mut short = 0;
    while short < 5 {
        bench.interrupt.check()?;
        ensure!(
            began.elapsed() < UNTIL_STEADY,
            "the leases stay long: this machine is too busy"
        );
        let left = pair.lease_left()?;
        short = if left.is_some_and(|left| left <= SHORT_LEASE_MS) {
            short + 1
        } else {
            0
        };
        thread::sleep(SETTLE_TIME / 3);
    }
    Ok(())
}

fn power_off(bench: &Bench, pair: &mut Pair<'_>) -> Result<Times> {
    let to = address()?;
    let stream = bench.stage.client.enter(|| TcpStream::connect(to))??;
    let ends = &AtomicBool::new(false);
    let (times, waited) = thread::scope(|scope| {
        let client = scope.spawn(|| count(stream, ends));
        thread::sleep(SETTLE_TIME);
        let times = times(pair);
        thread::sleep(SETTLE_TIME);
        ends.store(true, Ordering::Relaxed);
        (times, client.join())
    });
    let waited = waited.map_err(|_| anyhow::anyhow!("the client has panicked"))?;
    let [granted, serving] = times?;
    Ok([granted, serving, waited?])
}

/// Of the host that takes over, since the power went.
pub(super) fn times(pair: &mut Pair<'_>) -> Result<[f64; 2]> {
    let off = now();
    pair.power_off()?;
    let serving = pair.wait_for(0, "serving")?;
    let events = pair.events(0)?;
    let granted = events
        .iter()
        .rev()
        .find(|event| event["event"] == "granted");
    let since = |event: &Value| -> Result<f64> {
        let time = event["time_unix_us"].as_f64();
        let time = time.context("an event without a time")? / 1e6;
        Ok((time - off) * 1e3)
    };
    Ok([
        since(granted.context("it was granted nothing")?)?,
        since(&serving)?,
    ])
}

/// Counts, and returns the longest wait for a response, in milliseconds. No response may be missing or come twice.
pub(super) fn count(stream: TcpStream, ends: &AtomicBool) -> Result<f64> {
    stream.set_read_timeout(Some(REPLAY_TIMEOUT))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let (mut longest, mut last) = (Duration::ZERO, None);
    while !ends.load(Ordering::Relaxed) {
        let asked = Instant::now();
        (&stream).write_all(b"INCR watched\r\n")?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        longest = longest.max(asked.elapsed());
        let number = answer
            .strip_prefix(':')
            .and_then(|rest| rest.trim_end().parse::<u64>().ok());
        let number = number.with_context(|| format!("redis said {answer:?}"))?;
        ensure!(
            last.is_none_or(|last| number == last + 1),
            "counted {number} after {last:?}"
        );
        last = Some(number);
        thread::sleep(Duration::from_millis(1));
    }
    Ok(longest.as_secs_f64() * 1e3)
}

fn figures_of(commands: &str, name: &str, lease: Option<u64>, runs: &[Times]) -> Vec<Figure> {
    let standby = if name == "cold" { "cold" } else { "hot" };
    let lease = match lease {
        Some(lease) => format!("a lease of {lease} ms"),
        None if name == "cold" => {
            "the lease as it is by default (between 50 and 250 ms)".to_owned()
        }
        None => {
            "the lease as it is by default when the holder has asked steadily for a while (50 ms)"
                .to_owned()
        }
    };
    let how = format!(
        "power-off of the host that serves redis after {commands} SETs of 50 clients, {lease}, the standby {standby}"
    );
    let figure = |index: usize, what: &str, words: &str| {
        let name = format!("north.takeover.{commands}.{name}.{what}");
        Figure::of(name, "ms", &column(runs, index), format!("{how}: {words}"))
    };
    let own: Vec<f64> = runs
        .iter()
        .map(|[granted, serving, _]| serving - granted)
        .collect();
    let own = Figure::of(
        format!("north.takeover.{commands}.{name}.own"),
        "ms",
        &own,
        format!("{how}: from the grant until it serves"),
    );
    let live = figure(1, "live", "until the other host serves");
    let live = match name {
        "hot" => live.aim(Aim::AtMost(AIM_MS), BOUND),
        "short" => live.aim(Aim::AtMost(AIM_MS), SHORT_BOUND),
        _ => live,
    };
    let words = "the longest that a client who counts has waited for an answer";
    vec![live, own, figure(2, "pause", words)]
}
