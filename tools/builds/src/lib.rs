//! `make builds`: foreign programs are built by `make` and by `outlive make` through the same history of edits. After
//! each build both trees are equal.

#![forbid(unsafe_code)]

mod commands;
mod history;
mod picture;
mod projects;
mod side;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use commands::CommandRecorder;
use history::HISTORY;
pub use history::Pause;
use projects::{PROJECTS, Project};
pub use side::Watcher;
use side::{BuildOutcome, Builder, go_through};

use harness::machine::{Machine, commit};
use harness::task::{Interrupt, Programs, cache, ended, need_root};

pub use projects::REDIS;

/// Debian's archive.
const MIRROR: &str = "http://deb.debian.org";
/// Most differences that are shown.
const SHOWN_DIFFERENCES: usize = 5;

/// Build programs of other projects by make and by outlive make, with the same edits
#[derive(Debug, clap::Parser)]
#[command(name = "builds", max_term_width = 100)]
pub struct Options {
    /// Build only this project; repeat this option for more
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// URL of Debian's archive
    #[arg(long, value_name = "URL", default_value = MIRROR)]
    mirror: String,
    /// Path of the `outlive` to use [default: beside this program]
    #[arg(long, value_name = "FILE")]
    outlive: Option<PathBuf>,
    /// File of the times of each step and of each command, for `make simulate ARGS='--times FILE'`; each project is
    /// built once more for this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Builds all projects. The exit status is 0 if every result equals that of make.
pub fn main(options: &Options) -> ExitCode {
    ended("builds", run(options))
}

fn run(options: &Options) -> Result<bool> {
    need_root()?;
    let interrupt = Interrupt::on_signals()?;
    let programs = Programs::find(options.outlive.clone())?;
    for name in &options.only {
        known(name)?;
    }
    let mut same = true;
    let mut steps = Vec::new();
    for project in &PROJECTS {
        let is_chosen = options.only.is_empty() || options.only.iter().any(|it| it == project.name);
        if !is_chosen {
            continue;
        }
        let mut gone = compare(project, &options.mirror, &programs, &interrupt)?;
        same &= gone.differences == 0;
        if options.json.is_some() {
            note(project, &options.mirror, &mut gone, &interrupt)?;
            steps.extend(gone.steps.iter().map(|step| step.to_json(project)));
        }
    }
    if let Some(path) = &options.json {
        let all = json!({"commit": commit(), "machine": Machine::this(), "steps": steps});
        std::fs::write(path, format!("{all:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(same)
}

/// Durations of a step by make and by ours, seconds.
#[derive(Debug, Clone)]
pub struct MeasuredBuild {
    /// Name of the edit.
    pub name: &'static str,
    is_edited: bool,
    /// Pause before the request.
    pub pause: Pause,
    /// By make: the mean of two.
    pub usual: f64,
    /// By ours, from the request to the end.
    pub ours: f64,
    /// Duration of the finished speculative build, if there was one.
    pub unasked: Option<f64>,
    /// Disk space of the hidden files then, bytes.
    pub hidden: Option<u64>,
    /// Durations of the commands, if recorded.
    commands: Vec<f64>,
    /// Total size of the files that make has made.
    bytes: u64,
}

impl MeasuredBuild {
    fn to_json(&self, project: &Project) -> Value {
        json!({
            "project": project.name,
            "step": self.name,
            "edited": self.is_edited,
            "pause": match self.pause {
                Pause::Long => "long",
                Pause::Half => "half",
                Pause::None => "none",
            },
            "make": self.usual,
            "ours": self.ours,
            "unasked": self.unasked,
            "hidden": self.hidden,
            "commands": self.commands,
            "bytes": self.bytes,
        })
    }
}

/// The result of a project.
#[derive(Debug, Default)]
pub struct ProjectReport {
    /// All steps in order.
    pub steps: Vec<MeasuredBuild>,
    /// Number of files that differ from the files of make.
    pub differences: usize,
    /// Processor time, seconds: by make, the mean of two, and by ours with all discarded work.
    pub processors: [f64; 2],
    /// Peak memory of the watcher, bytes.
    pub memory: u64,
}

/// The tree of a project, ready for a build. Removed at the end.
pub struct Tree {
    place: PathBuf,
    /// The directory of the makefile.
    pub directory: PathBuf,
    /// Arguments of make.
    pub arguments: &'static [&'static str],
    /// A header that many files include.
    pub header: PathBuf,
}

impl Tree {
    /// A tree of the project with this name, and a directory name of its own.
    pub fn of(project: &str, name: &str) -> Result<Self> {
        let project = known(project)?;
        let source = project.archive.unpacked(MIRROR)?;
        let place = cache(None, "builds")?.join(name);
        let directory = side::prepared(project, &source, &place)?;
        Ok(Self {
            header: directory.join(project.header),
            arguments: project.arguments,
            place,
            directory,
        })
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.place);
        let _ = std::fs::remove_file(self.directory.with_extension("log"));
    }
}

fn known(name: &str) -> Result<&'static Project> {
    let project = PROJECTS.iter().find(|project| project.name == name);
    project.with_context(|| format!("there is no project {name}"))
}

/// Builds this project throughout the history.
pub fn measure(name: &str, programs: &Programs, interrupt: &Interrupt) -> Result<ProjectReport> {
    compare(known(name)?, MIRROR, programs, interrupt)
}

fn compare(
    project: &Project,
    mirror: &str,
    programs: &Programs,
    interrupt: &Interrupt,
) -> Result<ProjectReport> {
    println!("{}", project.name);
    let source = project.archive.unpacked(mirror)?;
    let place = cache(None, "builds")?.join(project.name);
    let go = |by| go_through(project, &source, &place, by, interrupt);
    let plain = go(Builder::Make)?;
    let times: Vec<Duration> = plain.steps.iter().map(|came| came.took).collect();
    let ours = go(Builder::Outlive(&programs.outlive, &times))?;
    // After `outlive make`: a drift of the machine's speed then affects both sides alike.
    let again = go(Builder::Make)?;
    std::fs::remove_dir_all(&place)?;
    let mut gone = ProjectReport {
        processors: [(plain.processors + again.processors) / 2.0, ours.processors],
        memory: ours.memory,
        ..ProjectReport::default()
    };
    for (number, asked) in HISTORY.iter().enumerate() {
        let (ours, plain, again) = (
            &ours.steps[number],
            &plain.steps[number],
            &again.steps[number],
        );
        let step = MeasuredBuild {
            name: asked.name,
            is_edited: asked.edit.is_some(),
            pause: asked.pause,
            usual: (plain.took + again.took).as_secs_f64() / 2.0,
            ours: ours.took.as_secs_f64(),
            unasked: ours
                .unasked
                .filter(|_| asked.is_expected())
                .map(|it| it.as_secs_f64()),
            hidden: ours.hidden,
            commands: Vec::new(),
            bytes: plain.bytes,
        };
        say(&step, &ours.told);
        let differences = differences(asked, [ours, plain, again]);
        for difference in differences.iter().take(SHOWN_DIFFERENCES) {
            println!("    {difference}");
        }
        if differences.len() > SHOWN_DIFFERENCES {
            println!("    and {} more", differences.len() - SHOWN_DIFFERENCES);
        }
        gone.differences += differences.len();
        gone.steps.push(step);
    }
    Ok(gone)
}

/// Builds once more for the durations of the commands.
fn note(
    project: &Project,
    mirror: &str,
    gone: &mut ProjectReport,
    interrupt: &Interrupt,
) -> Result<()> {
    let source = project.archive.unpacked(mirror)?;
    let place = cache(None, "builds")?.join(project.name);
    let noting = CommandRecorder::beside(&place)?;
    let noted = go_through(project, &source, &place, Builder::Noted(&noting), interrupt)?;
    std::fs::remove_dir_all(&place)?;
    for (step, came) in gone.steps.iter_mut().zip(noted.steps) {
        step.commands = came.commands;
    }
    Ok(())
}

fn say(step: &MeasuredBuild, told: &str) {
    let unasked = step
        .unasked
        .map_or_else(String::new, |it| format!(", {it:.3} unasked"));
    println!(
        "  {:18} {:8.3} s by make{unasked}, {:8.3} s ({:6.1}x) {told}",
        step.name,
        step.usual,
        step.ours,
        step.usual / step.ours,
    );
}

/// Differences from the result of make.
fn differences(
    asked: &history::PlannedBuild,
    [ours, plain, again]: [&BuildOutcome; 3],
) -> Vec<String> {
    let mut all = picture::differences(&ours.tree, &plain.tree, &again.tree);
    if ours.status != plain.status {
        all.push(format!("status {:?}, not {:?}", ours.status, plain.status));
    }
    if ours.is_done != plain.is_done {
        all.push(format!(
            "make -q says {:?}, not {:?}",
            ours.is_done, plain.is_done
        ));
    }
    for (number, name) in ["output", "errors"].iter().enumerate() {
        let said = [ours, plain, again].map(|came| {
            let mut lines: Vec<_> = came.said[number].split_inclusive('\n').collect();
            if asked.is_in_parallel() {
                lines.sort_unstable();
            }
            lines.concat()
        });
        let [ours, plain, again] = &said;
        if plain == again && ours != plain {
            all.push(format!("other {name}: {}", first_difference(ours, plain)));
        }
    }
    all
}

fn first_difference(ours: &str, plain: &str) -> String {
    let (mut ours, mut plain) = (ours.lines(), plain.lines());
    loop {
        match (ours.next(), plain.next()) {
            (one, other) if one == other && one.is_some() => {}
            (one, other) => return format!("{one:?} instead of {other:?}"),
        }
    }
}
