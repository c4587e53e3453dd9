//! The cost of a standby: the same traffic without and with a standby.

use anyhow::Result;

use super::{DEFAULT_LEASE_MS, Hosts, Pair, Served, address};
use crate::Bench;
use crate::figure::{Aim, Figure, column, ratios};
use crate::traffic::{curl, wrk};
use harness::quantile::quantile;

const BOUND: &str = "each packet that leaves is compared with the clock; three times in a lease a message goes \
     to the logger and back";

/// A sample takes a second or two: too short for a single sample to show the cost of a few more packets.
const RUNS_PER_SAMPLE: usize = 5;

/// The median of [`RUNS_PER_SAMPLE`] measurements in a row.
fn median(measure: impl Fn() -> Result<f64>) -> Result<f64> {
    let mut all = (0..RUNS_PER_SAMPLE)
        .map(|_| measure())
        .collect::<Result<Vec<_>>>()?;
    all.sort_by(f64::total_cmp);
    Ok(quantile(&all, 0.5))
}

pub(super) fn measure(bench: &Bench, hosts: &Hosts) -> Result<Vec<Figure>> {
    bench.say("curl and wrk, without and with a standby");
    let size: u64 = bench.size(2 << 30, 256 << 20);
    bench.stage.sparse("www/object", size)?;
    let duration = bench.size("-d2s", "-d1s");
    let url = format!("http://{}", address()?);
    let mut runs = [const { Vec::new() }; 2];
    for _ in 0..bench.rounds {
        for (stands_by, runs) in [false, true].into_iter().zip(&mut runs) {
            bench.interrupt.check()?;
            let mut pair = Pair::start(bench, hosts, &Served::Nginx, Some(DEFAULT_LEASE_MS))?;
            if stands_by {
                pair.stand_by()?;
            }
            curl(bench, &["-r", "0-33554431", &format!("{url}/object")])?;
            let large = median(|| curl(bench, &[&format!("{url}/object")]))?;
            let small = median(|| wrk(bench, &["-t1", "-c16", duration, &format!("{url}/small")]))?;
            runs.push([large, small]);
            pair.stop()?;
        }
    }
    let mut figures = Vec::new();
    for (index, (name, unit, how)) in [
        (
            "download",
            "Gbit/s",
            format!(
                "the median of {RUNS_PER_SAMPLE} times curl of a sparse file of {} MiB in memory",
                size >> 20
            ),
        ),
        (
            "requests",
            "1/s",
            format!(
                "the median of {RUNS_PER_SAMPLE} times wrk -t1 -c16 {duration} of an object of 128 bytes"
            ),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let how = format!("{how}, nginx; a logger, without and with a standby");
        let [alone, leased] = [0, 1].map(|which: usize| column(&runs[which], index));
        let name = format!("takeover.cost.{name}");
        let ratio = Figure::of(format!("{name}.ratio"), "", &ratios(&alone, &leased), &how);
        figures.push(ratio.aim(Aim::AtLeast(0.98), BOUND));
        figures.push(Figure::of(format!("{name}.alone"), unit, &alone, &how));
        figures.push(Figure::of(format!("{name}.leased"), unit, &leased, &how));
    }
    Ok(figures)
}
