//! `make demo`: clients that do not notice that their servers are killed again and again.
//!
//! A lab of four namespace hosts on one switch: unmodified servers, nginx, redis and mosquitto, each under an
//! `outlive serve` of its own on the one, an `outlive standby` for each on another, unmodified clients and some
//! idle connections on the third, the logger that keeps the records on the fourth. The servers' main processes are
//! killed with SIGKILL at random moments while they work, and so is the logger; in the middle the host that serves
//! loses its power, and comes back as the standby. With `--no-logger` the records are kept on the servers' host, and
//! there is no other. What each client got is compared, byte by byte, with what it had to get; what redis has counted
//! with what was sent to it; and nobody may have connected again.
//!
//! [`stage`] is what is set up: hosts, files, configurations. [`server`] is what is run, [`service`] its
//! `outlive serve` or `standby` and its events, [`servers`] all of them, [`condition`] how a server is, [`record`] the
//! logger, [`clients`] who uses it, [`plan`] who dies when, [`telling`] what is said of an event, [`timeline`] what is
//! printed, [`director`] the one who lets it all happen. [`harness::janitor`] cleans up if we are killed.

#![forbid(unsafe_code)]

mod clients;
mod compare;
mod condition;
mod count;
mod curl;
mod director;
mod idle;
mod messages;
mod narration;
mod plan;
mod program;
mod record;
mod server;
mod servers;
mod service;
mod stage;
mod timeline;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use anyhow::Result;
use clap::Parser;

use director::Director;
use record::Record;
use servers::Servers;
use stage::Stage;
use timeline::Timeline;

use harness::task::{Interrupt, Interrupted, ended, need_root, program};

/// Kill servers again and again, and show clients that do not notice
#[derive(Debug, Parser)]
#[command(name = "demo", max_term_width = 100)]
pub(crate) struct Options {
    /// Seed of the contents of files and of the moments of kills [default: a new seed]
    #[arg(long)]
    seed: Option<u64>,
    /// Number of kills of servers
    #[arg(long, default_value_t = 8)]
    kills: u32,
    /// Keep the records on the host of the servers: without a logger to kill, and without a second host
    #[arg(long)]
    no_logger: bool,
    /// Path of the `outlive` to show [default: beside this program]
    #[arg(long, value_name = "PROGRAM", env = "OUTLIVE_BIN", hide_env = true)]
    outlive: Option<PathBuf>,
}

/// The exit status is 0 only if no connection was broken and every byte, count and message
/// was as it had to be.
fn main() -> ExitCode {
    ended("demo", run(&Options::parse()))
}

fn run(options: &Options) -> Result<bool> {
    need_root()?;
    let outlive = program(options.outlive.clone(), "outlive")?;
    let interrupt = Interrupt::on_signals()?;
    let seed = options.seed.unwrap_or_else(|| rand::random::<u32>().into());
    let timeline = Timeline::begin(options.kills, !options.no_logger, seed);

    let stage = Stage::build(seed, !options.no_logger)?;
    let (sender, messages) = mpsc::channel();
    let record = stage.logger.as_ref();
    let mut record = record
        .map(|host| Record::start(&stage, host, &outlive, sender.clone()))
        .transpose()?;
    let flags = record.as_ref().map(Record::flags).unwrap_or_default();
    let mut servers = Servers::start(&stage, &outlive, &flags, &sender)?;
    let record_of = record.as_mut();
    let director = Director::new(
        &stage,
        &mut servers,
        record_of,
        timeline,
        messages,
        interrupt,
    );
    let result = director.direct(sender, seed, options.kills);

    // Both, whatever happened: what is left must be known.
    let stopped = servers.stop();
    drop(record);
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
