//! The rivals on a save: `watchexec` runs make, `tup monitor` runs the rules of tup. The effects of both are visible.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::super::Bench;
use super::super::figure::Figure;
use super::seconds;
use builds::{Tree, Watcher};

/// The built project: there are rules for tup.
const PROJECT: &str = "lua";
const SOURCES: &str = "src";
/// The compared results, where the rules are the same: the programs and the library.
const RESULTS: [&str; 3] = ["lua", "luac", "liblua.a"];
/// The rules of lua's makefile for Linux.
const TUPFILE: &str = "\
CFLAGS = -std=gnu99 -O2 -Wall -Wextra -DLUA_COMPAT_5_3 -DLUA_USE_LINUX
: foreach *.c |> gcc $(CFLAGS) -c -o %o %f |> %B.o
: *.o ^lua.o ^luac.o |> ar rcs %o %f |> liblua.a
: lua.o liblua.a |> gcc -std=gnu99 -o %o %f -lm -Wl,-E -ldl |> lua
: luac.o liblua.a |> gcc -std=gnu99 -o %o %f -lm -Wl,-E -ldl |> luac
";
/// Time after which a rival waits for saves.
const WATCHER_START_TIME: Duration = Duration::from_secs(1);

/// Who builds when something is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rival {
    Outlive,
    Watchexec,
    Tup,
}

/// Time from a save to the request, as a multiple of make's time.
const PAUSES: [(&str, f64); 2] = [("finished", 3.0), ("half_done", 0.5)];

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let plain = Tree::of(PROJECT, "plain")?;
    let sides = [Rival::Outlive, Rival::Watchexec, Rival::Tup];
    let sides = sides.map(|rival| Side::begin(rival, bench));
    let sides = sides.into_iter().collect::<Result<Vec<_>>>()?;
    seconds(make(&plain.directory).args(plain.arguments))?;
    let mut gains: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    let mut wrong: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for round in 0..bench.rounds {
        for (pause, times) in PAUSES {
            bench.interrupt.check()?;
            let text = format!("/* {pause} {round} */\n");
            append(&plain.header, &text)?;
            let usual = seconds(make(&plain.directory).args(plain.arguments))?;
            for side in &sides {
                append(&side.tree.header, &text)?;
                thread::sleep(Duration::from_secs_f64(usual * times));
                let asked = seconds(&mut side.question(bench));
                // Two makes at once in the same tree, as with watchexec, may fail because of each other.
                let may_fail = side.rival == Rival::Watchexec;
                let took = if may_fail { asked.ok() } else { Some(asked?) };
                let gained = gains.entry((side.rival, pause)).or_default();
                gained.extend(took.map(|took| usual / took));
                if side.rival != Rival::Tup {
                    let is_other =
                        took.is_none() || other_results(&side.tree.directory, &plain.directory)?;
                    let wrong = wrong.entry(side.rival).or_default();
                    wrong.push(f64::from(u8::from(is_other)));
                }
                // The rest of a rival's work must not disturb the next measurement.
                thread::sleep(Duration::from_secs_f64(usual));
            }
        }
    }
    Ok(figures(&gains, &wrong))
}

fn figures(
    gains: &BTreeMap<(Rival, &'static str), Vec<f64>>,
    wrong: &BTreeMap<Rival, Vec<f64>>,
) -> Vec<Figure> {
    let how = format!(
        "a header of {PROJECT} is saved, and then it is asked for: make's time divided by what it takes"
    );
    let mut all = Vec::new();
    for ((rival, pause), gains) in gains.iter().filter(|(_, gains)| !gains.is_empty()) {
        let name = format!("make.beside.{}.{pause}.gain", rival.name());
        all.push(Figure::of(
            name,
            "",
            gains,
            format!("{how}; {}", rival.how()),
        ));
    }
    for (rival, wrong) in wrong {
        let share = [wrong.iter().sum::<f64>() / wrong.len() as f64];
        let name = format!("make.beside.{}.wrong", rival.name());
        let how = "the same: in how many of the cases make failed, or the programs were not those that make makes";
        all.push(Figure::of(name, "", &share, how));
    }
    all
}

impl Rival {
    fn name(self) -> &'static str {
        match self {
            Self::Outlive => "outlive",
            Self::Watchexec => "watchexec",
            Self::Tup => "tup",
        }
    }

    fn how(self) -> &'static str {
        match self {
            Self::Outlive => "by `outlive make`",
            Self::Watchexec => "by `make`, where watchexec runs make on each save",
            Self::Tup => "by `tup`, with rules of its own, where `tup monitor -a` runs",
        }
    }
}

/// A rival, with the tree that the rival builds.
struct Side {
    rival: Rival,
    /// Declared first, so that the process ends before the tree is removed.
    _running: Running,
    tree: Tree,
}

enum Running {
    Watcher { _watcher: Watcher },
    Other(Child),
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Self::Other(child) = self {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            let _ = child.wait();
        }
    }
}

impl Side {
    fn begin(rival: Rival, bench: &Bench) -> Result<Self> {
        let tree = Tree::of(PROJECT, rival.name())?;
        let programs = &bench.stage.testbed.programs;
        if rival != Rival::Tup {
            // The first build is not after a save, and so is not measured.
            seconds(make(&tree.directory).args(tree.arguments))?;
        }
        let running = match rival {
            Rival::Outlive => Running::Watcher {
                _watcher: Watcher::over(&tree.directory, &programs.outlive, tree.arguments)?,
            },
            Rival::Watchexec => {
                let mut watch = Command::new(programs.watchexec());
                watch.args(["--watch", SOURCES, "--exts", "c,h", "--postpone", "--"]);
                watch.arg("make").args(tree.arguments);
                began(&mut watch, &tree.directory)?
            }
            Rival::Tup => {
                let sources = tree.directory.join(SOURCES);
                fs::write(sources.join("Tupfile"), TUPFILE)?;
                seconds(tup(&sources).arg("init"))?;
                seconds(&mut tup(&sources))?;
                began(tup(&sources).args(["monitor", "-a", "-f"]), &sources)?
            }
        };
        Ok(Self {
            rival,
            _running: running,
            tree,
        })
    }

    fn question(&self, bench: &Bench) -> Command {
        let directory = &self.tree.directory;
        let mut question = match self.rival {
            Rival::Outlive => {
                let mut outlive = Command::new(&bench.stage.testbed.programs.outlive);
                outlive.arg("make").current_dir(directory);
                outlive
            }
            Rival::Watchexec => make(directory),
            Rival::Tup => return tup(&directory.join(SOURCES)),
        };
        question.args(self.tree.arguments);
        question
    }
}

fn make(directory: &Path) -> Command {
    let mut make = Command::new("make");
    make.current_dir(directory);
    make
}

fn tup(directory: &Path) -> Command {
    let mut tup = Command::new("tup");
    tup.current_dir(directory);
    tup
}

fn began(command: &mut Command, directory: &Path) -> Result<Running> {
    command.current_dir(directory).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn();
    let child = child.with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let mut running = Running::Other(child);
    thread::sleep(WATCHER_START_TIME);
    if let Running::Other(child) = &mut running {
        ensure!(child.try_wait()?.is_none(), "{command:?} has ended");
    }
    Ok(running)
}

fn append(path: &PathBuf, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

/// Whether the results in one tree differ from the results in the other tree.
fn other_results(one: &Path, other: &Path) -> Result<bool> {
    for name in RESULTS {
        let read = |tree: &Path| fs::read(tree.join(SOURCES).join(name));
        if read(one).ok() != Some(read(other)?) {
            return Ok(true);
        }
    }
    Ok(false)
}
