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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use director::{Director, Ending};
use service::Service;
use stage::Stage;
use timeline::Timeline;

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
    match run(options) {
        Ok(Ending::Passed) => ExitCode::SUCCESS,
        Ok(Ending::Failed) => ExitCode::FAILURE,
        Ok(Ending::Interrupted) => {
            eprintln!("demo: interrupted; everything is removed");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<Ending> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "it needs root: it makes network namespaces and loads BPF programs"
    );
    let outlive = outlive_program(options)?;
    let interrupted = on_signals()?;
    let seed = options.seed.unwrap_or_else(|| rand::random::<u32>().into());
    let timeline = Timeline::begin(options.kills, seed);

    let stage = Stage::build(seed)?;
    let (sender, messages) = mpsc::channel();
    let service = Service::start(&stage, &outlive, sender.clone())?;
    let director = Director::new(&stage, timeline, messages, interrupted);
    let result = director.direct(sender, seed, options.kills);

    // Both, whatever happened: what is left must be known.
    let stopped = service.stop();
    let removed = stage.remove();
    let report = result?;
    stopped?;
    removed?;
    Ok(report.map_or(Ending::Interrupted, |report| report.print()))
}

fn outlive_program(options: &Options) -> Result<PathBuf> {
    let path = match &options.outlive {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .context("cannot find out where this program is")?
            .with_file_name("outlive"),
    };
    path.canonicalize()
        .with_context(|| format!("no {}: build it with `make build`", path.display()))
}

/// A flag that a signal raises, for as long as we run: some send it twice.
fn on_signals() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Whether a flag is raised.
fn raised(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}
