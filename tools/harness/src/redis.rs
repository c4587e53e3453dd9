//! The store of a pool, on a host of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Host, Output, Process, Signal};

use crate::task::Interrupt;

const REDIS_PORT: u16 = 6379;
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The commands of a member for its records.
const RECORD_COMMANDS: [&str; 4] = ["hset", "hget", "hdel", "hscan"];

/// A running Redis without files.
pub struct Redis {
    host: Host,
    process: Process,
}

impl Redis {
    /// Starts Redis on this host.
    ///
    /// # Errors
    /// Redis does not start.
    pub fn start(host: Host, log: PathBuf, interrupt: &Interrupt) -> Result<Self> {
        let port = REDIS_PORT.to_string();
        let mut command = host.command("redis-server");
        command.args(["--port", &port, "--save", "", "--protected-mode", "no"]);
        let process = host.spawn(&mut command, &Output::File(log))?;
        let redis = Self { host, process };
        let deadline = Instant::now() + STEP_TIMEOUT;
        while redis.ask(&["ping"]).is_err() {
            interrupt.check()?;
            ensure!(Instant::now() < deadline, "redis does not answer");
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(redis)
    }

    /// For `outlive balance --store`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}:{REDIS_PORT}", self.host.address().ipv4())
    }

    /// Number of commands for records so far.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn operations(&self) -> Result<f64> {
        let statistics = self.ask(&["info", "commandstats"])?;
        let calls = RECORD_COMMANDS.iter().filter_map(|name| {
            let prefix = format!("cmdstat_{name}:calls=");
            let rest = statistics
                .lines()
                .find_map(|line| line.strip_prefix(&prefix))?;
            rest.split(',').next()?.parse::<f64>().ok()
        });
        Ok(calls.sum())
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let output = self.host.command("redis-cli").args(words).output()?;
        ensure!(output.status.success(), "redis-cli {words:?}: {output:?}");
        String::from_utf8(output.stdout).context("redis-cli")
    }

    /// Ends Redis.
    ///
    /// # Errors
    /// Redis does not end.
    pub fn stop(self) -> Result<()> {
        self.process.kill(Signal::TERM)?;
        let ended = self.process.wait_with_timeout(STEP_TIMEOUT)?;
        ensure!(ended.is_some(), "redis does not end");
        Ok(())
    }
}
