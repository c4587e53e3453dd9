//! `make paper`, `make simulate` and `make redis-suite`: the experiments of the papers, repeated, and the tests of a
//! project that did not know of us.

#![forbid(unsafe_code)]

mod blast;
mod objects;
mod paper;
mod redis_suite;
mod simulate;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "experiments",
    about = "Experiments of the papers",
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Repeat the experiments of the FT-TCP paper (INFOCOM 2001, section V), and print the figures beside those of the
    /// paper
    Paper(paper::Options),
    /// Run the tests of the redis project while the server is killed again and again
    RedisSuite(redis_suite::Options),
    /// Repeat the simulation of the optimistic make paper (Rice, 1989), and print the figures beside those of the paper
    Simulate(simulate::Options),
}

fn main() -> std::process::ExitCode {
    match Arguments::parse().experiment {
        Experiment::Paper(options) => paper::main(&options),
        Experiment::RedisSuite(options) => redis_suite::main(&options),
        Experiment::Simulate(options) => simulate::main(&options),
    }
}
