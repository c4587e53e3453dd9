//! Development tasks: `cargo run -p xtask -- demo`, and so on. The Makefile calls them.

#![forbid(unsafe_code)]

mod bench;
mod demo;
mod janitor;
mod nginx;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "xtask", about = "Development tasks", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Show clients whose server is killed again and again, and who do not notice
    Demo(demo::Options),
    /// Measure what the protection costs, and how long a death takes
    Bench(bench::Options),
    /// A server of the bench: sends back what it gets
    #[command(hide = true)]
    BenchEcho(bench::tiny::Listen),
    /// A server of the bench: counts what it gets
    #[command(hide = true)]
    BenchSink(bench::tiny::Listen),
}

fn main() -> std::process::ExitCode {
    match Arguments::parse().task {
        Task::Demo(options) => demo::main(&options),
        Task::Bench(options) => bench::main(&options),
        Task::BenchEcho(listen) => bench::tiny::echo(&listen),
        Task::BenchSink(listen) => bench::tiny::sink(&listen),
    }
}
