//! Power-off of the host of a server with a large checkpoint: the standby has the image, or fetches it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::takeover::times;
use crate::Bench;
use crate::figure::{Aim, Figure, column};
use crate::takeover::{Hosts, Pair, Served, address};
use crate::traffic::on_client;

/// Record that an image replaces, bytes; values of a kilobyte in redis.
const FULL: (u64, &str) = (256 << 20, "280000");
const QUICK: (u64, &str) = (32 << 20, "40000");
const FETCH_AIM_MS: f64 = 250.0;
const FETCH_BOUND: &str = "logger and standby share two processors: the logger reads and encrypts, the standby decrypts and \
     writes; a standby that has the image needs none of this";
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let hosts = Hosts::of(bench)?;
    let (at, commands) = bench.size(FULL, QUICK);
    bench.say(format_args!(
        "power-offs after a checkpoint of {commands} values"
    ));
    let mut pair = Pair::start(bench, &hosts, &Served::CheckpointedRedis { at }, None)?;
    fill(bench, commands)?;
    let made = pair.wait_for_within(0, "checkpointed", CHECKPOINT_TIMEOUT)?;
    let bytes = made["image_bytes"].as_u64().context("a size")?;
    let mut all = [Vec::new(), Vec::new()];
    let mut transfers = Vec::new();
    pair.stand_by()?;
    for _ in 0..bench.size(5, 2) {
        for (has_image, runs) in [true, false].into_iter().zip(&mut all) {
            bench.interrupt.check()?;
            if has_image {
                let arrived = pair.wait_for_within(1, "image_prefetched", CHECKPOINT_TIMEOUT)?;
                ensure!(
                    arrived["image_bytes"].as_u64() > Some(bytes / 2),
                    "{arrived}"
                );
                transfers.push([arrived["took_ms"].as_f64().context("a time")?]);
            }
            let [granted, serving] = times(&mut pair)?;
            runs.push([granted, serving, serving - granted]);
            pair.come_back()?;
        }
    }
    pair.stop()?;
    let how = format!(
        "power-off of the host that serves redis, with a checkpoint of {} MiB at the logger, the standby cold",
        bytes >> 20
    );
    let mut figures = Vec::new();
    for (name, words, runs) in [
        ("ahead", "and with the image", &all[0]),
        ("fetched", "and without the image", &all[1]),
    ] {
        let own = format!("north.takeover.image.{name}.own");
        let words = format!("{how}, {words}");
        let from_grant = format!("{words}: from the grant until it serves");
        figures.push(Figure::of(own, "ms", &column(runs, 2), from_grant));
        let live = format!("north.takeover.image.{name}.live");
        let from_death = format!("{words}: until the other host serves");
        figures.push(Figure::of(live, "ms", &column(runs, 1), from_death));
    }
    let pairs = all[0].iter().zip(&all[1]);
    let fetch: Vec<f64> = pairs
        .map(|(ahead, fetched)| fetched[2] - ahead[2])
        .collect();
    let words = "how much longer it takes without the image: in turn";
    figures.push(
        Figure::of("north.takeover.image.fetch", "ms", &fetch, words)
            .aim(Aim::AtMost(FETCH_AIM_MS), FETCH_BOUND),
    );
    let words = "time in which the standby fetches the image ahead, at a quarter of the speed";
    let transfer = column(&transfers, 0);
    figures.push(Figure::of(
        "north.takeover.image.transfer",
        "ms",
        &transfer,
        words,
    ));
    Ok(figures)
}

/// Values of a kilobyte, each of another key.
fn fill(bench: &Bench, commands: &str) -> Result<()> {
    let address = address()?;
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let arguments = [
        "-h", &ip, "-p", &port, "-t", "set", "-c", "50", "-P", "16", "-n", commands, "-r",
        "320000", "-d", "1000", "-q",
    ];
    on_client(bench, "redis-benchmark", &arguments).map(drop)
}
