//! The effect of a watcher on a build of the user.

use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use super::super::Bench;
use super::super::figure::{Aim, Figure};
use super::seconds;
use builds::{Tree, Watcher};

/// The build of the user: some seconds.
const OWN: &str = "lua";
/// The speculative build beside: much longer.
const BESIDE: &str = "redis";
/// Time after which plain make has read the makefiles.
const MAKEFILE_TIME: Duration = Duration::from_secs(1);
/// Longest time until the unasked build has begun.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

const SERVED: &str =
    "any work that comes last costs about as much here: `make.foreground.idle` has plain make's";
const BOUND: &str = "each command of a build that is watched asks the watcher first";

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let outlive = &bench.stage.testbed.programs.outlive;
    let (own, beside) = (Tree::of(OWN, "own")?, Tree::of(BESIDE, "beside")?);
    let last = Tree::of(BESIDE, "last")?;
    let (mut disturbed, mut watched, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    // Once, so that all files are in the page cache.
    build(&own, Command::new("make"))?;
    for _ in 0..bench.rounds {
        bench.interrupt.check()?;
        let alone = build(&own, Command::new("make"))?;
        let watcher = Watcher::over(&beside.directory, outlive, beside.arguments)?;
        has_begun(&watcher)?;
        let with = build(&own, Command::new("make"))?;
        ensure!(
            watcher.running()? > 0,
            "{BESIDE} was built before {OWN} was"
        );
        watcher.end()?;
        disturbed.push(with / alone);

        let alone = build(&own, Command::new("make"))?;
        let lasts = Last::of(&last)?;
        let with = build(&own, Command::new("make"))?;
        lasts.end()?;
        idle.push(with / alone);

        let alone = build(&own, Command::new("make"))?;
        // The watcher expects another target.
        let watcher = Watcher::over(&own.directory, outlive, &["clean"])?;
        watcher.has_finished(&bench.interrupt)?;
        let mut make = Command::new(outlive);
        make.arg("make");
        let with = build(&own, make)?;
        watcher.end()?;
        watched.push(with / alone);
    }
    let how = |what: &str| {
        format!(
            "`make clean`, and `make -j` by all processors, of {OWN}: {what}, divided by plain make just before"
        )
    };
    Ok(vec![
        Figure::of(
            "make.foreground.beside",
            "",
            &disturbed,
            how(&format!("make, while {BESIDE} is built unasked")),
        )
        .aim(Aim::AtMost(1.02), SERVED),
        Figure::of(
            "make.foreground.idle",
            "",
            &idle,
            how(&format!(
                "make, while plain make builds {BESIDE} as a session that comes last (SCHED_IDLE, autogroup 19)"
            )),
        ),
        Figure::of(
            "make.foreground.own",
            "",
            &watched,
            how("`outlive make` of the second, where what a watcher has done is of no use"),
        )
        .aim(Aim::AtMost(1.02), BOUND),
    ])
}

/// Plain make at the lowest priority: no work in the background can cost others less.
struct Last(Child);

impl Last {
    fn of(tree: &Tree) -> Result<Self> {
        const AS_LAST: &str =
            r#"echo 19 >/proc/self/autogroup; exec chrt --idle 0 make -j"$@" >/dev/null 2>&1"#;
        let mut make = Command::new("setsid");
        make.args(["sh", "-c", AS_LAST, "sh"]);
        make.arg(thread::available_parallelism()?.to_string());
        make.args(tree.arguments).current_dir(&tree.directory);
        let last = Self(make.spawn()?);
        thread::sleep(MAKEFILE_TIME);
        Ok(last)
    }

    fn end(mut self) -> Result<()> {
        let ended = self.0.try_wait()?;
        ensure!(ended.is_none(), "{BESIDE} was built before {OWN} was");
        Ok(())
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// The duration of a build from scratch, seconds.
fn build(tree: &Tree, mut make: Command) -> Result<f64> {
    let mut clean = Command::new("make");
    seconds(clean.arg("clean").current_dir(&tree.directory))?;
    let processors = thread::available_parallelism()?;
    make.arg(format!("-j{processors}")).args(tree.arguments);
    seconds(make.current_dir(&tree.directory))
}

/// Waits until the watcher does more than reading makefiles.
fn has_begun(watcher: &Watcher) -> Result<()> {
    let began = Instant::now();
    while watcher.running()? < 2 {
        ensure!(began.elapsed() < START_TIMEOUT, "nothing is done unasked");
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
