//! `make simulate`: the simulation of the optimistic make paper (Bubenik and Zwaenepoel, *Optimistic Make*, Rice COMP
//! TR 1989, sections 5 and 6), printed beside the paper's own figures, and the same with times that were measured
//! here.
//!
//! [`plan`] has the simulated settings, [`published`] the paper's figures, [`measured`] a workload of measured times,
//! [`figure`] a result, [`report`] the report.

mod figure;
mod measured;
mod plan;
mod published;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use make_model::Precision;

use measured::Builds;
use plan::Plan;
use report::Report;

use crate::blast;
use harness::task::{Interrupt, ended};

/// Options of `make simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// File that `make builds ARGS='--json FILE'` has written: simulate once more with the times of this file
    #[arg(long, value_name = "FILE")]
    times: Option<PathBuf>,
    /// Precision of each median, in percent, with a confidence of 95 %; the paper has 3
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT")]
    precision: f64,
    /// Largest number of runs of a setting, even if the precision is not reached
    #[arg(long, default_value_t = 1000, value_name = "NUMBER")]
    runs: usize,
    /// Repeat the simulation of the bulk transfer paper instead: figures 5 to 7, and the predictions of section 6
    #[arg(long, conflicts_with_all = ["times", "precision", "runs"])]
    blast: bool,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1989)]
    seed: u64,
    /// Directory of SIMULATION.md and simulation.json (with --blast: SIMULATION-BLAST.md and simulation-blast.json);
    /// results.json of `make bench` is read there
    #[arg(long, default_value = "bench", value_name = "DIRECTORY")]
    output: PathBuf,
}

/// Simulates all settings. The exit status is 0 with any results.
pub(crate) fn main(options: &Options) -> ExitCode {
    let result = match options.blast {
        true => blast::run(options.seed, &options.output),
        false => run(options),
    };
    ended("simulate", result)
}

fn run(options: &Options) -> Result<bool> {
    let began = Instant::now();
    let interrupt = Interrupt::on_signals()?;
    let builds = options.times.as_deref().map(Builds::read).transpose()?;
    let precision = Precision {
        within: options.precision / 100.0,
        runs: options.runs,
    };
    let simulate = |plan: &Plan| {
        println!("{}", plan.name);
        plan.simulate(precision, options.seed, &interrupt)
    };
    let mut report = Report {
        paper: simulate(&Plan::paper())?,
        measured: Vec::new(),
        builds,
        costs: figure::costs(&options.output)?,
        precision,
        took: began.elapsed(),
    };
    if let Some(builds) = &report.builds {
        report.measured = simulate(&Plan::measured(builds))?;
    }
    report.took = began.elapsed();
    println!("\n{}", report.tables());
    report.write(&options.output)?;
    println!("written to {}", options.output.display());
    Ok(true)
}
