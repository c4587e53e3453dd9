//! Users beside a transfer: requests to redis while a file leaves its host in the background, and TCP on the same link.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Host, Output, Process};

use super::{Receiver, TRANSFER_TIMEOUT, file_of, start_iperf, tcp};
use crate::Bench;
use crate::figure::{Aim, Figure, ratios};
use crate::stage;

const REDIS_PORT: u16 = 6379;
/// The link of the host that serves, and uploads.
const LINK_RATE: u64 = 1_000_000_000;
const SHARED_RATE: u64 = 100_000_000;
const SHARED_DELAY: Duration = Duration::from_millis(10);
const REDIS_BOUND: &str = "redis, its clients and both ends of the transfer share two processors";

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = beside_redis(bench)?;
    figures.extend(beside_tcp(bench)?);
    Ok(figures)
}

/// A transfer that goes on until the guard is dropped.
struct Upload(#[expect(dead_code, reason = "the process ends with the guard")] Process);

impl Upload {
    /// Returns when bytes have arrived.
    fn start(bench: &Bench, receiver: &Receiver, from: &Host, more: &[&str]) -> Result<Self> {
        // The part of an upload that was killed stays locked until the receiver has noticed the end.
        receiver.forget_parts()?;
        let file = bench.stage.file("upload");
        let mut command = receiver.sender(bench, from, &file, more);
        let log = bench.stage.file("upload.log");
        let process = from.spawn(&mut command, &Output::File(log))?;
        let begun = Instant::now();
        while receiver.arrived_bytes()? < bench.size(64 << 20, 8 << 20) {
            bench.interrupt.check()?;
            ensure!(
                begun.elapsed() < TRANSFER_TIMEOUT,
                "the upload does not begin"
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Self(process))
    }
}

fn beside_redis(bench: &Bench) -> Result<Vec<Figure>> {
    bench.say("redis beside an upload in the background, 1 Gbit/s");
    let stage = &bench.stage;
    let other = stage.testbed.lab.add_host("backup")?;
    let receiver = Receiver::start(bench, &other, "19")?;
    let mut redis = stage.server.command("redis-server");
    redis.args([
        "--bind",
        "0.0.0.0",
        "--protected-mode",
        "no",
        "--save",
        "",
        "--port",
    ]);
    redis.arg(REDIS_PORT.to_string());
    let log = stage.file("redis.log");
    let server = stage.server.spawn(&mut redis, &Output::File(log.clone()))?;
    stage
        .testbed
        .await_listener(&stage.server, REDIS_PORT, &server, &log)?;
    file_of(bench, "upload", bench.size(8 << 30, 3 << 30))?;
    let mut figures = Vec::new();
    for (name, rate, path) in [
        ("", None, "a link that is never full"),
        (
            ".shared",
            Some(LINK_RATE),
            "a link of 1 Gbit/s that both fill",
        ),
    ] {
        stage::limit(&stage.server, rate)?;
        let (mut alone, mut beside, mut full) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.rounds.min(5) {
            bench.interrupt.check()?;
            alone.push(latency(bench)?);
            for (more, latencies) in [(&["--background"][..], &mut beside), (&[][..], &mut full)] {
                let upload = Upload::start(bench, &receiver, &stage.server, more)?;
                latencies.push(latency(bench)?);
                drop(upload);
            }
        }
        let how = format!(
            "redis-benchmark, 4 clients without pause, 99 of 100 answers within: beside outlive send --background from \
             the same host, by alone, in turn; over {path}; the receiver's host has a processor of its own (nice 19)"
        );
        let background = format!("blast.redis.background{name}");
        let background = Figure::of(background, "", &ratios(&alone, &beside), how);
        figures.push(match rate {
            None => background.aim(Aim::AtMost(1.1), REDIS_BOUND),
            Some(_) => background,
        });
        figures.push(Figure::of(
            format!("blast.redis.full{name}"),
            "",
            &ratios(&alone, &full),
            "the same beside outlive send without --background",
        ));
        figures.push(Figure::of(
            format!("blast.redis.alone{name}"),
            "ms",
            &alone,
            "the same, alone",
        ));
    }
    stage::limit(&stage.server, None)?;
    drop(server);
    receiver.stop()?;
    fs::remove_file(stage.file("upload"))?;
    Ok(figures)
}

/// The time within which 99 of 100 requests are answered, milliseconds.
fn latency(bench: &Bench) -> Result<f64> {
    let to = bench.stage.server.address().ipv4().to_string();
    let (port, count) = (REDIS_PORT.to_string(), bench.size("20000", "6000"));
    let arguments = [
        "-h", &to, "-p", &port, "-t", "get", "-c", "4", "-n", count, "--csv",
    ];
    let said = bench.stage.run(
        "redis-benchmark",
        &arguments,
        TRANSFER_TIMEOUT,
        &bench.interrupt,
    )?;
    // "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms",…
    let row = said.lines().last().context("a row of redis-benchmark")?;
    let field = row.split(',').nth(6).context("a row of redis-benchmark")?;
    Ok(field.trim_matches('"').parse()?)
}

/// The share of TCP beside a transfer on the same link: half of the link would be fair.
fn beside_tcp(bench: &Bench) -> Result<Vec<Figure>> {
    bench.say("TCP beside a transfer, 100 Mbit/s, 20 ms");
    let stage = &bench.stage;
    let receiver = Receiver::start(bench, &stage.server, "0")?;
    file_of(bench, "upload", 1 << 30)?;
    let server = start_iperf(bench)?;
    stage.client.links()[0].adjust(&lab::Direction::BOTH, |link| {
        link.rate(SHARED_RATE).delay(SHARED_DELAY)
    })?;
    let seconds = bench.size("10", "2");
    let mut figures = Vec::new();
    for (name, more) in [("full", &[][..]), ("background", &["--background"][..])] {
        for control in ["cubic", "bbr"] {
            let mut shares = Vec::new();
            for _ in 0..bench.size(3, 1) {
                bench.interrupt.check()?;
                let upload = Upload::start(bench, &receiver, &stage.client, more)?;
                shares.push(tcp(bench, control, ["-t", seconds])? / (SHARED_RATE as f64));
                drop(upload);
            }
            let how = format!(
                "share of a link of 100 Mbit/s and 20 ms that TCP ({control}) gets beside outlive send ({name})"
            );
            figures.push(Figure::of(
                format!("blast.beside.{control}.{name}"),
                "",
                &shares,
                how,
            ));
        }
    }
    stage.client.clear_impairment()?;
    drop(server);
    receiver.stop()?;
    fs::remove_file(stage.file("upload"))?;
    Ok(figures)
}
