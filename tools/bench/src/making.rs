//! `outlive make`: how much sooner a build is ready, and the cost.

pub(super) mod commands;
pub(super) mod files;
pub(super) mod foreground;
pub(super) mod rivals;

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::Bench;
use super::figure::{Aim, Figure};
use builds::{self, MeasuredBuild, Pause, ProjectReport};

/// The built projects: those of `make builds` that take a few seconds.
const PROJECTS: [&str; 4] = ["bzip2", "lua", "zlib", "less"];
/// A shorter build ran no command.
const SHORTEST_BUILD_SECONDS: f64 = 0.05;

const BYTES_PER_MIB: f64 = 1024.0 * 1024.0;

const BOUND: &str = "each look at a file of the tree is a request to a process";

pub(super) fn gains(bench: &Bench) -> Result<Vec<Figure>> {
    let projects = bench.size(&PROJECTS[..], &PROJECTS[..1]);
    let mut all = Vec::new();
    for name in projects {
        bench.interrupt.check()?;
        all.push(builds::measure(
            name,
            &bench.stage.testbed.programs,
            &bench.interrupt,
        )?);
    }
    let how = format!(
        "the history of `make builds` for {}: `make`, the mean of one before and one after, divided by `outlive make`, from the question to the end",
        projects.join(", ")
    );
    let differences: Vec<f64> = all.iter().map(|gone| gone.differences as f64).collect();
    let mut figures = vec![
        Figure::of("make.differences", "", &differences, "for each project: files, modes, output, exit status and what make -q says, compared with make's")
            .aim(Aim::AtMost(0.0), "")
            .promise(),
    ];
    for (pause, what) in [
        (Pause::Long, "finished"),
        (Pause::Half, "half_done"),
        (Pause::None, "at_once"),
    ] {
        let gains: Vec<f64> = steps(&all)
            .filter(|step| step.pause == pause)
            .map(|step| step.usual / step.ours)
            .collect();
        if gains.is_empty() {
            continue;
        }
        let mean = gains.iter().sum::<f64>() / gains.len() as f64;
        let median = Figure::of(format!("make.{what}.gain"), "", &gains, &how);
        let mean = Figure::of(format!("make.{what}.gain.mean"), "", &[mean], &how);
        figures.extend(match pause {
            Pause::Long => [
                median.aim(Aim::AtLeast(5.0), BOUND),
                mean.aim(Aim::AtLeast(20.0), BOUND),
            ],
            Pause::Half | Pause::None => [median, mean],
        });
    }
    figures.extend(overheads(&all));
    Ok(figures)
}

/// In which there is something to do.
fn steps(all: &[ProjectReport]) -> impl Iterator<Item = &MeasuredBuild> {
    let steps = all.iter().flat_map(|gone| &gone.steps);
    steps.filter(|step| step.usual >= SHORTEST_BUILD_SECONDS)
}

fn overheads(all: &[ProjectReport]) -> Vec<Figure> {
    let overhead = |is_cold: bool| -> Vec<f64> {
        let steps = steps(all).filter(|step| (step.name == "from nothing") == is_cold);
        let done = steps.filter_map(|step| Some(step.unasked? / step.usual));
        done.collect()
    };
    let how = "the same histories: how long a build takes unasked, when nothing else is done, divided by make's time";
    let processors: Vec<f64> = all
        .iter()
        .map(|gone| gone.processors[1] / gone.processors[0])
        .collect();
    let mut figures = vec![
        Figure::of("make.unasked.cold", "", &overhead(true), how).aim(Aim::AtMost(1.05), BOUND),
        Figure::of("make.unasked.incremental", "", &overhead(false), how)
            .aim(Aim::AtMost(1.05), BOUND),
    ];
    figures.push(Figure::of(
        "make.processors",
        "",
        &processors,
        "the same histories: processor time of the builds and the watcher, in vain or not, divided by that of make; the paper's is at most 1.44",
    ));
    let memory: Vec<f64> = all
        .iter()
        .map(|gone| gone.memory as f64 / BYTES_PER_MIB)
        .collect();
    let how = "the same histories: the most that the watcher has had at a time";
    figures.push(Figure::of("make.memory", "MiB", &memory, how));
    for (is_cold, name) in [(true, "cold"), (false, "incremental")] {
        let steps = steps(all).filter(|step| (step.name == "from nothing") == is_cold);
        let hidden: Vec<f64> = steps
            .filter_map(|step| Some(step.hidden? as f64 / 1024.0))
            .collect();
        let how = "the same histories: what files take on disk that are not shown yet, when all that can be done has been (the paper: 81 KB)";
        figures.push(Figure::of(
            format!("make.hidden.{name}"),
            "KiB",
            &hidden,
            how,
        ));
    }
    figures
}

/// The duration, seconds. The output is discarded.
fn seconds(command: &mut Command) -> Result<f64> {
    command.stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let status = command.status();
    let took = began.elapsed().as_secs_f64();
    let status = status.with_context(|| format!("cannot run {:?}", command.get_program()))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(took)
}
