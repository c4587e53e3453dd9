//! `make paper`: the experiments of section V of the FT-TCP paper (Alvisi, Bressoud, El-Khashab, Marzullo, Zagorodnov:
//! Wrapping Server-Side TCP to Mask Connection Failures, INFOCOM 2001), repeated in a lab and printed beside the
//! paper's own figures.
//!
//! An unmodified client uploads 1 MB at full speed to a server that discards the data, over Ethernets of the paper's
//! rates; a capture on the client is read afterwards. [`stage`] is the lab, [`experiment`] a row of Tables I to IV,
//! [`recovery`] a row of Table V, [`upload`] the measures from a capture. [`statistics`] and [`harness::plot`]
//! summarize the measures, [`published`] has the paper's figures, and [`report`] shows both side by side.

mod experiment;
mod published;
mod recovery;
mod report;
mod stage;
mod statistics;
mod upload;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;

use experiment::{Layout, Plan, Strategy};
use report::Report;

use harness::task::{Interrupt, Programs, ended, need_root};

/// Options of `make paper`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only this part; repeat this option for more
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,
    /// Run only on this network; repeat this option for more
    #[arg(long, value_enum, value_name = "NETWORK")]
    layout: Vec<Layout>,
    /// Run only this row; repeat this option for more
    #[arg(long, value_enum, value_name = "ROW")]
    strategy: Vec<Strategy>,
    /// Number of uploads for each row; the paper has 12
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Number of recoveries for each row; the paper has 20
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    recoveries: u16,
    /// Repeat the experiments of the TRODS paper instead: figures 4 and 5, and Table 2
    #[arg(long, conflicts_with_all = ["only", "layout", "strategy"], group = "other_paper")]
    objects: bool,
    /// Repeat Tables 1 to 3 of the bulk transfer paper instead
    #[arg(long, conflicts_with_all = ["only", "layout", "strategy"], group = "other_paper")]
    blast: bool,
    /// Number of runs for each row of the TRODS paper, which has 5, or of the bulk transfer paper
    #[arg(long, default_value_t = 5, requires = "other_paper", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Directory of PAPER.md, paper.json and the plots [default: bench; if a part, network or row is left out, no file
    /// is written]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Path of the `outlive` to measure [default: beside this program]
    #[arg(long, value_name = "PROGRAM", env = "OUTLIVE_BIN", hide_env = true)]
    outlive: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Tables I to III and figures 3 and 4: the strategies
    Tables,
    /// Table IV: the strategies, with each frame acknowledged by itself
    Nagle,
    /// Table V: recoveries
    Recovery,
}

impl Options {
    fn does(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn is_whole(&self) -> bool {
        self.only.is_empty() && self.layout.is_empty() && self.strategy.is_empty()
    }
}

/// Runs the experiments. The exit status is 0 when all could be run, with any results.
pub(crate) fn main(options: &Options) -> ExitCode {
    ended("paper", run(options))
}

fn run(options: &Options) -> Result<bool> {
    need_root()?;
    let began = Instant::now();
    let programs = Programs::find(options.outlive.clone())?;
    let interrupt = Interrupt::on_signals()?;
    if options.blast {
        let output = options.output.clone().unwrap_or_else(|| "bench".into());
        crate::blast::tables::run(&interrupt, options.rounds, &output)?;
        return Ok(true);
    }
    if options.objects {
        let output = options.output.clone().unwrap_or_else(|| "bench".into());
        crate::objects::run(programs, &interrupt, options.rounds, &output)?;
        return Ok(true);
    }
    let mut report = Report::default();
    let plan = Plan {
        strategies: chosen(&options.strategy, &Strategy::ALL),
        each_frame: [(Part::Tables, false), (Part::Nagle, true)]
            .into_iter()
            .filter(|(part, _)| options.does(*part))
            .map(|(_, each_frame)| each_frame)
            .collect(),
        runs: options.runs.into(),
    };
    if !plan.each_frame.is_empty() {
        println!("uploads of 1 MB, {} a row", plan.runs);
        for layout in chosen(&options.layout, &Layout::ALL) {
            report
                .rows
                .extend(experiment::measure(layout, &plan, &programs, &interrupt)?);
        }
    }
    if options.does(Part::Recovery) {
        println!("recoveries with 1 MB logged, {} a row", options.recoveries);
        for place in recovery::LOGGER_PLACES {
            let runs = options.recoveries.into();
            let measured = recovery::measure(place, runs, &programs, &interrupt)?;
            report.recoveries.push(measured);
        }
    }
    report.took = began.elapsed();
    println!("\n{}", report.tables());
    let default = options.is_whole().then(|| PathBuf::from("bench"));
    if let Some(directory) = options.output.clone().or(default) {
        report.write(&directory)?;
        println!("written to {}", directory.display());
    }
    Ok(true)
}

/// The chosen values, or all.
fn chosen<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
    if asked.is_empty() {
        all.to_vec()
    } else {
        asked.to_vec()
    }
}
