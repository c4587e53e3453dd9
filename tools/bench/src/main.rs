//! `make bench`: the costs of the protection, and the time of a recovery.
//!
//! Costs are ratios. A server runs plainly, then under `outlive serve`, then plainly again, and so on, on the same
//! host of a lab; each protected run is compared with the plain run just before. A slow machine is slow for both runs,
//! so the ratio has a meaning where the absolute figures have none. The spread of the ratio shows how much.
//!
//! [`stage`] is the lab, [`subject`] the measured server, [`clients`] and [`download`] the users. The measurements are
//! [`traffic`], [`recovery`], [`full_rate`], [`replay`] and [`memory`]; with a logger on another host [`link`], with a
//! logger alone [`ingest`], and on the client's side of a recovery [`estimate`]. [`haproxy`] compares with the usual
//! protection. [`objects`] is a pool of web servers. [`takeover`] is the death of a whole host, and [`keepalived`] the
//! usual protection there. [`figure`] is a result, [`report`] the report. [`processors`] is the use of the processors,
//! [`usage`] the use of memory.

#![forbid(unsafe_code)]

mod blast;
mod clients;
mod download;
mod estimate;
mod figure;
mod full_rate;
mod haproxy;
mod ingest;
mod keepalived;
mod link;
mod making;
mod memory;
mod north;
mod objects;
mod processors;
mod recovery;
mod replay;
mod report;
mod stage;
mod strategies;
mod subject;
mod takeover;
mod tcp_info;
mod traffic;
mod usage;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::{Parser, ValueEnum};

use figure::Figure;
use report::{Part, Report};
use stage::Stage;

use harness::task::{Interrupt, Programs, ended, need_root};

/// Default number of pairs of runs.
const DEFAULT_ROUNDS: usize = 7;
const QUICK_ROUNDS: usize = 1;

/// Measure the cost of the protection, and the time of a recovery
#[derive(Debug, Parser)]
#[command(name = "bench", max_term_width = 100)]
pub(crate) struct Options {
    /// Measure only this subject; repeat this option for more
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Subject>,
    /// Measure less of everything: a test of the bench, not a measurement
    #[arg(long)]
    quick: bool,
    /// Number of pairs of plain and protected runs [default: 7; with --quick: 1]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: Option<u8>,
    /// Directory of results.json and RESULTS.md; with --only, the results of other subjects stay [default: bench; with
    /// --quick no file is written]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Path of the `outlive` to measure [default: beside this program]
    #[arg(long, value_name = "PROGRAM", env = "OUTLIVE_BIN", hide_env = true)]
    outlive: Option<PathBuf>,
}

/// A subject of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// Throughput from the server
    Download,
    /// Throughput to the server
    Upload,
    /// Round trips of a 64-byte echo
    Echo,
    /// Small objects a second
    Requests,
    /// Time from SIGKILL until the connections go on
    Recovery,
    /// Time from SIGKILL until the full rate on a path with a long round trip, for each congestion control
    FullRate,
    /// Speed of a replay
    Replay,
    /// Memory of idle connections
    Memory,
    /// Throughput to the server with a logger on another host
    LinkUpload,
    /// Throughput to the server with a logger on another host, for each --ack
    LinkStrategies,
    /// Throughput to the server with a logger on another host, on a network of 1 Gbit/s
    LinkNetwork,
    /// Round trips of a 64-byte echo with a logger on another host
    LinkEcho,
    /// New connections with a logger on this and on another host
    Connections,
    /// Throughput from the server with a logger on another host
    LinkDownload,
    /// Memory of idle connections with a logger on another host, and a kill with all of them
    LinkMemory,
    /// Input that one core of a logger takes
    Logger,
    /// Round-trip estimate, window and speed of the client's TCP before and after a recovery
    Estimate,
    /// HAProxy in front of two nginx under the same kills
    Haproxy,
    /// Time from the death of a host to the first byte from another host
    Takeover,
    /// HAProxy and keepalived on two hosts under the same power-offs
    Keepalived,
    /// A pool of web servers: cost of a member, the pause after a power-off, and other balancers beside it
    Objects,
    /// Bulk transfers: packets in their places, `outlive send` beside other programs, users beside a transfer
    Blast,
    /// redis with --stateful
    North,
    /// Size of the record of redis with --stateful, and time until redis is back
    NorthRecovery,
    /// Time until redis with --stateful is back on another host
    NorthTakeover,
    /// Time until redis with a large checkpoint is back on another host
    NorthImages,
    /// Messages through mosquitto with --stateful
    NorthMessages,
    /// Requests by TLS to nginx with --stateful
    NorthTls,
    /// Checkpoints with --stateful
    Checkpoints,
    /// Builds by `outlive make`
    Make,
    /// Cost of opening and of mandating each file of a concealed command
    MakeFiles,
    /// Cost of a command that does nothing
    MakeCommands,
    /// Effect of a watcher on the builds of the user
    MakeForeground,
    /// watchexec with make, and tup's monitor, beside `outlive make`
    MakeRivals,
}

impl Subject {
    const ALL: [Self; 34] = [
        Self::Download,
        Self::Upload,
        Self::Echo,
        Self::Requests,
        Self::Recovery,
        Self::FullRate,
        Self::Replay,
        Self::Memory,
        Self::LinkUpload,
        Self::LinkStrategies,
        Self::LinkNetwork,
        Self::LinkEcho,
        Self::Connections,
        Self::LinkDownload,
        Self::LinkMemory,
        Self::Logger,
        Self::Estimate,
        Self::Haproxy,
        Self::Takeover,
        Self::Keepalived,
        Self::Objects,
        Self::Blast,
        Self::North,
        Self::NorthRecovery,
        Self::NorthTakeover,
        Self::NorthImages,
        Self::NorthMessages,
        Self::NorthTls,
        Self::Checkpoints,
        Self::Make,
        Self::MakeFiles,
        Self::MakeCommands,
        Self::MakeForeground,
        Self::MakeRivals,
    ];

    fn measure(self, bench: &Bench) -> Result<Measured> {
        let figures = match self {
            Self::Download => traffic::download(bench),
            Self::Upload => traffic::upload(bench),
            Self::Echo => traffic::echo(bench),
            Self::Requests => traffic::requests(bench),
            Self::Recovery => recovery::measure(bench),
            Self::FullRate => return full_rate::measure(bench),
            Self::Replay => replay::measure(bench),
            Self::Memory => memory::measure(bench),
            Self::LinkUpload => link::upload(bench),
            Self::LinkStrategies => strategies::measure(bench),
            Self::LinkNetwork => link::network(bench),
            Self::LinkEcho => link::echo(bench),
            Self::Connections => link::connections(bench),
            Self::LinkDownload => link::download(bench),
            Self::LinkMemory => memory::linked(bench),
            Self::Logger => ingest::measure(bench),
            Self::Estimate => return estimate::measure(bench),
            Self::Haproxy => return haproxy::measure(bench),
            Self::Takeover => takeover::measure(bench),
            Self::Keepalived => return keepalived::measure(bench),
            Self::Objects => objects::measure(bench),
            Self::Blast => blast::measure(bench),
            Self::North => north::speeds(bench),
            Self::NorthRecovery => north::recovery(bench),
            Self::NorthTakeover => north::takeover::measure(bench),
            Self::NorthImages => north::images::measure(bench),
            Self::NorthMessages => north::other_servers::messages(bench),
            Self::NorthTls => north::other_servers::tls(bench),
            Self::Checkpoints => north::checkpoints::measure(bench),
            Self::Make => making::gains(bench),
            Self::MakeFiles => making::files::measure(bench),
            Self::MakeCommands => making::commands::measure(bench),
            Self::MakeForeground => making::foreground::measure(bench),
            Self::MakeRivals => making::rivals::measure(bench),
        };
        Ok(Measured {
            figures: figures?,
            ..Measured::default()
        })
    }
}

/// The result of a measurement.
#[derive(Default)]
struct Measured {
    figures: Vec<Figure>,
    /// Names and contents of SVG files.
    plots: Vec<(String, String)>,
    /// Paragraphs of Markdown.
    notes: Vec<String>,
}

/// The parameters and parts that every measurement needs.
struct Bench {
    stage: Stage,
    quick: bool,
    rounds: usize,
    interrupt: Interrupt,
}

impl Bench {
    /// `full`, or `quick` for a quick run.
    fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Prints the present activity.
    fn say(&self, what: impl fmt::Display) {
        println!("  {what}");
    }
}

/// The exit status is 0 if everything could be measured and no connection
/// was lost, whether or not the aims were met.
fn main() -> ExitCode {
    ended("bench", run(&Options::parse()))
}

fn run(options: &Options) -> Result<bool> {
    need_root()?;
    let rounds = if options.quick {
        QUICK_ROUNDS
    } else {
        DEFAULT_ROUNDS
    };
    clients::raise_limit(memory::CONNECTION_COUNT)?;
    let programs = Programs::find(options.outlive.clone())?;
    let interrupt = Interrupt::on_signals()?;
    let mut parts = Vec::new();
    for subject in Subject::ALL {
        if !options.only.is_empty() && !options.only.contains(&subject) {
            continue;
        }
        if interrupt.is_raised() {
            let why = Err(anyhow!("interrupted"));
            parts.push(Part::new(name(subject), why, options.quick, Duration::ZERO));
            continue;
        }
        let bench = Bench {
            stage: Stage::build(programs.clone(), interrupt.clone())?,
            quick: options.quick,
            rounds: options.rounds.map_or(rounds, usize::from),
            interrupt: interrupt.clone(),
        };
        parts.push(measure(subject, bench)?);
    }

    let report = Report::new(parts);
    println!("\n{}", report.table());
    let (is_sound, is_whole) = (report.sound(), report.whole());
    if let Some(directory) = output(options) {
        report.write(&directory, &Subject::ALL.map(name))?;
        println!("written to {}", directory.display());
    }
    interrupt.check()?;
    ensure!(is_sound, "connections were lost");
    ensure!(is_whole, "not everything could be measured");
    Ok(true)
}

/// The name on the command line.
fn name(subject: Subject) -> String {
    let name = subject.to_possible_value();
    name.map_or_else(String::new, |name| name.get_name().to_owned())
}

/// Measures the subject on a stage of its own. A failure does not lose the results of other subjects.
fn measure(subject: Subject, bench: Bench) -> Result<Part> {
    let name = name(subject);
    println!("{name}");
    let began = Instant::now();
    let (quick, outcome) = (bench.quick, subject.measure(&bench));
    match &outcome {
        Ok(measured) => {
            bench.stage.remove()?;
            for figure in &measured.figures {
                println!("  {figure}");
            }
            println!("  ({:.1} s)", began.elapsed().as_secs_f64());
        }
        Err(error) => {
            bench.stage.abandon();
            println!("  not measured: {error:#}");
        }
    }
    Ok(Part::new(name, outcome, quick, began.elapsed()))
}

fn output(options: &Options) -> Option<PathBuf> {
    let default = (!options.quick).then(|| PathBuf::from("bench"));
    options.output.clone().or(default)
}
