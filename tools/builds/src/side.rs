//! A run through a history: by `make`, or by `outlive make`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use super::commands::CommandRecorder;
use super::history::{Goals, HISTORY, Pause, PlannedBuild};
use super::picture::{self, Picture};
use super::projects::Project;
use harness::archive::run;
use harness::task::Interrupt;

/// Longest time of a build.
const BUILD_TIMEOUT: Duration = Duration::from_secs(900);
/// Time after which a watcher has noticed a save.
const SAVE_DELAY: Duration = Duration::from_millis(250);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time between two questions to the watcher: each takes a process, and time of the measurement.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

/// The builder.
#[derive(Clone, Copy)]
pub(super) enum Builder<'a> {
    Make,
    /// make, with a shell that records the commands.
    Noted(&'a CommandRecorder),
    /// `outlive make`, and the earlier duration of each build.
    Outlive(&'a Path, &'a [Duration]),
}

/// The result of a step.
pub(super) struct BuildOutcome {
    pub(super) took: Duration,
    pub(super) status: Option<i32>,
    /// Output of make, without the messages of outlive.
    pub(super) said: [String; 2],
    /// Messages of outlive.
    pub(super) told: String,
    /// Exit status of `make -q` afterwards.
    pub(super) is_done: Option<i32>,
    pub(super) tree: Picture,
    /// Duration of the speculative build, if finished.
    pub(super) unasked: Option<Duration>,
    /// Seconds of each command, if recorded.
    pub(super) commands: Vec<f64>,
    /// Total size of the new files.
    pub(super) bytes: u64,
    /// Processor time of the requested build, seconds.
    processors: f64,
    /// Disk space of hidden files at the request, if the speculative build was finished, bytes.
    pub(super) hidden: Option<u64>,
}

/// The results of all steps.
pub(super) struct ProjectOutcome {
    pub(super) steps: Vec<BuildOutcome>,
    /// Processor time of all work, used or not, seconds.
    pub(super) processors: f64,
    /// Peak memory of the watcher, bytes; 0 without one.
    pub(super) memory: u64,
}

/// Runs through the history in a new copy of the source.
pub(super) fn go_through(
    project: &Project,
    source: &Path,
    place: &Path,
    by: Builder<'_>,
    interrupt: &Interrupt,
) -> Result<ProjectOutcome> {
    let directory = prepared(project, source, place)?;
    let watcher = match by {
        Builder::Outlive(program, _) => {
            Some(Watcher::over(&directory, program, project.arguments)?)
        }
        Builder::Make | Builder::Noted(_) => None,
    };
    let mut all = Vec::new();
    let mut length = 0;
    for (number, step) in HISTORY.iter().enumerate() {
        interrupt.check()?;
        if let Some(edit) = step.edit {
            if let Some(watcher) = &watcher {
                watcher.is_saved_soon()?;
            }
            edit.carry_out(project, &directory, &mut length)?;
        }
        let (mut unasked, mut hidden) = (None, None);
        match (&watcher, by, step.pause) {
            (Some(watcher), _, Pause::Long) => {
                unasked = Some(watcher.has_finished(interrupt)?);
                hidden = Some(hidden_by(watcher.child.id())?);
            }
            (_, Builder::Outlive(_, usual), Pause::Half) => thread::sleep(usual[number] / 2),
            _ => {}
        }
        let came = build(project, step, &directory, by);
        let came = came.with_context(|| format!("{}, {}", project.name, step.name))?;
        all.push(BuildOutcome {
            unasked,
            hidden,
            ..came
        });
    }
    let mut went = ProjectOutcome {
        processors: all.iter().map(|came| came.processors).sum(),
        steps: all,
        memory: 0,
    };
    if let Some(watcher) = watcher {
        went.memory = most_memory(watcher.child.id())?;
        let (ended, by_watcher) = with_processors(|| watcher.end());
        ended?;
        went.processors += by_watcher?;
    }
    Ok(went)
}

/// Makes a copy of the source, ready for a build. Returns the directory of the makefile.
pub(super) fn prepared(project: &Project, source: &Path, place: &Path) -> Result<PathBuf> {
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    run(Command::new("cp").arg("-a").arg(source).arg(place))?;
    let mut prepare = Command::new("sh");
    prepare.args(["-c", project.prepare]).current_dir(place);
    run(&mut prepare).with_context(|| format!("cannot prepare {}", project.name))?;
    Ok(place.join(project.directory).canonicalize()?)
}

fn build(
    project: &Project,
    step: &PlannedBuild,
    directory: &Path,
    by: Builder<'_>,
) -> Result<BuildOutcome> {
    let mut arguments: Vec<&str> = Vec::new();
    match step.asks {
        Goals::Usual(more) => {
            arguments.extend(project.arguments);
            arguments.extend(more);
        }
        Goals::Only(these) => arguments.extend(these),
        Goals::Install => arguments.extend(project.install),
    }
    let stage = directory.join("stage");
    let stage = stage.to_str().context("a path of letters")?;
    let arguments: Vec<String> = arguments
        .iter()
        .map(|it| it.replace("$(CURDIR)/stage", stage))
        .collect();
    let mut make = match by {
        Builder::Outlive(outlive, _) => {
            let mut make = Command::new(outlive);
            make.arg("make");
            make
        }
        Builder::Make | Builder::Noted(_) => Command::new("make"),
    };
    if let Builder::Noted(noting) = by {
        make.arg(noting.argument());
    }
    make.args(&arguments).current_dir(directory);
    make.stdin(Stdio::null());
    let since = SystemTime::now();
    let began = Instant::now();
    let (output, processors) = with_processors(|| make.output());
    let (output, took) = (output?, began.elapsed());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let errors = text(&output.stderr);
    let (own, others): (Vec<_>, Vec<_>) = errors
        .lines()
        .partition(|line| line.starts_with("outlive: "));
    let commands = match by {
        Builder::Noted(noting) => noting.taken()?,
        Builder::Make | Builder::Outlive(..) => Vec::new(),
    };
    let bytes = made(directory, since)?;
    let tree = picture::of(directory)?;
    let mut question = Command::new("make");
    question.arg("-q").args(&arguments).current_dir(directory);
    let question = question.output()?;
    Ok(BuildOutcome {
        took,
        status: output.status.code(),
        said: [text(&output.stdout), others.join("\n")],
        told: own.join("; "),
        is_done: question.status.code(),
        tree,
        unasked: None,
        commands,
        bytes,
        processors: processors?,
        hidden: None,
    })
}

/// Total size of the files in that directory that were written since.
fn made(directory: &Path, since: SystemTime) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is = entry.metadata()?;
        if is.is_dir() {
            sum += made(&entry.path(), since)?;
        } else if is.is_file() && is.modified()? >= since {
            sum += is.len();
        }
    }
    Ok(sum)
}

/// Runs a closure. Returns also the processor time of the ended and the running children, seconds.
fn with_processors<T>(work: impl FnOnce() -> T) -> (T, Result<f64>) {
    // Of children that have ended, and theirs: the fourteenth and fifteenth after the name, in hundredths.
    let spent = || {
        let told = fs::read_to_string("/proc/self/stat")?;
        let (_, numbers) = told.rsplit_once(')').context("no name")?;
        let times = numbers.split_ascii_whitespace().skip(13).take(2);
        let times = times
            .map(str::parse::<f64>)
            .collect::<Result<Vec<_>, _>>()?;
        anyhow::Ok(times.iter().sum::<f64>() / 100.0)
    };
    let before = spent();
    let done = work();
    let used = spent().and_then(|after| Ok(after - before?));
    (done, used)
}

/// Peak memory of a process, bytes.
fn most_memory(process: u32) -> Result<u64> {
    let about = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = about.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    Ok(number.context("no VmHWM")?.parse::<u64>()? << 10)
}

/// Disk space of the unnamed files that a process holds, bytes.
fn hidden_by(process: u32) -> Result<u64> {
    let mut all = BTreeMap::new();
    for descriptor in fs::read_dir(format!("/proc/{process}/fd"))? {
        // The descriptor may be closed by now.
        let Ok(file) = fs::metadata(descriptor?.path()) else {
            continue;
        };
        if file.is_file() && file.nlink() == 0 {
            all.insert((file.dev(), file.ino()), file.blocks() * 512);
        }
    }
    Ok(all.into_values().sum())
}

/// `outlive make --watch`.
pub struct Watcher {
    program: PathBuf,
    directory: PathBuf,
    child: Child,
    /// Number of speculative makes before the save.
    begun: Cell<u64>,
}

impl Watcher {
    /// Starts the watcher with this program and these expected arguments.
    pub fn over(directory: &Path, program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut watch = Command::new(program);
        watch.args(["make", "--watch"]).args(arguments);
        // As the streams that makes are given here: none is a terminal, and no two are the same.
        let log = fs::File::create(directory.with_extension("log"))?;
        watch.current_dir(directory).stdin(Stdio::null());
        watch.stdout(Stdio::null()).stderr(log);
        let this = Self {
            program: program.to_owned(),
            directory: directory.to_owned(),
            child: watch.spawn()?,
            begun: Cell::new(0),
        };
        let began = Instant::now();
        while this.status().is_err() {
            ensure!(began.elapsed() < BUILD_TIMEOUT, "nobody watches");
            thread::sleep(POLL_INTERVAL);
        }
        Ok(this)
    }

    fn status(&self) -> Result<serde_json::Value> {
        let mut status = Command::new(&self.program);
        status.args(["make", "--status", "--json"]);
        let output = status.current_dir(&self.directory).output()?;
        ensure!(output.status.success(), "no status");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Number of running makes and commands.
    pub fn running(&self) -> Result<u64> {
        Ok(self.status()?["running"].as_u64().unwrap_or(0))
    }

    /// Ignores makes from before the next save.
    pub fn is_saved_soon(&self) -> Result<()> {
        self.begun
            .set(self.status()?["begun"].as_u64().unwrap_or(0));
        Ok(())
    }

    /// Waits until the watcher is idle. Returns the duration of the speculative make.
    pub fn has_finished(&self, interrupt: &Interrupt) -> Result<Duration> {
        thread::sleep(SAVE_DELAY);
        let began = Instant::now();
        loop {
            interrupt.check()?;
            let status = self.status()?;
            let number = |what: &str| status[what].as_u64().unwrap_or(0);
            let is_begun = number("begun") > self.begun.get();
            if is_begun && number("running") == 0 && number("finished") > 0 {
                return Ok(Duration::from_micros(number("took")));
            }
            if began.elapsed() > BUILD_TIMEOUT {
                bail!("it does not finish: {status}");
            }
            thread::sleep(STATUS_INTERVAL);
        }
    }

    /// Ends the watcher.
    ///
    /// # Errors
    /// The watcher does not end, or leaves an error.
    pub fn end(mut self) -> Result<()> {
        let mut stop = Command::new(&self.program);
        stop.args(["make", "--stop"]).current_dir(&self.directory);
        run(&mut stop)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the watcher ended with {status}");
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
