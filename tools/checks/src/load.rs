//! Processes that keep the processors busy, as a neighbour on the same host would.

use std::hint::spin_loop;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result};

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
