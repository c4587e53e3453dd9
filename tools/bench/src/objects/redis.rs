//! The store of a pool, on a host of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Host, Output, Process, Signal};

use crate::Bench;

const HOST_NUMBER: u8 = 9;
const REDIS_PORT: u16 = 6379;
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The commands of a member for its records.
const RECORD_COMMANDS: [&str; 4] = ["hset", "hget", "hdel", "hscan"];

/// A running Redis without files.
pub(super) struct Redis {
    host: Host,
    process: Process,
}

impl Redis {
    /// # Errors
    /// Redis does not start.
    pub(super) fn start(bench: &Bench) -> Result<Self> {
        let host = bench.stage.testbed.lab.add_host_at("kv", HOST_NUMBER)?;
        let port = REDIS_PORT.to_string();
        let mut command = host.command("redis-server");
        command.args(["--port", &port, "--save", "", "--protected-mode", "no"]);
        let log = Output::File(bench.stage.file("redis.log"));
        let process = host.spawn(&mut command, &log)?;
        let redis = Self { host, process };
        let deadline = Instant::now() + STEP_TIMEOUT;
        while redis.ask(&["ping"]).is_err() {
            bench.interrupt.check()?;
            ensure!(Instant::now() < deadline, "redis does not answer");
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(redis)
    }

    /// For `outlive balance --store`.
    pub(super) fn url(&self) -> String {
        format!("redis://{}:{REDIS_PORT}", self.host.address().ipv4())
    }

    /// Number of commands for records so far.
    ///
    /// # Errors
    /// Redis does not answer.
    pub(super) fn operations(&self) -> Result<f64> {
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

    /// # Errors
    /// Redis does not end.
    pub(super) fn stop(self) -> Result<()> {
        self.process.kill(Signal::TERM)?;
        let ended = self.process.wait_with_timeout(STEP_TIMEOUT)?;
        ensure!(ended.is_some(), "redis does not end");
        Ok(())
    }
}
