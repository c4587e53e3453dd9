//! Development tasks: `cargo run -p xtask -- demo`, and so on. The Makefile calls them.

#![forbid(unsafe_code)]

mod archive;
mod bench;
mod builds;
mod demo;
mod events;
mod ground;
mod janitor;
mod kernels;
mod machine;
mod nginx;
mod paper;
mod plot;
mod redis_suite;
mod simulate;
mod task;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "xtask", about = "Development tasks", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Kill servers again and again, and show clients that do not notice
    Demo(demo::Options),
    /// Measure the cost of the protection, and the time of a recovery
    Bench(bench::Options),
    /// Repeat the experiments of the FT-TCP paper (INFOCOM 2001, section V), and print the figures beside those of the paper
    Paper(paper::Options),
    /// Boot Debian's kernels in qemu, and report the kernels on which the data plane works
    Kernels(kernels::Options),
    /// Run the tests of the redis project while the server is killed again and again
    RedisSuite(redis_suite::Options),
    /// Build programs of other projects by make and by outlive make, with the same edits
    Builds(builds::Options),
    /// Repeat the simulation of the optimistic make paper (Rice, 1989), and print the figures beside those of the paper
    Simulate(simulate::Options),
    /// A server of the bench: sends back all input
    #[command(hide = true)]
    BenchEcho(bench::tiny::Listen),
    /// A server of the bench: counts all input
    #[command(hide = true)]
    BenchSink(bench::tiny::Sink),
    /// A server of the bench: sends without an end
    #[command(hide = true)]
    BenchSource(bench::tiny::Source),
}

fn main() -> std::process::ExitCode {
    match Arguments::parse().task {
        Task::Demo(options) => demo::main(&options),
        Task::Bench(options) => bench::main(&options),
        Task::Paper(options) => paper::main(&options),
        Task::Kernels(options) => kernels::main(&options),
        Task::RedisSuite(options) => redis_suite::main(&options),
        Task::Builds(options) => builds::main(&options),
        Task::Simulate(options) => simulate::main(&options),
        Task::BenchEcho(listen) => bench::tiny::echo(&listen),
        Task::BenchSink(sink) => bench::tiny::sink(&sink),
        Task::BenchSource(source) => bench::tiny::source(&source),
    }
}
