//! Which of `--ack` is the best at memory speed: the default has to be.

use std::thread;

use anyhow::Result;

use super::Bench;
use super::figure::{Figure, column, ratios};
use super::subject::{Mode, Server, alternate};
use super::traffic::{IPERF_REST, iperf};

const STRATEGIES: [&str; 4] = [BASIC, "lazy", "eager", "conditional"];
/// Basic waits for timers again and again, at any rate of the link: hundreds of megabytes would take a minute, and
/// show no more than 64 MB.
const BASIC: &str = "basic";

/// Uploads with each strategy, in turn, again and again.
pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let bytes = |mode| match mode {
        Mode::LinkedBy(BASIC) => "64M".to_owned(),
        _ => format!("{}M", bench.size(900, 128)),
    };
    bench.say("iperf3, by each --ack");
    let server = Server::iperf3(bench).pinned();
    let mut modes = vec![Mode::Plain];
    modes.extend(STRATEGIES.map(Mode::LinkedBy));
    let runs = alternate(bench, &server, &modes, |subject| {
        let bytes = bytes(subject.mode);
        iperf(bench, &["-n", &bytes])?;
        thread::sleep(IPERF_REST);
        Ok([iperf(bench, &["-n", &bytes])?])
    })?;
    let plain = column(&runs[0], 0);
    let figures = STRATEGIES.into_iter().zip(&runs[1..]);
    let figures = figures.map(|(strategy, runs)| {
        let name = format!("link.upload.{strategy}.ratio");
        let how = format!(
            "iperf3 -n {}, one connection, the second one; the logger on another host; --ack {strategy}",
            bytes(Mode::LinkedBy(strategy))
        );
        Figure::of(name, "", &ratios(&plain, &column(runs, 0)), how)
    });
    Ok(figures.collect())
}
