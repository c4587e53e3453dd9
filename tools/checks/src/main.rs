//! Runs the checks of the project: `make test`, `make test-all` and `make test-loaded` call this program.
//!
//! The steps come one after another, and a failing step does not stop the run. The last line is
//! `N passed, N failed`; above that line are the seconds of each step and the seed that repeats the
//! run.

#![forbid(unsafe_code)]

mod load;
mod nextest;
mod plan;
mod report;
mod share;
mod tool;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "checks",
    about = "Runs every check of the project",
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    plan: Plan,
}

#[derive(Debug, Subcommand)]
enum Plan {
    /// Run format, lints and all tests, with a share of the long matrices that the seed draws
    Test(Shared),
    /// Run everything whole: matrices, schedules, the oldest Rust, dependencies, fuzzing
    All(Shared),
    /// Run the end-to-end tests, several times, beside processes that keep the processors busy
    Loaded(Loaded),
    /// Keep a processor busy until the end of standard input
    #[command(hide = true)]
    Spin,
    /// Let the kernel share the processors among processes, not sessions, until the end of standard input
    #[command(hide = true)]
    WithoutSessions,
}

/// Options of every plan.
#[derive(Debug, Clone, Copy, clap::Args)]
struct Shared {
    /// Seed of every random choice of the run [default: a new seed]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Number of tests that run at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    jobs: usize,
}

#[derive(Debug, Clone, Copy, clap::Args)]
struct Loaded {
    #[command(flatten)]
    shared: Shared,
    /// Number of processes that keep a processor busy beside the tests
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    busy: usize,
    /// Number of runs, one after another, each with a different seed
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    runs: u64,
}

fn main() -> ExitCode {
    let passed = match Arguments::parse().plan {
        Plan::Test(shared) => plan::test(shared, plan::Extent::Share),
        Plan::All(shared) => plan::test(shared, plan::Extent::Whole),
        Plan::Loaded(loaded) => plan::loaded(loaded),
        Plan::Spin => {
            load::spin();
            Ok(true)
        }
        Plan::WithoutSessions => load::hold_without_sessions().map(|()| true),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("checks: {error:#}");
            ExitCode::from(2)
        }
    }
}
