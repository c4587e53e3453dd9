//! The events of `outlive serve --json`, read from a file.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::Pid;
use serde_json::Value;

use crate::task::Interrupt;

/// Time between two looks for an event.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The events of a `serve` so far.
#[derive(Debug)]
pub struct Events {
    log: PathBuf,
    /// Number of events up to the last awaited event.
    passed: usize,
}

impl Events {
    /// Events of a file that is empty at first.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn in_file(log: PathBuf) -> Result<Self> {
        fs::write(&log, "")?;
        Ok(Self { log, passed: 0 })
    }

    /// All events.
    pub fn all(&self) -> Result<Vec<Value>> {
        let text = fs::read(&self.log)?;
        let end = text.iter().rposition(|byte| *byte == b'\n');
        let lines = text[..end.map_or(0, |end| end + 1)].split(|byte| *byte == b'\n');
        let events = lines.filter_map(|line| serde_json::from_slice(line).ok());
        Ok(events.collect())
    }

    /// Waits for the next event of that name.
    pub fn wait_for(
        &mut self,
        name: &str,
        patience: Duration,
        interrupt: &Interrupt,
    ) -> Result<Value> {
        let deadline = Instant::now() + patience;
        loop {
            for event in self.all()?.into_iter().skip(self.passed) {
                self.passed += 1;
                if event["event"] == name {
                    return Ok(event);
                }
            }
            interrupt.check()?;
            if Instant::now() > deadline {
                let told = fs::read_to_string(&self.log).unwrap_or_default();
                let tail: String = told.lines().rev().take(5).collect::<Vec<_>>().join("\n");
                let seconds = patience.as_secs();
                bail!("no event `{name}` within {seconds} s; the last: {tail}");
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The server's present main process.
    pub fn server_pid(&self) -> Result<Pid> {
        let events = self.all()?;
        let started = |event: &&Value| event["event"] == "started" || event["event"] == "restarted";
        let event = events.iter().rev().find(started);
        event
            .and_then(|event| i32::try_from(event["pid"].as_i64()?).ok())
            .and_then(Pid::from_raw)
            .context("serve has not said which process the server is")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn event_is_waited_for_after_last_start() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("events");
        let mut events = Events::in_file(path.clone())?;
        let mut file = fs::OpenOptions::new().append(true).open(path)?;
        file.write_all(b"{\"event\":\"started\",\"pid\":7}\nnot JSON\n")?;
        file.write_all(b"{\"event\":\"serving\",\"n\":1}\n{\"event\":\"serving\",\"n\":2}\n")?;
        file.write_all(b"{\"event\":\"restarted\",\"pid\":8}\n{\"event\":\"restarted\",\"pid\":9")?;
        let interrupt = Interrupt::on_signals()?;
        for number in [1, 2] {
            let event = events.wait_for("serving", Duration::ZERO, &interrupt)?;
            assert_eq!(event["n"], number);
        }
        assert!(
            events
                .wait_for("serving", Duration::ZERO, &interrupt)
                .is_err()
        );
        assert_eq!(
            events.server_pid()?.as_raw_pid(),
            8,
            "the last line is not whole"
        );
        Ok(())
    }
}
