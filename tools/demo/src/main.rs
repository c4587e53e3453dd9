//! `make demo`: clients that do not notice the repeated deaths of their servers.
//!
//! A lab of four namespace hosts on one switch. One host has unmodified servers, nginx, redis and mosquitto, each
//! under an `outlive serve`. A second host has an `outlive standby` for each, a third host unmodified clients and
//! some idle connections, and a fourth host the logger. The main processes of the servers are killed with SIGKILL at
//! random moments during work, and so is the logger. In the middle the active host loses its power, and comes back as
//! the standby. With `--no-logger` the records stay on the servers' host, without a second one. The received bytes of
//! each client are compared with the expected bytes, and the counter of redis with the sent commands. No client may
//! connect again.
//!
//! [`stage`] sets up hosts, files and configurations. [`server`] describes a server, [`service`] runs its `outlive
//! serve` or `standby`, [`servers`] all of them. [`condition`] is the state of a server, [`record`] the logger,
//! [`clients`] are the clients, [`plan`] draws the deaths. [`narration`] puts events into words, [`timeline`] prints,
//! [`director`] controls the demo. [`harness::janitor`] cleans up after a kill of the demo.

#![forbid(unsafe_code)]

mod blast;
mod clients;
mod compare;
mod condition;
mod count;
mod curl;
mod director;
mod idle;
mod messages;
mod narration;
mod objects;
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
use clap::{Parser, ValueEnum};

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
    /// The scene
    #[arg(long, value_enum, default_value_t)]
    scene: SceneName,
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

/// The scenes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum SceneName {
    /// Servers under `outlive serve`, with a logger and a standby
    #[default]
    Serve,
    /// A pool of web servers under `outlive objects`
    Objects,
    /// A disk by `outlive send`, over a link that loses packets
    Blast,
}

/// The exit status is 0 only if no connection was broken, and every byte, count and message was right.
fn main() -> ExitCode {
    ended("demo", run(&Options::parse()))
}

fn run(options: &Options) -> Result<bool> {
    need_root()?;
    let outlive = program(options.outlive.clone(), "outlive")?;
    let interrupt = Interrupt::on_signals()?;
    let seed = options.seed.unwrap_or_else(|| rand::random::<u32>().into());
    match options.scene {
        SceneName::Serve => {}
        SceneName::Objects => return objects::show(&outlive, &interrupt, seed),
        SceneName::Blast => return blast::show(&outlive, &interrupt, seed),
    }
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

    // Both, after any outcome: the error names everything that remains.
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
