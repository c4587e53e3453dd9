//! Which of `--ack` is the best at memory speed: the default has to be.

use std::thread;

use anyhow::Result;

use super::Bench;
use super::figure::{Figure, column, ratios};
use super::subject::{Mode, Server, alternate};
use super::traffic::{IPERF_REST, iperf};

const STRATEGIES: [&str; 4] = ["basic", "lazy", "eager", "conditional"];

/// Uploads with each, one after another, again and again.
pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let bytes = format!("{}M", bench.size(900, 128));
    bench.say("iperf3, by each --ack");
    let server = Server::iperf3(bench).pinned();
    let mut modes = vec![Mode::Plain];
    modes.extend(STRATEGIES.map(Mode::LinkedBy));
    let runs = alternate(bench, &server, &modes, |_| {
        iperf(bench, &["-n", &bytes])?;
        thread::sleep(IPERF_REST);
        Ok([iperf(bench, &["-n", &bytes])?])
    })?;
    let plain = column(&runs[0], 0);
    let how =
        format!("iperf3 -n {bytes}, one connection, the second one; the logger on another host");
    let figures = STRATEGIES.into_iter().zip(&runs[1..]);
    let figures = figures.map(|(strategy, runs)| {
        let name = format!("link.upload.{strategy}.ratio");
        let how = format!("{how}; --ack {strategy}");
        Figure::of(name, "", &ratios(&plain, &column(runs, 0)), how)
    });
    Ok(figures.collect())
}
