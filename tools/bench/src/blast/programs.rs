//! `outlive send` beside programs that copy files, and beside TCP on a path that loses packets.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::rivals::{Rival, Rivals, timed};
use super::{Receiver, file_of, start_iperf, tcp};
use crate::Bench;
use crate::figure::{Aim, Figure, ratios};

/// The path of the wide area: bits in a second, one way, and lost packets.
const WIDE_RATE: u64 = 100_000_000;
const WIDE_DELAY: Duration = Duration::from_millis(25);
const WIDE_LOSS: f64 = 1.0;
const FILE_BOUND: &str = "four threads share two processors: each end reads or writes, encrypts or decrypts, and \
     hashes; the other programs do none of these but the first";
const WIDE_BOUND: &str =
    "the start finds the rate by doubling, and the last blasts wait for repetitions";

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = files(bench)?;
    figures.extend(wide_area(bench)?);
    Ok(figures)
}

/// Ways of `outlive send`, and their names in figures.
const WAYS: [(&str, &[&str]); 2] = [("", &[]), (".tcp", &["--carrier", "tcp"])];

/// A file between two hosts, cached at both ends.
fn files(bench: &Bench) -> Result<Vec<Figure>> {
    let size = bench.size(2 << 30, 256 << 20);
    bench.say(format_args!(
        "a file of {} MiB, by several programs",
        size >> 20
    ));
    let stage = &bench.stage;
    let file = file_of(bench, "image", size)?;
    let receiver = Receiver::start(bench, &stage.server, "0")?;
    let rivals = Rivals::start(bench)?;
    let mut ours = WAYS.map(|_| Vec::new());
    let mut theirs: Vec<Vec<f64>> = rivals.all.iter().map(|_| Vec::new()).collect();
    for _ in 0..bench.rounds.min(5) {
        bench.interrupt.check()?;
        for ((_, options), seconds) in WAYS.iter().zip(&mut ours) {
            let mut command = receiver.sender(bench, &stage.client, &file, options);
            seconds.push(timed(bench, &stage.client, &mut command)?);
            receiver.forget("image", size)?;
        }
        for (rival, seconds) in rivals.all.iter().zip(&mut theirs) {
            seconds.push((rival.copy)(bench, &file)?);
            let copied = fs::metadata(stage.file("copied")).context("a copy")?.len();
            ensure!(copied == size, "{} has copied {copied} bytes", rival.name);
            fs::remove_file(stage.file("copied"))?;
        }
    }
    receiver.stop()?;
    fs::remove_file(&file)?;
    let about = format!(
        "a file of {} MiB, in memory at both ends, 1500-byte frames",
        size >> 20
    );
    let mut figures = Vec::new();
    for ((way, options), seconds) in WAYS.iter().zip(&ours) {
        let command = ["outlive send", options.last().copied().unwrap_or("")].join(" ");
        let command = command.trim();
        let speeds: Vec<f64> = seconds.iter().map(|it| size as f64 / it / 1e9).collect();
        let how = format!("{about}: {command}, encrypted, and hashed at both ends");
        figures.push(Figure::of(format!("blast.send{way}"), "GB/s", &speeds, how));
        for (rival, theirs) in rivals.all.iter().zip(&theirs) {
            let Rival { name, aim, .. } = rival;
            let how = format!("{about}: time of {name} by time of {command}, in turn");
            let named = format!("blast.send{way}.over_{name}");
            let over = Figure::of(named, "", &ratios(seconds, theirs), how);
            figures.push(match aim.filter(|_| way.is_empty()) {
                Some(aim) => over.aim(Aim::AtLeast(aim), FILE_BOUND),
                None => over,
            });
        }
    }
    drop(rivals);
    Ok(figures)
}

/// 100 Mbit/s, 50 ms for a round trip, one packet of a hundred lost: beside TCP with CUBIC and with BBR.
fn wide_area(bench: &Bench) -> Result<Vec<Figure>> {
    bench.say("a path of 100 Mbit/s and 50 ms that loses 1 %");
    let stage = &bench.stage;
    let size: u64 = bench.size(32 << 20, 8 << 20);
    let file = file_of(bench, "wide", size)?;
    let receiver = Receiver::start(bench, &stage.server, "0")?;
    let server = start_iperf(bench)?;
    for host in [&stage.client, &stage.server] {
        host.links()[0].adjust(&lab::Direction::BOTH, |link| {
            link.rate(WIDE_RATE)
                .delay(WIDE_DELAY / 2)
                .loss(WIDE_LOSS / 2.0)
        })?;
    }
    let (mut ours, mut cubic, mut bbr) = (WAYS.map(|_| Vec::new()), Vec::new(), Vec::new());
    for _ in 0..bench.size(3, 1) {
        bench.interrupt.check()?;
        for ((_, options), ours) in WAYS.iter().zip(&mut ours) {
            let mut command = receiver.sender(bench, &stage.client, &file, options);
            let seconds = timed(bench, &stage.client, &mut command)?;
            receiver.forget("wide", size)?;
            ours.push(size as f64 / seconds / 1e6);
        }
        // By CUBIC fewer bytes: the rate is the same from the second second on.
        let fewer = (size / bench.size(8, 16)).to_string();
        cubic.push(tcp(bench, "cubic", ["-n", &fewer])? / 8e6);
        bbr.push(tcp(bench, "bbr", ["-n", &size.to_string()])? / 8e6);
    }
    for host in [&stage.client, &stage.server] {
        host.clear_impairment()?;
    }
    drop(server);
    receiver.stop()?;
    fs::remove_file(file)?;
    let about = format!(
        "{} MiB over 100 Mbit/s, 50 ms for a round trip, 1 % of the packets lost each way",
        size >> 20
    );
    let [ours, by_tcp] = ours;
    let versus = |name: &str, theirs: &[f64], aim: f64| {
        let how = format!("{about}: outlive send by iperf3 -C {name}, in turn");
        Figure::of(
            format!("blast.wide.over_{name}"),
            "",
            &ratios(theirs, &ours),
            how,
        )
        .aim(Aim::AtLeast(aim), WIDE_BOUND)
    };
    let how = format!("{about}: outlive send, connection and hash with it");
    Ok(vec![
        Figure::of("blast.wide", "MB/s", &ours, how),
        Figure::of(
            "blast.wide.tcp",
            "MB/s",
            &by_tcp,
            format!("{about}: outlive send --carrier tcp, four connections with CUBIC"),
        ),
        Figure::of(
            "blast.wide.tcp.over_cubic",
            "",
            &ratios(&cubic, &by_tcp),
            format!("{about}: outlive send --carrier tcp by iperf3 -C cubic, in turn"),
        ),
        versus("cubic", &cubic, 5.0),
        versus("bbr", &bbr, 0.9),
    ])
}
