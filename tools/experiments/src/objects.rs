//! `make paper ARGS=--objects`: the experiments of section 6 of the TRODS paper (Lloyd, Freedman: Transparent Recovery
//! for Object Delivery Services), repeated in a lab and printed beside the paper's own figures.
//!
//! Many clients fetch small objects, each on a connection of its own, from one server: figures 4 and 5. One client
//! fetches an object of one byte again and again, and measures each step: Table 2. [`stage`] is the lab, [`latency`]
//! the one client, [`published`] has the paper's figures, and [`report`] shows both side by side.

mod latency;
mod published;
mod report;
mod stage;

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use harness::task::{Interrupt, Programs};

use latency::Fetch;
use report::Report;
use stage::{Mode, SIZES, Server, Stage};

/// Runs the experiments, and writes the files into this directory.
///
/// # Errors
/// A program does not start, or a client has an error.
pub(crate) fn run(
    programs: Programs,
    interrupt: &Interrupt,
    rounds: u16,
    directory: &Path,
) -> Result<()> {
    let began = Instant::now();
    let stage = Stage::build(programs, interrupt.clone())?;
    let mut report = Report::default();
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        for server in Server::ALL {
            for mode in Mode::ALL {
                interrupt.check()?;
                let measured = stage.with(server, mode, |address| {
                    let rates = SIZES.map(|size| stage.requests_per_second(address, size));
                    let fetches = latency::measure(&stage.client, address)?;
                    Ok((rates, fetches))
                });
                let (rates, fetches) = measured?;
                for (size, rate) in SIZES.into_iter().zip(rates) {
                    report.add_rate(server, mode, size, rate?);
                }
                report.add_fetches(server, mode, fetches);
            }
        }
    }
    stage.stop()?;
    report.took = began.elapsed();
    println!("\n{}", report.tables());
    report.write(directory)?;
    println!("written to {}", directory.display());
    Ok(())
}
