//! `make demo`: clients that do not notice that their server is killed again and again.
//!
//! A lab of two namespace hosts on one switch: an unmodified nginx under `outlive serve` on
//! the one, unmodified curls and some idle connections on the other. nginx's master is
//! killed with SIGKILL at random moments while they work. What each of them got is compared,
//! byte by byte, with what it had to get, and each must have made exactly one connection.
//!
//! [`stage`] is what is set up: hosts, files, nginx's configuration. [`service`] is
//! `outlive serve` and its events, [`clients`] who uses it, [`timeline`] what is printed,
//! [`director`] the one who lets it all happen. [`crate::janitor`] cleans up if we are killed.

mod clients;
mod compare;
mod curl;
mod director;
mod idle;
mod service;
mod stage;
mod timeline;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use anyhow::Result;

use director::Director;
use service::Service;
use stage::Stage;
use timeline::Timeline;

use crate::task::{Interrupt, Interrupted, ended, need_root, program};

/// What can be chosen.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Seed of the files' contents and of the moments of the kills [default: a new one]
    #[arg(long)]
    seed: Option<u64>,
    /// How often the server is killed
    #[arg(long, default_value_t = 8)]
    kills: u32,
    /// The `outlive` to show [default: the one beside this program]
    #[arg(long, value_name = "PROGRAM", env = "OUTLIVE_BIN", hide_env = true)]
    outlive: Option<PathBuf>,
}

/// Runs the demo; the exit status is 0 only if no connection was broken and every byte was
/// as it had to be.
pub(crate) fn main(options: &Options) -> ExitCode {
    ended("demo", run(options))
}

fn run(options: &Options) -> Result<bool> {
    need_root()?;
    let outlive = program(options.outlive.clone(), "outlive")?;
    let interrupt = Interrupt::on_signals()?;
    let seed = options.seed.unwrap_or_else(|| rand::random::<u32>().into());
    let timeline = Timeline::begin(options.kills, seed);

    let stage = Stage::build(seed)?;
    let (sender, messages) = mpsc::channel();
    let service = Service::start(&stage, &outlive, sender.clone())?;
    let director = Director::new(&stage, timeline, messages, interrupt);
    let result = director.direct(sender, seed, options.kills);

    // Both, whatever happened: what is left must be known.
    let stopped = service.stop();
    let removed = stage.remove();
    let report = result?;
    stopped?;
    removed?;
    let report = report.ok_or(Interrupted)?;
    Ok(report.print())
}

/// Whether a flag is raised.
fn raised(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}
