//! Processes that keep the processors busy, as a neighbour on the same host would.

use std::fs;
use std::hint::spin_loop;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};

/// Whether the kernel shares the processors among sessions (autogroup in sched(7)): 1 or 0. Not every kernel has it.
const SHARED_BY_SESSIONS: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Busy processes. All of them end when this value is dropped, and when this process dies for any
/// reason: each busy process ends at the end of standard input.
pub(crate) struct Load(Vec<Child>);

impl Load {
    /// Starts that many.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let own = std::env::current_exe().context("this program's file is unknown")?;
        let mut load = Self(Vec::new());
        for _ in 0..count {
            let mut busy = Command::new(&own);
            busy.arg("spin").stdin(Stdio::piped());
            let child = busy.spawn().context("no busy process could be started")?;
            load.0.push(child);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for mut child in self.0.drain(..) {
            drop(child.stdin.take());
            drop(child.wait());
        }
    }
}

/// While this value lives, the kernel shares the processors among processes, whatever their sessions. A process of
/// its own puts the setting back, also when this process is killed: at the end of its standard input.
pub(crate) struct WithoutSessions(Option<Child>);

impl WithoutSessions {
    /// Changes the setting, if this kernel has one. Where the setting cannot be changed, as in some containers, tests
    /// only take longer.
    pub(crate) fn begin() -> Self {
        let shares = fs::read(SHARED_BY_SESSIONS).is_ok_and(|value| value.starts_with(b"1"));
        if !shares {
            return Self(None);
        }
        Self::change().unwrap_or_else(|error| {
            println!("the sessions of commands that run last stay last: {error:#}");
            Self(None)
        })
    }

    fn change() -> Result<Self> {
        let own = std::env::current_exe().context("this program's file is unknown")?;
        let mut holder = Command::new(own);
        holder.arg("without-sessions");
        holder.stdin(Stdio::piped()).stdout(Stdio::piped());
        // What ends this program from a terminal must not end the one that puts the setting back.
        holder.process_group(0);
        let mut holder = holder.spawn().context("this program cannot be run")?;
        let stdout = holder.stdout.take().context("no standard output")?;
        let without = Self(Some(holder));
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(!line.is_empty(), "{SHARED_BY_SESSIONS} cannot be changed");
        Ok(without)
    }
}

impl Drop for WithoutSessions {
    fn drop(&mut self) {
        if let Some(mut holder) = self.0.take() {
            drop(holder.stdin.take());
            drop(holder.wait());
        }
    }
}

/// Has the kernel not share by sessions until standard input ends, and then share again.
///
/// # Errors
/// If the setting cannot be changed.
pub(crate) fn hold_without_sessions() -> Result<()> {
    fs::write(SHARED_BY_SESSIONS, "0").context(SHARED_BY_SESSIONS)?;
    println!("changed");
    drop(io::stdin().read_to_end(&mut Vec::new()));
    fs::write(SHARED_BY_SESSIONS, "1").context(SHARED_BY_SESSIONS)
}

/// Keeps one processor busy until standard input ends.
pub(crate) fn spin() {
    thread::spawn(|| {
        loop {
            spin_loop();
        }
    });
    // The end of the input and an error mean the same: the parent is gone.
    drop(io::stdin().read_to_end(&mut Vec::new()));
}
