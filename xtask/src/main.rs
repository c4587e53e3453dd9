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
    /// Show clients whose servers are killed again and again, and who do not notice
    Demo(demo::Options),
    /// Measure what the protection costs, and how long a death takes
    Bench(bench::Options),
    /// Repeat the experiments of the FT-TCP paper (INFOCOM 2001, section V) and print their
    /// figures beside the paper's
    Paper(paper::Options),
    /// Boot Debian's kernels in qemu, and say on which the data plane works
    Kernels(kernels::Options),
    /// Run the redis project's own tests while the server is killed again and again
    RedisSuite(redis_suite::Options),
    /// Build programs of others by make and by outlive make, through the same edits
    Builds(builds::Options),
    /// Repeat the simulation of the optimistic make paper (Rice, 1989) and print its figures
    /// beside the paper's
    Simulate(simulate::Options),
    /// A server of the bench: sends back what it gets
    #[command(hide = true)]
    BenchEcho(bench::tiny::Listen),
    /// A server of the bench: counts what it gets
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
